"""What waits on the host or is made again beside it: weights, attention's results, blocks, experts' activations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpsolver.cost import memory, states
from cpsolver.cost.activation_switches import offload_seconds, recomputed_function_seconds
from cpsolver.cost.kinds import LayerKind
from cpsolver.cost.layers import Layers
from cpsolver.cost.shard import Candidates
from cpsolver.cost.tables import memory_table, time_table
from cpsolver.evaluation.evaluate import stage_memory
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import MODULES, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.profiles.stack import load_stack
from cpsolver.rules import violations
from cpsolver.spec.spec import parse_spec
from tests.cost.test_techniques import DENSE, PLAIN, SHARED, each, of, row_of
from tests.support.problems import model_spec, spec_of, strategy_of
from tests.support.special_models import LATENT

WHOLE_AWAY = {"parameter_offload": True, "optimizer_offload": 1.0}


def test_sharded_weights_wait_on_the_host_with_their_gradients() -> None:
    """DeepSpeed: of 2 + 4 + 12 bytes norms and biases stay alone, 1.1 / 512 of the weights, each whole; of ZeRO-1's
    weights and of Megatron's gradients all stays."""
    plan = replace(SHARED, sharded="parameters")
    stays = 2 * 1.1 / 512
    model = model_spec(hidden=512)
    host = {"host_gradients": 1.0}
    assert each(of(WHOLE_AWAY, model=model, stack=host), plan) == pytest.approx(stays)
    assert each(of(WHOLE_AWAY, model=model), plan) == pytest.approx(stays + 4 / 4)
    assert each(of({"optimizer_offload": 1.0}, model=model, stack=host), plan) == pytest.approx(2 / 4)
    assert each(of({"parameter_offload": True}, model=model, stack=host), plan) == pytest.approx(stays + 16 / 4)
    assert each(of({"optimizer_offload": 1.0}, model=model, stack=host)) == pytest.approx(6)


def test_weights_on_the_host_travel_whenever_they_are_gathered() -> None:
    """2 bytes of a rank's own weights at 10 GB/s, and its gradients' 4 down and up again; a step brings no weights
    back from the host, and takes those there that the device updates."""
    away, stay = of(WHOLE_AWAY, stack={"host_gradients": 1.0}), of({"optimizer_offload": 1.0})
    chip, billion = away.supplies[0].chip, np.array([1e9])
    gathered, reduced = states.link_seconds(away, chip, billion)
    rate = 10e9 * chip.efficiency["host_link"].value
    assert (gathered.item(), reduced.item()) == pytest.approx((2e9 / rate, 2 * 4e9 / rate))
    assert [part.item() for part in states.link_seconds(stay, chip, billion)] == [0, 0]
    back = states.optimizer_seconds(stay, chip, billion) - states.optimizer_seconds(away, chip, billion)
    assert back.item() == pytest.approx(4e9 / rate)
    updated = [states.optimizer_seconds(of({"parameter_offload": on}), chip, billion).item() for on in (False, True)]
    assert updated[1] - updated[0] == pytest.approx(2e9 / rate)
    rows = [Candidates.one(replace(SHARED, sharded="parameters"), problem.batch) for problem in (stay, away)]
    before, after = (
        time_table(problem, problem.supplies[0], row) for problem, row in zip((stay, away), rows, strict=True)
    )
    own = memory.stage_parameters(away, rows[1]).layer / 4 * 1e-9
    assert (after.gather - before.gather).item() == pytest.approx(own.item() * gathered.item())
    assert (after.scatter - before.scatter).item() == pytest.approx(own.item() * reduced.item())


def test_weights_wait_on_the_host_where_they_are_sharded() -> None:
    def told(plan: Strategy) -> list[str]:
        found = violations(of({"parameter_offload": True}), plan)
        return [each.rule for each in found if "parameter_offload" in each.message]

    assert told(replace(SHARED, sharded="parameters")) == []
    assert told(SHARED) == ["sharding"]
    assert told(PLAIN) == ["optimizer", "sharding"]


