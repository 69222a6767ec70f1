"""The search held to brute force: the same feasibility, the same K best values, legal and different plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.problem.problem import Problem
from cpsolver.rules import violations
from cpsolver.search.search import search
from tests.support.oracle import brute_force, small_enough
from tests.support.tables import quick_tables

KEY = (
    *("tp", "pp", "dp", "mbs", "vpp", "sequence_parallel", "distributed_optimizer", "flash_attention", "chips"),
    *("cp", "ulysses", "cp_gather", "ep", "etp", "sharded", "schedule", "micro_batches"),
)
"""The entries of `Strategy.key`."""


def family_of_key(key: tuple[object, ...]) -> tuple[object, ...]:
    """The layout family of a plan with that key."""
    plan = dict(zip(KEY, key, strict=True))
    whole = plan["distributed_optimizer"] and plan["sharded"] == "parameters"
    return plan["tp"], plan["cp"], plan["pp"], plan["dp"], plan["ep"], whole


def assert_same(problem: Problem, best: dict[tuple[object, ...], float]) -> None:
    top, diverse = problem.spec.search.top, problem.spec.search.diverse
    result = search(problem)
    of_each: dict[tuple[object, ...], float] = {}
    for key, seconds in best.items():
        family = family_of_key(key) if diverse else key
        of_each[family] = min(seconds, of_each.get(family, seconds))
    wanted = sorted(of_each.values())[:top]
    assert result.status == ("optimal" if best else "infeasible")
    assert [plan.evaluation.step_time_s for plan in result.plans] == pytest.approx(wanted, rel=1e-6)
    keys = [plan.strategy.key() for plan in result.plans]
    assert len({family_of_key(key) if diverse else key for key in keys}) == len(keys)
    for plan in result.plans:
        assert not violations(problem, plan.strategy)
        assert best[plan.strategy.key()] == pytest.approx(evaluate(problem, plan.strategy).step_time_s, rel=1e-6)


def compared(
    make: Callable[[int], Problem], seeds: Iterable[int], largest: int | None, bend: bool
) -> Iterator[tuple[Problem, dict[tuple[object, ...], float]]]:
    """Every problem that `make` draws of a seed, and its plans by brute force: the search agrees with them, with the
    cost model's tables or with bent ones. Problems of more than `largest` strategies, where given, are left out."""
    for seed in seeds:
        problem = make(seed)
        if largest is None or small_enough(problem, largest):
            with quick_tables(seed if bend else None):
                best = brute_force(problem)
                assert_same(problem, best)
            yield problem, best
