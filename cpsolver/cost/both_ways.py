"""What devices of DualPipe hold of either of their stages in flight, layer by layer.

Device s of pp, folded (plans/folding.py), holds 2 pp - s microbatches of its stage s, chunk 0, and s + 1 of the
mirrored one, chunk 1 (deepseek-ai/DualPipe, dualpipe.py, steps 1 to 4: as many as 1F1B would). So it matters in which
of them layers stand that keep less: DeepSeek-V3's dense ones are all on the first stage, of which most is in flight,
and the head, in the place of some, on the last, of which least is.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cpsolver.cost.kinds import counts_before, examples
from cpsolver.cost.modules import Modules, incidence
from cpsolver.cost.shard import Floats, Ints
from cpsolver.cost.tables import MemoryTable
from models_zoo import Architecture
from models_zoo.params import layer_parameters

CHUNKS = 2


def in_flight(pp: int) -> Ints:
    """Microbatches in flight of each chunk of every device: (chunks, pp)."""
    stage = np.arange(pp)
    return np.stack([2 * pp - stage, stage + 1])


@lru_cache(maxsize=64)
def other_kinds(model: Architecture) -> tuple[tuple[int, ...], ...]:
    """The kinds of layers whose weights are not those of the common one, those with the same weights together."""
    held = [layer_parameters(model, index) for index in examples(model)]
    others = dict.fromkeys(each for each in held if each != held[0])
    return tuple(tuple(index for index, each in enumerate(held) if each == other) for other in others)


@lru_cache(maxsize=64)
def sorts_before(model: Architecture, short: int) -> Ints:
    """Layers of each sort of `other_kinds` before each place of either chunk, the head in that many places of the last
    stage: (sorts, chunks, places of a chunk + 1)."""
    alone = counts_before(model, 1, 0, short)
    long = (alone.shape[1] - 1) // CHUNKS
    near, far = alone[:, : long + 1], alone[:, -1:] - alone[:, long:][:, ::-1]
    by_chunk = np.stack([near, far], axis=1)
    sorts = [by_chunk[list(kinds)].sum(axis=0) for kinds in other_kinds(model)]
    return np.array(sorts, dtype=np.int64).reshape(-1, CHUNKS, long + 1)


def stored_less(memory: MemoryTable, model: Architecture, sets: tuple[Modules, ...], row: Ints) -> Floats:
    """Bytes that a layer of each sort keeps less than the one that keeps most, under each set of modules recomputed:
    (sorts, sets, n), of some rows."""
    stored = memory.stored(sets, row).most
    less = memory.short[:, None, row] + np.einsum("sm,kmn->ksn", incidence(sets).astype(float), memory.freed[:, :, row])
    own = np.maximum(0.0, stored - np.maximum(memory.full[row] - less, memory.checkpoint[row]))
    sorts = [own[list(kinds)].min(axis=0) for kinds in other_kinds(model)]
    return np.array(sorts).reshape(-1, *stored.shape)


def spared(less: Floats, layers: Ints, held: Ints) -> Floats:
    """Bytes that layers of each sort keep less in flight. `less` (sorts,), `layers` (sorts, chunks, ..) and `held`
    (chunks,), microbatches of either chunk."""
    return np.asarray(np.einsum("s,sc...,c->...", less, layers, held))
