"""Specs of everyday sizes: what is recommended is fast, fits, lies where runs were measured or says what is not."""

from __future__ import annotations

import pytest

import cpsolver
from benchmarks.everyday import SPECS, everyday
from cpsolver.evidence.chances import out_of_memory_probability
from cpsolver.evidence.intervals import kind_of
from cpsolver.evidence.nearest import published_runs, unmeasured
from cpsolver.plans.dimensions import CUTS, family
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import violations
from tests.support.selection import first

MOST_SLOWER, MOST_FOR_SAFETY, MOST_RISK, LEAST_FAMILIES = 1.03, 1.05, 0.05, 3


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
    risks = [out_of_memory_probability(problem, plan.strategy, plan.evaluation) for plan in found.plans]
    safe = [plan for plan, risk in zip(found.plans, risks, strict=True) if risk < MOST_RISK]
    assert best in safe
    assert best.evaluation.step_time_s <= MOST_SLOWER * min(plan.evaluation.step_time_s for plan in safe)
    assert best.evaluation.step_time_s <= MOST_FOR_SAFETY * found.plans[0].evaluation.step_time_s
    assert unmeasured(problem, best.strategy) or measured_alike(problem, best.strategy)
    assert len({family(plan.strategy) for plan in found.plans[:5]}) >= LEAST_FAMILIES
    assert found.status == "optimal"
