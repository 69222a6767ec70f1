"""All coefficients of the cost model for many candidate rows: a stage's time is linear in its layers with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from cpsolver.cost import comm, compute, encoder, memory, states, whole_matrices
from cpsolver.cost.activation_switches import left_in_last_chunk, on_device
from cpsolver.cost.breadth_first import hiding_shares, left_of_last
from cpsolver.cost.kinds import layer_kinds, mean_of_kinds, of_module
from cpsolver.cost.memory import StageParameters
from cpsolver.cost.modules import Modules, freed_by_kind, most_freed, replayed
from cpsolver.cost.shard import Bools, Candidates, Floats, Shard
from cpsolver.cost.shard_seconds import Columns, known_shards, pass_columns, shard_columns
from cpsolver.cost.stored import Stored, stored_of_kinds
from cpsolver.plans.dimensions import DIMENSIONS, ROW
from cpsolver.problem.problem import Problem, Supply
from hw_specs import Chip
from models_zoo import Architecture


@dataclass(frozen=True)
class TimeTable:
    """Seconds on one chip type, one entry a candidate row. All of a layer is of the mean over the model's layers.

    `kind_layer` and `kind_layer_tp`, of shape (kinds, rows), are what a layer of each kind of `layer_kinds` takes more
    than `layer` and `layer_tp`. `mtp_tp` is the communication of multi-token prediction within `head`, `encoder_tp`
    that of an encoder of images within `embedding`, `end_tp` of what else is in `embedding` or `head`.

    Per microbatch: `layer` (forward and backward, with `layer_tp` of it communication inside the layer), `recompute`
    (extra for a recomputed layer, `collected` of it for bringing its input together) and `modules` (extra where one of
    MODULES is recomputed, (MODULES, rows)), `embedding` and `head` (first and last stage), `chunk` (the host's work for
    each model chunk), `hop_near` and `hop_far` (one transfer to a neighbouring stage inside a fast domain or over the
    network; `hop_waited` of it both of its ends wait for, as in `waited_share`). With sharded parameters `gather`
    brings a layer's weights, with sharded gradients `scatter` scatters them, `gather_ends` and `scatter_ends` those of
    embedding and head. Per step: `sync_*` is data-parallel communication that
    nothing hides, `update_*` the optimizer: for each layer, for each stage, and what the first and last stage add.
    """

    layer: Floats
    layer_tp: Floats
    kind_layer: Floats
    kind_layer_tp: Floats
    recompute: Floats
    collected: Floats
    modules: Floats
    embedding: Floats
    head: Floats
    end_tp: Floats
    encoder_tp: Floats
    mtp_tp: Floats
    hop_near: Floats
    hop_far: Floats
    hop_waited: Floats
    chunk: Floats
    gather: Floats
    scatter: Floats
    gather_ends: Floats
    scatter_ends: Floats
    sync_layer: Floats
    sync_stage: Floats
    sync_first: Floats
    sync_last: Floats
    update_layer: Floats
    update_stage: Floats
    update_first: Floats
    update_last: Floats

    def take(self, rows: Any) -> TimeTable:
        """Some of the rows: indices or a mask."""
        return TimeTable(*(getattr(self, field.name)[..., rows] for field in fields(self)))


def stacked(tables: Sequence[TimeTable]) -> TimeTable:
    """The tables of several chip types in one: every column with an axis of chip types in front."""
    columns = [[getattr(table, field.name) for table in tables] for field in fields(TimeTable)]
    return TimeTable(*(np.stack(column) if len(column) > 1 else column[0][None] for column in columns))


@dataclass(frozen=True)
class MemoryTable:
    """Bytes per device, one entry a candidate row; the same on every chip type.

    `layer_states` are weights, gradients and optimizer state of the mean layer, `kind_states` (kinds, rows) what a
    layer of each kind has more; `first_states` and `last_states` of what stands on those stages. `full` and
    `checkpoint` as in `LayerBytes`; `buffer` lives on every stage and `last_buffer` instead of it on the last one: of
    all these the most that a layer of any kind needs, since memory is rounded up. `first_stored` is what an encoder of
    images has in flight on the first stage, and `first_buffer` what it takes there beyond `buffer`. Of each kind,
    `short` (kinds, rows) is what it keeps less than `full`, and `freed` (kinds, MODULES, rows) as in `LayerBytes`.
    `last_chunk` is what a layer of a V's last chunk keeps more than `full` of the one microbatch that this chunk holds.
    `apart`: as in `stored_of_kinds`. `fixed` is the framework's.
    """

    model: Architecture
    apart: Bools

    layer_states: Floats
    kind_states: Floats
    first_states: Floats
    last_states: Floats
    full: Floats
    short: Floats
    freed: Floats
    checkpoint: Floats
    buffer: Floats
    last_buffer: Floats
    last_chunk: Floats
    first_stored: Floats
    first_buffer: Floats
    fixed: float
    overhead: float

    def take(self, rows: Any) -> MemoryTable:
        """Some of the rows: indices or a mask."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays: dict[str, Any] = {
            name: each[..., rows] for name, each in columns.items() if isinstance(each, np.ndarray)
        }
        return replace(self, **arrays)

    def stored(self, sets: tuple[Modules, ...], row: Any) -> Stored:
        """What layers keep of a microbatch under each set of modules recomputed, (sets, n), of some rows."""
        freed = freed_by_kind(self.freed[:, :, row], self.short[:, row], sets)
        by_kind = np.maximum(self.full[row] - freed, self.checkpoint[row])
        return stored_of_kinds(self.model, by_kind, self.apart[row])

    def replayed(self, sets: tuple[Modules, ...], row: Any) -> Floats:
        """Bytes that are there once while a module is recomputed, (sets, n), of some rows."""
        return replayed(self.freed[:, :, row], sets)

    @cached_property
    def least_stored(self) -> Floats:
        """No set of modules leaves a layer of the kind that keeps most less to store."""
        return np.asarray(np.maximum(self.full - most_freed(self.freed, self.short), self.checkpoint))


