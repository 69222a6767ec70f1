"""Lower bounds on step time, for many rows or plans at once, that need no solver.

The smallest bottleneck time at which all stages together host the model bounds the slowest stage from below. Letting
each stage choose its own recomputation, and each chip type its best places, only makes the bound smaller, so it
stays a bound.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cpsolver.coefficients import Coefficients, Stages
from cpsolver.cost.shard import Bools, Floats, Ints

_ROUNDS = 22  # halvings of the interval for the bottleneck time
_FORCED = 1e6  # lifts the places that a mix must use above all others; no stage hosts that many layers
_SAFETY = 1.0 - 1e-9  # bounds are rounded down by this, against rounding in floating point
_EDGES = (1.001, 1.004, 1.015, 1.05, 1.2, np.inf)  # where a bound's bottleneck times are cut, relative to the least


def quick_bound(table: Coefficients) -> Floats:
    """A first bound for every row: all layers spread in any fractions over the fastest chips, memory ignored."""
    problem, rows = table.problem, table.rows
    layers = problem.model.layers
    most = np.array([supply.limit for supply in problem.supplies])[:, None] // rows.stage_devices
    order = np.argsort(table.time["layer"], axis=0, kind="stable")
    fastest, most = (np.take_along_axis(values, order, axis=0) for values in (table.time["layer"], most))
    speed = np.zeros(len(rows))
    left = rows.pp.astype(np.float64)
    for index in range(len(order)):
        taken = np.minimum(left, most[index])
        speed += taken / fastest[index]
        left -= taken
    slowest = layers / np.maximum(speed, 1e-300)
    slowest = np.maximum(slowest, np.ceil(layers / rows.pp) * fastest[0])
    ends = table.time["embedding"].min(axis=0) + table.time["head"].min(axis=0)
    first, second = table.weights(np.arange(len(rows)))
    total = layers * table.time["layer"].min(axis=0) + ends
    return np.asarray((first * slowest + second * total) * _SAFETY)


def plan_bound(table: Coefficients, row: Ints, chips: Ints) -> Floats:
    """A bound for every plan whose chips by position are known; infinite where no split of the layers can fit.

    Rows must have the same pp; shapes (n,) and (n, pp). The range of the bottleneck time is cut at `_EDGES`: a plan
    whose slowest stage lies between two of them costs at least the lower one there, and its stages host no more than
    the upper one allows, hence no less than what the others cannot take.
    """
    stages = table.stages(row, chips)
    layers = table.problem.model.layers

    def enough(bottleneck: Floats) -> Bools:
        hosted = stages.hosted(bottleneck)
        return np.asarray((hosted.min(axis=1) >= 0) & (hosted.sum(axis=1) >= layers))

    slowest = _smallest(enough, [stages], layers)
    first, second = table.weights(row)
    best = np.full(len(row), np.inf)
    start = np.where(np.isfinite(slowest), slowest, 1e9)
    for edge in _EDGES:
        end = np.minimum(np.where(np.isfinite(slowest), slowest, 1e9) * edge, 1e9)
        hosted = np.maximum(stages.hosted(end), stages.least)
        spare = hosted.sum(axis=1, keepdims=True) - layers
        at_least = np.maximum(stages.least, hosted - spare)
        total = _cheapest(stages.layer.T, hosted.T, at_least.T, layers) + stages.fixed.sum(axis=1)
        total = total + stages.repeated(at_least).sum(axis=1)
        after = (stages.after_layer * at_least + stages.after_fixed).max(axis=1)
        best = np.minimum(best, first * start + second * total + after)
        start = end
    return np.where(np.isfinite(slowest), best, np.inf) * _SAFETY


def mix_bound(table: Coefficients, row: Ints, least: Ints, most: Ints) -> Floats:
    """A bound for rows whose stages per chip type are from `least` to `most`, (n, chips) each, in any order.

    Every type stands where it fares best, whatever the others do. Rows must have the same pp.
    """
    pp = int(table.rows.pp[row[0]])
    layers = table.problem.model.layers
    each = [
        table.stages(row, np.full((len(row), pp), index, dtype=np.int64), relaxed=True)
        for index in range(most.shape[1])
    ]
    together = Stages.side_by_side(each)
    place = np.arange(pp)[None, :]
    exact = (least == most).all(axis=1, keepdims=True)

    def best_places(bottleneck: Floats) -> Floats:
        """Layers hosted by each type's best places, (n, chips, pp); -1 beyond the type's count."""
        hosted = together.hosted(bottleneck).reshape(len(row), len(each), pp)
        return np.where(place[None] < most[:, :, None], -np.sort(-hosted, axis=2), -1.0)

    forced = place[None] < least[:, :, None]

    def enough(bottleneck: Floats) -> Bools:
        hosted = best_places(bottleneck)
        ranked = np.where(forced, _FORCED + hosted, hosted).reshape(len(row), -1)
        top = -np.partition(-ranked, pp - 1, axis=1)[:, :pp]
        top = np.where(top > _FORCED / 2, top - _FORCED, top)
        return np.asarray((top.min(axis=1) >= 0) & (top.sum(axis=1) >= layers))

    slowest = _smallest(enough, each, layers)
    first, second = table.weights(row)
    per_layer = np.array([stages.layer[:, 0] for stages in each])
    ends = table.time["embedding"][:, row].min(axis=0) + table.time["head"][:, row].min(axis=0)
    links = np.min([stages.fixed[:, 1:-1].sum(axis=1) for stages in each], axis=0)
    best = np.full(len(row), np.inf)
    start = np.where(np.isfinite(slowest), slowest, 1e9)
    for edge in _EDGES:
        end = np.minimum(np.where(np.isfinite(slowest), slowest, 1e9) * edge, 1e9)
        room = np.maximum(best_places(end), 0.0).sum(axis=2)
        at_least = np.where(exact, np.maximum(0.0, room - (room.sum(axis=1, keepdims=True) - layers)), 0.0)
        total = _cheapest(per_layer, room.T, at_least.T, layers) + ends + links
        after = _after_mix(each, most, at_least)
        best = np.minimum(best, first * start + second * total + after)
        start = end
    return np.where(np.isfinite(slowest), best, np.inf) * _SAFETY


def _after_mix(each: list[Stages], counts: Ints, at_least: Floats) -> Floats:
    """What follows the pipeline on a type's average stage, for the worst type (or the best, if none is sure)."""
    found = []
    for index, stages in enumerate(each):
        mean = np.maximum(at_least[:, index] / np.maximum(1, counts[:, index]), stages.least[:, 0])
        seconds = stages.after_layer[:, 0] * mean + stages.after_fixed.min(axis=1)
        found.append(np.where(at_least[:, index] > 0, seconds, 0.0))
    return np.asarray(np.max(found, axis=0))


def _smallest(enough: Callable[[Floats], Bools], group: list[Stages], layers: int) -> Floats:
    """The smallest bottleneck time that is enough, rounded down; infinite where none is."""
    fastest = np.min([stages.layer.min(axis=1) for stages in group], axis=0)
    high = np.max([_longest(s, layers) for s in group], axis=0)
    low = fastest * layers / group[0].fixed.shape[1] * _SAFETY
    possible = enough(high)
    near = np.minimum(high, low * 1.6)
    high = np.where(enough(near), near, high)
    for _ in range(_ROUNDS):
        middle = 0.5 * (low + high)
        good = enough(middle)
        high, low = np.where(good, middle, high), np.where(good, low, middle)
    return np.where(possible, low, np.inf)


def _longest(stages: Stages, layers: int) -> Floats:
    """Seconds of the slowest stage if it held the whole model and ran all of it twice."""
    layer = stages.layer + np.maximum(stages.recompute, stages.selective)
    return np.asarray((layer * layers + stages.fixed).max(axis=1))


def _cheapest(cost: Floats, room: Floats, least: Floats, layers: int) -> Floats:
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
