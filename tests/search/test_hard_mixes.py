"""Two and three chip types with layers of several kinds, devices that may idle and money: against brute force."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest

from cpsolver.cost.kinds import layer_kinds
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.plans.dimensions import family
from cpsolver.problem.problem import Problem
from cpsolver.search import opening
from cpsolver.search import search as engine
from cpsolver.search.bounds import bounds
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.mixes import placed_bound
from cpsolver.search.bounds.quick import frame_bound, least_seconds, quick_bound, too_large
from cpsolver.search.objective import objective_of
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from tests.support.mixtures import mixture_problem
from tests.support.oracle import legal, small_enough, strategies
from tests.support.selection import first, full, night
from tests.support.tables import quick_tables

LARGEST = 1500
"""Strategies that brute force may have to judge for one problem of a number of devices."""


def sizes(problem: Problem) -> list[Problem]:
    """The problem for each number of devices that its plans may use."""
    if not problem.may_idle:
        return [problem]
    return [problem.of_size(count) for count in range(problem.node, problem.num_gpus + 1, problem.node)]


def best_scores(problem: Problem) -> tuple[list[float], bool]:
    """The score of every family's best plan, or of every key's; and whether a plan has several chip types."""
    best: dict[object, float] = {}
    mixed, diverse, objective = False, problem.spec.search.diverse, objective_of(problem)
    for sized in sizes(problem):
        for s in (s for s in strategies(sized) if legal(sized, s)):
            apart = family(s) if diverse else s.key()
            score = objective.score(s, evaluate(sized, s).step_time_s)
            best[apart] = min(score, best.get(apart, score))
            mixed |= len(set(s.stage_chips)) > 1
    return sorted(best.values()), mixed


@pytest.mark.parametrize(
    ("part", "idle", "bend"),
    [
        (0, False, False),
        full(0, False, True),
        *(night(*case) for case in product(range(2), (False, True), (False, True)) if any(case[:2])),
    ],
)
def test_the_best_plans_are_those_of_brute_force(part: int, idle: bool, bend: bool) -> None:
    """Five problems each."""
    found: Counter[str] = Counter()
    seed = 1000 * part
    while found["problems"] < 5:
        seed += 1
        problem = mixture_problem(seed, idle=idle)
        if not all(small_enough(sized, LARGEST) for sized in sizes(problem)):
            continue
        with quick_tables(seed if bend else None):
            every, mixed = best_scores(problem)
            result = search(problem)
        assert result.status == ("optimal" if every else "infeasible"), seed
        objective = objective_of(problem)
        scores = [objective.score(plan.strategy, plan.evaluation.step_time_s) for plan in result.plans]
        assert scores == pytest.approx(every[:3], rel=1e-9), seed
        assert len(layer_kinds(problem.model)) > 1
        found.update(problems=1, feasible=bool(every), mixed=mixed, three=len(problem.supplies) == 3)
    assert found["feasible"] >= 2
    assert found["mixed"] >= 1


@pytest.mark.parametrize("start", [0, full(100), *(night(start) for start in range(200, 1000, 100))])
def test_what_is_done_of_many_types_finds_the_same(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few types as if they had many orders, and a limit from the beginning: mixes wait with their own bounds,
    and plans fall by the layers that stages hold."""
    asked, found = Counter[str](), Counter[str]()

    def many(_: Problem) -> bool:
        return True

    def counted(*asks: Any) -> np.ndarray:
        asked["mixes"] += 1
        return np.asarray(placed_bound(*asks))

    for module in (opening, engine, bounds):
        monkeypatch.setattr(module, "has_many_orders", many)
    monkeypatch.setattr(opening, "placed_bound", counted)
    for seed in range(start, start + 15):
        problem = mixture_problem(seed)
        if problem.mixed and all(small_enough(sized, LARGEST) for sized in sizes(problem)):
            with quick_tables():
                every, mixed = best_scores(problem)
                below = 1.1 * every[0] if every else 1.0
                plans, objective = search(problem, below=below).plans, objective_of(problem)
            scores = [objective.score(plan.strategy, plan.evaluation.step_time_s) for plan in plans]
            assert scores == pytest.approx([score for score in every[:3] if score < below], rel=1e-9), seed
            found.update(problems=1, mixed=mixed)
    assert found["mixed"] > 1
    assert asked["mixes"] > 1


@pytest.mark.parametrize("seed", first(4, range(40)))
def test_frames_are_bounded_by_no_more_than_their_rows_and_cut_by_memory_only_where_all_rows_are(seed: int) -> None:
    problem = mixture_problem(seed)
    with quick_tables(seed):
        space = enumerate_rows(problem)
        table = Coefficients(problem, space.rows)
        quick, large = quick_bound(table), too_large(problem, table.rows, table.memory)
        bounds, fits = frame_bound(problem, space)
        some = np.arange(0, len(space.frames), 2)
        again = frame_bound(problem, space, frames=some)
        least = least_seconds(problem, space, np.unique(space.frames.mbs).tolist(), any_layout=True)
        at_a_look, may_fit = frame_bound(problem, space, least=least)
    assert (at_a_look[fits] <= bounds[fits] * (1 + 1e-9)).all()
    assert may_fit[fits].all()
    assert (np.repeat(bounds, space.rows_of)[~large] <= quick[~large] * (1 + 1e-9)).all()
    assert large[~np.repeat(fits, space.rows_of)].all()
    assert again[0].tolist() == bounds[some].tolist()
    assert again[1].tolist() == fits[some].tolist()
