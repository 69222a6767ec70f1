"""Seconds of a collective: latency plus bytes over achieved bandwidth, by where the group's ranks sit."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np

from cpsolver.cost.shard import Floats, Ints, Shard
from cpsolver.problem.network import Tier
from cpsolver.problem.problem import Problem
from hw_specs import Chip
from hw_specs.network import MOST_DEVICES

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


def fast_domain(problem: Problem, chip: Chip) -> int:
    """Devices that share the fast fabric: a node's, or more where the fabric spans nodes."""
    return chip.fast_domain(problem.node)


def ranks_inside(problem: Problem, chip: Chip, size: Ints, stride: Ints) -> Ints:
    """How many ranks of a group of `size`, `stride` devices apart, share one fast domain (at least 1).

    The largest divisor of the size that fits: of 256 neighbours 64 share a domain of 72, for schedulers give out racks
    in equal segments (Slurm's topology/block, `--segment`) so that every domain holds as many ranks of a group.
    """
    return _even_part(size, np.maximum(1, fast_domain(problem, chip) // stride))


def tiers(problem: Problem, chip: Chip) -> tuple[Tier, ...]:
    """What lies between the fast domains of that chip, from the inside out; at least one."""
    if problem.network is not None:
        return problem.network.tiers(chip)
    bandwidth = chip.scale_out_bandwidth_bytes_s * chip.efficiency_value("network")
    return (Tier("network", fast_domain(problem, chip), MOST_DEVICES, bandwidth, chip.network_latency_s),)


def _even_part(size: Ints, most: Ints) -> Ints:
    """The largest divisor of the size that is no larger than `most`."""
    size, most = np.broadcast_arrays(size, np.minimum(size, most))
    uneven = size % most != 0
    if not uneven.any():
        return most
    base = int(most.max()) + 1
    pairs, back = np.unique(size[uneven] * base + most[uneven], return_inverse=True)
    inside = most.copy()
    inside[uneven] = np.array([_largest_divisor(*divmod(pair, base)) for pair in pairs.tolist()])[back]
    return inside


@cache
def _largest_divisor(number: int, most: int) -> int:
    """The largest divisor that is no larger than `most`."""
    return next(n for n in range(most, 0, -1) if number % n == 0)


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
    bandwidth min(r * adapter, fabric), or of one adapter where a library rings over one only. Likewise further out:
    the ring crosses the border of each rack or pod once, over the uplinks of its r ranks there. Small payloads lose
    bandwidth: half of it at the chip's half payload.
    """
    if not (size > 1).any():
        return np.zeros(np.broadcast_shapes(np.shape(payload), size.shape, stride.shape))
    inside = ranks_inside(problem, chip, size, stride)
    bandwidth = fabric_bandwidth(chip, size, inside) * _fabric_efficiency(problem, chip, kind, size, inside)
    rounds = 2.0 if kind == "all_reduce" else 1.0
    latency: Floats | float = chip.collective_latency_s * rounds / 2
    in_switches = kind == "all_reduce" and problem.network is not None and problem.network.figures.in_network_reduction
    ranks, steps = inside, _steps(size, inside)
    for place, tier in enumerate(tiers(problem, chip)):
        last = tier.devices >= MOST_DEVICES
        around = size if last else _ranks_around(ranks, tier.devices, size, stride)
        out = tier.bandwidth_bytes_s * (1 if adapters == "one" and place == 0 else ranks)
        if kind == "all_to_all":  # each rank sends to all others itself, over its own adapter but to its neighbours
            out = out / ranks * (size - 1) / np.maximum(1, size - ranks)
        if in_switches:  # each byte goes up once and comes down once, which takes a hop
            out = out * rounds * (size - 1) / size
            latency = np.where(ranks < size, chip.collective_latency_s + tier.latency_s, latency)
        else:
            further = np.zeros(()) if last else _steps(size, around)
            latency = latency + rounds * (steps - further) * tier.latency_s
            steps = further
        bandwidth = np.where(ranks < size, np.minimum(out, bandwidth), bandwidth)
        ranks = around
    half = chip.collective_half_payload_bytes
    moved = payload + np.minimum(payload, half)
    seconds = latency + rounds * (size - 1) / np.maximum(1, size) * moved / bandwidth
    return np.asarray(np.where(size > 1, seconds, 0.0))


def _ranks_around(ranks: Ints, devices: int, size: Ints, stride: Ints) -> Ints:
    """Ranks of a group within so many devices, where `ranks` are in each unit of these: as many in all of them."""
    return np.asarray(ranks * _even_part(size // ranks, np.maximum(1, devices // stride // ranks)))


def _steps(size: Ints, ranks: Ints) -> Floats:
    """Hops of a message to all units of so many of the ranks, doubling in each."""
    return np.asarray(np.ceil(np.log2(np.maximum(1, size // np.maximum(1, ranks)))))


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


def tensor_parallel_seconds(problem: Problem, chip: Chip, shard: Shard, payload: Floats, size: Ints) -> Floats:
    """Hidden states of `payload` bytes brought together by `size` neighbours and their results summed, in seconds.

    An all-reduce, or with sequence parallelism an all-gather and a reduce-scatter, which move as much.
    """
    one = np.ones_like(size)

    def seconds(kind: Collective) -> Floats:
        return collective_seconds(problem, chip, kind, payload, size, one)

    pair = seconds("all_gather") + seconds("reduce_scatter")
    return np.asarray(np.where(shard.sequence_parallel, pair, seconds("all_reduce")))
