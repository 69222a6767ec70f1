"""Schedules that the search does not try unasked: microbatches by size, and breadth-first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from cpsolver.commands.main import main
from cpsolver.cost.pipeline_events import closed_form_s, peak_live_total, simulate
from cpsolver.cost.shard import Candidates
from cpsolver.cost.tables import TimeTable, time_table
from cpsolver.evaluation.evaluate import evaluate, stage_memory
from cpsolver.evaluation.evaluation import PARTS
from cpsolver.evaluation.timeline import makespan_by_size_s, simulated_step_s
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import load_strategy, strategy_to_dict
from cpsolver.profiles.framework import launcher_names, load_launcher
from cpsolver.profiles.stack import load_stack, stack_names
from cpsolver.rules import RULES
from tests.support.pipelines import stage_order
from tests.support.problems import ideal, spec_of, strategy_of, with_stack

ONE = (1, 2, 3, 4, *(5,) * 9, 4, 3, 2)
TWO = (1, 2, 2, 3, 4, *(5,) * 13, 4, 4, 3, 3, 3, 2)
"""AscendSpeed's example-config-1, for 4 stages and 64 sequences, and -2, for 8 and 96; both for a mean of 4."""
HEADLESS = {"vocab": 128}


def ascend(**given: Any) -> Problem:
    """A problem without losses, on the stack that has both."""
    problem, _ = ideal(**given)
    return replace(problem, stack=problem.stack.model_copy(update={"name": "ascendspeed"}))


def four(**given: Any) -> Strategy:
    return strategy_of("x:1,1,1,1", dp=1, mbs=4, flags="f", **given)


def said(rule: str, strategy: Strategy, problem: Problem) -> list[str]:
    return list(RULES[rule](problem, strategy))


# Microbatches of different sizes.


@pytest.mark.parametrize(("sizes", "stages", "less"), [(ONE, 4, 0.306), (TWO, 8, 0.238)])
def test_the_examples_of_ascendspeed_have_a_smaller_bubble(sizes: tuple[int, ...], stages: int, less: float) -> None:
    """With time linear in the size, and backward twice the forward; 16 and 24 microbatches of 4 otherwise."""
    forward, alike = np.ones((stages, 1, 1)) * np.array(sizes), np.full((stages, 1), 4.0)
    small, plain = (simulate(each, 2 * each, len(sizes)) for each in (forward, alike))
    assert 1 - small.idle_s[0] / plain.idle_s[0] == pytest.approx(less, abs=5e-4)


def test_a_step_is_the_schedule_run_with_each_size() -> None:
    """Linear in the size here, so the busiest stage's work is that of equal microbatches, and the bubble is less."""
    problem = ascend(batch=64, model={"layers": 4, "hidden": 1024, "ffn": 2816, "heads": 8, **HEADLESS})
    plain, sized = four(), four(micro_batches=ONE)
    before, after = evaluate(problem, plain), evaluate(problem, sized)
    assert after.breakdown_s["compute"] == pytest.approx(before.breakdown_s["compute"])
    waits = [
        simulated_step_s(plan, found, 16) - found.breakdown_s["compute"] - found.breakdown_s["optimizer"]  # type: ignore[operator]
        for plan, found in ((plain, before), (sized, after))
    ]
    assert 0.2 < 1 - waits[1] / waits[0] < 0.6
    seconds = np.array(
        [[(one.forward_s, one.backward_s, one.pipeline_p2p_s / 2) for one in s.sized] for s in after.stages]
    )
    forward, backward = (seconds[..., at] + seconds[..., 2] for at in (0, 1))
    makespan = simulate(forward[:, None], backward[:, None], 16).makespan_s  # a stage is charged with its transfers
    assert makespan + max(s.after_s for s in after.stages) == pytest.approx(after.step_time_s, rel=1e-12)
    assert simulated_step_s(sized, after, 16) <= after.step_time_s  # type: ignore[operator]


