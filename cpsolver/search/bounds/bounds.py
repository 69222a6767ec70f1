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
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.placement import Placement
from cpsolver.search.bounds.stages import ROUNDING, WHOLE, Stages
from cpsolver.search.space import Space

_SAFETY = 1.0 - ROUNDING
"""Bounds are rounded down by this, so that rounding errors in floating point never lift one above a plan."""
_ROUNDS = 22
"""Halvings of the interval for the bottleneck time: to 2^-22 of it, closer than a plan's bound has any use for."""
_PLACEMENT_ROUNDS = 9
"""The same where it starts from a good bound."""
_CHUNK_ROUNDS = 7
"""The same where only whole chunks are looked at."""
_NEAR = 1.6
"""The bottleneck time is looked for up to this multiple of its lower bound first: there it is for most rows."""
_STRETCHES = (1.03, 1.1, 1.3, 1.6, 2.5, 10.0, 1e4)
"""From one bottleneck time to the next until one is enough."""
_EDGES = (1.001, 1.004, 1.015, 1.05, 1.2, np.inf)
"""Where a bound's bottleneck times are cut, relative to the least: the finer where most bounds are decided."""
_FOREVER = 1e9
"""Seconds, thirty years: stands for infinite times in sums and products that infinity would make nan."""
_LEAST = 1e-12
"""Seconds. No stage takes less, and a bottleneck time of 0 cannot be stretched."""
_FORCED = 1e6
"""Lifts the places that a mix must use above all others; no stage holds that many layers."""
_NOTHING = 1e-300
"""In place of a speed of 0, to divide by."""


RowBounds = Callable[[Candidates, Floats, Floats, Floats], Floats]
"""Bounds on a score from rows, bounds on their seconds, seconds of a layer and what may be saved of it by chip type."""


def frame_bound(problem: Problem, space: Space, score: RowBounds | None = None, any_chunks: bool = False) -> Floats:
    """A bound for every frame of a space: as `quick_bound`, with the fastest layer of all variants of its tp and cp.

    `any_chunks`: a frame's vpp stands for others too, so that nothing is to be made of the layers it leaves in a chunk.
    """
    frames, variants = space.frames, space.variants
    bound = np.full(len(frames), np.inf)
    if not variants.expert_overlap.any():
        return _frame_bound(problem, frames, variants, score, any_chunks)
    for overlapping, of_these in ((True, variants), (False, variants.take(~variants.expert_overlap))):
        chosen = np.nonzero(space.overlapping == overlapping)[0]
        bound[chosen] = _frame_bound(problem, frames.take(chosen), of_these, score, any_chunks)
    return bound