def time_table(problem: Problem, supply: Supply, rows: Candidates) -> TimeTable:
    """The time coefficients of every row on one chip type."""
    shard, back = rows.shard.distinct()
    columns = _of_shards(problem, supply.chip, shard, shard_columns)
    by_row = {name: column[..., back] for name, column in columns.items()}
    passes = by_row.pop("own_forward"), by_row.pop("own_backward")
    return TimeTable(**by_row, chunk=_chunk(problem, rows), **_data_parallel(problem, supply, rows, passes))


def pass_seconds(problem: Problem, supply: Supply, rows: Candidates) -> dict[str, Floats]:
    """The columns of `time_table` that bounds of many rows count on, by name: of layers, ends, chunks and transfers."""
    shard, back = rows.shard.distinct()
    columns = _of_shards(problem, supply.chip, shard, pass_columns)
    return {**{name: columns[name][..., back] for name in _OF_PASSES}, "chunk": _chunk(problem, rows)}


def layer_seconds(problem: Problem, supply: Supply, rows: Candidates) -> tuple[Floats, Floats]:
    """A mean layer's forward, and forward and backward, of every row: (n,) each."""
    shard, back = rows.shard.distinct()
    columns = _of_shards(problem, supply.chip, shard, shard_columns)
    return (columns["recompute"] - columns["collected"])[back], columns["layer"][back]


_OF_PASSES = ("layer", "kind_layer", "embedding", "head", "hop_near", "hop_far", "hop_waited")
_MANY = 4096
"""Shards that are not looked up among those that are known: to work out more takes no longer."""


def _of_shards(problem: Problem, chip: Chip, shard: Shard, make: Callable[[Problem, Chip, Shard], Columns]) -> Columns:
    """The columns of shards that `make` gives, or more."""
    return make(problem, chip, shard) if len(shard.tp) > _MANY else known_shards(problem, chip).of(shard)


def _chunk(problem: Problem, rows: Candidates) -> Floats:
    return compute.chunk_seconds(problem, np.where(rows.v_shaped, 1, rows.vpp), rows.expert_overlap)


def _data_parallel(
    problem: Problem, supply: Supply, rows: Candidates, passes: tuple[Floats, Floats]
) -> dict[str, Floats]:
    """The columns of data-parallel communication and of the optimizer. `passes`: forward and backward of a layer."""
    trained, held = memory.trained_and_held(problem, rows, states.held(problem).gather)
    update = _updates(problem, supply.chip, rows, trained)
    parts, sync = whole_matrices.buffers(problem, rows, trained).held, _Sync(problem, supply, rows)
    sync_layer, sync_stage, more_of_last = sync.hidden_behind(parts, *passes)
    gather, scatter = sync.each_microbatch((parts.layer, parts.experts), (held.layer, held.experts))
    ends = [(each.first + each.encoder + each.last, each.last_experts) for each in (parts, held)]
    gather_ends, scatter_ends = sync.each_microbatch(*ends)
    tied = sync.tied(parts.first)
    averaged = encoder.averaged_seconds(problem, supply.chip, rows, parts.encoder)
    return {
        "gather": gather,
        "scatter": scatter,
        "gather_ends": gather_ends,
        "scatter_ends": scatter_ends,
        "sync_layer": sync_layer,
        "sync_stage": sync_stage,
        "sync_first": sync.after(parts.first + parts.encoder) + tied + averaged,
        "sync_last": more_of_last + tied,
        **update,
    }


