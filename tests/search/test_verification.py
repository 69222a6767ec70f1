"""A second opinion: it agrees with right answers, contradicts wrong ones, and says what it has not looked at."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpsolver.cost.shard import Floats, Ints
from cpsolver.doors.report.goals import verification_line
from cpsolver.problem.problem import Problem
from cpsolver.search import frontier, opening, verification
from cpsolver.search.bounds import bounds
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.search import search
from cpsolver.search.verification import verify
from tests.support.generated import random_problem
from tests.support.problems import chip_spec, model_spec, problem_of
from tests.support.selection import full, night


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a test has time for."""
    monkeypatch.setattr(verification, "_SAMPLE", 8)


def small(**given: Any) -> Problem:
    return problem_of(model=model_spec(layers=4), gpus=4, batch=8, **given)


def test_a_right_answer_is_confirmed() -> None:
    problem = small()
    told = verify(problem, search(problem))
    assert told.verdict == "confirmed"
    assert told.plans > 1
    assert told.variables > told.plans
    assert told.constraints > told.plans
    assert 0 < told.solved <= told.sampled == verification._SAMPLE
    assert told.findings == ()


def test_where_one_model_takes_long_each_plan_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """They find what the one does: the answer's first plan, and nothing without the answer's."""
    problem = small(pin={"pp": 2})
    result = search(problem)
    together = verify(problem, result)
    true = verification._Models._solved

    def of_few(models: verification._Models, plans: list[Any], *given: Any) -> Any:
        solved = true(models, plans, *given)
        return solved if len(plans) == 1 else replace(solved, status="unknown")

    monkeypatch.setattr(verification._Models, "_solved", of_few)
    apart = verify(problem, result)
    assert (together.models, together.verdict, apart.verdict) == (1, "confirmed", "confirmed")
    assert apart.models > apart.plans / 2
    assert "CP-SAT models of all" in verification_line(apart)
    lacking = verify(problem, replace(result, plans=result.plans[1:]))
    assert any("better than the first plan" in each for each in lacking.findings)


@pytest.mark.full
def test_plans_with_and_without_split_backward_passes_are_in_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage of the plan that is taken is longer than any stage of another."""
    monkeypatch.setattr(verification, "MARGIN", 1.0)
    problem = small(stack="zero-bubble", top=2, pin={"tp": 1, "cp": 1, "mbs": 1, "flash_attention": True})
    result = search(problem)
    told = verify(problem, result)
    assert {plan.strategy.pp for plan in result.plans} >= {1}
    assert told.verdict == "confirmed"
    assert told.plans > 1


@pytest.mark.full
def test_an_answer_that_lacks_the_best_plan_is_contradicted() -> None:
    problem = small(top=3)
    result = search(problem)
    told = verify(problem, replace(result, plans=result.plans[1:]))
    assert told.verdict == "contradicted"
    assert any("better than the first plan" in each for each in told.findings)
    told = verify(problem, replace(result, plans=(result.plans[0], result.plans[2])))
    assert any("not in the answer" in each for each in told.findings)


@pytest.mark.full
def test_a_bound_that_is_none_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the best plan's tp it is twice as high as it may be: the search leaves that plan out."""
    problem, true = small(top=1), bounds.plan_bound
    best = search(problem).plans[0].strategy

    def wrong(table: Coefficients, rows: Ints, *given: Any) -> Floats:
        return true(table, rows, *given) * np.where(table.rows.tp[rows] == best.tp, 2.0, 1.0)

    for module in (frontier, opening, verification):
        monkeypatch.setattr(module, "plan_bound", wrong)
    missed = search(problem)
    assert missed.plans[0].strategy != best
    told = verify(problem, missed)
    assert told.verdict == "contradicted"
    assert any("faster than its bound" in each for each in told.findings)


def test_no_plan_is_confirmed_on_a_sample() -> None:
    problem = small()
    nothing_fits = problem_of({"x": chip_spec(gb=0.5)}, model_spec(layers=4), gpus=4, batch=8)
    told = verify(nothing_fits, search(nothing_fits))
    assert (told.verdict, told.plans, told.solved) == ("confirmed", 0, 0)
    assert told.sampled > 0
    some_fit = verify(problem, search(nothing_fits))
    assert some_fit.verdict == "contradicted"


def test_what_is_not_looked_at_is_told() -> None:
    problem = small()
    result = search(problem)
    stopped = replace(result, proof=replace(result.proof, stop="time_limit"))
    assert verify(problem, stopped).verdict == "not verified"
    idle = problem.with_(
        spec=problem.spec.model_copy(update={"cluster": problem.spec.cluster.model_copy(update={"idle": True})})
    )
    assert verify(idle, result).verdict == "not verified"
    assert verify(problem, result, time_limit_s=1e-9).verdict == "unfinished"


@pytest.mark.parametrize(("start", "count"), [(40_033, 1), full(40_000, 4), night(40_004, 8)])
def test_random_problems_are_confirmed(start: int, count: int) -> None:
    told = Counter(_verdict(random_problem(seed)) for seed in range(start, start + count))
    assert told["contradicted"] == 0
    assert told["confirmed"] >= 0.6 * count


def _verdict(problem: Problem) -> str:
    return verify(problem, search(problem)).verdict
