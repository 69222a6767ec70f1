"""What is recommended, against every plan of tiny problems and on everyday specs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import cpsolver
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evidence.chances import margin_for, out_of_memory_probability
from cpsolver.evidence.nearest import avoidable, unmeasured, unmeasured_values
from cpsolver.explanation.recommendation import recommend
from cpsolver.plans.dimensions import family
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import violations
from cpsolver.search.result import Plan, Result
from cpsolver.search.search import search
from tests.support.generated import random_problem
from tests.support.oracle import legal, small_enough, strategies
from tests.support.problems import chip_spec, problem_of
from tests.support.selection import night
from tests.support.tables import quick_tables

SAFEST = 0.2
"""Of the risk: what the safest plan's chance of running out of memory stays below."""


def tiny(start: int, count: int) -> Iterator[Problem]:
    """Problems with few plans, whose memory is short."""
    seed = start
    while count:
        if small_enough(random_problem(seed), 200):
            count -= 1
            yield random_problem(seed)
        seed += 1


def risk_of(problem: Problem, strategy: Strategy) -> float:
    return out_of_memory_probability(problem, strategy, evaluate(problem, strategy))


@pytest.mark.full
@pytest.mark.parametrize(("start", "count"), [(100, 4), *(night(start, 8) for start in (200, 300))])
def test_roles_are_the_best_of_all_plans_within_their_limits(start: int, count: int) -> None:
    told = 0
    for problem in tiny(start, count):
        with quick_tables(by_events=True):
            every = [s for s in strategies(problem) if legal(problem, s)]
            step = {s: evaluate(problem, s).step_time_s for s in every}
            risk = {s: risk_of(problem, s) for s in every}
        found = recommend(problem, search(problem))
        if not found.plans:
            assert not every
            continue
        assert found.recommendation is not None
        roles = {name: found.plans[at] for name, at in vars(found.recommendation).items() if at is not None}
        for plan in roles.values():
            assert not violations(problem, plan.strategy)
            assert plan.evaluation == evaluate(problem, plan.strategy)
        assert roles["fastest"].evaluation.step_time_s == pytest.approx(min(step.values()), rel=1e-6)
        safe = [s for s in every if risk[s] < problem.spec.search.risk]
        if safe:
            run_this = roles["run_this"].strategy
            assert risk_of(problem, run_this) < problem.spec.search.risk
            no_worse = [s for s in safe if avoidable(problem, s) <= avoidable(problem, run_this)]
            quickest = min(step[s] for s in no_worse if risk[s] <= risk_of(problem, run_this))
            assert roles["run_this"].evaluation.step_time_s == pytest.approx(quickest, rel=1e-6)
        measured = [s for s in every if risk[s] < SAFEST * problem.spec.search.risk and not avoidable(problem, s)]
        if "safest" in roles:
            told += 1
            assert roles["safest"].evaluation.step_time_s == pytest.approx(min(step[s] for s in measured), rel=1e-6)
        else:
            assert all(step[s] >= 1.25 * min(step.values()) * (1 - 1e-9) for s in measured)
    assert told


def llama(**search_for: Any) -> Problem:
    return cpsolver.make_problem(
        model="llama3.1-70b",
        num_gpus=64,
        chips="h100",
        global_batch_size=256,
        sequence_length=8192,
        **search_for,
    )


@pytest.mark.full
def test_a_smaller_risk_costs_speed_and_a_risk_of_one_costs_nothing() -> None:
    steps, chances = [], []
    for risk in (1.0, 0.05):
        problem = llama().with_(search={"risk": risk})
        found = recommend(problem, search(problem))
        assert found.recommendation is not None
        assert found.recommendation.run_this is not None
        best = found.plans[found.recommendation.run_this]
        steps.append(best.evaluation.step_time_s)
        chances.append(out_of_memory_probability(problem, best.strategy, best.evaluation))
        assert risk == 1.0 or chances[-1] < risk
    assert steps == sorted(steps)
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > chances[-1]


def test_the_margin_of_a_risk_leaves_just_that_risk() -> None:
    problem = llama()
    plan = search(problem.with_(search={"top": 1})).plans[0]
    stage = plan.evaluation.stages[0]
    capacity, memory = problem.supply(stage.chip).chip.memory_capacity_bytes, stage.memory
    for risk in (0.01, 0.05, 0.2):
        more = capacity * (1 - margin_for(problem, risk)) - memory.total
        full = replace(stage, memory=replace(memory, fragments=memory.fragments + more))
        filled = replace(plan.evaluation, stages=(full,))
        assert out_of_memory_probability(problem, plan.strategy, filled) == pytest.approx(risk, abs=0.0011)


