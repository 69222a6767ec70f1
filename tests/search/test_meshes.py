"""Degrees by chip type: the search against brute force, its rounds, its bounds, and where it is asked for."""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pytest

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.plans.dimensions import family
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.rules import violations
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.frontier import Limits
from cpsolver.search.meshes.bounds import MeshBounds, Options
from cpsolver.search.meshes.rounds import rounds_of
from cpsolver.search.meshes.search import MeshSearch
from cpsolver.search.result import Result
from cpsolver.search.search import search
from cpsolver.spec.spec import parse_spec
from tests.support.mesh_problems import mesh_problem
from tests.support.oracle import legal, small_enough, strategies
from tests.support.problems import FRAMEWORK_GB, chip_spec, model_spec, problem_of, with_stack
from tests.support.selection import first
from tests.support.special_models import MAMBA

pytestmark = pytest.mark.usefixtures("by_formula")

LARGEST = 120
"""Strategies that brute force may have to judge for one problem."""
EACH = 1
"""Problems of a block."""
BLOCKS = 32
TWO = {"x": {"max": 8, "spec": chip_spec(gb=8)}, "y": {"max": 8, "spec": chip_spec(tflops=40, gb=16)}}

_problem = cache(mesh_problem)


@lru_cache
def seeds(start: int, count: int) -> tuple[int, ...]:
    """The first seeds from `start` whose problems are small enough."""
    found: list[int] = []
    while len(found) < count:
        found += [start] if small_enough(_problem(start), LARGEST) else []
        start += 1
    return tuple(found)


def best_of_each(problem: Problem) -> dict[tuple[object, ...], float]:
    """The best step time of every family, or of every plan where near-twins count, by brute force."""
    best: dict[tuple[object, ...], float] = {}
    apart = family if problem.spec.search.diverse else Strategy.key
    for s in strategies(problem):
        if legal(problem, s):
            key = apart(s)
            best[key] = min(evaluate(problem, s).step_time_s, best.get(key, float("inf")))
    return best


def agreed(problem: Problem) -> Result:
    """The search's answer, which brute force confirms."""
    best, result = best_of_each(problem), search(problem)
    wanted = sorted(best.values())[: problem.spec.search.top]
    assert result.status == ("optimal" if best else "infeasible")
    assert [plan.evaluation.step_time_s for plan in result.plans] == pytest.approx(wanted, rel=1e-6)
    assert not any(violations(problem, plan.strategy) for plan in result.plans)
    return result


@pytest.fixture(scope="module")
def tally() -> Counter[str]:
    return Counter()


@pytest.mark.parametrize("block", first(1, range(BLOCKS)))
def test_search_agrees_with_brute_force(block: int, tally: Counter[str]) -> None:
    for seed in seeds(1000 * block, EACH):
        result = agreed(_problem(seed))
        tally.update(["problem"])
        tally.update(["first is unequal"] * any(plan.strategy.unequal for plan in result.plans[:1]))
        tally.update(["unequal"] * any(plan.strategy.unequal for plan in result.plans))


@pytest.mark.full
@pytest.mark.parametrize(("held_mib", "sends_first"), [(0.5, 0), (1e3, 0), (0.5, 1), (1e3, 1)])
def test_search_agrees_with_brute_force_where_transfers_are_operations_of_their_own(
    held_mib: float, sends_first: int
) -> None:
    """NCCL's buffers hold some of them or all: stages at either end wait for fewer than those between, or none."""
    buffers = {"pipeline_buffer_mib": held_mib, "pipeline_sends_first": float(sends_first)}
    for seed in seeds(90_000, 4):
        agreed(with_stack(_problem(seed), pipeline_transfers=4, **buffers))