def _updates(problem: Problem, chip: Chip, rows: Candidates, parts: StageParameters) -> dict[str, Floats]:
    """The columns of the optimizer; matrices that it takes whole are on the ranks that have them."""
    stack, broadcasts = problem.stack, np.where(rows.shards > 1, rows.shards, 0)
    matrices = whole_matrices.MatrixSeconds(*3 * (np.zeros(len(rows)),))
    if problem.spec.training.whole_matrices:
        matrices = whole_matrices.matrix_seconds(problem, chip, rows)
        parts = whole_matrices.beside_matrices(problem, rows, parts)

    def update(parameters: Floats, experts: Floats | float = 0.0) -> Floats:
        held = parameters / rows.shards + experts / rows.expert_shards
        return states.optimizer_seconds(problem, chip, held)

    return {
        "update_layer": update(parts.layer, parts.experts) + matrices.layer,
        "update_stage": 1e-3 * (stack.step_overhead_ms + stack.shard_broadcast_ms * broadcasts),
        "update_first": update(parts.first + parts.encoder) + matrices.first,
        "update_last": update(parts.last, parts.last_experts) + matrices.last,
    }


def memory_table(problem: Problem, rows: Candidates) -> MemoryTable:
    """The memory coefficients of every row."""
    stack = problem.stack
    trained, parts = memory.trained_and_held(problem, rows, states.held(problem).weight)
    shard, kinds = rows.shard, layer_kinds(problem.model)
    layers = [on_device(problem, shard, kind, memory.layer_bytes(problem, shard, kind)) for kind in kinds]
    full, checkpoint, layer_buffer = (
        np.max([getattr(layer, name) for layer in layers], axis=0) for name in ("full", "checkpoint", "buffer")
    )
    whole = parts.layer + parts.experts + (parts.kind_layer + parts.kind_experts).max(axis=0)
    ends = np.maximum(parts.first + parts.encoder + parts.frozen, parts.last + parts.last_experts)
    sharded = rows.distributed_optimizer & (rows.sharded == 3)
    inside = states.gathered_bytes(problem) * stack.gathered_layers * whole
    gathered = np.where(sharded, inside + stack.parameter_bytes * ends, 0.0)
    received = np.where(rows.pp > 1, 2.0 * rows.microbatches * comm.hop_bytes(problem, rows.shard), 0.0)
    buffer = layer_buffer + gathered + stack.pipeline_buffers * received
    more = 1.0 + stack.activation_overhead
    kept = memory.held_logits_bytes(problem, rows)
    last_buffer = np.maximum(buffer, memory.logits_bytes(problem, rows)) + kept
    # At the end of the step they are joined, which takes as much again when everything else has gone.
    in_last = [left_in_last_chunk(problem, rows, kind) for kind in kinds]
    modules = of_module(problem.model, np.stack([layer.full for layer in layers]) + in_last)
    last_buffer = np.maximum(last_buffer, 2 * kept) + memory.module_bytes(problem, rows, modules)
    return MemoryTable(
        model=problem.model,
        apart=rows.both_ways,
        **_states(problem, rows, trained, parts),
        full=more * full,
        short=more * np.stack([full - layer.full for layer in layers]),
        freed=more * np.stack([layer.freed for layer in layers]),
        checkpoint=more * checkpoint,
        buffer=more * buffer,
        last_buffer=more * last_buffer,
        last_chunk=more * np.max(in_last, axis=0),
        **{name: more * column for name, column in _encoder_bytes(problem, rows, buffer).items()},
        fixed=stack.framework_bytes,
        overhead=stack.expandable_overhead if problem.expandable_segments else stack.allocator_overhead,
    )


def _encoder_bytes(problem: Problem, rows: Candidates, buffer: Floats) -> dict[str, Floats]:
    """The columns of an encoder of images: what it keeps of all microbatches in flight (frozen: its projectors alone),
    and a layer at work in its backward pass."""
    alone, vision, images = problem.encoder, problem.model.vision, problem.spec.training.images
    if alone is None or vision is None or images is None:
        return dict.fromkeys(("first_stored", "first_buffer"), np.zeros(len(rows)))
    own = encoder.encoder_shard(problem, rows.shard)
    layers = [memory.layer_bytes(alone, own, kind) for kind in layer_kinds(alone.model)]
    kept = vision.layers * mean_of_kinds(alone.model, np.stack([layer.full for layer in layers])) * images.trained
    at_work = np.max([layer.buffer for layer in layers], axis=0) * images.trained
    stored = encoder.microbatches_held(rows) * (kept + encoder.projector_bytes(problem, own))
    return {"first_stored": stored, "first_buffer": np.maximum(0.0, at_work - buffer)}


