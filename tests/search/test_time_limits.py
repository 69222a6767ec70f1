"""A search with little time: how much it works on in one go, what it has when it stops, and that the gap is true."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.rules import violations
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.compile.model import solve_plan
from cpsolver.search.compile.warm_start import warm_start
from cpsolver.search.pace import OutOfTime, Pace
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from tests.search.test_search import REAL, accounted
from tests.search.test_warm_start import random_plan
from tests.support.problems import problem_of
from tests.support.selection import first

TWO: dict[str, Any] = {**REAL["two chips"], "pin": {"cp": 1, "vpp": [1, 2]}}


def ticking(monkeypatch: pytest.MonkeyPatch, tick_s: float) -> None:
    """A clock that goes on whenever it is read."""
    reads = count()
    monkeypatch.setattr("cpsolver.search.pace.time", SimpleNamespace(monotonic=lambda: tick_s * next(reads)))


def test_steps_are_as_long_as_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds allow steps of 0.1 + 0.05 * 10 = 0.6; a step on 100 rows took the two seconds between two reads."""
    ticking(monkeypatch, 2.0)
    pace = Pace(10.0)
    assert pace.most("rows", 4096) == 512
    with pace.working("rows", 100):
        pass
    assert pace.most("rows", 4096) == 30
    assert pace.most("rows", 20) == 20
    assert pace.most("mixes", 4096) == 512
    assert not pace.late
    pace.check()


def test_without_a_limit_or_with_a_long_one_no_clock_decides_how_long_a_step_is() -> None:
    for limit in (None, 60.0):
        pace = Pace(limit)
        with pace.working("rows", 1):
            pass
        assert pace.most("rows", 4096) == 4096
    with pytest.raises(OutOfTime):
        Pace(0.0).check()


@pytest.mark.parametrize("limit_s", first(1, [1.0, 0.5, 2.0]))
def test_a_search_stopped_anywhere_states_a_true_gap(monkeypatch: pytest.MonkeyPatch, limit_s: float) -> None:
    whole = search(problem_of(**TWO))
    ticking(monkeypatch, 0.1)
    stopped = search(problem_of(**TWO, time_limit_s=limit_s))
    assert accounted(stopped.proof) == stopped.proof.considered
    assert stopped.proof.stop == "time_limit"
    assert 0.0 <= stopped.proof.bound_s <= whole.proof.bound_s * (1 + 1e-9)
    best = whole.plans[0].evaluation.formula_s
    for plan in stopped.plans[:1]:
        assert plan.gap >= 1 - best / plan.evaluation.formula_s - 1e-9


def test_where_there_is_no_time_a_large_problem_has_a_legal_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpsolver.search.pace._LARGE", 0)
    problem = problem_of(**TWO, time_limit_s=1e-9)
    result = search(problem)
    assert result.status == "feasible"
    assert result.proof.bound == 0.0
    (plan,) = result.plans
    assert plan.gap == 1.0
    assert not violations(problem, plan.strategy)


def test_a_first_plan_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = search(problem_of(**TWO))
    monkeypatch.setattr("cpsolver.search.pace._LARGE", 0)
    scouted = search(problem_of(**TWO, time_limit_s=59.0))
    assert (scouted.status, plain.status) == ("optimal", "optimal")
    seconds = [[plan.evaluation.step_time_s for plan in result.plans] for result in (plain, scouted)]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-9)


def test_when_it_is_late_any_split_does_and_its_bound_holds() -> None:
    rng, found = np.random.default_rng(3), 0
    for in_place in (False, True) * 100:
        plan = random_plan(rng, in_place)
        best, early = (warm_start(plan, False, late) for late in (lambda: False, lambda: True))
        assert (best is None) == (early is None)
        if best is not None and early is not None:
            assert early.objective >= best.objective >= early.lower
            assert int(early.chunk.sum()) == plan.needed
            found += early.objective > best.objective
    assert found > 5


def test_without_time_for_a_solver_the_split_is_the_plan() -> None:
    problem = problem_of(**TWO)
    rows = enumerate_rows(problem).rows
    table, seen = Coefficients(problem, rows), 0
    for row in np.nonzero(rows.pp == 2)[0][::150].tolist():
        chips = np.array([0, 1])
        best, early = (solve_plan(table, row, chips, 1.0, 1e3, left) for left in (None, 0.0))
        if best is None or best.strategy is None:
            assert early is None or early.strategy is None
            continue
        assert early is not None
        assert early.strategy is not None
        assert early.status == "feasible"
        assert not violations(problem, early.strategy)
        told = evaluate(problem, early.strategy).formula_s
        assert told == pytest.approx(early.step_time_s, rel=1e-3)
        assert told >= best.step_time_s * (1 - 1e-3)
        seen += 1
    assert seen > 1


def test_a_plan_is_left_where_the_time_ends_between_two_guesses_of_a_limit() -> None:
    problem = problem_of(**TWO)
    table, row = Coefficients(problem, enumerate_rows(problem).rows), 0
    chips = np.array([0, *[1] * (int(table.rows.pp[row]) - 1)])
    solved = solve_plan(table, row, chips, 1e-6, float("inf"), 1e-9)
    assert solved is not None
    assert (solved.status, solved.strategy, solved.bound_s) == ("unknown", None, 1e-6)
