"""Seconds of communication: latency plus bytes over achieved bandwidth, by where the group's ranks sit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from cpsolver.cost.shard import Floats, Ints, Shard
from cpsolver.problem import Problem
from hw_specs import Chip

Collective = Literal["all_reduce", "all_gather", "reduce_scatter"]
_ELEMENT = 2


@dataclass(frozen=True)
class LayerComm:
    """Tensor-parallel communication of one layer and one microbatch, in seconds."""

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
    problem: Problem, chip: Chip, kind: Collective, payload: Floats, size: Ints, stride: Ints
) -> Floats:
    """A ring collective of `payload` bytes (the whole buffer) over `size` ranks, `stride` devices apart.

    With r of the ranks in each fast domain, the ring crosses each domain's border once, over r network adapters:
    bus bandwidth min(r * adapter, fabric). Small payloads lose bandwidth: half of it at the chip's half payload.
    """
    inside = ranks_inside(problem, chip, size, stride)
    up = fabric_bandwidth(chip, size, inside) * _fabric_efficiency(problem, chip, kind, size, inside)
    out = chip.scale_out_bandwidth_bytes_s * chip.efficiency_value("network") * inside
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


def layer_comm(problem: Problem, chip: Chip, shard: Shard) -> LayerComm:
    """A layer's tensor-parallel collectives: after attention and after the feed-forward block, forward and backward."""
    both = 2 * end_comm(problem, chip, shard)
    return LayerComm(forward=both, backward=both)


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
    return (shard.mbs * problem.sequence).astype(np.float64) * problem.model.hidden * _ELEMENT


def hop_bytes(problem: Problem, shard: Shard) -> Floats:
    """Bytes that each device sends to the next stage per microbatch and direction."""
    return _hidden_bytes(problem, shard) / shard.sequence_split


def hop_seconds(problem: Problem, chip: Chip, payload: Floats, within_node: bool) -> Floats:
    """One transfer between neighbouring stages on this chip, inside a fast domain or over the network."""
    if within_node:
        bandwidth = chip.peer_bandwidth_bytes_s * chip.efficiency_value("all_gather")
        return np.asarray(payload / bandwidth + chip.collective_latency_s)
    bandwidth = chip.scale_out_bandwidth_bytes_s * chip.efficiency_value("network")
    return np.asarray(payload / bandwidth + chip.network_latency_s)


def gradient_seconds(
    problem: Problem, chip: Chip, parameters: Floats, tp: Ints, dp: Ints, sharded: np.ndarray
) -> tuple[Floats, Floats]:
    """Data-parallel reduction of gradients and gathering of weights for that many parameters a device, in seconds.

    Sharded optimizer: reduce-scatter, and all-gather of the updated weights. Otherwise one all-reduce, no gather.
    """
    stack = problem.stack
    gradients, weights = parameters * stack.gradient_reduce_bytes, parameters * stack.parameter_gather_bytes
    reduce = collective_seconds(problem, chip, "all_reduce", gradients, dp, tp)
    scatter = collective_seconds(problem, chip, "reduce_scatter", gradients, dp, tp)
    gather = collective_seconds(problem, chip, "all_gather", weights, dp, tp)
    return np.where(sharded, scatter, reduce), np.where(sharded, gather, 0.0)
