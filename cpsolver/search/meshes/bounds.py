"""Bounds on plans of meshes: which options of each chip type may be part of a plan below a limit, and which combine.

A plan's slowest stage takes some time T. Under the T's between two edges every stage holds no more layers than at the
upper one, and all microbatches but one take no less than at the lower one. So for each range of T an option (a row and
a number of stages) has a cost for every number of layers, those of the other chip types are the least of theirs, and
what the best combination with them takes is a bound on all plans with the option.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from cpsolver.cost.kinds import counts_before
from cpsolver.cost.shard import Bools, Floats, Ints
from cpsolver.search.bounds.bottleneck import cheapest, several_kinds
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.stages import ROUNDING, Stages
from cpsolver.search.meshes.rounds import Round
from cpsolver.search.recent import Recent

_COARSE_RANGES = 3
"""Ranges that the slowest stage's time is cut into for a first look at the options of each chip type."""
_RANGES = 10
"""The same for what that leaves."""
_FINE_RANGES = 32
"""The same for combinations."""
_SHRUNK = 0.7
"""Options are bounded again while so many of them, or less of the range of times, are left."""
_PRICES = np.array([0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0])
"""Layers that a device is priced at, in shares of what it holds on average: any prices make bounds, the best one lies
among these or between two."""
_FOREVER = 1e9
"""Layers: stands for what an option that holds none is worth."""
_BY_FAR = 100.0
"""Slow links between chip types stay within so many times what a stage takes on the chips' own."""
_MANY = 65_536
"""Places of a round's rows: fewer are looked at together."""
_KNOWN = 256
"""Stages of so many chip types, rounds and depths are kept."""
_SAFETY = 1.0 - ROUNDING


@dataclass(frozen=True)
class Options:
    """What a chip type may do in a plan: rows of the table, and how many stages have them; none: it is not used."""

    row: Ints
    stages: Ints

    def __len__(self) -> int:
        return len(self.row)

    def take(self, chosen: Ints | Bools) -> Options:
        """Those with these indices, or under that mask."""
        return Options(self.row[chosen], self.stages[chosen])


@dataclass(frozen=True)
class Region:
    """A part of the plans of a round: options by chip type, and the chip types that stand last.

    `ends`: chip types from the last one on, as far as they are settled; `span`: the slowest stage's time lies in it.
    """

    round: Round
    options: tuple[Options, ...]
    ends: tuple[int, ...]
    span: tuple[float, float]

    @property
    def settled(self) -> bool:
        """The order of all chip types in use is known."""
        return all(chip in self.ends or not of_chip.stages.any() for chip, of_chip in enumerate(self.options))

    @property
    def fewest_stages(self) -> int:
        """No plan has fewer."""
        return max(1, sum(int(of_chip.stages.min()) for of_chip in self.options))

    def fewest_behind(self, chip: int) -> int:
        """No fewer stages stand behind a chip type's: of those that are known to."""
        known = self.ends.index(chip) if chip in self.ends else len(self.ends)
        return sum(int(self.options[other].stages.min()) for other in self.ends[:known])