@pytest.mark.full
def test_a_first_stage_that_takes_less_than_those_between_is_no_worse_bounded() -> None:
    """A frozen embedding is done sooner than a transfer, of which the first stage has one and those between two."""
    given = mesh_problem(5).spec.model_dump(mode="json")
    alone = {"tp": [1], "flash_attention": [True], "distributed_optimizer": [True], "sequence_parallel": [False]}
    given["search"]["pin"] |= {**alone, "cp_gather": [False], "ulysses": [1], "sharding_group": [0]}
    given["model"] = model_spec(layers=2)
    given["training"]["lora"] = {"rank": 8, "targets": "attention"}
    problem = resolve(parse_spec(given))
    wanted = sorted(best_of_each(problem).values())[: problem.spec.search.top]
    found = [plan.evaluation.step_time_s for plan in search(problem).plans]
    assert found == pytest.approx(wanted, rel=1e-6)


def problem_of_blocks(memory_gb: float) -> Problem:
    """State space and dense blocks, of which the latter store far less, on two chip types; sequence parallelism."""
    blocks = {"layer_pattern": "M--M--", "mamba": {**MAMBA, "heads": 16}}
    model = model_spec(layers=6, hidden=512, ffn=256, vocab=1000, **blocks)
    small, large = chip_spec(gb=FRAMEWORK_GB + memory_gb), chip_spec(tflops=25, gb=40)
    chips = {"x": {"max": 4, "spec": small}, "y": {"max": 2, "spec": large}}
    pin = {"vpp": 1, "cp": 1, "flash_attention": True, "recompute": "none", "sequence_parallel": True}
    pin |= {"distributed_optimizer": False, "sharding_group": 0}
    return problem_of(chips, model, 6, 1, 4, 32_768, degrees_by_chip=True, diverse=False, top=1, pin=pin)


def the_best_is_found(problem: Problem) -> bool:
    [best] = search(problem).plans
    return best.evaluation.step_time_s == pytest.approx(min(best_of_each(problem).values()), rel=1e-6)


def test_layers_that_store_little_are_counted_by_the_fewest_stages() -> None:
    """What a stage of many of them stores is not what a stage of one does, however many stages others might have."""
    assert the_best_is_found(problem_of_blocks(2))


def test_a_pinned_flag_is_the_plan_s_where_one_mesh_has_it() -> None:
    """A mesh with tp 1 is no less part of a plan whose other mesh has sequence parallelism."""
    problem = problem_of_blocks(4)
    assert the_best_is_found(problem)
    assert {mesh.tp for mesh in search(problem).plans[0].strategy.stage_meshes} > {1}


def test_brute_force_met_plans_with_unequal_degrees(tally: Counter[str]) -> None:
    if tally["problem"]:
        assert tally["unequal"] >= tally["problem"] / 4
        assert tally["first is unequal"] >= 1


def problem_of_two(**search_fields: Any) -> Problem:
    pin = {"cp": 1, "flash_attention": True, "vpp": 1, **search_fields.pop("pin", {})}
    return problem_of(TWO, model=model_spec(layers=6), gpus=16, node=2, batch=8, risk=1, pin=pin, **search_fields)


@pytest.mark.full
def test_the_best_of_both_is_found_and_no_equal_plan_is_lost() -> None:
    equal, own = search(problem_of_two(degrees_by_chip=False)), search(problem_of_two(degrees_by_chip=True))
    assert own.plans[0].evaluation.step_time_s <= equal.plans[0].evaluation.step_time_s
    assert equal.proof.meshes is None
    counts = own.proof.meshes
    assert counts is not None
    assert counts.open == 0
    assert counts.options >= counts.combined >= counts.bounded >= counts.solved


def test_left_out_it_is_what_the_launcher_runs() -> None:
    problem = problem_of_two()
    assert not problem.degrees_by_chip
    for name, runs in (("flagscale", True), ("megatron-lm", False)):
        assert problem_of(TWO, gpus=16, node=2, launcher=name).degrees_by_chip == runs
    assert not problem_of(TWO, gpus=16, node=2, launcher="flagscale", degrees_by_chip=False).degrees_by_chip
    assert not problem_of(gpus=4, launcher="flagscale").degrees_by_chip  # one chip type
    interleaved = search(problem_of_two(degrees_by_chip=True, pin={"vpp": 2}))
    assert not any(plan.strategy.unequal for plan in interleaved.plans)