def _frame_bound(
    problem: Problem, frames: Candidates, variants: Candidates, score: RowBounds | None, any_chunks: bool
) -> Floats:
    """The same for frames that all the variants may go with."""
    if not len(frames) or not len(variants):
        return np.full(len(frames), np.inf)
    shards, _ = replace(variants, mbs=np.ones_like(variants.mbs)).shard.distinct()
    order = np.lexsort((shards.cp, shards.tp))
    shards = shards.take(order)
    base = int(frames.cp.max()) + 1
    groups, starts = np.unique(shards.tp * base + shards.cp, return_index=True)
    wanted, bound = frames.tp * base + frames.cp, np.full(len(frames), np.inf)
    group = np.minimum(np.searchsorted(groups, wanted), len(groups) - 1)
    for size in np.unique(frames.mbs).tolist():
        of_size = np.nonzero((frames.mbs == size) & (groups[group] == wanted))[0]
        least = _Least(problem, shards, size, starts)
        if least.nothing_fits:
            break  # nor do larger micro batches
        fits = np.isfinite(least.layer[0, group[of_size]])
        columns = (least.layer, least.embedding, least.head, least.saved)
        layer, embedding, head, saved = (np.where(fits, column[:, group[of_size]], 1.0) for column in columns)
        rows, none = frames.take(of_size), np.zeros(len(of_size))
        hop = np.where(fits, least.hop[group[of_size]], 0.0)
        unit, beside = np.ones_like(rows.vpp), none
        if not any_chunks:
            unit, beside = rows.vpp, _beside(problem, rows, least.chunk, hop)
        ends = _least_ends(rows, layer, embedding, head)
        quick = _quick(problem, rows, layer, ends, saved, beside, none, unit) * _SAFETY
        saved = saved * problem.mixed
        quick = quick if score is None else score(rows, quick, layer, saved)
        bound[of_size] = np.where(fits, quick, np.inf)
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
        need = memory.fixed + (1.0 + memory.overhead) * np.minimum(memory.full, memory.least_stored)
        fits = need <= max(problem.capacity_bytes(supply.chip) for supply in problem.supplies)
        self.nothing_fits = not fits.any()
        if self.nothing_fits:
            return
        table = Coefficients(problem, rows.take(fits))

        def least(column: Floats) -> Floats:
            whole = np.full((len(column), len(fits)), np.inf)
            whole[:, fits] = column
            return np.asarray(np.minimum.reduceat(whole, starts, axis=1))

        self.layer = least(table.time.layer)
        self.embedding, self.head = least(table.time.embedding), least(table.time.head)
        self.chunk, self.hop = float(table.time.chunk.min()), least(_hops(table)).min(axis=0)
        self.saved = np.zeros_like(self.layer)
        if len(layer_kinds(problem.model)) > 1:
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
    held = np.minimum(memory.full, memory.least_stored)
    need = states + pp * (memory.fixed + factor * (least + held))
    return np.asarray(need > pp * table.capacity.max() * (1 + ROUNDING))


def quick_bound(table: Coefficients, score: RowBounds | None = None) -> Floats:
    """A first bound for every row: all layers spread in any fractions over the fastest chips, memory ignored."""
    time, rows, problem = table.time, table.rows, table.problem
    follows = (time.sync_layer + time.update_layer).min(axis=0) * problem.model.layers / rows.pp
    follows = follows + (time.sync_stage + time.update_stage).min(axis=0)
    ends = _least_ends(rows, time.layer, time.embedding, time.head)
    ends = ends + np.where(rows.pp == 1, table.least_sharding.min(axis=0), 0.0)
    saved = table.saving(np.arange(len(rows))) if problem.mixed else table.total_saving
    beside = _beside(problem, rows, time.chunk.min(axis=0), _hops(table).min(axis=0))
    quick = np.asarray(_quick(problem, rows, time.layer, ends, saved, beside, follows, rows.vpp) * _SAFETY)
    return quick if score is None else score(rows, quick, time.layer, saved * problem.mixed)


def _least_ends(rows: Candidates, layer: Floats, embedding: Floats, head: Floats) -> Floats:
    """Seconds of embedding and head, each where it fares best, from columns (chips, n): (n,)."""
    first, last = np.maximum(embedding, rows.embedding_slot * layer), np.maximum(head, rows.loss_slot * layer)
    return np.asarray(first.min(axis=0) + last.min(axis=0))


def _hops(table: Coefficients) -> Floats:
    """Seconds of a transfer over the faster kind of link: (chips, n)."""
    return np.minimum(table.time.hop_near, table.time.hop_far)


def _beside(problem: Problem, rows: Candidates, chunk: Floats | float, hop: Floats) -> Floats:
    """Seconds that every stage takes at least beside its layers and ends: the host's work, and transfers to and from
    its neighbours, of which an end has the fewest (`Pipelines.p2p`). (n,), as `hop`.
    """
    hidden = np.where(rows.vpp == 1, 0.0, problem.stack.pipeline_overlap_interleaved)
    transfers = (2 * rows.vpp - 1) * (rows.pp > 1) * problem.stack.pipeline_transfers / 2.0
    return np.asarray(rows.vpp * chunk + (1.0 - hidden) * transfers * hop)


