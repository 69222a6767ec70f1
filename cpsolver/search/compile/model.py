"""Compile plans into a CP-SAT model, solve it, and read the best plan back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, floor
from threading import Event, Thread
from typing import Any, Literal

import numpy as np
from ortools.sat.python import cp_model

from cpsolver.cost.modules import Modules
from cpsolver.cost.shard import Ints
from cpsolver.plans.dimensions import DIMENSIONS, ROW
from cpsolver.plans.folding import unfolded
from cpsolver.plans.strategy import RecomputeKind, StageGroup, Strategy, chip_blocks
from cpsolver.problem.problem import Problem
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.compile.constraints import FAMILIES, step_time
from cpsolver.search.compile.data import PlanData, Scale, plan_data, scale_for
from cpsolver.search.compile.exact import Split, Splitter
from cpsolver.search.compile.given import allowed_splits
from cpsolver.search.compile.options import Option
from cpsolver.search.compile.variables import Variables, make_variables
from cpsolver.search.compile.warm_start import may_run_within, warm_start

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
_GUESSES = (1.5, 12.0, 100.0, 1000.0)
"""Step times tried, relative to a plan's bound. The last is beyond any: the model on one stage, all recomputed."""
_LEAST_S = 0.2
"""However late it is, so long a solver may take: enough to see that the split which it is given is a plan."""
_LOOK_S = 0.01
"""How often a solver is told to stop."""
_STATUS: dict[int, Status] = {
    int(cp_model.OPTIMAL): "optimal",
    int(cp_model.FEASIBLE): "feasible",
    int(cp_model.INFEASIBLE): "infeasible",
    int(cp_model.UNKNOWN): "unknown",
}


@dataclass(frozen=True)
class Solved:
    """What is known of some plans: the best strategy, its step time and a lower bound, both in seconds; and the
    strategy's plan by its place, its layers in each chunk and options, by stage. `asked`: CP-SAT was; `ask` asks it,
    within so many seconds, about a split that was seen to be the best without it."""

    status: Status
    strategy: Strategy | None
    step_time_s: float
    bound_s: float
    split: tuple[int, Ints, Ints] | None = None
    asked: bool = False
    ask: Callable[[float | None], Solved] | None = None


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
        if _is_plan(self._problem, plan, known):
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
        solver = self._solver(presolve)
        if time_limit_s is not None:
            solver.parameters.max_time_in_seconds = max(_LEAST_S, time_limit_s)
        status = _STATUS[_run(solver, self.model)]
        if status == "infeasible" and self._feasible:
            assert presolve, "CP-SAT finds no plan where one is known"
            return self.solve(time_limit_s, presolve=False)
        seconds = self._scale.unit_s / self._factor
        bound = float("inf") if status == "infeasible" else solver.best_objective_bound * seconds
        if status in ("infeasible", "unknown"):
            return Solved(status, None, float("inf"), bound, asked=True)
        split = which, chunk, option = self._read(solver)
        strategy = _strategy(self._problem, self._plans[which], chunk, option)
        return Solved(status, strategy, solver.objective_value * seconds, bound, split, asked=True)

    def _solver(self, presolve: bool) -> cp_model.CpSolver:
        """One worker and a fixed seed."""
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        parameters.num_workers = parameters.random_seed = 1
        parameters.cp_model_presolve = presolve
        parameters.fix_variables_to_their_hinted_value = self._settled and presolve
        parameters.catch_sigint_signal = False  # Ctrl-C is Python's: see _run
        if any(plan.form is not None for plan in self._plans):
            parameters.cut_level = 0  # of the longest of many sums it looks for too many cuts
            if len(self._plans) > 1:
                parameters.linearization_level = 2  # else it bounds none of several plans' sums
        return solver

    def _read(self, solver: cp_model.CpSolver) -> tuple[int, Ints, Ints]:
        """Which plan is the best, and its stages' layers in each chunk and options."""
        v = self.variables
        which = solver.value(v.which)
        pp, stages = self._plans[which].pp, v.stages[which]
        chunk = [solver.value(v.chunk[p]) for p in range(pp)]
        return which, np.array(chunk), np.array([solver.value(stages[p].option) for p in range(pp)])


