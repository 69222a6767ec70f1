"""The candidate rows: every combination of degrees and flags, and which rule refuses how many of them.

A row is a layout (tp, cp, pp, dp), a frame of it (micro batch, chunks, schedule) and a variant of it (flags, how cp
exchanges, the experts' grid, sharding). One rule ties frames to variants, `expert_overlap`: some frames go with none
of the variants that overlap. But for that rows are their products, made only where needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cpsolver.cost.schedules import V_CHUNKS, most_short, schedules_to_search
from cpsolver.cost.shard import Bools, Candidates, Floats, Ints, column_type
from cpsolver.plans.dimensions import DIMENSIONS, names
from cpsolver.plans.strategy import BOTH_WAYS, ONE_GROUP, SHARDED, V_SHAPED
from cpsolver.problem.problem import Problem
from cpsolver.profiles.expert_overlap import MOST_MTP, has_other_microbatch
from cpsolver.search.filters import FRAME_FILTERS, LAYOUT_FILTERS, VARIANT_FILTERS, Filter, Part
from models_zoo import Architecture

_VARIANT = names("variant")
"""The columns that a variant decides."""
_FRAME = (*names("layout"), *names("frame"), "embedding_slot", "loss_slot")
"""The columns that tell frames apart."""
_SPACES = 2
"""Spaces that are kept: that of all plans is a few hundred MB where it is largest."""
_LAYOUTS = 32
"""Layouts whose variants are made in one go."""
_FREE = tuple(dimension for dimension in reversed(tuple(DIMENSIONS.values())) if dimension.free)
"""Decisions whose values are tried with everything else; the first of them varies slowest."""

Columns = dict[str, Any]
"""Columns of a table by their names."""
_Chunking = tuple[int, int, int]
"""Chunks of a stage, and the layers in whose place the embedding and the head stand."""
Choices = dict[tuple[str, ...], list[tuple[int, ...]]]
"""The columns that an entry fills -> its entries."""


@dataclass(frozen=True)
class Space:
    """The rows that no rule on degrees refuses, and the count of those that each rule refused.

    `frames` and `variants` are sorted by their layout, whose index is in `frame_layout` and `variant_layout`; columns
    that they do not decide stand at 1 or False. Of a layout's variants those that overlap the experts' exchange come
    last. A layout, a frame or a variant that is refused counts as one row.
    """

    frames: Candidates
    frame_layout: Ints
    variants: Candidates
    variant_layout: Ints
    refused: dict[str, int]

    def __len__(self) -> int:
        return int(self.rows_of.sum())

    @property
    def considered(self) -> int:
        """Rows in all, refused ones too."""
        return len(self) + sum(self.refused.values())

    @cached_property
    def combinations(self) -> int:
        """Legal combinations of pp, tp, dp, sequence parallelism, vpp and micro batch: rows that differ in no more
        than the other decisions count as one.
        """
        total = 0
        for sequence_parallel in (False, True):
            has = np.zeros(len(self._first_variant), dtype=np.bool_)
            has[self._variant_code[self.variants.sequence_parallel == sequence_parallel]] = True
            code = 2 * self.frame_layout
            frames = self.frames.take(has[code] | (has[code + 1] & self.overlapping))
            code = np.zeros(len(frames), dtype=np.int64)
            for sizes in (frames.tp, *map(frames.unfolded, ("pp", "dp", "vpp")), frames.mbs):
                values, index = np.unique(sizes, return_inverse=True)
                code = code * len(values) + index
            total += len(np.unique(code))
        return total

    @cached_property
    def overlapping(self) -> Bools:
        """The frames that variants may go with that overlap the experts' exchange."""
        return np.asarray(has_other_microbatch(self.frames))

    @property
    def _variant_code(self) -> Ints:
        """Twice the layout, and 1 more for variants that overlap: ascending."""
        return np.asarray(2 * self.variant_layout + self.variants.expert_overlap)

    @cached_property
    def _first_variant(self) -> Ints:
        layouts = int(max(self.frame_layout.max(initial=-1), self.variant_layout.max(initial=-1))) + 2
        return np.searchsorted(self._variant_code, np.arange(2 * layouts))

    @cached_property
    def rows_of(self) -> Ints:
        """How many rows each frame has: the variants of its layout that may go with it."""
        first, code = self._first_variant, 2 * self.frame_layout
        return np.asarray(first[code + 1 + self.overlapping] - first[code])

    @cached_property
    def keys_of(self) -> Ints:
        """How many of each frame's rows differ in more than their sharding groups."""
        begins = np.concatenate([[0], np.cumsum(first_of_groups(self.variants, self.variant_layout))])
        first, code = self._first_variant, 2 * self.frame_layout
        return np.asarray(begins[first[code + 1 + self.overlapping]] - begins[first[code]])

    def expand(self, frames: Ints) -> Candidates:
        """All rows of some frames."""
        counts = self.rows_of[frames]
        frame = np.repeat(frames, counts)
        within = np.arange(len(frame)) - np.repeat(np.cumsum(counts) - counts, counts)
        variant = self._first_variant[2 * self.frame_layout[frame]] + within
        of_frame, of_variant = self.frames.take(frame), self.variants.take(variant)
        return replace(of_frame, **{name: getattr(of_variant, name) for name in _VARIANT})

    @cached_property
    def rows(self) -> Candidates:
        """All rows: for small spaces."""
        return self.expand(np.arange(len(self.frames)))

    def learn(self, wider: Space) -> None:
        """Take over what is known of frames of a space that has all the plans of this one."""
        both = Candidates.joined([wider.frames, self.frames])
        first, back = both.first_of_each(_FRAME)
        at = first[back[len(wider.frames) :]]
        same = np.flatnonzero(at < len(wider.frames))
        self.known.scores[same] = wider.known.scores[at[same]]
        self.known.fits[same] = wider.known.fits[at[same]]

    @cached_property
    def known(self) -> FrameBounds:
        """What searches have found of the frames, each of the rows left by those before it."""
        return FrameBounds(np.full(len(self.frames), np.nan), np.zeros(len(self.frames), dtype=np.bool_))


