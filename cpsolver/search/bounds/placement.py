"""Layers of several kinds in their places: how far the stages reach along the model within a bottleneck time.

A stage that starts later never ends earlier, so taking as many layers as a stage can, one stage after the other,
reaches as far as any split does. Recomputation is each stage's own here, in any fractions: a bound, not a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields, replace

import numpy as np

from cpsolver.cost.shard import Bools, Floats, Ints
from cpsolver.plans.strategy import RecomputeKind
from cpsolver.search.bounds.coefficients import Coefficients, row_of
from cpsolver.search.bounds.stages import ROUNDING, Need, Stages, uniform_bytes

_KINDS: tuple[RecomputeKind, ...] = ("block", "selective", "uniform")
"""Those that recompute."""


_WIDEST = 6
"""A stage that may begin at more places than that is not looked at from each of them."""


@dataclass(frozen=True)
class _Lanes:
    """Of n rows on one chip type each, by place from the model's beginning, (n, places): what a stage holds up to there
    in all its chunks, layers, their states' bytes and their seconds; the last two infinite past the chunks' end.
    """

    layers: Floats
    states: Floats
    time: Floats

    @classmethod
    def of(cls, table: Coefficients, row: Ints, chip: int) -> _Lanes:
        """Those of rows, (n,), on a chip type."""
        states = table.beyond_mean(table.memory.kind_states, row)
        time = table.beyond_mean(table.time.kind_layer[chip], row)
        places = np.arange(states.shape[1])[None, :]
        layers = np.asarray(table.rows.vpp[row][:, None] * places, dtype=np.float64)
        past = places > _last_place(table, row)[:, None]
        states = np.where(past, np.inf, states + table.memory.layer_states[row][:, None] * layers)
        return cls(layers, states, np.where(past, np.inf, time + table.time.layer[chip, row][:, None] * layers))

    @classmethod
    def joined(cls, parts: Sequence[_Lanes]) -> _Lanes:
        """Rows of the first, then of the second, and so on."""
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))

    def take(self, rows: Ints) -> _Lanes:
        """Those of some of the rows."""
        return _Lanes(self.layers[rows], self.states[rows], self.time[rows])

    def backward(self, end: Ints) -> _Lanes:
        """Those by place from the model's end, the places of each row ending with that."""
        rows, from_end = np.arange(len(end))[:, None], end[:, None] - np.arange(self.layers.shape[1])
        there, past = np.maximum(from_end, 0), from_end < 0
        states, time = (part[rows, end[:, None]] - part[rows, there] for part in (self.states, self.time))
        return _Lanes(self.layers, np.where(past, np.inf, states), np.where(past, np.inf, time))

    def from_place(self, at: Ints, most: int) -> _Lanes:
        """From a place of each row to so many further; where there are fewer the last one again."""
        columns = np.minimum(at[:, None] + np.arange(most + 1), self.layers.shape[1] - 1)
        rows = np.arange(len(at))[:, None]
        return _Lanes(self.layers[rows, columns], self.states[rows, columns], self.time[rows, columns])


