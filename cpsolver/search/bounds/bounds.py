"""Lower bounds on step time, for many rows or plans at once, that need no solver.

The smallest bottleneck time at which all stages together host the model bounds the slowest stage from below. Letting
each stage choose its own recomputation, and each chip type its best places, only makes the bound smaller, so it
stays a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.pipeline_events import detour_s
from cpsolver.cost.shard import Bools, Candidates, Floats, Ints
from cpsolver.problem.problem import Problem
from cpsolver.search.bounds.coefficients import Coefficients, least_microbatches, row_of, turns_at_last, weights
from cpsolver.search.bounds.placement import MixPlacement, Placement
from cpsolver.search.bounds.quick import NEAR, SAFETY, bisected
from cpsolver.search.bounds.stages import ROUNDING, WHOLE, Stages

_ROUNDS = 22
"""Halvings of the interval for the bottleneck time: to 2^-22 of it. Fewer leave the solver hundreds of plans that are
nearly as good as the best, where there are many chip types and stages (W6 of benchmarks/workloads.py)."""
_MIX_ROUNDS = 13
"""The same of mixes: plans have closer bounds. With 8 that workload takes four times as long."""
_PLACEMENT_ROUNDS = 9
"""The same where it starts from a good bound."""
_COARSE_ROUNDS = 7
"""The same of mixes in their places."""
_AFTER_ROUNDS = 8
"""The same for what follows the pipeline, which is a small part."""
_STRETCHES = (1.03, 1.1, 1.3, 1.6, 2.5, 10.0, 1e4)
"""From one bottleneck time to the next until one is enough."""
_EDGES = (1.001, 1.004, 1.015, 1.05, 1.2, np.inf)
"""Where a bound's bottleneck times are cut, relative to the least: the finer where most bounds are decided."""
_WAITING_ROUNDS = 3
"""How often stages are asked what they leave each other of a limit by events: few plans fall later."""
_FOREVER = 1e9
"""Seconds, thirty years: stands for infinite times in sums and products that infinity would make nan."""
_LEAST = 1e-12
"""Seconds. No stage takes less, and a bottleneck time of 0 cannot be stretched."""
_FORCED = 1e6
"""Lifts the places that a mix must use above all others; no stage holds that many layers."""


_NO_USE = 1e30
"""Seconds: stands for what may fit in memory and is of no use."""


@dataclass(frozen=True)
class ByEvents:
    """What plans are of use: those below `formula_s` by formula, and those below `events_s` by the schedule run event
    by event, (n,) each. In place of the bound of all others stands a time that no plan takes.
    """

    formula_s: Floats
    events_s: Floats

    def of(self, part: Ints) -> ByEvents:
        """That of some of the plans."""
        return ByEvents(self.formula_s[part], self.events_s[part])

    def lifted(self, by_formula: Floats, by_events: Floats) -> Floats:
        """The first of these bounds where some plan may be of use."""
        of_use = (by_formula < self.formula_s) | (by_events < self.events_s)
        return np.where(of_use, by_formula, np.maximum(by_formula, _NO_USE))


@dataclass(frozen=True)
class _Rest:
    """What of plans is known whose slowest stage takes no longer than some time, seconds (n,): the least sum of all
    stages, the least that follows the pipeline, and the least that any stage's own work and what comes before it take
    by events.
    """

    total: Floats
    after: Floats
    by_events: Floats | float = 0.0


