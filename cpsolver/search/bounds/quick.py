"""First bounds, of millions of rows by their frames and of thousands at once: all layers in any fractions.

Memory only says what cannot fit however it is split. Layers of each kind are counted for themselves: no stage takes
less than its layers of any one kind, and no layer is cheaper than where it is cheapest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from cpsolver.cost.kinds import counts_before
from cpsolver.cost.schedules import V_CHUNKS, schedules_to_search
from cpsolver.cost.shard import Bools, Candidates, Floats, Ints, Shard
from cpsolver.cost.tables import MemoryTable, memory_table, pass_seconds
from cpsolver.plans.dimensions import DIMENSIONS
from cpsolver.plans.strategy import BOTH_WAYS
from cpsolver.problem.problem import Problem
from cpsolver.search.bounds.coefficients import (
    Coefficients,
    events_in_all,
    found_by_events,
    least_microbatches,
    weights,
)
from cpsolver.search.bounds.sections import bisected
from cpsolver.search.bounds.stages import ROUNDING, WHOLE
from cpsolver.search.space import Space, first_of_groups, folded_rows

SAFETY = 1.0 - ROUNDING
"""Bounds are rounded down by this, so that rounding errors in floating point never lift one above a plan."""
NEAR = 1.6
"""The bottleneck time is looked for up to this multiple of its lower bound first: there it is for most rows."""
_CHUNK_ROUNDS = 7
"""Halvings of the interval for the slowest stage's time where only whole chunks are looked at."""
VARIANTS = 65_536
"""Variants with a micro batch each that are looked at in one go."""
_NOTHING = 1e-300
"""In place of a speed of 0, to divide by."""

RowBounds = Callable[[Candidates, Floats, Floats], Floats]
"""Bounds on a score from rows, bounds on their seconds, and seconds of a layer by chip type and kind."""


@dataclass(frozen=True)
class _Seconds:
    """Least seconds of rows, (n,) each, by chip type (types, n): of the mean layer, of a layer of each kind (types,
    kinds, n), of embedding and head, of the host's work for a chunk and of a transfer that both its ends wait for.
    """

    layer: Floats
    kinds: Floats
    embedding: Floats
    head: Floats
    chunk: Floats
    hop: Floats

    @classmethod
    def of(cls, table: Coefficients) -> _Seconds:
        """Of rows whose tables are known."""
        time = table.time
        hop = time.hop_waited * np.minimum(time.hop_near, time.hop_far)
        return cls(time.layer, seconds_by_kind(table), time.embedding, time.head, time.chunk, hop)

    @classmethod
    def of_rows(cls, problem: Problem, rows: Candidates) -> _Seconds:
        """Of rows whose tables nothing else asks for."""
        found = [pass_seconds(problem, supply, rows) for supply in problem.supplies]
        time = {name: np.stack([of_chip[name] for of_chip in found]) for name in found[0]}
        hop = time["hop_waited"] * np.minimum(time["hop_near"], time["hop_far"])
        kinds = time["layer"][:, None] + time["kind_layer"]
        return cls(time["layer"], kinds, time["embedding"], time["head"], time["chunk"], hop)

    def each(self, change: Callable[[Floats], Floats]) -> _Seconds:
        """All columns changed alike."""
        return _Seconds(**{name: change(column) for name, column in vars(self).items()})

    def ends(self, rows: Candidates) -> Floats:
        """Seconds of embedding and head, each where it fares best, and no less than layers in their places: (n,)."""
        first = np.maximum(self.embedding, rows.embedding_slot * self.layer)
        return np.asarray(first.min(axis=0) + np.maximum(self.head, rows.loss_slot * self.layer).min(axis=0))

    def beside(self, problem: Problem, rows: Candidates) -> Floats:
        """Seconds that every stage takes at least beside its layers and ends: the host's work, and transfers to and
        from its neighbours, of which an end has the fewest (`Pipelines.p2p`). (n,).
        """
        hidden = np.where(rows.vpp == 1, 0.0, problem.stack.pipeline_overlap_interleaved)
        few = np.where(rows.v_shaped, rows.vpp, 2 * rows.vpp - 1)
        transfers = few * (rows.pp > 1) * problem.stack.pipeline_transfers / 2.0
        return np.asarray(rows.vpp * self.chunk.min(axis=0) + (1.0 - hidden) * transfers * self.hop.min(axis=0))