def test_a_v_keeps_its_last_chunk_s_projections() -> None:
    """8 heads: queries and keys 96 wide, values 64, and both low ranks' norms. Of 2 x 2 + 1 chunks of two layers in
    flight on either stage the first stage's last one keeps them."""
    model = model_spec(layers=8, attention=LATENT)
    plain, again = (of({"recompute_mla_up_proj": on}, model=model) for on in (False, True))
    plan = strategy_of("x:4,4", dp=2, vpp=2, schedule="dualpipev", flags="fz")
    before, after = (stage_memory(problem, plan) for problem in (plain, again))
    row = Candidates.one(plan, plain.batch)
    kept = 2 * row.shard.tokens(plain.sequence).item() * (8 * (2 * 96 + 64) + 128 + 128)
    less = [one.activations - other.activations for one, other in zip(before, after, strict=True)]
    assert less == pytest.approx([4 * 2 * kept, 5 * 2 * kept])
    assert [found.rule for found in violations(again, plan)] == [found.rule for found in violations(plain, plan)]


def with_recomputed_blocks(layers: int, **switches: Any) -> Problem:
    """Of four layers so many whose feed-forward blocks are recomputed beside attention on the host."""
    given = {"activation_offload": "attention", "recompute_mlp_layers": layers, **switches}
    problem = of(given)
    return problem.with_(search={"layer_split": "even"})


@pytest.mark.parametrize(("layers", "functions"), [(2, False), (4, False), (2, True)])
def test_some_layers_recompute_their_blocks_beside_attention_on_the_host(layers: int, functions: bool) -> None:
    """A gated block keeps three results of its width, two where its activation function is made again anyway; not what
    goes into it. Of `layers` of 4 that is gone, and once there while it is recomputed."""
    again = {"recompute_activation_function": functions}
    none, some = (with_recomputed_blocks(count, **again) for count in (0, layers))
    row = row_of(none, tp=2, dp=2, flags="sfz")
    before, after = memory_table(none, row), memory_table(some, row)
    block = (2 if functions else 3) * 2 * row.shard.tokens(none.sequence).item() * none.model.ffn / 2
    assert (before.full - after.full).item() == pytest.approx(layers / 4 * block)
    assert (after.buffer - before.buffer).item() == pytest.approx(block)
    chip = none.supplies[0].chip
    times = [Layers.of(problem, chip, row.shard) for problem in (none, some)]
    part = times[0].parts[0][0]
    functions_s = recomputed_function_seconds(none, chip, row.shard, DENSE)
    wanted = layers / 4 * (part.own.block + part.inside.block - functions_s)
    assert (times[1].again - times[0].again).item() == pytest.approx(wanted.item())
    assert wanted.item() > 0


def test_layers_that_recompute_their_blocks_are_as_many_on_each_stage() -> None:
    def told(plan: Strategy, layers: int = 2) -> list[str]:
        found = violations(with_recomputed_blocks(layers), plan)
        return [each.rule for each in found if "recompute_mlp_layers" in each.message]

    assert told(strategy_of("x:2,2", dp=2, flags="fz")) == []
    assert told(strategy_of("x:2,2", dp=2, flags="fz"), 3) == ["layer_split"]
    assert told(replace(strategy_of("x:2,2", dp=2, flags="fz"), schedule="zb1p")) == ["layer_split"]
    assert told(strategy_of("x:4", dp=4, recompute="block", amount=1, flags="fz")) == ["recompute"]


@pytest.mark.parametrize(
    ("layers", "changes", "said"),
    [
        (5, {}, "is more than the 4 layers"),
        (2, {"moe": {"experts": 4, "expert_ffn": 512, "top_k": 1, "first_dense": 1}}, "layers of several kinds"),
        (2, {"mtp_layers": 1}, "layers of several kinds"),
        (2, {}, "needs search.layer_split = 'even'"),
    ],
)
def test_blocks_of_some_layers_are_counted_where_layers_are_alike(
    layers: int, changes: dict[str, Any], said: str
) -> None:
    training = {"recompute_mlp_layers": layers, "activation_offload": "attention"}
    with pytest.raises(InputError, match=said):
        resolve(parse_spec(spec_of(model=model_spec(**changes), training=training)))


SWAPPED = {"experts": 4, "expert_ffn": 512, "top_k": 1}


