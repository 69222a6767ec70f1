"""The search as a whole: order, account of the space, stopping early, and even splits among equals."""

from __future__ import annotations

from typing import Any

import pytest

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.inputs.errors import InternalError
from cpsolver.plans.dimensions import family
from cpsolver.problem.problem import Problem
from cpsolver.rules import Violation, violations
from cpsolver.search.found import balanced
from cpsolver.search.result import Progress, Proof, Result
from cpsolver.search.search import search
from tests.support.oracle import brute_force
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of
from tests.support.selection import full
from tests.support.tables import quick_tables

TWO = {"x": chip_spec(gb=5.5), "y": chip_spec(tflops=60, gb=5.0)}
REAL: dict[str, dict[str, Any]] = {
    "one chip": {"chips": {"a800": 64}, "model": "llama2-13b", "gpus": 64, "node": 8, "batch": 128, "sequence": 4096},
    "two chips": {
        "chips": {"a800": 32, "h800": 64},
        "model": "llama2-13b",
        "gpus": 64,
        "node": 8,
        "batch": 128,
        "sequence": 4096,
    },
}


def small(**search_for: Any) -> Problem:
    return problem_of(TWO, model_spec(layers=6), node=2, **search_for)


def accounted(proof: Proof) -> int:
    return sum(proof.refused.values()) + proof.memory + proof.bounded + proof.solved + proof.open


@pytest.mark.parametrize("name", ["one chip", full("two chips")])
def test_plans_are_ranked_different_legal_and_proven(name: str) -> None:
    problem = problem_of(**REAL[name], top=5)
    result = search(problem)
    seconds = [plan.evaluation.step_time_s for plan in result.plans]
    assert result.status == "optimal"
    assert [plan.rank for plan in result.plans] == [1, 2, 3, 4, 5]
    assert seconds == sorted(seconds)
    assert len({family(plan.strategy) for plan in result.plans}) == 5
    twins = [plan.strategy for plan in search(problem_of(**REAL[name], top=5, diverse=False)).plans]
    assert len({twin.key() for twin in twins}) == 5 > len({family(twin) for twin in twins})
    for plan in result.plans:
        assert plan.proven
        assert plan.gap == 0
        assert not violations(problem, plan.strategy)
        assert plan.evaluation == evaluate(problem, plan.strategy)
    proof = result.proof
    assert proof.complete
    assert accounted(proof) == proof.considered
    assert proof.open == 0
    assert proof.solved >= proof.solver_calls >= len(result.plans)
    assert proof.bound_s == seconds[-1]


@pytest.mark.full
def test_fewer_plans_than_asked_for_are_all_there_are() -> None:
    pin = {"mbs": 1, "tp": 2, "pp": 2, "vpp": 1, "sequence_parallel": True, "flash_attention": True}
    problem = problem_of(TWO, model_spec(layers=4), node=2, top=100, diverse=False, pin=pin)
    result = search(problem)
    with quick_tables():
        best = brute_force(problem)
    assert 0 < len(result.plans) == len(best) < 100
    assert result.status == "optimal"


@pytest.mark.parametrize(("name", "listed"), [full("one chip", 24)])
def test_families_are_those_of_a_long_list_of_plans(name: str, listed: int) -> None:
    """Larger than brute force can be: the first of each family in the list of the best plans, whatever they are."""
    given = {**REAL[name], "pin": {"vpp": [1, 2], "cp_gather": False}}
    best: dict[tuple[object, ...], float] = {}
    for twin in search(problem_of(**given, top=listed, diverse=False)).plans:
        best.setdefault(family(twin.strategy), twin.evaluation.step_time_s)
    assert len(best) >= 4
    found = search(problem_of(**given, top=len(best))).plans
    assert {family(plan.strategy): plan.evaluation.step_time_s for plan in found} == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("cause", [{"gb": 3.2}, {"pin": {"tp": 3}}, {"pin": {"layers": [5, 5]}}], ids=str)
def test_infeasible_is_a_result(cause: dict[str, Any]) -> None:
    chips = {"x": chip_spec(gb=cause.get("gb", 40))}
    result = search(problem_of(chips, model_spec(layers=6), pin=cause.get("pin", {})))
    assert result.status == "infeasible"
    assert result.plans == ()
    assert accounted(result.proof) == result.proof.considered


def test_time_limit_gives_what_there_is() -> None:
    result = search(problem_of(**REAL["two chips"], time_limit_s=1e-9))
    assert result.status in ("unknown", "feasible")
    assert result.proof.stop == "time_limit"
    assert not result.proof.complete
    assert accounted(result.proof) == result.proof.considered
    assert result.proof.open > 0


