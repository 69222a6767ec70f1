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
class PositionVars:
    """A pipeline position, whichever plan is taken: its chip type's index, layers in each chunk, layers in all (vpp
    chunks less a slot), and integer steps for a microbatch."""

    chip: cp_model.IntVar
    chunk: cp_model.IntVar
    layers: cp_model.IntVar
    time: cp_model.IntVar


@dataclass(frozen=True)
class StageVars:
    """A plan's stage at a position, the `place`-th on its chip type; free and of no weight where another plan is taken.

    `option`: index of its option to recompute, a variable that a chip type's stages share unless every stage chooses
    for itself. `recomputed`: layers of each chunk; `modules`: steps that recomputed modules take in all its layers;
    `extra`: steps that the option adds once. With layers of several kinds `odd` counts those that are not of the common
    kind, and `beyond_mean` the steps that its layers take beyond as many mean ones.
    """

    position: int
    chip: int
    place: int
    chunk: cp_model.IntVar
    option: cp_model.IntVar
    recomputed: cp_model.IntVar
    modules: cp_model.IntVar
    extra: cp_model.IntVar
    odd: cp_model.IntVar
    beyond_mean: cp_model.IntVar


@dataclass(frozen=True)
class Variables:
    """All decisions.

    `which` plan is taken and `pick[i]`, its literals; degrees and flags by name; positions up to the longest pipeline
    of the plans; `stages[i]`, those of plan i; `start[p]`, where in each chunk's layers position p begins (one entry
    more than positions; used with layers of several kinds), at most at `places`. The `slowest` stage's time and
    `after`, what follows the pipeline, are in integer steps.
    """

    which: cp_model.IntVar
    pick: list[cp_model.IntVar]
    degrees: dict[str, cp_model.IntVar]
    positions: list[PositionVars]
    stages: list[list[StageVars]]
    start: list[cp_model.IntVar]
    slowest: cp_model.IntVar
    after: cp_model.IntVar
    places: int

    @property
    def chunk(self) -> list[cp_model.IntVar]:
        """Layers in each chunk by position."""
        return [position.chunk for position in self.positions]

    @property
    def layers(self) -> list[cp_model.IntVar]:
        """Layers by position."""
        return [position.layers for position in self.positions]


def make_variables(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData]) -> Variables:
    """Declare them, name by name: the order in which the solver knows them is part of what it finds."""
    positions = range(max(plan.pp for plan in plans))
    longest = max(plan.longest for plan in plans)
    most = max(plan.longest_stage for plan in plans)
    degrees = {}
    for index, name in enumerate(ROW):
        values = [plan.degrees[index] for plan in plans]
        degrees[name] = model.new_int_var(min(values), max(values), name)
    option = [_option_vars(model, plan, i, problem.recompute_by_stage) for i, plan in enumerate(plans)]
    which = model.new_int_var(0, len(plans) - 1, "which")
    pick = [model.new_bool_var(f"pick_{i}") for i in range(len(plans))]
    chip = [model.new_int_var(NO_CHIP, len(problem.supplies) - 1, f"chip_{p}") for p in positions]
    chunk = [model.new_int_var(0, longest, f"chunk_{p}") for p in positions]
    layers = [model.new_int_var(0, problem.model.layers, f"layers_{p}") for p in positions]

    def by_stage(name: str, ranges: list[tuple[int, int]]) -> list[list[cp_model.IntVar]]:
        return [
            [model.new_int_var(*ends, f"{name}_{i}_{p}") for p in range(plan.pp)]
            for i, (plan, ends) in enumerate(zip(plans, ranges, strict=True))
        ]

    recomputed = by_stage("recomputed", [(0, longest)] * len(plans))
    modules = by_stage("modules", [(0, plan.largest_layer_steps * longest) for plan in plans])
    extra = by_stage("extra", [(0, plan.largest_steps) for plan in plans])
    places = problem.model.layers + 2
    start = [model.new_int_var(0, places, f"start_{p}") for p in (*positions, len(positions))]
    odd = by_stage("odd", [(0, 0 if plan.odd is None else int(plan.odd.max())) for plan in plans])
    beyond_mean = by_stage("beyond", [(-plan.largest_beyond_mean, plan.largest_beyond_mean) for plan in plans])
    slowest = model.new_int_var(0, most, "slowest")
    time = [model.new_int_var(0, most, f"time_{p}") for p in positions]
    after = model.new_int_var(0, max(plan.longest_after for plan in plans), "after")
    columns = zip(option, recomputed, modules, extra, odd, beyond_mean, strict=True)
    stages = [_stage_vars(plan, chunk, *column) for plan, column in zip(plans, columns, strict=True)]
    by_position = [PositionVars(*parts) for parts in zip(chip, chunk, layers, time, strict=True)]
    return Variables(which, pick, degrees, by_position, stages, start, slowest, after, places)


def _option_vars(model: cp_model.CpModel, plan: PlanData, i: int, by_stage: bool) -> list[cp_model.IntVar]:
    """The option of every stage of a plan."""
    deciding = plan.deciding(by_stage)
    own = {p: model.new_int_var(0, len(plan.by_chip[plan.chips[p]]) - 1, f"option_{i}_{p}") for p in deciding}
    return [own[p if by_stage else plan.by_chip[chip].places[0]] for p, chip in enumerate(plan.chips)]


def _stage_vars(plan: PlanData, chunk: list[cp_model.IntVar], *columns: list[cp_model.IntVar]) -> list[StageVars]:
    """A plan's stages from the variables by position: option, and all that comes after it in StageVars."""
    places = [plan.by_chip[chip].places.index(p) for p, chip in enumerate(plan.chips)]
    stages = zip(range(plan.pp), plan.chips, places, chunk, *columns, strict=False)  # chunks go on beyond the last
    return [StageVars(*parts) for parts in stages]
