"""Plans over several chip types, run event by event: the best of them by that, against every plan there is."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from cpsolver import make_problem
from cpsolver.cost.pipeline_events import closed_form_s, most_excess, simulate
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.plans.dimensions import family
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.compile.data import plan_data, scale_for
from cpsolver.search.compile.warm_start import may_run_within
from cpsolver.search.frontier import MOST_EXCESS
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from tests.support.mixtures import mixture_problem
from tests.support.oracle import legal, small_enough, strategies
from tests.support.selection import first
from tests.support.tables import all_orders, plan_of, quick_tables

LARGEST = 1500
CLOSE = 1e-9


def candidates(problem: Problem) -> dict[tuple[object, ...], tuple[float, float, float]]:
    """Of every plan's best layers by formula: its seconds by formula, and the least and most of equals by events."""
    best: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for s in (s for s in strategies(problem) if legal(problem, s)):
        found = evaluate(problem, s)
        best.setdefault(s.key(), []).append((found.formula_s, found.step_time_s))
    told = {}
    for key, both in best.items():
        formula = min(both)[0]
        ties = [true for seconds, true in both if seconds <= formula * (1 + CLOSE)]
        told[key] = formula, min(ties), max(ties)
    return told


@pytest.mark.parametrize("part", first(1, range(8)))
def test_nothing_is_faster_by_events_than_the_best(part: int) -> None:
    """Six problems each, in some of which the formula's best plan is another."""
    found: Counter[str] = Counter()
    seed = 7000 + 1000 * part
    while found["problems"] < 6:
        seed += 1
        problem = mixture_problem(seed).with_(search={"objective": "throughput"})
        if not small_enough(problem, LARGEST):
            continue
        with quick_tables(seed, by_events=True):
            every = candidates(problem)
            result = search(problem)
        found["problems"] += 1
        if not every:
            assert result.status == "infeasible"
            continue
        seconds = [plan.evaluation.step_time_s for plan in result.plans]
        close = [most for formula, _, most in every.values() if formula <= (1 + MOST_EXCESS) * seconds[0]]
        best = min(close, default=float("inf"))
        assert min(least for _, least, _ in every.values()) * (1 - CLOSE) <= seconds[0] <= best * (1 + CLOSE), seed
        assert all(one <= other for one, other in pairwise(seconds)), seed
        apart = [family(p.strategy) if problem.spec.search.diverse else p.strategy.key() for p in result.plans]
        assert len(set(apart)) == len(apart)
        for plan in result.plans:
            formula, least, most = every[plan.strategy.key()]
            assert plan.evaluation.formula_s == pytest.approx(formula, rel=CLOSE), seed
            assert least * (1 - CLOSE) <= plan.evaluation.step_time_s <= most * (1 + CLOSE), seed
        assert result.proof.by_events is not None
        assert result.proof.by_events.within == MOST_EXCESS
        found["moved"] += seconds[0] < min(every.values())[1] * (1 - 1e-6)
    assert part or found["moved"]


def test_the_formula_is_never_further_above_events_than_stated() -> None:
    rng = np.random.default_rng(5)
    closest = 0.0
    for _ in range(600):
        pp, vpp = int(rng.integers(2, 7)), int(rng.integers(1, 4))
        m = pp * int(rng.integers(1, 5))
        forward, backward = (np.repeat(rng.uniform(0.1, 1, (pp, 1)), vpp, axis=1) for _ in range(2))
        forward[-1] *= rng.uniform(0.1, 1)
        makespan = simulate(forward, backward, m).makespan_s
        formula = closed_form_s((forward + backward).sum(axis=1), m, vpp)
        excess = float(most_excess(pp, vpp, m))
        assert formula <= makespan * (1 + excess) * (1 + CLOSE)
        closest = max(closest, (formula / makespan - 1) / excess)
    assert closest > 0.5


def on_one_order(problem: Problem, s: Strategy) -> tuple[object, ...]:
    return s.key(), s.sharding_group, s.sharded, s.expert_overlap, s.slots


@pytest.mark.parametrize("part", first(1, range(5)))
def test_no_plan_is_left_out_that_may_run_in_time(part: int) -> None:
    """For every row and order of chips: the best of all its splits by events is within its own limit."""
    found: Counter[str] = Counter()
    for seed in range(7100 + 6 * part, 7106 + 6 * part):
        problem = mixture_problem(seed).with_(search={"objective": "throughput"})
        if small_enough(problem, LARGEST):
            found.update(_within_their_limits(problem, seed))
    assert found["checked"] > 20
    assert found["refused"] > found["checked"] / 2


def _within_their_limits(problem: Problem, seed: int) -> dict[str, int]:
    checked = refused = 0
    with quick_tables(seed, by_events=True):
        best: dict[tuple[object, ...], float] = {}
        for s in (s for s in strategies(problem) if legal(problem, s)):
            key = on_one_order(problem, s)
            best[key] = min(evaluate(problem, s).step_time_s, best.get(key, 1e9))
        table = Coefficients(problem, enumerate_rows(problem).rows)
        for row in range(len(table.rows)):
            for _, order in all_orders(problem, table.rows, row):
                known = best.get(on_one_order(problem, plan_of(problem, table.rows, row, order)))
                if known is None:
                    continue
                scale = scale_for(4 * known)
                plan = plan_data(table, row, order, scale, 4 * known)
                steps = plan.vpp / scale.unit_s
                checked += 1
                assert may_run_within(plan, (known + plan.error_s) * steps), (row, order)
                refused += not may_run_within(plan, 0.6 * known * steps)
    return {"checked": checked, "refused": refused}


@pytest.mark.parametrize(
    ("model", "chips", "gain"),
    [
        ("gemma2-27b", {"ascend_910b": 96, "h100": 96, "b200": 64}, 0.03),
    ],
)
def test_what_the_formula_thinks_slower_may_be_the_fastest(model: str, chips: dict[str, int], gain: float) -> None:
    gpus = sum(chips.values())
    problem = make_problem(model=model, num_gpus=gpus, chips=chips, global_batch_size=2 * gpus, sequence_length=4096)
    with quick_tables():
        by_formula = search(problem).plans[0]
    result = search(problem)
    assert result.plans[0].evaluation.formula_s > by_formula.evaluation.formula_s
    assert result.plans[0].evaluation.step_time_s < (1 - gain) * evaluate(problem, by_formula.strategy).step_time_s
    assert result.proof.by_events is not None
    assert result.proof.by_events.run > 3
