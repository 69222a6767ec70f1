"""Lower bounds on step time, for many rows or plans at once, that need no solver.

The smallest bottleneck time at which all stages together host the model bounds the slowest stage from below. Letting
each stage choose its own recomputation, and each chip type its best places, only makes the bound smaller, so it
stays a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cpsolver.cost.pipeline_events import detour_s
from cpsolver.cost.shard import Bools, Floats, Ints
from cpsolver.search.bounds.bottleneck import (
    FOREVER,
    NO_USE,
    After,
    ByEvents,
    Rest,
    cheapest,
    first_row,
    has_many_orders,
    layers_of,
    least_after,
    longest_if_whole,
    longest_wanted,
    over_edges,
    several_kinds,
    smallest,
)
from cpsolver.search.bounds.coefficients import (
    Coefficients,
    found_by_events,
    least_microbatches,
    row_of,
    turned_back,
    turns_at_last,
)
from cpsolver.search.bounds.placement import Placement
from cpsolver.search.bounds.sections import sectioned, stretched
from cpsolver.search.bounds.stages import ROUNDING, WHOLE, Stages

_ROUNDS = 22
"""Halvings of the interval for the bottleneck time: to 2^-22 of it. Fewer leave the solver hundreds of plans that are
nearly as good as the best, where there are many chip types and stages (W6 of benchmarks/workloads.py)."""
_PLACEMENT_ROUNDS = 9
"""The same where it starts from a good bound."""
_STRETCHES = (1.03, 1.13, 1.5, 2.4, 6.0, 60.0, 6e5)
"""Multiples of a bottleneck time that are tried until one is enough."""
_WAITING_ROUNDS = 3
"""How often stages are asked what they leave each other of a limit by events: few plans fall later."""


def plan_bound(
    table: Coefficients,
    row: Ints,
    chips: Ints,
    limit_s: Floats | float = np.inf,
    wanted: ByEvents | None = None,
) -> Floats:
    """A bound for every plan whose chips by position are known; infinite where no split of the layers can fit.

    Rows must have the same pp; shapes (n,), or (n, pp) as in `Coefficients.stages`, and (n, pp). See `over_edges`:
    when no stage takes longer than an edge, each holds no more than that allows, hence no less than what the others
    cannot take. Where layers are of several kinds, plans whose bound is below `limit_s` are bounded once more, with the
    kinds where they stand. Plans of no use, as `wanted` has it, and plans that are seen to be no faster than `limit_s`
    get a time that no plan takes: most are seen by one look at whether stages that fast hold the model.
    """
    limits = np.broadcast_to(limit_s, len(row))
    plans = _Plans.of(table, row, chips, limits, wanted or ByEvents(np.full(len(row), np.inf), limits))
    hosts = _hosting(plans)
    soon, ever = hosts(plans.longest), hosts(longest_if_whole(plans.stages, plans.layers))
    bound, left = np.where(soon | ever, NO_USE, np.inf), np.nonzero(soon)[0]
    if not len(left):
        return bound
    plans, placement = plans.take(left), None
    if table.problem.mixed:
        plans = replace(plans, longest=_longest_of_use(plans))
    if several_kinds(table.problem):
        placement = Placement(table, plans.row, plans.chips, plans.stages)
        reached = placement.reaches(plans.longest)
        bound[left[~reached & (plans.longest == FOREVER)]] = np.inf
        part = np.nonzero(reached)[0]
        left, plans, placement = left[part], plans.take(part), placement.take(part)
    if len(left):
        bound[left] = _plan_bounds(plans, placement)
    return bound


@dataclass(frozen=True)
class _Plans:
    """n plans with the same pp: their `layers`, the seconds without layers of all stages, what they have to beat, and
    the `longest` time of a slowest stage with which they may; seconds (n,)."""

    table: Coefficients
    row: Ints
    chips: Ints
    stages: Stages
    layers: Ints
    fixed: Floats
    limits: Floats
    wanted: ByEvents
    longest: Floats

    @classmethod
    def of(cls, table: Coefficients, row: Ints, chips: Ints, limits: Floats, wanted: ByEvents) -> _Plans:
        """As `plan_bound` has them."""
        stages, layers = table.stages(row, chips), layers_of(table, row)
        fixed = _fixed_in_all(table, row, stages, chips)
        longest = longest_wanted(table, first_row(row), layers * stages.layer.min(axis=1) + fixed, limits, wanted)
        return cls(table, row, chips, stages, layers, fixed, limits, wanted, longest)

    def take(self, part: Ints) -> _Plans:
        """Some of the plans."""
        if len(part) == len(self.row):
            return self
        names = ("row", "chips", "layers", "fixed", "limits", "longest")
        own = {name: getattr(self, name)[part] for name in names}
        return replace(self, stages=self.stages.take(part), wanted=self.wanted.of(part), **own)

    @property
    def first(self) -> Ints:
        """The row of every plan's first stage: (n,)."""
        return first_row(self.row)

    @property
    def equal(self) -> Ints:
        """Which stages have equally many layers, as in `coefficients.equal_stages`: (n,)."""
        return self.table.equal[self.first]

    @property
    def in_all(self) -> Floats:
        """The least seconds of all stages, whatever they hold: (n,)."""
        return np.asarray(self.layers * self.stages.layer.min(axis=1) + self.fixed)


