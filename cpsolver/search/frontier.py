"""What of a problem's space is still open: frames, rows with a quick bound, rows with a good one; best bound first.

A branch is the space of one number of devices. All its bounds are on the objective's score.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from cpsolver.cost.schedules import ALTERNATES, most_above
from cpsolver.cost.shard import Bools, Candidates, Floats, Ints
from cpsolver.cost.tables import MemoryTable, memory_table
from cpsolver.plans.dimensions import FAMILY
from cpsolver.plans.strategy import SHARDED
from cpsolver.problem.problem import Problem
from cpsolver.search.bounds.bottleneck import ByEvents
from cpsolver.search.bounds.bounds import plan_bound
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.dominance import undominated
from cpsolver.search.bounds.mixes import mix_bound
from cpsolver.search.bounds.quick import (
    VARIANTS,
    LeastSeconds,
    first_bound,
    frame_bound,
    least_seconds,
    quick_bound,
    seconds_by_kind,
    too_large,
)
from cpsolver.search.cells import LayoutTally, count_cells
from cpsolver.search.filters import may_mix, most_stages
from cpsolver.search.objective import MOST_EXCESS, Objective
from cpsolver.search.pace import Pace
from cpsolver.search.result import Cell
from cpsolver.search.space import Space, Spaces

_BATCH = 512
"""Rows that get a good bound in one go while fewer than K plans are known: a limit may soon spare the others."""
_BATCH_WITH_LIMIT = 4096
"""The same once there is a limit: all that is below it has to be bounded, and many at once are quicker."""
_BLOCK = 8192
"""Rows whose coefficients are made in one go while fewer than K plans are known."""
_BLOCK_WITH_LIMIT = 65_536
"""The same once there is a limit, reached by doubling: the first limit is rarely the last, and spares few of them."""
_FIRST_SIZES = 3
"""Micro batches whose frames are bounded first: most good plans have a small one."""
_LATER_SIZES = 4
"""Micro batches whose frames are bounded in one go later on."""
INFINITE = float("inf")


@dataclass(frozen=True)
class Limits:
    """Scores that rows have to beat: `limit`, and those of a layout family that has a plan that plan's score.

    `families`: by what `plans.dimensions.family` says of the plan. `best`: what the best plan has by the schedule run
    event by event, 0 where formulas have the last word. Rows of which a plan may be better than that are worth it too:
    by `excess` at most are formulas above it.
    """

    limit: float
    families: Mapping[tuple[object, ...], float]
    best: float = 0.0
    excess: float = MOST_EXCESS

    @property
    def known(self) -> bool:
        """Whether any plan has to beat something: K plans are known, or what is looked for is less than some score."""
        return self.limit < INFINITE

    @property
    def loosest(self) -> float:
        """No row has a higher limit."""
        return max(self.limit, self.best * (1 + self.excess)) if self.best else self.limit

    def of_row(self, rows: Candidates, row: int) -> float:
        """What one row has to beat."""
        limit = self.limit
        if self.families:
            sizes = (int(rows.unfolded(name)[row]) for name in FAMILY)
            limit = min(limit, self.families.get((*sizes, int(_shards_all(rows)[row])), INFINITE))
        if self.best:
            own = rows.schedule[row], rows.pp[row], rows.vpp[row], rows.microbatches[row]
            limit = max(limit, self.best * (1 + min(self.excess, float(most_above(*own)))))
        return limit

    def of_rows(self, rows: Candidates, chosen: Ints | None = None) -> Floats:
        """What each row has to beat, or each of those `chosen` by their places."""
        if chosen is not None and (self.families or self.best):
            rows = rows.take(chosen)
        limits = np.full(len(rows) if chosen is None else len(chosen), self.limit)
        # With degrees by chip type a family has more sizes, and is no row's.
        known = {each: score for each, score in self.families.items() if len(each) == 1 + len(FAMILY)}
        if known:
            limits = np.minimum(limits, _of_families(rows, known))
        return self._or_best(limits, rows) if self.best else limits

    def of_frames(self, frames: Candidates) -> Floats:
        """What rows of each frame have to beat at least; of which families they are is not known."""
        limits = np.full(len(frames), self.limit)
        return self._or_best(limits, frames) if self.best else limits

    def wanted(self, objective: Objective, rows: Candidates, chosen: Ints, rates: Floats) -> ByEvents | None:
        """Step times that plans of the rows at those places have to beat, `rates` being the least scores of a second;
        None: those by formula alone."""
        if not (self.best or objective.may_be_late_by_formula):
            return None
        by_formula = replace(self, best=0.0).of_rows(rows, chosen)
        # What is known of events without a run is known of 1F1B alone.
        alternates = ALTERNATES[rows.schedule[chosen]]
        by_events = np.where(alternates, self.best or INFINITE, 0.0)
        if not alternates.all():
            by_formula = np.where(alternates, by_formula, self.of_rows(rows, chosen))
        return ByEvents(objective.limits_s(by_formula, rates), objective.limits_s(by_events, rates))

    def _or_best(self, limits: Floats, rows: Candidates) -> Floats:
        above = most_above(rows.schedule, rows.pp, rows.vpp, rows.microbatches)
        return np.maximum(limits, self.best * (1 + np.minimum(self.excess, above)))


def _shards_all(rows: Candidates) -> Bools:
    """The rows that shard parameters too (ZeRO-3)."""
    return np.asarray(rows.distributed_optimizer & (rows.sharded == len(SHARDED)))


def _family_columns(rows: Candidates) -> list[Ints]:
    """What tells layout families apart, (n,) each."""
    return [*(rows.unfolded(name) for name in FAMILY), _shards_all(rows).astype(np.int64)]


def _of_families(rows: Candidates, scores: Mapping[tuple[object, ...], float]) -> Floats:
    """The score of each row's family, infinite where it has none: (n,).

    Rows and families get a code, size by size, in which every size counts by its place among those that families have.
    """
    columns = _family_columns(rows)
    code, has = np.zeros(len(rows), dtype=np.int64), np.ones(len(rows), dtype=np.bool_)
    of_family = np.zeros(len(scores), dtype=np.int64)
    for column, sizes in zip(columns, np.array(list(scores), dtype=np.int64).T, strict=True):
        values, place = np.unique(sizes, return_inverse=True)
        at = np.minimum(np.searchsorted(values, column), len(values) - 1)
        has &= values[at] == column
        code, of_family = len(values) * code + at, len(values) * of_family + place.ravel()
    order = np.argsort(of_family)
    at = np.minimum(np.searchsorted(of_family[order], code), len(order) - 1)
    has &= of_family[order][at] == code
    return np.where(has, np.array(list(scores.values()))[order][at], INFINITE)


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

    @cached_property
    def families(self) -> list[tuple[int, ...]]:
        """Of which layout family the plans of each row are."""
        return list(zip(*(column.tolist() for column in _family_columns(self.table.rows)), strict=True))

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

    @property
    def rate(self) -> float:
        """Score of a second of a plan whose mix is known."""
        rows, mix = self.block.table.rows.take([self.row]), np.array([self.mix], dtype=np.int64)
        return float(self.branch.objective.rates(rows.stage_devices, rows.pp, mix, mix)[0])


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
        self.tally: LayoutTally
        self._frames: Floats = np.array([])  # bounds of the frames, in the order of `_order`
        self._order: Ints = np.empty(0, dtype=np.int64)
        self._next = 0
        self._later: Ints = np.empty(0, dtype=np.int64)  # frames without a bound as yet

    def open(self, pace: Pace, spaces: Spaces) -> None:
        """Make the frames, and bound those with small micro batches, unless it is late: enough to find plans among
        them. Frames of the space that have a bound from an earlier search keep it."""
        self.space = spaces.of(self.problem)
        self.tally = LayoutTally(self.space)
        self._later = np.flatnonzero(np.isnan(self.space.known.scores))
        if len(self._later) < len(self.space.frames):
            self._add_frames(np.flatnonzero(~np.isnan(self.space.known.scores)))
        elif not pace.late:
            self._bound_later(self._next_sizes(_FIRST_SIZES))

    @property
    def unbounded(self) -> bool:
        """Whether there are frames without a bound."""
        return len(self._later) > 0

    def bound_others(self, limits: Limits) -> None:
        """Bound the next of the other frames, those of as many micro batches as go well together.

        Where there is a limit a quick look at any variants of their tp and cp comes first, which is enough for most.
        """
        if limits.loosest == INFINITE:
            self._bound_later(self._next_sizes(max(1, VARIANTS // max(1, len(self.space.variants)))))
            return
        few = self._next_sizes(_LATER_SIZES)
        frames = self._later[few]
        least = least_seconds(self.problem, self.space, np.unique(self.space.frames.mbs[frames]).tolist(), True)
        near = self._look_at(frames, least) < limits.of_frames(self.space.frames.take(frames))
        if near.any():
            self._look_at(frames[near])
        self._add_frames(frames)
        self._later = self._later[~few]

    def _next_sizes(self, count: int) -> Bools:
        """Which of the frames without a bound have the next so many micro batches."""
        sizes = self.space.frames.mbs[self._later]
        return np.asarray(sizes <= np.unique(sizes)[:count].max(initial=0))

    def _bound_later(self, few: Bools) -> None:
        """Bound some of the frames without a bound; they stay without one until all is done."""
        self._look_at(self._later[few])
        self._add_frames(self._later[few])
        self._later = self._later[~few]

    def _look_at(self, frames: Ints, least: LeastSeconds | None = None) -> Floats:
        """Bound frames, by what is known of the variants if anything is, and note it."""
        known, score = self.space.known, self.objective.row_bounds
        known.scores[frames], known.fits[frames] = frame_bound(
            self.problem, self.space, score, frames=frames, least=least
        )
        return known.scores[frames]

    def _add_frames(self, frames: Ints) -> None:
        """Put frames with a bound among those that wait."""
        bounds, fits = self.space.known.scores[frames], self.space.known.fits[frames]
        self.no_fit += int(self.space.rows_of[frames[~fits]].sum())
        self.tally.add_frames(frames, bounds, fits)
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
        frames = self._unopened_frames(limit)
        return int(self.space.rows_of[frames].sum()) + sum(block.waiting(limit) for block in self.blocks)

    def unopened_cells(self, limit: float) -> Counter[Cell]:
        """The same rows by tp and pp."""
        frames = self._unopened_frames(limit)
        told = self.space.frames.take(frames)
        found = count_cells(told.tp, told.unfolded("pp"), self.space.rows_of[frames])
        for block in self.blocks:
            rows, waiting = block.table.rows, slice(block.next, block.next + block.waiting(limit))
            found += count_cells(rows.tp[waiting], rows.unfolded("pp")[waiting])
        return found

    def _unopened_frames(self, limit: float) -> Ints:
        frames = self._order[self._next :][self._frames[self._next :] < limit]
        return np.concatenate([frames, self._later])

    def open_frames(self, limits: Limits, pace: Pace) -> str:
        """Make the rows of the next frames, each with a quick bound; says what was done."""
        # A limit that is known before any row is that of a good plan.
        grown = min(_BLOCK_WITH_LIMIT, _BLOCK << (len(self.blocks) - 1 if self.blocks else 2))
        most = pace.most("frames", grown if limits.known else _BLOCK)
        sizes = np.cumsum(self.space.keys_of[self._order[self._next : self._next + most]])  # few groups are left
        count = max(1, int(np.searchsorted(sizes, most)))
        with pace.working("frames", int(sizes[count - 1])):
            made = self._make(slice(self._next, self._next + count), limits)
        self._next += count
        return made

    def _make(self, chosen: slice, limits: Limits) -> str:
        """The rows of frames at some places of the order, as a block: those that may fit and may beat the limit."""
        frames, bounds = self._order[chosen], self._frames[chosen]
        good = bounds < limits.of_frames(self.space.frames.take(frames))
        frames, bounds = frames[good], bounds[good]
        rows = self.space.expand(frames)
        if limits.families or limits.best:
            rows = rows.take(np.repeat(bounds, self.space.rows_of[frames]) < limits.of_rows(rows))
        if len(rows):
            rows, memory = self._that_may_fit(rows)
            worth = np.arange(len(rows))
            if limits.loosest < INFINITE:
                first = first_bound(self.problem, rows, self.objective.row_bounds)
                worth = np.flatnonzero(first < limits.of_rows(rows))
            if len(worth):
                self._add_block(Coefficients(self.problem, rows.take(worth), memory.take(worth)), limits)
        return f"{len(rows)} rows of {len(frames)} frames"

    def _that_may_fit(self, rows: Candidates) -> tuple[Candidates, MemoryTable]:
        """The rows that may fit in memory, and theirs; the others are counted."""
        memory = memory_table(self.problem, rows)
        large = too_large(self.problem, rows, memory)
        self.no_fit += int(large.sum())
        self.tally.add_unfit(rows.take(large))
        fitting = np.flatnonzero(~large)
        return rows.take(fitting), memory.take(fitting)

    def _add_block(self, table: Coefficients, limits: Limits) -> None:
        """Wait for those of the rows that no sharding group dominates, each with a quick bound."""
        keep, stands_for = undominated(table.rows, table.time)
        table = table.take(keep)
        quick = quick_bound(table, self.objective.row_bounds)
        quick = np.where(quick >= limits.of_rows(table.rows), np.inf, quick)
        best = np.argsort(quick, kind="stable")
        best = best[np.isfinite(quick[best])]  # the tables of all others are not kept
        if len(best):
            self.blocks.append(Block(table.take(best), quick[best], stands_for[best]))

    def bound_rows(self, limits: Limits, pace: Pace) -> tuple[str, Iterator[Bounded]]:
        """Give the next rows, in order of their quick bounds, a good bound: what will be done, and what comes of it."""
        block = self._block
        assert block is not None
        count = pace.most("rows", _BATCH_WITH_LIMIT if limits.known else _BATCH)
        rows = np.arange(block.next, min(block.next + count, len(block.quick)))
        rows = rows[block.quick[rows] < limits.of_rows(block.table.rows, rows)]
        return f"bounding {len(rows)} rows", self._bounded(block, rows, count, limits, pace)

    def _bounded(self, block: Block, rows: Ints, count: int, limits: Limits, pace: Pace) -> Iterator[Bounded]:
        depth, by_depth = block.table.rows.pp[rows], []
        with pace.working("rows", len(rows)):
            for pp in np.unique(depth).tolist():
                of_depth = rows[depth == pp]
                seconds, scores = self._good_bounds(block.table, of_depth, pp, limits)
                scores = np.maximum(scores, block.quick[of_depth])  # either may be the better one
                by_depth.append((of_depth, seconds, scores))
        block.next += count
        for of_depth, seconds, scores in by_depth:
            unfit = of_depth[np.isinf(seconds)]
            self.no_fit += int(block.stands_for[unfit].sum())
            self.tally.add_unfit(block.table.rows.take(unfit), block.stands_for[unfit])
            keep = scores < limits.of_rows(block.table.rows, of_depth)
            depths = block.table.rows.pp[of_depth[keep]].tolist()
            yield Bounded(block, of_depth[keep].tolist(), depths, scores[keep].tolist(), seconds[keep].tolist())

    def _good_bounds(self, table: Coefficients, rows: Ints, pp: int, limits: Limits) -> tuple[Floats, Floats]:
        """Bounds on the time and on the score of rows with the same pp."""
        width, depth = table.rows.stage_devices[rows], table.rows.pp[rows]
        if not self.problem.mixed:
            all_stages = depth[:, None]
            rates = self.objective.rates(width, depth, all_stages, all_stages)
            chips = np.zeros((len(rows), pp), dtype=np.int64)
            seconds = plan_bound(table, rows, chips, self.objective.limits_s(np.full(len(rows), limits.loosest), rates))
            return seconds, self.objective.bounds(seconds, rates)
        may = may_mix(self.problem, table.rows.take(rows))
        shapes = zip(width.tolist(), may.tolist(), strict=True)
        most = np.array([most_stages(self.problem, devices, pp, mixes) for devices, mixes in shapes], dtype=np.int64)
        least = np.maximum(0, pp - (most.sum(axis=1, keepdims=True) - most))
        rates = self.objective.rates(width, depth, least, most)
        wanted = limits.wanted(self.objective, table.rows, rows, rates)
        seconds = mix_bound(table, rows, least, most, wanted)
        quick = self.objective.row_bounds(table.rows.take(rows), seconds, seconds_by_kind(table, rows))
        good = self.objective.bounds(seconds, rates)
        return seconds, np.maximum(quick, good)