def seconds_by_kind(table: Coefficients, row: Ints | slice = slice(None)) -> Floats:
    """Seconds of a layer of each kind, by chip type: (types, kinds, n)."""
    return np.asarray(table.time.layer[:, None, row] + table.time.kind_layer[:, :, row])


def frame_bound(
    problem: Problem,
    space: Space,
    score: RowBounds | None = None,
    any_chunks: bool = False,
    frames: Ints | None = None,
    least: LeastSeconds | None = None,
) -> tuple[Floats, Bools]:
    """A bound for some frames of a space, or all, and whether any of its rows may fit in memory: as `quick_bound`,
    with the fastest layer of all variants of its layout that may fit; infinite where none does.

    `any_chunks`: a frame's vpp stands for others too, so that nothing is to be made of the layers it leaves in a chunk.
    `least`: what `least_seconds` says of the variants: of any layout, say, or once for several calls.
    """
    chosen = np.arange(len(space.frames)) if frames is None else frames
    mbs, overlaps = space.frames.mbs[chosen], space.overlapping[chosen]
    sizes = np.unique(mbs).tolist()
    least = least or least_seconds(problem, space, sizes)
    of_frame, _ = _groups(space, least.any_layout)
    bound, fits = np.full(len(chosen), np.inf), np.zeros(len(chosen), dtype=np.bool_)
    for size in sizes:
        for overlapping in (True, False):
            alike = np.nonzero((mbs == size) & (overlaps == overlapping))[0]
            seconds, fits[alike] = least.of(size, overlapping, of_frame[chosen[alike]])
            if not fits[alike].any():
                continue
            rows = space.frames.take(chosen[alike])
            quick = _quick(problem, rows, seconds, any_chunks=any_chunks)
            quick = quick if score is None else score(rows, quick, seconds.kinds)
            bound[alike] = np.where(fits[alike], quick, np.inf)
    return bound, fits


def least_seconds(problem: Problem, space: Space, sizes: Sequence[int], any_layout: bool = False) -> LeastSeconds:
    """The least seconds of a space's variants for micro batches of some sizes.

    `any_layout`: variants go with all frames of their tp and cp, whatever their layout, and with any states: that is
    quicker, and bounds less.
    """
    _, of_variant = _groups(space, any_layout)
    if any_layout:  # a layer knows no more of them
        chosen, _ = space.variants.first_of_each(tuple(Shard.__dataclass_fields__))
    else:  # groups that shard states have the least of them
        chosen = np.flatnonzero(first_of_groups(space.variants, of_variant))
    return LeastSeconds(problem, space.variants.take(chosen), of_variant[chosen], sizes, any_layout)


def _groups(space: Space, any_layout: bool) -> tuple[Ints, Ints]:
    """What tells frames, and variants, of one layout from others, or with `any_layout` those of one tp and cp."""
    if not any_layout:
        return space.frame_layout, space.variant_layout
    frames, variants = space.frames, space.variants
    return frames.tp * _MORE_THAN_CP + frames.cp, variants.tp * _MORE_THAN_CP + variants.cp


_MORE_THAN_CP = 1 << 32
"""The same for all spaces: frames of one are looked up among groups of another's variants."""


