"""Specs of everyday sizes: what is recommended is fast, fits, lies where runs were measured or says what is not."""

from __future__ import annotations

from typing import Any

import pytest

import cpsolver
from cpsolver.evidence.chances import out_of_memory_probability
from cpsolver.evidence.intervals import kind_of
from cpsolver.evidence.nearest import published_runs, unmeasured
from cpsolver.plans.dimensions import CUTS, family
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import violations
from tests.support.selection import first

MOST_SLOWER, MOST_RISK, LEAST_FAMILIES = 1.03, 0.05, 3
SPECS: dict[str, tuple[str, dict[str, int], int, int, dict[str, Any]]] = {
    "llama3.1-8b on 8 h100": ("llama3.1-8b", {"h100": 8}, 128, 8192, {}),
    "llama2-13b on 64 a100": ("llama2-13b", {"a100": 64}, 512, 4096, {}),
    "llama2-70b on 256 a800": ("llama2-70b", {"a800": 256}, 1024, 4096, {}),
    "llama2-7b on 32 910b": ("llama2-7b", {"910b": 32}, 256, 4096, {"launcher": "mindspeed-llm"}),
    "mixtral-8x7b on 64 h100": ("mixtral-8x7b", {"h100": 64}, 256, 4096, {}),
    "llama3.1-70b on 64 h100": ("llama3.1-70b", {"h100": 64}, 256, 8192, {}),
    "llama3.1-70b on 512 h100": ("llama3.1-70b", {"h100": 512}, 1024, 8192, {}),
    "llama3.1-405b on 1024 h100": ("llama3.1-405b", {"h100": 1024}, 1024, 8192, {}),
    "qwen3-30b-a3b on 32 h100": ("qwen3-30b-a3b", {"h100": 32}, 512, 4096, {}),
    "deepseek-v3 on 512 b200": ("deepseek-v3", {"b200": 512}, 4096, 4096, {}),
    "llama2-70b on a800 and h800": ("llama2-70b", {"a800": 128, "h800": 128}, 1024, 4096, {}),
    "qwen2.5-72b on 256 910b": ("qwen2.5-72b", {"910b": 256}, 1024, 4096, {"launcher": "mindspeed-llm"}),
}


def everyday(name: str) -> Problem:
    model, chips, batch, sequence, more = SPECS[name]
    spec = {
        "model": model,
        "cluster": {"num_gpus": sum(chips.values()), "chips": chips},
        "training": {
            "global_batch_size": batch,
            "sequence_length": sequence,
            "precision": "fp8" if "b200" in chips else "bf16",
        },
        "search": {"top": 5},
    }
    return cpsolver.make_problem({**spec, **more})


def measured_alike(problem: Problem, strategy: Strategy) -> bool:
    """Runs were measured of this kind of model on each of these chips with this stack, and of degrees as large."""
    experts = kind_of(problem) == "experts"
    alike = [run for run in published_runs() if run.experts == experts]
    chips = {problem.supply(name).chip.architecture for name in strategy.stage_chips}
    here = [run for run in alike if run.stack == problem.stack.name]
    return chips <= {run.architecture for run in here} and all(
        getattr(strategy, name) <= max(getattr(run, name) for run in alike) for name in CUTS
    )


@pytest.mark.parametrize("name", first(2, SPECS))
def test_the_recommended_plan_is_fast_and_fits_and_says_what_no_run_has_had(name: str) -> None:
    problem = everyday(name)
    found = cpsolver.solve(problem)
    assert found.recommendation is not None
    assert found.recommendation.run_this is not None
    best = found.plans[found.recommendation.run_this]
    assert not violations(problem, best.strategy)
    assert best.evaluation.step_time_s <= MOST_SLOWER * found.plans[0].evaluation.step_time_s
    assert out_of_memory_probability(problem, best.strategy, best.evaluation) < MOST_RISK
    assert unmeasured(problem, best.strategy) or measured_alike(problem, best.strategy)
    assert len({family(plan.strategy) for plan in found.plans[:5]}) >= LEAST_FAMILIES
    assert found.status == "optimal"
