"""Bound, prune with proof, then solve: the K best plans, best bound first.

Frames open into rows (degrees and flags), rows into mixes (how many stages each chip type serves), mixes into plans
(in which order), and plans are solved by CP-SAT. Everything waits in one queue ordered by its lower bound, so the
search is done when the smallest bound is no smaller than the K-th best plan: all that is left is proven not to matter.
Where devices may idle, the numbers of devices are the first to open: branches, each with a bound of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import factorial

import numpy as np

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.inputs.errors import InternalError
from cpsolver.plans.dimensions import DEGREES, family
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import violations
from cpsolver.search.agenda import Agenda, Key, key_of
from cpsolver.search.device_counts import BranchGroups, branch_groups
from cpsolver.search.frontier import INFINITE, MOST_EXCESS, Branch, Limits, Node
from cpsolver.search.meshes.search import MeshPlan, MeshSearch
from cpsolver.search.objective import Objective, objective_of
from cpsolver.search.opening import opened
from cpsolver.search.result import (
    DeviceCounts,
    EventsRun,
    Listener,
    MeshCounts,
    Plan,
    Progress,
    Proof,
    Result,
    Status,
    StopReason,
)

_CLOSE = 1 - 1e-12
"""A bound within this of the limit is no better: bounds and plans of equal length may differ by rounding, and not every
plan that is as good as the K-th must be solved."""
_PROMISING = 0.93
"""A plan whose bound is below this share of the limit is solved before more rows are bounded: a lower limit spares many
of these their good bounds."""

_EAGER = 8
"""Plans that are solved in one go although bounds are open that are smaller than theirs."""
_MIXES = 64
"""Rows and mixes that are opened in one go while fewer than K plans are known."""
_MIXES_WITH_LIMIT = 1024
"""The same once there is a limit."""
_MOST_CLOSE = 64
"""Plans that are run event by event beside the K best by formula, at most."""
_ORDERS = 8192
"""Mixes are opened in no more orders of chip types than that in one go, for plans may lower the limit; in an eighth of
it while there is none."""


@dataclass
class _Found:
    """A solved plan; `score` by formula, `true` with the schedule run event by event."""

    score: float
    true: float
    strategy: Strategy
    evaluation: Evaluation


def _in_order(found: _Found) -> tuple[object, ...]:
    """Of equally fast plans those with equal degrees come first, then by what tells plans apart."""
    return found.score, found.evaluation.formula_s, found.strategy.unequal, found.strategy.key()


def _by_events(found: _Found) -> tuple[object, ...]:
    """The same by the score with the schedule run event by event."""
    return found.true, *_in_order(found)


def search(problem: Problem, listener: Listener | None = None, below: float = INFINITE) -> Result:
    """The K best legal plans of a problem, proven, or the best so far when time runs out or on Ctrl-C.

    With `search.diverse` they are of K layout families, each the best of its own. Plans whose score is not `below`
    that are no answer.

    Bounds and CP-SAT know a step's closed form, which charges pipelines over several chip types too much. So these are
    evaluated event by event, and so is every plan that may be faster that way than the best one: that order is the
    answer's (`Proof.by_events`).
    """
    return _Search(problem, listener, below).run()


class _Search:
    def __init__(self, problem: Problem, listener: Listener | None, below: float) -> None:
        self._problem, self._listener, self._below = problem, listener, below
        self._top, self._diverse = problem.spec.search.top, problem.spec.search.diverse
        self._started = time.monotonic()
        self._agenda = Agenda()
        self._eager = _EAGER
        self._patient = True  # plans may wait apart
        self._scores: dict[Key, float] = {}  # of plans solved, by what tells them apart
        self._found: list[_Found] = []
        self._close: dict[Key, _Found] = {}  # all that were solved, by what tells them apart
        self._closest = INFINITE  # bound on what was not run event by event although it might be better that way
        self._families: dict[tuple[object, ...], float] = {}  # of plans found, where they are to be of different ones
        self._orders = min(_ORDERS // 64, factorial(len(problem.supplies)))
        self._arrangements = 0
        self._solver_calls = 0
        self._solver_seconds = 0.0
        self._unsettled: list[float] = []
        self._objective = objective_of(problem)
        self._groups = BranchGroups([], 0)
        self._meshes: MeshSearch | None = None
        self._mesh_solves = 0
        self._opened: list[Branch] = []
        self._closed: list[Branch] = []  # of the present group, the best last

    def run(self) -> Result:
        stop: StopReason = "complete"
        try:
            if self._problem.degrees_by_chip:
                self._meshes = MeshSearch(self._problem, self._limits)
            self._groups = branch_groups(self._problem, self._objective)
            for group in self._groups.groups:
                self._closed = group[::-1]
                if not self._settle():
                    stop = "time_limit"
                if self._found or stop != "complete":
                    break
            if self._meshes is not None and stop == "complete" and not self._settle_meshes(self._meshes):
                stop = "time_limit"
        except KeyboardInterrupt:
            stop = "interrupted"
        if self._unsettled and stop == "complete":
            stop = "time_limit"  # nothing else ends a solver early without an exception
        return self._result(stop)

    def _settle(self) -> bool:
        """Work until nothing of the present group is open that could matter; False: no time is left."""
        while self._lowest() < self._limits().loosest * _CLOSE:
            if self._late() and self._opened:
                self._enough_close()
                return self._lowest() >= self._limit() * _CLOSE
            self._step()
            if len(self._close) > _MOST_CLOSE + self._top:
                self._enough_close()
        return True

    def _enough_close(self) -> None:
        """Run no more plans event by event than those that are among the K best by formula."""
        self._closest = min(self._closest, self._lowest())

    def _settle_meshes(self, meshes: MeshSearch) -> bool:
        """The same for plans whose chip types have degrees of their own, once those with equal degrees are a limit."""
        while meshes.lowest < self._limit() * _CLOSE:
            if self._late():
                return False
            found = meshes.step()
            if found is not None:
                self._solve_meshes(meshes, *found)
                meshes.drop_plan()
            self._tell(f"degrees by chip type: {meshes.waiting} parts")
        return True

    # What is waiting

    def _limit(self) -> float:
        """Score of the K-th best plan so far: what a better one has to beat."""
        return self._found[self._top - 1].score if len(self._found) >= self._top else self._below

    def _limits(self) -> Limits:
        """The same, and with families what a plan of one that has a plan already has to beat."""
        return Limits(self._limit(), self._families, len(self._found) >= self._top, self._best())

    def _best(self) -> float:
        """The best score by events, of what is looked for: plans that may be better are solved too; 0: of no others."""
        if not self._problem.mixed or self._closest < INFINITE:
            return 0.0
        return min((plan.true for plan in self._close.values()), default=self._below)

    def _limit_of(self, node: Node) -> float:
        limit = self._limits().of_row(node.block.table.rows, node.row)
        return min(limit, self._scores.get(key_of(node), INFINITE)) if node.chips else limit

    def _by_events_alone(self, node: Node) -> float:
        """What a plan has to beat event by event that is too slow by formula; infinite for others."""
        limits = self._limits()
        wanted = node.bound < replace(limits, best=0.0).of_row(node.block.table.rows, node.row)
        return INFINITE if wanted else limits.best

    def _set_apart(self, node: Node) -> bool:
        """Let a node wait where nothing would tell its plan from one of those found: it would be none the more."""
        limits = replace(self._limits(), limit=INFINITE)
        known = limits.of_row(node.block.table.rows, node.row) < INFINITE
        if known or (node.chips and key_of(node) in self._scores):
            self._agenda.set_apart(node)
            return True
        return False

    def _inside(self) -> float:
        """The smallest bound in the branches that are open."""
        if any(branch.unbounded for branch in self._opened):
            return 0.0
        return min(self._rows(), self._agenda.lowest)

    def _lowest(self) -> float:
        return min(self._inside(), self._closed[-1].bound if self._closed else INFINITE)

    def _late(self) -> bool:
        limit = self._problem.spec.search.time_limit_s
        return limit is not None and time.monotonic() - self._started > limit

    def _tell(self, message: str) -> None:
        if self._listener is not None:
            best = self._found[0].score if self._found else INFINITE
            waiting = len(self._agenda) + sum(branch.unopened_rows(INFINITE) for branch in self._opened)
            counts = len(self._found), waiting, self._solver_calls
            self._listener(Progress(self._lowest(), best, *counts, message, self._objective.unit))

    # One step of the search

    def _step(self) -> None:
        limit, agenda = self._limit(), self._agenda
        undecided, rows = len(self._found) < self._top, self._rows()
        if not undecided:
            agenda.bring_back()
        busy = min(rows, agenda.mix, agenda.plan)
        if agenda.plan < (INFINITE if undecided else _PROMISING * limit) and self._eager:
            self._eager -= 1
            self._solve_next()  # any K plans are a limit, which spares many a costly bound
            return
        self._eager = _EAGER
        unbounded = next((branch for branch in self._opened if branch.unbounded), None)
        if unbounded is not None and (self._found or busy == INFINITE):
            unbounded.bound_others()  # a first plan needs none of them
        elif undecided and agenda.mix < limit * _CLOSE:
            self._open_nodes(min(_MIXES, _ORDERS // 8 // self._orders))
        elif self._closed and self._closed[-1].bound <= busy and not (undecided and np.isfinite(busy)):
            self._open_branch()  # K plans of the first come first: with a limit little of the others need be bounded
        elif agenda.mix < INFINITE and agenda.mix <= busy:
            self._open_nodes(min(_MIXES_WITH_LIMIT, _ORDERS // self._orders))
        elif agenda.plan <= busy:
            self._solve_next()
        else:
            self._open_rows()

    def _rows(self) -> float:
        """The smallest bound of rows in the branches that are open."""
        return min((branch.lowest for branch in self._opened), default=INFINITE)

    def _open_rows(self) -> None:
        branch = min(self._opened, key=lambda branch: branch.lowest)
        if branch.next_frame <= branch.lowest:
            self._tell(branch.open_frames(self._limits()))
        else:
            self._bound_rows(branch)

    def _open_branch(self) -> None:
        branch = self._closed[-1]
        if self._problem.may_idle:
            self._tell(f"{branch.problem.num_gpus:,} devices")
        branch.open()
        self._opened.append(self._closed.pop())

    def _open_nodes(self, most: int) -> None:
        """Go on with the best rows and mixes."""
        limits = self._limits()
        nodes = self._agenda.take_mixes(most, limits.loosest * _CLOSE)
        if self._diverse and self._patient and len(self._found) < self._top:
            nodes = [node for node in nodes if not self._set_apart(node)]
        try:
            # Some families have plans by now that their rows cannot beat.
            found = opened([node for node in nodes if node.bound < self._limit_of(node)], limits)
        except KeyboardInterrupt:
            for node in nodes:
                self._agenda.put_back(node)
            raise
        self._arrangements += found.orders
        for child in found.children:
            node = child.node
            self._agenda.add(child.bound, child.seconds, node.branch, node.block, node.row, child.mix, child.chips)
        self._tell(f"{len(nodes)} ways to share the stages")

    def _solve_next(self) -> None:
        """Solve the best plan, or find that it can be none."""
        if self._agenda.plan == INFINITE:
            self._agenda.bring_back()  # nothing else is left
            self._patient = False
            return
        node, patient = self._agenda.take_plan(), self._patient and len(self._found) < self._top
        while node.bound >= self._limit_of(node) or (patient and self._set_apart(node)):
            if self._agenda.plan >= self._limits().loosest:
                return
            node = self._agenda.take_plan()
        try:
            self._solve(node)
        except KeyboardInterrupt:
            self._agenda.put_back(node)
            raise

    def _bound_rows(self, branch: Branch) -> None:
        message, bounded = branch.bound_rows(self._limits())
        self._tell(message)
        for rows in bounded:
            for row, pp, bound, seconds in zip(rows.rows, rows.depth, rows.scores, rows.seconds, strict=True):
                plan = () if branch.problem.mixed else ((pp,), (0,) * pp)
                self._agenda.add(bound, seconds, branch, rows.block, row, *plan)

    def _rate(self, node: Node) -> float:
        """Score of a second of a plan whose mix is known."""
        rows, mix = node.block.table.rows.take([node.row]), np.array([node.mix], dtype=np.int64)
        return float(node.branch.objective.rates(rows.stage_devices, rows.pp, mix, mix)[0])

    def _solve(self, node: Node) -> None:
        """Solve one plan for anything better than the K-th best, or than the best of its family."""
        from cpsolver.search.compile.model import solve_plan

        began = time.monotonic()
        limit = self._problem.spec.search.time_limit_s
        left = None if limit is None else limit - (began - self._started)
        chips, rate = np.array(node.chips, dtype=np.int64), self._rate(node)
        limit_s = node.branch.objective.limit_s(self._limit_of(node), rate)
        by_events_s = node.branch.objective.limit_s(self._by_events_alone(node), rate)
        solved = solve_plan(node.block.table, node.row, chips, node.seconds, limit_s, left, by_events_s)
        if solved is None:
            return
        self._solver_calls += 1
        self._solver_seconds += time.monotonic() - began
        node.block.solved.add(node.row)
        if solved.status in ("unknown", "feasible"):
            self._unsettled.append(max(solved.bound_s * rate, node.bound))
        if solved.strategy is not None:
            score, key = self._keep(solved.strategy, node.branch.problem, node.branch.objective), key_of(node)
            self._scores[key] = min(score, self._scores.get(key, INFINITE))
        self._tell(f"{solved.status}: {_name(node)}")

    def _solve_meshes(self, meshes: MeshSearch, bound: float, plan: MeshPlan) -> None:
        """The same for a plan of meshes."""
        from cpsolver.search.compile.model import solve_plan

        began, limit_s = time.monotonic(), self._problem.spec.search.time_limit_s
        own = self._families.get(meshes.family(plan), INFINITE) if self._diverse else INFINITE
        limit = min(self._limit(), own)
        if bound >= limit:
            return
        left = None if limit_s is None else limit_s - (began - self._started)
        solved = solve_plan(*meshes.exactly(plan), plan.chips, bound, limit, left)
        if solved is None:
            return
        self._solver_calls += 1
        self._mesh_solves += 1
        self._solver_seconds += time.monotonic() - began
        if solved.status in ("unknown", "feasible"):
            self._unsettled.append(max(solved.bound_s, bound))
        if solved.strategy is not None:
            self._keep(solved.strategy, self._problem, self._objective)

    def _keep(self, strategy: Strategy, problem: Problem, objective: Objective) -> float:
        """A solved plan's score; it enters the best, in place of one that differs in nothing that tells plans apart.

        Raises InternalError for a plan that the rules refuse: they know nothing of the solver, and are the last gate.
        """
        even = balanced(problem, strategy)
        evaluation = evaluate(problem, even)
        score, true = (objective.score(even, each) for each in (evaluation.formula_s, evaluation.step_time_s))
        if np.isinf(true):
            return score  # late by events alone
        broken = violations(self._problem, even)
        if broken:
            rules = "; ".join(map(str, broken))
            raise InternalError(f"the solver returned a plan that the rules refuse: {rules}. The plan: {even}")
        if np.isinf(score) or true >= self._below:
            return score
        found = _Found(score, true, even, evaluation)
        self._close[even.key()] = min(found, self._close.get(even.key(), found), key=_in_order)
        self._found = self._first_of_each([*self._found, found], _in_order)
        if self._diverse:
            self._families = {family(plan.strategy): plan.score for plan in self._found}
        return score

    def _first_of_each(self, plans: Iterable[_Found], order: Callable[[_Found], tuple[object, ...]]) -> list[_Found]:
        """The K first in some order that differ in what tells plans apart."""
        apart = family if self._diverse else Strategy.key
        first: dict[tuple[object, ...], _Found] = {}
        for plan in sorted(plans, key=order):
            first.setdefault(apart(plan.strategy), plan)
        return list(first.values())[: self._top]

    # The answer

    def _result(self, stop: StopReason) -> Result:
        left = INFINITE if self._meshes is None else self._meshes.lowest
        bound = min([self._lowest(), left, *self._unsettled]) if stop != "complete" else self._limit()
        plans = []
        answer = self._first_of_each(self._close.values(), _by_events) if self._problem.mixed else self._found
        for rank, found in enumerate(answer, 1):
            gap = 0.0 if stop == "complete" else max(0.0, 1.0 - bound / found.score)
            plans.append(Plan(rank, found.strategy, found.evaluation, gap))
        status: Status = "optimal" if stop == "complete" else "feasible"
        if not plans:
            status = "infeasible" if stop == "complete" else "unknown"
        return Result(status, tuple(plans), self._proof(bound, stop))

    def _proof(self, bound: float, stop: StopReason) -> Proof:
        limit, complete = self._limit(), stop == "complete"
        solved = {(id(block), row) for branch in self._opened for block in branch.blocks for row in block.solved}
        still_open = 0
        if not complete:
            nodes = (node for node in self._agenda if node.bound < self._limit_of(node))
            waiting = {(id(node.block), node.row) for node in nodes} - solved
            still_open = len(waiting) + sum(branch.unopened_rows(limit) for branch in self._opened)
        spaces, refused = [branch.space for branch in self._opened], dict[str, int]()
        for rule, count in (item for space in spaces for item in space.refused.items()):
            refused[rule] = refused.get(rule, 0) + count
        no_fit = sum(branch.no_fit for branch in self._opened)
        return Proof(
            considered=sum(space.considered for space in spaces),
            refused=refused,
            memory=no_fit,
            bounded=sum(map(len, spaces)) - no_fit - len(solved) - still_open,
            solved=len(solved),
            open=still_open,
            solver_calls=self._solver_calls,
            arrangements=self._arrangements,
            bound_s=bound / self._objective.highest_rate,
            stop=stop,
            seconds=time.monotonic() - self._started,
            solver_seconds=self._solver_seconds,
            combinations=sum(space.combinations for space in spaces),
            bound=bound,
            device_counts=self._device_counts(limit, complete) if self._problem.may_idle else None,
            meshes=None if self._meshes is None else self._mesh_counts(self._meshes, complete),
            by_events=self._events_run() if self._problem.mixed and self._found else None,
        )

    def _events_run(self) -> EventsRun:
        best = min(plan.true for plan in self._close.values())
        return EventsRun(len(self._close), min(MOST_EXCESS, max(0.0, self._closest / best - 1)))

    def _mesh_counts(self, meshes: MeshSearch, complete: bool) -> MeshCounts:
        still_open = 0 if complete else meshes.waiting
        return MeshCounts(meshes.options, meshes.combined, meshes.bounded, self._mesh_solves, still_open)

    def _device_counts(self, limit: float, complete: bool) -> DeviceCounts:
        considered, searched = self._groups.considered, len(self._opened)
        first = [branch for group in self._groups.groups for branch in group][searched:]
        settled = complete or (self._found and self._objective.name == "fewest_chips")
        still_open = 0 if settled else sum(branch.bound < limit for branch in first)
        return DeviceCounts(considered, considered - searched - still_open, searched, still_open)


def _name(node: Node) -> str:
    rows = node.block.table.rows
    return " ".join(f"{name} {int(getattr(rows, name)[node.row])}" for name in DEGREES if name != "etp")


def balanced(problem: Problem, strategy: Strategy) -> Strategy:
    """The same plan with its layers as even as they go without losing time, or else in ascending order by group.

    Optimal splits come in crowds of equals; this picks the one that people expect, and always the same.
    """
    if problem.spec.search.pin.layers is not None or problem.spec.search.forbid.layers is not None:
        return strategy
    as_fast = evaluate(problem, strategy, by_formula=True).step_time_s
    for arrange in (_even, sorted):
        other = _rearranged(strategy, arrange)
        if not violations(problem, other) and evaluate(problem, other, by_formula=True).step_time_s <= as_fast:
            return other
    return strategy


def _rearranged(strategy: Strategy, arrange: Callable[[list[int]], list[int]]) -> Strategy:
    """The same plan with the chunks of each group rearranged, embedding and head in layers' places as before."""
    chunks = iter(strategy.chunks)
    by_group = ([next(chunks) for _ in group.layers] for group in strategy.groups)
    counts = [strategy.vpp * chunk for group in by_group for chunk in arrange(group)]
    counts[0] -= strategy.slots[0]
    counts[-1] -= strategy.slots[1]
    left = iter(counts)
    groups = (replace(group, layers=tuple(next(left) for _ in group.layers)) for group in strategy.groups)
    return replace(strategy, groups=tuple(groups))


def _even(chunks: list[int]) -> list[int]:
    short, longer = divmod(sum(chunks), len(chunks))
    return [short + (place >= len(chunks) - longer) for place in range(len(chunks))]