def _states(problem: Problem, rows: Candidates, trained: StageParameters, parts: StageParameters) -> dict[str, Floats]:
    """The columns of weights, gradients and optimizer state; of what is there and not trained, the weight alone."""
    own, routed = (states.state_bytes(problem, rows, shards) for shards in (rows.shards, rows.expert_shards))
    in_buffers = whole_matrices.buffers(problem, rows, trained)
    found = _state_columns(in_buffers.held, own.each, routed.each)
    if problem.lora is not None:
        names = StageParameters.__dataclass_fields__
        frozen = StageParameters(**{name: getattr(parts, name) - getattr(trained, name) for name in names})
        more = _state_columns(frozen, own.weight, routed.weight)
        found = {name: column + more[name] for name, column in found.items()}
    found["first_states"] = found["first_states"] + parts.frozen * own.weight
    if in_buffers.matrices is None:
        return found
    saved, of_experts = (states.saved_bytes(problem, rows, ranks) for ranks in (rows.shards, rows.expert_shards))
    less = _state_columns(in_buffers.matrices, saved, of_experts)
    found = {name: column - less[name] for name, column in found.items()}
    if in_buffers.factors is None:
        return found
    of_dense, of_routed = (states.factor_bytes(rows, ranks) for ranks in (rows.shards, rows.expert_shards))
    more = _state_columns(in_buffers.factors, of_dense, of_routed)
    return {name: column + more[name] for name, column in found.items()}


def _state_columns(parts: StageParameters, each: Floats, each_expert: Floats) -> dict[str, Floats]:
    return {
        "layer_states": parts.layer * each + parts.experts * each_expert,
        "kind_states": parts.kind_layer * each + parts.kind_experts * each_expert,
        "first_states": (parts.first + parts.encoder) * each,
        "last_states": parts.last * each + parts.last_experts * each_expert,
    }


_TwoWays = tuple[Floats, ...]
"""Of gradients and of weights."""
_OF_REPLICAS = tuple(name for name in ROW if DIMENSIONS[name].group in ("sizes", "sharding"))
"""All that parameters on a device and the groups that share them depend on: few of the rows differ in it."""


