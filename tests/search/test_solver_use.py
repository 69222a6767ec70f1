"""What a search asks of CP-SAT: plans that dynamic programming does not settle, and those of its answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpsolver.inputs.errors import InternalError
from cpsolver.search.compile import model
from cpsolver.search.compile.exact import Split
from cpsolver.search.compile.model import CompiledModel, Solved
from cpsolver.search.pace import Pace
from cpsolver.search.search import search
from cpsolver.search.solver_use import SolverUse
from tests.support.problems import problem_of

ONE = {"chips": {"a800": 16}, "model": "llama2-7b", "gpus": 16, "node": 8, "batch": 64, "sequence": 4096}


def test_only_plans_that_cp_sat_was_asked_about_are_counted() -> None:
    """Not one that is settled, nor one that is seen to be too slow without it."""
    use = SolverUse(Pace(None))
    slow = Solved("infeasible", None, float("inf"), float("inf"))
    for plan, calls in ((lambda: slow, 0), (lambda: None, 0), (lambda: replace(slow, asked=True), 1)):
        use.solve(1.0, 1.0, plan)
        assert use.calls == calls
    assert use.unsettled == []
    use.solve(3.0, 2.0, lambda: Solved("feasible", None, 2.0, 1.0))
    assert use.unsettled == [3.0]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Solved]:
    """What CP-SAT says from now on."""
    found: list[Solved] = []
    real = CompiledModel.solve

    def solve(self: CompiledModel, *args: Any, **named: Any) -> Solved:
        found.append(real(self, *args, **named))
        return found[-1]

    monkeypatch.setattr(CompiledModel, "solve", solve)
    return found


def test_cp_sat_is_asked_about_every_plan_of_the_answer(asked: list[Solved]) -> None:
    result = search(problem_of(**ONE))
    assert result.proof.solver_calls == len(asked) >= len(result.plans) == 3
    seconds = [solved.step_time_s for solved in asked if solved.status == "optimal"]
    for plan in result.plans:
        assert any(plan.evaluation.formula_s == pytest.approx(each, rel=1e-6) for each in seconds)


def test_a_plan_that_cp_sat_refuses_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Solved:
        return Solved("infeasible", None, float("inf"), float("inf"))

    monkeypatch.setattr(model._OnePlan, "asked", refused)
    with pytest.raises(InternalError, match="CP-SAT refuses a plan"):
        search(problem_of(**ONE))


def test_a_split_that_is_seen_to_be_too_slow_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A settled split beyond the limit counts as no plan, as CP-SAT has it."""
    limits: list[float] = []
    real = model._OnePlan.settled

    def settled(plan: model._OnePlan, known: Split) -> Solved:
        found = real(plan, known)
        late = real(replace(plan, upper_s=found.step_time_s), replace(known, objective=10 * known.objective))
        assert (late.status, late.strategy) == ("infeasible", None)
        limits.append(plan.upper_s)
        return found

    monkeypatch.setattr(model._OnePlan, "settled", settled)
    assert search(problem_of(**ONE)).status == "optimal"
    assert limits
