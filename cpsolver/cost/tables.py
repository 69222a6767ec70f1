"""All coefficients of the cost model for many candidate rows: a stage's time is linear in its layers with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cpsolver.cost import comm, compute, memory
from cpsolver.cost.memory import StageParameters
from cpsolver.cost.shard import Bools, Candidates, Floats, Ints
from cpsolver.problem import Problem, Supply


@dataclass(frozen=True)
class TimeTable:
    """Seconds on one chip type, one entry a candidate row.

    Per microbatch: `layer` (forward and backward, with `layer_tp` of it communication inside the layer), `recompute`
    and `selective` (extra for a recomputed layer), `embedding` and `head` (first and last stage), `chunk` (the host's
    work for each model chunk), `hop_near` and `hop_far` (one transfer to a neighbouring stage inside a fast domain or
    over the network). With sharded parameters `gather` brings a layer's weights, with sharded gradients `scatter`
    shares them out, `gather_ends` and `scatter_ends` those of embedding and head. Per step: `sync_*` is data-parallel
    communication that nothing hides, `update_*` the optimizer: for each layer, for each stage, and what the first and
    last stage add.
    """

    layer: Floats
    layer_tp: Floats
    recompute: Floats
    selective: Floats
    embedding: Floats
    head: Floats
    end_tp: Floats
    hop_near: Floats
    hop_far: Floats
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


@dataclass(frozen=True)
class MemoryTable:
    """Bytes per device, one entry a candidate row; the same on every chip type.

    `layer_states` are weights, gradients and optimizer state of a layer, `first_states` and `last_states` of what
    stands on those stages; `full`, `selective`, `checkpoint` as in `LayerBytes`; `buffer` lives on every stage and
    `last_buffer` instead of it on the last one; `fixed` is the framework's.
    """

    layer_states: Floats
    first_states: Floats
    last_states: Floats
    full: Floats
    selective: Floats
    checkpoint: Floats
    buffer: Floats
    last_buffer: Floats
    fixed: float
    overhead: float


def time_table(problem: Problem, supply: Supply, rows: Candidates) -> TimeTable:
    """The time coefficients of every row on one chip type."""
    chip, stack = supply.chip, problem.stack
    shard, back = rows.shard.distinct()
    layer = compute.layer_seconds(problem, chip, shard)
    ends = compute.end_seconds(problem, chip, shard)
    inside = comm.layer_comm(problem, chip, shard, layer.core)
    end_tensor = comm.end_comm(problem, chip, shard)
    payload = comm.hop_bytes(problem, shard)
    parts = memory.stage_parameters(problem, rows)
    forward = np.maximum(layer.forward + inside.forward, layer.host)
    backward = np.maximum(layer.backward + inside.backward, layer.host)
    shared = _data_parallel(problem, supply, rows, parts, (layer.forward[back], layer.backward[back]))
    return TimeTable(
        layer=(forward + backward)[back],
        layer_tp=(inside.forward + inside.backward)[back],
        recompute=forward[back],
        selective=layer.core[back],
        embedding=(ends.embedding + end_tensor)[back],
        head=(ends.head + end_tensor)[back],
        end_tp=end_tensor[back],
        hop_near=comm.hop_seconds(problem, chip, payload, within_node=True)[back],
        hop_far=comm.hop_seconds(problem, chip, payload, within_node=False)[back],
        chunk=np.full(len(rows), stack.microbatch_overhead_us * 1e-6),
        **shared,
    )


def _data_parallel(
    problem: Problem, supply: Supply, rows: Candidates, parts: StageParameters, passes: tuple[Floats, Floats]
) -> dict[str, Floats]:
    """The columns of data-parallel communication and of the optimizer. `passes`: forward and backward of a layer."""
    chip, stack, sync = supply.chip, problem.stack, _Sync(problem, supply, rows)
    sync_layer, sync_stage = sync.hidden_behind(parts, *passes)
    gather, scatter = sync.each_microbatch(parts.layer, parts.experts)
    gather_ends, scatter_ends = sync.each_microbatch(parts.first + parts.last, np.zeros(len(rows)))
    broadcasts = np.where(rows.shards > 1, rows.shards, 0)
    tied = comm.tied_seconds(problem, chip, parts.first, rows)

    def update(parameters: Floats, experts: Floats | float = 0.0) -> Floats:
        held = parameters / rows.shards + experts / rows.expert_shards
        return compute.optimizer_seconds(problem, chip, held)

    return {
        "gather": gather,
        "scatter": scatter,
        "gather_ends": gather_ends,
        "scatter_ends": scatter_ends,
        "sync_layer": sync_layer,
        "sync_stage": sync_stage,
        "sync_first": sync.after(parts.first) + tied,
        "sync_last": sync.partly_hidden(parts.last) + tied,
        "update_layer": update(parts.layer, parts.experts),
        "update_stage": 1e-3 * (stack.step_overhead_ms + stack.shard_broadcast_ms * broadcasts),
        "update_first": update(parts.first),
        "update_last": update(parts.last),
    }


def memory_table(problem: Problem, rows: Candidates) -> MemoryTable:
    """The memory coefficients of every row."""
    stack = problem.stack
    layer = memory.layer_bytes(problem, rows.shard)
    parts = memory.stage_parameters(problem, rows)
    each = memory.state_bytes(problem, rows, rows.shards).each
    each_expert = memory.state_bytes(problem, rows, rows.expert_shards).each
    whole = stack.parameter_bytes * (parts.layer + parts.experts)
    ends = stack.parameter_bytes * np.maximum(parts.first, parts.last)
    sharded = rows.distributed_optimizer & (rows.sharded == 3)
    gathered = np.where(sharded, stack.gathered_layers * whole + ends, 0.0)
    received = np.where(rows.pp > 1, 2.0 * rows.microbatches * comm.hop_bytes(problem, rows.shard), 0.0)
    buffer = layer.buffer + gathered + stack.pipeline_buffers * received
    more = 1.0 + stack.activation_overhead
    return MemoryTable(
        layer_states=parts.layer * each + parts.experts * each_expert,
        first_states=parts.first * each,
        last_states=parts.last * each,
        full=more * layer.full,
        selective=more * layer.selective,
        checkpoint=more * layer.checkpoint,
        buffer=more * buffer,
        last_buffer=more * np.maximum(buffer, memory.logits_bytes(problem, rows)),
        fixed=stack.framework_bytes,
        overhead=stack.allocator_overhead,
    )


def crosses_domain(stage: Ints, stage_devices: Any, domain: Any) -> Bools:
    """Whether a device of a stage sits in another fast domain than its peer in the next (rank order tp-dp-pp)."""
    first = stage * stage_devices
    last = (stage + 2) * stage_devices - 1
    return np.asarray(first // domain != last // domain)


class _Sync:
    """Data-parallel communication of a group of parameters, and what of it nothing hides."""

    def __init__(self, problem: Problem, supply: Supply, rows: Candidates) -> None:
        self._problem, self._chip, self._rows = problem, supply.chip, rows
        self._parameters = rows.distributed_optimizer & (rows.sharded == 3)
        self._gradients = rows.distributed_optimizer & (rows.sharded >= 2)

    def _seconds(self, parameters: Floats, experts: Floats | None = None) -> tuple[Floats, Floats]:
        rows, problem, chip = self._rows, self._problem, self._chip
        reduce, gather = comm.gradient_seconds(problem, chip, parameters, rows, rows.replicas, rows.tp)
        if experts is not None and problem.model.moe is not None:
            stride = rows.etp * rows.ep
            more = comm.gradient_seconds(problem, chip, experts, rows, rows.expert_replicas, stride)
            reduce, gather = reduce + more[0], gather + more[1]
        return reduce, gather

    def each_microbatch(self, parameters: Floats, experts: Floats) -> tuple[Floats, Floats]:
        """Gathering sharded weights once, and sharing gradients out; nothing where they are held whole."""
        if not self._gradients.any():
            return np.zeros(len(self._rows)), np.zeros(len(self._rows))
        reduce, gather = self._seconds(parameters, experts)
        return np.where(self._parameters, gather, 0.0), np.where(self._gradients, reduce, 0.0)

    def hidden_behind(self, parts: StageParameters, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
        """Exposed seconds for each layer, and for each stage.

        Gradients of a layer travel under the backward of the layers before it, in the last microbatch; weights are
        gathered under the forward of the layers before it. What is longer than that sticks out, and so does one
        layer's share at the end (gradients) and at the start (weights).
        """
        reduce, gather = self._once(*self._seconds(parts.layer, parts.experts))
        stack = self._problem.stack
        reduce_out = np.maximum(0.0, reduce - stack.gradient_overlap * backward)
        gather_out = np.maximum(0.0, gather - stack.parameter_overlap * forward)
        return reduce_out + gather_out, (reduce - reduce_out) + (gather - gather_out)

    def after(self, parameters: Floats) -> Floats:
        """Seconds of a group that nothing can hide: the last gradients to be ready, the first weights to be needed."""
        reduce, gather = self._once(*self._seconds(parameters))
        return reduce + gather

    def partly_hidden(self, parameters: Floats) -> Floats:
        """Seconds of a group whose gradients are ready first and whose weights are needed last."""
        reduce, gather = self._once(*self._seconds(parameters))
        stack = self._problem.stack
        return np.asarray(reduce * (1.0 - stack.gradient_overlap) + gather * (1.0 - stack.parameter_overlap))

    def _once(self, reduce: Floats, gather: Floats) -> tuple[Floats, Floats]:
        """Per step: nothing where every microbatch does it."""
        return np.where(self._gradients, 0.0, reduce), np.where(self._parameters, 0.0, gather)
