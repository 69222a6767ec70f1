"""From the time of the slowest stage to a bound on the step time, whether a plan is known or only a mix.

The smallest bottleneck time at which all stages together host the model bounds the slowest stage from below. What all
stages take together, and what follows the pipeline, is bounded by how few layers the others leave to each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import factorial

import numpy as np

from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.shard import Bools, Floats, Ints
from cpsolver.problem.problem import Problem
from cpsolver.search.bounds.coefficients import (
    Coefficients,
    events_in_all,
    found_by_events,
    least_microbatches,
    turns_at_last,
)
from cpsolver.search.bounds.quick import NEAR, SAFETY
from cpsolver.search.bounds.sections import bisected
from cpsolver.search.bounds.stages import ROUNDING, WHOLE, Stages

_AFTER_ROUNDS = 8
"""Halvings of the interval for what follows the pipeline, which is a small part of a step."""
_EDGES = (1.001, 1.004, 1.015, 1.05, 1.2, np.inf)
"""Where a bound's bottleneck times are cut, relative to the least: the finer where most bounds are decided."""
FOREVER = 1e9
"""Seconds, thirty years: stands for infinite times in sums and products that infinity would make nan."""
LEAST = 1e-12
"""Seconds. No stage takes less, and a bottleneck time of 0 cannot be stretched."""
NO_USE = 1e30
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
        return np.where(of_use, by_formula, np.maximum(by_formula, NO_USE))


@dataclass(frozen=True)
class Rest:
    """What of plans is known whose slowest stage takes no longer than some time, seconds (n,): the least sum of all
    stages, the least that follows the pipeline, and the least that any stage's own work and what comes before it take
    by events.
    """

    total: Floats
    after: Floats
    by_events: Floats | float = 0.0


def several_kinds(problem: Problem) -> bool:
    """Whether layers are of several kinds, so that bounds ask where they stand."""
    return len(layer_kinds(problem.model)) > 1


def has_many_orders(problem: Problem) -> bool:
    """Whether mixes have more orders than there are sets of chip types with one to follow: from five types on."""
    types = len(problem.supplies)
    return factorial(types) > types << (types - 1)


def first_row(row: Ints) -> Ints:
    """The row of every plan's first stage."""
    return row if row.ndim == 1 else row[:, 0]


def layers_of(table: Coefficients, row: Ints) -> Ints:
    """What stands in all places of each plan: (n,)."""
    return np.asarray(table.rows.places(table.problem.model.layers, first_row(row)))


def longest_wanted(
    table: Coefficients, row: Ints, in_all: Floats, limit_s: Floats, wanted: ByEvents, after: Floats | float = 0.0
) -> Floats:
    """No plan below the limits has a slowest stage that takes longer, `in_all` being the least that all take, and
    `after` what follows: (n,)."""
    limit_s, wanted = limit_s - after, ByEvents(wanted.formula_s - after, wanted.events_s - after)
    first, second = table.weights(row)

    def longest(limit_s: Floats) -> Floats:
        # With one microbatch only the sum of the stages counts: any slowest stage may do.
        return np.where(first > 0, (limit_s - second * in_all) / np.maximum(first, ROUNDING), np.inf)

    # As `events_in_all` has it, all stages together and the slowest being known from below.
    rows, more = table.rows, table.rows.microbatches[row] - table.rows.pp[row] - 1
    alone = found_by_events(table.problem, rows, row)
    turned = (np.where(alone, limit_s, wanted.events_s) - 2 * in_all) / np.maximum(more, ROUNDING)
    in_time = np.where(turns_at_last(rows, row) & (more > 0), turned, np.inf)
    either = np.maximum(longest(wanted.formula_s), np.minimum(in_time, wanted.events_s / rows.microbatches[row]))
    of_use = np.minimum(longest(limit_s), np.where(alone, in_time, either))
    return np.minimum(of_use * (1 + ROUNDING), FOREVER)


