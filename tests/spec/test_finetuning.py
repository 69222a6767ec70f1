"""Sections lora and lengths of a spec: names of several vocabularies, and every mistake with its place."""

from __future__ import annotations

from typing import Any

import pytest

from cpsolver.inputs.errors import InputError
from cpsolver.problem.resolve import resolve
from cpsolver.spec.spec import parse_spec
from cpsolver.spec.training import Training
from tests.support.problems import model_spec, problem_of, spec_of


def trained(**fields: Any) -> Training:
    return parse_spec(spec_of(training=fields)).training


def wrong(model: Any = None, launcher: str | None = None, stack: str | None = None, **fields: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        resolve(parse_spec(spec_of(model=model, training=fields, launcher=launcher, stack=stack)))
    return [str(trouble) for trouble in caught.value.troubles]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("attention", ("linear_qkv", "linear_proj")),
        (["mlp", "linear_proj"], ("linear_fc1", "linear_fc2", "linear_proj")),
        (["q_proj", "v_proj", "down_proj"], ("linear_q", "linear_v", "linear_fc2")),
        (["o_proj", "linear_proj"], ("linear_proj",)),
    ],
)
def test_names_of_other_tools_are_taken(written: Any, meant: tuple[str, ...]) -> None:
    lora = trained(lora={"targets": written}).lora
    assert lora is not None
    assert lora.targets == meant


def test_what_is_left_out_is_megatron_bridges() -> None:
    lora = trained(lora={}).lora
    assert lora is not None
    assert (lora.rank, lora.targets) == (32, ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"))
    assert not lora.of_parts
    assert trained().lora is None


def test_a_spec_with_both_sections_survives_being_written() -> None:
    fields = {"lora": {"rank": 8, "targets": "q_proj"}, "lengths": [{"tokens": 5, "share": 1}], "packing": False}
    spec = parse_spec(spec_of(training=fields))
    assert parse_spec(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lora": {"rank": 0}}, ["training.lora.rank = 0: must be at least 1"]),
        ({"lora": {"ranks": 8}}, ["training.lora.ranks = 8: is not a known field", "did you mean 'rank'"]),
        ({"lora": {"targets": ["qkv"]}}, ["training.lora.targets[0] = 'qkv'", "allowed: linear_qkv"]),
        ({"lora": {"targets": []}}, ["training.lora.targets = []"]),
        ({"lora": {"targets": ["q_proj", "linear_fc1"]}}, ["training.lora.targets: linear_q beside linear_fc1"]),
        ({"lora": {"quantized_base": "nf4"}, "precision": "fp8"}, ["training.lora.quantized_base = 'nf4'", "'fp8'"]),
        ({"lora": {}, "activation_offload": "core_attn"}, ["training.activation_offload = ['core_attn']", "lora"]),
        ({"lora": 16}, ["training.lora = 16: must be a mapping"]),
        ({"lora": {}, "optimizer": "muon"}, ["training.optimizer = 'muon': excludes training.lora"]),
        ({"packing": True}, ["training.packing = true: says nothing without training.lengths"]),
        ({"lengths": []}, ["training.lengths = []"]),
        ({"lengths": [{"tokens": 512}]}, ["training.lengths[0].share: is required"]),
        ({"lengths": [{"tokens": 512, "share": 0}]}, ["training.lengths[0].share = 0"]),
        ({"lengths": [{"tokens": 512, "part": 1, "share": 1}]}, ["training.lengths[0].part = 1"]),
        ({"lengths": [{"tokens": 2000, "share": 1}]}, ["training.lengths[0].tokens = 2000: is more than", "1024"]),
        ({"lengths": [{"tokens": 9, "share": 1}, {"tokens": 9, "share": 2}]}, ["has 9 tokens 2 times"]),
    ],
)
def test_mistakes_are_told_with_their_place(fields: dict[str, Any], words: list[str]) -> None:
    (told,) = wrong(**fields)
    assert all(word in told for word in words), told


def test_all_mistakes_are_told_at_once() -> None:
    lengths = [{"tokens": 2000, "share": 1}, {"tokens": 3000, "share": 1}]
    told = wrong(lora={"targets": ["q_proj", "linear_qkv"]}, lengths=lengths)
    assert len(told) == 3


MOE = model_spec(moe={"experts": 4, "top_k": 2, "expert_ffn": 512})
MLA = model_spec(attention={"kind": "mla", "kv_lora": 128, "qk_nope": 64, "qk_rope": 32, "v_head": 64})
PLAIN = model_spec(gated_mlp=False)


@pytest.mark.parametrize(
    ("model", "lora", "words"),
    [
        (MOE, {"targets": "up_proj"}, "beside which adapters of parts are not counted: linear_fc1_up"),
        (MLA, {}, "custom has latent attention (mla), beside whose layers there is no linear_qkv"),
        (MLA, {"targets": "q_a_proj"}, "no linear_q_down_proj (allowed: linear_q_proj, linear_kv_down_proj"),
        (
            PLAIN,
            {"targets": "kv_b_proj"},
            "custom has grouped heads, beside whose layers there is no linear_kv_up_proj",
        ),
        ("nemotron3-nano-30b-a3b", {}, "adapters beside layers that are one block each"),
        ("deepseek-v3.2-671b", {}, "adapters beside"),
        (model_spec(mtp_layers=1), {}, "adapters beside multi-token prediction"),
        (PLAIN, {"targets": ["gate_proj"]}, "custom has no gate in its feed-forward block"),
    ],
)
def test_what_is_not_counted_is_refused(model: Any, lora: dict[str, Any], words: str) -> None:
    assert any(words in told for told in wrong(model=model, lora=lora)), wrong(model=model, lora=lora)


def test_experts_and_latent_attention_have_adapters() -> None:
    assert problem_of(model=MOE, training={"lora": {}}).lora is not None
    assert problem_of(model=MLA, training={"lora": {"targets": ["linear_q_proj", "kv_b_proj"]}}).lora is not None


def test_packed_sequences_of_selected_keys_are_refused() -> None:
    lengths = [{"tokens": 512, "share": 1}]
    (told,) = wrong(model="deepseek-v3.2-671b", lengths=lengths)
    assert "sparse attention with an indexer, of which packed sequences are not counted" in told
    assert problem_of(model="deepseek-v3.2-671b", training={"lengths": lengths, "packing": False}).windows.useful == 0.5


def test_launchers_without_adapters_or_packing_refuse_them() -> None:
    (told,) = wrong(launcher="megatron-lm", lora={})
    assert told.startswith("training.lora: launcher megatron-lm does not have it (allowed: null")
    (told,) = wrong(launcher="torchtitan", lengths=[{"tokens": 512, "share": 1}])
    assert "training.lengths: launcher torchtitan does not have it (allowed: null, or packing false" in told
    fields = {"lora": {}, "lengths": [{"tokens": 512, "share": 1}]}
    assert problem_of(launcher="megatron-bridge", training=fields).lora is not None
    assert problem_of(launcher="torchtitan", training={**fields, "lora": None, "packing": False}).launcher is not None