def plan_bound(
    table: Coefficients,
    row: Ints,
    chips: Ints,
    limit_s: Floats | float = np.inf,
    wanted: ByEvents | None = None,
) -> Floats:
    """A bound for every plan whose chips by position are known; infinite where no split of the layers can fit.

    Rows must have the same pp; shapes (n,), or (n, pp) as in `Coefficients.stages`, and (n, pp). See `_over_edges`:
    when no stage takes longer than an edge, each holds no more than that allows, hence no less than what the others
    cannot take. Where layers are of several kinds, plans whose bound is below `limit_s` are bounded once more, with the
    kinds where they stand. Plans of no use, as `wanted` has it, and plans that are seen to be no faster than `limit_s`
    get a time that no plan takes: most are seen by one look at whether stages that fast hold the model.
    """
    limits = np.broadcast_to(limit_s, len(row))
    wanted = wanted or ByEvents(np.full(len(row), np.inf), limits)
    stages, layers = table.stages(row, chips), _layers(table, row)
    in_all = layers * stages.layer.min(axis=1) + _fixed_in_all(table, row, stages, chips)
    longest = _longest_wanted(table, _first(row), in_all, limits, wanted)
    hosts = _hosting(table, row, stages)
    soon = hosts(longest)
    bound, left = np.where(soon | hosts(_longest(stages, layers)), _NO_USE, np.inf), np.nonzero(soon)[0]
    if not len(left):
        return bound
    stages, placement = stages if len(left) == len(row) else stages.take(left), None
    longest[left] = _longest_of_use(table, row[left], chips[left], stages, limits[left], wanted.of(left), longest[left])
    if several_kinds(table.problem):
        placement = Placement(table, row[left], chips[left], stages)
        reached = placement.reaches(longest[left])
        bound[left[~reached & (longest[left] == _FOREVER)]] = np.inf
        part = np.nonzero(reached)[0]
        left, stages, placement = left[part], stages.take(part), placement.take(part)
    if len(left):
        asked = limits[left], wanted.of(left), longest[left]
        bound[left] = _plan_bounds(table, row[left], chips[left], stages, *asked, placement)
    return bound


def several_kinds(problem: Problem) -> bool:
    """Whether layers are of several kinds, so that bounds ask where they stand."""
    return len(layer_kinds(problem.model)) > 1


def _first(row: Ints) -> Ints:
    """The row of every plan's first stage."""
    return row if row.ndim == 1 else row[:, 0]


def _layers(table: Coefficients, row: Ints) -> Ints:
    return np.asarray(table.rows.places(table.problem.model.layers)[_first(row)])


def _hosting(table: Coefficients, row: Ints, stages: Stages) -> Callable[[Floats], Bools]:
    """Whether stages of known chips hold all layers when none takes longer than a bottleneck time."""
    layers, equal = _layers(table, row), table.equal[_first(row)]

    def enough(bottleneck: Floats) -> Bools:
        most, _ = _equalised(equal, stages.most_layers(bottleneck))
        return np.asarray((most.min(axis=1) >= 0) & (most.sum(axis=1) >= layers))

    return enough


def _plan_bounds(
    table: Coefficients,
    row: Ints,
    chips: Ints,
    stages: Stages,
    limits: Floats,
    wanted: ByEvents,
    longest: Floats,
    placement: Placement | None,
) -> Floats:
    """`plan_bound` of plans whose stages hold the model where none takes more than the `longest` that is wanted, in
    their places too; `placement`: where layers are of several kinds."""
    layers = _layers(table, row)
    slowest = _smallest(_hosting(table, row, stages), [stages], layers, _ROUNDS)
    all_layers = layers * stages.layer.min(axis=1) + _fixed_in_all(table, row, stages, chips)
    slowest = np.maximum(slowest, all_layers / chips.shape[1])
    by_formula, by_events = _plan_bounds_from(table, row, chips, stages, slowest)
    alone = np.nonzero((by_formula >= wanted.formula_s) & (by_events < wanted.events_s))[0]
    if len(alone):
        late = ~_Schedules(table, row[alone], stages.take(alone)).may_end_within(wanted.events_s[alone])
        by_events[alone[late]] = np.inf
    bound = wanted.lifted(by_formula, by_events)
    below = np.nonzero(bound < limits)[0]
    if placement is not None and len(below):
        row, chips, slowest, wanted = row[below], chips[below], slowest[below], wanted.of(below)
        placement, longest, stages = placement.take(below), longest[below], stages.take(below)
        slowest = np.maximum(slowest, _smallest_placed(placement, slowest, longest))
        held = placement.held(longest)
        found = wanted.lifted(*_plan_bounds_from(table, row, chips, stages, slowest, held))
        bound[below] = np.where(found < limits[below], found, _NO_USE)
    return bound


