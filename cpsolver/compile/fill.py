"""Layers of several kinds in their places: the best split of one plan by dynamic programming, stage after stage.

Exact for the integers that the solver gets, as long as the recomputation options are given (by stage or by chip type).
The solver starts from it, and needs it no more than any other start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpsolver.compile.data import Kinds, Option, PlanData
from cpsolver.cost.shard import Ints

Options = tuple[int, ...]
"""Indices of the recomputation options that a stage may have."""
_NEVER = np.iinfo(np.int64).max // 8
_TRIES = 400  # limits on the slowest stage that are tried before a lower bound has to do


@dataclass(frozen=True)
class Split:
    """`objective`: of the split; `slowest`, `lower`: no split with these options has a slowest stage, or an objective,
    below; `chunk` layers and `option` index by stage.
    """

    objective: int
    slowest: int
    lower: int
    chunk: Ints
    option: Ints


class Filler:
    """One plan's stages. `needed`: layers of a chunk over all stages. Tables are by stage, length - 1 and begin."""

    def __init__(self, plan: PlanData, kinds: Kinds, needed: int) -> None:
        self._plan, self._kinds, self._needed = plan, kinds, needed
        self._length = np.arange(1, plan.longest + 1)[:, None]
        begin = np.arange(needed + 1)[None, :]
        self._beyond = begin + self._length > needed
        self._end = np.minimum(begin + self._length, needed)
        self._odd = kinds.odd[self._end] - kinds.odd[begin]
        self._begin = begin
        self._pairs = plan.microbatches * plan.vpp - 1

    def best(self, choice: tuple[Options, ...]) -> Split | None:
        """The best split with these options; None where memory is too small."""
        seconds, option = self._tables(choice)
        slowest = self._smallest(seconds)
        if slowest >= _NEVER:
            return None
        follows = self._follows()
        least_sum, _ = self._shortest(seconds, None, follows, None)
        limits = np.unique(seconds[(seconds >= slowest) & (seconds < _NEVER)])
        afters = np.unique(follows)
        best: tuple[int, Ints] | None = None
        lower = _NEVER
        for tried, limit in enumerate(limits.tolist()):
            beyond = self._pairs * limit + least_sum + self._plan.vpp * int(afters[0])
            if tried == _TRIES or (best is not None and beyond >= best[0]):
                lower = min(lower, beyond)
                break
            for after in afters[::-1].tolist():
                total, chunk = self._shortest(seconds, limit, follows, after)
                if total >= _NEVER:
                    break  # less after the pipeline leaves less room still
                used = int(max(follows[p, chunk[p] - 1] for p in range(len(chunk))))
                longest = int(max(self._at(seconds, chunk)))
                objective = self._pairs * longest + total + self._plan.vpp * used
                if best is None or objective < best[0]:
                    best = (objective, chunk)
                if self._pairs * limit + total + self._plan.vpp * int(afters[0]) >= best[0]:
                    break
        assert best is not None, "the smallest limit has a split"
        begins = np.cumsum(best[1]) - best[1]
        chosen = np.array([option[p, best[1][p] - 1, begins[p]] for p in range(len(best[1]))])
        return Split(best[0], slowest, min(lower, best[0]), best[1], chosen)

    def _at(self, table: Ints, chunk: Ints) -> list[int]:
        begins = np.cumsum(chunk) - chunk
        return [int(table[p, chunk[p] - 1, begins[p]]) for p in range(len(chunk))]

    def _follows(self) -> Ints:
        """Steps after the pipeline by stage and length - 1."""
        plan = self._plan
        return np.asarray(plan.after_layer[:, None] * self._length.T + plan.after_fixed[:, None])

    def _tables(self, choice: tuple[Options, ...]) -> tuple[Ints, Ints]:
        """Steps of each stage, the least of its options, and the option that takes them."""
        plan = self._plan
        shape = (plan.pp, *self._end.shape)
        seconds, option = np.full(shape, _NEVER), np.zeros(shape, dtype=np.int64)
        for chip, options in plan.options.items():
            places = np.array(plan.places(chip))
            for pick in sorted({pick for p in places.tolist() for pick in choice[p]}):
                may = np.array([pick in choice[p] for p in places.tolist()])[:, None, None]
                found = self._steps(chip, places, options[pick], pick)
                better = may & (found < seconds[places])
                seconds[places] = np.where(better, found, seconds[places])
                option[places] = np.where(better, pick, option[places])
        return seconds, option

    def _steps(self, chip: int, places: Ints, option: Option, pick: int) -> Ints:
        plan, kinds, length = self._plan, self._kinds, self._length

        def each(values: Ints) -> Ints:
            return values[places][:, None, None]

        steps = each(plan.fixed) + plan.extra[chip][pick] + each(plan.layer) * length
        steps = steps + kinds.before[chip][self._end] - kinds.before[chip][self._begin]
        steps = steps + each(plan.repeat) * np.minimum(option.repeats, length) + plan.again[chip][pick] * length
        fits = kinds.fits[chip][:, pick][:, self._odd]
        return np.where((length > fits) | self._beyond, _NEVER, steps)

    def _smallest(self, seconds: Ints) -> int:
        """The smallest slowest stage of any split."""
        reached = np.full(self._needed + 1, _NEVER)
        reached[0] = 0
        for table in seconds:
            ways = np.maximum(reached[None, :], table)
            reached = self._arrive(ways)[0]
        return int(reached[-1])

    def _shortest(self, seconds: Ints, limit: int | None, follows: Ints, after: int | None) -> tuple[int, Ints]:
        """The least sum of the stages within the limits, and the chunks that have it."""
        reached = np.full(self._needed + 1, _NEVER)
        reached[0] = 0
        taken = []
        for p, table in enumerate(seconds):
            ways = np.minimum(reached[None, :] + table, _NEVER)
            if limit is not None and after is not None:
                ways = np.where((table > limit) | (follows[p][:, None] > after), _NEVER, ways)
            reached, length = self._arrive(ways)
            taken.append(length)
        chunk, at = np.zeros(len(seconds), dtype=np.int64), self._needed
        if reached[-1] < _NEVER:
            for p in reversed(range(len(seconds))):
                chunk[p] = taken[p][at]
                at -= chunk[p]
        return int(reached[-1]), chunk

    def _arrive(self, ways: Ints) -> tuple[Ints, Ints]:
        """From (length - 1, begin) to the least by end, and the length that has it."""
        count, size = ways.shape
        ends = np.full((count, size), _NEVER)
        for row in range(min(count, size - 1)):
            ends[row, row + 1 :] = ways[row, : size - row - 1]
        pick = ends.argmin(axis=0)
        return ends[pick, np.arange(size)], pick + 1
