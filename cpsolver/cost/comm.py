"""Seconds of communication: inside a layer by its kind, between stages, and of gradients and weights once a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from cpsolver.cost.adapters import adapter_seconds
from cpsolver.cost.collectives import collective_seconds, ranks_inside, tensor_parallel_seconds
from cpsolver.cost.context import context_seconds, exchange_seconds, selection_seconds
from cpsolver.cost.kinds import LayerKind, problem_of
from cpsolver.cost.routing import expert_tensor_seconds, hidden_seconds, routing_seconds
from cpsolver.cost.shard import OF_ATTENTION, Candidates, Floats, Ints, Shard
from cpsolver.cost.states import held
from cpsolver.problem.problem import Problem
from hw_specs import Chip
from hw_specs.units import mib_to_bytes


@dataclass(frozen=True)
class LayerComm:
    """Communication inside one layer for one microbatch that nothing hides, in seconds.

    `block` is what of `forward` is the feed-forward block's.
    """

    forward: Floats
    backward: Floats
    block: Floats


def layer_comm(problem: Problem, chip: Chip, shard: Shard, core: Floats, kind: LayerKind, compute: Floats) -> LayerComm:
    """Tensor-, context- and expert-parallel communication of a layer, less what the stack hides under compute.

    Tensor parallelism communicates the hidden states after attention, or what stands for it, and after the feed-forward
    block, in either direction; with experts the latter is theirs. Where both stand side by side it does so once. `core`
    is attention's core in seconds, under which the ring of context parallelism runs; `compute` what the layer computes
    in a pass, the mean of both, under which exchanges of other microbatches' tokens do. Frozen layers have no weight
    gradient to hide anything under: backward no more is hidden than forward. Adapters communicate beside them.
    """
    stack = problem.stack
    # A reduce-scatter, half of what sequence parallelism communicates backward, hides under the weight gradient's GEMM;
    # without it all of the all-reduce does (Megatron-LM core/tensor_parallel/layers.py).
    hidden = stack.tensor_overlap_backward * np.where(shard.sequence_parallel, 1.0, 2.0)
    hidden = hidden if problem.lora is None else np.minimum(hidden, stack.tensor_overlap)
    once, none = end_comm(problem, chip, shard), np.zeros(len(shard.tp))
    attention, context = (none if kind.mixer == "none" else once), (none, none)
    if kind.attends:
        context = context_seconds(problem_of(problem, kind), chip, shard, core)
        chosen = selection_seconds(problem, chip, shard) if kind.scores else none
        context = (context[0] + chosen, context[1] + chosen)
    elif kind.mixer != "none":
        context = exchange_seconds(problem, chip, shard, kind.mixer)
    alone = kind.feed_forward and (kind.branches == 2 or kind.mixer == "none")
    second, routed = (once if alone else none), none
    if kind.experts:
        second, routed = shard.of_distinct(OF_ATTENTION, lambda part: _of_experts(problem, chip, part))
        routed = routed - hidden_seconds(problem, shard, routed, compute)
    two_gemms = _gate_apart(problem, shard, once, kind)
    tensor = attention + second
    first, mlp = (adapter_seconds(problem, chip, shard, kind, block) for block in ("attention", "mlp"))
    return LayerComm(
        forward=(tensor + two_gemms[0]) * (1 - stack.tensor_overlap) + context[0] + routed + first[0] + mlp[0],
        backward=(tensor + two_gemms[1]) * (1 - np.minimum(1.0, hidden)) + context[1] + routed + first[1] + mlp[1],
        block=(second + two_gemms[0]) * (1 - stack.tensor_overlap) + routed + mlp[0],
    )


def _gate_apart(problem: Problem, shard: Shard, communication: Floats, kind: LayerKind) -> tuple[Floats, Floats]:
    """What gate and up projection add as two GEMMs, forward and backward, where communicating once takes that long.

    Each sums its own input gradient, and with sequence parallelism gathers its own input, forward and backward
    (column-parallel GEMMs of AscendSpeed 64b1937, ascendspeed/model/transformer.py, ParallelMLP).
    """
    none = np.zeros(len(shard.tp))
    if problem.spec.training.fused_gate_up or not kind.dense or not problem.model.gated_mlp:
        return none, none
    return np.where(shard.sequence_parallel, communication / 2, 0.0), communication


def _of_experts(problem: Problem, chip: Chip, shard: Shard) -> tuple[Floats, Floats]:
    return expert_tensor_seconds(problem, chip, shard), routing_seconds(problem, chip, shard)


def end_comm(problem: Problem, chip: Chip, shard: Shard) -> Floats:
    """The hidden states communicated once, in seconds; embedding and head do so once each, forward plus backward."""
    return tensor_parallel_seconds(problem, chip, shard, _hidden_bytes(problem, shard), shard.tp)


def collecting_seconds(problem: Problem, chip: Chip, shard: Shard) -> Floats:
    """Bringing the input of a recomputed layer to where it waits and together again, which every tensor-parallel rank
    works on: from the host, with nothing beside, and from ranks that share it out: (n,)."""
    training, payload = problem.spec.training, problem.model.residual_streams * _hidden_bytes(problem, shard)
    seconds = np.zeros(len(shard.tp))
    if training.cpu_checkpointing:
        seconds = 2.0 * payload / checkpoint_split(problem, shard) / chip.host_bandwidth_bytes_s
    if training.distribute_saved_activations:
        gathered = collective_seconds(problem, chip, "all_gather", payload, shard.tp, np.ones_like(shard.tp))
        seconds = seconds + np.where(shard.sequence_parallel, 0.0, gathered)
    return np.asarray(seconds)


def checkpoint_split(problem: Problem, shard: Shard) -> Ints:
    """Over how many tensor-parallel ranks the input of a recomputed layer is split where it waits."""
    return shard.tp if problem.spec.training.distribute_saved_activations else shard.sequence_split


def _hidden_bytes(problem: Problem, shard: Shard) -> Floats:
    return shard.tokens(problem.sequence) * problem.model.hidden * problem.element_bytes


def hop_bytes(problem: Problem, shard: Shard) -> Floats:
    """Bytes that each device sends to the next stage per microbatch and direction, the mean of both directions.

    Without sequence parallelism every tensor-parallel rank holds the whole; a stack may send it in shares all the same.
    A stack that sends the attention mask along does so forward, whole from every rank, one for all sequences.
    """
    shares = shard.tp if problem.stack.pipeline_scatter else shard.sequence_split
    mask = problem.stack.pipeline_mask_bytes * problem.sequence**2
    return np.asarray(problem.model.residual_streams * _hidden_bytes(problem, shard) / shares + mask / 2.0)


def waited_share(problem: Problem, payload: Floats) -> Floats:
    """Of transfers of that many bytes between two stages, the share that both of them wait for: what NCCL's buffers do
    not hold, where a transfer is an operation of its own. One of them waits for the rest too: in each microbatch it
    needs an answer to what it sent, before which the other has other work."""
    buffered = mib_to_bytes(problem.stack.pipeline_buffer_mib)
    return np.asarray(1.0 - np.minimum(1.0, buffered / payload))


def hop_seconds(problem: Problem, chip: Chip, payload: Floats, within_node: bool) -> Floats:
    """One transfer between neighbouring stages on this chip, inside a fast domain or over the network."""
    if within_node:
        bandwidth = chip.peer_bandwidth_bytes_s * chip.efficiency_value("all_gather")
        return np.asarray(payload / bandwidth + chip.collective_latency_s)
    bandwidth = chip.scale_out_bandwidth_bytes_s * chip.efficiency_value("network")
    return np.asarray(payload / bandwidth + chip.network_latency_s)


def gradient_seconds(
    problem: Problem, chip: Chip, parameters: Floats, rows: Candidates, replicas: Ints, stride: Ints
) -> tuple[Floats, Floats]:
    """Reduction of gradients and gathering of weights over the replicas of that many parameters, in seconds.

    `stride` is how many devices replicas stand apart. Sharded optimizer: reduce-scatter (or, where the stack does so,
    all-reduce), and all-gather of the updated weights in the sharding group. Otherwise one all-reduce, no gather.
    """
    stack, each = problem.stack, held(problem)
    gradients, weights = parameters * each.reduce, parameters * each.gather
    group = rows.group_of(replicas)
    reduce = collective_seconds(problem, chip, "all_reduce", gradients, replicas, stride)
    adapters: Literal["all", "one"] = "one" if stack.single_adapter else "all"
    scatter = collective_seconds(problem, chip, "reduce_scatter", gradients, group, stride, adapters)
    outer = collective_seconds(problem, chip, "all_reduce", gradients / group, replicas // group, stride * group)
    gather = collective_seconds(problem, chip, "all_gather", weights, group, stride, adapters)
    sharded = scatter + outer
    sharded = sharded + stack.sharded_all_reduce * np.maximum(0.0, reduce - sharded)
    return (np.where(rows.distributed_optimizer, sharded, reduce), np.where(rows.distributed_optimizer, gather, 0.0))


def bucket_seconds(
    problem: Problem, chip: Chip, parameters: Floats, rows: Candidates, replicas: Ints, stride: Ints
) -> tuple[Floats, Floats]:
    """What reducing gradients and gathering weights takes longer for being done in buckets: the latency of their rings.

    A bucket's ring takes a step for each rank, however little of the bucket is on its way. Arguments as for
    `gradient_seconds`. What does not run under compute is not cut into buckets.
    """
    stack, group = problem.stack, rows.group_of(replicas)
    buckets = parameters / np.maximum(stack.bucket_parameters, stack.bucket_rank_parameters * replicas)

    def ring(size: Ints, apart: Ints) -> Floats:
        borders = size // ranks_inside(problem, chip, size, apart) - 1
        return np.asarray(1e-6 * (stack.ring_step_us * (size - 1 - borders) + stack.ring_border_us * borders))

    sharded = ring(group, stride) + 2 * ring(replicas // group, stride * group)
    whole = 2 * ring(replicas, stride)
    reduce = buckets * np.where(rows.distributed_optimizer, sharded, whole) * (stack.gradient_overlap > 0)
    gather = buckets * ring(group, stride) * rows.distributed_optimizer * (stack.parameter_overlap > 0)
    return np.asarray(reduce), np.asarray(gather)


def tied_seconds(problem: Problem, chip: Chip, parameters: Floats, rows: Candidates) -> Floats:
    """Summing the gradients of a table that the first and the last stage both hold, in seconds."""
    apart = rows.stage_devices * np.maximum(1, rows.pp - 1)
    both = np.where((rows.pp > 1) & problem.model.tied_embeddings, 2, 1)
    return collective_seconds(problem, chip, "all_reduce", tied_payload(problem, parameters), both, apart)


def tied_payload(problem: Problem, parameters: Floats) -> Floats:
    """Bytes of that table's gradients, as they are held: what replicas sum may be cast before."""
    each = held(problem)
    return parameters * min(each.gradient, each.reduce)
