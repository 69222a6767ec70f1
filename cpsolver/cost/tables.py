"""All coefficients of the cost model for many candidate rows: a stage's time is linear in its layers with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cpsolver.cost import comm, compute, memory
from cpsolver.cost.shard import Bools, Candidates, Floats, Ints, Shard
from cpsolver.problem import Problem, Supply


@dataclass(frozen=True)
class TimeTable:
    """Seconds on one chip type, one entry a candidate row.

    Per microbatch: `layer` (forward and backward, with `layer_tp` of it tensor-parallel communication), `recompute`
    and `selective` (extra for a recomputed layer), `embedding` and `head` (first and last stage), `hop_near` and
    `hop_far` (one transfer to a neighbouring stage inside a fast domain or over the network). Per step: `sync_*` is
    data-parallel communication that nothing hides, `update_*` the optimizer: for each layer, for each stage, and
    what the first and last stage add.
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
    sync_layer: Floats
    sync_stage: Floats
    sync_first: Floats
    sync_last: Floats
    update_layer: Floats
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
    chip = supply.chip
    shard, back = _unique_shards(rows)
    layer = compute.layer_seconds(problem, chip, shard)
    ends = compute.end_seconds(problem, chip, shard)
    tensor = comm.layer_comm(problem, chip, shard)
    end_tensor = comm.end_comm(problem, chip, shard)
    payload = comm.hop_bytes(problem, shard)
    parts = memory.stage_parameters(problem, rows)
    forward, backward = layer.forward[back], layer.backward[back]
    sync = _Sync(problem, supply, rows)
    shards = np.where(rows.distributed_optimizer, rows.dp, 1)
    sync_layer, sync_stage = sync.hidden_behind(parts.layer, forward, backward)
    return TimeTable(
        layer=forward + backward + (tensor.forward + tensor.backward)[back],
        layer_tp=(tensor.forward + tensor.backward)[back],
        recompute=forward + tensor.forward[back],
        selective=layer.core[back],
        embedding=(ends.embedding + end_tensor)[back],
        head=(ends.head + end_tensor)[back],
        end_tp=end_tensor[back],
        hop_near=comm.hop_seconds(problem, chip, payload, within_node=True)[back],
        hop_far=comm.hop_seconds(problem, chip, payload, within_node=False)[back],
        sync_layer=sync_layer,
        sync_stage=sync_stage,
        sync_first=sync.exposed(parts.first),
        sync_last=sync.exposed(parts.last) * (1.0 - problem.stack.gradient_overlap),
        update_layer=compute.optimizer_seconds(problem, chip, parts.layer / shards),
        update_first=compute.optimizer_seconds(problem, chip, parts.first / shards),
        update_last=compute.optimizer_seconds(problem, chip, parts.last / shards),
    )


def memory_table(problem: Problem, rows: Candidates) -> MemoryTable:
    """The memory coefficients of every row."""
    layer = memory.layer_bytes(problem, rows.shard)
    parts = memory.stage_parameters(problem, rows)
    weight, gradient, optimizer = memory.state_bytes_per_parameter(problem, rows)
    each = weight + gradient + optimizer
    return MemoryTable(
        layer_states=parts.layer * each,
        first_states=parts.first * each,
        last_states=parts.last * each,
        full=layer.full,
        selective=layer.selective,
        checkpoint=layer.checkpoint,
        buffer=layer.buffer,
        last_buffer=np.maximum(layer.buffer, memory.logits_bytes(problem, rows)),
        fixed=problem.stack.framework_bytes,
        overhead=problem.stack.allocator_overhead,
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

    def _seconds(self, parameters: Floats) -> tuple[Floats, Floats]:
        rows = self._rows
        return comm.gradient_seconds(
            self._problem, self._chip, parameters, rows.tp, rows.dp, rows.distributed_optimizer
        )

    def hidden_behind(self, parameters: Floats, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
        """Exposed seconds for each layer, and for each stage.

        Gradients of a layer travel under the backward of the layers before it, in the last microbatch; weights are
        gathered under the forward of the layers before it. What is longer than that sticks out, and so does one
        layer's share at the end (gradients) and at the start (weights).
        """
        reduce, gather = self._seconds(parameters)
        stack = self._problem.stack
        reduce_out = np.maximum(0.0, reduce - stack.gradient_overlap * backward)
        gather_out = np.maximum(0.0, gather - stack.parameter_overlap * forward)
        return reduce_out + gather_out, (reduce - reduce_out) + (gather - gather_out)

    def exposed(self, parameters: Floats) -> Floats:
        reduce, gather = self._seconds(parameters)
        return reduce + gather


def _unique_shards(rows: Candidates) -> tuple[Shard, np.ndarray]:
    """The distinct shards among the rows, and for each row the index of its own."""
    shard = rows.shard
    flags = shard.sequence_parallel * 2 + shard.flash_attention
    code = (shard.mbs * 4 + flags) * (int(shard.tp.max(initial=1)) + 1) + shard.tp
    _, first, back = np.unique(code, return_index=True, return_inverse=True)
    pick = Shard(shard.tp[first], shard.mbs[first], shard.sequence_parallel[first], shard.flash_attention[first])
    return pick, back
