"""Seconds of transfers between stages that leave a rack, a pod or an island: what they take at least.

Stages stand side by side in the order of ranks, so that two of them may lie on either side of a level's border. Every
device sends its own share to its peer; of a unit's devices only those of the stage at its border do, and they share the
unit's uplinks. Chip types are islands: what joins two of them is their link, or the network's top level.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np

from cpsolver.cost.collectives import tiers
from cpsolver.cost.comm import hop_bytes, tied_payload, tied_seconds
from cpsolver.cost.memory import stage_parameters
from cpsolver.cost.shard import Candidates, Floats, Ints
from cpsolver.problem.network import Tier
from cpsolver.problem.problem import Problem, Supply
from hw_specs.network import MOST_DEVICES
from hw_specs.units import gbit_s_to_bytes_s, microseconds_to_seconds


@dataclass(frozen=True)
class Neighbours:
    """Two stages of each pipeline: chip types and rows of either, the first device of the earlier and the last of the
    later, and how many partners more than one a device has. Arrays (n, k); rows may have one column."""

    chips: tuple[Ints, Ints]
    rows: tuple[Ints, Ints]
    first: Ints
    last: Ints
    more_partners: Ints


@dataclass(frozen=True)
class FarHops:
    """What lies beyond the borders of fast domains, for some chip types and rows.

    `unit` (types, tiers): devices of what each tier joins; `seconds` (types, tiers, rows) of a transfer through it,
    `latency` (types, tiers) of that. `joint` (types, types, rows) and `joint_latency` (types, types): of a transfer
    from one type to another. `tied` (types, types, rows): what summing a tied table's gradients takes more for such a
    joint.
    """

    unit: Ints
    seconds: Floats
    latency: Floats
    joint: Floats
    joint_latency: Floats
    tied: Floats

    @classmethod
    def of(cls, problem: Problem, supplies: list[Supply], rows: Candidates) -> FarHops | None:
        """None where there is nothing beyond: one level, and no link."""
        network = problem.network
        if network is None:
            return None
        written = dict(zip(problem.chip_names, problem.spec.cluster.chips, strict=True))
        islands = [_Island(each, written[each.name], tiers(problem, each.chip)) for each in supplies]
        if not network.links and all(len(tiers(problem, each.chip)) < 2 for each in problem.supplies):
            return None
        payload, width = hop_bytes(problem, rows.shard), rows.stage_devices.astype(np.float64)
        shape = (len(islands), max(len(each.tiers) for each in islands) - 1)
        unit, latency, seconds = np.full(shape, MOST_DEVICES), np.zeros(shape), np.zeros((*shape, len(rows)))
        for index, each in enumerate(islands):
            for place, (tier, rate) in enumerate(zip(each.tiers[1:], _bandwidths(each.tiers, width)[1:], strict=True)):
                unit[index, place], latency[index, place] = tier.unit, tier.latency_s
                seconds[index, place] = payload / rate + tier.latency_s
        return cls(unit, seconds, latency, *_joints(problem, islands, rows))

    def take(self, rows: Any) -> FarHops:
        """Some of the rows: indices or a mask."""
        seconds, joint, tied = (each[..., rows] for each in (self.seconds, self.joint, self.tied))
        return replace(self, seconds=seconds, joint=joint, tied=tied)

    def least(self, pair: Neighbours) -> Floats:
        """Seconds of a transfer between neighbours, 0 where it crosses no border but a fast domain's: (n, k)."""
        sender, receiver = pair.chips
        rows, found = pair.rows, np.zeros(np.broadcast_shapes(sender.shape, pair.first.shape))
        for tier in range(self.unit.shape[1]):
            unit = self.unit[sender, tier]
            through = np.maximum(self.seconds[sender, tier, rows[0]], self.seconds[receiver, tier, rows[1]])
            through = through + pair.more_partners * self.latency[sender, tier]
            found = np.where(pair.first // unit != pair.last // unit, np.maximum(found, through), found)
        joint = np.maximum(self.joint[sender, receiver, rows[0]], self.joint[sender, receiver, rows[1]])
        joint = joint + pair.more_partners * self.joint_latency[sender, receiver]
        return np.asarray(np.where(sender != receiver, joint, found))


def _bandwidths(of_type: tuple[Tier, ...], width: Floats) -> list[Floats]:
    """What a device of a stage `width` devices wide has through each tier and all inside it: (rows,) each."""
    found = [np.full(width.shape, of_type[0].bandwidth_bytes_s)]
    for tier in of_type[1:]:
        found.append(np.minimum(found[-1], tier.bandwidth_bytes_s * np.maximum(1.0, tier.unit / width)))
    return found


@dataclass(frozen=True)
class _Island:
    """The devices of one chip type: its name in the spec, and what lies between its fast domains."""

    supply: Supply
    written: str
    tiers: tuple[Tier, ...]

    def pair_seconds(self, payload: Floats, rate: Floats, latency: float) -> Floats:
        """An all-reduce of two devices over that rate and latency, as `collective_seconds` has it."""
        chip = self.supply.chip
        moved = payload + np.minimum(payload, chip.collective_half_payload_bytes)
        return np.asarray(chip.collective_latency_s + 2.0 * latency + moved / rate)


def _joints(problem: Problem, islands: list[_Island], rows: Candidates) -> tuple[Floats, Floats, Floats]:
    """`joint`, `joint_latency` and `tied` of FarHops."""
    width, types = rows.stage_devices.astype(np.float64), len(islands)
    shape = (types, types)
    seconds, latency, tied = np.zeros((*shape, len(rows))), np.zeros(shape), np.zeros((*shape, len(rows)))
    payload, table = hop_bytes(problem, rows.shard), stage_parameters(problem, rows).first
    for ends in permutations(range(types), 2):
        one, ways = islands[ends[0]], _joint(problem, islands[ends[0]], islands[ends[1]], width)
        latency[ends] = max(own for _, own in ways)
        seconds[ends] = np.max([payload / rate + own for rate, own in ways], axis=0)
        if problem.model.tied_embeddings and problem.lora is None:
            summed = tied_payload(problem, table)
            both = np.max([one.pair_seconds(summed, rate, own) for rate, own in ways], axis=0)
            alone = tied_seconds(problem, one.supply.chip, table, rows)
            tied[ends] = np.where(rows.pp > 1, np.maximum(0.0, both - alone), 0.0)
    return seconds, latency, tied


def _joint(problem: Problem, one: _Island, other: _Island, width: Floats) -> list[tuple[Floats, float]]:
    """What lies between two chip types' islands: bandwidth (rows,) of a device and latency of each, the slowest counts.

    Their own networks between nodes and their link; without one, both networks up to their top.
    """
    ends, links = (one, other), {} if problem.network is None else problem.network.links
    link = links.get(frozenset(end.written for end in ends))
    if link is None:
        return [(_bandwidths(end.tiers, width)[-1], end.tiers[-1].latency_s) for end in ends]
    share = link.efficiency or min(end.supply.chip.efficiency_value("network") for end in ends)
    rate = gbit_s_to_bytes_s(link.gbit_s) if link.gbit_s else gbit_s_to_bytes_s(link.total_gbit_s or 0.0) / width
    own = [(np.full(width.shape, end.tiers[0].bandwidth_bytes_s), end.tiers[0].latency_s) for end in ends]
    latency = max(seconds for _, seconds in own)
    latency = latency if link.latency_us is None else microseconds_to_seconds(link.latency_us)
    return [*own, (np.broadcast_to(rate * share, width.shape), latency)]
