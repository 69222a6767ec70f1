"""The candidate rows: every combination of degrees and flags, and which rule refuses how many of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import gcd

import numpy as np

from cpsolver.cost.shard import Bools, Candidates, Ints
from cpsolver.decisions import forbidden_for, pinned_for
from cpsolver.problem import Problem


@dataclass(frozen=True)
class Space:
    """The rows that no rule on degrees refuses, and the count of those that each rule refused."""

    rows: Candidates
    considered: int
    refused: dict[str, int]


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def enumerate_rows(problem: Problem) -> Space:
    """Layouts (tp, pp, dp) with tp * pp * dp = GPUs first, then micro batches, chunks and flags of the legal ones.

    A layout that a rule refuses counts as one row; the others as all their rows.
    """
    tp, pp = all_layouts(problem.num_gpus)
    dp = problem.num_gpus // (tp * pp)
    refused: dict[str, int] = {}
    keep = np.ones(len(tp), dtype=np.bool_)
    for name, legal in LAYOUT_FILTERS.items():
        keep = _cut(refused, name, keep, legal(problem, tp, pp, dp))
    rows = expand_rows(problem, tp[keep], pp[keep], dp[keep])
    keep = np.ones(len(rows), dtype=np.bool_)
    for name, allowed in ROW_FILTERS.items():
        keep = _cut(refused, name, keep, allowed(problem, rows))
    considered = sum(refused.values()) + int(keep.sum())
    return Space(rows.take(keep), considered, refused)


def _cut(refused: dict[str, int], name: str, keep: Bools, legal: Bools) -> Bools:
    count = int((keep & ~legal).sum())
    if count:
        refused[name] = refused.get(name, 0) + count
    return keep & legal


def all_layouts(num_gpus: int) -> tuple[Ints, Ints]:
    """Every tp and pp whose product divides the devices; dp is what is left."""
    pairs = [(tp, pp) for tp in divisors(num_gpus) for pp in divisors(num_gpus // tp)]
    array = np.array(pairs, dtype=np.int64)
    return array[:, 0], array[:, 1]


def expand_rows(problem: Problem, tp: Ints, pp: Ints, dp: Ints) -> Candidates:
    """Every micro batch, number of chunks and setting of the flags for each layout."""
    layers, pinned = problem.model.layers, problem.spec.search.pin.vpp or ()
    even = sorted({*divisors(layers), *pinned})  # other counts leave uneven chunks: asked for, they are refused
    blocks = []
    for t, p, d in zip(tp.tolist(), pp.tolist(), dp.tolist(), strict=True):
        micro = np.array(divisors(problem.batch // d), dtype=np.int64)
        chunks = np.array([count for count in even if count * p <= layers or count == 1])
        grid = np.meshgrid(micro, chunks, [True, False], [True, False], [True, False], indexing="ij")
        mbs, vpp, *flags = (axis.ravel() for axis in grid)
        size = len(mbs)
        columns = [np.full(size, t), np.full(size, p), np.full(size, d), mbs, vpp, problem.batch // (mbs * d)]
        blocks.append((*columns, *flags))
    if not blocks:
        blocks = [(*(np.empty(0, dtype=np.int64) for _ in range(6)), *(np.empty(0, dtype=np.bool_),) * 3)]
    return Candidates(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def _choice(values: Ints | Bools, pinned: Iterable[object] | None, forbidden: Iterable[object] | None) -> Bools:
    allowed = np.ones(len(values), dtype=np.bool_)
    if pinned is not None:
        allowed &= np.isin(values, list(pinned))  # type: ignore[arg-type]
    if forbidden is not None:
        allowed &= ~np.isin(values, list(forbidden))  # type: ignore[arg-type]
    return allowed


def stage_step(node: int, stage_devices: int) -> int:
    """A chip type that shares the cluster fills whole nodes: its number of stages is a multiple of this."""
    return node // gcd(stage_devices, node)


def most_stages(problem: Problem, stage_devices: int, pp: int) -> list[int]:
    """The most stages that each chip type can serve, whole nodes only (all stages need no other type's share)."""
    step = stage_step(problem.node, stage_devices)
    pin = problem.spec.search.pin
    named = pin.chip_order if pin.stage_chips is None else pin.stage_chips
    counts = (
        min(pp, supply.limit // stage_devices) if named is None or supply.name in named else 0
        for supply in problem.supplies
    )
    return [count if count == pp else count // step * step for count in counts]


# Filters on layouts: one per rule of rules.py with the same name.


def _heads(problem: Problem, tp: Ints, _pp: Ints, _dp: Ints) -> Bools:
    return np.asarray(problem.model.heads % tp == 0)


def _kv_groups(problem: Problem, tp: Ints, _pp: Ints, _dp: Ints) -> Bools:
    groups = problem.model.kv_heads
    return np.asarray((groups % tp == 0) | (tp % groups == 0))


def _feed_forward(problem: Problem, tp: Ints, _pp: Ints, _dp: Ints) -> Bools:
    return np.asarray(problem.model.ffn % tp == 0)


def _tensor_nodes(problem: Problem, tp: Ints, _pp: Ints, _dp: Ints) -> Bools:
    return np.asarray((problem.node % tp == 0) | (tp % problem.node == 0))


def _pipeline_depth(problem: Problem, _tp: Ints, pp: Ints, _dp: Ints) -> Bools:
    return np.asarray(pp <= problem.model.layers)


def _batch(problem: Problem, _tp: Ints, _pp: Ints, dp: Ints) -> Bools:
    return np.asarray(problem.batch % dp == 0)


def _chip_count(problem: Problem, tp: Ints, pp: Ints, dp: Ints) -> Bools:
    sizes = zip((tp * dp).tolist(), pp.tolist(), strict=True)
    return np.array([sum(most_stages(problem, width, p)) >= p for width, p in sizes], dtype=np.bool_)


def _pinned_layout(problem: Problem, tp: Ints, pp: Ints, dp: Ints) -> Bools:
    pin, forbid = problem.spec.search.pin, problem.spec.search.forbid
    allowed = np.ones(len(tp), dtype=np.bool_)
    for name, values in (("tp", tp), ("pp", pp), ("dp", dp)):
        allowed &= _choice(values, getattr(pin, name), getattr(forbid, name))
    for fixed in (pin.layers, pin.stage_chips):
        if fixed is not None:
            allowed &= pp == len(fixed)
    if pin.layers is not None:
        allowed &= sum(pin.layers) == problem.model.layers
    if not problem.mixed:
        allowed &= np.array([_one_chip_allowed(problem, depth) for depth in pp.tolist()], dtype=np.bool_)
    return allowed


def _one_chip_allowed(problem: Problem, pp: int) -> bool:
    """The pins and bans on chips, when one type serves all stages (plans.py keeps them for several)."""
    name = problem.chip_names[0]
    pin, forbid = problem.spec.search.pin, problem.spec.search.forbid
    wanted = pinned_for(pin.stages, name)
    return (
        (wanted is None or pp in wanted)
        and pp not in forbidden_for(forbid.stages, name)
        and (pin.chip_order is None or name in pin.chip_order)
        and forbid.chip_order != (name,)
        and forbid.stage_chips != (name,) * pp
        and (pin.stage_chips is None or pin.stage_chips == (name,) * pp)
    )


LAYOUT_FILTERS: dict[str, Callable[[Problem, Ints, Ints, Ints], Bools]] = {
    "pin": _pinned_layout,
    "heads": _heads,
    "kv_groups": _kv_groups,
    "feed_forward": _feed_forward,
    "tensor_nodes": _tensor_nodes,
    "pipeline_depth": _pipeline_depth,
    "batch": _batch,
    "chip_count": _chip_count,
}


# Filters on rows.


def _pinned_row(problem: Problem, rows: Candidates) -> Bools:
    pin, forbid = problem.spec.search.pin, problem.spec.search.forbid
    allowed = np.ones(len(rows), dtype=np.bool_)
    for name in ("mbs", "vpp", "sequence_parallel", "distributed_optimizer", "flash_attention"):
        allowed &= _choice(getattr(rows, name), getattr(pin, name), getattr(forbid, name))
    for count in set(pin.layers or ()):
        allowed &= count % rows.vpp == 0
    return allowed


def _interleaving(_problem: Problem, rows: Candidates) -> Bools:
    return np.asarray((rows.vpp == 1) | ((rows.pp > 1) & (rows.microbatches % rows.pp == 0)))


def _even_chunks(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(problem.model.layers % rows.vpp == 0)


def _sequence_parallel(problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(~rows.sequence_parallel | ((rows.tp > 1) & (problem.sequence % rows.tp == 0)))


def _distributed_optimizer(_problem: Problem, rows: Candidates) -> Bools:
    return np.asarray(~rows.distributed_optimizer | (rows.dp > 1))


def _layer_split(problem: Problem, rows: Candidates) -> Bools:
    if problem.spec.search.layer_split != "even":
        return np.ones(len(rows), dtype=np.bool_)
    return np.asarray(problem.model.layers % (rows.pp * rows.vpp) == 0)


ROW_FILTERS: dict[str, Callable[[Problem, Candidates], Bools]] = {
    "pin": _pinned_row,
    "even_chunks": _even_chunks,
    "interleaving": _interleaving,
    "sequence_parallel": _sequence_parallel,
    "distributed_optimizer": _distributed_optimizer,
    "layer_split": _layer_split,
}