def _is_plan(problem: Problem, plan: PlanData, known: Split) -> bool:
    """Whether a split is a plan: nothing is asked of the layers that it does not look at."""
    given = allowed_splits(problem, plan)
    if given is not None:
        return bool((given == known.chunk).all(axis=1).any())
    search = problem.spec.search
    free = search.layer_split == "auto" and search.pin.layers is None and search.forbid.layers is None
    return free and plan.split == "any" and int(known.chunk[plan.head_stage]) >= plan.least(plan.head_stage)


@dataclass(frozen=True)
class _OnePlan:
    """A plan of which the best split is asked for, with a step time from `lower_s` to `upper_s`."""

    problem: Problem
    plan: PlanData
    scale: Scale
    lower_s: float
    upper_s: float

    def of_split(self, known: Split) -> Solved:
        """A split as a plan, without a solver."""
        strategy = _strategy(self.problem, self.plan, known.chunk, known.option)
        seconds = known.objective * self.scale.unit_s / self.plan.multiple
        return Solved("feasible", strategy, seconds, self.lower_s)

    def settled(self, known: Split) -> Solved:
        """The same of a split that is known to be the plan's best."""
        if known.objective > ceil((self.upper_s + self.plan.error_s) * self.plan.multiple / self.scale.unit_s):
            return Solved("infeasible", None, float("inf"), float("inf"))
        found = self.of_split(known)
        return replace(found, status="optimal", bound_s=found.step_time_s, ask=partial(self.asked, known))

    def asked(self, known: Split, left_s: float | None) -> Solved:
        """What CP-SAT says of the plan."""
        model = CompiledModel(self.problem, [self.plan], self.scale, self.lower_s, self.upper_s)
        model.narrow(known)
        return model.solve(left_s)

    def solved(self, known: Split, left_s: float | None) -> Solved:
        """The best split: the one that is known, where that is seen to be the best; what CP-SAT says; or where there is
        no time for that the known one, if it is a plan. Of another split that CP-SAT finds chains of passes are looked
        for that hold it up."""
        began, is_plan, solved = time.monotonic(), _is_plan(self.problem, self.plan, known), None
        if is_plan and known.lower >= known.objective:
            return self.settled(known)
        if not is_plan or left_s is None or left_s > 0:
            solved = self.asked(known, left_s)
        if solved is None or (is_plan and solved.status == "unknown"):
            return replace(self.of_split(known), asked=solved is not None)
        if self.plan.form is None or solved.split is None:
            return solved
        further = with_chain(self.plan, *solved.split[1:])
        if further is None:
            return solved
        left = None if left_s is None else left_s - (time.monotonic() - began)
        if left is not None and left <= 0:
            return replace(solved, status="feasible")
        return replace(self, plan=further).solved(known, left)


def _strategy(problem: Problem, plan: PlanData, chunk: Ints, option: Ints) -> Strategy:
    """A plan with layers in each chunk and the index of an option for every stage."""
    layers = (plan.vpp * chunk - np.array([plan.slot(position) for position in range(plan.pp)])).tolist()
    groups, start = list[StageGroup](), 0
    for chip, count in chip_blocks(tuple(problem.chip_names[chip] for chip in plan.chips)):
        end, options = start + count, plan.by_chip[plan.chips[start]].options
        mesh = plan.meshes.get(plan.chips[start])
        chosen = [options[index] for index in option[start:end]]
        groups += (replace(group, mesh=mesh) for group in _groups(chip, layers[start:end], chosen))
        start = end
    found = strategy_of(dict(zip(ROW, plan.degrees, strict=True)), tuple(groups)).canonical()
    return unfolded(found, plan.slots[1]) if plan.both_ways else found


def strategy_of(degrees: dict[str, int], groups: tuple[StageGroup, ...]) -> Strategy:
    """A strategy from the columns of a row, by their codes, and its stages."""
    values: dict[str, Any] = {name: DIMENSIONS[name].decoded(code) for name, code in degrees.items()}
    return Strategy(**values, groups=groups)


def _run(solver: cp_model.CpSolver, model: cp_model.CpModel) -> int:
    """Solve in a thread, so that Ctrl-C reaches Python at once; it stops the solver and is raised again."""
    status, ended = list[Any](), Event()

    def solve() -> None:
        try:
            status.append(solver.solve(model))
        finally:
            ended.set()

    thread = Thread(target=solve)
    try:
        thread.start()
        ended.wait()
    except KeyboardInterrupt:
        while thread.is_alive() and not ended.wait(_LOOK_S):
            solver.stop_search()  # until it has ended: before it has begun it hears nothing
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