class LeastSeconds:
    """Least seconds over variants by their groups: of those that may fit in memory with a micro batch."""

    def __init__(
        self, problem: Problem, variants: Candidates, group: Ints, sizes: Sequence[int], any_layout: bool
    ) -> None:
        order = np.argsort(group, kind="stable")
        self._problem, self._variants, self.any_layout = problem, variants.take(order), any_layout
        self._groups, self._starts = np.unique(group[order], return_index=True)
        self._shards, self._back = replace(self._variants, mbs=np.ones_like(group)).shard.distinct()
        self._sizes, self._known = list(sizes), dict[int, _Seconds]()

    def of(self, size: int, overlapping: bool, group: Ints) -> tuple[_Seconds, Bools]:
        """Columns (.., n) for n groups, and for which of these there is a variant at all; sizes must ascend.

        `overlapping`: whether variants count that overlap the experts' exchange. Without a variant all are 1.
        """
        if size not in self._known:
            at, count = self._sizes.index(size), max(1, VARIANTS // max(1, len(self._variants)))
            self._known = self._of_sizes(np.array(self._sizes[at : at + count]))
        seconds = self._known[size]
        if not seconds.layer.size:
            return seconds, np.zeros(len(group), dtype=np.bool_)
        counts = overlapping | ~self._variants.expert_overlap
        at_group = np.minimum(np.searchsorted(self._groups, group), len(self._groups) - 1)

        def least(column: Floats) -> Floats:
            of_groups = np.minimum.reduceat(np.where(counts, column, np.inf), self._starts, axis=-1)
            return np.asarray(of_groups[..., at_group])

        found = seconds.each(least)
        fits = np.isfinite(found.layer[0]) & (self._groups[at_group] == group)
        return found.each(lambda column: np.where(fits, column, 1.0)), fits

    def _of_sizes(self, sizes: Ints) -> dict[int, _Seconds]:
        """Seconds of every variant, (.., variants), by micro batch: infinite where it does not fit, none if none do."""
        count, variants = len(self._shards.tp), len(self._variants)
        columns = {name: np.tile(getattr(self._shards, name), len(sizes)) for name in self._shards.__dataclass_fields__}
        columns["mbs"] = np.repeat(sizes, count)
        one, no = np.ones_like(columns["mbs"]), np.zeros(len(columns["mbs"]), dtype=np.bool_)
        shards = Candidates(pp=one, dp=one, vpp=one, microbatches=one, distributed_optimizer=no, **columns)
        back = (self._back + count * np.arange(len(sizes))[:, None]).ravel()
        fits = _holds_a_layer(self._problem, shards)[back] if count else np.zeros(0, dtype=np.bool_)
        if not self.any_layout and fits.any():
            fits[fits] = self._fit(np.repeat(sizes, variants)[fits], np.nonzero(fits)[0] % variants)
        needed = np.unique(back[fits])
        if not len(needed):
            return dict.fromkeys(sizes.tolist(), _NO_SECONDS)
        seconds, place = _Seconds.of_rows(self._problem, shards.take(needed)), np.searchsorted(needed, back)
        place = np.minimum(place, len(needed) - 1)
        found = {}
        for at, size in enumerate(sizes.tolist()):
            of_size = slice(at * variants, (at + 1) * variants)
            fit, where = fits[of_size], place[of_size]
            found[size] = seconds.each(partial(_where, fit, where)) if fit.any() else _NO_SECONDS
        return found

    def _fit(self, sizes: Ints, chosen: Ints) -> Bools:
        """Which of some variants have a layout that micro batches of a size divide, and may fit with them."""
        rows, batch = self._variants.take(chosen), self._problem.batch
        fit = batch % (sizes * rows.dp) == 0
        rows, sizes = rows.take(fit), sizes[fit]
        rows = replace(rows, mbs=sizes, microbatches=batch // (sizes * rows.dp))
        fits = ~too_large(self._problem, rows, memory_table(self._problem, rows))
        if any(name in BOTH_WAYS for name in schedules_to_search(self._problem)):
            halves = _folded(self._problem, rows)
            fits |= ~too_large(self._problem, halves, memory_table(self._problem, halves))
        fit[fit] = fits
        return np.asarray(fit)


def _folded(problem: Problem, rows: Candidates) -> Candidates:
    """Variants as frames of BOTH_WAYS have them, folded."""
    code, one = DIMENSIONS["schedule"].code(BOTH_WAYS[0]), np.ones_like(rows.pp)
    return folded_rows(problem, replace(rows, schedule=code * one, vpp=V_CHUNKS * one))


def _where(fits: Bools, place: Ints, column: Floats) -> Floats:
    """A column's entries at places, infinite where nothing fits."""
    return np.where(fits, column[..., place], np.inf)


_NO_SECONDS = _Seconds(*(np.ones(0) for _ in fields(_Seconds)))
"""Of no variants."""


def _holds_a_layer(problem: Problem, rows: Candidates) -> Bools:
    """Rows of which some chip type holds the activations of one layer."""
    memory = memory_table(problem, rows)
    both_ways = any(name in BOTH_WAYS for name in schedules_to_search(problem))  # a layer counts by its kind there
    held = np.zeros(len(rows)) if both_ways else np.minimum(memory.full, memory.least_stored)
    need = memory.fixed + (1.0 + memory.overhead) * held
    return np.asarray(need <= max(problem.capacity_bytes(supply.chip) for supply in problem.supplies))


def too_large(problem: Problem, rows: Candidates, memory: MemoryTable) -> Bools:
    """Rows that no split fits on the devices with most memory: all states, and one layer's activations on each stage.

    Whatever is recomputed, a stage holds one layer whole while it runs backward.
    """
    factor = 1.0 + memory.overhead
    least = np.minimum(memory.buffer, memory.last_buffer)
    states = problem.model.layers * memory.layer_states + memory.first_states + memory.last_states
    held = np.where(rows.both_ways, 0.0, np.minimum(memory.full, memory.least_stored))
    need = states + rows.pp * (memory.fixed + factor * (least + held))
    largest = max(problem.capacity_bytes(supply.chip) for supply in problem.supplies)
    return np.asarray(need > rows.pp * largest * (1 + ROUNDING))


def first_bound(problem: Problem, rows: Candidates, score: RowBounds) -> Floats:
    """`quick_bound` without what follows the pipeline: the same for all sharding groups, and quicker."""
    seconds = _Seconds.of_rows(problem, rows)
    return score(rows, _quick(problem, rows, seconds), seconds.kinds)


def quick_bound(table: Coefficients, score: RowBounds | None = None, most: Ints | None = None) -> Floats:
    """A first bound for every row: all layers spread in any fractions over the fastest chips, memory ignored.

    `most`: the most stages that each chip type may serve, (n, types); None: as many as there are devices for.
    """
    time, rows, problem = table.time, table.rows, table.problem
    follows = (time.sync_layer + time.update_layer).min(axis=0) * problem.model.layers / rows.pp
    follows = follows + (time.sync_stage + time.update_stage).min(axis=0)
    alone = np.where(rows.pp == 1, table.least_sharding.min(axis=0), 0.0)
    seconds = _Seconds.of(table)
    saved = table.saving(np.arange(len(rows)))
    quick = _quick(problem, rows, seconds, alone, saved, None if most is None else most.T) + follows * SAFETY
    return quick if score is None else score(rows, quick, seconds.kinds)


def _quick(
    problem: Problem,
    rows: Candidates,
    seconds: _Seconds,
    alone: Floats | float = 0.0,
    saved: Floats | None = None,
    most: Ints | None = None,
    any_chunks: bool = False,
) -> Floats:
    """The bound without what follows the pipeline: (n,).

    `alone`: what a single stage takes more for every microbatch. `saved` (types, n): the most that a stage of a chip
    type saves by holding layers that are cheaper than the mean, None: all there are. `any_chunks`: see frame_bound.
    """
    numbers = counts_before(problem.model, 1)[:, -1]
    if saved is None:
        saved = (np.maximum(0.0, seconds.layer[:, None] - seconds.kinds) * numbers[:, None]).sum(axis=1)
    unit = np.ones_like(rows.vpp) if any_chunks else rows.vpp
    beside = np.zeros(len(rows)) if any_chunks else seconds.beside(problem, rows)
    if most is None:
        most = np.array([supply.limit for supply in problem.supplies])[:, None] // rows.stage_devices
    usable = (most > 0) | ~(most > 0).any(axis=0)
    slowest = _slowest_of_all(problem, rows, seconds, saved, unit, most, usable)
    for kind, count in enumerate(numbers.tolist()):
        of_kind = np.where(usable, seconds.kinds[:, kind], np.inf)
        slowest = np.maximum(slowest, (-(-count // rows.pp) * of_kind).min(axis=0))
        if problem.mixed and len(numbers) > 1:
            slowest = _in_whole_chunks(slowest, *_fastest(rows, of_kind, most), np.full(len(rows), count), 0.0)
    total = (np.where(usable[:, None], seconds.kinds, np.inf).min(axis=0) * numbers[:, None]).sum(axis=0)
    if not problem.mixed:
        total = np.maximum(total, problem.model.layers * seconds.layer[0])
    total = total + seconds.ends(rows) + alone + rows.pp * beside
    slowest = np.maximum(slowest + beside, total / rows.pp)
    first, second = weights(rows)
    step = first * slowest + second * total
    if problem.mixed:
        by_type = _fastest(rows, np.where(usable, seconds.layer, np.inf), most)
        layers = _Layers(*by_type, _work(problem, seconds, usable))
        others = seconds.ends(rows) + alone + rows.pp * beside
        step = np.full(len(rows), np.inf)
        for longest in layers.turns(slowest, beside):
            in_all = np.maximum(total, layers.least_sum(longest - beside) + others)
            step = np.minimum(step, first * longest + second * in_all)
    if (so := found_by_events(problem, rows)).any():
        places = None if any_chunks else rows.places(problem.model.layers) // unit
        whole = unit * seconds.layer[0]
        spared = (np.maximum(0.0, seconds.layer[0] - seconds.kinds[0]) * numbers[:, None]).sum(axis=0)
        of_events = _by_events(rows, slowest, total, places, (whole, beside), (saved[0], spared))
        step = np.where(so, of_events, step)
    if (least := least_microbatches(rows)).any():
        step = np.maximum(step, least * slowest)
    return np.asarray(step * SAFETY)


def _by_events(
    rows: Candidates,
    slowest: Floats,
    total: Floats,
    places: Ints | None,
    stage: tuple[Floats, Floats],
    saved: tuple[Floats, Floats],
) -> Floats:
    """The least seconds of rows of 1F1B on one chip type, run event by event: (n,).

    If no stage has more of the `places` in a chunk than an even split gives some, few have fewer, and each of the
    others comes after all but few: no step is shorter than a mean of the last of them. Otherwise one has a place more.
    `places` None: nothing is to be made of them. `stage`: seconds of a place in all of a stage's chunks, and what it
    has beside them. `saved`: the most that cheap layers save a stage, and all of them.
    """
    pp, times, vpp = rows.pp, rows.microbatches, rows.vpp
    if places is None:
        return np.asarray(times * slowest)
    most, (place, beside) = -(-places // pp), stage
    full, fewer = most * place + beside, pp * most - places
    of_all = np.minimum(saved[1], pp * saved[0])

    def mean(last: Floats) -> Floats:
        before = pp - 1 - fewer - (last - 1) / 2
        return (times + before / vpp) * full - times * np.minimum(saved[0], saved[1] / last) - of_all / vpp

    # Of more stages the mean saves less and has less before it: it is the longest where both change alike.
    few = np.sqrt(2 * times * vpp * saved[1] / np.maximum(full, _NOTHING)).round()
    even = np.maximum(mean(np.ones(len(rows))), mean(np.clip(few, 1, pp - fewer)))
    uneven = events_in_all(rows, slice(None), np.maximum(slowest, full + place - saved[0]), total)
    return np.asarray(np.maximum(events_in_all(rows, slice(None), slowest, total), np.minimum(even, uneven)))


def _slowest_of_all(
    problem: Problem, rows: Candidates, seconds: _Seconds, saved: Floats, unit: Ints, most: Ints, usable: Bools
) -> Floats:
    """The least time of the slowest stage's layers, counted whatever their kinds: (n,).

    In fractions a layer of each kind is as much of a mean layer as on the chip type that it suits best.
    """
    places = rows.places(problem.model.layers)
    of_longest = -(-places // (unit * rows.pp)) * unit * seconds.layer - saved
    longest = np.where(usable, of_longest, np.inf).min(axis=0)
    fastest, taken = _fastest(rows, np.where(usable, seconds.layer, np.inf), most)
    speed = np.maximum((taken / fastest).sum(axis=0), _NOTHING)
    if not problem.mixed:
        return np.asarray(np.maximum(places / speed, longest))
    work = _work(problem, seconds, usable) + places - problem.model.layers
    slowest = np.maximum(work / speed, longest)
    return _in_whole_chunks(slowest, unit * fastest, taken, places // unit, saved.max(axis=0))


def _work(problem: Problem, seconds: _Seconds, usable: Bools) -> Floats:
    """All layers in mean ones, a layer of each kind counted as on the chip type that it suits best: (n,)."""
    numbers = counts_before(problem.model, 1)[:, -1]
    shares = np.where(usable[:, None], seconds.kinds / seconds.layer[:, None], np.inf).min(axis=0)
    return np.asarray((shares * numbers[:, None]).sum(axis=0))


@dataclass(frozen=True)
class _Layers:
    """All layers in any fractions over the stages of several chip types: seconds of a mean layer, the fastest type
    first, and the stages of each, (types, n); and the `work` in mean layers, (n,)."""

    seconds: Floats
    stages: Ints
    work: Floats

    def least_sum(self, longest: Floats) -> Floats:
        """The least seconds of all layers where none of the stages has more of them than that: (n,).

        The fastest stages are filled first. What is left when all are full, by rounding, counts as on the slowest.
        """
        total, left, last = np.zeros(len(self.work)), self.work, self.seconds[0]
        for layer, stages in zip(self.seconds, self.stages, strict=True):
            last = np.where(stages > 0, layer, last)
            taken = np.minimum(left, stages * longest / last)
            total, left = total + taken * last, left - taken
        return np.asarray(total + left * last)

    def turns(self, slowest: Floats, beside: Floats) -> Iterator[Floats]:
        """Times of the slowest stage, no less than `slowest`, among which is the best for any sum of it and of all
        stages: from one to the next `least_sum` is linear, for the last chip type in use has no more layers.
        """
        yield slowest
        speed = np.maximum(np.cumsum(self.stages / self.seconds, axis=0), _NOTHING)
        for fastest in speed[:-1]:
            yield np.maximum(slowest, self.work / fastest + beside)


def _fastest(rows: Candidates, seconds: Floats, most: Ints) -> tuple[Floats, Ints]:
    """The chip types by their seconds, the fastest first, and the stages that each serves of as many fast ones as there
    are: (types, n) both."""
    order = np.argsort(seconds, axis=0, kind="stable")
    fastest, most = np.take_along_axis(seconds, order, axis=0), np.take_along_axis(most, order, axis=0)
    before = np.cumsum(most, axis=0) - most
    return fastest, np.clip(rows.pp - before, 0, most)


def _in_whole_chunks(slowest: Floats, chunk: Floats, stages: Ints, chunks: Ints, saved: Floats | float) -> Floats:
    """The slowest stage's time, no less than `slowest`, where every stage has a whole number of the chunks.

    `chunk`: seconds of one on each chip type, `stages` of these: (types, n); `saved`: what any stage may save.
    """

    def enough(time: Floats) -> Bools:
        held = stages * np.floor((time + saved) / chunk + WHOLE)
        return np.asarray(held.sum(axis=0) >= chunks)

    far = NEAR * slowest
    found = bisected(enough, slowest, far, _CHUNK_ROUNDS)
    return np.where(enough(slowest), slowest, np.where(enough(far), found, far))
