"""The judge: a breakdown that sums, stages that add up, and a plan published elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpsolver.cost.compute import end_seconds
from cpsolver.cost.pipeline_events import closed_form_s, simulate
from cpsolver.cost.shard import Candidates, Shard
from cpsolver.cost.tables import memory_table
from cpsolver.evaluation.evaluate import evaluate, stage_memory, step_by_formula_s
from cpsolver.evaluation.evaluation import PARTS
from cpsolver.evaluation.timeline import makespan_s
from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.rules import violations
from cpsolver.spec.spec import parse_spec
from models_zoo import Architecture
from tests.support import pictured
from tests.support.pipelines import lower_bound_s
from tests.support.problems import HOST, chip_spec, ideal, model_spec, problem_of, spec_of, strategy_of

TWO = {"x": chip_spec(), "y": chip_spec(tflops=50, out=50)}


def problem(layers: int = 8, **given: Any) -> Problem:
    return problem_of(TWO, model_spec(layers=layers), gpus=8, node=2, **given)


PLANS = {
    "one stage": strategy_of("x:8", dp=8),
    "pipeline": strategy_of("x:3,2 y:2,1", tp=2, dp=1, flags="fs"),
    "interleaved": strategy_of("x:4 y:4", dp=4, vpp=2),
    "block": strategy_of("x:4 y:4", dp=4, recompute="block", amount=1),
    "uniform": strategy_of("y:5,3", dp=4, recompute="uniform", amount=2),
    "selective": strategy_of("x:4,4", dp=4, flags="", recompute="selective"),
}


@pytest.mark.parametrize("name", PLANS)
def test_breakdown_and_stages_add_up(name: str) -> None:
    plan, found = PLANS[name], evaluate(problem(), PLANS[name])
    assert tuple(found.breakdown_s) == PARTS
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s, rel=1e-12)
    assert all(seconds >= 0 for seconds in found.breakdown_s.values())
    times = [stage.microbatch_s for stage in found.stages]
    after = max(stage.after_s for stage in found.stages)
    m = plan.microbatches(8)
    assert found.formula_s == pytest.approx(closed_form_s(times, m, plan.vpp) + after, rel=1e-12)
    assert found.step_time_s == pytest.approx((makespan_s(plan, found.stages, m) or 0.0) + after, rel=1e-12)
    assert found.tokens_per_s == pytest.approx(8 * 1024 / found.step_time_s)
    assert found.tokens_per_s_per_gpu == pytest.approx(found.tokens_per_s / 8)
    assert 0 < found.mfu < 1
    forward = np.array([[stage.forward_s / plan.vpp] * plan.vpp for stage in found.stages])
    backward = np.array([[stage.backward_s / plan.vpp] * plan.vpp for stage in found.stages])
    assert found.step_time_s >= lower_bound_s(forward, backward, m)


@pytest.mark.parametrize(
    ("groups", "vpp", "shorter"),
    [("x:2,2,2,2", 1, False), ("x:1,2,2,3", 1, False), ("x:3,2,2,1", 1, True), ("x:4,2,2", 2, True)],
)
def test_a_step_on_one_chip_type_is_its_events(groups: str, vpp: int, shorter: bool) -> None:
    """The formula says more where the slowest stage is not the last."""
    pp = groups.count(",") + 1
    alone, _ = ideal(model=model_spec(layers=8), gpus=pp, node=pp, batch=2 * pp)
    plan = strategy_of(groups, dp=1, vpp=vpp)
    found = evaluate(alone, plan)
    times, after = [stage.microbatch_s for stage in found.stages], max(stage.after_s for stage in found.stages)
    assert found.step_time_s == pytest.approx((makespan_s(plan, found.stages, 2 * pp) or 0.0) + after, rel=1e-12)
    assert found.formula_s <= found.step_time_s * (1 + 1e-12)
    assert (found.step_time_s < 0.99 * (closed_form_s(times, 2 * pp, vpp) + after)) == shorter


def test_recomputation_costs_its_layers() -> None:
    """Block recomputes vpp * amount layers at most, uniform all, selective attention's core alone."""
    seconds = {}
    for kind, amount in (("block", 1), ("block", 3), ("block", 9), ("uniform", 1), ("uniform", 2), ("selective", 0)):
        plan = strategy_of("x:4 y:4", dp=4, vpp=2, flags="z", recompute=kind, amount=amount)  # type: ignore[arg-type]
        seconds[kind, amount] = evaluate(problem(), plan).stages[0].recompute_s
    assert seconds["block", 3] == seconds["block", 9] == pytest.approx(2 * seconds["block", 1])
    assert seconds["uniform", 1] == seconds["uniform", 2] == seconds["block", 9]
    assert 0 < seconds["selective", 0] < seconds["uniform", 1]


