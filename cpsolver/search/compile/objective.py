"""The step time, linear once the degrees are known."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from ortools.sat.python import cp_model

from cpsolver.search.compile.data import PlanData
from cpsolver.search.compile.variables import Variables


def step_time(
    model: cp_model.CpModel, plans: Sequence[PlanData], v: Variables, most: int
) -> tuple[cp_model.LinearExprT, int]:
    """The expression to minimise, and by how much it is a multiple of the step time (so that 1/vpp is whole).

    Step time: (m - 1/vpp) * slowest stage + sum of the stages / vpp + what follows the pipeline on the worst stage.
    `most` is the largest step time of interest, in integer steps.
    """
    factor = lcm(*(plan.vpp for plan in plans))
    for i, (plan, pick) in enumerate(zip(plans, v.pick, strict=True)):
        for p in range(len(v.chunk)):
            if p >= plan.pp:
                model.add(v.stage_time[p] == 0).only_enforce_if(pick)
                continue
            seconds = _stage_time(plan, i, p, v)
            model.add(v.stage_time[p] == seconds).only_enforce_if(pick)
            follows = cp_model.LinearExpr.weighted_sum([v.chunk[p]], [int(plan.after_layer[p])])
            model.add(v.after >= follows + int(plan.after_fixed[p])).only_enforce_if(pick)
    for stage in v.stage_time:
        model.add(v.slowest >= stage)
    if len(plans) == 1:
        return _objective(plans[0], v, factor), factor
    total = model.new_int_var(0, factor * most, "objective")
    for plan, pick in zip(plans, v.pick, strict=True):
        model.add(total >= _objective(plan, v, factor)).only_enforce_if(pick)
    return total, factor


def _stage_time(plan: PlanData, i: int, p: int, v: Variables) -> cp_model.LinearExprT:
    variables = [v.chunk[p], v.repeats[i][p], v.again[i][p], v.unlike[i][p], v.extra[i][p]]
    factors = [int(plan.layer[p]), int(plan.repeat[p]), 1, 1, 1]
    return cp_model.LinearExpr.weighted_sum(variables, factors) + int(plan.fixed[p])


def _objective(plan: PlanData, v: Variables, factor: int) -> cp_model.LinearExprT:
    share = factor // plan.vpp
    variables = [v.slowest, *v.stage_time[: plan.pp], v.after]
    factors = [plan.microbatches * factor - share, *[share] * plan.pp, factor]
    return cp_model.LinearExpr.weighted_sum(variables, factors)