def test_a_step_of_sizes_that_hardly_differ_is_nearly_that_of_equal_ones() -> None:
    """Of equal ones it is the same number, stages that differ and transfers charged."""
    problem, plan = (
        ascend(batch=64, model={"layers": 7, "hidden": 1024, "ffn": 2816, "heads": 8, **HEADLESS}),
        strategy_of,
    )
    equal = evaluate(problem, plan("x:2,2,2,1", dp=1, mbs=4)).step_time_s
    swapped = evaluate(problem, plan("x:2,2,2,1", dp=1, mbs=4, micro_batches=(*(4,) * 7, 5, 3, *(4,) * 7))).step_time_s
    assert swapped == pytest.approx(equal, rel=0.04)
    of_one_size = evaluate(problem, plan("x:2,2,2,1", dp=1, mbs=4)).stages
    assert makespan_by_size_s([replace(s, sized=(s,) * 16) for s in of_one_size]) == pytest.approx(
        equal - max(s.after_s for s in of_one_size), rel=1e-12
    )


def test_small_microbatches_lose_what_the_tables_say() -> None:
    """With a host that the smallest wait for, every microbatch takes what one of its size takes elsewhere."""
    problem = with_stack(ascend(batch=64), host_layer_us=1200.0)
    found = evaluate(problem, four(micro_batches=ONE)).stages[1]
    alone = {size: evaluate(problem, replace(four(), mbs=size)).stages[1] for size in set(ONE)}
    for size, stage in zip(ONE, found.sized, strict=True):
        assert (stage.forward_s, stage.backward_s) == (alone[size].forward_s, alone[size].backward_s)
    assert found.microbatch_s == alone[4].microbatch_s
    assert found.sized[0].microbatch_s > 1.5 * found.microbatch_s / 4


def test_a_breakdown_of_sizes_sums_to_the_step() -> None:
    found = evaluate(ascend(batch=128), strategy_of("x:1,1", dp=2, mbs=4, micro_batches=ONE, recompute="uniform"))
    assert tuple(found.breakdown_s) == PARTS
    assert all(seconds >= 0 for seconds in found.breakdown_s.values())
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s, rel=1e-12)


@pytest.mark.parametrize("sizes", [(4,) * 16, (3, 5) * 8, (7, *(4,) * 14, 1)])
def test_events_wait_for_those_of_their_own_microbatch(sizes: tuple[int, ...]) -> None:
    forward, link = np.array([[1.0], [2.0], [1.5]]), np.array([0.1, 0.3, 0.0])
    grown = np.array(sizes) / 4
    seconds = forward[..., None] * grown
    sized = simulate(seconds, 2 * seconds, 16, link[:, None] * grown)
    if len(set(sizes)) == 1:
        assert sized.makespan_s == simulate(forward, 2 * forward, 16, link).makespan_s
    names = zip(sized.kind.tolist(), sized.stage.tolist(), sized.microbatch.tolist(), strict=True)
    at = {name: event for event, name in enumerate(names)}
    for (kind, stage, microbatch), event in at.items():
        length = seconds[stage, 0, microbatch] * (1 if kind == "F" else 2)
        assert sized.end_s[event] - sized.start_s[event] == pytest.approx(length)
        before = stage - 1 if kind == "F" else stage + 1
        if 0 <= before < 3:
            arrives = sized.end_s[at[kind, before, microbatch]] + link[min(stage, before)] * grown[microbatch]
            assert sized.start_s[event] >= arrives - 1e-12


@pytest.mark.parametrize("recompute", ["none", "selective", "block", "uniform"])
def test_memory_is_that_of_the_worst_microbatches_in_flight(recompute: Any) -> None:
    """Against the events in order: a forward adds what its size keeps, a backward takes it away."""
    problem = ascend(batch=64)
    amount = int(recompute in ("block", "uniform"))
    plan = strategy_of("x:1,1,1,1", dp=1, mbs=4, flags="", recompute=recompute, amount=amount, micro_batches=ONE)
    found = stage_memory(problem, plan)
    alone = {size: stage_memory(problem, replace(plan, mbs=size, micro_batches=())) for size in set(ONE)}
    # Inner stages are alike but for one microbatch in flight, which the difference of two of them tells.
    kept = {size: stages[1].activations - stages[2].activations for size, stages in alone.items()}
    for stage, live in enumerate(peak_live_total(4, 1, 16).tolist()):
        held, most = 0.0, 0.0
        for kind, microbatch, _ in stage_order(4, stage, 1, 16):
            held += kept[ONE[microbatch]] * (1 if kind == "F" else -1)
            most = max(most, held)
        at_work = alone[5][stage].activations - live * kept[5]
        assert found[stage].activations == pytest.approx(most + at_work, rel=1e-9)
        assert found[stage].buffers == alone[5][stage].buffers
        assert found[stage].weights == alone[4][stage].weights


