"""The best plans whose microbatches differ in size: rows by a bound, then their splits run event by event.

They come after plans with equal microbatches, which are the first limit. A row is a choice of degrees and flags as with
equal ones; its plan is the best over all sequences, splits of the layers and options to recompute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from cpsolver.cost.shard import Bools, Candidates, Floats, Ints, Shard
from cpsolver.cost.tables import layer_seconds
from cpsolver.plans.dimensions import DIMENSIONS, ROW
from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import violations
from cpsolver.search.bounds.bounds import plan_bound
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.dominance import undominated
from cpsolver.search.bounds.quick import SAFETY
from cpsolver.search.compile.options import Option
from cpsolver.search.frontier import INFINITE, Limits
from cpsolver.search.pace import Pace
from cpsolver.search.result import SizeCounts
from cpsolver.search.sizes.sequences import MOST_BEYOND, MOST_MEAN, MOST_MICROBATCHES, MOST_ROUNDS, Sequences
from cpsolver.search.sizes.splits import Chains, all_splits, allowed_within, cheapest_splits
from cpsolver.search.sizes.stages import LongestChain, Passes, SizedRow
from cpsolver.search.space import Space

_GUESSES = (1.0, 1.05, 1.1, 1.2, 1.35, 1.6, 2.0, 4.0, 16.0, 1000.0)
"""Without a limit plans of so many times the bound with equal microbatches are looked for: the last is beyond any."""
_AT_ONCE = 512
"""Schedules that are run in one go; the best of them is a limit for the others."""
_ROUNDS = 16
"""Splits that each sequence is run with before all are looked at that may still be better."""
_SPLITS = 2_000
"""Splits whose chains are looked at in one go."""
_CELLS = 1_000_000
"""Sequences times rows that are bounded in one go."""
_CLOSE = 1 - 1e-12
"""A plan within this of the limit is no better."""


@dataclass(frozen=True)
class _SizedPlan:
    """A plan of a row: seconds of a step, the option to recompute, the sequence and layers by stage."""

    seconds: float
    option: Option
    sequence: tuple[int, ...]
    layers: tuple[int, ...]


@dataclass
class _Limit:
    """Seconds that a plan of a row has to beat: of the best one so far."""

    seconds: float


_Found: TypeAlias = tuple[float, tuple[int, ...], tuple[int, ...]]
"""A plan of a row and an option: seconds of a step, the sequence and layers by stage."""


class SizesSearch:
    """What is left of the plans whose microbatches differ in size, the row with the best bound first.

    `limits` gives what plans have to beat, and is asked again for each row.
    """

    def __init__(self, problem: Problem, space: Space, limits: Callable[[], Limits], pace: Pace) -> None:
        self._problem, self._limits, self._pace = problem, limits, pace
        frames = space.frames
        wanted = (frames.schedule == 1) & (frames.vpp == 1) & (frames.pp > 1) & (frames.pp <= problem.model.layers)
        wanted &= (frames.mbs > 1) & (frames.mbs <= MOST_MEAN)
        most = np.minimum(MOST_MICROBATCHES, MOST_ROUNDS * frames.pp)
        wanted &= (frames.microbatches > 1) & (frames.microbatches <= most)
        rows = space.expand(np.flatnonzero(wanted))
        rows = rows.take(~rows.expert_overlap)
        self.considered, self.solved, self.run = len(rows), 0, 0
        self.sequences = sum(len(Sequences.of(*pair).sizes) for pair in set(_pairs(rows)))
        self._rows, self._bounds = self._ordered(rows)
        self._next = 0

    @property
    def lowest(self) -> float:
        """No plan that is left takes less."""
        return float(self._bounds[self._next]) if self._next < len(self._bounds) else INFINITE

    @property
    def waiting(self) -> int:
        """Rows that are left."""
        return len(self._bounds) - self._next

    def _ordered(self, rows: Candidates) -> tuple[Candidates, Floats]:
        """The rows that may beat their limits, by bound, but for sharding groups that a larger one dominates: what they
        change in time is the same with all sizes of microbatches."""
        bounds = _least_s(self._problem, rows)
        good = bounds < self._limits().of_rows(rows)
        rows, bounds = rows.take(good), bounds[good]
        if len(rows):
            table = Coefficients(self._problem, rows)
            bounds = bounds + _after_s(table)
            keep, _ = undominated(rows, table.time)
            keep = keep[bounds[keep] < self._limits().of_rows(rows, keep)]
            keep = keep[np.isfinite(self._equal_s(table, keep))]
            rows, bounds = rows.take(keep), bounds[keep]
        best = np.argsort(bounds, kind="stable")
        return rows.take(best), bounds[best]

    def _equal_s(self, table: Coefficients, at: Ints) -> Floats:
        """Bounds on the step with equal microbatches of those rows that have nothing to beat, 0 for others: infinite
        where they do not fit in memory, and then no others do, for what sequences keep is in proportion to them.
        """
        bounds, free = np.zeros(len(at)), np.isinf(self._limits().of_rows(table.rows, at))
        for pp in np.unique(table.rows.pp[at[free]]).tolist():
            of_depth = np.flatnonzero(free & (table.rows.pp[at] == pp))
            chips = np.zeros((len(of_depth), pp), dtype=np.int64)
            bounds[of_depth] = plan_bound(table, at[of_depth], chips)
        return bounds

    def step(self) -> Strategy | None:
        """The best plan of the next row, if it beats the limit. Interrupted, the row stays the next."""
        limit = self._limits().of_row(self._rows, self._next)
        found = self._best_of(self._next, limit) if self._bounds[self._next] < limit else None
        self._next += 1
        return found

    def counts(self, complete: bool) -> SizeCounts:
        """How its rows ended."""
        left = 0 if complete else self.waiting
        return SizeCounts(self.considered, self.sequences, self.solved, self.run, left)

    # One row

    def _best_of(self, at: int, limit: float) -> Strategy | None:
        row = SizedRow(self._problem, self._rows, at)
        if not len(row.sequences.sizes):
            return None
        self.solved += 1
        for guess in self._guesses(row) if limit == INFINITE else [limit]:
            found = self._best_within(row, guess)
            if found is not None:
                return found
        return None

    def _guesses(self, row: SizedRow) -> list[float]:
        one = Coefficients(self._problem, row.rows.take([row.row]))
        equal = max(float(self._bounds[row.row]), float(plan_bound(one, np.array([0]), np.zeros((1, row.pp), int))[0]))
        return [each * equal for each in _GUESSES if np.isfinite(equal)]

    def _best_within(self, row: SizedRow, limit_s: float) -> Strategy | None:
        """The best plan of a row that takes less than a limit, over all options to recompute."""
        plain = row.plain_chains()
        alive = np.flatnonzero(plain.may_end_within(limit_s, row.layers))
        if not len(alive):
            return None
        best, limit = None, _Limit(limit_s)
        row = row.among(alive, plain.most_layers(limit_s))
        for option, passes, most in _worth_it(row, limit):
            for found in self._candidates(row, option, passes, most, limit):
                strategy = _strategy(self._problem, row, found)
                if found.seconds < limit.seconds * _CLOSE and not violations(self._problem, strategy):
                    best, limit.seconds = strategy, found.seconds
        return best

    def _candidates(
        self, row: SizedRow, option: Option, passes: Passes, most: Ints, limit: _Limit
    ) -> Iterator[_SizedPlan]:
        """Plans with one option that beat the limit, which may fall meanwhile."""
        problem = self._problem
        fits = np.flatnonzero((most.min(axis=1) > 0) & (most.sum(axis=1) >= problem.model.layers))
        if not len(fits):
            return
        row, most = row.among(fits, row.longest), most[fits]
        chains = row.chains(passes)
        alive = np.flatnonzero(chains.may_end_within(limit.seconds, problem.model.layers))
        if not len(alive):
            return
        row, most, chains = row.among(alive, row.longest), most[alive], chains.take(alive)
        open_ones = np.arange(len(alive))
        for which, found in self._rounds(row, passes, chains, most, limit):
            open_ones = which
            yield from (_SizedPlan(seconds, option, sequence, split) for seconds, sequence, split in found)
        if not len(open_ones):
            return
        row, most, chains = row.among(open_ones, row.longest), most[open_ones], chains.take(open_ones)
        may = allowed_within(chains.least(), passes.recomputed, most.max(axis=0), problem.model.layers, limit.seconds)
        for some in all_splits(may):
            allowed = some[_allowed(problem, row.equal, some)]
            for begin in range(0, len(allowed), _SPLITS):
                run = self._run(row, passes, chains, most, allowed[begin : begin + _SPLITS], limit)
                yield from (_SizedPlan(seconds, option, sequence, split) for seconds, sequence, split in run)

    def _rounds(
        self, row: SizedRow, passes: Passes, chains: Chains, most: Ints, limit: _Limit
    ) -> Iterator[tuple[Ints, list[_Found]]]:
        """Sequences that may beat the limit, by their places, and plans that do, round after round.

        Each sequence is run with one split, and the chain of passes that holds it up there bounds it with all others;
        so does the mean of the chains of all rounds. The split of which that mean is least is the next.
        """
        layers, which = row.layers, np.arange(len(most))
        may = allowed_within(chains.least(), passes.recomputed, most.max(axis=0), layers, limit.seconds)
        uneven = (np.arange(may.shape[2]) - layers / row.pp) ** 2
        _, splits = cheapest_splits(may, np.broadcast_to(uneven[None, :, None], (row.pp, len(uneven), len(which))))
        least_after = float(row.after_s(np.ones((1, row.pp), dtype=np.int64))[0])
        mean: LongestChain | None = None
        for number in range(1, _ROUNDS + 1):
            if not may[-1].any():
                yield which[:0], []
                return
            self._pace.check()
            found = list[_Found]()
            seconds, chain = passes.run(row.sizes[which], splits)
            seconds = seconds + row.after_s(splits)
            self.run += len(which)
            good = (splits <= most[which]).all(axis=1) & _allowed(self._problem, row.equal, splits)
            for place in np.flatnonzero(good & (seconds < limit.seconds * _CLOSE)).tolist():
                sizes = row.sizes[which[place]].tolist()
                found.append((float(seconds[place]), tuple(sizes), tuple(splits[place].tolist())))
            yield which, sorted(found)
            mean = chain if mean is None else mean.mixed(chain, 1 / number)
            bounds, splits = cheapest_splits(may, mean.cost(passes.recomputed[: may.shape[2]]))
            keep = np.flatnonzero(SAFETY * (bounds + mean.once) + least_after < limit.seconds * _CLOSE)
            which, splits, mean = which[keep], splits[keep], mean.take(keep)
            if not len(which):
                break
        yield which, []

    def _run(
        self,
        row: SizedRow,
        passes: Passes,
        chains: Chains,
        most: Ints,
        splits: Ints,
        limit: _Limit,
    ) -> Iterator[_Found]:
        """Run sequences with splits event by event, in rounds: every sequence with the split of the shortest chains.

        The chain that holds it up there bounds it with all other splits.
        """
        recomputed, after = passes.recomputed[splits], row.after_s(splits)
        bounds = chains.longest_s(splits, recomputed)
        bounds[(splits[None] > most[:, None]).any(axis=2)] = INFINITE
        while True:
            best = bounds.argmin(axis=1)
            least = bounds[np.arange(len(best)), best]
            open_ones = np.flatnonzero(least < limit.seconds * _CLOSE)
            if not len(open_ones):
                return
            for some in np.array_split(
                open_ones[np.argsort(least[open_ones], kind="stable")], 1 + len(open_ones) // _AT_ONCE
            ):
                self._pace.check()
                some = some[least[some] < limit.seconds * _CLOSE]
                if not len(some):
                    break
                sizes, chosen = row.sizes[some], splits[best[some]]
                seconds, chain = passes.run(sizes, chosen)
                seconds = seconds + after[best[some]]
                self.run += len(some)
                bounds[some] = np.maximum(bounds[some], chain.seconds(splits, recomputed) + after)
                bounds[some, best[some]] = INFINITE
                for place in np.argsort(seconds, kind="stable").tolist():
                    if seconds[place] >= limit.seconds * _CLOSE:
                        break
                    yield float(seconds[place]), tuple(sizes[place].tolist()), tuple(chosen[place].tolist())


def _worth_it(row: SizedRow, limit: _Limit) -> Iterator[tuple[Option, Passes, Ints]]:
    """The options of which plans may beat the limit, with their passes and the most layers that fit: none for which one
    before is as cheap and fits as much everywhere, or as cheap and too slow."""
    costs, layers = row.cost_s(row.options), row.layers
    order = np.argsort(costs.sum(axis=(1, 2)), kind="stable")
    slow, known = list[int](), list[tuple[int, Ints]]()
    for at in order.tolist():
        if any((costs[other] <= costs[at]).all() for other in slow):
            continue
        most = row.most_layers(row.options[at])
        if any((costs[other] <= costs[at]).all() and (fits >= most).all() for other, fits in known):
            continue
        known.append((at, most))
        passes = row.passes(row.options[at])
        least = row.chains(passes).least()
        if not allowed_within(least, passes.recomputed, np.full(row.pp, row.longest), layers, limit.seconds).any():
            slow.append(at)
        else:
            yield row.options[at], passes, most


def _pairs(rows: Candidates) -> list[tuple[int, int]]:
    return list(zip(rows.microbatches.tolist(), rows.mbs.tolist(), strict=True))


def _least_s(problem: Problem, rows: Candidates) -> Floats:
    """Seconds that no plan of rows falls below, whatever its sequence and split, (n,); infinite without a sequence.

    Layers alone, in any fractions: a stage works on its own in all microbatches, after the first one's forward and
    before the last one's backward on the stages before. Where that takes as long for all stages the time is least.
    """
    if not len(rows):
        return np.zeros(0)
    first, back = rows.first_of_each((*Shard.__dataclass_fields__, "pp", "microbatches"))
    rows, chip = rows.take(first), problem.supplies[0]  # states make no difference
    sizes = range(1, MOST_MEAN + MOST_BEYOND + 1)
    of_size = [layer_seconds(problem, chip, replace(rows, mbs=np.full(len(rows), size))) for size in sizes]
    forward, whole = (np.stack([0.0 * part[0], *part]) for part in zip(*of_size, strict=True))
    found, pairs = np.full(len(rows), INFINITE), np.array(_pairs(rows))
    for microbatches, mean in set(_pairs(rows)):
        alike = np.flatnonzero((pairs == (microbatches, mean)).all(axis=1))
        known = Sequences.of(microbatches, mean)
        some = max(1, _CELLS // max(1, len(known.sizes)))
        for begin in range(0, len(alike) if len(known.sizes) else 0, some):
            at = alike[begin : begin + some]
            work = known.counts @ whole[: known.largest + 1, at]
            ends = forward[known.sizes[:, :1], at] + (whole - forward)[known.sizes[:, -1:], at]
            each = ends / (1.0 - (1.0 - ends / work) ** rows.pp[at])
            found[at] = SAFETY * problem.model.layers * each.min(axis=0)
    return np.asarray(found[back])


def _after_s(table: Coefficients) -> Floats:
    """Seconds that follow the pipeline at least, (n,): a stage has the mean number of layers or more."""
    found = np.zeros(len(table.rows))
    for pp in np.unique(table.rows.pp).tolist():
        at = np.flatnonzero(table.rows.pp == pp)
        stages = table.stages(at, np.zeros((len(at), pp), dtype=np.int64))
        layers = table.problem.model.layers / pp
        found[at] = SAFETY * (stages.after_layer.min(axis=1) * layers + stages.after_fixed.min(axis=1))
    return found


def _allowed(problem: Problem, equal: int, splits: Ints) -> Bools:
    """The splits that pins, bans and `layer_split` leave, and the launcher (`equal`: as of `equal_stages`)."""
    search = problem.spec.search
    if search.layer_split != "auto" or equal == 2:
        allowed = (splits == splits[:, :1]).all(axis=1)
    else:
        allowed = (splits[:, 1:-1] == splits[:, 1:2]).all(axis=1) | (equal == 0)
    if search.pin.layers is not None:
        allowed &= _are(splits, search.pin.layers)
    if search.forbid.layers is not None:
        allowed &= ~_are(splits, search.forbid.layers)
    return np.asarray(allowed)


def _are(splits: Ints, layers: tuple[int, ...]) -> Bools:
    if len(layers) != splits.shape[1]:
        return np.zeros(len(splits), dtype=np.bool_)
    return np.asarray((splits == np.array(layers)).all(axis=1))


def _strategy(problem: Problem, row: SizedRow, found: _SizedPlan) -> Strategy:
    option, chip = found.option, problem.chip_names[0]
    values = {name: DIMENSIONS[name].decoded(int(getattr(row.rows, name)[row.row])) for name in ROW}
    amounts = (option.amount,) * len(found.layers)
    group = StageGroup(chip, found.layers, option.kind, amounts, option.modules)
    return Strategy(**values, groups=(group,), micro_batches=found.sequence)
