"""SOAP's preconditioners, by hand: what they hold, where they lie, and what a step takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpsolver.cost.matrix_steps import Matrix
from cpsolver.cost.preconditioning import factor_elements, preconditioning_seconds
from cpsolver.cost.shard import Candidates, Shard
from cpsolver.cost.tables import memory_table
from cpsolver.evaluation.evaluate import stage_memory
from cpsolver.evaluation.matrices import matrix_costs
from cpsolver.inputs.errors import InputError
from cpsolver.problem.problem import Problem
from cpsolver.profiles.techniques import techniques
from tests.support.problems import chip_spec, ideal, model_spec, problem_of, strategy_of

WHOLE = Shard.of(1, 1, False, True)
FOUR = model_spec(layers=4, hidden=1024, ffn=4096, gated_mlp=False, activation="gelu")
"""A layer's matrices: 3072, 1024 and 4096 by 1024, and 1024 by 4096."""
MI = 1024**2
SQUARES = [9 + 1, 1 + 1, 16 + 1, 1 + 16]
"""Of their sides, in Mi elements."""


def of(optimizer: str, model: Any = None) -> Problem:
    """On an ideal chip: 100 TFLOP/s in every precision whatever the depth of a product, 1 TB/s, no latency."""
    whole = {"gemm_fp32": 1.0}
    return ideal(whole, model, stack={"gemm_half_depth": 0.0}, training={"optimizer": optimizer})[0]


def matrix(rows: float, columns: float) -> Matrix:
    sides = np.array([rows]), np.array([columns])
    return Matrix(*sides, *sides, np.ones(1))


def test_a_step_by_hand() -> None:
    """4 cubes and 6 projections to either side, 2 FLOP each; two factorizations of 8/3 of a cube; traffic."""
    problem, rows, columns = of("soap"), 2048.0, 4096.0
    chip = problem.supplies[0].chip
    cubes = rows**3 + columns**3
    products = 2 * 4 * cubes + 2 * 6 * (rows**2 * columns + rows * columns**2)
    peak = chip.peak_flops("fp32")
    factored = 8 / 3 * cubes / (0.15 * peak) + 2 * 7.5e-3
    traffic = 60 * rows * columns + 60 * (rows**2 + columns**2)
    found = preconditioning_seconds(problem, chip, WHOLE, matrix(rows, columns)).item()
    assert found == pytest.approx(products / 1e14 + factored + traffic / 1e12, rel=1e-3)
    assert factor_elements(matrix(rows, columns)).item() == rows**2 + columns**2


@pytest.mark.parametrize(
    ("degrees", "elements"),
    [
        ({"dp": 1}, 4 * sum(SQUARES)),
        ({"dp": 2}, 2 * sum(SQUARES)),  # shared out evenly
        ({"dp": 16}, 17),  # of 16 matrices each has one, the largest squares 17
        ({"dp": 16, "flags": "f"}, 4 * sum(SQUARES)),  # every rank has them all
        ({"groups": "x:2,2", "dp": 4}, sum(SQUARES) / 2),
    ],
    ids=str,
)
def test_factors_lie_where_their_matrices_lie(degrees: dict[str, Any], elements: float) -> None:
    """Beside Adam's states of what the buffers hold: 8 bytes an element of the squares on the fullest rank."""
    problem, plan = of("soap", FOUR), strategy_of(**degrees)
    costs = matrix_costs(problem, plan)
    assert costs is not None
    assert costs.factors_bytes == pytest.approx(elements * MI * techniques().soap_factor_bytes)
    rows = Candidates.one(plan, problem.batch)
    layers, table = plan.layers[0], memory_table(problem, rows)
    muon = memory_table(of("muon", FOUR), rows)
    # Muon has 4 bytes less of each element in the buffers, and no factors.
    held = {"dp": 1, "pp": 1, **degrees}
    sharded = held["dp"] if "f" not in str(degrees.get("flags", "")) else 1
    matrices = {1: 48, 2: 48, 4: 24, 16: 64 if sharded == 16 else 48}[held["dp"]] * MI
    more = layers * (table.layer_states - muon.layer_states).item() - costs.factors_bytes
    assert more == pytest.approx(4 * matrices / sharded)


def test_the_evaluation_has_the_bytes_of_the_table() -> None:
    experts = model_spec(layers=4, mtp_layers=1, moe={"experts": 8, "top_k": 2, "expert_ffn": 512, "first_dense": 1})
    problem, plan = of("soap", experts), strategy_of(dp=8, ep=4)
    table, (stage,) = memory_table(problem, Candidates.one(plan, problem.batch)), stage_memory(problem, plan)
    wanted = 4 * table.layer_states + table.first_states + table.last_states
    assert stage.weights + stage.gradients + stage.optimizer == pytest.approx(wanted.item(), rel=1e-12)


def test_a_chip_without_a_known_rate_in_fp32_is_refused() -> None:
    chip = chip_spec()
    chip["peak_tflops"] = {"bf16": 100}
    with pytest.raises(InputError, match="no fp32 matrix peak is known"):
        problem_of({"x": chip}, training={"optimizer": "soap"})