def _hosting(plans: _Plans) -> Callable[[Floats], Bools]:
    """Whether the stages hold all layers when none takes longer than a bottleneck time."""
    equal = plans.equal

    def enough(bottleneck: Floats) -> Bools:
        most, _ = _equalised(equal, plans.stages.most_layers(bottleneck))
        return np.asarray((most.min(axis=1) >= 0) & (most.sum(axis=1) >= plans.layers))

    return enough


def _plan_bounds(plans: _Plans, placement: Placement | None) -> Floats:
    """`plan_bound` of plans whose stages hold the model where none takes more than the `longest`, in their places too;
    `placement`: where layers are of several kinds."""
    wanted = plans.wanted
    slowest = smallest(_hosting(plans), [plans.stages], plans.layers, _ROUNDS)
    slowest = np.maximum(slowest, plans.in_all / plans.chips.shape[1])
    found, ends = _plan_bounds_from(plans, slowest)
    alone = np.nonzero((found >= wanted.formula_s) & (ends < wanted.events_s))[0]
    if len(alone):
        late = ~_Schedules(plans.take(alone)).may_end_within(wanted.events_s[alone])
        ends[alone[late]] = np.inf
    bound = wanted.lifted(found, ends)
    below = np.nonzero(bound < plans.limits)[0]
    if placement is not None and len(below):
        plans, placement = plans.take(below), placement.take(below)
        slowest = np.maximum(slowest[below], _smallest_placed(placement, slowest[below], plans.longest))
        held = placement.held(plans.longest) if _are_held(plans) else None
        found = plans.wanted.lifted(*_plan_bounds_from(plans, slowest, held))
        bound[below] = np.where(found < plans.limits, found, NO_USE)
    return bound


def _are_held(plans: _Plans) -> bool:
    """Whether it is worth knowing how many layers each stage holds in its place: where many orders of a mix are nearly
    as good as each other, and where there is a limit."""
    return has_many_orders(plans.table.problem) and bool((plans.longest < FOREVER).any())


def _longest_of_use(plans: _Plans) -> Floats:
    """A closer `longest`: what stages hold within that says how long all take at least, and what follows."""
    stages, schedules = plans.stages, _Schedules(plans)
    most, least = schedules.least_layers(np.maximum(stages.most_layers(plans.longest), stages.chunks))
    in_all = cheapest(stages.layer.T, most.T, least.T, plans.layers) + plans.fixed
    after = schedules.least_after(most, least)
    closer = longest_wanted(plans.table, plans.first, in_all, plans.limits, plans.wanted, after)
    return np.minimum(plans.longest, closer)


