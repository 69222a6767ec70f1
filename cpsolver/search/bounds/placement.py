"""Layers of several kinds in their places: how far the stages reach along the model within a bottleneck time.

A stage that starts later never ends earlier, so taking as many layers as a stage can, one stage after the other,
reaches as far as any split does. Recomputation is each stage's own here, in any fractions: a bound, not a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from cpsolver.cost.kinds import repeats_from
from cpsolver.cost.shard import Bools, Floats, Ints
from cpsolver.plans.strategy import RecomputeKind
from cpsolver.search.bounds.coefficients import Coefficients, row_of
from cpsolver.search.bounds.stages import ROUNDING, Need, Stages, uniform_bytes

_KINDS: tuple[RecomputeKind, ...] = ("block", "selective", "uniform")
"""Those that recompute."""


_PERIODS = (1, 2)
"""Layers of several kinds take turns in so many places, if at all: dense layers before experts, windows in turn."""
_WIDEST = 6
"""A stage that may begin at more places than that is not looked at from each of them."""


@dataclass(frozen=True)
class _Lanes:
    """Of n rows on one chip type each, by place from the model's beginning, (places, n): bytes of the states of what a
    stage holds up to there in all its chunks, and its seconds; both infinite past `end`, the places in a chunk, (n,).
    """

    chunks: Floats
    end: Ints
    states: Floats
    time: Floats

    @classmethod
    def of(cls, table: Coefficients, row: Ints, chip: int) -> _Lanes:
        """Those of rows, (n,), on a chip type."""
        states = table.beyond_mean(table.memory.kind_states, row).T
        time = table.beyond_mean(table.time.kind_layer[chip], row).T
        chunks, end, places = table.rows.vpp[row].astype(np.float64), _last_place(table, row), np.arange(len(states))
        layers, past = chunks * places[:, None], places[:, None] > end
        states = np.where(past, np.inf, states + table.memory.layer_states[row] * layers)
        return cls(chunks, end, states, np.where(past, np.inf, time + table.time.layer[chip, row] * layers))

    @classmethod
    def joined(cls, parts: Sequence[_Lanes]) -> _Lanes:
        """Rows of the first, then of the second, and so on."""
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts], axis=-1) for each in fields(cls)))

    def backward(self) -> _Lanes:
        """Those by place from the model's end."""
        rows, from_end = np.arange(len(self.end)), self.end - np.arange(len(self.time))[:, None]
        there, past = np.maximum(from_end, 0), from_end < 0
        states, time = (part[self.end, rows] - part[there, rows] for part in (self.states, self.time))
        return replace(self, states=np.where(past, np.inf, states), time=np.where(past, np.inf, time))


class Placement:
    """Rows with the same pp on known chips by position; `stages` as `Coefficients.stages` has them of these."""

    def __init__(self, table: Coefficients, row: Ints, chips: Ints, stages: Stages) -> None:
        types, self._pp = np.unique(chips), chips.shape[1]
        self._end = _last_place(table, row if row.ndim == 1 else row[:, 0])
        spared, lanes = np.zeros(chips.shape), list[_Lanes]()
        for chip in types.tolist():
            own = row_of(row, chips, chip)
            lanes.append(_Lanes.of(table, own, chip))
            spared = np.where(chips == chip, table.states_saving(own)[:, None], spared)
        self._lane = np.searchsorted(types, chips) * len(chips) + np.arange(len(chips))[:, None]
        self._spot = np.arange(chips.size).reshape(chips.shape)
        self._ground = _Ground.of(_where_they_stand(stages, spared), _Lanes.joined(lanes))

    def take(self, rows: Ints) -> Placement:
        """That of some of the rows."""
        part = copy(self)
        part._lane, part._spot, part._end = self._lane[rows], self._spot[rows], self._end[rows]
        return part

    def reaches(self, bottleneck: Floats) -> Bools:
        """Whether the stages hold the whole model when none takes longer than that: (n,)."""
        return np.asarray(self._ends(bottleneck)[:, -1] == self._end)

    def _ends(self, bottleneck: Floats) -> Ints:
        """The furthest that the stages reach, one after the other; -1 from one on that holds too little: (n, pp)."""
        ends, at = np.full(self._spot.shape, -1), np.zeros(len(self._end), dtype=np.int64)
        good = np.ones(len(at), dtype=np.bool_)
        for place in range(self._pp):
            to = self._furthest(place, at, bottleneck)
            to = np.minimum(to, self._end - (self._pp - 1 - place))
            good &= to >= at + (place == 0)  # see `_Ground.furthest`
            at = np.where(good, to, at)
            ends[good, place] = to[good]
        return ends

    def _furthest(self, place: int, at: Ints, bottleneck: Floats) -> Ints:
        return self._ground.furthest(self._spot[:, place], self._lane[:, place], at, bottleneck)

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
        most = np.where(last - first < _WIDEST, 0, end - first)
        for further in range(min(_WIDEST, int((last - first).max(initial=0)) + 1)):
            at = np.clip(first + further, 0, last)
            most = np.maximum(most, np.minimum(self._furthest(place, at, bottleneck), end) - at)
        return most

    def _backward(self) -> Placement:
        """The same pipelines from their end to their beginning."""
        part = copy(self)
        part._lane, part._spot = self._lane[:, ::-1], self._spot[:, ::-1]
        part._ground = self._ground.backward()
        return part


