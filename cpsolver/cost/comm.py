"""Seconds of communication: latency plus bytes over achieved bandwidth, by where the group's ranks sit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from cpsolver.cost.device import ELEMENT
from cpsolver.cost.products import core_widths, dense_share
from cpsolver.cost.shard import Candidates, Floats, Ints, Shard
from cpsolver.problem import Problem
from hw_specs import Chip

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


@dataclass(frozen=True)
class LayerComm:
    """Communication inside one layer for one microbatch that nothing hides, in seconds."""

    forward: Floats
    backward: Floats


def fast_domain(problem: Problem, chip: Chip) -> int:
    """Devices that share the fast fabric: a node's, or more where the fabric spans nodes."""
    size = chip.scale_up.domain_size
    return size if chip.scale_up.spans_nodes else min(size, problem.node)


def ranks_inside(problem: Problem, chip: Chip, size: Ints, stride: Ints) -> Ints:
    """How many ranks of a group of `size`, `stride` devices apart, share one fast domain (at least 1)."""
    domain = fast_domain(problem, chip)
    inside = np.minimum(size, np.maximum(1, domain // stride))
    return np.asarray(np.where(size % np.maximum(inside, 1) == 0, inside, np.gcd(inside, size)))


def collective_seconds(
    problem: Problem,
    chip: Chip,
    kind: Collective,
    payload: Floats,
    size: Ints,
    stride: Ints,
    adapters: Literal["all", "one"] = "all",
) -> Floats:
    """A ring collective of `payload` bytes (the whole buffer) over `size` ranks, `stride` devices apart.

    With r of the ranks in each fast domain, the ring crosses each domain's border once, over r network adapters: bus
    bandwidth min(r * adapter, fabric), or of one adapter where a library rings over one only. Small payloads lose
    bandwidth: half of it at the chip's half payload.
    """
    inside = ranks_inside(problem, chip, size, stride)
    up = fabric_bandwidth(chip, size, inside) * _fabric_efficiency(problem, chip, kind, size, inside)
    out = chip.scale_out_bandwidth_bytes_s * chip.efficiency_value("network") * (inside if adapters == "all" else 1)
    if kind == "all_to_all":  # each rank sends to all others itself, over its own adapter but to its neighbours
        out = out / inside * (size - 1) / np.maximum(1, size - inside)
    crossing = inside < size
    bandwidth = np.where(crossing, np.minimum(out, up), up)
    half = chip.collective_half_payload_bytes
    moved = payload + np.minimum(payload, half)
    rounds = 2.0 if kind == "all_reduce" else 1.0
    hops = np.ceil(np.log2(np.maximum(1, size // np.maximum(1, inside))))
    latency = chip.collective_latency_s * rounds / 2 + rounds * hops * chip.network_latency_s
    seconds = latency + rounds * (size - 1) / np.maximum(1, size) * moved / bandwidth
    return np.asarray(np.where(size > 1, seconds, 0.0))


def _fabric_efficiency(problem: Problem, chip: Chip, kind: Collective, size: Ints, inside: Ints) -> Floats:
    """Share of the fabric a collective reaches. Reduction in the switch serves only groups that fill a domain."""
    whole = chip.efficiency_value(kind)
    ring = min(whole, chip.efficiency_value("reduce_scatter"))
    fills = (inside == size) & (inside >= fast_domain(problem, chip))
    return np.asarray(np.where(fills, whole, ring))


def fabric_bandwidth(chip: Chip, size: Ints, inside: Ints) -> Floats:
    """One-way scale-up bandwidth of a group's ranks in one domain; in a mesh only the links between them count."""
    whole = chip.scale_up_bandwidth_bytes_s
    if chip.scale_up.topology != "mesh":
        return np.full(size.shape, whole)
    links = np.maximum(1, np.where(inside < size, inside, size) - 1)
    return np.asarray(np.minimum(whole, links * chip.peer_bandwidth_bytes_s))


def layer_comm(problem: Problem, chip: Chip, shard: Shard, core: Floats) -> LayerComm:
    """Tensor-, context- and expert-parallel communication of a layer, less what the stack hides under compute.

    Tensor parallelism exchanges the hidden states after attention and after the feed-forward block, in either
    direction. `core` is attention's core in seconds, under which the ring of context parallelism runs.
    """
    stack = problem.stack
    dense = dense_share(problem.model)
    visits = 1 if problem.model.moe is None else problem.model.moe.top_k  # experts' inputs are exchanged once for each
    tensor = (1 + dense + (1 - dense) * visits) * end_comm(problem, chip, shard)
    ring = ring_seconds(problem, chip, shard)
    routed = routing_seconds(problem, chip, shard)
    hidden = stack.context_overlap * np.minimum(ring, core)
    return LayerComm(
        forward=tensor * (1 - stack.tensor_overlap) + ring - hidden + routed,
        backward=tensor * (1 - stack.tensor_overlap_backward) + 2 * (ring - hidden) + routed,
    )


def ring_seconds(problem: Problem, chip: Chip, shard: Shard) -> Floats:
    """Keys and values once around the ring of context-parallel ranks, in seconds; backward takes twice that."""
    model = problem.model
    kv_heads = model.heads if model.attention.kind == "mla" else model.kv_heads
    wide = np.maximum(1.0, kv_heads / shard.tp) * sum(core_widths(model))
    payload = np.asarray(ELEMENT * wide * shard.mbs * problem.sequence, dtype=np.float64)
    return collective_seconds(problem, chip, "all_gather", payload, shard.cp, shard.tp)


def routing_seconds(problem: Problem, chip: Chip, shard: Shard) -> Floats:
    """Tokens to their experts and back, in seconds, one direction of the model: two all-to-alls."""
    model = problem.model
    if model.moe is None:
        return np.zeros(len(shard.tp))
    copies = _copies_sent(problem, chip, shard)
    each = shard.tokens(problem.sequence) * copies * model.hidden * ELEMENT / shard.sequence_split
    exchange = collective_seconds(problem, chip, "all_to_all", each, shard.ep, shard.tp)
    return np.asarray(2 * (1 - dense_share(model)) * (1 - problem.stack.routing_overlap) * exchange)


def _copies_sent(problem: Problem, chip: Chip, shard: Shard) -> Floats:
    """Copies of a token that leave its device: one to each expert, or where the stack can, one to each node."""
    moe = problem.model.moe
    assert moe is not None
    inside = ranks_inside(problem, chip, shard.ep, shard.tp)
    nodes = np.maximum(1, shard.ep // inside)
    reached = nodes * (1 - (1 - 1 / nodes) ** moe.top_k)
    once = bool(problem.stack.copies_once_per_node) & (nodes > 1)
    return np.asarray(np.where(once, reached, moe.top_k))


def end_comm(problem: Problem, chip: Chip, shard: Shard) -> Floats:
    """One exchange of the hidden states, in seconds; embedding and head have one each, forward plus backward.

    An all-reduce, or with sequence parallelism an all-gather and a reduce-scatter, which move as much.
    """
    payload, one = _hidden_bytes(problem, shard), np.ones_like(shard.tp)

    def seconds(kind: Collective) -> Floats:
        return collective_seconds(problem, chip, kind, payload, shard.tp, one)

    pair = seconds("all_gather") + seconds("reduce_scatter")
    return np.asarray(np.where(shard.sequence_parallel, pair, seconds("all_reduce")))


def _hidden_bytes(problem: Problem, shard: Shard) -> Floats:
    return shard.tokens(problem.sequence) * problem.model.hidden * ELEMENT


def hop_bytes(problem: Problem, shard: Shard) -> Floats:
    """Bytes that each device sends to the next stage per microbatch and direction.

    Without sequence parallelism every tensor-parallel rank holds the whole; a stack may send it in shares all the same.
    """
    shares = shard.tp if problem.stack.pipeline_scatter else shard.sequence_split
    return _hidden_bytes(problem, shard) / shares


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
    stack = problem.stack
    gradients, weights = parameters * stack.gradient_reduce_bytes, parameters * stack.parameter_gather_bytes
    group = rows.group_of(replicas)
    reduce = collective_seconds(problem, chip, "all_reduce", gradients, replicas, stride)
    adapters: Literal["all", "one"] = "one" if stack.single_adapter else "all"
    scatter = collective_seconds(problem, chip, "reduce_scatter", gradients, group, stride, adapters)
    outer = collective_seconds(problem, chip, "all_reduce", gradients / group, replicas // group, stride * group)
    gather = collective_seconds(problem, chip, "all_gather", weights, group, stride, adapters)
    sharded = scatter + outer
    sharded = sharded + stack.sharded_all_reduce * np.maximum(0.0, reduce - sharded)
    return (
        np.where(rows.distributed_optimizer, sharded, reduce),
        np.where(rows.distributed_optimizer, gather, 0.0),
    )


def tied_seconds(problem: Problem, chip: Chip, parameters: Floats, rows: Candidates) -> Floats:
    """Summing the gradients of a table that the first and the last stage both hold, in seconds."""
    apart = rows.stage_devices * np.maximum(1, rows.pp - 1)
    both = np.where((rows.pp > 1) & problem.model.tied_embeddings, 2, 1)
    payload = parameters * problem.stack.gradient_reduce_bytes
    return collective_seconds(problem, chip, "all_reduce", payload, both, apart)