class _Schedules:
    """Plans whose schedules are run event by event: what is known of each stage from how few layers it may have."""

    def __init__(self, plans: _Plans) -> None:
        rows, first, stages = plans.table.rows, plans.first, plans.stages
        self._stages, self._layers, self._equal = stages, plans.layers[:, None], plans.equal
        self._times = rows.microbatches[first][:, None]
        self._turns = turns_at_last(rows, first)[:, None]
        # W passes of split backward may hide what comes before.
        self._waits = np.where(least_microbatches(rows, first)[:, None] > 0, 0.0, 1.0 / stages.chunks)
        self._forward: tuple[Floats, Floats] | None = None
        if found_by_events(plans.table.problem, rows, first).any():
            self._forward = plans.table.passes(plans.row, plans.chips)["forward"]
            self._spared = plans.table.spared(first)
            behind = np.arange(stages.fixed.shape[1] - 1, -1, -1)
            self._back = np.stack([turned_back(rows, first, count) for count in behind.tolist()], axis=1)

    def least_layers(self, most: Floats) -> tuple[Floats, Floats]:
        """The most and the least layers of each stage: `most` where some hold equally many, less what is spare."""
        most, sharing = _equalised(self._equal, most)
        spare = most.sum(axis=1, keepdims=True) - self._layers
        return most, np.maximum(self._stages.chunks, most - spare / sharing)

    def work(self, least: Floats, recompute_s: Floats) -> Floats:
        """Seconds of each stage on a microbatch."""
        return np.maximum(0.0, self._stages.layer * least + self._stages.fixed + recompute_s)

    def after(self, least: Floats) -> Floats:
        """Seconds of each stage that follow the pipeline."""
        return self._stages.after_layer * least + self._stages.after_fixed

    def least_after(self, most: Floats, least: Floats) -> Floats:
        """The least that they are on the worst stage, each having from `least` to `most` layers: (n,)."""
        stages = self._stages
        after = After(stages.after_layer, stages.after_fixed, stages.chunks)
        return least_after(after, most, self.after(least).max(axis=1), self._layers[:, 0])

    def ends(self, most: Floats, least: Floats, work: Floats) -> Floats:
        """The least seconds until the last of the stages has ended: (n,).

        What comes before each, its work, and its `detour_s`; or a mean of these of the last stages, of which few save
        by cheap layers or have fewer than the most.
        """
        until = np.cumsum(work, axis=1)
        behind = until[:, -1:] - until
        detour = np.where(self._turns, detour_s(work, behind), 0.0)
        if self._forward is not None:
            layer, fixed = self._forward
            passed = self._waits * (behind - self._back * (layer * least + fixed))
            detour = np.maximum(detour, passed)
        ends = np.asarray((self._waits * (until - work) + self._times * work + detour).max(axis=1))
        return ends if self._forward is None else np.maximum(ends, self._mean_of_full(most))

    def _mean_of_full(self, most: Floats) -> Floats:
        """The same by stages that have as many layers as they can, all but few: (n,).

        No step is shorter than a mean of the longest of them, those left out that may have fewer, in whole chunks. What
        cheap layers save is saved once.
        """
        stages, pp = self._stages, most.shape[1]
        recompute = stages.least_recompute_s(most)
        full = stages.layer * most + stages.fixed + stages.saving + recompute
        spare = most.sum(axis=1) - self._layers[:, 0]
        fewer = np.minimum(np.floor(spare / stages.chunks[:, 0] + WHOLE), pp).astype(np.int64)[:, None]
        before = np.cumsum(full, axis=1) - full
        ends = np.sort(self._waits * before + self._times * full, axis=1)[:, ::-1].cumsum(axis=1)
        ends = np.concatenate([np.zeros((len(ends), 1)), ends], axis=1)
        count = np.arange(1, pp + 1)
        upto = np.minimum(fewer + count, pp)
        means = np.take_along_axis(ends, upto, axis=1) - np.take_along_axis(ends, fewer, axis=1)
        saved = np.minimum(self._spared[:, None], count * stages.saving)
        means = (means - self._times * saved) / count
        less = stages.layer[:, 0] * spare + saved[:, -1] + fewer[:, 0] * recompute.max(axis=1)
        return np.asarray(means.max(axis=1) - self._waits[:, 0] * less)

    def may_end_within(self, limit_s: Floats) -> Bools:
        """Whether stages that leave each other so much time hold all layers.

        What each holds at least keeps the others waiting. These hold less by that, and so each holds more.
        """
        stages, limit_s = self._stages, limit_s[:, None] * (1 + ROUNDING)
        least, may = stages.chunks + np.zeros(stages.fixed.shape), np.ones(len(limit_s), dtype=np.bool_)
        beside = self._times - np.arange(stages.fixed.shape[1] - 1, -1, -1)  # microbatches that no detour holds
        for _ in range(_WAITING_ROUNDS):
            work = self.work(least, stages.least_recompute_s(least))
            until = np.cumsum(work, axis=1)
            left = limit_s - self.after(least) - self._waits * (until - work)
            turned = (left - 2.0 * (until[:, -1:] - until)) / np.maximum(1, beside)
            longest = np.minimum(left / self._times, np.where(self._turns, turned, np.inf))
            most, more = self.least_layers(stages.most_layers(longest))
            may &= (most.min(axis=1) >= 0) & (most.sum(axis=1) >= self._layers[:, 0])
            least = np.maximum(least, more)
        return np.asarray(may)


