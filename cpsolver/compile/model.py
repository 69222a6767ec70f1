"""Compile plans into a CP-SAT model, solve it, and read the best plan back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Literal

from ortools.sat.python import cp_model

from cpsolver.compile.constraints import FAMILIES
from cpsolver.compile.data import PlanData
from cpsolver.compile.objective import step_time
from cpsolver.compile.scaling import Scale
from cpsolver.compile.variables import Variables, make_variables
from cpsolver.plans import chip_blocks
from cpsolver.problem import Problem
from cpsolver.strategy import StageGroup, Strategy

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
_STATUS: dict[int, Status] = {
    cp_model.OPTIMAL: "optimal",
    cp_model.FEASIBLE: "feasible",
    cp_model.INFEASIBLE: "infeasible",
    cp_model.UNKNOWN: "unknown",
}


@dataclass(frozen=True)
class Solved:
    """What the solver says of some plans: the best strategy, its step time and a lower bound, both in seconds."""

    status: Status
    strategy: Strategy | None
    step_time_s: float
    bound_s: float


class CompiledModel:
    """A CP-SAT model over one or more plans with the same time scale."""

    def __init__(
        self, problem: Problem, plans: Sequence[PlanData], scale: Scale, lower_s: float, upper_s: float
    ) -> None:
        self._problem, self._plans, self._scale = problem, plans, scale
        self.model = cp_model.CpModel()
        error = max(plan.error_s for plan in plans)
        most = ceil((upper_s + error) / scale.unit_s)
        self.variables: Variables = make_variables(self.model, problem, plans, most)
        for family in FAMILIES.values():
            family(self.model, problem, plans, self.variables)
        objective, self._factor = step_time(self.model, plans, self.variables)
        steps = self._factor / scale.unit_s
        self.model.add(objective <= ceil((upper_s + error) * steps))
        self.model.add(objective >= floor((lower_s - error) * steps))
        self.model.minimize(objective)

    def solve(self, time_limit_s: float | None = None) -> Solved:
        """Solve to proven optimality, or as far as the time allows. One worker and a fixed seed: repeatable."""
        invalid = self.model.validate()
        assert not invalid, invalid
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 1
        if time_limit_s is not None:
            solver.parameters.max_time_in_seconds = max(0.01, time_limit_s)
        status = _STATUS[solver.solve(self.model)]
        if status == "infeasible":
            return Solved(status, None, float("inf"), float("inf"))
        seconds = self._scale.unit_s / self._factor
        bound = solver.best_objective_bound * seconds
        if status == "unknown":
            return Solved(status, None, float("inf"), bound)
        return Solved(status, self._read(solver), solver.objective_value * seconds, bound)

    def _read(self, solver: cp_model.CpSolver) -> Strategy:
        v = self.variables
        which = solver.value(v.which)
        plan = self._plans[which]
        tp, pp, dp, mbs, vpp = plan.degrees[:5]
        sequence, optimizer, flash = (bool(flag) for flag in plan.degrees[5:])
        names = tuple(self._problem.chip_names[chip] for chip in plan.chips)
        groups, start = [], 0
        for chip, count in chip_blocks(names):
            places = range(start, start + count)
            index = plan.chips[start]
            by_stage = self._problem.spec.search.recompute_scope == "stage"
            chosen = [plan.options[index][solver.value(v.option[which][p if by_stage else index])] for p in places]
            layers = [solver.value(v.layers[p]) for p in places]
            groups += _groups(chip, layers, [(option.kind, option.amount) for option in chosen])
            start += count
        return Strategy(tp, pp, dp, mbs, vpp, sequence, optimizer, flash, tuple(groups))


def _groups(chip: str, layers: list[int], chosen: list[tuple[str, int]]) -> list[StageGroup]:
    """One group for the run of stages, or several where their kinds of recomputation differ."""
    groups: list[StageGroup] = []
    start = 0
    kinds = [kind if kind == "none" or amount or kind == "selective" else "none" for kind, amount in chosen]
    for index in range(1, len(layers) + 1):
        if index == len(layers) or kinds[index] != kinds[start]:
            amounts = tuple(amount for _, amount in chosen[start:index])
            groups.append(StageGroup(chip, tuple(layers[start:index]), kinds[start], amounts))  # type: ignore[arg-type]
            start = index
    return groups
