"""The search against brute force where adapters are trained, or sequences have several lengths."""

from __future__ import annotations

from collections import Counter

import pytest

from cpsolver.rules import violations
from cpsolver.search.search import search
from tests.search.test_oracle import assert_same
from tests.support.generated import random_problem
from tests.support.oracle import brute_force, small_enough
from tests.support.problems import problem_of
from tests.support.selection import first, full
from tests.support.tables import quick_tables

LARGEST = 600
"""No problem has more strategies."""


@pytest.fixture(scope="module")
def tally() -> Counter[str]:
    """What the problems of all blocks were like."""
    return Counter()


@pytest.mark.parametrize("block", first(1, range(8)))
@pytest.mark.parametrize("bend", [full(False), True], ids=["real", "bent"])
def test_the_search_agrees_with_brute_force(block: int, bend: bool, tally: Counter[str]) -> None:
    """Up to 12 problems a block."""
    for seed in range(90_000 + 1000 * block + 500 * bend, 90_012 + 1000 * block + 500 * bend):
        problem = random_problem(seed, finetuned=True)
        if not small_enough(problem, LARGEST):
            continue
        with quick_tables(seed if bend else None):
            best = brute_force(problem)
            assert_same(problem, best)
        training = problem.spec.training
        tally["problems"] += 1
        tally["feasible"] += bool(best)
        tally["adapters"] += training.lora is not None and bool(best)
        tally["in 4 bits"] += training.lora is not None and training.lora.quantized_base is not None and bool(best)
        tally["packed"] += training.packs and bool(best)


@pytest.mark.full
def test_the_problems_are_worth_solving(tally: Counter[str]) -> None:
    if tally["problems"] < 100:
        pytest.skip("not all of them ran")
    assert tally["feasible"] > 0.6 * tally["problems"]
    assert tally["adapters"] > 0.3 * tally["problems"]
    assert tally["packed"] > 0.2 * tally["problems"]
    assert tally["in 4 bits"] > 0.03 * tally["problems"]


def test_llama2_70b_fits_on_a_node_with_adapters_alone() -> None:
    """As in MLPerf: full training needs far more than the 8 devices have."""
    training = {"lora": {"rank": 16, "targets": "attention"}}
    sizes = {"gpus": 8, "node": 8, "batch": 8, "sequence": 8192, "top": 1}
    (plan,) = search(problem_of({"h200": -1}, "llama2-70b", training=training, **sizes)).plans
    assert not violations(problem_of({"h200": -1}, "llama2-70b", training=training, **sizes), plan.strategy)
    assert plan.strategy.tp <= 4
    assert search(problem_of({"h200": -1}, "llama2-70b", **sizes)).status == "infeasible"
