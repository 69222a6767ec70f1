"""Muon and SOAP over replicas: whole matrices on ranks, the padding that this takes, and the seconds of a step.

Megatron-LM's layer-wise distributed optimizer (core_v0.19.0, core/optimizer/layer_wise_optimizer.py) gives every matrix
of a model chunk to one of the ranks that share states, the largest first, each to the rank that has least; experts'
matrices to the ranks that share these. Every rank's part of the buffers of weights and gradients is as long as the
longest, so that reducing and gathering stay collectives of equal parts. All other weights are Adam's, cut by elements.

The fullest rank of N matrices of at least s elements among d ranks has ceil(N / d) of them, and none has less than the
mean in the mean: the largest of these numbers over all sizes is the least that the fullest can have, and what that way
of giving them out comes to within some per cent (tests/cost/test_muon.py). A stage has as many layers as the mean one.
The model's first chunk may have larger matrices than the mean one, of dense layers before experts: what its buffers and
its step are longer for these is the first stage's own. SOAP's preconditioners of a matrix lie where it lies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cpsolver.cost.kinds import kind_of_layers, kind_shares, layer_kinds, module_counts, of_module
from cpsolver.cost.matrix_steps import Matrix, layer_matrices, orthogonalizing_seconds
from cpsolver.cost.memory import StageParameters
from cpsolver.cost.preconditioning import factor_elements, preconditioning_seconds
from cpsolver.cost.shard import Bools, Candidates, Floats, Ints, Shard
from cpsolver.problem.problem import Problem
from hw_specs import Chip

_WHOLE = 1.0 - 1e-9
"""Counts are means over layers: what is no more than rounding above a whole number is that number."""


@dataclass(frozen=True)
class Buffers:
    """What a device's buffers of weights and gradients hold, padding included, and of these the matrices (None: no
    optimizer takes matrices whole); and elements of the squares that SOAP keeps factors of, as if the ranks shared
    what all of them would hold that had as many as the fullest."""

    held: StageParameters
    matrices: StageParameters | None
    factors: StageParameters | None = None


def buffers(problem: Problem, rows: Candidates, parts: StageParameters) -> Buffers:
    """`parts`: the parameters on a device (`memory.stage_parameters`)."""
    training = problem.spec.training
    if not training.whole_matrices:
        return Buffers(parts, None)
    found = LayerMatrices(problem, rows)
    padded = _matrices(problem, rows, parts, found, found.padding(found.sizes, False), found.padding(found.sizes, True))
    padded = replace(padded, encoder=found.beyond_mean(found.sizes))
    beside = beside_matrices(problem, rows, parts)
    factors = _factors(problem, found) if training.optimizer == "soap" else None
    return Buffers(_each(padded, beside, 1.0), padded, factors)


def _factors(problem: Problem, found: LayerMatrices) -> StageParameters:
    """Elements of the squares on the fullest rank, times the ranks."""
    dense, routed = (found.padding(found.squares, of) * found.elements(found.squares, of) for of in (False, True))
    model, join = problem.model, factor_elements(found.join)[found.of_row]
    own_dense, own_routed = of_module(model, dense), of_module(model, routed)
    ends = {"last": model.mtp_weights * (own_dense + join), "last_experts": model.mtp_weights * own_routed}
    return replace(_by_kind(problem, dense, routed, **ends), encoder=found.beyond_mean(found.squares))


def beside_matrices(problem: Problem, rows: Candidates, parts: StageParameters) -> StageParameters:
    """The parameters that are no matrices."""
    one = np.ones(len(rows))
    return _each(parts, _matrices(problem, rows, parts, LayerMatrices(problem, rows), one, one), -1.0)


def _each(one: StageParameters, other: StageParameters, times: float) -> StageParameters:
    names = StageParameters.__dataclass_fields__
    return StageParameters(**{name: getattr(one, name) + times * getattr(other, name) for name in names})


def _matrices(
    problem: Problem, rows: Candidates, parts: StageParameters, found: LayerMatrices, *paddings: Floats
) -> StageParameters:
    """Elements of the matrices among `parts`, times the paddings of dense and of routed ones."""
    padding, of_experts = paddings
    dense = np.minimum(found.elements(found.sizes, False), parts.layer + parts.kind_layer)
    routed = np.minimum(found.elements(found.sizes, True), parts.experts + parts.kind_experts)
    model = problem.model
    modules = np.minimum(model.mtp_weights * (of_module(model, dense) + 2.0 * model.hidden**2 / rows.tp), parts.last)
    own_experts = np.minimum(model.mtp_weights * of_module(model, routed), parts.last_experts)
    ends = {"last": padding * modules, "last_experts": of_experts * own_experts}
    return _by_kind(problem, padding * dense, of_experts * routed, **ends)


def _by_kind(problem: Problem, dense: Floats, routed: Floats, **ends: Floats) -> StageParameters:
    """From the parameters of a layer of each kind, (kinds, n)."""
    share, nothing = np.array(kind_shares(problem.model)), np.zeros(dense.shape[1])
    layer, experts = share @ dense, share @ routed
    told = {**dict.fromkeys(("first", "last", "last_experts", "encoder", "frozen"), nothing), **ends}
    return StageParameters(
        layer=layer, experts=experts, kind_layer=dense - layer, kind_experts=routed - experts, **told
    )


@dataclass(frozen=True)
class MatrixSeconds:
    """Seconds of the step of matrices on the fullest rank: of a layer, and of what the first and the last stage have
    more."""

    layer: Floats
    first: Floats
    last: Floats


def matrix_seconds(problem: Problem, chip: Chip, rows: Candidates) -> MatrixSeconds:
    """The seconds of every row."""
    found, both = LayerMatrices(problem, rows), (False, True)
    each = found.seconds(chip)
    mean = sum(found.busiest(each, routed)[0] for routed in both)
    first = sum(found.busiest_first(each, routed)[0] for routed in both)
    per_layer = rows.pp * rows.vpp / problem.model.layers
    return MatrixSeconds(np.asarray(mean * per_layer), np.maximum(0.0, first - mean), found.modules(each, chip))


class LayerMatrices:
    """The matrices of all kinds of layers on the devices of some rows, by class: arrays (classes, n)."""

    def __init__(self, problem: Problem, rows: Candidates) -> None:
        self._problem, self._rows = problem, rows
        code, self.of_row = rows.first_of_each(("tp", "ep", "etp"))
        self._shard: Shard = rows.take(code).shard
        model = problem.model
        numbers = np.bincount(kind_of_layers(model))
        of_kinds = [layer_matrices(problem, self._shard, kind) for kind in layer_kinds(model)]
        self._classes: list[Matrix] = [matrix for of_kind in of_kinds for matrix in of_kind]
        self._kind = np.array([index for index, of_kind in enumerate(of_kinds) for _ in of_kind], dtype=np.int64)
        self._layers = numbers[self._kind][:, None]
        self._routed = np.array([matrix.routed for matrix in self._classes], dtype=np.bool_)

    def _columns(self, of_class: list[Floats]) -> Floats:
        return np.stack(of_class)[:, self.of_row]

    @cached_property
    def sizes(self) -> Floats:
        """Elements of one matrix of each class."""
        return self._columns([matrix.elements for matrix in self._classes])

    @cached_property
    def squares(self) -> Floats:
        """Elements of the squares of its sides."""
        return self._columns([factor_elements(matrix) for matrix in self._classes])

    @cached_property
    def _counts(self) -> Floats:
        """In one layer of the class's kind."""
        return self._columns([matrix.count for matrix in self._classes])

    def elements(self, values: Floats, routed: bool) -> Floats:
        """The sum of some values over the matrices of a layer of each kind, (kinds, n)."""
        all_of = values * self._counts * (self._routed == routed)[:, None]
        return np.stack(
            [all_of[self._kind == kind].sum(axis=0) for kind in range(len(layer_kinds(self._problem.model)))]
        )

    def seconds(self, chip: Chip) -> Floats:
        """Of one matrix of each class."""
        return self._columns([self._step(chip, matrix) for matrix in self._classes])

    def _step(self, chip: Chip, matrix: Matrix) -> Floats:
        of_one = preconditioning_seconds if self._problem.spec.training.optimizer == "soap" else orthogonalizing_seconds
        return of_one(self._problem, chip, self._shard, matrix)

    def _ranks(self, routed: bool) -> Ints:
        return self._rows.expert_shards if routed else self._rows.shards

    def busiest(self, values: Floats, routed: bool) -> tuple[Floats, Floats]:
        """The sum of some values over the matrices of a mean model chunk that the fullest rank has at least, and over
        all of them; (n,) each. Kinds of which not every stage has a layer count in the mean only.
        """
        rows = self._rows
        return self._fullest(values, routed, self._layers / (rows.pp * rows.vpp), self._layers >= rows.pp)

    def busiest_first(self, values: Floats, routed: bool) -> tuple[Floats, Floats]:
        """The same of the model's first chunk, by the layers that it has."""
        chunks = self._first_chunk[self._kind]
        return self._fullest(values, routed, chunks, chunks >= _WHOLE)

    @cached_property
    def _first_chunk(self) -> Floats:
        """Layers of each kind in the first chunk, where all chunks are as long: (kinds, n)."""
        kinds = np.asarray(kind_of_layers(self._problem.model))
        here = kinds[:, None] == np.arange(len(layer_kinds(self._problem.model)))
        before = np.concatenate([np.zeros((1, here.shape[1])), here.cumsum(axis=0)])
        length = len(kinds) / (self._rows.pp * self._rows.vpp)
        whole = np.minimum(np.floor(length).astype(np.int64), len(kinds) - 1)
        return np.asarray((before[whole] + (length - whole)[:, None] * here[whole]).T)

    def beyond_mean(self, values: Floats) -> Floats:
        """How much longer the buffers of the first chunk are (or the factors there, by `values`) than its layers'
        matrices with their padding.

        Experts' are not: none of them is in layers that few have.
        """
        if len(layer_kinds(self._problem.model)) == 1:
            return np.zeros(len(self._rows))
        most, total = self.busiest_first(values, False)
        return np.maximum(0.0, most * self._ranks(False) - self.padding(values, False) * total)

    def _fullest(self, values: Floats, routed: bool, chunks: Floats, certain: Bools) -> tuple[Floats, Floats]:
        """`busiest` of a chunk that has so many layers with each class; not `certain`: counted in the mean only."""
        own = self._routed == routed
        if not own.any():
            return np.zeros(len(self._rows)), np.zeros(len(self._rows))
        values, counts, ranks = values[own], self._counts[own] * chunks[own], self._ranks(routed)
        total = (values * counts).sum(axis=0)
        order = np.argsort(-values, axis=0, kind="stable")
        larger = np.take_along_axis(np.where(certain[own], counts, 0.0), order, axis=0).cumsum(axis=0)
        whole = np.ceil(larger * _WHOLE / ranks) * np.take_along_axis(values, order, axis=0)
        return np.where(ranks > 1, np.maximum(total / ranks, whole.max(axis=0)), total), total

    def padding(self, values: Floats, routed: bool) -> Floats:
        """What all ranks would have that had as much as the fullest, against the values of all, 1 or more: of sizes the
        length of the buffers against the elements of the matrices in them."""
        most, total = self.busiest(values, routed)
        return np.where(total > 0, most * self._ranks(routed) / np.where(total > 0, total, 1.0), 1.0)

    def modules(self, each: Floats, chip: Chip) -> Floats:
        """Seconds of the modules of multi-token prediction, spread evenly over the ranks."""
        model, found = self._problem.model, np.zeros(len(self._rows))
        if not model.mtp_layers:
            return found
        layers = np.array(module_counts(model))[self._kind]
        for routed in (False, True):
            own = (layers > 0) & (self._routed == routed)
            found = found + (each[own] * (layers[:, None] * self._counts)[own]).sum(axis=0) / self._ranks(routed)
        join_s = self._step(chip, self.join)[self.of_row]
        return np.asarray(model.mtp_weights * (found + join_s / self._ranks(False)))

    @cached_property
    def join(self) -> Matrix:
        """The matrix that joins a module's two inputs, by shard."""
        tp, hidden = self._shard.tp, np.full(len(self._shard.tp), float(self._problem.model.hidden))
        return Matrix(hidden / tp, 2 * hidden, hidden, 2 * hidden, np.ones(len(tp)))
