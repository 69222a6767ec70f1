"""The search against brute force for models whose layers are of sorts that few have: see `special_model`."""

from __future__ import annotations

from collections import Counter

import pytest

from cpsolver.cost.kinds import layer_kinds
from models_zoo import special_layers
from tests.search.test_oracle import assert_same
from tests.support.generated import random_problem
from tests.support.oracle import brute_force, small_enough
from tests.support.selection import first
from tests.support.tables import quick_tables

LARGEST = 3000
"""No problem has more rows."""


@pytest.fixture(scope="module")
def tally() -> Counter[str]:
    """What the problems of all blocks were like."""
    return Counter()


@pytest.mark.parametrize("block", first(1, range(16)))
@pytest.mark.parametrize("bend", [False, True], ids=["real", "bent"])
def test_the_search_agrees_with_brute_force(block: int, bend: bool, tally: Counter[str]) -> None:
    """Up to 12 problems a block."""
    for seed in range(70_000 + 1000 * block + 500 * bend, 70_012 + 1000 * block + 500 * bend):
        problem = random_problem(seed, special=True)
        if not small_enough(problem, LARGEST):
            continue
        with quick_tables(seed if bend else None):
            best = brute_force(problem)
            assert_same(problem, best)
        tally["problems"] += 1
        tally["feasible"] += bool(best)
        tally["three kinds"] += len(layer_kinds(problem.model)) > 2 and bool(best)
        tally.update(special_layers(problem.model) if best else ())


@pytest.mark.full
def test_the_problems_are_worth_solving(tally: Counter[str]) -> None:
    if tally["problems"] < 200:
        pytest.skip("not all of them ran")
    assert tally["feasible"] > 0.6 * tally["problems"]
    assert tally["three kinds"] > 0.1 * tally["problems"]
    sorts = ("single_blocks", "state_space", "delta_rule", "kimi_delta", "sparse_attention", "compressed_attention")
    assert min(tally[name] for name in (*sorts, "latent_experts", "own_widths", "parallel_blocks")) >= 5
