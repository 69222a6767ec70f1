"""Microbatches of different sizes: the sequences, their bounds, and the search against every plan there is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice, product
from typing import Any

import numpy as np
import pytest

from cpsolver.cost.pipeline_events import run_steps, simulate
from cpsolver.cost.schedules import equal_sizes_why, searches_sizes
from cpsolver.doors.report.plan_words import layout_words, twin_words
from cpsolver.evaluation.evaluate import evaluate, stage_memory
from cpsolver.evidence.nearest import unmeasured
from cpsolver.explanation.recommendation import recommend
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.rules import violations
from cpsolver.search.compile.options import Option
from cpsolver.search.search import search
from cpsolver.search.sizes.search import SizesSearch
from cpsolver.search.sizes.sequences import Sequences, sequences
from cpsolver.search.sizes.splits import Chains, all_splits, allowed_within, cheapest_splits
from cpsolver.search.sizes.stages import SizedRow
from cpsolver.search.space import enumerate_rows
from cpsolver.search.verification import verify
from cpsolver.spec.spec import parse_spec
from tests.support.oracle import compositions
from tests.support.problems import chip_spec, spec_of
from tests.support.selection import later
from tests.support.sized import (
    ONE,
    TWO,
    all_ramps,
    best_of_each,
    is_ramps,
    sized_problem,
    sized_strategies,
    with_sizes,
)
from tests.support.tables import quick_tables

LARGEST = 1500
CLOSE = 1e-9


# The sequences.


def test_the_examples_of_ascendspeed_are_among_them() -> None:
    assert is_ramps(ONE)
    assert is_ramps(TWO)
    assert list(ONE) in sequences(16, 4).tolist()
    assert list(TWO) in sequences(24, 4).tolist()


@pytest.mark.parametrize(("microbatches", "mean"), [(2, 2), (3, 3), (4, 2), (5, 3), (6, 2), (5, 4), (1, 4), (6, 1)])
def test_they_are_all_that_the_definition_has(microbatches: int, mean: int) -> None:
    assert sequences(microbatches, mean).tolist() == sorted(map(list, all_ramps(microbatches, mean)))


@pytest.mark.parametrize(("microbatches", "mean"), [(16, 4), (12, 8), (40, 2)])
def test_they_keep_the_sum_and_are_told_once(microbatches: int, mean: int) -> None:
    found = sequences(microbatches, mean)
    assert len(np.unique(found, axis=0)) == len(found)
    assert (found.sum(axis=1) == microbatches * mean).all()
    assert all(is_ramps(tuple(sizes)) for sizes in found.tolist())


def test_the_largest_microbatches_are_neighbours() -> None:
    of = Sequences.of(16, 4)
    for count in (1, 3, 8):
        worst = np.max([of.sizes[:, at : at + count].sum(axis=1) for at in range(17 - count)], axis=0)
        assert (of.in_flight(count) @ np.arange(of.largest + 1) == worst).all()


# Schedules, bounds and splits.


@pytest.mark.parametrize("seed", range(12))
def test_many_steps_at_once_are_run_as_one(seed: int) -> None:
    rng = np.random.default_rng((1, seed))
    pp, microbatches = int(rng.integers(2, 6)), int(rng.integers(2, 12))
    forward, backward = rng.uniform(0.1, 2, (2, 5, pp, microbatches))
    seconds, chain = run_steps(forward, backward)
    for case in range(5):
        alone = simulate(forward[case][:, None], backward[case][:, None], microbatches)
        assert seconds[case] == pytest.approx(alone.makespan_s, rel=1e-12)
        assert (chain[case] * np.stack([forward[case], backward[case]])).sum() == pytest.approx(seconds[case])


def random_row(seed: int) -> tuple[Problem, SizedRow, np.random.Generator] | None:
    rng, problem = np.random.default_rng((2, seed)), sized_problem(seed)
    space = enumerate_rows(problem)
    frames = np.flatnonzero((space.frames.mbs > 1) & (space.frames.microbatches > 1) & (space.rows_of > 0))
    if not len(frames):
        return None
    rows = space.expand(rng.choice(frames, 1))
    row = SizedRow(problem, rows, int(rng.integers(len(rows))))
    return (problem, row, rng) if len(row.sequences.sizes) and row.options else None


def test_no_chain_is_longer_than_the_schedule_and_events_are_those_of_evaluate() -> None:
    """500 sequences with a split and an option to recompute each."""
    seed = compared = 0
    while compared < 500:
        seed += 1
        drawn = random_row(seed)
        if drawn is None:
            continue
        problem, row, rng = drawn
        option = row.options[int(rng.integers(len(row.options)))]
        passes, splits = row.passes(option), np.array(compositions(problem.model.layers, row.pp))
        at, split = rng.integers(len(row.sizes), size=25), splits[rng.integers(len(splits), size=25)]
        seconds, chain = passes.run(row.sizes[at], split)
        steps = seconds + row.after_s(split)
        bounds = row.chains(passes).longest_s(splits, passes.recomputed[splits])
        one_by_one = row.chains(passes).longest_s(split, passes.recomputed[split])[at, np.arange(25)]
        assert (one_by_one <= steps).all()
        everywhere = chain.seconds(splits, passes.recomputed[splits])
        for case in range(0, 25, 5):
            others, _ = passes.run(np.repeat(row.sizes[at[case : case + 1]], len(splits), axis=0), splits)
            assert (everywhere[case] <= others).all()
            assert (bounds[at[case]] <= others + row.after_s(splits)).all()
        plan = plan_of(problem, row, option, tuple(row.sizes[at[0]].tolist()), tuple(split[0].tolist()))
        assert evaluate(problem, plan).step_time_s == pytest.approx(steps[0], rel=1e-12)
        compared += 25


def plan_of(
    problem: Problem, row: SizedRow, option: Option, sizes: tuple[int, ...], layers: tuple[int, ...]
) -> Strategy:
    from cpsolver.search.sizes.search import _SizedPlan, _strategy

    return _strategy(problem, row, _SizedPlan(0.0, option, sizes, layers))


@pytest.mark.parametrize("seed", range(1, 30))
def test_memory_is_that_of_evaluate(seed: int) -> None:
    """The most layers fit, and one more does not, on each stage."""
    drawn = random_row(seed)
    if drawn is None:
        return
    problem, row, rng = drawn
    for option in [row.options[at] for at in rng.integers(len(row.options), size=3)]:
        most = row.most_layers(option)
        at = int(rng.integers(len(most)))
        limit = problem.capacity_bytes(problem.supplies[0].chip)
        for number, stage in product(range(1, row.longest + 1), range(row.pp)):
            layers = tuple(number if place == stage else 1 for place in range(row.pp))
            plan = plan_of(problem, row, option, tuple(row.sizes[at].tolist()), layers)
            assert (stage_memory(problem, plan)[stage].total <= limit) == (number <= most[at, stage]), (seed, option)


@pytest.mark.parametrize("seed", range(12))
def test_splits_are_all_within_the_limit_and_the_cheapest_is_found(seed: int) -> None:
    rng = np.random.default_rng((3, seed))
    pp, layers = int(rng.integers(2, 5)), int(rng.integers(4, 10))
    draw = rng.uniform(0.1, 1, (4, 1, pp))
    before, again = rng.uniform(0, 0.1, (2, 1))
    chains = Chains(before, again, 2 + draw, 0.3 * draw, rng.uniform(0, 0.1, (4, 1)), draw)
    recomputed, most = np.minimum(2, np.arange(layers + 1)), rng.integers(2, layers + 1, pp)
    every = np.array(compositions(layers, pp))
    limit = float(np.quantile(chains.longest_s(every, recomputed[every]), 0.3))
    allowed = allowed_within(chains, recomputed, most, layers, limit)
    found = [split for some in all_splits(allowed) for split in some.tolist()]
    fits = (every <= most).all(axis=1) & (chains.longest_s(every, recomputed[every])[0] <= limit)
    assert {tuple(split) for split in every[fits].tolist()} <= {tuple(split) for split in found}
    assert len({tuple(split) for split in found}) == len(found)
    if found:
        cost = rng.uniform(0, 1, (pp, layers + 1, 3))
        sums = np.array([[cost[np.arange(pp), split, n].sum() for split in found] for n in range(3)])
        least, splits = cheapest_splits(allowed, cost)
        assert least == pytest.approx(sums.min(axis=1))
        assert splits.tolist() == [found[at] for at in sums.argmin(axis=1)]


# The search.


@pytest.fixture(scope="module")
def tally() -> Counter[str]:
    return Counter()


@pytest.mark.parametrize(("start", "count"), [(0, 2), *later((start, 25) for start in range(2, 252, 25))])
def test_search_agrees_with_brute_force(start: int, count: int, tally: Counter[str]) -> None:
    """Of every row, sequence, split and recomputation: the best of each plan, and the K best."""
    for seed in range(start, start + count):
        problem = sized_problem(seed)
        if len(list(islice(sized_strategies(problem), LARGEST + 1))) > LARGEST:
            continue
        with quick_tables(by_events=True):
            best, result = best_of_each(problem), search(problem)
        wanted = sorted(best.values())[: problem.spec.search.top]
        assert result.status == ("optimal" if best else "infeasible"), seed
        assert [plan.evaluation.step_time_s for plan in result.plans] == pytest.approx(wanted, rel=CLOSE), seed
        assert not any(violations(problem, plan.strategy) for plan in result.plans), seed
        tally.update(["problem"])
        tally.update(["sized"] * any(plan.strategy.dynamic for plan in result.plans))


def test_brute_force_met_plans_with_sizes(tally: Counter[str]) -> None:
    if tally["problem"] >= 10:
        assert tally["sized"] >= tally["problem"] / 4


def ascend(batch: int = 16, gpus: int = 32, **search_fields: Any) -> Problem:
    given = spec_of({}, "llama-13b", gpus, 8, batch, 2048, stack="ascendspeed", **search_fields)
    given["cluster"]["chips"] = {"ascend_910b": gpus}
    return resolve(parse_spec(given | {"training": given["training"] | {"precision": "fp16"}}))


def test_a_real_model_is_faster_with_them_and_verified() -> None:
    pin = {"vpp": 1, "tp": 8, "pp": [1, 4], "cp": 1}
    without = search(ascend(pin=pin)).plans[0]
    problem = ascend(pin=pin, dynamic_micro_batches=True)
    result = search(problem)
    first = result.plans[0]
    assert first.strategy.micro_batches == (1, 2, 3, 3, 3, 2, 1, 1)
    assert first.evaluation.step_time_s < 0.97 * without.evaluation.step_time_s
    assert first.proven
    assert result.proof.sizes is not None
    assert result.proof.sizes.open == 0
    assert result.proof.sizes.rows >= result.proof.sizes.searched > 0
    told = verify(problem, result, 60.0)
    assert told.verdict == "confirmed"
    assert "plans whose microbatches differ in size" in told.left_out


def test_a_row_is_left_where_time_runs_out() -> None:
    problem = ascend(pin={"vpp": 1, "tp": 8, "pp": 4, "cp": 1}, dynamic_micro_batches=True, time_limit_s=1e-6)
    result = search(problem)
    assert result.proof.stop == "time_limit"
    assert all(plan.gap > 0 for plan in result.plans)


# Where it is asked for.


def test_they_are_looked_for_on_request_alone() -> None:
    assert not searches_sizes(ascend())
    assert searches_sizes(ascend(dynamic_micro_batches=True))
    assert search(ascend(pin={"tp": 8, "pp": 4, "cp": 1})).proof.sizes is None


def test_what_does_not_run_them_is_refused() -> None:
    given = spec_of({"x": chip_spec()}, dynamic_micro_batches=True)
    with pytest.raises(
        InputError, match=r"search\.dynamic_micro_batches = true: stack .* has microbatches of one size"
    ):
        resolve(parse_spec(given))
    with pytest.raises(InputError, match="launcher megatron-lm has microbatches of one size"):
        resolve(parse_spec({**given, "launcher": "megatron-lm"}))
    with pytest.raises(InputError, match="dynamic_micro_batches"):
        parse_spec(spec_of({"x": chip_spec()}, dynamic_micro_batches="yes"))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"search": {"schedules": ("zb1p",)}}, "search.schedules leaves 1f1b out"),
        ({"search": {"recompute_scope": "stage"}}, "search.recompute_scope is stage"),
        ({"cluster": {"idle": True}}, "the objective is not throughput on all devices"),
    ],
)
def test_what_does_not_go_with_them_is_said(changes: dict[str, Any], why: str) -> None:
    problem = with_sizes(sized_problem(1))
    assert not equal_sizes_why(problem)
    assert equal_sizes_why(problem.with_(**changes)) == why
    assert not searches_sizes(problem.with_(**changes))


def test_pins_on_layers_are_kept() -> None:
    problem = ascend(
        pin={"vpp": 1, "tp": 8, "pp": 4, "cp": 1, "mbs": 2, "layers": [9, 11, 11, 9]}, dynamic_micro_batches=True
    )
    result = search(problem)
    assert {plan.strategy.layers for plan in result.plans} == {(9, 11, 11, 9)}
    assert any(plan.strategy.dynamic for plan in result.plans)


def test_all_rows_are_bounded_below_their_plans() -> None:
    problem = ascend(pin={"vpp": 1, "tp": 8, "pp": 4, "cp": 1}, dynamic_micro_batches=True)
    best = search(problem).plans[0]
    from cpsolver.search.frontier import INFINITE, Limits
    from cpsolver.search.pace import Pace

    rows = SizesSearch(problem, enumerate_rows(problem), lambda: Limits(INFINITE, {}), Pace(None))
    assert best.strategy.dynamic
    assert rows.lowest < best.evaluation.step_time_s


def test_the_safest_and_the_simplest_plan_have_microbatches_of_one_size() -> None:
    """No run has had others, and a file leaves them out; the first screen says them, beside what sets twins apart."""
    problem = ascend(pin={"vpp": 1, "tp": 8, "pp": [1, 4], "cp": 1}, dynamic_micro_batches=True)
    told = recommend(problem, search(problem))
    assert told.recommendation is not None
    first, simple = told.plans[0].strategy, told.plans[told.recommendation.simplest or 0].strategy
    assert first.dynamic
    assert "microbatches of different sizes" in unmeasured(problem, first)
    assert "mbs 2 (1, 2, 3 ×3, 2, 1 ×2)" in layout_words(first)
    for role in (told.recommendation.safest, told.recommendation.simplest):
        assert role is not None
        assert not told.plans[role].strategy.dynamic
    assert twin_words(first, replace(first, micro_batches=())) == "micro batches"
    assert "micro batches" in twin_words(first, simple)