def test_first_stage_has_the_embedding_and_the_last_the_head() -> None:
    first, middle, last = evaluate(problem(6), strategy_of("x:2,2,2", dp=1)).stages
    alone = problem(6).of_size(3)
    ends = end_seconds(alone, alone.supplies[0].chip, Shard.of(1, 1, False, True))
    assert first.compute_s - middle.compute_s == pytest.approx(ends.embedding[0])
    assert last.compute_s - middle.compute_s == pytest.approx(ends.head[0])
    rows = 4096 * 1024  # 4000 words, padded
    assert first.memory.weights - middle.memory.weights == 2 * rows
    assert last.memory.weights - middle.memory.weights == 2 * (rows + 1024)


def test_in_flight_microbatches_fall_along_the_pipeline() -> None:
    stages = evaluate(problem(), strategy_of("x:2,2,2,2", dp=2)).stages
    activations = [stage.memory.activations for stage in stages]
    assert activations == pytest.approx([activations[3] * held for held in (4, 3, 2, 1)])


@pytest.mark.parametrize(
    ("groups", "vpp", "batch", "more"),
    [("x:8", 1, 8, [1]), ("x:4,4", 2, 8, [1, 1]), ("x:4,4", 2, 4, [0, 1]), ("x:2,2,2,2", 2, 8, [0, 0, 1, 1])],
    ids=str,
)
def test_overlapped_experts_keep_a_layer_more_where_a_forward_runs_beside_a_backward(
    groups: str, vpp: int, batch: int, more: list[int]
) -> None:
    """Two replicas. A stage that holds all chunks of a step (4 on the first of two stages, 8 on the first two of four)
    runs every forward before the first backward."""
    moe = {"experts": 4, "expert_ffn": 512, "top_k": 2}
    routed = problem_of({"x": chip_spec()}, model_spec(layers=8, moe=moe), gpus=8, batch=batch)
    plain = strategy_of(groups, dp=2, vpp=vpp, ep=2)
    layer = memory_table(routed, Candidates.one(plain, batch)).full[0]
    without, overlapped = (stage_memory(routed, replace(plain, expert_overlap=overlap)) for overlap in (False, True))
    kept = [two.activations - one.activations for one, two in zip(without, overlapped, strict=True)]
    assert kept == pytest.approx([count * layer for count in more])


def test_transfers_between_chip_types_take_the_slower_end() -> None:
    alone, mixed = (evaluate(problem(), strategy_of(text, dp=4)).stages for text in ("x:4,4", "x:4 y:4"))
    assert mixed[0].pipeline_p2p_s > alone[0].pipeline_p2p_s
    assert mixed[0].pipeline_p2p_s == mixed[1].pipeline_p2p_s
    assert evaluate(problem(), strategy_of("x:8", dp=8)).stages[0].pipeline_p2p_s == 0
    inside = problem_of({"x": chip_spec()}, model_spec(), gpus=4, node=4)
    outside = problem_of({"x": chip_spec()}, model_spec(), gpus=4, node=2)
    near, far = (evaluate(p, strategy_of("x:2,2", dp=2)).stages[0].pipeline_p2p_s for p in (inside, outside))
    assert near < far


