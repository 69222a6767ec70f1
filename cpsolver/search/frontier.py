"""What of a problem's space is still open: frames, rows with a quick bound, rows with a good one; best bound first.

A branch is the space of one number of devices. All its bounds are on the objective's score.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from cpsolver.cost.pipeline_events import most_excess
from cpsolver.cost.shard import Candidates, Floats, Ints
from cpsolver.plans.dimensions import FAMILY
from cpsolver.plans.strategy import SHARDED
from cpsolver.problem.problem import Problem
from cpsolver.search.bounds.bounds import mix_bound, plan_bound
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.dominance import undominated
from cpsolver.search.bounds.quick import frame_bound, quick_bound, seconds_by_kind, too_large
from cpsolver.search.filters import may_mix, most_stages
from cpsolver.search.objective import Objective
from cpsolver.search.space import Space, enumerate_rows

_BATCH = 512
"""Rows that get a good bound in one go while fewer than K plans are known: a limit may soon spare the others."""
_BATCH_WITH_LIMIT = 4096
"""The same once there is a limit: all that is below it has to be bounded, and many at once are quicker."""
_BLOCK = 8192
"""Rows whose coefficients are made in one go while fewer than K plans are known."""
_BLOCK_WITH_LIMIT = 65_536
"""The same once there is a limit."""
_FIRST_SIZES = 3
"""Micro batches whose frames are bounded first: most good plans have a small one."""
MOST_EXCESS = 0.10
"""Plans whose formula is further above the best by events are not looked at: it may be, by `most_excess`, where
there are few microbatches. Of 12 mixed specs none had another best plan without this limit, which took up to 40 times
as long."""
INFINITE = float("inf")


@dataclass(frozen=True)
class Limits:
    """Scores that rows have to beat: `limit`, and those of a layout family that has a plan that plan's score.

    `families`: by what `plans.dimensions.family` says of the plan. `enough`: K plans are known. `best`: what the best
    plan has by the schedule run event by event, 0 where no plan's may be below its formula. Rows of which a plan may be
    better than that are worth it too.
    """

    limit: float
    families: Mapping[tuple[object, ...], float]
    enough: bool = True
    best: float = 0.0

    @property
    def loosest(self) -> float:
        """No row has a higher limit."""
        return max(self.limit, self.best * (1 + MOST_EXCESS))

    def of_row(self, rows: Candidates, row: int) -> float:
        """What one row has to beat."""
        return float(self.of_rows(rows, np.array([row]))[0]) if self.families or self.best else self.limit

    def of_rows(self, rows: Candidates, chosen: Ints | None = None) -> Floats:
        """What each row has to beat, or each of those `chosen` by their places."""
        if chosen is not None and (self.families or self.best):
            rows = rows.take(chosen)
        limits = np.full(len(rows) if chosen is None else len(chosen), self.limit)
        for (*sizes, whole), score in self.families.items():
            if len(sizes) != len(FAMILY):
                continue  # with degrees by chip type, which no row has
            same = (rows.distributed_optimizer & (rows.sharded == len(SHARDED))) == bool(whole)
            for name, size in zip(FAMILY, sizes, strict=True):
                same = same & (getattr(rows, name) == size)
            limits[same] = np.minimum(limits[same], score)
        return self._or_best(limits, rows) if self.best else limits

    def of_frames(self, frames: Candidates) -> Floats:
        """What rows of each frame have to beat at least; of which families they are is not known."""
        limits = np.full(len(frames), self.limit)
        return self._or_best(limits, frames) if self.best else limits

    def _or_best(self, limits: Floats, rows: Candidates) -> Floats:
        excess = np.minimum(MOST_EXCESS, most_excess(rows.pp, rows.vpp, rows.microbatches))
        return np.maximum(limits, self.best * (1 + excess))


@dataclass
class Block:
    """Rows of some frames that may beat the limit, by their quick bounds; those before the `next` are bounded well.

    `stands_for`: how many rows do not fit if a row does not: itself, and those that its sharding group dominates.
    """

    table: Coefficients
    quick: Floats
    stands_for: Ints
    next: int = 0
    solved: set[int] = field(default_factory=set)

    @property
    def lowest(self) -> float:
        """The smallest quick bound of a row that is not bounded well yet."""
        return float(self.quick[self.next]) if self.next < len(self.quick) else INFINITE

    def waiting(self, limit: float) -> int:
        """Rows not bounded well yet that may still beat the limit."""
        return max(0, int(np.searchsorted(self.quick, limit)) - self.next)


@dataclass(order=True)
class Node:
    """A row, a mix (stages of the first chip types, or of all) or a plan (a chip for every stage), with its bounds:
    on the score, which orders them, and on the step time.
    """

    bound: float
    order: int
    seconds: float = field(compare=False)
    branch: Branch = field(compare=False)
    block: Block = field(compare=False)
    row: int = field(compare=False)
    mix: tuple[int, ...] = field(compare=False, default=())
    chips: tuple[int, ...] = field(compare=False, default=())

    @property
    def whole(self) -> bool:
        """Whether the stages of all chip types are known."""
        return len(self.mix) == len(self.branch.problem.supplies)


@dataclass(frozen=True)
class Bounded:
    """Rows with a good bound, which may beat the limit: on their score and on their step time."""

    block: Block
    rows: list[int]
    depth: list[int]
    scores: list[float]
    seconds: list[float]


class Branch:
    """The rows of one problem; closed until `open` makes them, when all that is known is a `bound`."""

    def __init__(self, problem: Problem, objective: Objective, bound: float) -> None:
        self.problem, self.objective, self.bound = problem, objective, bound
        self.blocks: list[Block] = []
        self.no_fit = 0
        self.space: Space
        self._frames: Floats = np.array([])  # bounds of the frames, in the order of `_order`
        self._order: Ints = np.empty(0, dtype=np.int64)
        self._next = 0
        self._later: Ints = np.empty(0, dtype=np.int64)  # frames without a bound as yet

    def open(self) -> None:
        """Make the frames, and bound those with small micro batches: enough to find plans among them."""
        self.space = enumerate_rows(self.problem)
        sizes = np.unique(self.space.frames.mbs)
        few = self.space.frames.mbs <= sizes[:_FIRST_SIZES].max(initial=0)
        self._later = np.nonzero(~few)[0]
        self._bound_frames(np.nonzero(few)[0])

    @property
    def unbounded(self) -> bool:
        """Whether there are frames without a bound."""
        return len(self._later) > 0

    def bound_others(self) -> None:
        """Bound the other frames."""
        later, self._later = self._later, self._later[:0]
        self._bound_frames(later)

    def _bound_frames(self, frames: Ints) -> None:
        bounds, fits = frame_bound(self.problem, self.space, self.objective.row_bounds, frames=frames)
        self.no_fit += int(self.space.rows_of[frames[~fits]].sum())
        bounds = np.where(self.space.rows_of[frames] > 0, bounds, INFINITE)  # of some layouts no variant is legal
        frames = np.concatenate([self._order[self._next :], frames])
        bounds = np.concatenate([self._frames[self._next :], bounds])
        best = np.argsort(bounds, kind="stable")
        self._order, self._frames, self._next = frames[best], bounds[best], 0

    @property
    def next_frame(self) -> float:
        """The smallest bound of a frame whose rows are not made yet."""
        return float(self._frames[self._next]) if self._next < len(self._frames) else INFINITE

    @property
    def _block(self) -> Block | None:
        return min(self.blocks, key=lambda block: block.lowest, default=None)

    @property
    def lowest(self) -> float:
        """The smallest bound of what is not bounded well yet."""
        block = self._block
        return min(self.next_frame, INFINITE if block is None else block.lowest)

    def unopened_rows(self, limit: float) -> int:
        """Rows that are not bounded well yet and may still beat the limit."""
        if not len(self._frames) and not self.unbounded:
            return 0
        frames = self._order[self._next :][self._frames[self._next :] < limit]
        frames = np.concatenate([frames, self._later])
        return int(self.space.rows_of[frames].sum()) + sum(block.waiting(limit) for block in self.blocks)

    def open_frames(self, limits: Limits) -> str:
        """Make the rows of the next frames, each with a quick bound; says what was done."""
        most = _BLOCK_WITH_LIMIT if limits.enough else _BLOCK
        sizes = np.cumsum(self.space.keys_of[self._order[self._next : self._next + most]])  # few groups are left
        count = max(1, int(np.searchsorted(sizes, most)))
        frames = self._order[self._next : self._next + count]
        bounds = self._frames[self._next : self._next + count]
        good = bounds < limits.of_frames(self.space.frames.take(frames))
        frames, bounds = frames[good], bounds[good]
        rows = self.space.expand(frames)
        if limits.families or limits.best:
            rows = rows.take(np.repeat(bounds, self.space.rows_of[frames]) < limits.of_rows(rows))
        rows, stands_for = undominated(self.problem, rows)
        table = Coefficients(self.problem, rows)
        hopeless = too_large(table)
        self.no_fit += int(stands_for[hopeless].sum())
        quick = quick_bound(table, self.objective.row_bounds)
        quick = np.where(hopeless | (quick >= limits.of_rows(rows)), np.inf, quick)
        best = np.argsort(quick, kind="stable")
        best = best[np.isfinite(quick[best])]  # the tables of all others are not kept
        if len(best):
            self.blocks.append(Block(table.take(best), quick[best], stands_for[best]))
        self._next += count
        return f"{len(table.rows)} rows of {len(frames)} frames"

    def bound_rows(self, limits: Limits) -> tuple[str, Iterator[Bounded]]:
        """Give the next rows, in order of their quick bounds, a good bound: what will be done, and what comes of it."""
        block = self._block
        assert block is not None
        count = _BATCH_WITH_LIMIT if limits.enough else _BATCH
        rows = np.arange(block.next, min(block.next + count, len(block.quick)))
        rows = rows[block.quick[rows] < limits.of_rows(block.table.rows, rows)]
        return f"bounding {len(rows)} rows", self._bounded(block, rows, count, limits)

    def _bounded(self, block: Block, rows: Ints, count: int, limits: Limits) -> Iterator[Bounded]:
        depth, by_depth = block.table.rows.pp[rows], []
        for pp in np.unique(depth).tolist():
            of_depth = rows[depth == pp]
            seconds, scores = self._good_bounds(block.table, of_depth, pp, limits.loosest)
            by_depth.append((of_depth, seconds, scores))
        block.next += count
        for of_depth, seconds, scores in by_depth:
            self.no_fit += int(block.stands_for[of_depth[np.isinf(seconds)]].sum())
            keep = scores < limits.of_rows(block.table.rows, of_depth)
            depths = block.table.rows.pp[of_depth[keep]].tolist()
            yield Bounded(block, of_depth[keep].tolist(), depths, scores[keep].tolist(), seconds[keep].tolist())

    def _good_bounds(self, table: Coefficients, rows: Ints, pp: int, limit: float) -> tuple[Floats, Floats]:
        """Bounds on the time and on the score of rows with the same pp."""
        width, depth = table.rows.stage_devices[rows], table.rows.pp[rows]
        if not self.problem.mixed:
            all_stages = depth[:, None]
            rates = self.objective.rates(width, depth, all_stages, all_stages)
            chips = np.zeros((len(rows), pp), dtype=np.int64)
            seconds = plan_bound(table, rows, chips, self.objective.limit_s(limit, float(rates.min())))
            return seconds, self.objective.bounds(seconds, rates)
        may = may_mix(self.problem, table.rows.take(rows))
        shapes = zip(width.tolist(), may.tolist(), strict=True)
        most = np.array([most_stages(self.problem, devices, pp, mixes) for devices, mixes in shapes], dtype=np.int64)
        least = np.maximum(0, pp - (most.sum(axis=1, keepdims=True) - most))
        seconds = mix_bound(table, rows, least, most)
        quick = self.objective.row_bounds(table.rows.take(rows), seconds, seconds_by_kind(table, rows))
        good = self.objective.bounds(seconds, self.objective.rates(width, depth, least, most))
        return seconds, np.maximum(quick, good)