class Placement:
    """Rows with the same pp on known chips by position; `stages` as `Coefficients.stages` has them of these."""

    def __init__(self, table: Coefficients, row: Ints, chips: Ints, stages: Stages) -> None:
        self._chips, self._pp = chips, chips.shape[1]
        self._end = _last_place(table, row if row.ndim == 1 else row[:, 0])
        spared, self._lanes = np.zeros(chips.shape), dict[int, _Lanes]()
        for chip in np.unique(chips).tolist():
            own = row_of(row, chips, chip)
            self._lanes[chip] = _Lanes.of(table, own, chip)
            spared = np.where(chips == chip, table.states_saving(own)[:, None], spared)
        counted = _where_they_stand(stages, spared)
        self._stages = [counted.stage(place) for place in range(self._pp)]

    def take(self, rows: Ints) -> Placement:
        """That of some of the rows."""
        part = copy(self)
        part._chips, part._end = self._chips[rows], self._end[rows]
        part._lanes = {chip: lanes.take(rows) for chip, lanes in self._lanes.items()}
        part._stages = [stage.take(rows) for stage in self._stages]
        return part

    def reaches(self, bottleneck: Floats) -> Bools:
        """Whether the stages hold the whole model when none takes longer than that: (n,)."""
        return np.asarray(self._ends(bottleneck)[:, -1] == self._end)

    def _ends(self, bottleneck: Floats) -> Ints:
        """The furthest that the stages reach, one after the other; -1 from one on that holds too little: (n, pp)."""
        ends, at = np.full(self._chips.shape, -1), np.zeros(len(self._end), dtype=np.int64)
        good = np.ones(len(at), dtype=np.bool_)
        for place, stage in enumerate(self._stages):
            to = _furthest(stage, _Sets.of(stage), self._at(place), at, bottleneck)
            to = np.minimum(to, self._end - (self._pp - 1 - place))
            good &= to >= at + (place == 0)  # see `_furthest`
            at = np.where(good, to, at)
            ends[good, place] = to[good]
        return ends

    def held(self, bottleneck: Floats) -> tuple[Ints, Ints]:
        """The least and the most places that each stage holds when none takes longer than that, (n, pp) each; 0 and -1
        where they do not hold the whole model."""
        ends, from_end = self._ends(bottleneck), self._backward()._ends(bottleneck)
        whole = ((ends[:, -1] == self._end) & (from_end[:, -1] == self._end))[:, None]
        first = self._end[:, None] - from_end[:, ::-1]
        last = np.pad(ends[:, :-1], ((0, 0), (1, 0)))
        least = np.maximum(1, np.concatenate([first[:, 1:], self._end[:, None]], axis=1) - last)
        most = np.stack([self._most_from(place, first, last, ends, bottleneck) for place in range(self._pp)], axis=1)
        return np.where(whole, least, 0), np.where(whole, most, -1)

    def _most_from(self, place: int, first: Ints, last: Ints, ends: Ints, bottleneck: Floats) -> Ints:
        """The most places that a stage holds that begins between two places, inclusive, and ends by another: (n,)."""
        first, last, end = first[:, place], np.maximum(first, last)[:, place], ends[:, place]
        most, lanes, stage = np.where(last - first < _WIDEST, 0, end - first), self._at(place), self._stages[place]
        for further in range(min(_WIDEST, int((last - first).max(initial=0)) + 1)):
            at = np.clip(first + further, 0, last)
            to = np.minimum(_furthest(stage, _Sets.of(stage), lanes, at, bottleneck), end)
            most = np.maximum(most, to - at)
        return most

    def _backward(self) -> Placement:
        """The same pipelines from their end to their beginning."""
        part = copy(self)
        part._chips, part._stages = self._chips[:, ::-1], self._stages[::-1]
        part._lanes = {chip: lanes.backward(self._end) for chip, lanes in self._lanes.items()}
        return part

    def _at(self, place: int) -> _Lanes:
        """What the chips at that place hold."""
        some, *others = self._lanes.items()
        if not others:
            return some[1]
        states, time = some[1].states.copy(), some[1].time.copy()
        for chip, lanes in others:
            own = self._chips[:, place] == chip
            states[own], time[own] = lanes.states[own], lanes.time[own]
        return _Lanes(some[1].layers, states, time)