def test_interleaving_sends_every_chunk_on_and_from_the_last_stage_back_to_the_first() -> None:
    """4 stages of a device, 2 in a node, 3 chunks; a sequence's hidden states are 2 MiB: over a link inside a node
    (100 GB/s) that takes `near`, between nodes (12.5 GB/s) 8 times that, also for the 2 ways back, 3 - 1 chunks.

    Into the stages 2 * 8, 3 * 1, 3 * 8, 3 * 1; out of them 3 * 1, 3 * 8, 3 * 1, 2 * 8; half of all that is hidden.
    """
    near = 1024 * 1024 * 2 / 100e9
    around, _ = ideal(model=model_spec(layers=12), node=2, stack={"pipeline_overlap_interleaved": 0.5})
    stages = evaluate(around, strategy_of("x:3,3,3,3", dp=1, vpp=3)).stages
    assert [stage.pipeline_p2p_s / near for stage in stages] == pytest.approx([9.5, 13.5, 13.5, 9.5], rel=1e-6)


@pytest.mark.parametrize(
    ("groups", "slots"), [("x:4,4", (0, 0)), ("x:3,4", (1, 0)), ("x:4,3", (0, 1)), ("x:3,3", (1, 1))]
)
def test_what_stands_in_a_layers_place_takes_a_layers_time(groups: str, slots: tuple[int, int]) -> None:
    """A layer takes 2 s, of the host, a pass 1 s; embedding and head take less than 10 ms. 4 places are 8 s, with 4 s
    of recomputation; beside 4 layers of its own an end adds its own time."""
    slow, _ = ideal(model=model_spec(layers=8 - sum(slots)), stack={"host_layer_us": 1e6})
    plan = strategy_of(groups, dp=2, vpp=2, recompute="uniform", amount=1)
    for stage, slot in zip(evaluate(slow, plan).stages, slots, strict=True):
        assert stage.recompute_s == pytest.approx(4)
        assert stage.compute_s == pytest.approx(8, rel=1e-9) if slot else 8 < stage.compute_s < 8.01


def test_a_head_that_takes_longer_than_the_layer_in_whose_place_it_stands_keeps_its_own_time() -> None:
    """1,048,576 words: three products of 2 * 1024 * 1024 * 1048576 FLOP at 100 TFLOP/s are 66 ms, a layer 20 ms."""
    wide, _ = ideal(model=model_spec(layers=7, vocab=2**20), stack={"host_layer_us": 10_000})
    stage = evaluate(wide, strategy_of("x:4,3", dp=2, vpp=2)).stages[1]
    logits = 3 * 2 * 1024 * 1024 * 2**20 / 100e12
    assert 3 * 0.02 + logits < stage.compute_s < 3 * 0.02 + 2 * logits


@pytest.mark.parametrize("words", [2**10, 2**19, 2**22])
@pytest.mark.parametrize(("groups", "vpp", "last"), [("x:16,16,16,13", 4, 1), ("x:6,6,4", 3, 0), ("x:8,8,7", 2, 3)])
def test_a_short_last_chunk_takes_what_its_events_do(words: int, groups: str, vpp: int, last: int) -> None:
    """Its layers and the head, whose time is what a plan without interleaving takes beyond its layers, go through the
    exact schedule. Shorter than its neighbours it counts as one of them, which is too long by no more than once."""
    pp = groups.count(",") + 1
    given: dict[str, Any] = {"gpus": pp, "node": pp, "batch": 8 * pp, "sequence": 1024}
    links = {"hidden": 256, "heads": 2, "ffn": 512, "vocab": words}
    layers = sum(map(int, groups[2:].split(",")))
    steady, _ = ideal(model=model_spec(layers=layers, **links), stack={"host_layer_us": 1e4}, **given)
    whole, plan = evaluate(steady, strategy_of(groups, dp=1)), strategy_of(groups, dp=1, vpp=vpp)
    chunk = np.array([whole.stages[1].forward_s, whole.stages[1].backward_s]) / vpp
    layer = chunk / plan.chunks[1]
    passes = np.repeat(chunk, pp * vpp).reshape(2, pp, vpp)
    end = np.array([whole.stages[-1].forward_s, whole.stages[-1].backward_s]) - plan.layers[-1] * layer
    passes[:, -1, -1] = last * layer + end
    found = evaluate(steady, plan)
    seconds = found.step_time_s - found.breakdown_s["data_parallel"] - found.breakdown_s["optimizer"]
    makespan = simulate(passes[0], passes[1], 8 * pp).makespan_s
    assert -0.001 * makespan <= seconds - makespan <= chunk.sum() + 0.001 * makespan
    if passes[:, -1, -1].sum() > chunk.sum():
        assert seconds == pytest.approx(makespan, rel=0.001)


