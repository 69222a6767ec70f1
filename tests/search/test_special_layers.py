"""The search against brute force for models whose layers are of sorts that few have: see `special_model`."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from cpsolver.cost.kinds import layer_kinds
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.rules import violations
from cpsolver.search.search import search
from models_zoo import list_architectures, special_layers
from tests.support.compared import compared
from tests.support.generated import random_problem
from tests.support.problems import problem_of
from tests.support.selection import first, full, night

LARGEST = 3000
"""No problem has more rows."""


@pytest.fixture(scope="module")
def tally() -> Counter[str]:
    """What the problems of all blocks were like."""
    return Counter()


@pytest.mark.parametrize(
    ("block", "count", "bend"),
    [(0, 4, True), full(0, 4, False), *(night(block, 12, bend) for block in range(3) for bend in (False, True))],
)
def test_the_search_agrees_with_brute_force(block: int, count: int, bend: bool, tally: Counter[str]) -> None:
    """Up to 12 problems a block."""
    start, make = 70_000 + 1000 * block + 500 * bend, partial(random_problem, special=True)
    for problem, best in compared(make, range(start, start + count), LARGEST, bend):
        tally["problems"] += 1
        tally["feasible"] += bool(best)
        tally["three kinds"] += len(layer_kinds(problem.model)) > 2 and bool(best)
        tally.update(special_layers(problem.model) if best else ())


PLANNED = {
    "nemotron3-nano-30b-a3b": 16,
    "nemotron3-super-120b-a12b": 128,
    "nemotron3-ultra-550b-a55b": 512,
    "qwen3-next-80b-a3b": 64,
    "qwen3.5-27b": 32,
    "qwen3.5-35b-a3b": 32,
    "qwen3.5-122b-a10b": 64,
    "qwen3.5-397b-a17b": 256,
    "kimi-k3-2.8t": 2048,
    "deepseek-v3.2-671b": 1024,
    "deepseek-v4-flash-284b": 512,
    "deepseek-v4-pro-1.6t": 2048,
    "glm5-744b-a40b": 1024,
    "gemma4-31b": 32,
    "palm-540b": 1024,
    "longcat-flash-560b": 512,
}
"""Every model of the catalogue with such layers, and H100s enough for it."""


@pytest.mark.parametrize("name", [*first(1, PLANNED)[:2], *map(night, [*PLANNED][2:])])
def test_the_catalogues_models_have_a_plan_that_keeps_the_rules(name: str) -> None:
    devices = PLANNED[name]
    problem = problem_of({"h100": -1}, name, devices, 8, max(256, devices), 4096, top=1)
    result = search(problem)
    assert result.status == "optimal"
    (plan,) = result.plans
    assert not violations(problem, plan.strategy)
    assert plan.evaluation.step_time_s == pytest.approx(evaluate(problem, plan.strategy).step_time_s, rel=1e-9)


def test_those_are_all_such_models() -> None:
    assert set(PLANNED) == {model.name for model in list_architectures() if special_layers(model)}


@pytest.mark.full
def test_the_problems_are_worth_solving(tally: Counter[str]) -> None:
    if tally["problems"] < 72:
        pytest.skip("not all of them ran")
    assert tally["feasible"] > 0.6 * tally["problems"]
    assert tally["three kinds"] > 0.1 * tally["problems"]
    sorts = ("single_blocks", "state_space", "delta_rule", "kimi_delta", "sparse_attention", "compressed_attention")
    more = ("latent_experts", "own_widths", "parallel_blocks", "zero_experts", "shortcut_experts")
    assert min(tally[name] for name in (*sorts, *more)) >= 3