class MeshBounds:
    """Bounds on parts of the plans of a table of rows, all with as many devices."""

    def __init__(self, table: Coefficients, exact_devices: int) -> None:
        self.table, self.devices = table, exact_devices
        self.layers = table.problem.model.layers
        self.width = np.asarray(table.rows.stage_devices)
        self._known: Recent[tuple[int, int, int, bytes], tuple[Ints, Stages]] = Recent(_KNOWN)

    def used(self, options: Options) -> Ints:
        """Devices of each option."""
        return np.asarray(self.width[options.row] * options.stages)

    def stages(self, part: Region, chip: int, rows: Ints, deepest: int) -> Stages:
        """Rows of a part on a chip type at places up to the `deepest` from the pipeline's end, and at its beginning.

        They are kept, and made for some places more and, where these are few, for all rows of the round: other parts
        of it ask for the same.
        """
        of_round, deepest = part.round.rows, min(deepest, self.layers)
        depth = min(1 << (deepest - 1).bit_length(), self.layers)
        few = len(of_round) * self.layers <= _MANY
        fewest = part.fewest_stages if several_kinds(self.table.problem) else 1
        key = chip, fewest, 0 if few else depth, of_round.tobytes()
        known = self._known.get(key)
        if known is None or known[1].pp < deepest + 2 or not (few or np.isin(rows, known[0]).all()):
            made = of_round if few else rows
            stages = self.table.stages(made, np.full((len(made), depth + 2), chip), any_neighbours=True, fewest=fewest)
            # The pipeline's first stage has the embedding, but a neighbour less than those between: it may take less.
            least = np.minimum(stages.fixed, stages.fixed[:, :1])
            least[:, -1] = stages.fixed[:, -1]
            known = self._known[key] = made, replace(stages, fixed=least)
        stages = known[1] if len(rows) == len(known[0]) else known[1].take(np.searchsorted(known[0], rows))
        return stages.without(1, max(1, stages.pp - 1 - deepest))

    def that_add_up(self, part: Region) -> Region | None:
        """The part without options whose devices, or stages, no others complete; None: nothing is left."""
        options = list(part.options)
        for _ in range(2 * len(options)):
            before = [len(each) for each in options]
            if not all(before):
                return None
            for chip, own in enumerate(options):
                others = [self.used(each) for at, each in enumerate(options) if at != chip]
                left = self.devices - self.used(own)
                fits = (left >= sum(int(each.min()) for each in others)) & (
                    left <= sum(int(each.max()) for each in others)
                )
                if len(others) == 1:
                    fits &= np.isin(left, others[0])
                fewest = sum(int(each.stages.min()) for at, each in enumerate(options) if at != chip)
                options[chip] = own.take(fits & (own.stages + fewest <= self.layers))
                if not len(options[chip]):
                    return None
            if before == [len(each) for each in options]:
                break
        return replace(part, options=tuple(options))

    def quick(self, part: Region) -> tuple[float, float]:
        """Bounds on the step time and on the slowest stage's, each type taking one of its options."""
        slowest, seconds = zip(*self._at_a_glance(part), strict=True)
        return max(float(each.min()) for each in seconds), max(float(each.min()) for each in slowest)

    def _at_a_glance(self, part: Region) -> Iterator[tuple[Floats, Floats]]:
        """For each chip type bounds on the slowest stage's time and on the step time for every option, in a few
        operations: all layers spread in any fractions over it and the fastest of the others, memory ignored."""
        layers = [np.where(own.stages > 0, self._layer[chip, own.row], np.inf) for chip, own in enumerate(part.options)]
        speeds = [own.stages / layer for own, layer in zip(part.options, layers, strict=True)]
        spared = [self._spared[chip][:, own.row].max(axis=1) for chip, own in enumerate(part.options)]
        held = max(0.0, self.layers - float(self._of_each_kind @ np.max(spared, axis=0))) * _SAFETY
        best, least = [float(each.max()) for each in speeds], [float(each.min()) for each in layers]
        for chip, (layer, speed) in enumerate(zip(layers, speeds, strict=True)):
            together = speed + (sum(best) - best[chip])
            slowest = np.divide(held, together, out=np.full(len(speed), np.inf), where=together > 0)
            fastest = np.minimum(layer, min(least[:chip] + least[chip + 1 :], default=np.inf))
            yield slowest, (part.round.microbatches - 1) * slowest + held * fastest

    def longest(self, rows: Ints) -> float:
        """No stage of these rows takes longer, by far."""
        return _BY_FAR * float(self._all_on_one[:, rows].max())

    @cached_property
    def _all_on_one(self) -> Floats:
        """Seconds of one stage with all layers, recomputed, embedding and head, and transfers to all: (types, rows)."""
        time, problem = self.table.time, self.table.problem
        layer = time.layer + np.maximum(time.recompute, time.modules.sum(axis=1)) + np.abs(time.kind_layer).sum(axis=1)
        latency = self.table.tables.latency.max() * self.devices
        hops = (1 + problem.stack.pipeline_transfers) * (time.hop_near + time.hop_far + latency)
        return np.asarray(self.layers * layer + time.embedding + time.head + time.chunk + hops)

    @property
    def _layer(self) -> Floats:
        return self.table.time.layer

    @cached_property
    def _of_each_kind(self) -> Ints:
        """How many layers the model has of each kind: (kinds,)."""
        return np.asarray(counts_before(self.table.problem.model, 1)[:, -1])

    @cached_property
    def _spared(self) -> Floats:
        """What a layer of each kind takes less than the mean layer, in shares of that: (types, kinds, rows)."""
        return np.maximum(0.0, -self.table.time.kind_layer / self._layer[:, None])

    def filtered(self, part: Region, limit: float) -> tuple[float, Region] | None:
        """A bound on the part, and what of it may be below the limit; None: nothing."""
        ranges = _COARSE_RANGES
        while True:
            left = self._worth_a_look(part, limit)
            if left is None:
                return None
            bounds, edges = self._bounds(left, limit, ranges)
            by_range = np.max([each.min(axis=0) for each in bounds], axis=0)  # each type takes one of its options
            open_ranges = np.nonzero(by_range < limit)[0]
            if not len(open_ranges):
                return None
            span = float(edges[open_ranges[0]]), float(edges[open_ranges[-1] + 1])
            keep = [each[:, open_ranges].min(axis=1) < limit for each in bounds]
            smaller = replace(
                left, options=tuple(o.take(k) for o, k in zip(left.options, keep, strict=True)), span=span
            )
            count = sum(map(len, left.options))
            much = sum(map(len, smaller.options)) < _SHRUNK * count
            if ranges == _RANGES and not much and span[1] - span[0] > _SHRUNK * (edges[-1] - edges[0]):
                return float(by_range.min()), smaller
            part, ranges = smaller, _RANGES

    def _worth_a_look(self, part: Region, limit: float) -> Region | None:
        """What of a part adds up and is below the limit at a glance; None: nothing."""
        while (left := self.that_add_up(part)) is not None:
            keep = [seconds < limit for _, seconds in self._at_a_glance(left)]
            if all(each.all() for each in keep):
                break
            part = replace(left, options=tuple(o.take(k) for o, k in zip(left.options, keep, strict=True)))
        return left

    def _bounds(self, part: Region, limit: float, ranges: int) -> tuple[list[Floats], Floats]:
        """For each chip type a bound for every option and range of the slowest stage's time, and the ranges' edges."""
        low, high = part.span
        most = part.round.microbatches - 1
        if most:
            high = min(high, limit / most)
        if high <= low or not most:
            edges = np.array([low, max(high, low)])
        else:
            edges = np.geomspace(max(low, high * 1e-4), high, ranges + 1)
            edges[0] = low
        mine = [_Cost(self, part, chip, edges[1:]) for chip in range(len(part.options))]
        cheapest = [each.cheapest for each in mine]
        after = [float(each.after_least.min()) for each in mine]
        bounds = []
        for chip, (own, rest) in enumerate(zip(mine, _of_others(cheapest), strict=True)):
            follows = max((value for at, value in enumerate(after) if at != chip), default=0.0)
            bounds.append((own.with_others(rest, follows) + most * edges[None, :-1]) * _SAFETY)
        enough = self._hold_the_model(part, mine)
        return [np.where(mask, each, np.inf) for mask, each in zip(enough, bounds, strict=True)], edges

    def _hold_the_model(self, part: Region, costs: Sequence[_Cost]) -> list[Bools]:
        """The options, by range, with which so many devices can hold all layers: (options, ranges) of each chip type.

        The devices at hand are a knapsack. For any price of a device no choice holds more than the best of each chip
        type at that price, with the price of all devices on top.
        """
        devices = [self.used(options) for options in part.options]
        enough = [each.room >= 0 for each in costs]
        if sum(int(each.max()) for each in devices) == self.devices:
            return enough
        for price in _PRICES * (self.layers / self.devices):
            worth = [
                np.where(each.room >= 0, np.minimum(each.room, self.layers) - price * used[:, None], -_FOREVER)
                for each, used in zip(costs, devices, strict=True)
            ]
            best = np.stack([each.max(axis=0) for each in worth])
            together = best.sum(axis=0) + price * self.devices
            for mask, each, own in zip(enough, worth, best, strict=True):
                mask &= each - own + together >= self.layers - ROUNDING * self.layers
        return enough


