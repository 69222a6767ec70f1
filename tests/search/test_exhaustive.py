"""The search on realistic problems against solving every single plan, without any bound."""

from __future__ import annotations

import numpy as np
import pytest

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.search.arrangements import arrangements, mixes
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.compile.data import plan_data, scale_for
from cpsolver.search.compile.model import CompiledModel
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from cpsolver.spec.spec import parse_spec
from tests.support.selection import night

pytestmark = pytest.mark.usefixtures("by_formula")


def every_plan(problem: Problem, within_s: float) -> list[float]:
    """Step times of all plans that are no slower than that, each solved on its own, ascending."""
    table = Coefficients(problem, enumerate_rows(problem).rows)
    rows = table.rows
    found: dict[tuple[object, ...], float] = {}
    for row in range(len(rows)):
        scale = scale_for(within_s, float(sum(part[0] for part in table.weights(np.array([row])))))
        for mix in mixes(problem, int(rows.stage_devices[row]), int(rows.pp[row])):
            for chips in arrangements(problem, mix):
                plan = plan_data(table, row, chips, scale, within_s)
                if plan.possible:
                    solved = CompiledModel(problem, [plan], scale, 0.0, within_s).solve()
                    if solved.strategy is not None:
                        key, seconds = solved.strategy.key(), evaluate(problem, solved.strategy).step_time_s
                        found[key] = min(seconds, found.get(key, seconds))
    return sorted(found.values())


@pytest.mark.parametrize(
    ("model", "chips"),
    [night("llama2-7b", {"a800": 8, "h800": 8})],
)
def test_the_five_best_are_those_of_all_plans(model: str, chips: object) -> None:
    spec = {
        "model": model,
        "cluster": {"num_gpus": 16, "chips": chips},
        "training": {"global_batch_size": 64, "sequence_length": 4096},
        "search": {
            "top": 5,
            "diverse": False,
            "pin": {"cp": 1, "mbs": [1, 2], "sharded": "optimizer", "flash_attention": True},
        },
    }
    problem = resolve(parse_spec(spec))
    found = [plan.evaluation.step_time_s for plan in search(problem).plans]
    assert len(found) == 5
    assert every_plan(problem, 1.01 * found[-1])[:5] == pytest.approx(found, rel=1e-6)
