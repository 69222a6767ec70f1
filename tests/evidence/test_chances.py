"""Chances of running out of memory and of being the fastest."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, sqrt

import numpy as np
import pytest
from scipy.stats import t as student

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.evaluation import PARTS, Evaluation
from cpsolver.evidence import chances
from cpsolver.evidence.chances import (
    FREEDOM,
    MemoryMisses,
    OrderMisses,
    Risk,
    below,
    best_chances,
    faster,
    load_risk,
    memory_errors,
    out_of_memory_probability,
    shares,
)
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of

EXACT = MemoryMisses(0.0, 0.05, 9)
ORDER = OrderMisses(own=0.06, shares=0.5, layouts=9, tasks=3)


@pytest.fixture(autouse=True)
def risk(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"count": {"dense": EXACT, "experts": EXACT}, "meter": {"dense": MemoryMisses(-0.1, 0.1, 9)}}
    monkeypatch.setattr(chances, "load_risk", lambda: Risk(told, ORDER))


def case() -> tuple[Problem, Strategy, Evaluation]:
    problem, strategy = problem_of({"x": chip_spec()}, model_spec(), gpus=8), strategy_of("x:2,2", dp=4)
    return problem, strategy, evaluate(problem, strategy)


def filled(share: float) -> tuple[Problem, Strategy, Evaluation]:
    """The case with its first stage filled to a share of all of the device, and the other to less."""
    problem, strategy, found = case()
    size = problem.supply("x").chip.memory_capacity_bytes
    full, bare = (replace(stage, memory=replace(stage.memory, activations=0.0)) for stage in found.stages)
    need = replace(full.memory, activations=share * size - full.memory.total)
    return problem, strategy, replace(found, stages=(replace(full, memory=need), bare))


def with_parts(found: Evaluation, seconds: float, **parts: float) -> Evaluation:
    return replace(found, step_time_s=seconds, breakdown_s={part: parts.get(part, 0.0) * seconds for part in PARTS})


@pytest.mark.parametrize("score", [-30.0, -2.1, -0.3, 0.0, 0.7, 5.0])
def test_the_closed_form_is_student_s(score: float) -> None:
    assert below(score) == pytest.approx(student.cdf(score, FREEDOM), abs=1e-12)


def test_memory_s_chance_is_the_mean_of_what_counts_and_meters_say() -> None:
    share = 0.95
    room = log(1 / share)
    expected = (student.sf(room / 0.05, FREEDOM) + student.sf((room + 0.1) / 0.1, FREEDOM)) / 2
    assert out_of_memory_probability(*filled(share)) == pytest.approx(expected, abs=5e-4)


def test_a_fuller_device_runs_out_sooner_and_the_margin_may_be_used() -> None:
    found = [out_of_memory_probability(*filled(share)) for share in (0.5, 0.9, 0.96, 1.0, 1.2)]
    assert found == sorted(found)
    assert found[0] < 0.01
    assert found[3] == pytest.approx((0.5 + student.sf(1.0, FREEDOM)) / 2, abs=5e-4)
    assert found[-1] > 0.85


def test_a_stack_s_own_readings_speak_where_there_are_enough() -> None:
    problem, *_ = case()
    own = MemoryMisses(0.01, 0.02, 12)
    told = {"count": {"dense": EXACT, f"{problem.stack.name}/dense": own}, "meter": {"dense": EXACT}}
    assert memory_errors(problem, Risk(told, ORDER)) == [own, EXACT]


def test_of_two_plans_the_draws_agree_with_the_closed_form() -> None:
    *_, found = case()
    one, other = with_parts(found, 10.0, compute=1.0), with_parts(found, 10.4, compute=0.9, bubble=0.1)
    told = faster((10.0, 10.4), (shares(one), shares(other)), ORDER)
    scale = sqrt(0.06**2 + 0.5**2 * 2 * 0.1**2)
    assert told == pytest.approx(student.cdf(log(1.04) / scale, FREEDOM))
    assert best_chances([10.0, 10.4], [one, other])[0] == pytest.approx(told, abs=0.01)


def test_plans_unlike_each_other_are_less_sure_than_plans_alike() -> None:
    *_, found = case()
    first = with_parts(found, 10.0, compute=1.0)
    alike, unlike = with_parts(found, 11.0, compute=1.0), with_parts(found, 11.0, compute=0.7, bubble=0.3)
    assert best_chances([10, 11], [first, alike])[0] > best_chances([10, 11], [first, unlike])[0] > 0.5


def test_chances_of_several_sum_to_one_and_repeat() -> None:
    *_, found = case()
    plans = [with_parts(found, 10.0 * exp(0.02 * i), compute=1.0 - 0.05 * i, bubble=0.05 * i) for i in range(5)]
    scores = [plan.step_time_s for plan in plans]
    told = best_chances(scores, plans)
    assert sum(told) == pytest.approx(1.0, abs=0.003)
    assert told == best_chances(scores, plans)
    assert best_chances(scores[:1], plans[:1]) == [1.0]
    assert best_chances([], []) == []


def test_the_file_that_comes_with_the_package_is_sound() -> None:
    found = load_risk()
    assert set(found.memory) == {"count", "meter"}
    for groups in found.memory.values():
        assert {"dense", "experts"} <= set(groups)
        assert all(abs(each.middle) < 0.2 and 0 < each.scale < 0.3 for each in groups.values())
    assert 0 < found.order.own < 0.2
    assert np.isfinite(found.order.scale(np.zeros(2), np.ones(2)))
