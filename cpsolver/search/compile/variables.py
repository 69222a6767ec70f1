"""The model's decision variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from cpsolver.plans.dimensions import ROW
from cpsolver.problem.problem import Problem
from cpsolver.search.compile.data import PlanData

NO_CHIP = -1
"""Value of a position's chip behind the last stage."""


@dataclass(frozen=True)
class Variables:
    """All decisions. Lists over p run over pipeline positions, up to the longest pipeline of the plans.

    `which` plan is taken and `pick[i]`, its literals; degrees and flags by name; `chip[p]`, index of the chip type;
    `chunk[p]`, layers in each chunk; `layers[p]` = vpp * chunk; `slowest`, `stage_time[p]` and `after` in integer
    steps of time. For plan i: `option[i]`, the index of the recomputation option by chip type (or by position when
    every stage has its own); `repeats[i][p]`, recomputed layers in each chunk; `again[i][p]`, steps that the modules
    run again take in all its layers; `extra[i][p]`, steps that the option adds. With layers of several kinds:
    `start[p]`, where in each chunk's layers stage p begins (one entry more than stages); `odd[i][p]`, its layers of
    another than the common kind; `unlike[i][p]`, steps that its layers take more than mean ones.
    """

    which: cp_model.IntVar
    pick: list[cp_model.IntVar]
    degrees: dict[str, cp_model.IntVar]
    chip: list[cp_model.IntVar]
    chunk: list[cp_model.IntVar]
    layers: list[cp_model.IntVar]
    repeats: list[list[cp_model.IntVar]]
    again: list[list[cp_model.IntVar]]
    option: list[dict[int, cp_model.IntVar]]
    extra: list[list[cp_model.IntVar]]
    start: list[cp_model.IntVar]
    odd: list[list[cp_model.IntVar]]
    unlike: list[list[cp_model.IntVar]]
    slowest: cp_model.IntVar
    stage_time: list[cp_model.IntVar]
    after: cp_model.IntVar


def make_variables(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData]) -> Variables:
    """Declare them."""
    positions = range(max(plan.pp for plan in plans))
    longest = max(plan.longest for plan in plans)
    total = problem.model.layers
    by_stage = problem.recompute_by_stage
    most = max(plan.longest_stage for plan in plans)
    degrees = {}
    for index, name in enumerate(ROW):
        values = [plan.degrees[index] for plan in plans]
        degrees[name] = model.new_int_var(min(values), max(values), name)
    option = []
    for i, plan in enumerate(plans):
        keys = [(p, plan.chips[p]) for p in range(plan.pp)] if by_stage else [(c, c) for c in plan.options]
        option.append(
            {key: model.new_int_var(0, len(plan.options[chip]) - 1, f"option_{i}_{key}") for key, chip in keys}
        )
    return Variables(
        which=model.new_int_var(0, len(plans) - 1, "which"),
        pick=[model.new_bool_var(f"pick_{i}") for i in range(len(plans))],
        degrees=degrees,
        chip=[model.new_int_var(NO_CHIP, len(problem.supplies) - 1, f"chip_{p}") for p in positions],
        chunk=[model.new_int_var(0, longest, f"chunk_{p}") for p in positions],
        layers=[model.new_int_var(0, total, f"layers_{p}") for p in positions],
        repeats=_by_plan(model, plans, longest, "repeats"),
        again=[_some(model, plan, 0, plan.most_again * longest, f"again_{i}") for i, plan in enumerate(plans)],
        option=option,
        extra=[_some(model, plan, 0, _most_extra(plan), f"extra_{i}") for i, plan in enumerate(plans)],
        start=[model.new_int_var(0, total + 2, f"start_{p}") for p in (*positions, len(positions))],
        odd=[_some(model, plan, 0, _most_odd(plan), f"odd_{i}") for i, plan in enumerate(plans)],
        unlike=[_some(model, plan, -_unlike(plan), _unlike(plan), f"unlike_{i}") for i, plan in enumerate(plans)],
        slowest=model.new_int_var(0, most, "slowest"),
        stage_time=[model.new_int_var(0, most, f"stage_time_{p}") for p in positions],
        after=model.new_int_var(0, max(plan.longest_after for plan in plans), "after"),
    )


def _by_plan(
    model: cp_model.CpModel, plans: Sequence[PlanData], longest: int, name: str
) -> list[list[cp_model.IntVar]]:
    return [[model.new_int_var(0, longest, f"{name}_{i}_{p}") for p in range(plan.pp)] for i, plan in enumerate(plans)]


def _some(model: cp_model.CpModel, plan: PlanData, least: int, most: int, name: str) -> list[cp_model.IntVar]:
    return [model.new_int_var(least, most, f"{name}_{p}") for p in range(plan.pp)]


def _most_extra(plan: PlanData) -> int:
    return max(int(extra.max(initial=0)) for extra in plan.extra.values())


def _most_odd(plan: PlanData) -> int:
    return 0 if plan.kinds is None else int(plan.kinds.odd.max())


def _unlike(plan: PlanData) -> int:
    return 0 if plan.kinds is None else plan.kinds.largest