def over_edges(
    slowest: Floats, table: Coefficients, row: Ints, rest: Callable[[Floats], Rest]
) -> tuple[Floats, Floats]:
    """Bounds on what plans are found by, and on step time by events, where the slowest stage works on all microbatches
    and takes at least `slowest` for each; infinite where that is.

    The range of the slowest stage's time is cut at `_EDGES`. A plan whose slowest stage lies between two of them pays
    for the lower one at least, and besides what `rest` says of the upper one.
    """
    rows, (first, second) = table.rows, table.weights(row)
    times = least_microbatches(rows, row)
    possible = np.isfinite(slowest)
    least = np.where(possible, slowest, FOREVER)
    best, by_events, start = np.full(len(slowest), np.inf), np.full(len(slowest), np.inf), least
    for edge in _EDGES:
        end = np.minimum(least * edge, FOREVER)
        others = rest(end)
        by_formula = np.maximum(first * start + second * others.total, times * start)
        best = np.minimum(best, by_formula + others.after)
        in_all = np.maximum(events_in_all(rows, row, start, others.total), others.by_events)
        by_events = np.minimum(by_events, in_all + others.after)
        start = end
    best = np.where(found_by_events(table.problem, rows, row), by_events, best)
    return np.where(possible, best, np.inf) * SAFETY, np.where(possible, by_events, np.inf) * SAFETY


@dataclass(frozen=True)
class After:
    """What follows the pipeline on stages of each layer and besides, seconds, and the `chunks` of whose number their
    layers are a multiple: (n, k) or (n, 1)."""

    layer: Floats
    fixed: Floats
    chunks: Floats


def least_after(after: After, most: Floats, low: Floats, layers: Ints, count: Ints | int = 1) -> Floats:
    """The least seconds that follow the pipeline on the worst stage, no less than `low`, where groups of `count` stages
    have no more than `most` layers each, (n, k), and all of them together: (n,)."""

    def enough(limit: Floats) -> Bools:
        held = np.maximum(0.0, limit[:, None] - after.fixed) / np.maximum(after.layer, LEAST)
        held = np.floor(held / after.chunks + WHOLE) * after.chunks
        return np.asarray(np.minimum(most, count * held).sum(axis=1) >= layers)

    high = np.maximum(low, (after.layer * most + after.fixed).max(axis=1))
    return np.where(enough(low), low, bisected(enough, low, high, _AFTER_ROUNDS))


def smallest(enough: Callable[[Floats], Bools], group: list[Stages], layers: Ints, rounds: int) -> Floats:
    """The smallest bottleneck time that is enough, rounded down; infinite where none is."""
    fastest = np.min([stages.layer.min(axis=1) for stages in group], axis=0)
    high = np.max([longest_if_whole(stages, layers) for stages in group], axis=0)
    saving = np.max([stages.saving.max(axis=1) for stages in group], axis=0)
    low = np.maximum(LEAST, fastest * layers / group[0].fixed.shape[1] - saving) * SAFETY
    possible = enough(high)
    near = np.minimum(high, low * NEAR)
    high = np.where(enough(near), near, high)
    return np.where(possible, bisected(enough, low, high, rounds), np.inf)


def longest_if_whole(stages: Stages, layers: Ints) -> Floats:
    """Seconds of the slowest stage if it held the whole model and recomputed all of it."""
    layer = stages.layer + np.maximum(stages.recompute, stages.set_seconds.max(axis=0, initial=0.0))
    return np.asarray((layer * layers[:, None] + stages.fixed).max(axis=1))


def cheapest(cost: Floats, room: Floats, least: Floats, layers: Ints | int) -> Floats:
    """Least cost of placing `layers` over slots (k, n) of that room, at least `least` in each; what none has room for
    counts as in the dearest."""
    if (cost[1:] == cost[:-1]).all():  # on one chip type
        return np.asarray(cost[0] * np.maximum(layers, least.sum(axis=0)))
    order = np.argsort(cost, axis=0, kind="stable")
    cost, room, least = (np.take_along_axis(a, order, axis=0) for a in (cost, room, least))
    left = layers - least.sum(axis=0)
    total = (cost * least).sum(axis=0)
    for index in range(len(cost)):
        taken = np.clip(np.minimum(room[index] - least[index], left), 0.0, None)
        total = total + cost[index] * taken
        left = left - taken
    return np.asarray(total + np.maximum(left, 0.0) * cost[-1])