def test_equal_sizes_are_no_sizes(tmp_path: Path) -> None:
    problem, plain, listed = ascend(batch=64), four(), four(micro_batches=(4,) * 16)
    assert stage_memory(problem, listed) == stage_memory(problem, plain)
    assert evaluate(problem, listed) == evaluate(problem, plain)
    assert listed.key() == plain.key() != four(micro_batches=ONE).key()
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(strategy_to_dict(listed)))
    assert load_strategy(path, problem) == plain
    path.write_text(json.dumps(strategy_to_dict(replace(listed, micro_batches=(4,) * 15))))
    assert load_strategy(path, problem).micro_batches == (4,) * 15  # a mistake, which the rules name


def test_rules_on_sizes() -> None:
    problem = ascend(batch=64)
    assert not said("batch", four(micro_batches=ONE), problem)
    assert not said("schedule", four(micro_batches=ONE), problem)
    assert said("batch", four(micro_batches=(60, 4)), problem) == [
        "micro_batches has 2 sizes, not 16: global batch 64 / (dp 1 x mbs 4)"
    ]
    assert said("batch", four(micro_batches=(*ONE[:-1], 3)), problem) == [
        "micro_batches have 65 sequences x dp 1 = 65, not global batch 64"
    ]
    assert said("batch", four(micro_batches=(*ONE[:-2], 0, 5)), problem) == [
        "a size in micro_batches is 0, and must be at least 1"
    ]
    for wrong, told in (
        (strategy_of("x:4", dp=1, mbs=4, micro_batches=ONE), "pp 1 with 1f1b"),
        (four(schedule="zb1p", micro_batches=ONE), "pp 4 with zb1p"),
    ):
        assert said("schedule", wrong, problem)[0] == (
            f"micro_batches of different sizes need a pipeline and schedule 1f1b, not {told}"
        )
        assert evaluate(problem, wrong).step_time_s > 0  # the judge has numbers all the same
    assert said("interleaving", strategy_of("x:2,2", dp=1, mbs=4, vpp=2, micro_batches=ONE), problem) == [
        "micro_batches of different sizes do not interleave: vpp is 2, and must be 1"
    ]


def test_only_ascendspeed_has_sizes() -> None:
    other = ideal(batch=64)[0]
    assert said("schedule", four(micro_batches=ONE), other) == [
        f"stack {other.stack.name} has microbatches of one size: no micro_batches, or stack ascendspeed"
    ]
    for name in launcher_names():
        told = replace(ascend(batch=64), launcher=load_launcher(name))
        assert said("schedule", four(micro_batches=ONE), told) == [
            f"{name} has microbatches of one size: no micro_batches"
        ]


# Breadth-first.

CHUNKS: dict[str, Any] = {"groups": "x:2,2", "dp": 2, "vpp": 2}
SLOW: dict[str, Any] = {"batch": 32, "node": 2}
"""Replicas in different nodes: gradients take about as long as a few backward passes."""


def wide(flags: str = "f") -> tuple[Strategy, Strategy]:
    plain = strategy_of(**CHUNKS, flags=flags)
    return plain, replace(plain, schedule="breadth_first")


@pytest.mark.parametrize(("pp", "vpp", "m"), [(2, 2, 2), (4, 2, 9), (4, 4, 16), (8, 3, 24)])
def test_the_closed_form_holds_for_groups_of_all_microbatches(pp: int, vpp: int, m: int) -> None:
    """Exactly for equal stages, and never below the events for others."""
    for seconds in (np.ones(pp), np.random.default_rng(pp).uniform(0.7, 1.3, pp)):
        forward = np.repeat(seconds[:, None] / vpp / 3, vpp, axis=1)
        run = simulate(forward, 2 * forward, m, group=m).makespan_s
        formula = closed_form_s(seconds, m, vpp)
        assert run <= formula * (1 + 1e-9)
        assert run == pytest.approx(formula) or seconds.std() > 0


