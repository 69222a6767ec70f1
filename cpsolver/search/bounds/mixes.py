"""Lower bounds on step time for mixes: how many stages each chip type serves, in any order."""

from __future__ import annotations

import numpy as np

from cpsolver.cost.shard import Bools, Floats, Ints
from cpsolver.search.bounds.bottleneck import (
    LEAST,
    NO_USE,
    After,
    ByEvents,
    Rest,
    cheapest,
    layers_of,
    least_after,
    longest_wanted,
    over_edges,
    smallest,
)
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.placement import MixPlacement
from cpsolver.search.bounds.quick import SAFETY
from cpsolver.search.bounds.sections import bisected
from cpsolver.search.bounds.stages import Stages

_MIX_ROUNDS = 13
"""Halvings of the interval for the bottleneck time: plans have closer bounds. With 8 of them W6 of
benchmarks/workloads.py takes four times as long."""
_COARSE_ROUNDS = 7
"""The same of mixes in their places, between what all stages take on average and the longest of use."""
_FORCED = 1e6
"""Lifts the places that a mix must use above all others; no stage holds that many layers."""


class _Mixes:
    """Rows whose stages per chip type are from `least` to `most`, (n, types) each, in any order: every type stands
    where it fares best, whatever the others do. Rows must have the same pp."""

    def __init__(self, table: Coefficients, row: Ints, least: Ints, most: Ints) -> None:
        self.by_type, self.layers = _by_type(table, row), layers_of(table, row)
        self.fixed = _fixed_in_any_order(table, row, self.by_type, most > 0)
        self.together, self._equal = Stages.side_by_side(self.by_type), table.equal[row]
        self._place, self._least, self._most = np.arange(self.together.pp // most.shape[1]), least, most
        self._layer = np.array([stages.layer[:, 0] for stages in self.by_type])
        self._exact = (least == most).all(axis=1, keepdims=True)

    @property
    def least_in_all(self) -> Floats:
        """The least seconds of all stages: (n,)."""
        layer = np.where(self._most.T > 0, self._layer, np.inf).min(axis=0)
        return np.asarray(self.layers * layer + self.fixed)

    def _best_places(self, bottleneck: Floats) -> Floats:
        """Layers held by each type's best places, (n, types, pp); -1 beyond the type's count."""
        shape = *self._most.shape, len(self._place)
        held = self.together.most_layers(bottleneck).reshape(shape)
        return np.where(self._place < self._most[:, :, None], -np.sort(-held, axis=2), -1.0)

    def enough(self, bottleneck: Floats) -> Bools:
        """Whether they hold all layers when none takes longer than that."""
        held, pp = self._best_places(bottleneck), len(self._place)
        ranked = np.where(self._place < self._least[:, :, None], _FORCED + held, held).reshape(len(held), -1)
        top = -np.partition(-ranked, pp - 1, axis=1)[:, :pp]
        top = np.where(top > _FORCED / 2, top - _FORCED, top)
        return np.asarray((top.min(axis=1) >= 0) & (_most_in_any_order(self._equal, top) >= self.layers))

    def rest(self, longest: Floats) -> Rest:
        """What is known where none takes longer than that."""
        room = np.maximum(self._best_places(longest), 0.0).sum(axis=2)
        spare = room.sum(axis=1, keepdims=True) - self.layers[:, None]
        at_least = np.where(self._exact, np.maximum(0.0, room - spare), 0.0)
        total = cheapest(self._layer, room.T, at_least.T, self.layers) + self.fixed
        return Rest(total, self._after(room, at_least))

    def _after(self, room: Floats, at_least: Floats) -> Floats:
        """What follows the pipeline on the worst type that is sure to be used (or 0), on its average stage, and on the
        worst of all, the types having so much room."""
        fixed = np.array([stages.after_fixed.min(axis=1) for stages in self.by_type]).T
        layer = np.array([stages.after_layer[:, 0] for stages in self.by_type]).T
        chunks, count = self.by_type[0].chunks, np.maximum(1, self._most)
        sure = np.where(at_least > 0, fixed + layer * np.maximum(at_least / count, chunks), 0.0).max(axis=1)
        return least_after(After(layer, fixed, chunks), room, sure, self.layers, self._most)


def mix_bound(table: Coefficients, row: Ints, least: Ints, most: Ints, wanted: ByEvents | None = None) -> Floats:
    """A bound for rows whose stages per chip type are from `least` to `most`, (n, chips) each, in any order.

    Rows must have the same pp. `wanted`: as in `plan_bound`.
    """
    mixes = _Mixes(table, row, least, most)
    slowest = smallest(mixes.enough, mixes.by_type, mixes.layers, _MIX_ROUNDS)
    by_formula, by_events = over_edges(slowest, table, row, mixes.rest)
    return by_formula if wanted is None else wanted.lifted(by_formula, by_events)


def beginnings(table: Coefficients, row: Ints, mix: Ints, limit_s: Floats, wanted: ByEvents | None = None) -> Bools:
    """Which chip types may stand first in orders whose `plan_bound` may be below its limits, each type serving so many
    stages as `mix` has, (n, types), where layers are of several kinds: (n, numbers whose bits are types). An order of
    which a beginning may not is of no use. Limits as there.
    """
    placement, longest, _ = _placed_mixes(table, row, mix, limit_s, wanted)
    return placement.beginnings(longest)


def placed_bound(table: Coefficients, row: Ints, mix: Ints, limit_s: Floats, wanted: ByEvents | None = None) -> Floats:
    """A bound for any order of the types of such mixes: a time that no plan takes where none is below its limits."""
    placement, longest, rest = _placed_mixes(table, row, mix, limit_s, wanted)
    bound = np.full(len(row), NO_USE)
    left = np.nonzero(placement.reaches(longest))[0]
    if not len(left):
        return bound
    (first, second), low = table.weights(row[left]), np.maximum(LEAST, rest.total[left] / placement.pp)
    slowest = bisected(placement.take(left).reaches, np.minimum(low, longest[left]), longest[left], _COARSE_ROUNDS)
    bound[left] = (first * slowest + second * rest.total[left] + rest.after[left]) * SAFETY
    return bound


def _placed_mixes(
    table: Coefficients, row: Ints, mix: Ints, limit_s: Floats, wanted: ByEvents | None
) -> tuple[MixPlacement, Floats, Rest]:
    """Mixes in their places, the longest time of a slowest stage that is of use, and what is known within it."""
    mixes, wanted = _Mixes(table, row, mix, mix), wanted or ByEvents(np.full(len(row), np.inf), limit_s)
    longest = longest_wanted(table, row, mixes.least_in_all, limit_s, wanted)
    rest = mixes.rest(longest)
    longest = np.minimum(longest, longest_wanted(table, row, rest.total, limit_s, wanted, rest.after))
    return MixPlacement(table, row, mix, mixes.together), longest, rest


def _by_type(table: Coefficients, row: Ints) -> list[Stages]:
    """The stages of each chip type at every place, next to whatever others."""
    distinct, back = np.unique(row, return_inverse=True)
    types = range(len(table.time.layer))
    chips = np.repeat(types, len(distinct))[:, None] + np.zeros(int(table.rows.pp[row[0]]), dtype=np.int64)
    stages = table.stages(np.tile(distinct, len(types)), chips, any_neighbours=True)
    return [stages.take(chip * len(distinct) + back) for chip in types]


def _fixed_in_any_order(table: Coefficients, row: Ints, by_type: list[Stages], used: Bools) -> Floats:
    """Seconds without layers of all stages together, less what these may save by holding cheap layers, wherever their
    chip types stand: (n,)."""
    inner = [(stages.fixed + stages.saving)[:, 1:-1].sum(axis=1) for stages in by_type]
    by_runs = np.where(used.T, [stages.saving[:, 0] for stages in by_type], 0.0).sum(axis=0)
    saved = np.minimum(table.saving_in_all([row] * len(by_type), used), by_runs)
    return np.asarray(np.min(inner, axis=0) - saved + table.least_ends(row))


def _most_in_any_order(equal: Ints, most: Floats) -> Floats:
    """The most layers that the stages hold in all when their order is free: first and last may be any two of them."""
    if not equal.any():
        return np.asarray(most.sum(axis=1))
    pp = most.shape[1]
    ascending = np.sort(most, axis=1)
    in_all = np.where(equal == 2, pp * ascending[:, 0], most.sum(axis=1))
    if pp > 3:
        # None, one or both of the two that hold least are the ends: first, last, and the least of those between.
        orders = ((-2, -1, 0), (0, -1, 1), (0, 1, 2))
        sums = [ascending[:, a] + ascending[:, b] + (pp - 2) * ascending[:, inner] for a, b, inner in orders]
        in_all = np.where(equal == 1, np.max(sums, axis=0), in_all)
    return np.asarray(in_all)