@dataclass(frozen=True)
class FrameBounds:
    """Of each frame a bound on its plans' score, NaN where nobody has looked for one, and whether any may fit."""

    scores: Floats
    fits: Bools


class Spaces:
    """The last spaces made, for searches of problems that differ in no more than the memory that plans leave free.

    What is known of the frames of one (`Space.known`) holds where as much or more memory is to stay free: a problem
    that leaves less than the last one gets a space of its own.
    """

    def __init__(self) -> None:
        self._last: list[tuple[Problem, float, Space]] = []
        self._widest: Space | None = None

    def of(self, problem: Problem) -> Space:
        """The problem's space."""
        ignored = {"top": 1, "diverse": False, "time_limit_s": None}
        alike = problem.with_(search=ignored, cluster={"memory_margin": None})
        found = [space for known, margin, space in self._last if margin <= problem.memory_margin and known == alike]
        space = found[0] if found else enumerate_rows(problem)
        if not found and self._widest is not None:
            space.learn(self._widest)
        others = [entry for entry in self._last if entry[2] is not space]
        most = _SPACES if self._widest is None else _SPACES - 1
        self._last = [(alike, problem.memory_margin, space), *others[: most - 1]]
        return space

    def narrowed(self) -> None:
        """From now on only problems are asked for whose plans the last one has too: its bounds hold for theirs."""
        self._widest = self._last[0][2] if self._last else None


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def first_of_groups(rows: Candidates, apart: Ints) -> Bools:
    """The rows that differ from the one before in more than the sharding group, or in `apart`."""
    begins = np.ones(len(rows), dtype=np.bool_)
    columns = [apart, *(getattr(rows, name) for name in rows.__dataclass_fields__ if name != "sharding_group")]
    begins[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return begins


Refusals = Callable[[Part, str, Ints, Ints], None]
"""What hears of which tp and pp the layouts, frames or variants are that a rule refuses: the part, the rule, those."""
_FILTERS: dict[Part, dict[str, Filter]] = {
    "layout": LAYOUT_FILTERS,
    "frame": FRAME_FILTERS,
    "variant": VARIANT_FILTERS,
}


def enumerate_rows(problem: Problem, hears: Refusals | None = None) -> Space:
    """Layouts with tp * cp * pp * dp = GPUs first, then the frames and the variants of the legal ones.

    `hears`: is called for each rule that refuses any.
    """
    refused: dict[str, int] = {}
    layouts = all_layouts(problem)
    layouts = layouts.take(_legal(problem, layouts, "layout", refused, hears))
    frames, frame_layout = all_frames(problem, layouts)
    keep = _legal(problem, frames, "frame", refused, hears)
    frames, frame_layout = frames.take(keep), frame_layout[keep]
    variants, variant_layout = _legal_variants(problem, layouts, refused, hears)
    last = np.argsort(2 * variant_layout + variants.expert_overlap, kind="stable")
    space = Space(frames, frame_layout, variants.take(last), variant_layout[last], refused)
    alone = (space.rows_of == 0) & np.isin(frame_layout, variant_layout)
    if alone.any():  # all that their layouts have overlaps
        refused["expert_overlap"] = refused.get("expert_overlap", 0) + int(alone.sum())
        if hears is not None:
            hears("variant", "expert_overlap", frames.tp[alone], frames.unfolded("pp")[alone])
    return space


def _legal_variants(
    problem: Problem, layouts: Candidates, refused: dict[str, int], hears: Refusals | None
) -> tuple[Candidates, Ints]:
    """The variants that no rule refuses, and the index of each one's layout; made in parts that caches hold."""
    parts, indices = list[Candidates](), list[Ints]()
    for begin in range(0, max(1, len(layouts)), _LAYOUTS):
        variants, layout = all_variants(problem, layouts.take(slice(begin, begin + _LAYOUTS)))
        keep = _legal(problem, variants, "variant", refused, hears)
        parts.append(variants.take(keep))
        indices.append(begin + layout[keep])
    return Candidates.joined(parts), np.concatenate(indices)


def _legal(
    problem: Problem,
    rows: Candidates,
    part: Part,
    refused: dict[str, int],
    hears: Refusals | None = None,
) -> Bools:
    """The rows that every filter allows; each of the others is counted for the first that refuses it."""
    keep = np.ones(len(rows), dtype=np.bool_)
    for name, allows in _FILTERS[part].items():
        legal = allows(problem, rows)
        count = int((keep & ~legal).sum())
        if count:
            refused[name] = refused.get(name, 0) + count
            if hears is not None:
                hears(part, name, rows.tp[keep & ~legal], rows.unfolded("pp")[keep & ~legal])
        keep = keep & legal
    return keep


def all_layouts(problem: Problem) -> Candidates:
    """Every tp, cp and pp whose product divides the devices; dp is what is left."""
    gpus = problem.num_gpus
    sizes = [
        (tp, cp, pp, gpus // (tp * cp * pp))
        for tp in divisors(gpus)
        for cp in divisors(gpus // tp)
        for pp in divisors(gpus // (tp * cp))
    ]
    tp, cp, pp, dp = np.array(sizes, dtype=np.int64).T
    return layout_rows(problem, tp=tp, cp=cp, pp=pp, dp=dp)


def layout_rows(problem: Problem, *, tp: Ints, cp: Ints, pp: Ints, dp: Ints) -> Candidates:
    """Layouts as rows: what they do not decide stands at 1 or False."""
    one, no = np.ones_like(tp), np.zeros(len(tp), dtype=np.bool_)
    return Candidates(
        tp=tp,
        pp=pp,
        dp=dp,
        mbs=one,
        vpp=one,
        microbatches=np.maximum(1, problem.batch // dp),
        sequence_parallel=no,
        distributed_optimizer=no,
        flash_attention=no,
        cp=cp,
    )


def all_frames(problem: Problem, layouts: Candidates) -> tuple[Candidates, Ints]:
    """Every micro batch, number of chunks, place of embedding and head and schedule for each layout, and its index.

    Schedules that do not interleave go with one chunk, breadth-first ones with more, and those placed as a V with two,
    unless they are pinned: then a rule refuses the others. Those of BOTH_WAYS are folded (plans/folding.py): such a
    frame has half of its layout's stages, on twice the replicas.
    """
    layers, pinned = problem.model.layers, problem.spec.search.pin.vpp or ()
    schedules = schedule_codes(problem)
    chunkings = {pp: _chunkings(layers, pp, pinned) for pp in set(layouts.pp.tolist())}
    codes = {code: _suiting(code, problem.model, len(schedules) == 1) for code in schedules}
    ways = {
        pp: [(*chunking, code) for code, chunks in codes.items() for chunking in chunks(pp, of_pp)]
        for pp, of_pp in chunkings.items()
    }
    blocks = [np.empty((2 + len(_WAY), 0), dtype=np.int64)]
    for index, (pp, dp) in enumerate(zip(layouts.pp.tolist(), layouts.dp.tolist(), strict=True)):
        choices: Choices = {("mbs",): [(mbs,) for mbs in divisors(problem.batch // dp)], _WAY: [*ways[pp]]}
        blocks.append(_combined(index, choices)[1])
    columns = dict(zip(("layout", "mbs", *_WAY), np.concatenate(blocks, axis=1), strict=True))
    layout = columns.pop("layout")
    return folded_rows(problem, replace(layouts.take(layout), **columns)), layout


def folded_rows(problem: Problem, rows: Candidates) -> Candidates:
    """Frames with their microbatches, those of BOTH_WAYS folded; of one stage or an odd number a rule refuses them."""
    halved, half = rows.both_ways, np.maximum(1, rows.pp // 2)
    pp, dp = np.where(halved, half, rows.pp), np.where(halved, 2 * rows.dp, rows.dp)
    return replace(rows, pp=pp, dp=dp, microbatches=problem.batch // (rows.mbs * dp))


def _suiting(code: int, model: Architecture, alone: bool) -> Callable[[int, list[_Chunking]], list[_Chunking]]:
    """The numbers of chunks that a schedule goes with, of those that 1F1B may have with that pp."""
    schedule, layers = DIMENSIONS["schedule"].decoded(code), model.layers
    interleaves = schedule in ONE_GROUP

    def of_v(pp: int, chunkings: list[_Chunking]) -> list[_Chunking]:
        head = layers % V_CHUNKS
        own = [(V_CHUNKS, 0, head)] * (pp > 1 and V_CHUNKS * pp <= layers + head)
        return own or (chunkings[:1] if alone else [])

    def of_others(pp: int, chunkings: list[_Chunking]) -> list[_Chunking]:
        return [each for each in chunkings if code == 1 or (pp > 1 and (each[0] > 1) == interleaves) or alone]

    def of_both_ways(pp: int, _chunkings: list[_Chunking]) -> list[_Chunking]:
        heads = range(layers % V_CHUNKS, most_short(model) + 1, V_CHUNKS)
        even = pp > 1 and pp % 2 == 0
        return [(V_CHUNKS, 0, head) for head in heads if (even and pp + head <= layers) or (alone and head < 2)]

    if schedule in BOTH_WAYS:
        return of_both_ways
    return of_v if schedule in V_SHAPED else of_others


def schedule_codes(problem: Problem) -> list[int]:
    """The schedules that are searched, as columns have them."""
    return [DIMENSIONS["schedule"].code(name) for name in schedules_to_search(problem)]


def _chunkings(layers: int, pp: int, pinned: Sequence[int]) -> list[_Chunking]:
    """Numbers of chunks, and the layers in whose place the embedding and the head stand to make these equally long.

    The last stage has a layer or the head in its last chunk, so no fewer in each of its chunks than that place of
    layers. Numbers that leave uneven chunks are refused where they are asked for.
    """
    found = {(vpp, 0, 0) for vpp in {*divisors(layers), *pinned} if vpp * pp <= layers or vpp == 1}
    for vpp in range(2, (layers + 2) // pp + 1) if pp > 1 else ():
        for embedding in (0, 1):
            head = -(layers + embedding) % vpp
            if vpp * (pp - 1 + max(1, head)) <= layers + embedding + head:
                found.add((vpp, embedding, head))
    return sorted(found)


def all_variants(problem: Problem, layouts: Candidates) -> tuple[Candidates, Ints]:
    """Every setting of the flags, of context parallelism, experts and sharding for each layout, and its index.

    What nothing allows is there if it is pinned, to be refused by its rule.
    """
    free: Choices = {(free.name,): [(free.code(value),) for value in free.values] for free in _FREE}
    header: tuple[str, ...] = ("layout", *_VARIANT)
    blocks = [np.empty((len(header), 0), dtype=np.int64)]
    sizes = zip(layouts.tp.tolist(), layouts.cp.tolist(), layouts.pp.tolist(), layouts.dp.tolist(), strict=True)
    for index, (tp, cp, pp, dp) in enumerate(sizes):
        choices: Choices = {
            **free,
            _EXCHANGE: _exchanges(problem, cp),
            _GRID: _overlapping(problem, expert_grids(problem, tp, tp * cp * dp)),
            _SHARDING: _shardings(problem, pp, dp * cp),
        }
        header, block = _combined(index, choices)
        blocks.append(block)
    columns = dict(zip(header, np.concatenate(blocks, axis=1), strict=True))
    layout = columns.pop("layout")
    others = (name for name in Candidates.__dataclass_fields__ if name not in columns)
    of_layout = {name: getattr(layouts, name)[layout] for name in others}
    typed: Columns = {name: column.astype(column_type(name), copy=False) for name, column in columns.items()}
    return Candidates(**of_layout, **typed), layout


_WAY = ("vpp", "embedding_slot", "loss_slot", "schedule")
_EXCHANGE = ("ulysses", "cp_gather")
_GRID = ("ep", "etp", "expert_overlap")
_SHARDING = ("distributed_optimizer", "sharded", "sharding_group")


def _exchanges(problem: Problem, cp: int) -> list[tuple[int, ...]]:
    """How context parallelism may communicate, as _EXCHANGE."""
    pin = problem.spec.search.pin
    sizes = sorted({*divisors(cp), *(pin.ulysses or ())})
    gathering = sizes if pin.cp_gather == (True,) else [1] * (cp > 1)
    return [*((ulysses, 0) for ulysses in sizes), *((ulysses, 1) for ulysses in gathering)]


def _shardings(problem: Problem, pp: int, replicas: int) -> list[tuple[int, ...]]:
    """How replicas may shard their states, as _SHARDING, the plain optimizer first.

    Under a pipeline only optimizer states are sharded, unless more is asked for.
    """
    groups = sharding_groups(problem, replicas)
    codes = range(1, 1 + len(SHARDED)) if pp == 1 or problem.spec.search.pin.sharded else (1,)
    return [(0, 1, 0), *((1, code, group) for code in codes for group in groups)]


def _overlapping(problem: Problem, grids: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Grids of experts as _GRID: without overlap, and with it where that saves anything or is asked for."""
    asked = True in (problem.spec.search.pin.expert_overlap or ())
    known = problem.launcher is None or problem.launcher.expert_overlap
    saves = known and problem.stack.routing_overlap > 0 and problem.model.mtp_layers <= MOST_MTP
    return [(*grid, overlap) for grid in grids for overlap in (0, 1) if not overlap or asked or (saves and grid[0] > 1)]


def expert_grids(problem: Problem, tp: int, stage_devices: int) -> list[tuple[int, ...]]:
    """The grids of experts, ep and etp: every ep and etp that a stage's devices are enough for, and those pinned."""
    moe, pin = problem.model.moe, problem.spec.search.pin
    experts, shares = ([1], [1]) if moe is None else (divisors(moe.experts), divisors(tp))
    asked = pin.ep or pin.etp
    pairs = ((ep, etp) for ep in {*experts, *(pin.ep or ())} for etp in {*shares, *(pin.etp or ())})
    return sorted((ep, etp) for ep, etp in pairs if asked or ep * etp <= stage_devices)


def sharding_groups(problem: Problem, replicas: int) -> list[int]:
    """Groups that may shard states, the largest first: all replicas (0) and every divisor of them above 1, or what the
    user pinned.
    """
    pinned = problem.spec.search.pin.sharding_group
    groups = {0, *(size for size in divisors(replicas) if 1 < size < replicas)} if pinned is None else set(pinned)
    return sorted(groups, key=lambda size: -size if size else -replicas)


def _combined(index: int, choices: Choices) -> tuple[tuple[str, ...], Ints]:
    """A row for every combination of one entry of each of the choices: the names of the columns, and the columns
    (names, rows).

    The first column is the `index`; the first of the choices varies slowest.
    """
    tables = [np.array(entries, dtype=np.int64).reshape(-1, len(names)) for names, entries in choices.items()]
    header = ("layout", *(name for names in choices for name in names))
    sizes = [len(table) for table in tables]
    block = np.empty((len(header), *sizes), dtype=np.int64)
    block[0], at = index, 1
    for axis, table in enumerate(tables):
        own = [1] * axis + [len(table)] + [1] * (len(tables) - axis - 1)
        for column in table.T:
            block[at] = column.reshape(own)
            at += 1
    return header, block.reshape(len(header), -1)