class Interrupt:
    """Presses Ctrl-C as soon as that many plans are known; keeps what the search told."""

    def __init__(self, plans: int) -> None:
        self.plans, self.told = plans, list[Progress]()

    def __call__(self, progress: Progress) -> None:
        self.told.append(progress)
        if progress.plans >= self.plans:
            raise KeyboardInterrupt


@pytest.mark.full
@pytest.mark.parametrize("plans", [full(0), 1, full(2)])
def test_interrupted_search_keeps_its_plans_and_states_a_true_gap(plans: int) -> None:
    problem = problem_of(**REAL["two chips"], top=5)
    whole, stopped = search(problem), search(problem, Interrupt(plans))
    best = whole.plans[0].evaluation.step_time_s
    assert stopped.proof.stop == "interrupted"
    assert stopped.status == ("feasible" if stopped.plans else "unknown")
    assert len(stopped.plans) >= min(plans, 1)
    assert stopped.proof.bound_s <= whole.proof.bound_s * (1 + 1e-9)
    assert accounted(stopped.proof) == stopped.proof.considered
    for plan in stopped.plans:
        assert (1 - plan.gap) * plan.evaluation.step_time_s <= max(best, plan.evaluation.step_time_s) * (1 + 1e-9)
        assert plan.gap >= 1 - best / plan.evaluation.step_time_s - 1e-9 or plan.rank > 1


def test_progress_never_moves_backwards() -> None:
    listener = Interrupt(10**6)
    result = search(problem_of(**REAL["one chip"]), listener)
    bounds = [told.bound_s for told in listener.told]
    best = [told.best_s for told in listener.told]
    assert len(listener.told) > 3
    assert bounds == sorted(bounds)
    assert best == sorted(best, reverse=True)
    assert best[-1] == result.plans[0].evaluation.step_time_s


def without_seconds(result: Result) -> tuple[object, ...]:
    proof = {name: value for name, value in vars(result.proof).items() if not name.endswith("seconds")}
    return result.status, result.plans, proof


@pytest.mark.parametrize("name", ["one chip", full("two chips")])
def test_the_same_input_gives_the_same_answer(name: str) -> None:
    first, second = (search(problem_of(**REAL[name])) for _ in range(2))
    assert without_seconds(first) == without_seconds(second)


def test_equal_splits_are_spread_evenly() -> None:
    problem = problem_of(model=model_spec(layers=8))
    uneven = strategy_of("x:4,1,1,2", dp=1, flags="f")
    assert balanced(problem, uneven).layers == (2, 2, 2, 2)
    even = strategy_of("x:2,2,2,2", dp=1, flags="f")
    assert balanced(problem, even) == even
    pinned = problem_of(model=model_spec(layers=8), pin={"layers": [4, 1, 1, 2]})
    assert balanced(pinned, uneven) == uneven


def test_splits_are_not_evened_out_at_the_price_of_time() -> None:
    heavy_head = problem_of(model=model_spec(layers=9, vocab=256_000))
    chosen = strategy_of("x:6,3", dp=2)
    assert evaluate(heavy_head, chosen).step_time_s < evaluate(heavy_head, strategy_of("x:4,5", dp=2)).step_time_s
    assert balanced(heavy_head, chosen) == chosen


def test_a_plan_that_the_rules_refuse_is_a_bug_that_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last gate: nothing that the rules refuse is ever an answer, with `python -O` too."""
    refusal = Violation("memory", "stage 0 needs 9 GiB and has 8")
    monkeypatch.setattr("cpsolver.search.found.violations", lambda *_: [refusal])
    with pytest.raises(InternalError, match=r"memory: stage 0 needs 9 GiB and has 8\. The plan: Strategy\(tp="):
        search(small())


def test_a_search_below_a_score_ends_although_fewer_than_k_plans_are() -> None:
    """Plans like those found wait apart below the limit; nothing else is left there."""
    chips, steps = {"h100": 16, "a100": 16}, list[Progress]()
    problem = problem_of(chips, "llama2-7b", 32, 8, 64, 4096, top=8)

    def watched(progress: Progress) -> None:
        steps.append(progress)
        assert len(steps) < 10_000

    all_plans = search(problem)
    below = all_plans.plans[3].evaluation.step_time_s * 1.0001
    found = search(problem, watched, below=below)
    assert found.status == "optimal"
    assert 0 < len(found.plans) < 8
    assert all(plan.evaluation.step_time_s < below for plan in found.plans)
