"""Layers without attention: sizes by hand, and FLOP against Megatron-LM's own count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpsolver.cost import compute, memory
from cpsolver.cost.comm import layer_comm
from cpsolver.cost.context import exchange_seconds
from cpsolver.cost.kinds import LayerKind, layer_kinds
from cpsolver.cost.model_flops import model_flops_per_step
from cpsolver.cost.recurrence import held_whole, mixer_gemms, recurrence, split_heads
from cpsolver.cost.shard import Shard
from cpsolver.evaluation.evaluate import stage_parameters
from cpsolver.evidence.reach import beyond_runs
from cpsolver.problem.problem import Problem
from models_zoo import Architecture, layer_parameters, load_architecture, total_parameters
from tests.support.problems import ideal, model_spec, strategy_of

ONE = Shard.of(1, 1, False, True)
MAMBA = {"heads": 16, "head_dim": 64, "groups": 4, "state": 128, "conv": 4}
DELTA = {"kind": "gated_deltanet", "key_heads": 4, "key_dim": 64, "value_heads": 8, "value_dim": 64, "conv": 4}
KIMI = {"kind": "kimi_delta_attention", "heads": 8, "dim": 64, "conv": 4, "layers": 3}


def hybrid(**changes: Any) -> Problem:
    """Two state-space layers of 16 heads in 4 groups, a dense block and attention."""
    return ideal(model=model_spec(**{"layer_pattern": "MM-*", "mamba": MAMBA, **changes}))[0]


def kind_of(problem: Problem, mixer: str) -> LayerKind:
    return next(kind for kind in layer_kinds(problem.model) if kind.mixer == mixer)


def test_a_state_space_layer_by_hand() -> None:
    """Inner width 1,024, keys and queries of 4 x 128 each: 2 x 1,024 + 2 x 512 + 16 out of the input projection. In
    chunks of 128: products of keys and queries by group, of scores and values by head, states written and read."""
    of = recurrence(hybrid().model, ONE, "mamba")
    into = 2 * 1024 + 2 * 512 + 16
    assert [(gemm.n.item(), gemm.k.item()) for gemm in of.made_of] == [(into, 1024), (1024, 1024)]
    assert of.flops.item() == 2 * 128 * (512 + 1024) + 4 * 128 * 1024
    assert of.kept.item() == into + 3 * 1024
    assert sum(np.ravel(of.enters).tolist()) == into


def test_tensor_parallelism_splits_heads_and_groups() -> None:
    whole, half = (recurrence(hybrid().model, Shard.of(tp, 1, True, True), "mamba") for tp in (1, 2))
    for name in ("flops", "streamed", "kept", "leaves"):
        assert getattr(half, name) == getattr(whole, name) / 2


def test_ranks_that_are_more_than_the_groups_exchange_copies_of_these() -> None:
    few, many = (recurrence(hybrid().model, Shard.of(1, 1, False, True, cp=cp), "mamba") for cp in (4, 8))
    assert [tensor.item() for tensor in few.enters] == [1024, 1024, 512, 512, 16]
    assert [tensor.item() for tensor in many.enters] == [1024, 1024, 1024, 1024, 16]


def test_context_parallelism_exchanges_heads_once_a_tensor_whatever_attention_does() -> None:
    problem = hybrid()
    chip, kind = problem.supplies[0].chip, kind_of(problem, "mamba")
    ring, gathered = (Shard.of(1, 1, False, True, cp=4, cp_gather=gather) for gather in (False, True))
    seconds = exchange_seconds(problem, chip, ring, "mamba")[0]
    assert seconds > 0
    none = np.zeros(1)
    for shard in (ring, gathered):
        found = layer_comm(problem, chip, shard, none, kind, none)
        assert found.forward == pytest.approx(seconds)
    assert memory._exchanged_bytes(problem, ring, kind) == 2 * 1024 / 4 * (2 * 1024 + 2 * 512 + 16 + 1024)


@pytest.mark.parametrize(
    ("linear", "pieces"),
    [
        (DELTA, 1024 * (2 * 256 + 2 * 512 + 2 * 8) + 512 * 1024),
        (KIMI, 1024 * (3 * 512 + 8) + 2 * (1024 * 64 + 64 * 512) + 512 * 1024),
        ({**KIMI, "full_rank_gate": True}, 1024 * (3 * 512 + 8) + 1024 * 64 + 64 * 512 + 1024 * 512 + 512 * 1024),
    ],
)
def test_gemms_of_linear_attention_are_its_weights(linear: dict[str, Any], pieces: int) -> None:
    every = {} if "layers" in linear else {"full_attention_interval": 4}
    model = Architecture.model_validate({"name": "small", **model_spec(linear_attention=linear, **every)})
    made_of = mixer_gemms(model, ONE, LayerKind(False, True, "linear"))
    assert sum((gemm.n * gemm.k).item() for gemm in made_of) == pieces
    beside = layer_parameters(model, 0).mixer - pieces
    assert 0 < beside < 0.02 * pieces  # convolutions, decays, the norm of a head


def test_a_delta_rule_by_hand() -> None:
    """Chunks of 64 tokens, 8 heads of 64: three products with keys, two with values, three of the state."""
    model = Architecture.model_validate(
        {"name": "small", **model_spec(linear_attention=DELTA, full_attention_interval=4)}
    )
    of = recurrence(model, ONE, "linear")
    assert of.flops.item() == 8 * (2 * 64 * (3 * 64 + 2 * 64) + 6 * 64 * 64)
    into = 2 * 256 + 2 * 512 + 2 * 8
    assert of.kept.item() == into + 2 * 256 + 2 * 512 + (64 + 3) * 8 + 4 * 512


def test_layers_of_one_block_have_one_norm_one_addition_and_one_exchange() -> None:
    problem = hybrid()
    chip, none = problem.supplies[0].chip, np.zeros(1)
    split = Shard.of(2, 1, True, True)
    sent = {kind: layer_comm(problem, chip, split, none, kind, none).forward for kind in layer_kinds(problem.model)}
    usual = ideal(model=model_spec())[0]
    (plain,) = layer_kinds(usual.model)
    twice = layer_comm(usual, chip, split, none, plain, none).forward
    assert list(sent.values()) == [pytest.approx(twice / 2)] * 3
    kept = memory.layer_bytes(problem, ONE, kind_of(problem, "none")).full
    assert kept == 2 * 1024 * (2 * 1024 + 3 * 2816)  # the norm's input and output; gate, up and their product
    alone = compute.layer_seconds(problem, chip, ONE, kind_of(problem, "none"))
    assert alone.core == 0
    assert alone.forward > alone.block > 0


def test_blocks_side_by_side_communicate_once() -> None:
    parallel, usual = (ideal(model=model_spec(norms_per_layer=count))[0] for count in (1, 2))
    chip, none, split = usual.supplies[0].chip, np.zeros(1), Shard.of(2, 1, True, True)
    once, twice = (
        layer_comm(problem, chip, split, none, layer_kinds(problem.model)[0], none).forward
        for problem in (parallel, usual)
    )
    assert once == pytest.approx(twice / 2)


def test_experts_of_a_latent_width_receive_tokens_of_that_width() -> None:
    moe = {"experts": 8, "top_k": 2, "expert_ffn": 512}
    plain, latent = (ideal(model=model_spec(moe={**moe, **more}))[0] for more in ({}, {"latent": 256}))
    chip, none, shard = plain.supplies[0].chip, np.zeros(1), Shard.of(1, 1, False, True, ep=4)
    (kind,) = layer_kinds(plain.model)
    wide, narrow = (layer_comm(each, chip, shard, none, kind, none).forward for each in (plain, latent))
    assert narrow == pytest.approx(wide / 4)


@pytest.mark.parametrize(
    "name",
    [
        *("nemotron3-super-120b-a12b", "qwen3-next-80b-a3b", "kimi-k3-2.8t"),
        *("glm5-744b-a40b", "gemma4-31b", "deepseek-v4-flash-284b"),
    ],
)
def test_stages_hold_all_parameters(name: str) -> None:
    """On one device, beside the padding of the vocabulary and modules of multi-token prediction."""
    model = load_architecture(name).model_copy(update={"mtp_layers": 0})
    problem, _ = ideal(model=model)
    (held,) = stage_parameters(problem, strategy_of(f"x:{model.layers}", dp=1))
    words = (-(-model.vocab // 128) * 128 - model.vocab) * (1 if model.tied_embeddings else 2)
    assert held == pytest.approx(total_parameters(model) + words * model.hidden, abs=1)


def test_what_ranks_split_and_what_they_hold_whole() -> None:
    kimi, qwen = load_architecture("kimi-k3-2.8t"), load_architecture("qwen3-next-80b-a3b")
    assert held_whole(kimi, "linear") == 128 + 7168 * 128
    assert held_whole(qwen, "linear") == 128
    assert split_heads(qwen) == {
        "{count} linear attention's key heads": 16,
        "{count} linear attention's value heads": 32,
    }
    assert split_heads(load_architecture("llama2-70b")) == {}


# FLOP of a token as Megatron-LM counts them (d98e8a6, training/training.py, num_floating_point_operations): forward and
# backward three times forward. It leaves routers out, which are counted here: 1.3 % of Qwen3-Next, less of the others.


ROUTERS = 1
"""1: routers are counted; 0: as Megatron-LM has it."""


def _feed_forward(model: Architecture) -> float:
    moe, gates = model.moe, 3 if model.gated_mlp else 2
    if moe is None:
        return 2.0 * gates * model.hidden * model.ffn
    width, latent = (
        model.expert_width,
        4.0 * model.hidden * (moe.latent or 0) + ROUTERS * 2 * model.hidden * moe.experts,
    )
    return 2.0 * gates * (moe.top_k * width * moe.expert_ffn + model.hidden * moe.shared_width) + latent


def _attention(model: Architecture, sequence: int) -> float:
    wide = model.heads * model.head_dim * (2 if model.attention.output_gate else 1)
    keys = 2 * model.kv_heads * model.head_dim
    out = model.heads * model.head_dim
    return 2.0 * model.hidden * (wide + keys + out) + 2.0 * sequence * out


def _of_hybrid(model: Architecture, sequence: int, inner: int) -> float:
    """`inner`: the width of state-space layers, which Megatron-LM takes to be twice the hidden size."""
    mamba, pattern = model.mamba, str(model.layer_pattern)
    assert mamba is not None
    into = 2 * inner + 2 * mamba.groups * mamba.state + mamba.heads
    scan = 2.0 * model.hidden * into + 7.0 * inner * mamba.state + 2.0 * inner * model.hidden
    pattern += model.mtp_layers * (model.mtp_pattern or "")
    layers = pattern.count("M") * scan + pattern.count("*") * _attention(model, sequence)
    heads = 2.0 * model.hidden * model.vocab * (1 + model.mtp_layers)
    return 3 * (layers + pattern.count("E") * _feed_forward(model) + heads)


def _of_linear(model: Architecture, sequence: int) -> float:
    linear = model.linear_attention
    assert linear is not None
    keys = (linear.key_heads or 0) * (linear.key_dim or 0)
    values, heads = (linear.value_heads or 0) * (linear.value_dim or 0), linear.value_heads or 0
    own = model.hidden * (2 * keys + 2 * values + 2 * heads) + linear.conv * (2 * keys + values)
    delta = 2.0 * (own + heads * (linear.value_dim or 0) ** 2 * 4 + model.hidden * values)
    full = model.layers // (model.full_attention_interval or 1)
    modules = model.mtp_layers * (_attention(model, sequence) + _feed_forward(model))
    modules += model.mtp_layers * 2.0 * (3 * model.hidden + 2 * model.hidden**2)
    layers = full * _attention(model, sequence) + (model.layers - full) * delta + model.layers * _feed_forward(model)
    return 3 * (layers + modules + 2.0 * model.hidden * model.vocab * (1 + model.mtp_layers))


def _ours(name: str) -> tuple[Architecture, Problem, float]:
    model = load_architecture(name)
    problem, _ = ideal(model=model)
    return model, problem, model_flops_per_step(problem) / problem.batch / problem.sequence


@pytest.mark.parametrize("name", ["nemotron3-nano-30b-a3b", "nemotron3-super-120b-a12b", "nemotron3-ultra-550b-a55b"])
def test_flop_of_hybrids_are_megatrons(name: str) -> None:
    """Within 1 %, once its width of a state-space layer is the model's own: Nemotron 3 Nano's is 1.5 times hidden."""
    model, problem, ours = _ours(name)
    assert model.mamba is not None
    inner = model.mamba.heads * model.mamba.head_dim
    assert ours == pytest.approx(_of_hybrid(model, problem.sequence, inner), rel=0.01)
    as_written = _of_hybrid(model, problem.sequence, 2 * model.hidden)
    assert (ours == pytest.approx(as_written, rel=0.01)) is (inner == 2 * model.hidden)


@pytest.mark.parametrize(
    "name", ["qwen3-next-80b-a3b", "qwen3.5-27b", "qwen3.5-35b-a3b", "qwen3.5-122b-a10b", "qwen3.5-397b-a17b"]
)
def test_flop_of_linear_attention_are_megatrons(name: str) -> None:
    model, problem, ours = _ours(name)
    assert ours == pytest.approx(_of_linear(model, problem.sequence), rel=0.01)


@pytest.mark.parametrize(
    "name", ["nemotron3-nano-30b-a3b", "qwen3.5-35b-a3b", "kimi-k3-2.8t", "glm5-744b-a40b", "deepseek-v4-flash-284b"]
)
def test_operators_add_up_to_the_layers_seconds(name: str) -> None:
    """Of every kind, whatever splits it."""
    problem, _ = ideal(model=load_architecture(name))
    chip = problem.supplies[0].chip
    for kind in layer_kinds(problem.model):
        for shard in (ONE, Shard.of(2, 1, True, True, cp=2, cp_gather=True, ep=2)):
            found = compute.together(compute.layer_operators(problem, chip, shard, kind))
            layer = compute.layer_seconds(problem, chip, shard, kind)
            assert [each.item() for each in found] == pytest.approx([layer.forward.item(), layer.backward.item()])
            assert all(each.passes[0] >= 0 for each in compute.layer_operators(problem, chip, shard, kind))


def test_plans_of_such_layers_are_less_sure() -> None:
    """The report says which layers no run has had, and the interval is wider by one more step."""
    plan = strategy_of("x:4", dp=1)
    usual, special = ideal(model=model_spec())[0], hybrid()
    more = set(beyond_runs(special, plan)) - set(beyond_runs(usual, plan))
    assert more == {"layers that are one block each (layer_pattern)", "state-space layers (Mamba-2)"}


def test_a_mixer_s_widest_result_may_be_as_wide_as_the_residual() -> None:
    """16 heads, of queries 8 and 4 each of keys and values, 64 wide, over tp 2: 512, as hidden; also beside others."""
    model = Architecture.model_validate(
        {"name": "x", **model_spec(hidden=512, heads=8, kv_heads=4, layer_pattern="M-*-", mamba=MAMBA)}
    )
    problem, _ = ideal(model=model)
    kind = next(kind for kind in layer_kinds(problem.model) if kind.attends)
    alone = memory.layer_bytes(problem, Shard.of(2, 1, True, True), kind)
    beside = memory.layer_bytes(problem, Shard.of([1, 2], 1, [False, True], True), kind)
    assert alone.buffer[0] == beside.buffer[1]
