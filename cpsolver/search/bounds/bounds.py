"""Lower bounds on step time, for many rows or plans at once, that need no solver.

The smallest bottleneck time at which all stages together host the model bounds the slowest stage from below. Letting
each stage choose its own recomputation, and each chip type its best places, only makes the bound smaller, so it
stays a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.shard import Bools, Candidates, Floats, Ints, Shard
from cpsolver.cost.tables import memory_table
from cpsolver.problem.problem import Problem
from cpsolver.search.bounds.coefficients import Coefficients, Stages
from cpsolver.search.bounds.walk import Walk
from cpsolver.search.space import Space

_ROUNDS = 22  # halvings of the interval for the bottleneck time
_WALK_ROUNDS = 9  # the same where it starts from a good bound
_STRETCHES = (1.03, 1.1, 1.3, 1.6, 2.5, 10.0, 1e4)  # from one to the next until a time is enough
_FORCED = 1e6  # lifts the places that a mix must use above all others; no stage hosts that many layers
_SAFETY = 1.0 - 1e-9  # bounds are rounded down by this, against rounding in floating point
_LEAST = 1e-12  # seconds; no stage takes less, and a bottleneck time of 0 cannot be stretched
_EDGES = (1.001, 1.004, 1.015, 1.05, 1.2, np.inf)  # where a bound's bottleneck times are cut, relative to the least


RowBounds = Callable[[Candidates, Floats, Floats, Floats], Floats]
"""Bounds on a score from rows, bounds on their seconds, seconds of a layer and what may be saved of it by chip type."""


def frame_bound(problem: Problem, space: Space, score: RowBounds | None = None) -> Floats:
    """A bound for every frame of a space: as `quick_bound`, with the fastest layer of all variants of its tp and cp."""
    frames = space.frames
    if not len(frames) or not len(space.variants):
        return np.full(len(frames), np.inf)
    shards, _ = replace(space.variants, mbs=np.ones_like(space.variants.mbs)).shard.distinct()
    order = np.lexsort((shards.cp, shards.tp))
    shards = shards.take(order)
    base = int(frames.cp.max()) + 1
    groups, starts = np.unique(shards.tp * base + shards.cp, return_index=True)
    wanted, bound = frames.tp * base + frames.cp, np.full(len(frames), np.inf)
    group = np.minimum(np.searchsorted(groups, wanted), len(groups) - 1)
    for size in np.unique(frames.mbs).tolist():
        some = np.nonzero((frames.mbs == size) & (groups[group] == wanted))[0]
        least = _Least(problem, shards, size, starts)
        if least.nothing_fits:
            break  # nor do larger micro batches
        layer, ends, saved = (part[:, group[some]] for part in (least.layer, least.ends, least.saved))
        none = np.zeros(len(some))
        fits = np.isfinite(layer[0])
        layer, ends, saved = (np.where(fits, part, 1.0) for part in (layer, ends, saved))
        quick = _quick(problem, frames.take(some), layer, ends[0], saved, none) * _SAFETY
        quick = quick if score is None else score(frames.take(some), quick, layer, saved)
        bound[some] = np.where(fits, quick, np.inf)
    return bound


class _Least:
    """The fastest layer and ends of each group of shards with one micro batch: (chips, groups); infinite where the
    activations of one layer do not fit."""

    def __init__(self, problem: Problem, shards: Shard, size: int, starts: Ints) -> None:
        one, no = np.ones_like(shards.tp), np.zeros(len(shards.tp), dtype=np.bool_)
        columns = {name: getattr(shards, name) for name in shards.__dataclass_fields__}
        columns["mbs"] = size * one
        rows = Candidates(pp=one, dp=one, vpp=one, microbatches=one, distributed_optimizer=no, **columns)
        memory = memory_table(problem, rows)
        need = memory.fixed + (1.0 + memory.overhead) * np.minimum(memory.full, memory.least_kept)
        fits = need <= max(problem.capacity_bytes(supply.chip) for supply in problem.supplies)
        self.nothing_fits = not fits.any()
        if self.nothing_fits:
            return
        table = Coefficients(problem, rows.take(fits))

        def least(column: Floats) -> Floats:
            whole = np.full((len(column), len(fits)), np.inf)
            whole[:, fits] = column
            return np.asarray(np.minimum.reduceat(whole, starts, axis=1))

        self.layer = least(table.time["layer"])
        ends = [least(table.time[name]).min(axis=0) for name in ("embedding", "head")]  # each where it fares best
        self.ends = (ends[0] + ends[1])[None, :]
        self.saved = np.zeros_like(self.layer)
        if problem.mixed:
            self.saved = -least(-table.total_saving)
            self.saved[~np.isfinite(self.saved)] = 0.0


def too_large(table: Coefficients) -> Bools:
    """Rows that no split fits on the devices with most memory: all states, and one layer's activations on each stage.

    Whatever is recomputed, a stage holds one layer whole while it runs backward.
    """
    memory, pp = table.memory, table.rows.pp
    factor = 1.0 + memory.overhead
    least = np.minimum(memory.buffer, memory.last_buffer)
    states = table.problem.model.layers * memory.layer_states + memory.first_states + memory.last_states
    held = np.minimum(memory.full, memory.least_kept)
    need = states + pp * (memory.fixed + factor * (least + held))
    return np.asarray(need > pp * table.capacity.max() * (1 + 1e-9))


def quick_bound(table: Coefficients, score: RowBounds | None = None) -> Floats:
    """A first bound for every row: all layers spread in any fractions over the fastest chips, memory ignored."""
    time, rows, problem = table.time, table.rows, table.problem
    follows = (time["sync_layer"] + time["update_layer"]).min(axis=0) * problem.model.layers / rows.pp
    follows = follows + (time["sync_stage"] + time["update_stage"]).min(axis=0)
    ends = time["embedding"].min(axis=0) + time["head"].min(axis=0)
    ends = ends + np.where(rows.pp == 1, table.sharding.min(axis=0), 0.0)
    saved = table.slack(np.arange(len(rows))) if problem.mixed else np.zeros_like(time["layer"])
    quick = np.asarray(_quick(problem, rows, time["layer"], ends, saved, follows) * _SAFETY)
    return quick if score is None else score(rows, quick, time["layer"], saved)


def _quick(problem: Problem, rows: Candidates, layer: Floats, ends: Floats, saved: Floats, follows: Floats) -> Floats:
    """The bound from seconds of a layer (chips, n), of embedding and head, and after the pipeline (n,).

    `saved` (chips, n): what stages of a chip type may save in all by holding cheap layers, where chip types mix.
    """
    layers = problem.model.layers
    most = np.array([supply.limit for supply in problem.supplies])[:, None] // rows.stage_devices
    order = np.argsort(layer, axis=0, kind="stable")
    fastest, most = np.take_along_axis(layer, order, axis=0), np.take_along_axis(most, order, axis=0)
    speed = np.zeros(len(rows))
    left = rows.pp.astype(np.float64)
    for index in range(len(order)):
        taken = np.minimum(left, most[index])
        speed += taken / fastest[index]
        left -= taken
    work = layers - (saved / layer).sum(axis=0)
    total = layers * fastest[0] - saved.sum(axis=0) + ends
    slowest = np.maximum(work / np.maximum(speed, 1e-300), total / rows.pp)
    if len(layer_kinds(problem.model)) == 1:
        slowest = np.maximum(slowest, np.ceil(layers / rows.pp) * fastest[0])
    vpp = rows.vpp.astype(np.float64)
    return np.asarray((rows.microbatches - 1.0 / vpp) * slowest + total / vpp + follows)


def plan_bound(table: Coefficients, row: Ints, chips: Ints, limit_s: float = np.inf) -> Floats:
    """A bound for every plan whose chips by position are known; infinite where no split of the layers can fit.

    Rows must have the same pp; shapes (n,) and (n, pp). The range of the bottleneck time is cut at `_EDGES`: a plan
    whose slowest stage lies between two of them costs at least the lower one there, and its stages host no more than
    the upper one allows, hence no less than what the others cannot take. Where layers are of several kinds, plans
    whose bound is below `limit_s` are bounded once more, with the kinds where they stand.
    """
    stages = table.stages(row, chips)
    layers = table.rows.places(table.problem.model.layers)[row]

    def enough(bottleneck: Floats) -> Bools:
        hosted, _ = _alike(table.equal[row], stages.hosted(bottleneck))
        return np.asarray((hosted.min(axis=1) >= 0) & (hosted.sum(axis=1) >= layers))

    slowest = _smallest(enough, [stages], layers)
    fixed = stages.fixed.sum(axis=1) + stages.slack.sum(axis=1) - _slack_of_blocks(stages, chips)
    slowest = np.maximum(slowest, (layers * stages.layer.min(axis=1) + fixed) / chips.shape[1])
    bound = _plan_bound_from(table, row, chips, stages, slowest)
    some = np.nonzero(bound < limit_s)[0]
    if len(layer_kinds(table.problem.model)) > 1 and len(some) and np.isfinite(limit_s):
        first, second = table.weights(row[some])
        rest = second * (layers * stages.layer.min(axis=1) + fixed)[some]
        # With one microbatch only the sum of the stages counts: any slowest stage may do.
        most = np.where(first > 0, (limit_s - rest) / np.maximum(first, 1e-9), np.inf)
        reached = Walk(table, row[some], chips[some]).reaches(most)
        bound[some[~reached]] = limit_s
        some = some[reached]
    if len(layer_kinds(table.problem.model)) > 1 and len(some):
        slowest = np.maximum(slowest[some], _smallest_walk(table, row[some], chips[some], slowest[some]))
        bound[some] = _plan_bound_from(table, row[some], chips[some], table.stages(row[some], chips[some]), slowest)
    return bound


def _plan_bound_from(table: Coefficients, row: Ints, chips: Ints, stages: Stages, slowest: Floats) -> Floats:
    """The bound on step time for plans whose slowest stage takes at least `slowest`; infinite where that is."""
    layers = table.rows.places(table.problem.model.layers)[row]
    first, second = table.weights(row)
    fixed = stages.fixed.sum(axis=1) + stages.slack.sum(axis=1) - _slack_of_blocks(stages, chips)
    best = np.full(len(row), np.inf)
    start = np.where(np.isfinite(slowest), slowest, 1e9)
    for edge in _EDGES:
        end = np.minimum(np.where(np.isfinite(slowest), slowest, 1e9) * edge, 1e9)
        hosted, alike = _alike(table.equal[row], np.maximum(stages.hosted(end), stages.least))
        spare = hosted.sum(axis=1, keepdims=True) - layers[:, None]
        at_least = np.maximum(stages.least, hosted - spare / alike)
        total = _cheapest(stages.layer.T, hosted.T, at_least.T, layers) + fixed
        total = total + stages.repeated(at_least).sum(axis=1)
        after = (stages.after_layer * at_least + stages.after_fixed).max(axis=1)
        best = np.minimum(best, first * start + second * total + after)
        start = end
    return np.where(np.isfinite(slowest), best, np.inf) * _SAFETY


def _alike(equal: Ints, hosted: Floats) -> tuple[Floats, Floats]:
    """Layers that stages host, those that have to be equal only as many as the least of these; how many these are.

    `equal` as in coefficients.equal_stages; both (n, pp).
    """
    one = np.ones(hosted.shape)
    if not equal.any():
        return hosted, one
    inner = (np.arange(hosted.shape[1]) % (hosted.shape[1] - 1 or 1) != 0)[None, :]
    same = (equal[:, None] == 2) | ((equal[:, None] == 1) & inner)
    least = np.where(same, hosted, np.inf).min(axis=1, keepdims=True)
    return np.where(same, least, hosted), np.where(same, same.sum(axis=1, keepdims=True), one)


def _most_in_any_order(equal: Ints, hosted: Floats) -> Floats:
    """The most layers that the stages host in all when their order is free: first and last may be any two of them."""
    if not equal.any():
        return np.asarray(hosted.sum(axis=1))
    pp = hosted.shape[1]
    up = np.sort(hosted, axis=1)
    most = np.where(equal == 2, pp * up[:, 0], hosted.sum(axis=1))
    if pp > 3:
        ends = (
            (-2, -1, 0),
            (0, -1, 1),
            (0, 1, 2),
        )  # none, one or both of the ends host least: they, and the least inside
        ways = [up[:, first] + up[:, last] + (pp - 2) * up[:, inner] for first, last, inner in ends]
        most = np.where(equal == 1, np.max(ways, axis=0), most)
    return np.asarray(most)


def _slack_of_blocks(stages: Stages, chips: Ints) -> Floats:
    """What all stages together may save by holding cheap layers: nothing on one chip type, which holds all of them."""
    begins = np.ones(chips.shape, dtype=np.bool_)
    begins[:, 1:] = chips[:, 1:] != chips[:, :-1]
    saved = (begins * stages.slack).sum(axis=1)
    return np.where(begins.sum(axis=1) == 1, 0.0, saved)


def _smallest_walk(table: Coefficients, row: Ints, chips: Ints, low: Floats) -> Floats:
    """As `_smallest`, with layers of several kinds in their places; nothing below `low` is tried."""
    walk = Walk(table, row, chips)
    sure = np.isfinite(low)
    low = np.where(sure, low, 1.0)
    high, found = low, walk.reaches(low)
    for stretch in _STRETCHES:
        if found.all():
            break
        more = np.where(found, high, low * stretch)
        reached = found | walk.reaches(more)
        low = np.where(found | reached, low, more)
        high, found = more, reached
    sure &= found
    for _ in range(_WALK_ROUNDS):
        middle = 0.5 * (low + high)
        good = walk.reaches(middle)
        high, low = np.where(good, middle, high), np.where(good, low, middle)
    return np.where(sure, low, np.inf)


def mix_bound(table: Coefficients, row: Ints, least: Ints, most: Ints) -> Floats:
    """A bound for rows whose stages per chip type are from `least` to `most`, (n, chips) each, in any order.

    Every type stands where it fares best, whatever the others do. Rows must have the same pp.
    """
    pp = int(table.rows.pp[row[0]])
    layers = table.rows.places(table.problem.model.layers)[row]
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
        return np.asarray((top.min(axis=1) >= 0) & (_most_in_any_order(table.equal[row], top) >= layers))

    slowest = _smallest(enough, each, layers)
    first, second = table.weights(row)
    per_layer = np.array([stages.layer[:, 0] for stages in each])
    ends = table.least_ends(row)
    inner = [(stages.fixed + stages.slack)[:, 1:-1].sum(axis=1) for stages in each]
    links = np.min(inner, axis=0) - np.sum([stages.slack[:, 0] for stages in each], axis=0)
    best = np.full(len(row), np.inf)
    start = np.where(np.isfinite(slowest), slowest, 1e9)
    for edge in _EDGES:
        end = np.minimum(np.where(np.isfinite(slowest), slowest, 1e9) * edge, 1e9)
        room = np.maximum(best_places(end), 0.0).sum(axis=2)
        spare = room.sum(axis=1, keepdims=True) - layers[:, None]
        at_least = np.where(exact, np.maximum(0.0, room - spare), 0.0)
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


def _smallest(enough: Callable[[Floats], Bools], group: list[Stages], layers: Ints) -> Floats:
    """The smallest bottleneck time that is enough, rounded down; infinite where none is."""
    fastest = np.min([stages.layer.min(axis=1) for stages in group], axis=0)
    high = np.max([_longest(s, layers) for s in group], axis=0)
    slack = np.max([stages.slack.max(axis=1) for stages in group], axis=0)
    low = np.maximum(_LEAST, fastest * layers / group[0].fixed.shape[1] - slack) * _SAFETY
    possible = enough(high)
    near = np.minimum(high, low * 1.6)
    high = np.where(enough(near), near, high)
    for _ in range(_ROUNDS):
        middle = 0.5 * (low + high)
        good = enough(middle)
        high, low = np.where(good, middle, high), np.where(good, low, middle)
    return np.where(possible, low, np.inf)


def _longest(stages: Stages, layers: Ints) -> Floats:
    """Seconds of the slowest stage if it held the whole model and ran all of it twice."""
    layer = stages.layer + np.maximum(stages.recompute, stages.selective.max(axis=0, initial=0.0))
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