def _may_run_within(plan: PlanData, by_events_s: float, scale: Scale) -> bool:
    """Whether a plan might end within that when its schedule is run event by event."""
    if plan.form is not None:  # no event takes less than the formula, by which such a plan is too slow
        return False
    return may_run_within(plan, (by_events_s + plan.error_s) * plan.vpp / scale.unit_s)


def first_split(
    table: Coefficients, plan: PlanData, late: Callable[[], bool], most: int
) -> tuple[PlanData, Split | None]:
    """A plan with all chains of passes that hold its first split up, and that split: see `warm_start`.

    Chains that its form lacks are looked for by running the schedule. No split is faster by events than by some of its
    chains; so one that has all of its own, and is the best by those that are known, is the best by events.
    """
    by_stage, given = table.problem.recompute_by_stage, allowed_splits(table.problem, plan)
    known = warm_start(plan, by_stage, late, most, given=given) if plan.possible else None
    while known is not None and known.parts is not None and known.lower <= most and not late():
        further = _with_chain(plan, known.parts)
        if further is None:
            break
        assert plan.form is not None
        assert further.form is not None
        longer = further.form.steps(known.parts) - plan.form.steps(known.parts)
        plan, known = further, replace(known, objective=known.objective + longer)
        known = warm_start(plan, by_stage, late, most, known, given)
    return plan, known


def with_chain(plan: PlanData, chunk: Ints, option: Ints) -> PlanData | None:
    """The plan with the chain of passes more that holds a split of it up; None where it has that."""
    return None if plan.form is None else _with_chain(plan, Splitter(plan).parts(chunk, option))


def _with_chain(plan: PlanData, parts: Ints) -> PlanData | None:
    """The same of stages with these PASS_PARTS."""
    if plan.form is None:
        return None
    form = plan.form.completed(parts.astype(np.float64))
    return None if form is None else replace(plan, form=form)


def solve_plan(
    table: Coefficients,
    row: int | Ints,
    chips: Ints,
    bound_s: float,
    limit_s: float,
    time_limit_s: float | None,
    by_events_s: float = float("inf"),
    by_formula_s: float = 0.0,
) -> Solved | None:
    """The best split and recomputation of one plan with a step time of at most `limit_s`; `row` as in `plan_data`.

    None: there is none, and it took no solver to see it. `bound_s` is a lower bound that is known already. While no
    limit is known, guesses of one grow: a small one keeps the model small. Where none ends within `by_events_s` when
    its schedule is run event by event, `by_formula_s` is the limit if that is lower.
    """
    began = time.monotonic()

    def late() -> bool:
        return time_limit_s is not None and time.monotonic() - began > time_limit_s

    weight = float(sum(part[0] for part in table.weights(np.ravel(row)[:1])))
    unknown = Solved("unknown", None, float("inf"), bound_s)
    solved = None
    for guess in _GUESSES:
        if guess > _GUESSES[0] and time_limit_s and late():
            return unknown
        upper = min(limit_s, bound_s * guess)
        scale = scale_for(upper, weight)
        plan = plan_data(table, row, chips, scale, upper)
        if max(by_events_s, by_formula_s) < upper and not _may_run_within(plan, by_events_s, scale):
            if by_formula_s <= bound_s:
                return None
            if time_limit_s and late():
                return unknown
            left = time_limit_s and time_limit_s - (time.monotonic() - began)
            return solve_plan(table, row, chips, bound_s, min(limit_s, by_formula_s), left)
        most = ceil((upper + plan.error_s) * plan.multiple / scale.unit_s)
        plan, known = first_split(table, plan, late, most)
        if known is not None and known.lower * scale.unit_s / plan.multiple - plan.error_s <= upper:
            left = None if time_limit_s is None else time_limit_s - (time.monotonic() - began)
            solved = _OnePlan(table.problem, plan, scale, bound_s, upper).solved(known, left)
        if upper == limit_s or (solved is not None and solved.status != "infeasible"):
            break
    return solved
