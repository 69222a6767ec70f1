"""The best split of a plan whose step is the longest of several chains of passes (cost/step_form.py).

A label is a split of the first layers over the first stages, and what it makes of every chain so far. Stage after stage
labels are continued by every length of the next chunk that fits. Left out are those that are no better than the best
known: a chain of theirs, or a mean of chains, is as long with the least that the stages behind can add to it; and those
that another with as many layers beats in every chain. Where too many are left the most promising go on, and the least
bound of the others is what is proven.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cpsolver.cost.shard import Bools, Floats, Ints
from cpsolver.cost.step_form import StepForm

NEVER = np.iinfo(np.int64).max // 8
"""More steps than any plan takes."""
_MOST_LABELS = (64, 2_000, 30_000)
"""Labels that go on from a stage: few find a good split, with which many need not be looked at."""
_MEANS, _KEPT = 12, 4
"""Means of chains that are tried for bounds, and those of them that bound labels."""
_TRIALS = 8
"""Limits that are tried for a lower bound."""
_RIVALS = 30
"""Labels of a place with which the others are compared."""


@dataclass(frozen=True)
class _Labels:
    """Splits of the first layers: `steps` of every chain and mean of chains, (labels, columns), the longest that a
    stage `works`, the most that `follows` the pipeline, the place where the next stage begins, a lower bound; and of
    which label of the stage before each is, with a chunk of how many layers."""

    steps: Ints
    works: Ints
    follows: Ints
    place: Ints
    bound: Ints
    before: Ints
    length: Ints

    def at(self, index: Ints | Bools) -> _Labels:
        """Some of them."""
        return _Labels(*(part[index] for part in vars(self).values()))


@dataclass(frozen=True)
class _Sums:
    """What labels are told by: some means of chains, then chains.

    Attributes:
        steps: their tables.
        behind: the least that the stages from each on add, as `ChainSplits._behind`.
        means: how many are means.
        enough_behind: a chain that is no longer so far, by stage and place, makes no step longer than all are.
        enough: a stage that works no longer does not either.
    """

    steps: Ints
    behind: Ints
    means: int
    enough_behind: Ints
    enough: int


@dataclass
class _Best:
    """The best split so far, and what is proven of all; a mean of chains, and those of the last ones that bounded best,
    with their bounds and tables. Only splits below `known` are looked for."""

    known: int
    objective: int
    lower: int
    chunk: Ints
    mean: Floats
    means: list[tuple[int, Ints]] = field(default_factory=list)

    @property
    def limit(self) -> int:
        """Only what is below it is of interest."""
        return min(self.objective, self.known)

    @property
    def settled(self) -> bool:
        """Nothing is."""
        return self.lower >= self.limit

    def found(self, objective: int, chunk: Ints) -> None:
        """A split."""
        if objective < self.objective:
            self.objective, self.chunk = objective, chunk

    def proven(self, lower: int) -> None:
        """No split is below that, or below the limit."""
        self.lower = max(self.lower, min(lower, self.limit))


class ChainSplits:
    """Splits of one plan's layers, in integer steps.

    Tables are by stage, length - 1, and the place where the stage begins: one column where all layers are alike.
    `parts`: what chains are made of (StepForm), a first axis before these; `fits`: whether a device can hold it;
    `follows`: what follows the pipeline, by stage and length - 1; `needed`: layers in all.
    """

    def __init__(self, form: StepForm, parts: Ints, fits: Bools, follows: Ints, needed: int) -> None:
        longest = int(np.nonzero(fits.any(axis=(0, 2)))[0].max(initial=0)) + 1
        self._parts, self._fits = parts[:, :, :longest], fits[:, :longest]
        self._needed, self._form, self._chains = needed, form, form.chains
        self._works = form.multiple * form.microbatches * self._parts[0]
        self._follows = form.multiple * follows[:, :longest]
        self._after = int(self._follows.min())
        self._ends = np.minimum(np.arange(needed + 1) + np.arange(1, longest + 1)[:, None], needed + 1)

    @cached_property
    def _steps(self) -> Ints:
        """The tables of all chains, (chains, pp, length - 1, places): most plans are settled by means of them."""
        return np.asarray(np.einsum("csp,ps...->cs...", self._chains, self._parts))

    def least(self) -> int:
        """No split has a smaller objective; NEVER: none fits."""
        steps = self._mixed(self._chains.mean(axis=0), self._fits)
        return min(NEVER, int(self._behind(steps[None])[0, 0, 0]) + self._after)

    def parts(self, chunk: Ints) -> Ints:
        """What a split's stages have of all that chains are made of: (PASS_PARTS, pp)."""
        begin = np.minimum(np.cumsum(chunk) - chunk, self._parts.shape[3] - 1)
        return np.asarray(self._parts[:, np.arange(len(chunk)), chunk - 1, begin])

    def best(self, slowest: int, known: int, lower: int = 0) -> tuple[int, int, Ints]:
        """The least objective of any split, a lower bound on all, and the split.

        If none is below `known`: the objective NEVER, or one that is not the least, and `known` as the bound.
        """
        none = np.zeros(len(self._fits), dtype=np.int64)
        best = _Best(known, NEVER, min(known, lower), none, self._chains.mean(axis=0))
        self._balanced(best, slowest)
        for most in _MOST_LABELS:
            self._by_means(best)
            if not best.settled:
                if most > _MOST_LABELS[0]:  # few labels settle most plans without it
                    self._by_limits(best)
                self._by_labels(best, most)
            if best.settled:
                break
        return best.objective, best.lower, best.chunk

    def _valued(self, chunk: Ints) -> tuple[int, Ints]:
        """A split with its objective."""
        follows = self._follows[np.arange(len(chunk)), chunk - 1].max()
        return self._form.steps(self.parts(chunk)) + int(follows), chunk

    def _within(self, best: _Best) -> Bools:
        """Where a stage's own work leaves a step below the limit."""
        return np.asarray(self._fits & (self._works + self._after < best.limit))

    def _mixed(self, mean: Floats, within: Bools) -> Ints:
        """The table of a mean of chains, rounded down."""
        steps = np.floor(np.einsum("sp,ps...->s...", mean, self._parts)).astype(np.int64)
        return np.where(within, steps, NEVER)

    def _behind(self, steps: Ints) -> Ints:
        """The least that stages from one on add to each column where the first of them begins at a place, NEVER where
        they cannot hold the rest: (columns, pp + 1, places + 1), the last for no place at all."""
        columns, pp, _, begins = steps.shape
        found = np.full((columns, pp + 1, self._needed + 2), NEVER)
        found[:, pp, self._needed] = 0
        ends = self._ends[:, :begins] if begins > 1 else self._ends
        for stage in reversed(range(pp)):
            paths = found[:, stage + 1, ends] + steps[:, stage]
            found[:, stage, : ends.shape[1]] = np.minimum(paths.min(axis=1), NEVER)
        return found

    def _shortest(self, steps: Ints, behind: Ints) -> Ints:
        """The chunks of the split that takes the least of a table."""
        chunk, place = np.zeros(len(steps), dtype=np.int64), 0
        for stage, table in enumerate(steps):
            of_length = table[:, min(place, table.shape[1] - 1)] + behind[stage + 1, self._ends[:, place]]
            chunk[stage] = of_length.argmin() + 1
            place += int(chunk[stage])
        return chunk

    def _by_means(self, best: _Best) -> None:
        """Bounds by means of chains, and the splits that they lead to.

        No step is shorter than a mean of its chains, whose least is a shortest path: a mean is a sum over the stages.
        The next takes more of what holds up the split of the one before (the subgradient of the bound, with steps that
        shrink like 1 / n).
        """
        best.means = []
        for count in range(1, _MEANS + 1):
            steps = self._mixed(best.mean, self._within(best))
            behind = self._behind(steps[None])[0]
            least = min(NEVER, int(behind[0, 0]) + self._after)
            best.proven(least)
            if best.settled:
                return
            best.means = sorted([*best.means, (least, steps)], key=lambda mean: -mean[0])[:_KEPT]
            chunk = self._shortest(steps, behind)
            best.found(*self._valued(chunk))
            longest = np.einsum("csp,ps->c", self._chains, self.parts(chunk)).argmax()
            best.mean = best.mean + (self._chains[longest] - best.mean) / (count + 1)

    def _balanced(self, best: _Best, slowest: int) -> None:
        """A split whose slowest stage is the fastest that there can be."""
        steps = self._mixed(best.mean, self._fits & (self._parts[0] <= slowest))
        behind = self._behind(steps[None])[0]
        if behind[0, 0] < NEVER:
            best.found(*self._valued(self._shortest(steps, behind)))

    def _by_limits(self, best: _Best) -> None:
        """A bound by halves: in a step below a trial no stage works longer, and then by some chain no split is left."""
        below, above = best.lower, best.limit
        for _ in range(_TRIALS):
            trial = (below + above) // 2
            within = self._fits & (self._works + self._after < trial)
            steps = np.where(within, self._steps, NEVER)
            if int(self._behind(steps)[:, 0, 0].max()) + self._after >= trial:
                below = trial
            else:
                above = trial
        best.proven(below)

    def _by_labels(self, best: _Best, most: int) -> None:
        """The best split of all, or where `most` labels are too few the best of some."""
        within = self._within(best)
        columns, zero = self._columns(best, within), np.zeros(1, dtype=np.int64)
        best.proven(int(columns.behind[:, 0, 0].max()) + self._after)
        labels = _Labels(np.zeros((1, len(columns.steps)), dtype=np.int64), zero, zero + self._after, *(zero,) * 4)
        history, left_out = list[_Labels](), NEVER
        for stage, fits in enumerate(within):
            labels = _unbeaten(self._continued(labels, stage, fits, columns, best.limit), stage, columns)
            if len(labels.bound) > most:
                order = labels.bound.argsort(kind="stable")
                left_out = min(left_out, int(labels.bound[order[most]]))
                labels = labels.at(order[:most])
            history.append(labels)
        if len(labels.bound):
            best.found(*self._valued(_chunks(history, int(labels.bound.argmin()))))
        best.proven(min(left_out, best.limit))

    def _columns(self, best: _Best, within: Bools) -> _Sums:
        """What labels are told by: but for chains that make no split longer than all are."""
        steps = np.where(within, self._steps, NEVER)
        enough = best.lower - int(self._follows[within.any(axis=2)].max(initial=0))
        behind = enough + self._behind(np.where(within, -steps, NEVER))
        matters = behind[:, 0, 0] < 0
        steps = np.concatenate([*(table[None] for _, table in best.means), steps[matters]])
        return _Sums(steps, self._behind(steps), len(best.means), behind[matters], enough)

    def _continued(self, labels: _Labels, stage: int, fits: Bools, columns: _Sums, limit: int) -> _Labels:
        """Labels with a chunk more, those below the limit."""
        ends = self._ends[:, labels.place].T
        begins = np.minimum(labels.place, fits.shape[1] - 1)
        before, length = np.nonzero(fits[:, begins].T & (ends <= self._needed))
        begin, end = begins[before], ends[before, length]
        works = np.maximum(labels.works[before], self._works[stage, length, begin])
        follows = np.maximum(labels.follows[before], self._follows[stage, length])
        steps, behind = columns.steps[:, stage], columns.behind[:, stage + 1]
        few = slice(columns.means)
        ahead = labels.steps[before, few] + steps[few, length, begin].T + behind[few, end].T
        bound = np.maximum(works, ahead.max(axis=1)) + follows
        some = bound < limit
        before, length, begin, end = before[some], length[some], begin[some], end[some]
        works, follows, bound = works[some], follows[some], bound[some]
        sums = labels.steps[before] + steps[:, length, begin].T
        bound = np.maximum(bound, (sums + behind[:, end].T).max(axis=1) + follows)
        return _Labels(sums, works, follows, end, bound, before, length + 1).at(bound < limit)


def _unbeaten(labels: _Labels, stage: int, columns: _Sums) -> _Labels:
    """Labels but for those that another with as many layers, of the few that bound best, beats in everything that can
    still make a step longer than all are."""
    kept = np.ones(len(labels.bound), dtype=bool)
    chains = np.maximum(labels.steps[:, columns.means :], columns.enough_behind[:, stage + 1, labels.place].T)
    values = np.column_stack([chains, np.maximum(labels.works, columns.enough), labels.follows])
    order = labels.bound.argsort(kind="stable")
    for place in np.unique(labels.place):
        alike = order[labels.place[order] == place]
        for count, rival in enumerate(alike[:_RIVALS], 1):
            if kept[rival]:
                others = alike[count:]
                kept[others] &= ~(values[others] >= values[rival]).all(axis=1)
    return labels.at(kept)


def _chunks(history: list[_Labels], at: int) -> Ints:
    """The chunks of one of the last stage's labels."""
    chunk = np.zeros(len(history), dtype=np.int64)
    for stage in reversed(range(len(history))):
        chunk[stage], at = history[stage].length[at], int(history[stage].before[at])
    return chunk