class MixPlacement:
    """Rows with the same pp, (n,), whose chip types serve known numbers of stages, (n, types), in any order.

    Each type's stages stand together. So the furthest that some types reach is how far the best of them for the last
    place reaches from the furthest of the others: subset by subset, the smaller first.
    """

    def __init__(self, table: Coefficients, row: Ints, mix: Ints, by_type: Sequence[Stages]) -> None:
        """`by_type`: as `Coefficients.stages` has them of rows with that type everywhere, next to any others."""
        self._mix, (self._rows, self._types), self.pp = mix, mix.shape, by_type[0].pp
        self._end = _last_place(table, row)
        spared = table.states_saving(row)[:, None]
        self._stages = Stages.side_by_side([_where_they_stand(stages, spared) for stages in by_type])
        lanes = [_Lanes.of(table, row, chip) for chip in range(self._types)]
        self._lanes = _Lanes.joined(lanes)

    def take(self, rows: Ints) -> MixPlacement:
        """That of some of the rows."""
        part = copy(self)
        part._mix, part._end, part._rows = self._mix[rows], self._end[rows], len(rows)
        part._stages = self._stages.take(rows)
        types = self._rows * np.arange(self._types)[:, None]
        part._lanes = self._lanes.take((types + rows).ravel())
        return part

    def reaches(self, bottleneck: Floats) -> Bools:
        """Whether they hold the whole model in some order when no stage takes longer than that: (n,)."""
        subsets, bits = np.arange(1 << self._types), 1 << np.arange(self._types)
        # Every type behind every subset of the others, place by place: where it begins, all that end there have ended.
        row, subset, chip = np.nonzero((self._mix > 0)[:, None] & (subsets[:, None] & bits == 0))
        begin = ((subsets[:, None] & bits > 0) @ self._mix.T)[subset, row]
        end, joined = begin + self._mix[row, chip], subset | bits[chip]
        reached, at = np.full((self._rows, len(subsets)), -1), np.full(len(row), -1)
        reached[:, 0] = 0
        for place in range(self.pp):
            at = np.where(begin == place, reached[row, subset], at)
            now = np.nonzero((begin <= place) & (place < end) & (at >= 0))[0]
            at[now] = self._along(place, row[now], chip[now], at[now], bottleneck)
            now = now[end[now] == place + 1]
            np.maximum.at(reached, (row[now], joined[now]), at[now])
        return np.asarray(reached[np.arange(self._rows), ((self._mix > 0) * bits).sum(axis=1)] == self._end)

    def _along(self, place: int, row: Ints, chip: Ints, at: Ints, bottleneck: Floats) -> Ints:
        """How far stages of chip types at that place of the pipeline reach, -1 where one holds too little: (m,)."""
        column = chip * self.pp + place
        stage, sets = self._stages.at(row, column), _Sets(self._stages, row, column)
        to = _furthest(stage, sets, self._lanes.take(chip * self._rows + row), at, bottleneck[row])
        to = np.minimum(to, self._end[row] - (self.pp - 1 - place))
        return np.where(to >= at + (place == 0), to, -1)  # see `_furthest`


