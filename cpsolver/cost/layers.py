"""Seconds of a layer of each kind on one chip type: both passes, with what communicates inside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpsolver.cost import comm, compute
from cpsolver.cost.activation_switches import offload_seconds, recomputed_function_seconds
from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.modules import module_seconds
from cpsolver.cost.shard import Floats, Shard
from cpsolver.cost.zero_memory import restoring_seconds
from cpsolver.problem.problem import Problem
from hw_specs import Chip


@dataclass(frozen=True)
class Layers:
    """Seconds of one layer, of every kind: arrays (kinds, shards).

    `forward` and `backward` with all communication (`tensor`, both directions) and no shorter than the host takes;
    `own` the same two without communication; `offload` what trips of activations to the host and back take longer than
    both passes; `again` activation functions that run again in a layer that is not recomputed; `restored` what experts
    do not keep and make again in any layer. `parts`: of each kind what a layer computes and communicates.
    """

    forward: Floats
    backward: Floats
    tensor: Floats
    own: tuple[Floats, Floats]
    offload: Floats
    again: Floats
    restored: Floats
    parts: list[tuple[compute.LayerSeconds, comm.LayerComm]]

    @property
    def waits(self) -> Floats:
        """What both passes take longer than the device with its communication: it waits for the host's launches."""
        return np.asarray(self.forward + self.backward - self.tensor - self.own[0] - self.own[1])

    @classmethod
    def of(cls, problem: Problem, chip: Chip, shard: Shard) -> Layers:
        """Of every kind in the model's layers."""
        kinds = layer_kinds(problem.model)
        own = [compute.layer_seconds(problem, chip, shard, kind) for kind in kinds]
        inside = [
            comm.layer_comm(problem, chip, shard, each.core, kind, compute.mean_pass(kind, each))
            for each, kind in zip(own, kinds, strict=True)
        ]
        both = list(zip(own, inside, strict=True))
        timed = list(zip(kinds, both, strict=True))
        forward = [compute.whole_pass(kind, own.forward + more.forward, own.host) for kind, (own, more) in timed]
        backward = [compute.whole_pass(kind, own.backward + more.backward, own.host) for kind, (own, more) in timed]
        passes = zip(kinds, zip(forward, backward, strict=True), strict=True)
        return cls(
            forward=np.stack(forward),
            backward=np.stack(backward),
            tensor=np.stack([more.forward + more.backward for more in inside]),
            own=(np.stack([layer.forward for layer in own]), np.stack([layer.backward for layer in own])),
            offload=np.stack([offload_seconds(problem, chip, shard, kind, each) for kind, each in passes]),
            again=np.stack([recomputed_function_seconds(problem, chip, shard, kind) for kind in kinds]),
            restored=np.stack([restoring_seconds(problem, chip, shard, kind) for kind in kinds]),
            parts=both,
        )

    @property
    def both(self) -> Floats:
        """Both passes, with all that comes on top."""
        return self.forward + self.backward + self.offload + self.again + self.restored

    def modules(self, problem: Problem, chip: Chip, shard: Shard) -> Floats:
        """Of each of MODULES, (kinds, MODULES, shards)."""
        timed = zip(layer_kinds(problem.model), self.parts, strict=True)
        return np.stack([module_seconds(problem, chip, shard, kind, *parts) for kind, parts in timed])