def _longest_of_use(
    table: Coefficients,
    row: Ints,
    chips: Ints,
    stages: Stages,
    limits: Floats,
    wanted: ByEvents,
    longest: Floats,
) -> Floats:
    """No plan below the limits has a slowest stage that takes longer, as none takes longer than the `longest`: what
    stages hold within that says how long all take at least, and what follows."""
    schedules, layers = _Schedules(table, row, stages), _layers(table, row)
    most, least = schedules.least_layers(np.maximum(stages.most_layers(longest), stages.chunks))
    in_all = _cheapest(stages.layer.T, most.T, least.T, layers) + _fixed_in_all(table, row, stages, chips)
    return np.minimum(
        longest, _longest_wanted(table, _first(row), in_all, limits, wanted, schedules.least_after(most, least))
    )


def _longest_wanted(
    table: Coefficients, row: Ints, in_all: Floats, limit_s: Floats, wanted: ByEvents, after: Floats | float = 0.0
) -> Floats:
    """No plan below the limits has a slowest stage that takes longer, `in_all` being the least that all take, and
    `after` what follows: (n,)."""
    limit_s, wanted = limit_s - after, ByEvents(wanted.formula_s - after, wanted.events_s - after)
    first, second = table.weights(row)

    def longest(limit_s: Floats) -> Floats:
        # With one microbatch only the sum of the stages counts: any slowest stage may do.
        return np.where(first > 0, (limit_s - second * in_all) / np.maximum(first, ROUNDING), np.inf)

    # As `_by_events_in_all` has it, all stages together and the slowest being known from below.
    rows, more = table.rows, table.rows.microbatches[row] - table.rows.pp[row] - 1
    turned = (wanted.events_s - 2 * in_all) / np.maximum(more, ROUNDING)
    in_time = np.where(turns_at_last(rows, row) & (more > 0), turned, np.inf)
    by_events = np.maximum(
        longest(wanted.formula_s), np.minimum(in_time, wanted.events_s / table.rows.microbatches[row])
    )
    return np.minimum(np.minimum(longest(limit_s), by_events) * (1 + ROUNDING), _FOREVER)


class _Schedules:
    """Plans whose schedules are run event by event: what is known of each stage from how few layers it may have."""

    def __init__(self, table: Coefficients, row: Ints, stages: Stages) -> None:
        first = _first(row)
        self._stages, self._layers, self._equal = stages, _layers(table, row)[:, None], table.equal[first]
        self._times = table.rows.microbatches[first][:, None]
        self._turns = turns_at_last(table.rows, first)[:, None]
        # W passes of split backward may hide what comes before.
        self._waits = np.where(least_microbatches(table.rows, first)[:, None] > 0, 0.0, 1.0 / stages.chunks)

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
        after = _After(stages.after_layer, stages.after_fixed, stages.chunks)
        return _least_after(after, most, self.after(least).max(axis=1), self._layers[:, 0])

    def ends(self, work: Floats) -> Floats:
        """The least seconds until each stage has ended: what comes before it, its work, and its `detour_s`."""
        until = np.cumsum(work, axis=1)
        detour = np.where(self._turns, detour_s(work, until[:, -1:] - until), 0.0)
        return self._waits * (until - work) + self._times * work + detour

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


def _plan_bounds_from(
    table: Coefficients,
    row: Ints,
    chips: Ints,
    stages: Stages,
    slowest: Floats,
    held: tuple[Ints, Ints] | None = None,
) -> tuple[Floats, Floats]:
    """`_over_edges` of plans; `held`: the least and the most places of each stage in a chunk, where they are known."""
    layers, fixed = _layers(table, row), _fixed_in_all(table, row, stages, chips)
    schedules = _Schedules(table, row, stages)
    if held is not None:
        at_least, at_most = (stages.chunks * places for places in held)
        slowest = np.where((at_most >= 0).all(axis=1) & (at_most.sum(axis=1) >= layers), slowest, np.inf)

    def rest(longest: Floats) -> _Rest:
        most = np.maximum(stages.most_layers(longest), stages.chunks)
        if held is not None:
            most = np.maximum(np.minimum(most, at_most), stages.chunks)
        most, least = schedules.least_layers(most)
        least = least if held is None else np.maximum(least, at_least)
        total = _cheapest(stages.layer.T, most.T, least.T, layers) + fixed
        recompute = stages.least_recompute_s(least)
        ends = schedules.ends(schedules.work(least, recompute))
        return _Rest(total + recompute.sum(axis=1), schedules.least_after(most, least), ends.max(axis=1))

    return _over_edges(slowest, table.rows, _first(row), rest)