def test_pins_bear_on_every_mesh() -> None:
    result = search(
        problem_of_two(degrees_by_chip=True, pin={"tp": [1, 2], "pp": 4, "chip_order": ["y", "x"], "vpp": 1})
    )
    unequal = [plan.strategy for plan in result.plans if plan.strategy.unequal]
    assert unequal
    for plan in unequal:
        assert plan.pp == 4
        assert set(plan.by_mesh("tp")) <= {1, 2}
        assert tuple(dict.fromkeys(plan.stage_chips)) == ("y", "x")


@pytest.mark.full
def test_a_search_cut_short_says_what_is_left() -> None:
    problem = problem_of_two(degrees_by_chip=True)
    search_of_meshes = MeshSearch(problem, lambda: Limits(float("inf"), {}))
    best = search(problem).plans[0].evaluation.step_time_s
    assert search_of_meshes.waiting > 0
    assert search_of_meshes.lowest <= best
    before = search_of_meshes.lowest
    for _ in range(5):
        if search_of_meshes.step() is not None:
            break
    assert search_of_meshes.lowest >= before


def test_rows_of_a_round_share_its_sequences_and_flags() -> None:
    problem = problem_of_two(degrees_by_chip=True, diverse=False)
    space = rounds_of(problem)
    rows = space.table.rows
    for each in space.rounds:
        of_round = rows.take(each.rows)
        assert len(set((of_round.mbs * of_round.dp).tolist())) == 1
        assert len(set(of_round.flash_attention.tolist())) == 1
        assert len(set(of_round.sequence_parallel[of_round.tp > 1].tolist())) <= 1
        assert len(set(of_round.distributed_optimizer[of_round.replicas > 1].tolist())) <= 1
        assert set(of_round.microbatches.tolist()) == {each.microbatches}


def test_dominated_rounds_are_left_out_only_where_families_are_asked_for() -> None:
    all_of_them = rounds_of(problem_of_two(degrees_by_chip=True, diverse=False)).rounds
    fewer = rounds_of(problem_of_two(degrees_by_chip=True)).rounds
    assert 0 < len(fewer) < len(all_of_them)


def test_options_whose_devices_nothing_completes_are_cut() -> None:
    problem = problem_of_two(degrees_by_chip=True)
    space = rounds_of(problem)
    bounds = MeshBounds(space.table, problem.num_gpus)
    search_of_meshes = MeshSearch(problem, lambda: Limits(float("inf"), {}))
    part = search_of_meshes._parts[0].part
    left = bounds.that_add_up(part)
    assert left is not None
    sums = {a + b for a in bounds.used(left.options[0]).tolist() for b in bounds.used(left.options[1]).tolist()}
    assert problem.num_gpus in sums
    empty = Options(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    assert bounds.that_add_up(replace(part, options=(empty, part.options[1]))) is None


def test_the_first_look_counts_what_cheap_layers_spare_once() -> None:
    """However many stages and ways to serve them there are: a third less for every layer is a third less in all."""
    problem = problem_of_blocks(4)
    table, part = rounds_of(problem).table, MeshSearch(problem, lambda: Limits(float("inf"), {}))._parts[0].part
    found = []
    for share in (0.0, 1 / 3):
        kinds = np.repeat(-share * table.time.layer[:, None], 2, axis=1)
        bounds = MeshBounds(table, problem.num_gpus)
        bounds.table = replace_time(table, kind_layer=kinds)
        found.append(bounds.quick(part))
    assert found[0][0] > found[0][1] > 0
    assert found[1] == pytest.approx([2 / 3 * each for each in found[0]])


def replace_time(table: Coefficients, **fields: np.ndarray) -> Coefficients:
    """The same rows with other seconds."""
    other = copy(table)
    other.tables = replace(table.tables, time=replace(table.time, **fields))
    return other