class MixPlacement:
    """Rows with the same pp, (n,), whose chip types serve known numbers of stages, (n, types), in any order.

    Each type's stages stand together. So the furthest that some types reach is how far the best of them for the last
    place reaches from the furthest of the others: subset by subset, the smaller first.
    """

    def __init__(self, table: Coefficients, row: Ints, mix: Ints, stages: Stages) -> None:
        """`stages`: side by side those that `Coefficients.stages` has of rows with one type everywhere, next to any
        others."""
        self._mix, (self._all, self._types) = mix, mix.shape
        self.pp = stages.pp // self._types
        self._end, self._row = _last_place(table, row), np.arange(len(row))
        lanes = [_Lanes.of(table, row, chip) for chip in range(self._types)]
        stand = _where_they_stand(stages, table.states_saving(row)[:, None])
        self._ground, self._from_end = _Ground.of(stand, _Lanes.joined(lanes)), False
        self._period, self._even = _repetition(table, row)

    def take(self, rows: Ints) -> MixPlacement:
        """That of some of the rows."""
        part = copy(self)
        part._mix, part._end, part._row = self._mix[rows], self._end[rows], self._row[rows]
        part._even = self._even[rows]
        return part

    def reaches(self, bottleneck: Floats) -> Bools:
        """Whether they hold the whole model in some order when no stage takes longer than that: (n,)."""
        return np.asarray(self._reached(bottleneck)[np.arange(len(self._mix)), self._used] == self._end)

    def beginnings(self, bottleneck: Floats) -> Bools:
        """Which chip types, as bits of a number, may stand first in such an order, whatever theirs is, as far as is
        known of them and of the others behind them: (n, numbers)."""
        first = self._reached(bottleneck)
        may = np.zeros(first.shape, dtype=np.bool_)
        whole = np.nonzero(first[np.arange(len(first)), self._used] == self._end)[0]
        if len(whole):
            part, first = self.take(whole), first[whole]
            from_end = part._backward()._reached(bottleneck[whole])
            last = np.take_along_axis(from_end, part._used[:, None] & ~np.arange(first.shape[1]), axis=1)
            may[whole] = (first >= 0) & (last >= 0) & (first + last >= part._end[:, None])
        return may

    @property
    def _used(self) -> Ints:
        """The chip types of each mix, as bits of a number: (n,)."""
        return np.asarray((self._mix > 0) @ (1 << np.arange(self._types)))

    def _reached(self, bottleneck: Floats) -> Ints:
        """The furthest that chip types reach that stand first, as bits of a number; -1: they do not: (n, numbers)."""
        subsets, bits = np.arange(1 << self._types), 1 << np.arange(self._types)
        # Every type behind every subset of the others, place by place: where it begins, all that end there have ended.
        row, subset, chip = np.nonzero((self._mix > 0)[:, None] & (subsets[:, None] & bits == 0))
        begin = ((subsets[:, None] & bits > 0) @ self._mix.T)[subset, row]
        end, joined = begin + self._mix[row, chip], subset | bits[chip]
        reached, at = np.full((len(self._mix), len(subsets)), -1), np.full(len(row), -1)
        reached[:, 0] = 0
        strides = self._strides(bottleneck)
        for place in range(self.pp):
            at = np.where(begin == place, reached[row, subset], at)
            now = np.nonzero((begin <= place) & (place < end) & (at >= 0))[0]
            at[now] = self._along(place, row[now], chip[now], at[now], bottleneck, strides)
            now = now[end[now] == place + 1]
            np.maximum.at(reached, (row[now], joined[now]), at[now])
        return reached

    def _along(self, place: int, row: Ints, chip: Ints, at: Ints, bottleneck: Floats, strides: Ints | None) -> Ints:
        """How far stages of chip types at that place of the pipeline reach, -1 where one holds too little: (m,)."""
        to, open_ = np.empty_like(at), np.arange(len(at))
        if strides is not None:
            beyond = at - self._even[row]
            to = at + strides[row, chip, place, beyond % self._period]
            open_ = np.nonzero(beyond < 0)[0]
        to[open_] = self._furthest(place, row[open_], chip[open_], at[open_], bottleneck)
        to = np.minimum(to, self._end[row] - (self.pp - 1 - place))
        return np.where(to >= at + (place == 0), to, -1)  # see `_Ground.furthest`

    def _strides(self, bottleneck: Floats) -> Ints | None:
        """How many places further each stage reaches from those behind which the kinds of layers repeat: (n, types, pp,
        period). None: fewer are looked at one by one."""
        types = int((self._mix > 0).sum(axis=1).max(initial=1))
        if self._from_end or types * self._period >= 1 << (types - 1):
            return None
        strides = np.zeros((len(self._mix), self._types, self.pp, self._period), dtype=np.int64)
        row, chip, place, later = np.nonzero(np.broadcast_to((self._mix > 0)[:, :, None, None], strides.shape))
        at = np.minimum(self._even[row] + later, self._end[row])
        strides[row, chip, place, later] = self._furthest(place, row, chip, at, bottleneck) - at
        return strides

    def _furthest(self, place: int | Ints, row: Ints, chip: Ints, at: Ints, bottleneck: Floats) -> Ints:
        stands = self.pp - 1 - place if self._from_end else place
        spot, lane = (self._row[row] * self._types + chip) * self.pp + stands, chip * self._all + self._row[row]
        return self._ground.furthest(spot, lane, at, bottleneck[row])

    def _backward(self) -> MixPlacement:
        """The same pipelines from their end to their beginning."""
        part = copy(self)
        part._from_end, part._ground = True, self._ground.backward()
        return part


