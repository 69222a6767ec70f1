"""The search against brute force where adapters are trained, or sequences have several lengths."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from cpsolver.rules import violations
from cpsolver.search.search import search
from tests.support.compared import compared
from tests.support.generated import random_problem
from tests.support.problems import problem_of
from tests.support.selection import full, night

LARGEST = 600
"""No problem has more strategies."""


@pytest.fixture(scope="module")
def tally() -> Counter[str]:
    """What the problems of all blocks were like."""
    return Counter()


@pytest.mark.parametrize(
    ("block", "count", "bend"),
    [(0, 4, True), full(0, 4, False), *(night(block, 12, bend) for block in range(5) for bend in (False, True))],
)
def test_the_search_agrees_with_brute_force(block: int, count: int, bend: bool, tally: Counter[str]) -> None:
    """Up to 12 problems a block."""
    start, make = 90_000 + 1000 * block + 500 * bend, partial(random_problem, finetuned=True)
    for problem, best in compared(make, range(start, start + count), LARGEST, bend):
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
