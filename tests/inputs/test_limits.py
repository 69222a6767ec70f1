"""What is too large is refused by its size, before anything is built of it; SECURITY.md lists the limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cpsolver.doors.importing.imported import ImportOptions, import_source
from cpsolver.inputs import document, limits
from cpsolver.inputs.document import load_yaml, parse_yaml, read_text
from cpsolver.inputs.errors import InputError
from cpsolver.spec.training import MOST
from models_zoo.consistency import MOST_LAYERS, MOST_SIZE
from models_zoo.hugging_face import UnsupportedConfigError, from_hugging_face
from tests.support.checkout import ROOT
from tests.support.command import in_tmp, run, write

__all__ = ["in_tmp"]

SPEC = """
model: {name: x, layers: %s, hidden: %s, ffn: 11008, heads: 32, vocab: 32000}
cluster: {num_gpus: 8, chips: h100}
training: {global_batch_size: 32, sequence_length: 4096}
"""
CONFIG = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 6,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 8,
    "vocab_size": 32000,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
    "topk_group": 1,
}


def test_a_device_without_an_end_is_not_read_on() -> None:
    Path("x.yaml").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="is larger than 4,194,304 bytes"):
        load_yaml("x.yaml")


def test_a_file_is_read_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MOST_DOCUMENT_BYTES", 10)
    assert load_yaml(write("a.yaml", "a: 456789\n")).data == {"a": 456789}
    with pytest.raises(InputError, match="is larger than 10 bytes"):
        load_yaml(write("a.yaml", "a: 4567890\n"))
    assert read_text("a.yaml", 11)[1] == "a: 4567890\n"


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"k{number}: 1\n" for number in range(150_000)),
        "k: 1\n" * 200_001,
        "a: [" + "1," * 60_000 + "]",
        json.dumps({"a": [1] * 200_002}),
        '{"a": ' + "a," * 60_000 + '"b": 1}',
    ],
)
def test_a_document_of_very_many_values_is_not_parsed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_compose", None)  # would be called
    with pytest.raises(InputError, match="no more is read"):
        parse_yaml(text)


def test_a_large_document_of_a_program_is_read_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    written = {"a": [1, 2.5, "no", None, True, {"b": [float("nan"), 10**30]}]}
    small = parse_yaml(json.dumps(written)).data
    monkeypatch.setattr(document, "_compose", None)  # would be called
    long = [*range(60_000)]
    assert parse_yaml(json.dumps({**written, "c": long})).data == {**small, "c": long}
    twice = json.dumps({"c": long, "a": 1})[:-1] + ', "a": 2}'
    with pytest.raises(InputError, match="the key 'a' is written twice"):
        parse_yaml(twice)
    assert parse_yaml(twice, collect=True).data == {"c": long, "a": 2}


@pytest.mark.parametrize(
    ("layers", "hidden", "told"),
    [
        (10**9, 4096, "model.layers: layers must be at most 4,096"),
        (32, "9" * 310, "model.hidden: hidden must be at most"),
        (10**9, "9" * 310, "model.layers"),
    ],
)
def test_a_model_that_none_can_be_is_refused(layers: int, hidden: object, told: str) -> None:
    write("x.yaml", SPEC % (layers, hidden))
    result = run("solve", "x.yaml")
    assert result.exit_code == 2
    assert told in result.stderr


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("moe_layer_freq", "every", "neither a number nor a list"),
        ("moe_layer_freq", {}, "neither a number nor a list"),
        ("moe_layer_freq", [0, 1, 0, 1, 0, 1], "a list of 0 for dense layers at the start"),
        ("num_hidden_layers", 10**9, "num_hidden_layers must be at most"),
        ("hidden_size", 10**310, "hidden_size must be at most"),
        ("rope_theta", 10**310, "rope_theta must be at most"),
        ("n_group", "x", "value is of another kind"),
    ],
)
def test_a_configuration_with_values_that_none_has_is_refused(key: str, value: object, told: str) -> None:
    with pytest.raises(UnsupportedConfigError, match=told):
        from_hugging_face(CONFIG | {key: value})


def test_experts_by_a_list_of_layers() -> None:
    listed = from_hugging_face(CONFIG | {"moe_layer_freq": [0, 0, 1, 1, 1, 1]})
    assert listed == from_hugging_face(CONFIG | {"first_k_dense_replace": 2})


def test_a_script_with_a_line_that_no_command_has_is_refused() -> None:
    write("train.sh", "#!/bin/bash\ntorchrun pretrain_gpt.py " + "--a 1 " * 30_000)
    with pytest.raises(InputError, match=r"train\.sh:2: has a line of more than 131,072 characters"):
        import_source("train.sh", ImportOptions())


def test_ranks_of_a_plan_that_has_no_groups_say_which_rule_it_breaks() -> None:
    write("x.yaml", SPEC % (32, 4096))
    plan = {"tp": 2, "pp": 1, "dp": 2, "cp": 2, "mbs": 1, "distributed_optimizer": True, "sharding_group": 8}
    write("plan.json", json.dumps(plan | {"stages": [{"chip": "h100", "layers": [32]}]}))
    result = run("ranks", "x.yaml", "--plan", "plan.json")
    assert result.exit_code == 2, result.output
    assert "sharding_group 8 is no part of" in result.stderr


def test_every_limit_stands_in_security_md() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    numbers = [value for name, value in vars(limits).items() if name.startswith("MOST_")]
    for value in (*numbers, MOST_LAYERS, MOST_SIZE, MOST):
        forms = (f"{value:,}", f"2^{value.bit_length() - 1}", f" {value // 2**20} MiB")
        assert any(form in text for form in forms), value