def test_memory_by_chip_is_the_fullest_stage_of_each() -> None:
    found = evaluate(problem(), strategy_of("x:1,3 y:2,2", dp=2))
    totals = [stage.memory.total for stage in found.stages]
    assert found.memory_bytes_by_chip == {"x": max(totals[:2]), "y": max(totals[2:])}


def test_the_published_plan_of_the_seed_tool() -> None:
    """llama2-70b on 32 a800 and 224 h800: it states 17.622 s, and 25.0 and 72.9 GiB (another simulator's word)."""
    published = resolve(parse_spec(spec_of({"a800": 32, "h800": 224}, "llama2-70b", 256, 8, 1024, 4096)))
    groups = (StageGroup("a800", (3,)), StageGroup("h800", (11,) * 7, "block", (3,) * 7))
    plan = Strategy(2, 8, 16, 1, 1, True, True, True, groups)
    assert not violations(published, plan)
    found = evaluate(published, plan)
    assert found.step_time_s == pytest.approx(17.622, rel=0.15)
    assert found.tokens_per_s == pytest.approx(238_013, rel=0.15)
    gib = {chip: count / 2**30 for chip, count in found.memory_bytes_by_chip.items()}
    assert gib == {"a800": pytest.approx(25.0, rel=0.2), "h800": pytest.approx(72.9, rel=0.2)}


THIRDS: dict[str, Any] = {"recompute": "uniform", "amount": 1}
"""With layers that wait for the host, repeated in full, all three passes are as long."""


@pytest.mark.parametrize(("schedule", "left"), [("1f1b", 1.0), ("zb1p", 2 / 3), ("zb2p", 1 / 2)])
def test_zero_bubble_fills_the_bubble_with_weight_gradients(schedule: str, left: float) -> None:
    """F = 1, B = 1.5 with what is run again, W = 0.5, half of backward without that: zb1p leaves F + B - W = 2 of
    F + B + W = 3, zb2p F + B - 2 W = 1.5."""
    problem, _ = ideal(batch=32, stack={"host_layer_us": 1e6})
    plain, filled = (
        evaluate(problem, strategy_of("x:2,2", dp=2, schedule=name, **THIRDS)) for name in ("1f1b", schedule)
    )
    stage = plain.stages[0]
    assert stage.backward_s == pytest.approx(2 * stage.forward_s)
    assert filled.breakdown_s["bubble"] == pytest.approx(left * plain.breakdown_s["bubble"], rel=2e-4)
    assert filled.breakdown_s["compute"] == plain.breakdown_s["compute"]


@pytest.mark.parametrize(("schedule", "held"), [("1f1b", [4, 3, 2, 1]), ("zb1p", [4, 4, 4, 4]), ("zb2p", [7, 7, 7, 7])])
def test_zero_bubble_holds_what_it_puts_off(schedule: str, held: list[int]) -> None:
    """The last stage keeps for W what the first has under way before its first backward: p, or 2 p - 1."""
    problem, _ = ideal(batch=32)
    stages = stage_memory(problem, strategy_of("x:1,1,1,1", dp=1, schedule=schedule))
    one = stage_memory(problem, strategy_of("x:1,1,1,1", dp=1))[3].activations
    assert [stage.activations for stage in stages] == pytest.approx([count * one for count in held])


