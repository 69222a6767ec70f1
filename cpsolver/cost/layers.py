"""Seconds of a layer of each kind on one chip type: both passes, with what communicates inside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from cpsolver.cost import comm, compute
from cpsolver.cost.activation_switches import offload_seconds, recomputed_inside_seconds, recomputed_share
from cpsolver.cost.kinds import LayerKind, layer_kinds, over_parts
from cpsolver.cost.modules import module_seconds
from cpsolver.cost.shard import Floats, Shard
from cpsolver.cost.zero_memory import restoring_seconds
from cpsolver.problem.problem import Problem
from hw_specs import Chip


@dataclass(frozen=True)
class LayerPart:
    """So many equal parts of a layer: what one computes and communicates."""

    kind: LayerKind
    count: int
    own: compute.LayerSeconds
    inside: comm.LayerComm

    @classmethod
    def of(cls, problem: Problem, chip: Chip, shard: Shard, kind: LayerKind, count: int) -> LayerPart:
        """One of that kind, on one chip type."""
        own = compute.part_of_layer_seconds(problem, chip, shard, kind)
        pass_s = compute.mean_pass(kind, own)
        return cls(kind, count, own, comm.layer_comm(problem, chip, shard, own.core, kind, pass_s))


@dataclass(frozen=True)
class Layers:
    """Seconds of one layer, of every kind: arrays (kinds, shards).

    `forward` and `backward` with all communication (`tensor`, both directions) and no shorter than the host takes;
    `own` the same two without communication; `offload` what trips of activations to the host and back take longer than
    both passes; `again` what runs again in a layer that is not recomputed; `restored` what experts
    do not keep and make again in any layer. `parts`: of each kind what each part of a layer computes and communicates.
    """

    forward: Floats
    backward: Floats
    tensor: Floats
    own: tuple[Floats, Floats]
    offload: Floats
    again: Floats
    restored: Floats
    parts: list[list[LayerPart]]

    @property
    def waits(self) -> Floats:
        """What both passes take longer than the device with its communication: it waits for the host's launches."""
        return np.asarray(self.forward + self.backward - self.tensor - self.own[0] - self.own[1])

    @classmethod
    def of(cls, problem: Problem, chip: Chip, shard: Shard) -> Layers:
        """Of every kind in the model's layers."""
        kinds = layer_kinds(problem.model)
        parts = [[LayerPart.of(problem, chip, shard, *part) for part in kind.parts] for kind in kinds]
        own = [_sums(of, lambda part: (part.own.forward, part.own.backward, part.own.host)) for of in parts]
        inside = [_sums(of, lambda part: (part.inside.forward, part.inside.backward)) for of in parts]
        timed = list(zip(kinds, own, inside, strict=True))
        forward = [compute.whole_pass(kind, first + more, host) for kind, (first, _, host), (more, _) in timed]
        backward = [compute.whole_pass(kind, last + more, host) for kind, (_, last, host), (_, more) in timed]
        every = [_sums(of, lambda part: (part.own.block + part.inside.block,))[0] for of in parts]
        blocks = recomputed_share(problem) * np.stack(every)
        passes = zip(kinds, zip(forward, backward, strict=True), strict=True)
        return cls(
            forward=np.stack(forward),
            backward=np.stack(backward),
            tensor=np.stack([first + last for first, last in inside]),
            own=(np.stack([first for first, _, _ in own]), np.stack([last for _, last, _ in own])),
            offload=np.stack([offload_seconds(problem, chip, shard, kind, each) for kind, each in passes]),
            again=_over_kinds(kinds, lambda part: recomputed_inside_seconds(problem, chip, shard, part)) + blocks,
            restored=_over_kinds(kinds, lambda part: restoring_seconds(problem, chip, shard, part)),
            parts=parts,
        )

    @property
    def both(self) -> Floats:
        """Both passes, with all that comes on top."""
        return self.forward + self.backward + self.offload + self.again + self.restored

    def modules(self, problem: Problem, chip: Chip, shard: Shard) -> Floats:
        """Of each of MODULES, (kinds, MODULES, shards)."""
        timed = [
            [of.count * module_seconds(problem, chip, shard, of.kind, of.own, of.inside) for of in parts]
            for parts in self.parts
        ]
        return np.stack([reduce(add, each) for each in timed])


def _sums(parts: list[LayerPart], of: Callable[[LayerPart], tuple[Floats, ...]]) -> tuple[Floats, ...]:
    """Of some seconds of each part, what a whole layer takes."""
    counted = [[part.count * each for each in of(part)] for part in parts]
    return tuple(reduce(add, each) for each in zip(*counted, strict=True))


def _over_kinds(kinds: tuple[LayerKind, ...], each: Callable[[LayerKind], Floats]) -> Floats:
    return np.stack([over_parts(kind, each) for kind in kinds])