def test_values_that_no_run_has_had_are_those_that_a_report_names() -> None:
    problem = llama(stack="nemo")
    values = unmeasured_values(problem)
    plan = search(problem).plans[0].strategy
    plain = replace(plan, tp=8, cp=1, pp=4, dp=2, vpp=1)
    assert not unmeasured(problem, plain)
    for name in ("tp", "pp", "vpp"):
        assert unmeasured(problem, replace(plain, **{name: values[name][0]}))  # type: ignore[arg-type]
        assert not unmeasured(problem, replace(plain, **{name: values[name][0] // 2}))  # type: ignore[arg-type]


@pytest.mark.full
def test_nothing_more_is_looked_for_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = llama()
    result = search(problem)

    def no_search(*_args: Any, **_more: Any) -> Result:
        raise AssertionError("searched")

    monkeypatch.setattr("cpsolver.explanation.recommendation.search", no_search)
    stopped = replace(result, proof=replace(result.proof, stop="interrupted"))
    assert recommend(problem, stopped).plans == result.plans
    assert recommend(problem.with_(search={"risk": 1.0}), result).plans == result.plans
    nothing = replace(result, plans=())
    assert recommend(problem, nothing) is nothing


def test_after_a_time_limit_a_safer_twin_of_the_fastest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the fastest family alone, and of no other once that one's is as fast as anything known."""
    problem = llama(time_limit_s=60.0, risk=0.1, top=12)
    result = search(problem)
    fastest, slow = result.plans[0], result.plans[-1]
    risky, safe = risk_of(problem, fastest.strategy), risk_of(problem, slow.strategy)
    assert safe < 0.1 < risky
    stopped = replace(result, plans=(fastest, slow), proof=replace(result.proof, stop="time_limit"))
    found = recommend(problem, stopped)
    assert found.recommendation is not None
    assert found.recommendation.run_this is not None
    chosen = found.plans[found.recommendation.run_this]
    assert chosen.added
    assert family(chosen.strategy) == family(fastest.strategy)
    assert risk_of(problem, chosen.strategy) < 0.1
    assert fastest.evaluation.step_time_s < chosen.evaluation.step_time_s < slow.evaluation.step_time_s

    def interrupted(*_args: Any, **_more: Any) -> Result:
        raise KeyboardInterrupt

    monkeypatch.setattr("cpsolver.explanation.recommendation.search", interrupted)
    assert [plan.strategy for plan in recommend(problem, stopped).plans] == [fastest.strategy, slow.strategy]


def test_an_interruption_keeps_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = llama()
    result = search(problem)

    def interrupted(*_args: Any, **_more: Any) -> Result:
        raise KeyboardInterrupt

    monkeypatch.setattr("cpsolver.explanation.recommendation.search", interrupted)
    kept = recommend(problem, result)
    assert kept.plans == result.plans
    assert kept.recommendation is not None
    assert kept.recommendation.fastest == 0
    assert not kept.settled


@pytest.mark.full
def test_plans_beside_the_best_are_told_apart() -> None:
    problem = llama()
    found = cpsolver.solve(problem)
    best: list[Plan] = [plan for plan in found.plans if not plan.added]
    assert len(best) == problem.spec.search.top
    assert [plan.rank for plan in found.plans] == list(range(1, len(found.plans) + 1))
    named = {at for at in vars(found.recommendation).values() if at is not None}
    assert {at for at, plan in enumerate(found.plans) if plan.added} <= named


def test_no_role_has_a_schedule_that_was_not_asked_for() -> None:
    """The simplest plan has 1F1B, but not where `search.schedules` lists others only."""
    pin = {"pp": 2, "tp": 1, "mbs": 1, "vpp": 2, "sequence_parallel": False, "recompute": "none"}
    problem = problem_of(gpus=4, batch=16, stack="megatron-core", schedules=["breadth_first"], pin=pin)
    found = recommend(problem, search(problem))
    assert {plan.strategy.schedule for plan in found.plans} == {"breadth_first"}


def test_layers_that_must_be_even_are_so_in_every_role() -> None:
    """On two chip types of unequal speed the simplest plan would have five layers and one: an attack found it."""

    def chip(tflops: float, gb: float, gb_s: float, up: float, out: float) -> dict[str, Any]:
        return {"spec": chip_spec(tflops=tflops, gb=gb, gb_s=gb_s, up=up, out=out)}

    chips = {
        "one": chip(594.8, 4.1075, 1500, 16, 100),
        "three": {**chip(67, 64, 400, 100, 400), "max": 12},
        "two": chip(638.4, 3.20343, 4000, 16, 100),
    }
    flags = {"cp_gather": False, "distributed_optimizer": False, "flash_attention": True, "sequence_parallel": True}
    pin = {"tp": 2, "cp": 1, "recompute": ["none"], "sharding_group": 0, **flags}
    spec = {
        "cluster": {"chips": chips, "num_gpus": 16},
        "launcher": "megatron-core-0.12",
        "model": {"ffn": 1024, "heads": 4, "hidden": 256, "layers": 6, "vocab": 4000},
        "search": {"forbid": {"pp": [1, 4, 8]}, "layer_split": "even", "pin": pin},
        "training": {"global_batch_size": 4, "sequence_length": 1024},
    }
    problem = cpsolver.make_problem(spec)
    found = recommend(problem, search(problem))
    assert found.recommendation is not None
    assert found.recommendation.simplest is not None
    assert all(set(plan.strategy.layers) == {3} for plan in found.plans)
