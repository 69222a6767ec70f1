"""The candidate rows: every combination of degrees and flags, and which rule refuses how many of them.

A row is a layout (tp, cp, pp, dp), a frame of it (micro batch, chunks, schedule) and a variant of it (flags, how cp
exchanges, the experts' grid, sharding). One rule ties frames to variants, `expert_overlap`: some frames go with none
of the variants that overlap. But for that rows are their products, made only where needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cpsolver.cost.schedules import schedules_to_search
from cpsolver.cost.shard import Bools, Candidates, Ints, column_type
from cpsolver.plans.dimensions import DIMENSIONS, names
from cpsolver.plans.strategy import SHARDED
from cpsolver.problem.problem import Problem
from cpsolver.profiles.expert_overlap import MOST_MTP, has_other_microbatch
from cpsolver.search.filters import FRAME_FILTERS, LAYOUT_FILTERS, VARIANT_FILTERS, Filter

_VARIANT = names("variant")
"""The columns that a variant decides."""
_FREE = tuple(dimension for dimension in reversed(tuple(DIMENSIONS.values())) if dimension.free)
"""Decisions whose values are tried with everything else; the first of them varies slowest."""

Columns = dict[str, Any]
"""Columns of a table by their names."""
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
            for sizes in (frames.tp, frames.pp, frames.dp, frames.vpp, frames.mbs):
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


def enumerate_rows(problem: Problem) -> Space:
    """Layouts with tp * cp * pp * dp = GPUs first, then the frames and the variants of the legal ones."""
    refused: dict[str, int] = {}
    layouts = all_layouts(problem)
    layouts = layouts.take(_legal(problem, layouts, LAYOUT_FILTERS, refused))
    frames, frame_layout = all_frames(problem, layouts)
    keep = _legal(problem, frames, FRAME_FILTERS, refused)
    frames, frame_layout = frames.take(keep), frame_layout[keep]
    variants, variant_layout = all_variants(problem, layouts)
    keep = _legal(problem, variants, VARIANT_FILTERS, refused)
    variants, variant_layout = variants.take(keep), variant_layout[keep]
    last = np.argsort(2 * variant_layout + variants.expert_overlap, kind="stable")
    space = Space(frames, frame_layout, variants.take(last), variant_layout[last], refused)
    alone = int(((space.rows_of == 0) & np.isin(frame_layout, variant_layout)).sum())
    if alone:  # all that their layouts have overlaps
        refused["expert_overlap"] = refused.get("expert_overlap", 0) + alone
    return space


def _legal(problem: Problem, rows: Candidates, filters: Mapping[str, Filter], refused: dict[str, int]) -> Bools:
    """The rows that every filter allows; each of the others is counted for the first that refuses it."""
    keep = np.ones(len(rows), dtype=np.bool_)
    for name, allows in filters.items():
        legal = allows(problem, rows)
        count = int((keep & ~legal).sum())
        if count:
            refused[name] = refused.get(name, 0) + count
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

    Schedules that do not interleave go with one chunk, unless they are pinned: then a rule refuses the others.
    """
    layers, pinned = problem.model.layers, problem.spec.search.pin.vpp or ()
    schedules = schedule_codes(problem)
    chunkings = {pp: _chunkings(layers, pp, pinned) for pp in set(layouts.pp.tolist())}
    frames = [
        (index, mbs, *chunking, schedule)
        for index, (pp, dp) in enumerate(zip(layouts.pp.tolist(), layouts.dp.tolist(), strict=True))
        for mbs in divisors(problem.batch // dp)
        for chunking in chunkings[pp]
        for schedule in schedules
        if schedule == 1 or (pp > 1 and chunking[0] == 1) or len(schedules) == 1
    ]
    names = ("layout", "mbs", "vpp", "embedding_slot", "loss_slot", "schedule")
    columns = _columns(names, np.array(frames, dtype=np.int64))
    layout = columns.pop("layout")
    rows = replace(layouts.take(layout), **columns)
    return replace(rows, microbatches=problem.batch // (rows.mbs * rows.dp)), layout


def schedule_codes(problem: Problem) -> list[int]:
    """The schedules that are searched, as columns have them."""
    return [DIMENSIONS["schedule"].code(name) for name in schedules_to_search(problem)]


def _columns(names: Sequence[str], table: Ints) -> Columns:
    """The columns of a table, (rows, columns), by their names; a table without rows has every column too."""
    return dict(zip(names, table.reshape(-1, len(names)).T, strict=True))


def _chunkings(layers: int, pp: int, pinned: Sequence[int]) -> list[tuple[int, int, int]]:
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
    blocks, header = [np.empty(0, dtype=np.int64)], ("layout", *_VARIANT)
    sizes = zip(layouts.tp.tolist(), layouts.cp.tolist(), layouts.pp.tolist(), layouts.dp.tolist(), strict=True)
    for index, (tp, cp, pp, dp) in enumerate(sizes):
        choices: Choices = {
            **free,
            _EXCHANGE: _exchanges(problem, cp),
            _GRID: _overlapping(problem, expert_grids(problem, tp, tp * cp * dp)),
            _SHARDING: _shardings(problem, pp, dp * cp),
        }
        header, block = _combined(index, choices)
        blocks.append(block.ravel())
    columns = _columns(header, np.concatenate(blocks))
    layout = columns.pop("layout")
    typed: dict[str, Any] = {name: column.astype(column_type(name), copy=False) for name, column in columns.items()}
    return replace(layouts.take(layout), **typed), layout


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
    """One row for every combination of one entry of each of the choices: the names of the columns, and the table.

    The first column is the `index`; the first of the choices varies slowest.
    """
    tables = [np.array(entries, dtype=np.int64).reshape(-1, len(names)) for names, entries in choices.items()]
    picks = np.meshgrid(*(np.arange(len(table)) for table in tables), indexing="ij")
    columns = [table[pick.ravel()] for table, pick in zip(tables, picks, strict=True)]
    header = ("layout", *(name for names in choices for name in names))
    return header, np.concatenate([np.full((len(columns[0]), 1), index), *columns], axis=1)
