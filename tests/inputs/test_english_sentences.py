"""What the catalogues say of wrong models, chips and configurations is said in Chinese too, and in English as they say
it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cpsolver.inputs.english_sentences import as_messages, configuration_reason
from cpsolver.inputs.language import CHINESE, say, speaking
from hw_specs import load_chip, unusable_reasons
from hw_specs.schema import Chip
from models_zoo import Architecture, UnsupportedConfigError, from_hugging_face, hugging_face_llama
from tests.support.problems import chip_spec, model_spec

LATENT = {"kind": "mla", "kv_lora": 64, "qk_nope": 64, "qk_rope": 32, "v_head": 64}
MOE = {"experts": 8, "top_k": 2, "expert_ffn": 512}
WRONG_MODELS: tuple[dict[str, Any], ...] = (
    {"layers": 2**50},
    {"heads": 7, "kv_heads": 2},
    {"hidden": 1000, "heads": 7},
    {"kv_heads": 3},
    {"kv_heads": 8, "attention": {"kind": "gqa"}},
    {"kv_heads": 4, "attention": {"kind": "mqa"}},
    {"position": "learned"},
    {"attention": {"kind": "mla"}},
    {"attention": {**LATENT, "o_lora": 64}},
    {"attention": {"full_every": 2}},
    {"attention": {"global_head_dim": 64, "global_kv_heads": 2}},
    {"attention": {"kind": "csa", "q_lora": 8, "o_lora": 8, "o_groups": 2, "compression": [0]}, "kv_heads": 1},
    {"moe": {"experts": 8}},
    {"moe": {**MOE, "top_k": 12, "groups": 3, "top_groups": 4, "first_dense": 9}},
    {"moe": {**MOE, "freq": 2, "offset": 3, "shared_gate": True}},
    {"moe": {**MOE, "freq": 2}, "ffn": 0},
    {"moe": {**MOE, "shortcut": True, "first_dense": 1}, "mtp_layers": 1, "layer_pattern": "*E*E"},
    {"layer_pattern": "M*"},
    {"mamba": {"heads": 8, "head_dim": 64, "groups": 4, "state": 64, "conv": 4}},
    {"linear_attention": {"kind": "gated_deltanet", "conv": 4}},
    {"full_attention_interval": 9},
    {"vision": {"layers": 2, "hidden": 100, "ffn": 10, "heads": 7, "patch": 14, "full_every": 3}},
)
WRONG_CONFIGURATIONS: tuple[dict[str, Any], ...] = (
    {"model_type": "lama", "hidden_size": 8},
    {"model_type": "llama", "hidden_size": 8},
    {"model_type": "llama", "hidden_size": 2**60},
    {"model_type": "gpt2", "n_embd": 2**60},
    {"model_type": "deepseek_v3", **dict.fromkeys(("num_hidden_layers", "hidden_size", "num_attention_heads"), 8)},
    {"model_type": "llava", "text_config": {"model_type": "llama"}},
    {"model_type": "llava", "text_config": {"model_type": "llama", "_name_or_path": "a/b"}},
)
GLUE = re.compile(r" (is|but|has|not|and|more|than|given|must|nor|are|no)\b")


def sentences() -> Iterator[str]:
    for changes in WRONG_MODELS:
        with pytest.raises(ValidationError) as wrong:
            Architecture.model_validate({"name": "wrong", **model_spec(), **changes})
        found = [detail["msg"] for detail in wrong.value.errors() if detail["type"] == "value_error"]
        assert found, changes
        yield from (text.removeprefix("Value error, ") for text in found)
    fields: dict[str, Any] = {**chip_spec(), "name": "wrong", "vendor": "nvidia"}
    links, assumed = {"bandwidth_gb_s": 10, "peer_bandwidth_gb_s": 20}, {"source": "a test", "confidence": "assumed"}
    efficiencies: Iterator[dict[str, Any]] = (
        {"efficiency": {name: {"value": of, **assumed}}} for name, of in (("gem", 0.5), ("gemm", 7.0))
    )
    wrong_chips: tuple[dict[str, Any], ...] = (*efficiencies, {"scale_up": links})
    for more in wrong_chips:
        with pytest.raises(ValidationError) as wrong:
            Chip.model_validate({**fields, **more})
        yield from (detail["msg"].removeprefix("Value error, ") for detail in wrong.value.errors())
    for chip in ("metax_c550", "p100"):
        yield from unusable_reasons(load_chip(chip), "fp8", host_link=True, blocks="mx", fp32=True)


EVERY = sorted(set(sentences()))


def reasons() -> Iterator[str]:
    """Every literal reason against a configuration in the readers' source; what it fills in stands as a 7."""
    for file in sorted(Path(hugging_face_llama.__file__).parent.glob("hugging_face*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "refuse":
                yield _filled(node.args[1])
    yield from (text for config in WRONG_CONFIGURATIONS for text in against(config))


def _filled(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_filled, node.values))
    if isinstance(node, ast.FormattedValue):
        return hugging_face_llama._LISTED if "_LISTED" in ast.dump(node) else "7"
    assert isinstance(node, ast.Constant)
    return str(node.value)


def against(config: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(UnsupportedConfigError) as wrong:
        from_hugging_face(config)
    return wrong.value.reasons


REASONS = sorted(set(reasons()))


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_against_a_configuration_is_said_in_chinese(reason: str) -> None:
    assert configuration_reason(reason) == reason
    with speaking(CHINESE):
        said = say(configuration_reason(reason))
    assert re.search("[一-鿿]", said), said
    assert not re.search(r" (is|or|not|no|of|has|says|for|the) ", said), said


def test_there_are_sentences_of_every_sort() -> None:
    assert len(EVERY) >= 40
    assert len(REASONS) >= 30


@pytest.mark.parametrize("sentence", EVERY)
def test_it_is_said_in_chinese(sentence: str) -> None:
    with speaking(CHINESE):
        said = say(as_messages(sentence))
    assert re.search("[一-鿿]", said), said
    assert not GLUE.search(said), said


@pytest.mark.parametrize("sentence", [*EVERY, "of the user's own", "a; b"])
def test_in_english_it_is_as_it_was(sentence: str) -> None:
    assert as_messages(sentence) == sentence
    assert say(as_messages(sentence)) == sentence