def _plan_bounds_from(plans: _Plans, slowest: Floats, held: tuple[Ints, Ints] | None = None) -> tuple[Floats, Floats]:
    """`over_edges` of plans; `held`: the least and the most places of each stage in a chunk, where they are known."""
    stages, layers, schedules = plans.stages, plans.layers, _Schedules(plans)
    if held is not None:
        at_least, at_most = (stages.chunks * places for places in held)
        slowest = np.where((at_most >= 0).all(axis=1) & (at_most.sum(axis=1) >= layers), slowest, np.inf)

    def rest(longest: Floats) -> Rest:
        most = np.maximum(stages.most_layers(longest), stages.chunks)
        if held is not None:
            most = np.maximum(np.minimum(most, at_most), stages.chunks)
        most, least = schedules.least_layers(most)
        least = least if held is None else np.maximum(least, at_least)
        total = cheapest(stages.layer.T, most.T, least.T, layers) + plans.fixed
        recompute = stages.least_recompute_s(least)
        ends = schedules.ends(most, least, schedules.work(least, recompute))
        return Rest(total + recompute.sum(axis=1), schedules.least_after(most, least), ends)

    return over_edges(slowest, plans.table, plans.first, rest)


def _fixed_in_all(table: Coefficients, row: Ints, stages: Stages, chips: Ints) -> Floats:
    """Seconds without layers of all stages together, less what these may save by holding cheap layers: (n,)."""
    types = range(len(table.time.layer))
    used = np.stack([(chips == chip).any(axis=1) for chip in types], axis=1)
    begins = np.ones(chips.shape, dtype=np.bool_)
    begins[:, 1:] = chips[:, 1:] != chips[:, :-1]
    saved = table.saving_in_all([row_of(row, chips, chip) for chip in types], used)
    saved = np.minimum(saved, (begins * stages.saving).sum(axis=1))
    return np.asarray(stages.fixed.sum(axis=1) + stages.saving.sum(axis=1) - saved)


def _equalised(equal: Ints, most: Floats) -> tuple[Floats, Floats]:
    """The most layers of stages of which some have to hold equally many; and among how many each shares what is spare.

    `equal` as in coefficients.equal_stages; both (n, pp).
    """
    alone = np.ones(most.shape)
    if not equal.any():
        return most, alone
    inner = (np.arange(most.shape[1]) % (most.shape[1] - 1 or 1) != 0)[None, :]
    same = (equal[:, None] == 2) | ((equal[:, None] == 1) & inner)
    least = np.where(same, most, np.inf).min(axis=1, keepdims=True)
    return np.where(same, least, most), np.where(same, same.sum(axis=1, keepdims=True), alone)


def _smallest_placed(placement: Placement, low: Floats, high: Floats) -> Floats:
    """As `smallest`, with layers of several kinds in their places; nothing below `low` is tried, `high` is enough."""
    possible = np.isfinite(low)
    low, high = np.where(possible, low, 1.0), np.where(possible, np.maximum(low, high), 1.0)
    short = np.nonzero(~placement.reaches(low))[0]
    if len(short):
        below = placement.take(short)

        def enough(at: Ints, bottleneck: Floats) -> Bools:
            return below.take(at).reaches(bottleneck)

        near = stretched(enough, low[short], high[short], _STRETCHES)
        low[short] = sectioned(enough, *near, _PLACEMENT_ROUNDS)
    return np.where(possible, low, np.inf)
