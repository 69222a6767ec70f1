"""Bound, prune with proof, then solve: the K best plans, best bound first.

Frames open into rows (degrees and flags), rows into mixes (how many stages each chip type serves), mixes into plans
(in which order), and plans are solved by CP-SAT. Everything waits in one queue ordered by its lower bound, so the
search is done when the smallest bound is no smaller than the K-th best plan: all that is left is proven not to matter.
Where devices may idle, the numbers of devices are the first to open: branches, each with a bound of its own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.search.agenda import Agenda, Key, key_of, name_of, row_counts
from cpsolver.search.bounds.bottleneck import has_many_orders
from cpsolver.search.device_counts import BranchGroups, branch_groups, device_counts
from cpsolver.search.found import (
    Ask,
    Found,
    Predictions,
    balanced,
    by_events,
    check_legal,
    events_run,
    first_of_each,
    found_by_s,
    in_order,
    last_by_events,
    least_seconds,
)
from cpsolver.search.frontier import INFINITE, Branch, Limits, Node
from cpsolver.search.later import CLOSE, Later
from cpsolver.search.objective import Objective, objective_of
from cpsolver.search.opening import Child, mixes_at_once, opened, rebounded
from cpsolver.search.pace import OutOfTime, Pace, is_large, plain, with_time_left
from cpsolver.search.result import Listener, Plan, Progress, Proof, Result, Status, StopReason
from cpsolver.search.solver_use import SolverUse
from cpsolver.search.space import Spaces

_PROMISING = 0.93
"""A plan whose bound is below this share of the limit is solved before more rows are bounded: a lower limit spares many
of these their good bounds."""
_FAR = 1.25
"""While fewer than K plans are known no mix is opened whose bound is so many times the least: plans are likelier to be
elsewhere."""
_LOOSE = 1.4
"""A limit that is so many times the best plan's score is loose: plans of more families lower it. No proof depends on
that; h3 of benchmarks/hard.py takes 4 to 7 % longer with 1.3 and 1.6."""
_NEAR = 1.1
"""Where mixes have many orders all but a few wait whose bounds are so many times the least: a limit may spare them."""
_EAGER = 8
"""Plans that are solved in one go although bounds are open that are smaller than theirs."""
_MIXES_WITH_LIMIT = 1024
"""Rows and mixes that are opened in one go once there is a limit."""
_MOSTCLOSE = 64
"""Plans that are run event by event beside the K best by formula, at most."""
_SCOUT_S = 1.0
"""However short the time, so long a first plan is looked for: any is better than none."""


def search(
    problem: Problem, listener: Listener | None = None, below: float = INFINITE, spaces: Spaces | None = None
) -> Result:
    """The K best legal plans of a problem, proven, or the best so far when time runs out or on Ctrl-C.

    With `search.diverse` they are of K layout families, each the best of its own. Plans whose score is not `below`
    that are no answer. `spaces`: those of searches for problems much alike, which spares making them.

    On one chip type CP-SAT gets all chains of passes that hold a plan's best split up: what that takes event by event.
    Over several it knows 1F1B's closed form, which is off there. These plans are run event by event, as is all that may
    be faster so than the best one: that order is the answer's (`Proof.by_events`).
    """
    found = _Search(problem, listener, below, spaces or Spaces()).run()
    if found.status != "infeasible" or below < INFINITE or not objective_of(problem).widens:
        return found
    return _Search(with_time_left(problem, found.proof.seconds), listener, below, Spaces(), widest=True).run()


class _Search:
    def __init__(
        self,
        problem: Problem,
        listener: Listener | None,
        below: float,
        spaces: Spaces,
        dives: bool = False,
        widest: bool = False,
    ) -> None:
        self._problem, self._listener, self._below, self._spaces = problem, listener, below, spaces
        self._top, self._diverse = problem.spec.search.top, problem.spec.search.diverse
        self._pace, self._agenda = Pace(problem.spec.search.time_limit_s), Agenda()
        self._eager, self._patient = _EAGER, True  # plans may wait apart
        self._scores: dict[Key, float] = {}  # of plans solved, by what tells them apart
        self._found: list[Found] = []
        self._told = Predictions()
        self._close: dict[Key, Found] = {}  # all that were solved, by what tells them apart
        self._closest = INFINITE  # bound on what was not run event by event although it might be better that way
        self._families: dict[tuple[object, ...], float] = {}  # of plans found, where they are to be of different ones
        self._bounded_for = INFINITE  # best score by events for which plans of use by events alone were bounded last
        self._mixes, self._many_orders = mixes_at_once(problem), has_many_orders(problem)
        self._arrangements = 0
        self._solver = SolverUse(self._pace)
        self._objective = replace(objective_of(problem), widest=widest)
        self._groups: BranchGroups | None = None
        self._later: Later | None = None
        self._dives, self._scouted = dives, False  # for any plan, not for the best
        self._opened: list[Branch] = []
        self._closed: list[Branch] = []  # of the present group, the best last

    def run(self) -> Result:
        stop: StopReason = "complete"
        try:
            if not self._dives and is_large(self._problem, self._pace.short):
                self._scout()
            self._later = Later(self._problem, self._limits, self._pace, self._solver, self._add, self._tell)
            self._groups = branch_groups(self._problem, self._objective, self._pace)
            for group in self._groups.groups:
                self._closed = group[::-1]
                if not self._settle():
                    stop = "time_limit"
                if self._found or stop != "complete":
                    break
            if stop == "complete" and not (self._dives or self._later.settle(self._spaces)):
                stop = "time_limit"
        except OutOfTime:
            stop = "time_limit"
        except KeyboardInterrupt:
            stop = "interrupted"
        if self._solver.unsettled and stop == "complete":
            stop = "time_limit"  # nothing else ends a solver early without an exception
        return self._result(stop)

    def _scout(self) -> None:
        """A first plan among those that leave most decisions at their defaults, which takes a fraction of a second to
        find: with a time limit something is to be there early."""
        seen, left = list[Progress](), self._pace.left_s

        def until_found(progress: Progress) -> None:
            if progress.plans:
                seen.append(progress)
                raise KeyboardInterrupt

        limit = None if left is None else max(left, _SCOUT_S)
        found = _Search(plain(self._problem, limit), until_found, self._below, Spaces(), dives=True).run()
        self._scouted = True
        for plan in found.plans:
            self._keep(plan.strategy, self._problem, self._objective)
        if found.proof.stop == "interrupted" and not seen:
            raise KeyboardInterrupt
        self._tell("a first plan")

    def _settle(self) -> bool:
        """Work until nothing of the present group is open that could matter; False: no time is left."""
        while self._lowest() < self._limits().loosest * CLOSE:
            if self._pace.late and (self._opened or self._scouted):
                self._enough_close()
                return self._lowest() >= self._limit() * CLOSE
            self._step()
            if len(self._close) > _MOSTCLOSE + self._top:
                self._enough_close()
        return True

    def _enough_close(self) -> None:
        """Run no more plans event by event than those that are among the K best by formula."""
        self._closest = min(self._closest, self._lowest())

    # What is waiting

    def _limit(self) -> float:
        """Score of the K-th best plan so far: what a better one has to beat."""
        return self._found[self._top - 1].score if len(self._found) >= self._top else self._below

    def _limits(self) -> Limits:
        """The same, and with families what a plan of one that has a plan already has to beat."""
        return Limits(self._limit(), self._families, self._best(), self._objective.excess)

    def _best(self) -> float:
        """The best score by events: plans that may be better are solved too; 0: no others are."""
        if not self._objective.runs_events or self._closest < INFINITE:
            return 0.0
        return min((plan.true for plan in self._close.values()), default=self._below)

    def _limit_of(self, node: Node) -> float:
        limit = self._limits().of_row(node.block.table.rows, node.row)
        return min(limit, self._scores.get(key_of(node), INFINITE)) if node.chips else limit

    def _limit_by_formula(self, node: Node) -> float:
        """What a plan has to beat that is too slow event by event."""
        return replace(self._limits(), best=0.0).of_row(node.block.table.rows, node.row)

    def _limit_by_events(self, node: Node) -> float:
        """What a plan has to beat event by event: the best plan, or what of its family or in the last place is known
        where it may be wanted by formula anyway."""
        best = self._best()
        if not best:
            return INFINITE
        if node.bound >= self._limit_by_formula(node):
            return best
        own = node.block.families[node.row] if self._diverse else None
        return last_by_events(self._close.values(), own, self._top)

    def _set_apart(self, node: Node) -> bool:
        """Let a node wait where nothing would tell its plan from one of those found: it would be none the more."""
        limits = replace(self._limits(), limit=INFINITE)
        known = limits.of_row(node.block.table.rows, node.row) < INFINITE
        if known or (node.chips and key_of(node) in self._scores):
            self._agenda.set_apart(node)
            return True
        return False

    def _lowest(self) -> float:
        """The smallest bound of all that is open."""
        if self._groups is None or any(branch.unbounded for branch in self._opened):
            return 0.0
        return min(self._rows(), self._agenda.lowest, self._next_branch())

    def _next_branch(self) -> float:
        return self._closed[-1].bound if self._closed else INFINITE

    def _tell(self, message: str) -> None:
        if self._listener is not None:
            best = self._found[0].score if self._found else INFINITE
            waiting = len(self._agenda) + sum(branch.unopened_rows(INFINITE) for branch in self._opened)
            counts = len(self._found), waiting, self._solver.calls
            self._listener(Progress(self._lowest(), best, *counts, message, self._objective.unit))

    # One step of the search

    def _step(self) -> None:
        limit, agenda = self._limit(), self._agenda
        undecided, rows = len(self._found) < self._top, self._rows()
        if not undecided:
            agenda.bring_back()
        unbounded = next((branch for branch in self._opened if branch.unbounded), None)
        loose = unbounded is None and self._found and limit > _LOOSE * self._found[0].score
        if loose and self._diverse and (not undecided or self._many_orders) and self._lower_limit(limit, rows):
            return
        busy, closed, loosest = min(rows, agenda.mix, agenda.plan), self._next_branch(), self._limits().loosest * CLOSE
        if agenda.plan < (INFINITE if undecided else _PROMISING * limit) and self._eager:
            self._eager -= 1
            self._solve_next()  # any K plans are a limit, which spares many a costly bound
            return
        self._eager = _EAGER
        if unbounded is not None and (self._found or busy >= loosest):
            while unbounded.unbounded and not self._pace.late:
                unbounded.bound_others(self._limits())  # a first plan needs none of them
        elif min(busy, closed) >= loosest:
            agenda.bring_back()  # nothing else is left
            self._patient = False
        elif closed <= busy and closed < INFINITE and not (undecided and busy < _FAR * closed):
            self._open_branch()  # K plans of the first come first: with a limit little of the others need be bounded
        elif undecided and agenda.mix < min(limit * CLOSE, _FAR * busy):
            self._open_nodes(self._mixes)
        elif agenda.mix <= busy:
            self._open_nodes(_MIXES_WITH_LIMIT)
        elif agenda.plan <= busy:
            self._solve_next()
        else:
            self._open_rows()

    def _rows(self) -> float:
        """The smallest bound of rows in the branches that are open."""
        return min((max(branch.bound, branch.lowest) for branch in self._opened), default=INFINITE)

    def _open_rows(self) -> None:
        branch = min(self._opened, key=lambda branch: branch.lowest)
        if branch.next_frame <= branch.lowest:
            self._tell(branch.open_frames(self._limits(), self._pace))
        else:
            self._bound_rows(branch)

    def _open_branch(self) -> None:
        branch = self._closed[-1]
        if self._problem.may_idle:
            self._tell(f"{branch.problem.num_gpus:,} devices")
        branch.open(self._pace, self._spaces)
        self._opened.append(self._closed.pop())

    def _open_nodes(self, most: int) -> None:
        """Go on with the best rows and mixes; where any plan will do, with the best of all down to a plan."""
        limits = self._limits()
        if self._dives:
            self._agenda.add_all(self._dive(self._agenda.take_mixes(1, limits.loosest * CLOSE)))
            return
        most, below = self._pace.most("mixes", most), limits.loosest * CLOSE
        first = min(most, self._mixes) if self._many_orders else most
        nodes, near = self._agenda.take_mixes(first, below), min(below, _NEAR * self._agenda.mix)
        nodes += self._agenda.take_mixes(most - first, near)
        if self._diverse and self._patient and len(self._found) < self._top:
            nodes = [node for node in nodes if not self._set_apart(node)]
        self._open(nodes)
        self._tell(f"{len(nodes)} ways to share the stages")

    def _open(self, nodes: list[Node]) -> None:
        """Go on with some rows and mixes."""
        self._agenda.add_all(self._children(nodes))

    def _children(self, nodes: list[Node]) -> list[Node]:
        """What some rows and mixes open into."""
        limits = self._limits()
        try:
            # Some families have plans by now that their rows cannot beat.
            wanted = [node for node in nodes if node.bound < self._limit_of(node)]
            with self._pace.working("mixes", len(wanted)):
                found = opened(wanted, limits)
        except KeyboardInterrupt:
            self._agenda.add_all(nodes)
            raise
        self._arrangements += found.orders
        return [self._node(child) for child in found.children]

    def _node(self, child: Child) -> Node:
        node = child.node
        return self._agenda.node(child.bound, child.seconds, node.branch, node.block, node.row, child.mix, child.chips)

    def _dive(self, nodes: list[Node]) -> list[Node]:
        """A plan of each family of some nodes, the best first, by the best of what each opens into."""
        plans = list[Node]()
        try:
            while nodes:
                plans += [node for node in nodes if node.chips]
                children = sorted(self._children([node for node in nodes if not node.chips]), reverse=True)
                nodes = list({each.block.families[each.row]: each for each in children}.values())
                best = {node.order for node in nodes}
                self._agenda.add_all(child for child in children if child.order not in best)
        except KeyboardInterrupt:
            self._agenda.add_all(plans)
            raise
        return sorted(plans)

    def _solve_next(self) -> None:
        """Solve the best plan, or find that it can be none."""
        if self._problem.mixed and self._agenda.plan >= self._limit() and 0 < self._best() < self._bounded_for:
            self._rebound()
            return
        node, patient = self._agenda.take_plan(), self._patient and len(self._found) < self._top
        while node.bound >= self._limit_of(node) or (patient and self._set_apart(node)):
            if self._agenda.plan >= self._limits().loosest:
                return
            node = self._agenda.take_plan()
        try:
            self._solve(node)
        except KeyboardInterrupt:
            self._agenda.add(node)
            raise

    def _lower_limit(self, limit: float, rows: float) -> bool:
        """Find first plans of layout families without one, or look for such families among rows that are not open: the
        K-th best falls fastest so. False: there are none.
        """
        nodes = self._agenda.take_others(self._families, _PROMISING * limit, _EAGER)
        plans = self._dive(nodes)
        try:
            while plans:
                if plans[0].bound < self._limit_of(plans[0]):
                    self._solve(plans[0])
                del plans[0]
        except KeyboardInterrupt:
            self._agenda.add_all(plans)
            raise
        if nodes or rows >= _FAR * self._found[0].score:
            return bool(nodes)
        self._open_rows()
        return True

    def _rebound(self) -> None:
        """Bound the plans once more that are of use by events alone: the best plan by events is faster by now."""
        self._bounded_for = self._best()
        nodes = self._agenda.take_plans(lambda node: node.bound >= self._limit_by_formula(node))
        self._agenda.add_all(map(self._node, rebounded(nodes, self._limits())))

    def _bound_rows(self, branch: Branch) -> None:
        message, bounded = branch.bound_rows(self._limits(), self._pace)
        self._tell(message)
        for rows in bounded:
            for row, pp, bound, seconds in zip(rows.rows, rows.depth, rows.scores, rows.seconds, strict=True):
                plan = () if branch.problem.mixed else ((pp,), (0,) * pp)
                bound = max(bound, branch.bound)
                self._agenda.add(self._agenda.node(bound, seconds, branch, rows.block, row, *plan))

    def _solve(self, node: Node) -> None:
        """Solve one plan for anything better than the K-th best, or than the best of its family."""
        from cpsolver.search.compile.model import solve_plan

        left = 0.0 if self._dives else self._pace.left_s
        chips, rate = np.array(node.chips, dtype=np.int64), node.rate
        limits = self._limit_of(node), self._limit_by_events(node), self._limit_by_formula(node)
        limit_s, *either_s = node.branch.objective.limits_of_plan(limits, rate)
        plan = partial(solve_plan, node.block.table, node.row, chips, node.seconds, limit_s, left, *either_s)
        solved = self._solver.solve(node.bound, rate, plan)
        if solved is None:
            return
        node.block.solved.add(node.row)
        if solved.strategy is not None:
            own, key = (node.branch.problem, node.branch.objective), key_of(node)
            score = self._keep(solved.strategy, *own, solved.ask, (limits[2], limits[1]))
            self._scores[key] = min(score, self._scores.get(key, INFINITE))
        self._tell(f"{solved.status}: {name_of(node)}")

    def _add(self, strategy: Strategy, ask: Ask | None) -> None:
        """Keep a plan that is no row's."""
        self._keep(strategy, self._problem, self._objective, ask)

    def _keep(
        self,
        strategy: Strategy,
        problem: Problem,
        objective: Objective,
        ask: Ask | None = None,
        limits: tuple[float, ...] = (),
    ) -> float:
        """A solved plan's score; it enters the best, in place of one that differs in nothing that tells plans apart.

        It does not, and is not run event by event, where it is seen to be over both limits, by formula and by events.
        """
        even = balanced(problem, strategy, self._told)
        if limits and limits[1] < INFINITE:
            score, least = objective.both(even, *least_seconds(problem, even, self._told))
            if score > limits[0] and least * CLOSE > limits[1]:
                return score
        evaluation = self._told.of(problem, even)
        score, true = objective.both(even, found_by_s(problem, even, evaluation), evaluation.step_time_s)
        if np.isinf(true):
            return score  # late by events alone
        check_legal(self._problem, even, evaluation)
        if np.isinf(score) or true >= self._below:
            return score
        found = Found(score, true, even, evaluation, ask)
        self._close[found.key] = min(found, self._close.get(found.key, found), key=in_order)
        self._found = first_of_each([*self._found, found], in_order, self._diverse, self._top)
        if self._diverse:
            self._families = {plan.family: plan.score for plan in self._found}
        return score

    # The answer

    def _result(self, stop: StopReason) -> Result:
        left = INFINITE if self._later is None else self._later.lowest
        bound = max(0.0, min([self._lowest(), left, *self._solver.unsettled])) if stop != "complete" else self._limit()
        plans, answer = list[Plan](), self._found
        if self._objective.runs_events:
            answer = first_of_each(self._close.values(), by_events, self._diverse, self._top)
        if stop == "complete" and not self._dives:
            self._solver.ask_about(answer)
        for rank, found in enumerate(answer, 1):
            gap = 0.0 if stop == "complete" else max(0.0, 1.0 - bound / found.score)
            plans.append(Plan(rank, found.strategy, found.evaluation, gap))
        status: Status = "optimal" if stop == "complete" else "feasible"
        if not plans:
            status = "infeasible" if stop == "complete" else "unknown"
        return Result(status, tuple(plans), self._proof(bound, stop))

    def _proof(self, bound: float, stop: StopReason) -> Proof:
        limit, complete = self._limit(), stop == "complete"
        waiting = None if complete else [node for node in self._agenda if node.bound < self._limit_of(node)]
        settled = complete or (bool(self._found) and self._objective.name == "fewest_chips")
        return Proof(
            **vars(row_counts(self._opened, waiting, limit)),
            solver_calls=self._solver.calls,
            arrangements=self._arrangements,
            bound_s=bound / self._objective.highest_rate,
            stop=stop,
            seconds=self._pace.seconds,
            solver_seconds=self._solver.seconds,
            bound=bound,
            device_counts=device_counts(self._problem, self._groups, len(self._opened), 0.0 if settled else limit),
            meshes=None if self._later is None else self._later.mesh_counts(complete),
            sizes=None if self._later is None else self._later.size_counts(complete),
            by_events=events_run(self._objective, self._close.values(), self._closest),
        )