def _over_edges(slowest: Floats, rows: Candidates, row: Ints, rest: Callable[[Floats], _Rest]) -> tuple[Floats, Floats]:
    """Bounds on step time by formula and by events, where the slowest stage works on all microbatches and takes at
    least `slowest` for each; infinite where that is.

    The range of the slowest stage's time is cut at `_EDGES`. A plan whose slowest stage lies between two of them pays
    for the lower one at least, and besides what `rest` says of the upper one.
    """
    (first, second), times = weights(rows, row), least_microbatches(rows, row)
    possible = np.isfinite(slowest)
    least = np.where(possible, slowest, _FOREVER)
    best, by_events, start = np.full(len(slowest), np.inf), np.full(len(slowest), np.inf), least
    for edge in _EDGES:
        end = np.minimum(least * edge, _FOREVER)
        others = rest(end)
        by_formula = np.maximum(first * start + second * others.total, times * start)
        best = np.minimum(best, by_formula + others.after)
        in_all = np.maximum(_by_events_in_all(rows, row, start, others.total), others.by_events)
        by_events = np.minimum(by_events, in_all + others.after)
        start = end
    return np.where(possible, best, np.inf) * SAFETY, np.where(possible, by_events, np.inf) * SAFETY


def _by_events_in_all(rows: Candidates, row: Ints, slowest: Floats, total: Floats) -> Floats:
    """The least seconds of pipelines run event by event by the least of their slowest stage and of all stages: (n,).

    It works on all microbatches; and in 1F1B, wherever it stands among stages that are no slower, what comes before it
    and its `detour_s` are at least 2 * (all others) - (pp - 1) * slowest.
    """
    times = rows.microbatches[row]
    turned = np.where(turns_at_last(rows, row), 2.0 * total - (rows.pp[row] + 1) * slowest, 0.0)
    return np.asarray(times * slowest + np.maximum(0.0, turned))


def _fixed_in_all(table: Coefficients, row: Ints, stages: Stages, chips: Ints) -> Floats:
    """Seconds without layers of all stages together, less what these may save by holding cheap layers: (n,)."""
    types = range(len(table.time.layer))
    used = np.stack([(chips == chip).any(axis=1) for chip in types], axis=1)
    begins = np.ones(chips.shape, dtype=np.bool_)
    begins[:, 1:] = chips[:, 1:] != chips[:, :-1]
    saved = table.saving_in_all([row_of(row, chips, chip) for chip in types], used)
    saved = np.minimum(saved, (begins * stages.saving).sum(axis=1))
    return np.asarray(stages.fixed.sum(axis=1) + stages.saving.sum(axis=1) - saved)


@dataclass(frozen=True)
class _After:
    """What follows the pipeline on stages of each layer and besides, seconds, and the `chunks` of whose number their
    layers are a multiple: (n, k) or (n, 1)."""

    layer: Floats
    fixed: Floats
    chunks: Floats


def _least_after(after: _After, most: Floats, low: Floats, layers: Ints, count: Ints | int = 1) -> Floats:
    """The least seconds that follow the pipeline on the worst stage, no less than `low`, where groups of `count` stages
    have no more than `most` layers each, (n, k), and all of them together: (n,)."""

    def enough(limit: Floats) -> Bools:
        held = (limit[:, None] - after.fixed) / np.maximum(after.layer, _LEAST)
        held = np.floor(np.maximum(held, 0.0) / after.chunks + WHOLE) * after.chunks
        return np.asarray(np.minimum(most, count * held).sum(axis=1) >= layers)

    high = np.maximum(low, (after.layer * most + after.fixed).max(axis=1))
    return np.where(enough(low), low, bisected(enough, low, high, _AFTER_ROUNDS))


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


def _smallest_placed(placement: Placement, low: Floats, high: Floats) -> Floats:
    """As `_smallest`, with layers of several kinds in their places; nothing below `low` is tried, `high` is enough."""
    possible = np.isfinite(low)
    low, high = np.where(possible, low, 1.0), np.where(possible, np.maximum(low, high), 1.0)
    short = np.nonzero(~placement.reaches(low))[0]
    left = short
    for stretch in _STRETCHES:
        left = left[low[left] * stretch < high[left]]
        if not len(left):
            break
        further = low[left] * stretch
        now = placement.take(left).reaches(further)
        high[left[now]], low[left[~now]] = further[now], further[~now]
        left = left[~now]
    if len(short):
        low[short] = bisected(placement.take(short).reaches, low[short], high[short], _PLACEMENT_ROUNDS)
    return np.where(possible, low, np.inf)


