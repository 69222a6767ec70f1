"""How far stages reach along a model of several kinds of layers, in numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cpsolver.cost.memory import activation_bytes
from cpsolver.cost.shard import Candidates
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.placement import Placement
from tests.support.problems import model_spec, problem_of, strategy_of

NO_TIME_TOO_LONG = np.array([1e6])


def reaches(capacity: float, kind: str, full: float = 4.0, checkpoint: float = 1.0) -> bool:
    """Whether one stage holds 16 layers, the first one dense, whose activations alone take memory; bytes."""
    model = model_spec(layers=16, moe={"experts": 4, "top_k": 2, "expert_ffn": 512, "first_dense": 1})
    problem = problem_of(model=model, pin={"recompute": kind})
    table = Coefficients(problem, Candidates.one(strategy_of("x:16"), problem.batch))
    none = ("layer_states", "kind_states", "first_states", "last_states", "buffer", "last_buffer")
    zeros = {name: np.zeros_like(getattr(table.memory, name)) for name in none}
    table.memory = replace(
        table.memory, full=np.array([full]), checkpoint=np.array([checkpoint]), fixed=0.0, overhead=0.0, **zeros
    )
    table.capacity = np.array([capacity])
    row, chips = np.zeros(1, dtype=np.int64), np.zeros((1, 1), dtype=np.int64)
    return bool(Placement(table, row, chips, table.stages(row, chips)).reaches(NO_TIME_TOO_LONG)[0])


def test_without_recomputation_every_layer_is_held_in_full() -> None:
    """16 * 4 = 64."""
    assert reaches(64, "none")
    assert not reaches(63.9, "none")


@pytest.mark.parametrize(
    ("full", "least"),
    [
        (4.0, 16.0),  # the best unit is sqrt(16 / 4) = 2 layers: 16 / 2 inputs and 2 * 4 at work; of 4 layers 4 + 16
        (1.0, 8.0),  # sqrt(16 / 1) = 4: 4 inputs and 4 * 1 at work; of 16 layers 1 + 16
        (25.0, 41.0),  # a unit has one layer at least: 16 inputs and 25 at work
    ],
)
def test_units_of_the_best_size_reach_as_far_as_such_a_plan_does(full: float, least: float) -> None:
    sizes = np.arange(1, 17)
    plans = activation_bytes((full, 0.0, 1.0), np.array(1), np.array(16), "uniform", sizes, 0.0)
    assert plans.min() == least
    assert reaches(least, "uniform", full)
    assert not reaches(least - 0.1, "uniform", full)