def _last_place(table: Coefficients, row: Ints) -> Ints:
    """The places in a chunk: (n,)."""
    return np.asarray(table.rows.places(table.problem.model.layers, row) // table.rows.vpp[row])


def _repetition(table: Coefficients, row: Ints) -> tuple[int, Ints]:
    """After how many places the kinds of layers come again, and of each row from which place on: (n,)."""
    even = [np.zeros(len(row), dtype=np.int64) for _ in _PERIODS]
    for counts, same in table.counts(table.rows.take(row)):
        for period, of_rows in zip(_PERIODS, even, strict=True):
            of_rows[same] = repeats_from(counts, period)
    return min(zip(_PERIODS, even, strict=True), key=lambda each: each[0] * int(each[1].sum()))


def _where_they_stand(stages: Stages, spared: Floats) -> Stages:
    """With layers counted where they stand: nothing is to be saved beyond that, bytes `spared` neither."""
    return replace(_sets_in_order(stages), fixed=stages.fixed + stages.saving, room=stages.room - spared)


@dataclass(frozen=True)
class _Ground:
    """All `spots` of some pipelines, (m, 1), row by row and therein place by place; the stages that they are of, for
    their sets of modules; and the lanes that they may stand on."""

    spots: Stages
    stages: Stages
    lanes: _Lanes

    @classmethod
    def of(cls, stages: Stages, lanes: _Lanes) -> _Ground:
        """Those of n rows, (n, pp)."""
        return cls(stages.one_by_one(), stages, lanes)

    def backward(self) -> _Ground:
        """The same from the model's end."""
        return replace(self, lanes=self.lanes.backward())

    def furthest(self, spot: Ints, lane: Ints, at: Ints, bottleneck: Floats) -> Ints:
        """The furthest place that stages reach from `at`, less than that where one has no time or memory at all: (n,).

        One that has no time for the layer it starts at may have started earlier: it reaches no further for that.
        """
        fixed, time = self.spots.fixed[spot, 0], self.lanes.time[:, lane]
        limit = (bottleneck - fixed) * (1 + ROUNDING)
        in_time = (time <= time[at, np.arange(len(at))] + limit).sum(axis=0) - 1
        way = _Reach.of(self, spot, lane, at, limit, max(0, int((in_time - at).max(initial=0))))
        may = {kind: allowed[spot, 0] for kind, allowed in self.spots.allowed.items()}
        plain = np.minimum(in_time, way.fits(way.own(self.spots.plain)))
        best = np.where(may["none"] | may["block"], plain, -1)
        # Recomputation takes time: it lets those reach further that are short of memory.
        for kind, reach in zip(_KINDS, (_Reach.block, _Reach.selective, _Reach.uniform), strict=True):
            short = np.nonzero(may[kind] & (best < in_time))[0]
            if len(short):
                best[short] = np.maximum(best[short], np.minimum(in_time[short], reach(way.take(short))))
        return best

    def need(self, which: Ints, spot: Ints) -> Need:
        """What layers need under a set of each stage's own: `Stages.by_set`, (n,)."""
        places = self.stages.set_seconds.shape[-2:]
        row, column = np.minimum(np.divmod(spot, self.stages.pp), np.array(places)[:, None] - 1)
        sets = self.stages.set_seconds, self.stages.set_bytes, self.stages.set_replay
        seconds, held, replay = (part[which, row, column] for part in sets)
        return Need(seconds, self.spots.live[spot, 0] * held, replay + self.spots.beside[spot, 0] * held)


@dataclass(frozen=True)
class _Reach:
    """Stages at some spots, (n,), and what they may hold from where they start, `at`: (places, n)."""

    ground: _Ground
    spot: Ints
    at: Ints
    limit: Floats
    layers: Floats
    states: Floats
    time: Floats

    @classmethod
    def of(cls, ground: _Ground, spot: Ints, lane: Ints, at: Ints, limit: Floats, most: int) -> _Reach:
        """To so many places further on their lanes; where there are fewer the last one again."""
        lanes = ground.lanes
        places = np.minimum(at + np.arange(most + 1)[:, None], len(lanes.time) - 1)
        layers = lanes.chunks[lane] * places
        return cls(ground, spot, at, limit, layers, lanes.states[places, lane], lanes.time[places, lane])

    def take(self, part: Ints) -> _Reach:
        """Those of some of the stages."""
        if len(part) == len(self.at):
            return self
        held = (array[:, part] for array in (self.layers, self.states, self.time))
        return _Reach(self.ground, self.spot[part], self.at[part], self.limit[part], *held)

    def of_spots(self, part: Floats) -> Floats:
        """The stages' own of an array of all spots: (n,)."""
        return part[self.spot, 0] if len(part) > 1 else part[:, 0]

    def own(self, need: Need) -> Need:
        """The same of what layers need."""
        return Need(*map(self.of_spots, (need.seconds, need.in_flight, need.once)))

    @cached_property
    def room(self) -> Floats:
        """Bytes, (n,)."""
        return self.of_spots(self.ground.spots.room) * (1 + ROUNDING)

    def within(self, prefix: Floats, most: Floats) -> Ints:
        """The furthest place up to which a growing quantity grows by no more than that."""
        return np.asarray(self.at + (prefix <= prefix[0] + most).sum(axis=0) - 1)

    def fits(self, need: Need) -> Ints:
        """How far memory reaches where every layer needs that much."""
        return self.within(self.states + need.in_flight * self.layers, self.room - need.once)

    def block(self) -> Ints:
        """How far they reach with some layers recomputed."""
        spots, plain = self.ground.spots, self.own(self.ground.spots.plain)
        held, rate = self.states + plain.in_flight * self.layers, self.of_spots(spots.seconds_for_byte)
        paid = self.within(self.time + rate * held, self.limit + rate * (self.room - self.of_spots(spots.full)))
        return np.minimum(paid, self.fits(self.own(spots.recomputed)))

    def selective(self) -> Ints:
        """How far any set of modules lets them reach: the less of how far its time and its memory do.

        The slower a set the less far its time, and the farther its memory: the best is where they meet, or next to it.
        """
        best, count = np.full(len(self.at), -1), len(self.ground.stages.set_seconds)
        low, high = np.zeros(len(self.at), dtype=np.int64), np.full(len(self.at), count - 1)
        for _ in range(int(count - 1).bit_length() + 1 if count else 0):
            middle = (low + high) // 2
            need = self.ground.need(middle, self.spot)
            in_time = self.within(self.time + need.seconds * self.layers, self.limit)
            fits = self.fits(need)
            best = np.maximum(best, np.minimum(in_time, fits))
            enough = fits >= in_time
            low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
        return best

    def uniform(self) -> Ints:
        """How far units of layers recomputed let them reach, of the best size in any fractions."""
        spots = self.ground.spots
        recomputed = self.own(spots.recomputed)
        in_time = self.within(self.time + recomputed.seconds * self.layers, self.limit)
        layers = np.maximum(0.0, self.layers - self.layers[0])
        in_flight, full = recomputed.in_flight * layers, self.of_spots(spots.full)
        held = self.states - self.states[0] + uniform_bytes(in_flight, full)
        return np.asarray(np.minimum(in_time, self.at + ((held <= self.room) | (layers == 0)).sum(axis=0) - 1))


def _sets_in_order(stages: Stages) -> Stages:
    """With sets of modules such that slower ones never need more memory."""
    seconds = np.maximum.accumulate(stages.set_seconds, axis=0)
    stored, replay = (np.minimum.accumulate(part, axis=0) for part in (stages.set_bytes, stages.set_replay))
    return replace(stages, set_seconds=seconds, set_bytes=stored, set_replay=replay)
