"""Branch and bound over meshes: rounds, then devices and order of the chip types, then their options, then plans.

Parts of the space wait in one queue ordered by their bounds. A part that is small enough becomes all its combinations,
these become plans with a bound of their own, and a plan at the head goes to the solver, as with equal degrees.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from cpsolver.cost.shard import Bools, Floats, Ints
from cpsolver.plans.dimensions import family
from cpsolver.plans.strategy import Mesh, StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.search.arrangements import chips_allowed
from cpsolver.search.bounds.bounds import plan_bound
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.frontier import INFINITE, Limits
from cpsolver.search.meshes.bounds import Combinations, MeshBounds, Options, Region
from cpsolver.search.meshes.rounds import FLAGS, Round, rounds_of
from cpsolver.search.result import MeshCounts

_COMBINED = 20_000
"""A part of so many combinations is looked at one by one."""
_SPARE = 1.005
"""Options whose devices add up to so many times those of the cluster are told apart by devices first."""
_PROMISING = 0.997
"""A plan whose bound is below this share of the limit is solved before parts are opened."""
_BATCH = 256
"""Plans that are bounded in one go."""


@dataclass(frozen=True)
class MeshPlan:
    """Rows and chip types of every stage, (pp,) each."""

    rows: Ints
    chips: Ints


@dataclass(order=True)
class _Node:
    """A part of the space with its bound on the step time; `filtered`: its options have been cut."""

    bound: float
    order: int
    part: Region = field(compare=False)
    filtered: bool = field(compare=False, default=False)


@dataclass(order=True)
class _PlanNode:
    """The same of a plan."""

    bound: float
    order: int
    plan: MeshPlan = field(compare=False)


class MeshSearch:
    """What is left of the plans with unequal degrees, the best bound first.

    `limits` gives what plans have to beat, and is asked again after each.
    """

    def __init__(self, problem: Problem, limits: Callable[[], Limits]) -> None:
        self._problem, self._limits = problem, limits
        space = rounds_of(problem)
        self._bounds, self._sizes = MeshBounds(space.table, problem.num_gpus), space.sizes
        self._parts: list[_Node] = []
        self._plans: list[_PlanNode] = []
        self._count = 0
        self.options, self.combined, self.bounded = 0, 0, 0
        for each in space.rounds:
            self._add(each)

    @property
    def lowest(self) -> float:
        """No plan that is left takes less."""
        parts = self._parts[0].bound if self._parts else INFINITE
        return min(parts, self._plans[0].bound if self._plans else INFINITE)

    @property
    def waiting(self) -> int:
        """Parts and plans that are left."""
        return len(self._parts) + len(self._plans)

    def _push(self, bound: float, part: Region, filtered: bool = False) -> None:
        self._count += 1
        heapq.heappush(self._parts, _Node(bound, self._count, part, filtered))

    def _push_plan(self, bound: float, rows: Ints, chips: Ints) -> None:
        self._count += 1
        heapq.heappush(self._plans, _PlanNode(bound, self._count, MeshPlan(rows, chips)))

    # The parts to begin with

    def _add(self, each: Round) -> None:
        """The plans of a round, by the chip type that stands last."""
        options = [self._options(chip, each.rows) for chip in range(len(self._problem.supplies))]
        longest = self._bounds.longest(each.rows)
        self.options += sum(map(len, options))
        for last, own in enumerate(options):
            if not len(own):
                continue
            unused = Options(each.rows[:1], np.zeros(1, dtype=np.int64))
            all_types = [of if at == last else _joined(unused, of) for at, of in enumerate(options)]
            part = self._bounds.that_add_up(Region(each, tuple(all_types), (last,), (0.0, longest)))
            if part is not None:
                bound, slowest = self._bounds.quick(part)
                self._push(bound, replace(part, span=(slowest, longest)))

    def _options(self, chip: int, rows: Ints) -> Options:
        """Rows and numbers of stages that a chip type can serve: whole nodes, as far as it goes, and no fewer devices
        than all others leave to it."""
        supply, width = self._problem.supplies[chip], self._bounds.width[rows]
        others = sum(each.limit for each in self._problem.supplies) - supply.limit
        step = self._problem.node // np.gcd(width, self._problem.node)
        most = np.minimum(supply.limit // width, self._problem.model.layers) // step
        fewest = np.maximum(1, -(-(self._problem.num_gpus - others) // (width * step)))
        count = np.maximum(0, most + 1 - fewest)
        row, stages, first = (np.repeat(each, count) for each in (rows, step, fewest))
        stages = stages * (first + np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count))
        counts, at = np.unique(stages, return_inverse=True)
        allows = self._problem.spec.search.allows
        keep = np.array([allows("stages", count, supply.name) for count in counts.tolist()], dtype=np.bool_)[at.ravel()]
        return Options(row[keep], stages[keep])

    # One step

    def step(self) -> tuple[float, MeshPlan] | None:
        """The next plan to solve, with its bound, or None where a part was opened.

        A plan well below the limit comes before parts of lower bounds: a lower limit spares much of these. It stays in
        the queue until `drop_plan`, for solving may be interrupted.
        """
        limit, parts = self._limits().limit, self._parts[0].bound if self._parts else INFINITE
        if self._plans and self._plans[0].bound < max(parts, _PROMISING * limit if np.isfinite(limit) else INFINITE):
            return self._plans[0].bound, self._plans[0].plan
        node = heapq.heappop(self._parts)
        try:
            self._open(node, node.part)
        except KeyboardInterrupt:
            heapq.heappush(self._parts, node)
            raise
        return None

    def counts(self, solves: int, complete: bool) -> MeshCounts:
        """How its options and parts ended."""
        return MeshCounts(self.options, self.combined, self.bounded, solves, 0 if complete else self.waiting)

    def drop_plan(self) -> None:
        """Take the plan that `step` gave away."""
        heapq.heappop(self._plans)

    def _open(self, node: _Node, part: Region) -> None:
        limit = self._limits().limit
        if not node.filtered:
            left = self._bounds.filtered(part, limit)
            if left is not None:
                self._push(max(left[0], node.bound), left[1], filtered=True)
            return
        children = list(self._halved(part))
        if children:
            for child in children:
                self._push(node.bound, child)
        else:
            self._combine(part, node.bound, limit)

    def _halved(self, part: Region) -> Iterator[Region]:
        """The part in pieces; none where it is small enough as it is."""
        used = [self._bounds.used(options) for options in part.options]
        spread = [int(each.max() - each.min()) for each in used]
        if sum(int(each.max()) for each in used) > _SPARE * self._bounds.devices and max(spread):
            chip = int(np.argmax(spread))
            yield from _split(part, chip, used[chip])
        elif not part.settled:
            yield from _next_ends(part)
        elif prod(map(len, part.options)) > _COMBINED:
            chip = int(np.argmax(list(map(len, part.options))))
            options = part.options[chip]
            by = (
                options.stages
                if len(np.unique(options.stages)) > 1
                else self._bounds.table.time.layer[chip, options.row]
            )
            yield from _split(part, chip, by)

    def _combine(self, part: Region, bound: float, limit: float) -> None:
        """Every combination of the part's options that may be below the limit, as plans."""
        found = Combinations(self._bounds, part, self._problem.model.layers)
        if len(found.picks):
            found.keep(self._legal(found, part))
        if not len(found.picks):
            return
        self.combined += len(found.picks)
        lower = np.maximum(found.lower(limit), bound)
        order = np.argsort(lower, kind="stable")
        for start in range(0, len(order), _BATCH):
            chosen = order[start : start + _BATCH]
            chosen = chosen[lower[chosen] < self._limits().limit]
            if not len(chosen):
                break
            self._bound_plans(found, part, chosen, lower[chosen], limit)

    def _legal(self, found: Combinations, part: Region) -> np.ndarray:
        """The combinations that pins on the pipeline allow, whose ends go together, and that are not all equal."""
        problem, sizes = self._problem, self._sizes
        rows = np.stack([found.column(chip)[0] for chip in part.ends[::-1]])
        stages = np.stack([found.column(chip)[1] for chip in part.ends[::-1]])
        legal = (sizes[rows] != sizes[rows[:1]]).any(axis=(0, 2))
        legal &= self._fit(rows) & self._has_flags(rows)
        depths, back = np.unique(stages, axis=1, return_inverse=True)
        mixes = np.zeros((depths.shape[1], len(problem.supplies)), dtype=np.int64)
        mixes[:, list(part.ends[::-1])] = depths.T
        allows = problem.spec.search.allows
        allowed = [allows("pp", int(mix.sum())) and chips_allowed(problem, part.ends[::-1], mix) for mix in mixes]
        return np.asarray(legal & np.array(allowed, dtype=np.bool_)[back.ravel()])

    def _fit(self, rows: Ints) -> Bools:
        """Of rows by mesh in the pipeline's order, (meshes, combinations): whose borders and ends go together."""
        table = self._bounds.table.rows
        tp, dp = table.tp[rows], table.dp[rows]
        fit = (tp[1:] == tp[:-1]).all(axis=0) | table.sequence_parallel[rows].any(axis=0)
        if self._problem.model.embeds_at_both_ends:
            high, low = np.maximum(dp[0], dp[-1]), np.minimum(dp[0], dp[-1])
            whole = ~table.distributed_optimizer[rows].any(axis=0)
            fit &= (tp[0] == tp[-1]) & (whole | (high % low == 0))
        return np.asarray(fit)

    def _has_flags(self, rows: Ints) -> Bools:
        """Of rows as in `_fit`: whose plans have the flags that pins ask for, on one mesh at least."""
        table, allows = self._bounds.table.rows, self._problem.spec.search.allows
        has = np.ones(rows.shape[1], dtype=np.bool_)
        for name in FLAGS:
            any_mesh = getattr(table, name)[rows].any(axis=0)
            has &= np.where(any_mesh, allows(name, True), allows(name, False))
        return has

    def _bound_plans(self, found: Combinations, part: Region, chosen: Ints, lower: Floats, limit: float) -> None:
        order = part.ends[::-1]
        columns = [found.column(chip) for chip in order]
        depth = np.sum([stages[chosen] for _, stages in columns], axis=0)
        self.bounded += len(chosen)
        for pp in np.unique(depth).tolist():
            at = np.nonzero(depth == pp)[0]
            rows = [np.repeat([c[0][n] for c in columns], [c[1][n] for c in columns]) for n in chosen[at].tolist()]
            chips = [np.repeat(order, [c[1][n] for c in columns]) for n in chosen[at].tolist()]
            bounds = plan_bound(self._bounds.table, np.stack(rows), np.stack(chips), limit)
            for bound, row, of_stage in zip(np.maximum(bounds, lower[at]).tolist(), rows, chips, strict=True):
                if bound < limit:
                    self._push_plan(bound, row, of_stage)

    # A plan at the head

    def family(self, plan: MeshPlan) -> tuple[object, ...]:
        """What tells its family from others."""
        return family(self._sketch(plan))

    def _sketch(self, plan: MeshPlan) -> Strategy:
        """The plan's degrees, with a layer on every stage."""
        names = self._problem.chip_names
        rows = self._bounds.table.rows
        groups = tuple(
            StageGroup(names[chip], (1,), mesh=Mesh(*self._sizes[row].tolist()))
            for row, chip in zip(plan.rows.tolist(), plan.chips.tolist(), strict=True)
        )
        first = plan.rows[0]
        sketch = Strategy(
            tp=int(rows.tp[first]),
            pp=len(plan.chips),
            dp=int(rows.dp[first]),
            mbs=int(rows.mbs[first]),
            vpp=1,
            sequence_parallel=bool(rows.sequence_parallel[plan.rows].any()),
            distributed_optimizer=bool(rows.distributed_optimizer[plan.rows].any()),
            flash_attention=bool(rows.flash_attention[first]),
            groups=groups,
            cp=int(rows.cp[first]),
            ep=int(rows.ep[first]),
            etp=int(rows.etp[first]),
        )
        return sketch.canonical()

    def exactly(self, plan: MeshPlan) -> tuple[Coefficients, Ints]:
        """The plan's rows with its true number of stages, and the row of every stage among them."""
        used, at = np.unique(plan.rows, return_inverse=True)
        rows = self._bounds.table.rows.take(used)
        return Coefficients(self._problem, replace(rows, pp=np.full(len(used), len(plan.chips)))), at.ravel()


def _joined(one: Options, other: Options) -> Options:
    return Options(np.concatenate([one.row, other.row]), np.concatenate([one.stages, other.stages]))


def _with(part: Region, chip: int, options: Options) -> Region:
    return replace(part, options=tuple(options if at == chip else own for at, own in enumerate(part.options)))


def _split(part: Region, chip: int, by: Ints | Floats) -> Iterator[Region]:
    """Two halves by the values of one chip type's options, or by their order where all are equal."""
    middle = np.unique(by)
    low = by < middle[len(middle) // 2] if len(middle) > 1 else np.arange(len(by)) < len(by) // 2
    for half in (low, ~low):
        yield _with(part, chip, part.options[chip].take(half))


def _next_ends(part: Region) -> Iterator[Region]:
    """With each chip type that may stand before those settled, and with none."""
    open_types = [chip for chip in range(len(part.options)) if chip not in part.ends]
    for chip in open_types:
        used = part.options[chip].stages > 0
        if used.any():
            yield replace(_with(part, chip, part.options[chip].take(used)), ends=(*part.ends, chip))
    unused = part
    for chip in open_types:
        unused = _with(unused, chip, part.options[chip].take(part.options[chip].stages == 0))
    if all(map(len, unused.options)):
        yield unused