def test_megatron_holds_its_groups_and_others_all_forwards() -> None:
    plain, first = wide()
    ours, theirs = ideal(**SLOW)[0], ascend(**SLOW)
    titan = replace(ours, launcher=load_launcher("torchtitan"))
    chunk = stage_memory(ours, plain)[1].activations / peak_live_total(2, 2, 16)[1]
    held = {
        name: [stage.activations / chunk for stage in stage_memory(p, first)]
        for name, p in (("megatron", ours), ("fold3d", theirs), ("titan", titan))
    }
    assert held["megatron"] == pytest.approx(list(peak_live_total(2, 2, 16, 16))) == [19, 17]
    assert held["fold3d"] == held["titan"] == pytest.approx([32, 32])
    assert [stage.activations / chunk for stage in stage_memory(ours, plain)] == pytest.approx([5, 3])


def test_gradients_of_all_chunks_but_one_travel_under_the_backward_passes() -> None:
    """Fold3D, which starts reductions itself: what is left of a stage's is the first chunk's, half of it, and the
    embedding's; the head's travel with the last chunk's. 1F1B starts none before the step's end."""
    problem = ascend(**SLOW)
    plain, first = wide()
    before, after = (evaluate(problem, plan) for plan in (plain, first))
    table = time_table(problem, problem.supplies[0], Candidates.one(plain, 32))
    all_of_it, embedding, head = 2 * table.sync_layer[0], table.sync_first[0], table.sync_last[0]
    assert min(all_of_it, embedding, head) > 0
    assert [stage.data_parallel_s for stage in before.stages] == pytest.approx(
        [all_of_it + embedding, all_of_it + head]
    )
    assert [stage.data_parallel_s for stage in after.stages] == pytest.approx(
        [all_of_it / 2 + embedding, all_of_it / 2]
    )
    assert before.breakdown_s["bubble"] == pytest.approx(after.breakdown_s["bubble"], rel=1e-9)
    assert after.step_time_s < before.step_time_s


def synced(overlap: float, batch: int, flags: str = "f", of: str = "gradient") -> tuple[TimeTable, TimeTable]:
    """The table's row of the two plans of `wide`: interleaved and breadth-first, 2 stages of 2 chunks of a layer."""
    problem = ideal(batch=batch, node=2, stack={f"{of}_overlap": overlap})[0]
    rows = (Candidates.one(plan, batch) for plan in wide(flags))
    found = [time_table(problem, problem.supplies[0], row) for row in rows]
    return found[0], found[1]


@pytest.mark.parametrize("of", ["gradient", "parameter"])
def test_microbatches_of_the_step_hide_a_chunk_where_pp_of_them_do_with_1f1b(of: str) -> None:
    """A layer's passes, overlapped by a share x, hide x P each. A chunk's transfer of R seconds travels under pp = 2 of
    them with 1F1B and under m = 6 breadth-first; the first chunk's own layer hides x P of it either way."""
    (whole, none), (plain, first) = (synced(overlap, 12, "fz", of) for overlap in (0.0, 0.02))
    assert none.sync_layer == pytest.approx(whole.sync_layer)
    lost = [whole.sync_layer - each.sync_layer for each in (plain, first)]
    assert 0 < lost[0] < whole.sync_layer / 3
    assert lost[1] == pytest.approx(lost[0] * (1 + 6) / (1 + 2))


@pytest.mark.parametrize("overlap", [0.0, 0.02, 0.5])
def test_the_head_travels_with_the_last_chunk(overlap: float) -> None:
    """Head and a layer, R + r seconds, under 6 backward passes of another layer, x P each; what is beyond a layer's own
    (r - 6 x P, where that is left over) is the head's. With 1F1B a share x of the head is hidden whatever P is."""
    whole = synced(0.0, 12)[0]
    plain, first = synced(overlap, 12)
    layer, head = whole.sync_layer, whole.sync_last
    hidden = 2 * (whole.sync_layer - plain.sync_layer) / (1 + 2) * 6 if overlap < 0.1 else np.inf
    assert plain.sync_last == pytest.approx(head * (1 - overlap))
    assert first.sync_last == pytest.approx(np.maximum(0, head + layer - hidden) - np.maximum(0, layer - hidden))