def test_results_of_latent_attention_s_core_wait_on_the_host() -> None:
    """Half of 8 heads of values 64 wide, in 2 bytes, at 10 GB/s each way; those of three layers are there at once."""
    model = model_spec(layers=8, attention=LATENT, moe=SWAPPED)
    plain, away = (of({"mla_swap_core_attn_out": on}, model=model) for on in (False, True))
    row = row_of(plain, tp=2, dp=2, ep=2, flags="sfz")
    none, some = memory_table(plain, row), memory_table(away, row)
    results = 2 * row.shard.tokens(plain.sequence).item() * 4 * 64
    assert (none.full - some.full).item() == pytest.approx(results)
    assert (some.buffer - none.buffer).item() == pytest.approx(3 * results)
    chip = away.supplies[0].chip
    passes = np.array([0.0]), np.array([1.0])
    trip = results / (10e9 * chip.efficiency["host_link"].value)
    assert offload_seconds(away, chip, row.shard, LayerKind(True, True), passes).item() == pytest.approx(trip)
    assert offload_seconds(plain, chip, row.shard, LayerKind(True, True), passes).item() == 0


def test_results_wait_on_the_host_where_passes_run_beside_each_other() -> None:
    away = of({"mla_swap_core_attn_out": True}, model=model_spec(layers=8, attention=LATENT, moe=SWAPPED))
    plan = replace(strategy_of("x:4,4", dp=2, vpp=2, schedule="dualpipev", flags="fz"), ep=2)

    def told(plan: Strategy, problem: Problem = away) -> list[str]:
        return [found.rule for found in violations(problem, plan) if "mla_swap_core_attn_out" in found.message]

    assert told(plan) == []
    assert told(replace(plan, schedule="1f1b", vpp=1)) == ["schedule"]
    assert told(replace(plan, ep=1)) == ["experts"]
    uniform = replace(plan, groups=(replace(plan.groups[0], recompute="uniform", recompute_layers=(1, 1)),))
    assert told(uniform) == ["recompute"]
    dense = of({"mla_swap_core_attn_out": True}, model=model_spec(layers=8, attention=LATENT))
    assert told(replace(plan, ep=1), dense) == ["experts"]
    sent = {"mla_swap_core_attn_out": True, "moe_dispatcher": "deepep"}
    assert told(plan, of(sent, model=model_spec(layers=8, attention=LATENT, moe=SWAPPED))) == ["experts"]


@pytest.mark.parametrize(
    ("switches", "kept"), [({}, 1), ({"recompute_activation_function": True}, 0), ({"moe_zero_memory": "level0"}, 0)]
)
def test_activations_before_their_weights_are_kept_where_no_kernel_does_both(
    switches: dict[str, Any], kept: int
) -> None:
    """Of T tokens' two choices, 256 wide, on two ranks, in 2 bytes; a shared expert has no weight. They go with the
    activations' results, and what is made again is there twice."""
    model = model_spec(moe={"experts": 8, "expert_ffn": 256, "top_k": 2, "shared_experts": 1})
    fused, apart = (of(switches, model, {"kept_weighted_activations": each}) for each in (0.0, 1.0))
    row = row_of(fused, tp=2, dp=2, ep=2, flags="sfz")
    none, some = memory_table(fused, row), memory_table(apart, row)
    results = 2 * row.shard.tokens(fused.sequence).item() * 2 * 256 / 2
    assert (some.full - none.full).item() == pytest.approx(kept * results)
    assert (some.buffer - none.buffer).item() == pytest.approx(2 * (1 - kept) * results)
    freed = (some.freed - none.freed)[0, :, 0]
    wanted = dict.fromkeys(("moe", "moe_act"), kept * results)
    assert dict(zip(MODULES, freed.tolist(), strict=True)) == pytest.approx(
        {name: wanted.get(name, 0.0) for name in MODULES}
    )


def test_mindspeed_applies_weights_inside_experts() -> None:
    """Of core 0.12.1, whose experts take the probabilities; before, and in other frameworks on Ascend, behind them."""
    stacks = {name: load_stack(name) for name in ("mindspeed", "mindformers", "ascendspeed")}
    kept = {name: (each.kept_expert_outputs, each.kept_weighted_activations) for name, each in stacks.items()}
    assert kept == {"mindspeed": (0, 1), "mindformers": (1, 0), "ascendspeed": (1, 0)}