def test_no_schedule_holds_more_microbatches_than_there_are() -> None:
    problem, _ = ideal(batch=5)
    stages = stage_memory(problem, strategy_of("x:1,1,1,1", dp=1, schedule="zb2p"))
    one = stage_memory(problem, strategy_of("x:1,1,1,1", dp=1))[3].activations
    assert [stage.activations for stage in stages] == pytest.approx([5 * one] * 4)


def test_the_host_works_for_every_chunk_of_a_microbatch_and_once_a_step() -> None:
    stack = {"microbatch_overhead_us": 500, "step_overhead_ms": 10}
    free, busy = (evaluate(ideal(stack=given)[0], strategy_of("x:2,2", dp=2, vpp=2)).stages[0] for given in ({}, stack))
    assert busy.compute_s - free.compute_s == pytest.approx(2 * 500e-6)
    assert busy.optimizer_s - free.optimizer_s == pytest.approx(10e-3)


EXPERTS = Architecture.model_validate(
    {"name": "experts", **model_spec(), "moe": {"experts": 8, "top_k": 2, "expert_ffn": 512, "first_dense": 1}}
)
DEEP = {"sharded": "parameters", "flags": "fz"}
PARALLEL: dict[str, dict[str, Any]] = {
    "context": {"cp": 2, "dp": 2},
    "experts": {"ep": 4, "dp": 4},
    "parameters": {"dp": 4, **DEEP},
    "parameters in groups": {"dp": 4, "sharding_group": 2, **DEEP},
    "context and experts": {"cp": 2, "ep": 4, "dp": 2, **DEEP},
    "repeated": {"cp": 2, "ep": 2, "dp": 2, "recompute": "block", "amount": 1, **DEEP},
    "zero bubble": {"text": "x:2,2", "dp": 2, "cp": 1, "ep": 2, "schedule": "zb1p"},
    "interleaved": {"text": "x:2,2", "dp": 2, "ep": 2, "vpp": 2, "sharded": "gradients"},
    "tensor and context": {"tp": 2, "cp": 2, "dp": 1, "ep": 2, "flags": "fsz", "sharded": "parameters"},
}


@pytest.mark.parametrize("name", PARALLEL)
def test_a_breakdown_sums_to_the_step(name: str) -> None:
    given = dict(PARALLEL[name])
    problem, _ = ideal(model=EXPERTS, stack={**HOST, "context_overlap": 0.5, "sharding_overlap": 0.5})
    plan = strategy_of(given.pop("text", "x:4"), **given)
    found = evaluate(problem, plan)
    assert tuple(found.breakdown_s) == PARTS
    assert all(seconds >= 0 for seconds in found.breakdown_s.values())
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s, rel=1e-12)
    m = plan.microbatches(problem.batch)
    slowest = max(stage.microbatch_s for stage in found.stages)
    after = max(stage.after_s for stage in found.stages)
    assert found.step_time_s == pytest.approx(m * slowest + found.breakdown_s["bubble"] + after)
    assert 0 < found.mfu < 1


@pytest.mark.parametrize("name", sorted(pictured.PLANS.keys() - {"sizes"}))
def test_the_formula_alone_is_that_of_the_whole_evaluation(name: str) -> None:
    problem, plan, found = pictured.judged(name)
    assert step_by_formula_s(problem, plan) == pytest.approx(found.formula_s, rel=1e-12)


@pytest.mark.parametrize(
    "more", [{"schedule": "dualpipe"}, {"schedule": "dualpipev", "vpp": 2}, {"vpp": 2}, {}], ids=str
)
def test_so_it_is_of_pipelines_on_one_chip_type(more: dict[str, Any]) -> None:
    problem, _ = ideal(model=model_spec(layers=16), batch=32, gpus=4)
    plan = strategy_of("x:4,4,4,4", **more)
    assert step_by_formula_s(problem, plan) == pytest.approx(evaluate(problem, plan).formula_s, rel=1e-12)
