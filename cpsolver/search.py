"""Bound, prune with proof, then solve: the K best plans, best bound first.

Rows (degrees and flags) open into mixes (how many stages each chip type serves), mixes into plans (in which order),
and plans are solved by CP-SAT. Everything waits in one queue ordered by its lower bound, so the search is done when
the smallest bound is no smaller than the K-th best plan: all that is left is proven not to matter.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cpsolver.bounds import mix_bound, plan_bound, quick_bound
from cpsolver.coefficients import Coefficients
from cpsolver.cost.shard import Floats, Ints
from cpsolver.evaluate import Evaluation, evaluate
from cpsolver.plans import arrangements, next_shares
from cpsolver.problem import Problem
from cpsolver.result import Plan, Proof, Result, Status, StopReason
from cpsolver.rules import violations
from cpsolver.space import Space, enumerate_rows, most_stages
from cpsolver.strategy import Strategy

_BATCH = 512  # rows bounded in one go: fast enough, and little memory


@dataclass(frozen=True)
class Progress:
    """How a running search stands: what it shows while one waits."""

    bound_s: float
    best_s: float
    plans: int
    waiting: int
    solver_calls: int
    message: str


Listener = Callable[[Progress], None]


@dataclass(order=True)
class _Node:
    """A row, a mix (stages of the first chip types, or of all) or a plan (a chip for every stage), with its bound."""

    bound: float
    order: int
    row: int
    mix: tuple[int, ...] = ()
    chips: tuple[int, ...] = ()


@dataclass
class _Found:
    """A solved plan."""

    step_s: float
    strategy: Strategy
    evaluation: Evaluation


def search(problem: Problem, listener: Listener | None = None) -> Result:
    """The K fastest legal plans of a problem, proven, or the best so far when time runs out or on Ctrl-C."""
    return _Search(problem, listener).run()


class _Search:
    def __init__(self, problem: Problem, listener: Listener | None) -> None:
        self._problem, self._listener = problem, listener
        self._top = problem.spec.search.top
        self._started = time.monotonic()
        self._queue: list[_Node] = []
        self._found: list[_Found] = []
        self._count = 0
        self._no_fit = 0
        self._solved_rows: set[int] = set()
        self._arrangements = 0
        self._solver_calls = 0
        self._solver_seconds = 0.0
        self._unsettled: list[float] = []
        self._space: Space
        self._table: Coefficients
        self._quick: Floats
        self._order: Ints
        self._next = 0

    def run(self) -> Result:
        stop: StopReason = "complete"
        self._space = enumerate_rows(self._problem)
        self._table = Coefficients(self._problem, self._space.rows)
        self._quick = quick_bound(self._table)
        self._order = np.argsort(self._quick, kind="stable")
        try:
            while self._lowest() < self._limit() * (1 - 1e-12):
                if self._late():
                    stop = "time_limit"
                    break
                self._step()
        except KeyboardInterrupt:
            stop = "interrupted"
        if self._unsettled and stop == "complete":
            stop = "time_limit"  # nothing else ends a solver early without an exception
        return self._result(stop)

    # What is waiting

    def _limit(self) -> float:
        """Step time of the K-th best plan so far: what a better one has to beat."""
        return self._found[self._top - 1].step_s if len(self._found) >= self._top else float("inf")

    def _next_quick(self) -> float:
        return float(self._quick[self._order[self._next]]) if self._next < len(self._order) else float("inf")

    def _lowest(self) -> float:
        return min(self._next_quick(), self._queue[0].bound if self._queue else float("inf"))

    def _late(self) -> bool:
        limit = self._problem.spec.search.time_limit_s
        return limit is not None and time.monotonic() - self._started > limit

    def _push(self, bound: float, row: int, mix: tuple[int, ...] = (), chips: tuple[int, ...] = ()) -> None:
        self._count += 1
        heapq.heappush(self._queue, _Node(bound, self._count, row, mix, chips))

    def _tell(self, message: str) -> None:
        if self._listener is not None:
            best = self._found[0].step_s if self._found else float("inf")
            waiting = len(self._queue) + len(self._order) - self._next
            self._listener(Progress(self._lowest(), best, len(self._found), waiting, self._solver_calls, message))

    # One step of the search

    def _step(self) -> None:
        if not self._queue or self._next_quick() <= self._queue[0].bound:
            self._bound_rows()
            return
        node = heapq.heappop(self._queue)
        try:
            if node.chips:
                self._solve(node)
            elif len(node.mix) == len(self._problem.supplies):
                self._open_mix(node)
            else:
                self._open_row(node)
        except KeyboardInterrupt:
            heapq.heappush(self._queue, node)
            raise

    def _bound_rows(self) -> None:
        """Give the next rows, in order of their quick bounds, a good bound."""
        rows = self._order[self._next : self._next + _BATCH]
        self._tell(f"bounding {len(rows)} rows")
        depth = self._table.rows.pp[rows]
        waiting = []
        for pp in np.unique(depth).tolist():
            some = rows[depth == pp]
            if self._problem.mixed:
                most = [most_stages(self._problem, w, pp) for w in self._table.rows.stage_devices[some].tolist()]
                counts = np.array(most, dtype=np.int64)
                bounds = mix_bound(self._table, some, np.zeros_like(counts), counts)
            else:
                bounds = plan_bound(self._table, some, np.zeros((len(some), pp), dtype=np.int64))
            waiting += [(float(bound), int(row), pp) for bound, row in zip(bounds, some, strict=True)]
        self._next += len(rows)
        for bound, row, pp in waiting:
            if np.isinf(bound):
                self._no_fit += 1
            elif self._problem.mixed:
                self._push(bound, row)
            else:
                self._push(bound, row, (pp,), (0,) * pp)

    def _open_row(self, node: _Node) -> None:
        """Settle how many stages the next chip type serves; with the last type the mix is whole."""
        pp, width = int(self._table.rows.pp[node.row]), int(self._table.rows.stage_devices[node.row])
        least, most = next_shares(self._problem, width, pp, node.mix)
        self._tell(f"{len(least)} ways to share the stages of {self._name(node.row)}")
        if not len(least):
            return
        bounds = mix_bound(self._table, np.full(len(least), node.row), least, most)
        known = len(node.mix) + 1
        for bound, mix in zip(np.maximum(bounds, node.bound).tolist(), least.tolist(), strict=True):
            if bound < self._limit():
                self._push(bound, node.row, tuple(mix[:known]))

    def _open_mix(self, node: _Node) -> None:
        ways = arrangements(self._problem, np.array(node.mix, dtype=np.int64))
        if not len(ways):
            return
        bounds = np.maximum(plan_bound(self._table, np.full(len(ways), node.row), ways), node.bound)
        self._arrangements += len(ways)
        for bound, chips in zip(bounds.tolist(), ways.tolist(), strict=True):
            if bound < self._limit():
                self._push(bound, node.row, node.mix, tuple(chips))

    def _solve(self, node: _Node) -> None:
        """Solve one plan for anything faster than the K-th best."""
        from cpsolver.compile.model import solve_plan

        began = time.monotonic()
        limit = self._problem.spec.search.time_limit_s
        left = None if limit is None else limit - (began - self._started)
        chips = np.array(node.chips, dtype=np.int64)
        solved = solve_plan(self._table, node.row, chips, node.bound, self._limit(), left)
        if solved is None:
            return
        self._solver_calls += 1
        self._solver_seconds += time.monotonic() - began
        self._solved_rows.add(node.row)
        if solved.status in ("unknown", "feasible"):
            self._unsettled.append(max(solved.bound_s, node.bound))
        if solved.strategy is not None:
            self._keep(solved.strategy)
        self._tell(f"{solved.status}: {self._name(node.row)}")

    def _keep(self, strategy: Strategy) -> None:
        even = balanced(self._problem, strategy)
        evaluation = evaluate(self._problem, even)
        broken = violations(self._problem, even)
        assert not broken, f"the solver returned a plan that the rules refuse: {broken}"
        self._found.append(_Found(evaluation.step_time_s, even, evaluation))
        self._found.sort(key=lambda found: (found.step_s, found.strategy.key()))
        del self._found[self._top :]

    def _name(self, row: int) -> str:
        rows = self._table.rows
        names = ("tp", "pp", "dp", "mbs", "vpp")
        return " ".join(f"{name} {int(getattr(rows, name)[row])}" for name in names)

    # The answer

    def _result(self, stop: StopReason) -> Result:
        bound = min([self._lowest(), *self._unsettled]) if stop != "complete" else self._limit()
        plans = []
        for rank, found in enumerate(self._found, 1):
            gap = 0.0 if stop == "complete" else max(0.0, 1.0 - bound / found.step_s)
            plans.append(Plan(rank, found.strategy, found.evaluation, gap))
        status: Status = "optimal" if stop == "complete" else "feasible"
        if not plans:
            status = "infeasible" if stop == "complete" else "unknown"
        rows = len(self._table.rows)
        limit = self._limit()
        waiting = {node.row for node in self._queue if node.bound < limit} - self._solved_rows
        ahead = int((self._quick[self._order[self._next :]] < limit).sum())
        still_open = 0 if stop == "complete" else len(waiting) + ahead
        settled = len(self._solved_rows)
        proof = Proof(
            considered=self._space.considered,
            refused=dict(self._space.refused),
            memory=self._no_fit,
            bounded=rows - self._no_fit - settled - still_open,
            solved=settled,
            open=still_open,
            solver_calls=self._solver_calls,
            arrangements=self._arrangements,
            bound_s=bound,
            stop=stop,
            seconds=time.monotonic() - self._started,
            solver_seconds=self._solver_seconds,
        )
        return Result(status, tuple(plans), proof)


def balanced(problem: Problem, strategy: Strategy) -> Strategy:
    """The same plan with its layers as even as they go without losing time, or else in ascending order by group.

    Optimal splits come in crowds of equals; this picks the one that people expect, and always the same.
    """
    if problem.spec.search.pin.layers is not None or problem.spec.search.forbid.layers is not None:
        return strategy
    as_fast = evaluate(problem, strategy).step_time_s
    for split in (_even, _ascending):
        groups = tuple(replace(group, layers=split(group.layers, strategy.vpp)) for group in strategy.groups)
        other = replace(strategy, groups=groups)
        if not violations(problem, other) and evaluate(problem, other).step_time_s <= as_fast:
            return other
    return strategy


def _even(layers: tuple[int, ...], unit: int) -> tuple[int, ...]:
    short, longer = divmod(sum(layers) // unit, len(layers))
    return tuple(unit * (short + (place >= len(layers) - longer)) for place in range(len(layers)))


def _ascending(layers: tuple[int, ...], unit: int) -> tuple[int, ...]:
    return tuple(sorted(layers))