class _Sync:
    """Data-parallel communication of a group of parameters, and what of it nothing hides."""

    def __init__(self, problem: Problem, supply: Supply, rows: Candidates) -> None:
        self._problem, self._chip, self._rows = problem, supply.chip, rows
        chunks = ("vpp",) * problem.spec.training.whole_matrices  # each chunk's matrices are padded on their own
        self._first, self._back = rows.first_of_each((*_OF_REPLICAS, *chunks))
        self._distinct = rows.take(self._first)
        self._parameters = rows.distributed_optimizer & (rows.sharded == 3)
        self._gradients = rows.distributed_optimizer & (rows.sharded >= 2)

    def _seconds(self, parameters: Floats, experts: Floats | None = None) -> tuple[Floats, Floats]:
        rows, problem, chip, first = self._distinct, self._problem, self._chip, self._first
        reduce, gather = comm.gradient_seconds(problem, chip, parameters[first], rows, rows.replicas, rows.tp)
        all_frozen = experts is None or (problem.lora is not None and not experts.any())
        if experts is not None and problem.model.moe is not None and not all_frozen:
            stride = rows.etp * rows.ep
            more = comm.gradient_seconds(problem, chip, experts[first], rows, rows.expert_replicas, stride)
            reduce, gather = reduce + more[0], gather + more[1]
        if problem.lora is not None and not parameters.any():  # frozen, all of it
            reduce, gather = 0 * reduce, 0 * gather
        return reduce[self._back], gather[self._back]

    @cached_property
    def _rings(self) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        """What buckets cost beside that, for each parameter: of all but routed experts, and of these."""
        rows, one, given = self._distinct, np.ones(1), (self._problem, self._chip)
        dense = comm.bucket_seconds(*given, one, rows, rows.replicas, rows.tp)
        routed = dense
        if self._problem.model.moe is not None:
            routed = comm.bucket_seconds(*given, one, rows, rows.expert_replicas, rows.etp * rows.ep)
        back = self._back
        return (dense[0][back], dense[1][back]), (routed[0][back], routed[1][back])

    def each_microbatch(self, trained: tuple[Floats, Floats], held: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        """Gathering sharded weights once, and scattering gradients; nothing where they are held whole.

        `trained` and `held`: parameters that have gradients, and those that are gathered, without experts' and theirs.
        """
        if not self._gradients.any():
            return np.zeros(len(self._rows)), np.zeros(len(self._rows))
        reduce, gather = self._seconds(*trained)
        gather = gather if self._problem.lora is None else self._seconds(*held)[1]
        own = held[0] / self._rows.shards + held[1] / self._rows.expert_shards
        weights, gradients = states.link_seconds(self._problem, self._chip, own)
        gather, reduce = np.where(self._parameters, gather + weights, 0.0), np.where(self._gradients, reduce, 0.0)
        return gather, reduce + np.where(self._parameters, gradients, 0.0)

    def hidden_behind(self, parts: StageParameters, forward: Floats, backward: Floats) -> tuple[Floats, Floats, Floats]:
        """Exposed seconds for each layer, for each stage, and for what the last stage has more.

        Gradients of a layer travel under the backward of the layers before it, in the last microbatch; weights are
        gathered under the forward of the layers before it. What is longer than that sticks out, and so does one
        layer's share at the end (gradients) and at the start (weights).
        """
        reduce, gather = self.each_step(parts.layer, parts.experts)
        stack, shares = self._problem.stack, hiding_shares(self._problem)
        covers = tuple(share * passes for share, passes in zip(shares, (backward, forward), strict=True))
        of_last = self.each_step(parts.last, parts.last_experts if self._problem.model.mtp_layers else None)
        more = self._more_of_last((reduce, gather), of_last, covers)
        reduce_out, reduce_end = self._sticks_out(reduce, stack.gradient_overlap * backward, covers[0])
        gather_out, gather_end = self._sticks_out(gather, stack.parameter_overlap * forward, covers[1])
        return reduce_out + gather_out, (reduce - reduce_end) + (gather - gather_end), more

    def _sticks_out(self, seconds: Floats, cover: Floats, of_chunks: Floats) -> tuple[Floats, Floats]:
        """What is longer than its cover: a layer's mean over the chunks, and what of one layer's share at the step's
        end that counts already. `of_chunks`: the cover of another chunk's pass in a breadth-first pipeline.

        A chunk's gradients set out at its own last microbatch, and its weights are due at its own first one: all but
        one chunk of a stage travel under pp microbatches of another (Megatron-LM core/pipeline_parallel/schedules.py,
        forward_backward_pipelining_with_interleaving: grad_sync_func, param_sync_func). Both chunks of a stage of a V
        end with the step.
        """
        rows = self._rows
        vpp, under = np.where(rows.v_shaped, 1, rows.vpp), np.where(rows.one_group, of_chunks, cover)
        others = (vpp - 1) * np.maximum(0.0, seconds - rows.chunk_group * under)
        first = np.maximum(0.0, seconds - cover)
        mean = (others + first) / vpp
        return mean, np.where(rows.one_group, first, mean)

    def _more_of_last(self, layer: _TwoWays, last: _TwoWays, covers: _TwoWays) -> Floats:
        """Of gradients that are ready first and weights that are needed last, what sticks out: a share of them, or in a
        breadth-first pipeline `left_of_last`."""
        rows, stack = self._rows, self._problem.stack
        whole = last[0] * (1.0 - stack.gradient_overlap) + last[1] * (1.0 - stack.parameter_overlap)
        hidden = (rows.chunk_group * cover for cover in covers)
        beside = sum(left_of_last(*each) for each in zip(layer, last, hidden, strict=True))
        return np.where(rows.one_group & (rows.vpp > 1), beside, whole)

    def tied(self, parameters: Floats) -> Floats:
        """Summing the gradients of a table that two stages hold; a frozen one has none."""
        seconds = comm.tied_seconds(self._problem, self._chip, parameters, self._rows)
        return seconds if self._problem.lora is None else 0 * seconds

    def after(self, parameters: Floats) -> Floats:
        """Seconds of a group that nothing can hide: the last gradients to be ready, the first weights to be needed."""
        reduce, gather = self.each_step(parameters)
        return reduce + gather

    def each_step(self, parameters: Floats, experts: Floats | None = None) -> tuple[Floats, Floats]:
        """Reducing gradients and gathering weights once a step; nothing where every microbatch does it."""
        dense, routed = self._rings
        reduce, gather = (
            each + parameters * ring for each, ring in zip(self._seconds(parameters, experts), dense, strict=True)
        )
        if experts is not None:
            reduce, gather = reduce + experts * routed[0], gather + experts * routed[1]
        return np.where(self._gradients, 0.0, reduce), np.where(self._parameters, 0.0, gather)