class _Mixes:
    """Rows whose stages per chip type are from `least` to `most`, (n, types) each, in any order: every type stands
    where it fares best, whatever the others do. Rows must have the same pp."""

    def __init__(self, table: Coefficients, row: Ints, least: Ints, most: Ints) -> None:
        self.by_type, self.layers = _by_type(table, row), _layers(table, row)
        self.fixed = _fixed_in_any_order(table, row, self.by_type, most > 0)
        self._together, self._equal = Stages.side_by_side(self.by_type), table.equal[row]
        self._place, self._least, self._most = np.arange(self._together.pp // most.shape[1]), least, most
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
        held = self._together.most_layers(bottleneck).reshape(shape)
        return np.where(self._place < self._most[:, :, None], -np.sort(-held, axis=2), -1.0)

    def enough(self, bottleneck: Floats) -> Bools:
        """Whether they hold all layers when none takes longer than that."""
        held, pp = self._best_places(bottleneck), len(self._place)
        ranked = np.where(self._place < self._least[:, :, None], _FORCED + held, held).reshape(len(held), -1)
        top = -np.partition(-ranked, pp - 1, axis=1)[:, :pp]
        top = np.where(top > _FORCED / 2, top - _FORCED, top)
        return np.asarray((top.min(axis=1) >= 0) & (_most_in_any_order(self._equal, top) >= self.layers))

    def rest(self, longest: Floats) -> _Rest:
        """What is known where none takes longer than that."""
        room = np.maximum(self._best_places(longest), 0.0).sum(axis=2)
        spare = room.sum(axis=1, keepdims=True) - self.layers[:, None]
        at_least = np.where(self._exact, np.maximum(0.0, room - spare), 0.0)
        total = _cheapest(self._layer, room.T, at_least.T, self.layers) + self.fixed
        return _Rest(total, self._after(room, at_least))

    def _after(self, room: Floats, at_least: Floats) -> Floats:
        """What follows the pipeline on the worst type that is sure to be used (or 0), on its average stage, and on the
        worst of all, the types having so much room."""
        fixed = np.array([stages.after_fixed.min(axis=1) for stages in self.by_type]).T
        layer = np.array([stages.after_layer[:, 0] for stages in self.by_type]).T
        chunks, count = self.by_type[0].chunks, np.maximum(1, self._most)
        sure = np.where(at_least > 0, fixed + layer * np.maximum(at_least / count, chunks), 0.0).max(axis=1)
        return _least_after(_After(layer, fixed, chunks), room, sure, self.layers, self._most)


def mix_bound(table: Coefficients, row: Ints, least: Ints, most: Ints, wanted: ByEvents | None = None) -> Floats:
    """A bound for rows whose stages per chip type are from `least` to `most`, (n, chips) each, in any order.

    Rows must have the same pp. `wanted`: as in `plan_bound`.
    """
    mixes = _Mixes(table, row, least, most)
    slowest = _smallest(mixes.enough, mixes.by_type, mixes.layers, _MIX_ROUNDS)
    by_formula, by_events = _over_edges(slowest, table.rows, row, mixes.rest)
    return by_formula if wanted is None else wanted.lifted(by_formula, by_events)


def may_reach(table: Coefficients, row: Ints, mix: Ints, limit_s: Floats, wanted: ByEvents | None = None) -> Bools:
    """Whether `plan_bound` may be below its limits for any order of rows' chip types, each serving so many stages as
    `mix` has, (n, types), where layers are of several kinds; limits as there.
    """
    placement, longest, _ = _placed_mixes(table, row, mix, limit_s, wanted)
    return placement.reaches(longest)


def placed_bound(
    table: Coefficients, row: Ints, mix: Ints, limit_s: Floats, wanted: ByEvents | None = None
) -> Floats:
    """The same as a bound: a time that no plan takes where none is below its limits."""
    placement, longest, rest = _placed_mixes(table, row, mix, limit_s, wanted)
    bound = np.full(len(row), _NO_USE)
    left = np.nonzero(placement.reaches(longest))[0]
    if not len(left):
        return bound
    (first, second), low = table.weights(row[left]), np.maximum(_LEAST, rest.total[left] / placement.pp)
    slowest = bisected(placement.take(left).reaches, np.minimum(low, longest[left]), longest[left], _COARSE_ROUNDS)
    by_formula = (first * slowest + second * rest.total[left] + rest.after[left]) * SAFETY
    # Of plans that may be of use by events alone no more is known.
    bound[left] = by_formula if wanted is None else np.minimum(by_formula, wanted.of(left).formula_s)
    return bound


def _placed_mixes(
    table: Coefficients, row: Ints, mix: Ints, limit_s: Floats, wanted: ByEvents | None
) -> tuple[MixPlacement, Floats, _Rest]:
    """Mixes in their places, the longest time of a slowest stage that is of use, and what is known within it."""
    mixes, wanted = _Mixes(table, row, mix, mix), wanted or ByEvents(np.full(len(row), np.inf), limit_s)
    longest = _longest_wanted(table, row, mixes.least_in_all, limit_s, wanted)
    rest = mixes.rest(longest)
    longest = np.minimum(longest, _longest_wanted(table, row, rest.total, limit_s, wanted, rest.after))
    return MixPlacement(table, row, mix, mixes.by_type), longest, rest


def _by_type(table: Coefficients, row: Ints) -> list[Stages]:
    """The stages of each chip type at every place, next to whatever others."""
    distinct, back = np.unique(row, return_inverse=True)
    distinct = np.repeat(distinct, 2) if len(distinct) == 1 else distinct  # `take` leaves arrays of one row as they are
    shape = len(distinct), int(table.rows.pp[row[0]])
    chips = (np.full(shape, chip, dtype=np.int64) for chip in range(len(table.time.layer)))
    return [table.stages(distinct, of_type, any_neighbours=True).take(back) for of_type in chips]


def _fixed_in_any_order(table: Coefficients, row: Ints, by_type: list[Stages], used: Bools) -> Floats:
    """`_fixed_in_all` of plans at least, wherever their chip types stand: (n,)."""
    inner = [(stages.fixed + stages.saving)[:, 1:-1].sum(axis=1) for stages in by_type]
    by_runs = np.where(used.T, [stages.saving[:, 0] for stages in by_type], 0.0).sum(axis=0)
    saved = np.minimum(table.saving_in_all([row] * len(by_type), used), by_runs)
    return np.asarray(np.min(inner, axis=0) - saved + table.least_ends(row))


def _smallest(enough: Callable[[Floats], Bools], group: list[Stages], layers: Ints, rounds: int) -> Floats:
    """The smallest bottleneck time that is enough, rounded down; infinite where none is."""
    fastest = np.min([stages.layer.min(axis=1) for stages in group], axis=0)
    high = np.max([_longest(stages, layers) for stages in group], axis=0)
    saving = np.max([stages.saving.max(axis=1) for stages in group], axis=0)
    low = np.maximum(_LEAST, fastest * layers / group[0].fixed.shape[1] - saving) * SAFETY
    possible = enough(high)
    near = np.minimum(high, low * NEAR)
    high = np.where(enough(near), near, high)
    return np.where(possible, bisected(enough, low, high, rounds), np.inf)


def _longest(stages: Stages, layers: Ints) -> Floats:
    """Seconds of the slowest stage if it held the whole model and recomputed all of it."""
    layer = stages.layer + np.maximum(stages.recompute, stages.set_seconds.max(axis=0, initial=0.0))
    return np.asarray((layer * layers[:, None] + stages.fixed).max(axis=1))


def _cheapest(cost: Floats, room: Floats, least: Floats, layers: Ints) -> Floats:
    """Least cost of placing `layers` over slots (k, n) of that room, at least `least` in each."""
    order = np.argsort(cost, axis=0, kind="stable")
    cost, room, least = (np.take_along_axis(a, order, axis=0) for a in (cost, room, least))
    left = layers - least.sum(axis=0)
    total = (cost * least).sum(axis=0)
    for index in range(len(cost)):
        taken = np.clip(np.minimum(room[index] - least[index], left), 0.0, None)
        total = total + cost[index] * taken
        left = left - taken
    return np.asarray(total + np.maximum(left, 0.0) * cost[-1])
