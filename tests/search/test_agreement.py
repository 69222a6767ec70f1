"""The solver's objective, read back in seconds, against the judge that knows nothing of the solver."""

from __future__ import annotations

from math import lcm

import numpy as np
import pytest

from cpsolver.evaluation.evaluate import evaluate, stage_memory
from cpsolver.plans.dimensions import ROW
from cpsolver.plans.strategy import StageGroup
from cpsolver.problem.problem import Problem
from cpsolver.rules import violations
from cpsolver.search.bounds.bounds import plan_bound
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.compile.data import Scale, plan_data, scale_for
from cpsolver.search.compile.model import CompiledModel, strategy_of
from cpsolver.search.compile.warm_start import warm_start
from cpsolver.search.space import enumerate_rows
from tests.support.generated import random_problem
from tests.support.problems import chip_spec, model_spec, problem_of
from tests.support.selection import first, full, later
from tests.support.tables import all_orders, quick_tables

REAL = {
    "llama2-70b": ({"a800": 48, "h800": 48}, 64, 128, 4096),
    "gpt3-175b": ({"a100": 128}, 128, 96, 2048),
    "llama2-7b": ({"a100_40g": 16, "rtx4090": 16, "ascend_910b": 16}, 32, 64, 4096),
    "deepseek-v2-lite": ({"a800": 16, "h800": 16}, 32, 64, 4096),
    "gpt-oss-20b": ({"h100": 16}, 16, 32, 8192),
}


def check_plan(table: Coefficients, row: int, order: np.ndarray) -> bool:
    """Solve one plan and compare; False where nothing fits."""
    problem = table.problem
    bound = float(plan_bound(table, np.array([row]), order[None, :])[0])
    if np.isinf(bound):
        return False
    weight = float(sum(part[0] for part in table.weights(np.array([row]))))
    scale, upper = scale_for(2 * bound, weight), 2 * bound
    data = plan_data(table, row, order, scale, upper)
    if not data.possible:
        return False
    known = warm_start(data, problem.spec.search.recompute_scope == "stage")
    solved = CompiledModel(problem, [data], scale, 0.0, upper).solve(time_limit_s=20)
    if solved.strategy is None:
        return False
    assert not violations(problem, solved.strategy)
    judged = evaluate(problem, solved.strategy).formula_s
    if solved.status != "optimal":  # stopped by the clock: the plan it has may be faster than it has shown
        assert judged <= solved.step_time_s + data.error_s
        return False
    assert abs(judged - solved.step_time_s) <= data.error_s
    assert data.error_s < 1e-5 * judged
    assert known is not None
    assert known.lower <= round(solved.step_time_s / scale.unit_s * data.vpp)
    return True


def compare(problem: Problem, rng: np.random.Generator, wanted: int) -> int:
    table = Coefficients(problem, enumerate_rows(problem).rows)
    compared = 0
    for row in rng.permutation(len(table.rows)).tolist():
        if table.rows.pp[row] > 8 or compared == wanted:
            continue
        orders = all_orders(problem, table.rows, row)
        if orders:
            compared += check_plan(table, row, orders[int(rng.integers(len(orders)))][1])
    return compared


@pytest.mark.parametrize("start", first(1, [30_000, 30_015]))
@pytest.mark.parametrize("bend", [full(False), True], ids=["real", "bent"])
def test_objective_of_tiny_plans_is_what_evaluate_says(bend: bool, start: int) -> None:
    compared = 0
    for seed in range(start, start + 15):
        with quick_tables(seed if bend else None):
            compared += compare(random_problem(seed), np.random.default_rng(seed), 4)
    assert compared > 20


@pytest.mark.parametrize(("name", "wanted"), [("llama2-70b", 3), *later((name, 12) for name in REAL)])
def test_objective_of_real_plans_is_what_evaluate_says(name: str, wanted: int) -> None:
    chips, gpus, batch, sequence = REAL[name]
    assert compare(problem_of(chips, name, gpus, 8, batch, sequence), np.random.default_rng(4), wanted) == wanted


def test_declared_error_covers_the_worst_rounding() -> None:
    """One stage of `longest` layers, all recomputed, every coefficient half a step off, weights (m - 1/v) and 1/v."""
    longest, m, vpp, pp = 5, 8, 2, 3
    worst_stage = 0.5 * longest + 0.5 * longest + 0.5
    worst = (m - 1 / vpp) * worst_stage + pp * worst_stage / vpp + 0.5 * longest + 0.5
    assert Scale(0.25).error_s(m - 1 / vpp, 1 / vpp, pp, longest) >= 0.25 * worst
    assert Scale(0.25).integers(np.array([0.37, 0.38, 1.0])).tolist() == [1, 2, 4]
    assert scale_for(2.0**30, weight=8.0).unit_s == 1.0
    assert scale_for(2.0**30, weight=64.0).unit_s == 0.125


def test_objective_factor_makes_every_chunk_share_whole() -> None:
    """Plans of vpp 1, 2 and 3 in one model: its objective counts sixths of a step."""
    problem = problem_of({"x": chip_spec()}, model_spec(layers=6), gpus=2, node=2, pin={"pp": 2, "tp": 1})
    table, scale = Coefficients(problem, enumerate_rows(problem).rows), scale_for(1.0)
    first = [int(np.nonzero(table.rows.vpp == vpp)[0][0]) for vpp in (1, 2, 3)]
    data = [plan_data(table, row, np.array([0, 0]), scale, 1.0) for row in first]
    joint = CompiledModel(problem, data, scale, 0.0, 1.0)
    alone = [CompiledModel(problem, [plan], scale, 0.0, 1.0).solve().step_time_s for plan in data]
    assert joint._factor == lcm(1, 2, 3)
    assert joint.solve().step_time_s == pytest.approx(min(alone), abs=3 * data[0].error_s)


@pytest.mark.parametrize("gb", [full(4.3), 4.6, full(5.0), 6.0])
def test_layers_that_the_solver_lets_fit_are_those_that_the_rules_let_fit(gb: float) -> None:
    """The most layers on a stage by the solver's table, and one more, judged by evaluate's memory."""
    problem = problem_of({"x": chip_spec(gb=gb)}, model_spec(layers=12), gpus=2, node=2, batch=8, pin={"pp": 2})
    table = Coefficients(problem, enumerate_rows(problem).rows)
    capacity = problem.capacity_bytes(problem.supplies[0].chip)
    bound = 0
    for row in range(len(table.rows)):
        data = plan_data(table, row, np.array([0, 0]), scale_for(1e3), 1e3)
        for index, option in enumerate(data.by_chip[0].options):
            for most in {*data.by_chip[0].most[:, index].tolist()} - {0}:
                for extra in (0, 1):
                    if not most + extra <= data.needed - 1:
                        continue
                    place = data.by_chip[0].most[:, index].tolist().index(most)
                    chunks = [data.needed - most - extra] * 2
                    chunks[place] = most + extra
                    split = [data.vpp * count - data.slot(stage) for stage, count in enumerate(chunks)]
                    group = StageGroup("x", tuple(split), option.kind, (option.amount,) * 2, option.modules)
                    strategy = strategy_of(dict(zip(ROW, data.degrees, strict=True)), (group,))
                    fits = stage_memory(problem, strategy)[place].total <= capacity * (1 + 1e-9)
                    assert fits == (extra == 0)
                    bound += extra
    assert bound > 20