def _quick(
    problem: Problem,
    rows: Candidates,
    layer: Floats,
    ends: Floats,
    saved: Floats,
    beside: Floats,
    follows: Floats,
    unit: Ints,
) -> Floats:
    """The bound from seconds of a layer (chips, n), of embedding and head, beside these, and after the pipeline (n,).

    `saved` (chips, n): what stages of a chip type may save in all by holding cheap layers. Stages have a multiple of
    `unit` places for layers, each of which takes a layer's time, or an end's that is no less.
    """
    layers, places = problem.model.layers, rows.places(problem.model.layers)
    of_longest = (-(-places // (unit * rows.pp)) * unit * layer - saved).min(axis=0)
    saved = saved * problem.mixed  # one type holds all layers, cheap and dear
    most = np.array([supply.limit for supply in problem.supplies])[:, None] // rows.stage_devices
    order = np.argsort(layer, axis=0, kind="stable")
    fastest, most = np.take_along_axis(layer, order, axis=0), np.take_along_axis(most, order, axis=0)
    before = np.cumsum(most, axis=0) - most
    taken = np.clip(rows.pp - before, 0, most)
    speed = (taken / fastest).sum(axis=0)
    work = places - (saved / layer).sum(axis=0)
    total = layers * fastest[0] - saved.sum(axis=0) + ends + rows.pp * beside
    slowest = np.maximum(work / np.maximum(speed, _NOTHING), of_longest)
    if problem.mixed:
        slowest = _in_whole_chunks(slowest, unit * fastest, taken, places // unit, saved.max(axis=0))
    slowest = np.maximum(slowest + beside, total / rows.pp)
    vpp = rows.vpp.astype(np.float64)
    return np.asarray((rows.microbatches - 1.0 / vpp) * slowest + total / vpp + follows)


def _in_whole_chunks(slowest: Floats, chunk: Floats, stages: Floats, chunks: Ints, saved: Floats) -> Floats:
    """The slowest stage's time, no less than `slowest`, where every stage has a whole number of the chunks.

    `chunk`: seconds of one on each chip type, `stages` of these: (types, n); `saved`: what any stage may save.
    """

    def enough(time: Floats) -> Bools:
        held = stages * np.floor((time + saved) / chunk + WHOLE)
        return np.asarray(held.sum(axis=0) >= chunks)

    far = _NEAR * slowest
    found = _bisected(enough, slowest, far, _CHUNK_ROUNDS)
    return np.where(enough(slowest), slowest, np.where(enough(far), found, far))


def plan_bound(table: Coefficients, row: Ints, chips: Ints, limit_s: float = np.inf) -> Floats:
    """A bound for every plan whose chips by position are known; infinite where no split of the layers can fit.

    Rows must have the same pp; shapes (n,), or (n, pp) as in `Coefficients.stages`, and (n, pp). See `_over_edges`:
    when no stage takes longer than an edge, each holds no more than that allows, hence no less than what the others
    cannot take. Where layers are of several kinds, plans whose bound is below `limit_s` are bounded once more, with the
    kinds where they stand.
    """
    stages = table.stages(row, chips)
    first_row = row if row.ndim == 1 else row[:, 0]
    layers = table.rows.places(table.problem.model.layers)[first_row]

    def enough(bottleneck: Floats) -> Bools:
        most, _ = _equalised(table.equal[first_row], stages.most_layers(bottleneck))
        return np.asarray((most.min(axis=1) >= 0) & (most.sum(axis=1) >= layers))

    slowest = _smallest(enough, [stages], layers)
    all_layers = layers * stages.layer.min(axis=1) + _fixed_in_all(stages, chips)
    slowest = np.maximum(slowest, all_layers / chips.shape[1])
    bound = _plan_bound_from(table, row, chips, stages, slowest)
    if len(layer_kinds(table.problem.model)) == 1:
        return bound
    below = np.nonzero(bound < limit_s)[0]
    if len(below) and np.isfinite(limit_s):
        first, second = table.weights(first_row[below])
        # With one microbatch only the sum of the stages counts: any slowest stage may do.
        left = limit_s - second * all_layers[below]
        most = np.where(first > 0, left / np.maximum(first, ROUNDING), np.inf)
        reached = Placement(table, row[below], chips[below]).reaches(most)
        bound[below[~reached]] = limit_s
        below = below[reached]
    if len(below):
        row, chips, slowest = row[below], chips[below], slowest[below]
        slowest = np.maximum(slowest, _smallest_placed(table, row, chips, slowest))
        bound[below] = _plan_bound_from(table, row, chips, table.stages(row, chips), slowest)
    return bound


def _plan_bound_from(table: Coefficients, row: Ints, chips: Ints, stages: Stages, slowest: Floats) -> Floats:
    """The bound on step time for plans whose slowest stage takes at least `slowest`; infinite where that is."""
    first = row if row.ndim == 1 else row[:, 0]
    layers = table.rows.places(table.problem.model.layers)[first]
    fixed = _fixed_in_all(stages, chips)

    def rest(longest: Floats) -> tuple[Floats, Floats]:
        most, sharing = _equalised(table.equal[first], np.maximum(stages.most_layers(longest), stages.chunks))
        spare = most.sum(axis=1, keepdims=True) - layers[:, None]
        least = np.maximum(stages.chunks, most - spare / sharing)
        total = _cheapest(stages.layer.T, most.T, least.T, layers) + fixed
        total = total + stages.least_recompute_s(least).sum(axis=1)
        return total, (stages.after_layer * least + stages.after_fixed).max(axis=1)

    return _over_edges(slowest, table.weights(first), rest)


def _over_edges(
    slowest: Floats, weights: tuple[Floats, Floats], rest: Callable[[Floats], tuple[Floats, Floats]]
) -> Floats:
    """The bound on step time where the slowest stage takes at least `slowest`; infinite where that is.

    The range of the slowest stage's time is cut at `_EDGES`. A plan whose slowest stage lies between two of them pays
    for the lower one at least, and besides what `rest` says of the upper one: the least sum of the stages when none
    takes longer, and the least that follows the pipeline.
    """
    first, second = weights
    possible = np.isfinite(slowest)
    least = np.where(possible, slowest, _FOREVER)
    best, start = np.full(len(slowest), np.inf), least
    for edge in _EDGES:
        end = np.minimum(least * edge, _FOREVER)
        total, after = rest(end)
        best = np.minimum(best, first * start + second * total + after)
        start = end
    return np.where(possible, best, np.inf) * _SAFETY


def _fixed_in_all(stages: Stages, chips: Ints) -> Floats:
    """Seconds without layers of all stages together, less what these may save by holding cheap layers: (n,).

    On one chip type they save nothing, for it holds all layers.
    """
    begins = np.ones(chips.shape, dtype=np.bool_)
    begins[:, 1:] = chips[:, 1:] != chips[:, :-1]
    saved = np.where(begins.sum(axis=1) == 1, 0.0, (begins * stages.saving).sum(axis=1))
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


def _smallest_placed(table: Coefficients, row: Ints, chips: Ints, low: Floats) -> Floats:
    """As `_smallest`, with layers of several kinds in their places; nothing below `low` is tried."""
    placement = Placement(table, row, chips)
    possible = np.isfinite(low)
    low = np.where(possible, low, 1.0)
    high, reached = low, placement.reaches(low)
    for stretch in _STRETCHES:
        if reached.all():
            break
        further = np.where(reached, high, low * stretch)
        now = reached | placement.reaches(further)
        low = np.where(now, low, further)
        high, reached = further, now
    low = _bisected(placement.reaches, low, high, _PLACEMENT_ROUNDS)
    return np.where(possible & reached, low, np.inf)


def mix_bound(table: Coefficients, row: Ints, least: Ints, most: Ints) -> Floats:
    """A bound for rows whose stages per chip type are from `least` to `most`, (n, chips) each, in any order.

    Every type stands where it fares best, whatever the others do. Rows must have the same pp.
    """
    pp = int(table.rows.pp[row[0]])
    layers = table.rows.places(table.problem.model.layers)[row]
    chips = (np.full((len(row), pp), chip, dtype=np.int64) for chip in range(most.shape[1]))
    by_type = [table.stages(row, of_type, any_neighbours=True) for of_type in chips]
    together = Stages.side_by_side(by_type)
    place = np.arange(pp)[None, :]
    exact = (least == most).all(axis=1, keepdims=True)

    def best_places(bottleneck: Floats) -> Floats:
        """Layers held by each type's best places, (n, chips, pp); -1 beyond the type's count."""
        held = together.most_layers(bottleneck).reshape(len(row), len(by_type), pp)
        return np.where(place[None] < most[:, :, None], -np.sort(-held, axis=2), -1.0)

    forced = place[None] < least[:, :, None]

    def enough(bottleneck: Floats) -> Bools:
        held = best_places(bottleneck)
        ranked = np.where(forced, _FORCED + held, held).reshape(len(row), -1)
        top = -np.partition(-ranked, pp - 1, axis=1)[:, :pp]
        top = np.where(top > _FORCED / 2, top - _FORCED, top)
        return np.asarray((top.min(axis=1) >= 0) & (_most_in_any_order(table.equal[row], top) >= layers))

    layer = np.array([stages.layer[:, 0] for stages in by_type])
    inner = [(stages.fixed + stages.saving)[:, 1:-1].sum(axis=1) for stages in by_type]
    fixed = np.min(inner, axis=0) - np.sum([stages.saving[:, 0] for stages in by_type], axis=0)
    ends = table.least_ends(row)

    def rest(longest: Floats) -> tuple[Floats, Floats]:
        room = np.maximum(best_places(longest), 0.0).sum(axis=2)
        spare = room.sum(axis=1, keepdims=True) - layers[:, None]
        at_least = np.where(exact, np.maximum(0.0, room - spare), 0.0)
        total = _cheapest(layer, room.T, at_least.T, layers) + ends + fixed
        return total, _after_mix(by_type, most, at_least)

    return _over_edges(_smallest(enough, by_type, layers), table.weights(row), rest)


def _after_mix(by_type: list[Stages], counts: Ints, at_least: Floats) -> Floats:
    """What follows the pipeline on a type's average stage, for the worst type that is sure to be used (or 0)."""
    seconds = []
    for chip, stages in enumerate(by_type):
        mean = np.maximum(at_least[:, chip] / np.maximum(1, counts[:, chip]), stages.chunks[:, 0])
        after = stages.after_layer[:, 0] * mean + stages.after_fixed.min(axis=1)
        seconds.append(np.where(at_least[:, chip] > 0, after, 0.0))
    return np.asarray(np.max(seconds, axis=0))


def _smallest(enough: Callable[[Floats], Bools], group: list[Stages], layers: Ints) -> Floats:
    """The smallest bottleneck time that is enough, rounded down; infinite where none is."""
    fastest = np.min([stages.layer.min(axis=1) for stages in group], axis=0)
    high = np.max([_longest(stages, layers) for stages in group], axis=0)
    saving = np.max([stages.saving.max(axis=1) for stages in group], axis=0)
    low = np.maximum(_LEAST, fastest * layers / group[0].fixed.shape[1] - saving) * _SAFETY
    possible = enough(high)
    near = np.minimum(high, low * _NEAR)
    high = np.where(enough(near), near, high)
    return np.where(possible, _bisected(enough, low, high, _ROUNDS), np.inf)


def _bisected(enough: Callable[[Floats], Bools], low: Floats, high: Floats, rounds: int) -> Floats:
    """The largest time known not to be enough after halving the interval so often; `high` is enough."""
    for _ in range(rounds):
        middle = 0.5 * (low + high)
        good = enough(middle)
        high, low = np.where(good, middle, high), np.where(good, low, middle)
    return low


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