def test_rules_on_breadth_first() -> None:
    fold = ascend(**SLOW)
    plain, first = wide()
    assert not said("schedule", first, fold)
    assert not said("interleaving", first, fold)
    assert said("schedule", replace(first, vpp=1), fold) == [
        "schedule breadth_first interleaves: vpp is 1, and must be more"
    ]
    assert evaluate(fold, replace(first, vpp=1)).step_time_s > 0
    assert said("schedule", strategy_of(dp=4, vpp=2, schedule="breadth_first"), fold) == [
        "schedule breadth_first needs a pipeline, and pp is 1"
    ]
    few, odd = ideal(batch=2)[0], ideal(batch=6)[0]
    assert said("interleaving", first, few) == ["schedule breadth_first: 1 microbatches are fewer than pp 2"]
    assert not said("interleaving", first, odd)
    assert said("interleaving", first, replace(odd, stack=fold.stack)) == [
        "vpp 2: 3 microbatches are not a multiple of pp 2"
    ]
    assert said("interleaving", plain, odd)
    other = replace(odd, stack=odd.stack.model_copy(update={"name": "deepspeed-2021"}))
    assert said("schedule", first, other) == [
        "stack deepspeed-2021 has no schedule breadth_first: "
        "1f1b, or stack ascendspeed, megatron-core, megatron-core-plain, megatron-bridge, fsdp-torchtitan, "
        "torchtitan-2025, torchtitan-2026"
    ]


@pytest.mark.parametrize("name", [name for name in stack_names() if load_stack(name).runs])
def test_stacks_that_shard_parameters_have_no_sizes_and_torchtitan_alone_breadth_first(name: str) -> None:
    problem = replace(ideal(batch=64)[0], launcher=load_stack(name).runs)
    refused = [] if "torchtitan" in name else [f"{name} has no schedule breadth_first: 1f1b"]
    assert said("schedule", wide()[1], problem) == refused
    assert said("schedule", four(micro_batches=ONE), problem)[-1].startswith(f"{name} has microbatches of one size")


@pytest.mark.parametrize("name", launcher_names())
def test_launchers_of_megatron_core_and_torchtitan_run_breadth_first(name: str) -> None:
    told = replace(ideal(batch=6)[0], launcher=load_launcher(name))
    found = said("schedule", wide()[1], told)
    base = name not in ("accelerate", "deepspeed", "megatron-deepspeed", "mindformers", "paddleformers")
    assert found == ([] if base else [f"{name} has no schedule breadth_first: 1f1b"])


# In files and reports.


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        (four(micro_batches=ONE), "1, 2, 3, 4, 5 ×9, 4, 3, 2"),
        (strategy_of("x:2,2", dp=2, mbs=2, vpp=2, schedule="breadth_first"), "breadth_first"),
    ],
)
def test_round_trip_through_evaluate(plan: Strategy, line: str, tmp_path: Path) -> None:
    spec, given = tmp_path / "spec.json", tmp_path / "plan.json"
    spec.write_text(json.dumps({**spec_of(batch=64), "stack": "ascendspeed"}))
    given.write_text(json.dumps(strategy_to_dict(plan)))
    assert load_strategy(given) == plan
    done = CliRunner().invoke(main, ["evaluate", str(spec), "-s", str(given), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    assert not document["violations"]
    again = document["plans"][0]["strategy"]
    assert (again["micro_batches"], again["schedule"]) == (list(plan.micro_batches), plan.schedule)
    told = tmp_path / "again.json"
    told.write_text(done.output)
    assert load_strategy(told) == plan
    text = CliRunner().invoke(main, ["evaluate", str(spec), "-s", str(given)]).output
    assert line in " ".join(text.split())
