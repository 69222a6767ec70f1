"""Fields of a user's own model that cannot hold together: each said with its place and both values, all at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from cpsolver.inputs.errors import InputError
from cpsolver.problem.resolve import resolve
from cpsolver.spec.spec import parse_spec
from models_zoo import Architecture, list_architectures
from tests.support.command import in_tmp, run, write  # noqa: F401
from tests.support.problems import model_spec, spec_of

MOE = {"experts": 8, "top_k": 2, "expert_ffn": 64}
MLA = {"kind": "mla", "kv_lora": 16, "qk_nope": 8, "qk_rope": 4, "v_head": 8}
DELTA = {"kind": "gated_deltanet", "key_heads": 2, "key_dim": 8, "value_heads": 4, "value_dim": 8, "conv": 4}
MAMBA = {"heads": 8, "head_dim": 8, "groups": 2, "state": 16, "conv": 4}


def problems(**changes: Any) -> dict[str, str]:
    """What is wrong with a model of 4 layers, 8 heads and width 64, by dotted name."""
    fields = {"name": "mine", "layers": 4, "hidden": 64, "ffn": 256, "heads": 8, "vocab": 100}
    with pytest.raises(ValidationError) as caught:
        Architecture.model_validate({**fields, **changes})
    found = [(".".join(map(str, detail["loc"])), detail["msg"]) for detail in caught.value.errors()]
    assert len(dict(found)) == len(found)
    return {where: text.removeprefix("Value error, ") for where, text in found}


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


NO_TOP_K = "moe.experts is 8 but moe.top_k is not given: how many experts a token visits"
LEARNED = "position is 'learned' but max_positions is not given: the rows of the position table"
CASES: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"kv_heads": 3}, {"kv_heads": "heads 8 is not a multiple of kv_heads 3"}),
    ({"kv_heads": 16}, {"kv_heads": "heads 8 is not a multiple of kv_heads 16"}),
    ({"heads": 7}, {"head_dim": "hidden 64 is not a multiple of heads 7: give head_dim"}),
    ({"moe": without(MOE, "top_k")}, {"moe.top_k": NO_TOP_K}),
    ({"moe": without(MOE, "experts")}, {"moe.experts": "moe.top_k is 2 but moe.experts is not given"}),
    ({"moe": {**MOE, "top_k": 9}}, {"moe.top_k": "moe.top_k 9 is more than moe.experts 8"}),
    ({"moe": without(MOE, "expert_ffn")}, {"moe.expert_ffn": "moe.experts is 8 but moe.expert_ffn is not given"}),
    ({"moe": {**MOE, "first_dense": 5}}, {"moe.first_dense": "moe.first_dense 5 is more than layers 4"}),
    ({"moe": {**MOE, "freq": 5}}, {"moe.freq": "moe.freq 5 is more than layers 4"}),
    ({"moe": {**MOE, "freq": 2, "offset": 2}}, {"moe.offset": "moe.offset is 2 but moe.freq is 2"}),
    ({"moe": {**MOE, "offset": 1}}, {"moe.offset": "moe.offset is 1 but moe.freq is not given (1)"}),
    (
        {"moe": {**MOE, "shared_ffn": 32}},
        {"moe.shared_experts": "moe.shared_ffn is 32 but moe.shared_experts is not given (0)"},
    ),
    (
        {"moe": {**MOE, "shared_gate": True, "shared_experts": 0}},
        {"moe.shared_experts": "moe.shared_gate is true but moe.shared_experts is 0"},
    ),
    ({"ffn": 0}, {"ffn": "ffn is 0 but moe is not given: some layers have a dense MLP"}),
    ({"ffn": 0, "moe": {**MOE, "first_dense": 1}}, {"ffn": "ffn is 0 but moe.first_dense is 1"}),
    ({"ffn": 0, "moe": {**MOE, "freq": 2}}, {"ffn": "ffn is 0 but moe.freq is 2"}),
    (
        {"attention": {"sliding_window": 64, "full_every": 5}},
        {"attention.full_every": "attention.full_every 5 is more than layers 4"},
    ),
    (
        {"attention": {"full_every": 2}},
        {"attention.sliding_window": "attention.full_every is 2 but attention.sliding_window is not given"},
    ),
    (
        {"attention": {"sliding_window": 64, "global_head_dim": 16}},
        {"attention.full_every": "attention.global_head_dim is 16 but attention.full_every is not given"},
    ),
    (
        {"attention": {"sliding_window": 64, "full_every": 2, "global_kv_heads": 3}},
        {"attention.global_kv_heads": "heads 8 is not a multiple of attention.global_kv_heads 3"},
    ),
    (
        {"attention": without(MLA, "kv_lora", "v_head")},
        {
            "attention.kv_lora": "attention.kind is 'mla' but attention.kv_lora is not given",
            "attention.v_head": "attention.kind is 'mla' but attention.v_head is not given",
        },
    ),
    (
        {"attention": {"kv_lora": 16}},
        {"attention.kv_lora": "attention.kind is not given but attention.kv_lora is 16: a width of kind mla"},
    ),
    (
        {"attention": {"kind": "mha", "q_lora": 16}},
        {"attention.q_lora": "attention.kind is 'mha' but attention.q_lora is 16: a width of kind mla and csa"},
    ),
    ({"attention": MLA, "kv_heads": 2}, {"kv_heads": "attention.kind is 'mla' but kv_heads is 2 and heads is 8"}),
    (
        {"attention": {"kind": "mqa"}},
        {"kv_heads": "attention.kind is 'mqa' but kv_heads is not given (8) and heads is 8: it has 1 key-value heads"},
    ),
    ({"attention": {"kind": "mqa"}, "kv_heads": 2}, {"kv_heads": "attention.kind is 'mqa' but kv_heads is 2"}),
    ({"attention": {"kind": "gqa"}, "kv_heads": 8}, {"kv_heads": "attention.kind is 'gqa' but kv_heads is 8"}),
    ({"attention": {"kind": "mha"}, "kv_heads": 2}, {"kv_heads": "attention.kind is 'mha' but kv_heads is 2"}),
    ({"mtp_layers": 5}, {"mtp_layers": "mtp_layers 5 is more than layers 4"}),
    (
        {"linear_attention": DELTA, "full_attention_interval": 5},
        {"full_attention_interval": "full_attention_interval 5 is more than layers 4"},
    ),
    (
        {"full_attention_interval": 2},
        {"linear_attention": "full_attention_interval is 2 but linear_attention is not given"},
    ),
    (
        {"linear_attention": DELTA},
        {"linear_attention.layers": "linear_attention is given but neither full_attention_interval nor"},
    ),
    (
        {"linear_attention": {**DELTA, "layers": 5}},
        {"linear_attention.layers": "linear_attention.layers 5 is more than layers 4"},
    ),
    (
        {"linear_attention": {**without(DELTA, "key_dim"), "layers": 2}},
        {
            "linear_attention.key_dim": "linear_attention.kind is 'gated_deltanet' but linear_attention.key_dim "
            "is not given"
        },
    ),
    ({"layer_pattern": "*****"}, {"layer_pattern": "layer_pattern has 5 letters but layers is 4"}),
    (
        {"layer_pattern": "MM*E"},
        {
            "mamba": "layer_pattern has 2 M layers but mamba is not given",
            "moe": "layer_pattern has 1 E layers but moe is not given",
        },
    ),
    ({"layer_pattern": "****", "moe": MOE}, {"moe": "layer_pattern has no E layers but moe is given"}),
    (
        {"layer_pattern": "**--", "mtp_layers": 2},
        {"mtp_pattern": "mtp_layers is 2 but mtp_pattern is not given: the blocks of one module"},
    ),
    ({"mtp_layers": 1, "mtp_pattern": "*"}, {"mtp_pattern": "mtp_pattern is '*' but layer_pattern is not given"}),
    (
        {"layer_pattern": "**--", "mtp_layers": 1, "mtp_pattern": "*E"},
        {"mtp_pattern": "mtp_pattern has E but layer_pattern has no such layer"},
    ),
    ({"mamba": MAMBA}, {"layer_pattern": "mamba is given but layer_pattern is not given"}),
    ({"position": "learned"}, {"max_positions": LEARNED}),
]


@pytest.mark.parametrize(("changes", "said"), CASES)
def test_a_contradiction_is_said_with_both_values(changes: dict[str, Any], said: dict[str, str]) -> None:
    found = problems(**changes)
    assert found.keys() == said.keys()
    for where, text in said.items():
        assert found[where].startswith(text)


def test_all_problems_are_told_at_once_with_those_of_single_fields() -> None:
    moe = {"experts": 8, "top_k": 9, "freq": 0}
    found = problems(heads=7, kv_heads=2, vocab=0, colour="red", mtp_layers=9, moe=moe)
    top = {"head_dim", "kv_heads", "vocab", "colour", "mtp_layers"}
    assert found.keys() == top | {"moe.freq", "moe.top_k", "moe.expert_ffn"}


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"moe": {**MOE, "top_k": None}}, "moe.top_k"),
        ({"moe": {**MOE, "top_k": "two"}}, "moe.top_k"),
        ({"moe": [8]}, "moe"),
        ({"heads": "x"}, "heads"),
        ({"hidden": 0}, "hidden"),
        ({"layers": 0, "mtp_layers": 1}, "layers"),
        ({"attention": {"kind": "mqqa", "kv_lora": 8}}, "attention.kind"),
        ({"ffn": 0, "moe": {**MOE, "freq": "x"}}, "moe.freq"),
    ],
)
def test_a_field_that_is_wrong_by_itself_contradicts_nothing(changes: dict[str, Any], where: str) -> None:
    assert list(problems(**changes)) == [where]


def test_numbers_that_the_fields_read_from_text_are_counted_too() -> None:
    fields = {"name": "mine", "layers": "4", "hidden": 64.0, "ffn": 256, "heads": "8", "vocab": 100}
    arch = Architecture.model_validate(fields)
    assert (arch.kv_heads, arch.head_dim, arch.attention.kind) == (8, 8, "mha")
    assert problems(heads="7") == {"head_dim": "hidden 64 is not a multiple of heads 7: give head_dim"}


def test_what_the_catalogue_holds_contradicts_nothing_when_written_again() -> None:
    for arch in list_architectures():
        assert Architecture.model_validate(arch.model_dump()) == arch
        assert Architecture.model_validate({**arch.model_dump(), "attention": arch.attention}) == arch


def told(**changes: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        resolve(parse_spec(spec_of({"a800": 8}, model_spec(**changes), gpus=8)))
    assert caught.value.exit_code == 2
    return [str(trouble) for trouble in caught.value.troubles]


def test_the_place_in_the_spec_is_said() -> None:
    assert told(moe={**MOE, "top_k": 9}) == ["model.moe.top_k: moe.top_k 9 is more than moe.experts 8"]
    [missing] = told(moe=without(MOE, "top_k"))
    assert missing.startswith("model.moe")
    assert missing.endswith(NO_TOP_K)


SPEC = """\
model:
  {layers: 4, hidden: 64, ffn: 256, heads: 8, vocab: 100, kv_heads: 3,
   mtp_layers: 5,
   moe: {experts: 8, expert_ffn: 64,
         freq: 5}, topk: 2}
cluster: {num_gpus: 8, chips: {a800: 8}}
training: {global_batch_size: 32, sequence_length: 64}
"""


def test_the_command_lists_every_contradiction_with_its_line_and_exits_2() -> None:
    result = run("solve", write("spec.yaml", SPEC), "--json")
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert all(line.startswith("error: ") for line in result.stderr.splitlines())
    assert [trouble["line"] for trouble in json.loads(result.stdout)["troubles"]] == [2, 3, 4, 5, 5]
    for text in ("kv_heads 3", "mtp_layers 5 is more than layers 4", NO_TOP_K, "moe.freq 5 is more than layers 4"):
        assert text in result.stderr
    assert "model.topk" in result.stderr