def _of_others(tables: Sequence[Floats]) -> list[Floats]:
    """For each chip type the least that all others take together for every number of layers: as the tables, (ranges,
    layers + 1)."""
    nothing = np.where(np.arange(tables[0].shape[1]) > 0, np.inf, np.zeros((len(tables[0]), 1)))
    before, behind = list[Floats | None]([None]), list[Floats | None]([None])
    for first, last in zip(tables[:-1], tables[:0:-1], strict=True):
        before.append(_together(before[-1], first))
        behind.append(_together(behind[-1], last))
    found = (_together(*both) for both in zip(before, behind[::-1], strict=True))
    return [nothing if rest is None else rest for rest in found]


def _together(one: Floats | None, other: Floats | None) -> Floats | None:
    """The least sum for every number of layers, shared out in any way: as both, (ranges, layers + 1); None: no type."""
    if one is None or other is None:
        return other if one is None else one
    count = one.shape[1]
    known = np.concatenate([np.full((len(one), count - 1), np.inf), one], axis=1)
    rest = sliding_window_view(known, count, axis=1)[:, :, ::-1]  # (.., layers in all, layers of the other)
    return np.asarray((rest + other[:, None, :]).min(axis=2))


class _Cost:
    """What the options of a chip type take for every number of layers, by range of the slowest stage's time."""

    def __init__(self, bounds: MeshBounds, part: Region, chip: int, tops: Floats) -> None:
        options, layers = part.options[chip], bounds.layers
        self._layers = np.arange(layers + 1)
        self._options, self._stages = options, options.stages
        rows, at = np.unique(options.row, return_inverse=True)
        first = part.fewest_behind(chip)
        hosts = Hosts.of(bounds, part, chip, rows, first + int(options.stages.max()))
        self.room = hosts.held(tops, at, np.full(len(options), first), options.stages)  # (options, ranges)
        self.slope, self.base = hosts.slope[at], hosts.base(at, options.stages)
        used = options.stages > 0
        self.after_layer, self.after_fixed = hosts.after_layer[at], np.where(used, hosts.after_fixed[at], 0.0)
        self.after_least = self.after_fixed + np.where(used, self.after_layer, 0.0)

    @property
    def _seconds(self) -> Floats:
        """Seconds of one microbatch on all stages: (options, layers + 1)."""
        return np.asarray(self.slope[:, None] * self._layers + self.base[:, None])

    def _possible(self, layers_room: Floats) -> Bools:
        """Numbers of layers that stages can hold: (options, layers + 1)."""
        return np.asarray((self._layers >= self._stages[:, None]) & (self._layers <= layers_room[:, None]))

    @property
    def cheapest(self) -> Floats:
        """The least of all options: (ranges, layers + 1)."""
        seconds = self._seconds
        return np.stack([np.where(self._possible(room), seconds, np.inf).min(axis=0) for room in self.room.T])

    def with_others(self, rest: Floats, follows: float) -> Floats:
        """The least of each option together with what the rest takes of the other layers: (options, ranges)."""
        stages = np.maximum(1, self._stages)[:, None]
        after = np.maximum(self.after_fixed[:, None] + self.after_layer[:, None] * -(-self._layers // stages), follows)
        seconds = self._seconds + np.where(self._stages[:, None] > 0, after, follows)
        backwards = rest[:, ::-1]
        columns = [
            np.where(self._possible(room), seconds + backwards[index], np.inf).min(axis=1)
            for index, room in enumerate(self.room.T)
        ]
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class Hosts:
    """Rows on one chip type at places counted from the pipeline's end: what stages there hold and take.

    `stages_of` makes the stages of some of the rows up to a place, those of like depth `apart` where they are many;
    `slope` seconds of a layer, `inner` and `last` without layers between others and at the very end; `saving` what all
    stages of the type may save by cheap layers.
    """

    stages_of: Callable[[Ints, int], Stages]
    apart: bool
    at_end: bool
    slope: Floats
    inner: Floats
    last: Floats
    saving: Floats
    after_layer: Floats
    after_fixed: Floats

    @classmethod
    def of(cls, bounds: MeshBounds, part: Region, chip: int, rows: Ints, deepest: int) -> Hosts:
        """Those of a part up to some place, as `MeshBounds.stages` has them."""
        apart = len(part.round.rows) * bounds.layers > _MANY
        stages = bounds.stages(part, chip, rows, 1 if apart else deepest)
        fixed = stages.fixed + stages.saving
        return cls(
            stages_of=lambda some, deepest: bounds.stages(part, chip, rows[some], deepest),
            apart=apart,
            at_end=chip in part.ends[:1],
            slope=np.broadcast_to(stages.layer, fixed.shape)[:, 1],
            inner=fixed[:, 1],
            last=fixed[:, -1],
            saving=np.broadcast_to(stages.saving, fixed.shape)[:, 1],
            after_layer=np.broadcast_to(stages.after_layer, fixed.shape)[:, 1],
            after_fixed=np.broadcast_to(stages.after_fixed, fixed.shape)[:, 1],
        )

    def base(self, at: Ints, stages: Ints) -> Floats:
        """Seconds of that many stages without layers, less what they may save."""
        ends = (self.last - self.inner)[at] if self.at_end else 0.0
        return np.where(stages > 0, stages * self.inner[at] + ends - self.saving[at], 0.0)

    def held(self, tops: Floats, at: Ints, first: Ints, stages: Ints) -> Floats:
        """Layers that stages from `first` places from the end on hold: (options, ranges); -1: one holds none."""
        room = np.empty((len(at), len(tops)))
        # Of many rows only the last places are asked for: rows twice as deep are looked at apart.
        depth = np.ceil(np.log2(np.maximum(1, first + stages))) * self.apart
        for deep in np.unique(depth):
            alike = np.nonzero(depth == deep)[0]
            rows, own = np.unique(at[alike], return_inverse=True)
            start, end = first[alike], first[alike] + stages[alike]
            layers, bad = self._prefix(self.stages_of(rows, int(max(1, end.max()))), tops)
            end = np.minimum(end, layers.shape[2] - 1)
            held = layers[:, own, end] - layers[:, own, start]
            room[alike] = np.where(bad[:, own, end] == bad[:, own, start], held, -1.0).T
        return room

    def _prefix(self, stages: Stages, tops: Floats) -> tuple[Floats, Ints]:
        """For each top of the slowest stage's time, row and place: layers held, and places that hold none, before it.

        (ranges, rows, places + 1), places from the end.
        """
        held = stages.most_layers(tops[:, None, None])[:, :, :0:-1]
        bad = held < 1
        shape = (*held.shape[:2], 1)
        layers = np.concatenate([np.zeros(shape), np.where(bad, 0.0, held).cumsum(axis=2)], axis=2)
        return layers, np.concatenate([np.zeros(shape, dtype=np.int64), bad.cumsum(axis=2)], axis=2)


class Combinations:
    """All combinations of a part's options, one of each chip type, in a settled order; unused chip types are out."""

    def __init__(self, bounds: MeshBounds, part: Region, most: int) -> None:
        sizes = [len(each) for each in part.options]
        picks = np.stack([pick.ravel() for pick in np.meshgrid(*map(np.arange, sizes), indexing="ij")], axis=1)
        devices = sum(bounds.used(each)[picks[:, chip]] for chip, each in enumerate(part.options))
        stages = sum(each.stages[picks[:, chip]] for chip, each in enumerate(part.options))
        self.picks = picks[(devices == bounds.devices) & (stages <= min(most, bounds.layers))]
        self._bounds, self._part = bounds, part

    def column(self, chip: int) -> tuple[Ints, Ints]:
        """Rows and stages of a chip type in each combination."""
        options = self._part.options[chip].take(self.picks[:, chip])
        return options.row, options.stages

    def keep(self, mask: Bools) -> None:
        """Leave the others out."""
        self.picks = self.picks[mask]

    def lower(self, limit: float) -> Floats:
        """A bound for each combination."""
        bounds, part, count = self._bounds, self._part, len(self.picks)
        low, high = part.span
        most = part.round.microbatches - 1
        edges = np.linspace(low, min(high, limit / most), _FINE_RANGES + 1) if most else np.array([low, high])
        costs = list(self._costs(edges[1:]))
        best = np.full(count, np.inf)
        for index, (start, _) in enumerate(pairwise(edges.tolist())):
            room = np.stack([cost.room[:, index] for cost in costs])
            spare = room.sum(axis=0) - bounds.layers
            possible = (room >= 0).all(axis=0) & (spare >= 0)
            stages = np.stack([cost.stages for cost in costs]).astype(np.float64)
            least = np.maximum(stages, room - spare)
            seconds = cheapest(np.stack([cost.slope for cost in costs]), room, stages, bounds.layers)
            seconds += sum(cost.base for cost in costs)
            needed = np.ceil(least / np.maximum(1, stages) - 1e-9)
            after = [
                np.where(cost.stages > 0, cost.after_fixed + cost.after_layer * needed[at], 0.0)
                for at, cost in enumerate(costs)
            ]
            total = most * start + seconds + np.max(after, axis=0)
            best = np.minimum(best, np.where(possible, total, np.inf))
        return np.asarray(best * _SAFETY)

    def _costs(self, tops: Floats) -> Iterator[_Used]:
        """What each chip type takes in the combinations, in the order of the part's ends."""
        behind = np.zeros(len(self.picks), dtype=np.int64)
        for chip in self._part.ends:
            row, stages = self.column(chip)
            rows, at = np.unique(row, return_inverse=True)
            hosts = Hosts.of(self._bounds, self._part, chip, rows, int((behind + stages).max(initial=1)))
            room = hosts.held(tops, at, behind, stages)
            yield _Used(
                stages, room, hosts.slope[at], hosts.base(at, stages), hosts.after_layer[at], hosts.after_fixed[at]
            )
            behind = behind + stages


@dataclass(frozen=True)
class _Used:
    """One chip type's part in combinations: arrays (n,), `room` (n, ranges)."""

    stages: Ints
    room: Floats
    slope: Floats
    base: Floats
    after_layer: Floats
    after_fixed: Floats