def _last_place(table: Coefficients, row: Ints) -> Ints:
    """The places in a chunk: (n,)."""
    return np.asarray(table.rows.places(table.problem.model.layers)[row] // table.rows.vpp[row])


def _where_they_stand(stages: Stages, spared: Floats) -> Stages:
    """With layers counted where they stand: nothing is to be saved beyond that, bytes `spared` neither."""
    return replace(_sets_in_order(stages), fixed=stages.fixed + stages.saving, room=stages.room - spared)


@dataclass(frozen=True)
class _Sets:
    """Sets of modules of n stages, each in its row and column of some."""

    stages: Stages
    rows: Ints
    columns: Ints

    @classmethod
    def of(cls, stage: Stages) -> _Sets:
        """Those of stages at one place."""
        rows = np.arange(len(stage.fixed))
        return cls(stage, rows, np.zeros_like(rows))

    def __len__(self) -> int:
        return len(self.stages.set_seconds)

    def take(self, rows: Ints) -> _Sets:
        """Of some of the stages."""
        return _Sets(self.stages, self.rows[rows], self.columns[rows])

    def need(self, which: Ints) -> Need:
        """What layers need under a set of each stage's own: `Stages.by_set`, (n, 1)."""
        at, stages = (self.rows, self.columns), self.stages
        seconds, held, replay = (part[which, *at] for part in (stages.set_seconds, stages.set_bytes, stages.set_replay))
        once = replay + stages.beside[at] * held
        return Need(seconds[:, None], (stages.live[at] * held)[:, None], once[:, None])


def _furthest(stage: Stages, sets: _Sets, lanes: _Lanes, at: Ints, bottleneck: Floats) -> Ints:
    """The furthest place that each stage reaches from `at`, less than that where it has no time or memory at all: (n,).

    One that has no time for the layer it starts at may have started earlier: it reaches no further for that.
    """
    limit = (bottleneck[:, None] - stage.fixed) * (1 + ROUNDING)
    in_time = (lanes.time <= lanes.time[np.arange(len(at)), at][:, None] + limit).sum(axis=1) - 1
    near = lanes.from_place(at, max(0, int((in_time - at).max(initial=0))))
    way = _Reach(stage, sets, np.arange(len(at)), near, at, limit)
    allowed = {kind: may[:, 0] for kind, may in stage.allowed.items()}
    best = np.where(allowed["none"] | allowed["block"], np.minimum(in_time, way.fits(way.own(stage.plain))), -1)
    # Recomputation takes time: it lets those reach further that are short of memory.
    for may, reach in zip(_KINDS, (_Reach.block, _Reach.selective, _Reach.uniform), strict=True):
        short = np.nonzero(allowed[may] & (best < in_time))[0]
        if len(short):
            best[short] = np.maximum(best[short], np.minimum(in_time[short], reach(way.take(short))))
    return best


@dataclass(frozen=True)
class _Reach:
    """Stages of n `rows` of some, and what they may hold from where they start, `at`: (n, places)."""

    stage: Stages
    sets: _Sets
    rows: Ints
    lanes: _Lanes
    at: Ints
    limit: Floats

    def take(self, rows: Ints) -> _Reach:
        """Those of some of the rows."""
        if len(rows) == len(self.at):
            return self
        sets, lanes = self.sets.take(rows), self.lanes.take(rows)
        return _Reach(self.stage, sets, self.rows[rows], lanes, self.at[rows], self.limit[rows])

    def of(self, part: Floats) -> Floats:
        """The rows' own of an array of the stages': (n, 1)."""
        return part[self.rows] if len(part) > 1 else part

    def own(self, need: Need) -> Need:
        """The same of what layers need."""
        return Need(self.of(need.seconds), self.of(need.in_flight), self.of(need.once))

    @property
    def room(self) -> Floats:
        """Bytes, (n, 1)."""
        return self.of(self.stage.room) * (1 + ROUNDING)

    def within(self, prefix: Floats, most: Floats) -> Ints:
        """The furthest place up to which a growing quantity grows by no more than that."""
        return np.asarray(self.at + (prefix <= prefix[:, :1] + most).sum(axis=1) - 1)

    def fits(self, need: Need) -> Ints:
        """How far memory reaches where every layer needs that much."""
        return self.within(self.lanes.states + need.in_flight * self.lanes.layers, self.room - need.once)

    def block(self) -> Ints:
        """How far they reach with some layers recomputed."""
        stage, plain = self.stage, self.own(self.stage.plain)
        held, rate = self.lanes.states + plain.in_flight * self.lanes.layers, self.of(stage.seconds_for_byte)
        paid = self.within(self.lanes.time + rate * held, self.limit + rate * (self.room - self.of(stage.full)))
        return np.minimum(paid, self.fits(self.own(stage.recomputed)))

    def selective(self) -> Ints:
        """How far any set of modules lets them reach: the less of how far its time and its memory do.

        The slower a set the less far its time, and the farther its memory: the best is where they meet, or next to it.
        """
        best, count = np.full(len(self.at), -1), len(self.sets)
        low, high = np.zeros(len(self.at), dtype=np.int64), np.full(len(self.at), count - 1)
        for _ in range(int(count - 1).bit_length() + 1 if count else 0):
            middle = (low + high) // 2
            need = self.sets.need(middle)
            in_time = self.within(self.lanes.time + need.seconds * self.lanes.layers, self.limit)
            fits = self.fits(need)
            best = np.maximum(best, np.minimum(in_time, fits))
            enough = fits >= in_time
            low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
        return best

    def uniform(self) -> Ints:
        """How far units of layers recomputed let them reach, of the best size in any fractions."""
        recomputed = self.own(self.stage.recomputed)
        in_time = self.within(self.lanes.time + recomputed.seconds * self.lanes.layers, self.limit)
        layers = np.maximum(0.0, self.lanes.layers - self.lanes.layers[:, :1])
        in_flight, full = recomputed.in_flight * layers, self.of(self.stage.full)
        held = self.lanes.states - self.lanes.states[:, :1] + uniform_bytes(in_flight, full)
        return np.asarray(np.minimum(in_time, self.at + ((held <= self.room) | (layers == 0)).sum(axis=1) - 1))


def _sets_in_order(stages: Stages) -> Stages:
    """With sets of modules such that slower ones never need more memory."""
    seconds = np.maximum.accumulate(stages.set_seconds, axis=0)
    stored, replay = (np.minimum.accumulate(part, axis=0) for part in (stages.set_bytes, stages.set_replay))
    return replace(stages, set_seconds=seconds, set_bytes=stored, set_replay=replay)
