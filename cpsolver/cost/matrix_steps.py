"""The weights of a layer that are matrices, by their shapes on a device, and what it takes to orthogonalize one.

Muon takes each matrix whole. Where tensor parallelism splits it, Megatron-LM has three ways (core_v0.19.0,
core/optimizer/emerging_optimizers.py; Emerging-Optimizers fd77292, orthogonalized_optimizers/muon_utils.py,
newton_schulz_tp): each rank orthogonalizes its share alone; or gathers the whole and orthogonalizes that; or keeps its
share, and the Gram matrices are summed over the ranks in every iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import add

import numpy as np

from cpsolver.cost.chip_speeds import ChipSpeeds
from cpsolver.cost.collectives import Collective, collective_seconds
from cpsolver.cost.gemms import Gemm, absorbed, attention_gemms, block_gemms
from cpsolver.cost.kinds import LayerKind, model_of
from cpsolver.cost.recurrence import mixer_gemms
from cpsolver.cost.selection import indexer_gemms
from cpsolver.cost.shard import Floats, Ints, Shard
from cpsolver.problem.problem import Problem
from cpsolver.profiles.techniques import techniques
from hw_specs import Chip
from models_zoo import Architecture


@dataclass(frozen=True)
class Matrix:
    """`count` weights of one shape in a layer, each its own parameter; arrays (n,), one entry a shard.

    `rows` outputs by `columns` inputs on a device, `whole_rows` by `whole_columns` on all that split it, which are the
    ranks of an expert's tensor parallelism where it is `routed`. `pieces`: shares of the rows that are orthogonalized
    each on its own, as queries, keys and values are (--muon-no-split-qkv is off).
    """

    rows: Floats
    columns: Floats
    whole_rows: Floats
    whole_columns: Floats
    count: Floats
    routed: bool = False
    pieces: tuple[float, ...] = (1.0,)

    @property
    def elements(self) -> Floats:
        """Of one of them on a device."""
        return self.rows * self.columns

    @property
    def whole(self) -> Floats:
        """Elements of one of them on all ranks."""
        return self.whole_rows * self.whole_columns


def layer_matrices(problem: Problem, shard: Shard, kind: LayerKind) -> list[Matrix]:
    """The matrices of a layer of that kind. Vectors, convolutions and biases are none."""
    return [each for part, count in kind.parts for each in count * _part_matrices(problem, shard, part)]


def _part_matrices(problem: Problem, shard: Shard, kind: LayerKind) -> list[Matrix]:
    model, ones = model_of(problem.model, kind), np.ones_like(shard.tp)
    own = _weights(problem, model, shard, kind)
    whole = _weights(problem, model, replace(shard, tp=ones, etp=ones), kind)
    found = []
    for part, of_all in zip(own, whole, strict=True):
        shape = (part.n, part.k, of_all.n, of_all.k, part.count)
        rows, columns, whole_rows, whole_columns, count = (np.broadcast_to(each, ones.shape) for each in shape)
        pieces = _heads_apart(model) if part.name == "qkv" else (1.0,)
        found.append(Matrix(rows, columns, whole_rows, whole_columns, count, part.grouped, pieces))
    return found


def _weights(problem: Problem, model: Architecture, shard: Shard, kind: LayerKind) -> list[Gemm]:
    """The GEMMs with a weight of their own; where latent attention runs absorbed, one weight serves two of them."""
    mixer = mixer_gemms(model, shard, kind)
    if kind.attends and absorbed(model.attention):
        mixer = [*attention_gemms(_without_indexer(model), shard), *indexer_gemms(model, shard, kind)]
    return [*mixer, *block_gemms(model, shard, kind, fused=problem.spec.training.fused_gate_up)]


@lru_cache(maxsize=64)
def _without_indexer(model: Architecture) -> Architecture:
    return model.model_copy(update={"attention": model.attention.model_copy(update={"indexer": None})})


def _heads_apart(model: Architecture) -> tuple[float, ...]:
    """Shares of queries (and their gate), keys and values in one weight (_get_qkv_split_shapes)."""
    queries, keys = [model.heads] * (1 + model.attention.output_gate), [model.kv_heads] * 2
    heads = queries + keys[: 1 if model.attention.global_shared_kv and model.attention.sliding_window is None else 2]
    return tuple(each / sum(heads) for each in heads)


def orthogonalizing_seconds(problem: Problem, chip: Chip, shard: Shard, matrix: Matrix) -> Floats:
    """A step of one such matrix: its momentum, the iterations, and what tensor-parallel ranks communicate for them.

    The host launches the kernels of one matrix after another, and the device waits for it where they are short.
    """
    device, known, mode = ChipSpeeds(problem, chip), techniques(), problem.spec.training.muon_tp_mode
    ranks = np.where(matrix.elements < matrix.whole, shard.etp if matrix.routed else shard.tp, 1)
    gathers, together = (mode == name and bool((ranks > 1).any()) for name in ("duplicated", "distributed"))
    rows, columns = (matrix.whole_rows, matrix.whole_columns) if gathers else (matrix.rows, matrix.columns)
    iterated = known.muon_iterated_bytes + known.muon_gathered_bytes * (gathers & (ranks > 1))
    traffic = known.muon_own_bytes * matrix.elements + iterated * rows * columns
    shapes = [_sides(matrix, rows * piece, columns, together) for piece in matrix.pieces]
    products = reduce(add, (_iteration(device, short, long) for short, long in shapes))
    busy = known.muon_steps * products + device.stream(traffic, len(shapes) * known.muon_kernels)
    seconds = np.maximum(busy, 1e-6 * known.muon_host_us * len(shapes))
    if gathers:
        seconds = seconds + _among(problem, chip, "all_gather", known.muon_gather_bytes * matrix.whole, ranks)
    for short, _ in shapes if together else ():
        gram = known.muon_iterate_bytes * short**2
        seconds = seconds + known.muon_steps * _among(problem, chip, "all_reduce", gram, ranks)
    return np.asarray(seconds)


def _sides(matrix: Matrix, rows: Floats, columns: Floats, together: bool) -> tuple[Floats, Floats]:
    """The side of the Gram matrix and the other one: the shorter first; of ranks together the side that is not split,
    however long (newton_schulz_tp says that this wastes compute)."""
    short, long = np.minimum(rows, columns), np.maximum(rows, columns)
    if not together:
        return short, long
    outputs, inputs = matrix.rows < matrix.whole_rows, matrix.columns < matrix.whole_columns
    return np.where(outputs, columns, np.where(inputs, rows, short)), np.where(
        outputs, rows, np.where(inputs, columns, long)
    )


def _iteration(device: ChipSpeeds, short: Floats, long: Floats) -> Floats:
    """X X', its square, and their sum times X."""
    return np.asarray(
        device.gemm(short, short, long) + device.gemm(short, short, short) + device.gemm(short, long, short)
    )


def _among(problem: Problem, chip: Chip, kind: Collective, payload: Floats, ranks: Ints) -> Floats:
    return collective_seconds(problem, chip, kind, payload, ranks, np.ones_like(ranks))
