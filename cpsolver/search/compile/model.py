"""Compile plans into a CP-SAT model, solve it, and read the best plan back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from threading import Thread
from typing import Any, Literal

import numpy as np
from ortools.sat.python import cp_model

from cpsolver.cost.modules import Modules
from cpsolver.cost.shard import Ints
from cpsolver.plans.dimensions import DIMENSIONS, ROW
from cpsolver.plans.strategy import RecomputeKind, StageGroup, Strategy, chip_blocks
from cpsolver.problem.problem import Problem
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.compile.constraints import FAMILIES, step_time
from cpsolver.search.compile.data import PlanData, Scale, plan_data, scale_for
from cpsolver.search.compile.exact import Split
from cpsolver.search.compile.options import Option
from cpsolver.search.compile.variables import Variables, make_variables
from cpsolver.search.compile.warm_start import may_run_within, warm_start

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
_GUESSES = (1.5, 12.0, 100.0, 1000.0)
"""Step times tried, relative to a plan's bound. The last is beyond any: the model on one stage, all recomputed."""
_STATUS: dict[int, Status] = {
    int(cp_model.OPTIMAL): "optimal",
    int(cp_model.FEASIBLE): "feasible",
    int(cp_model.INFEASIBLE): "infeasible",
    int(cp_model.UNKNOWN): "unknown",
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
        self.variables: Variables = make_variables(self.model, problem, plans)
        for family in FAMILIES.values():
            family(self.model, problem, plans, self.variables)
        objective, self._factor = step_time(self.model, plans, self.variables, ceil((upper_s + error) / scale.unit_s))
        steps = self._factor / scale.unit_s
        self._most = ceil((upper_s + error) * steps)
        self._feasible = False
        self._settled = False  # the hint is known to be an optimum
        self.model.add(objective <= self._most)
        self.model.add(objective >= floor((lower_s - error) * steps))
        self.model.minimize(objective)
        self._objective = objective

    def narrow(self, known: Split) -> None:
        """Tell the solver of a single plan what is known without it: redundant, but it finds and proves faster."""
        plan, objective, v = self._plans[0], self._objective, self.variables
        deciding = plan.deciding(self._problem.recompute_by_stage)
        self.model.add(v.slowest >= known.slowest)
        self.model.add(objective >= known.lower)
        search = self._problem.spec.search
        free = search.layer_split == "auto" and search.pin.layers is None and search.forbid.layers is None
        if free and plan.split == "any" and known.chunk[-1] >= plan.slots[1]:  # `known` does not look at that
            self._feasible = known.objective <= self._most
            self._settled = self._feasible and known.lower >= known.objective
            self.model.add(objective <= max(known.objective, known.lower))
            for p in range(plan.pp):
                self.model.add_hint(v.chunk[p], int(known.chunk[p]))
                if p in deciding:
                    self.model.add_hint(v.stages[0][p].option, int(known.option[p]))

    def solve(self, time_limit_s: float | None = None, presolve: bool = True) -> Solved:
        """Solve to proven optimality, or as far as the time allows. One worker and a fixed seed: repeatable.

        An answer that contradicts a plan known beforehand is not believed: it is asked again without presolve.
        """
        invalid = self.model.validate()
        assert not invalid, invalid
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = parameters.random_seed = 1
        parameters.cp_model_presolve = presolve
        parameters.fix_variables_to_their_hinted_value = self._settled and presolve
        parameters.catch_sigint_signal = False  # Ctrl-C is Python's: see _run
        if time_limit_s is not None:
            parameters.max_time_in_seconds = max(0.01, time_limit_s)
        status = _STATUS[_run(solver, self.model)]
        if status == "infeasible" and self._feasible:
            assert presolve, "CP-SAT finds no plan where one is known"
            return self.solve(time_limit_s, presolve=False)
        seconds = self._scale.unit_s / self._factor
        bound = float("inf") if status == "infeasible" else solver.best_objective_bound * seconds
        if status in ("infeasible", "unknown"):
            return Solved(status, None, float("inf"), bound)
        return Solved(status, self._read(solver), solver.objective_value * seconds, bound)

    def _read(self, solver: cp_model.CpSolver) -> Strategy:
        v = self.variables
        which = solver.value(v.which)
        plan, groups, start = self._plans[which], list[StageGroup](), 0
        for chip, count in chip_blocks(tuple(self._problem.chip_names[chip] for chip in plan.chips)):
            places = range(start, start + count)
            options = plan.by_chip[plan.chips[start]].options
            chosen = [options[solver.value(v.stages[which][p].option)] for p in places]
            layers = [solver.value(v.layers[p]) for p in places]
            mesh = plan.meshes.get(plan.chips[start])
            groups += (replace(group, mesh=mesh) for group in _groups(chip, layers, chosen))
            start += count
        return strategy_of(dict(zip(ROW, plan.degrees, strict=True)), tuple(groups)).canonical()


def strategy_of(degrees: dict[str, int], groups: tuple[StageGroup, ...]) -> Strategy:
    """A strategy from the columns of a row, by their codes, and its stages."""
    values: dict[str, Any] = {name: DIMENSIONS[name].decoded(code) for name, code in degrees.items()}
    return Strategy(**values, groups=groups)


def _run(solver: cp_model.CpSolver, model: cp_model.CpModel) -> int:
    """Solve in a thread, so that Ctrl-C reaches Python at once; it stops the solver and is raised again."""
    status: list[Any] = []
    thread = Thread(target=lambda: status.append(solver.solve(model)))
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        solver.stop_search()
        thread.join()
        raise
    return int(status[0])


def _groups(chip: str, layers: list[int], chosen: list[Option]) -> list[StageGroup]:
    """One group for the run of stages, or several where their kinds of recomputation differ."""
    groups: list[StageGroup] = []
    start = 0
    recomputation: list[tuple[RecomputeKind, Modules]] = [
        (option.kind if option.amount or option.kind == "selective" else "none", option.modules) for option in chosen
    ]
    for index in range(1, len(layers) + 1):
        if index == len(layers) or recomputation[index] != recomputation[start]:
            amounts = tuple(option.amount for option in chosen[start:index])
            kind, modules = recomputation[start]
            groups.append(StageGroup(chip, tuple(layers[start:index]), kind, amounts, modules))
            start = index
    return groups


def solve_plan(
    table: Coefficients,
    row: int | Ints,
    chips: Ints,
    bound_s: float,
    limit_s: float,
    time_limit_s: float | None,
    by_events_s: float = float("inf"),
) -> Solved | None:
    """The best split and recomputation of one plan with a step time of at most `limit_s`; `row` as in `plan_data`.

    None: there is none, and it took no solver to see it. `bound_s` is a lower bound that is known already. While no
    limit is known, guesses of one grow: a small one keeps the model small. Nor is there a plan where none ends within
    `by_events_s` when its schedule is run event by event.
    """
    problem = table.problem
    weight = float(sum(part[0] for part in table.weights(np.ravel(row)[:1])))
    solved, vpp = None, int(table.rows.vpp[np.ravel(row)[0]])
    for guess in _GUESSES:
        upper = min(limit_s, bound_s * guess)
        scale = scale_for(upper, weight)
        plan = plan_data(table, row, chips, scale, upper)
        # Of split backward passes there is the formula alone, by which such a plan is too slow.
        if by_events_s < upper and (
            plan.splits_backward or not may_run_within(plan, (by_events_s + plan.error_s) * vpp / scale.unit_s)
        ):
            return None
        known = warm_start(plan, problem.recompute_by_stage) if plan.possible else None
        if known is not None and known.lower * scale.unit_s / plan.vpp - plan.error_s <= upper:
            model = CompiledModel(problem, [plan], scale, bound_s, upper)
            model.narrow(known)
            solved = model.solve(time_limit_s)
        if upper == limit_s or (solved is not None and solved.status != "infeasible"):
            break
    return solved
