"""A plan whose data-parallel replicas are of different kinds: each a pipeline over chips of its own, with its share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cpsolver.plans.strategy import Mesh, Strategy


@dataclass(frozen=True)
class StageDevices:
    """The devices of one stage in one replica: `tp` of a chip type, for each of the plan's context-parallel ranks."""

    chip: str
    tp: int


@dataclass(frozen=True)
class ReplicaKind:
    """Replicas that are alike: `strategy` is the plan as if all were of this kind, `replicas` how many are.

    `sequences`: what one of them takes of a step's batch; None: as much as any other.
    """

    strategy: Strategy
    replicas: int
    sequences: int | None = None


@dataclass(frozen=True)
class MixedReplicas:
    """A plan by the kinds of its replicas, which sum their gradients stage by stage. At least one kind."""

    kinds: tuple[ReplicaKind, ...]

    @property
    def replicas(self) -> int:
        """Replicas of all kinds."""
        return sum(kind.replicas for kind in self.kinds)

    @property
    def chips(self) -> tuple[str, ...]:
        """Every chip type in use, once."""
        return tuple(dict.fromkeys(chip for kind in self.kinds for chip in kind.strategy.stage_chips))


def mixed_replicas(plan: Strategy, stages: Sequence[Sequence[StageDevices]]) -> MixedReplicas:
    """The plan with these devices, by stage and replica.

    Args:
        plan: all that replicas share, one group a stage; its dp is the most replicas that a stage has.
        stages: of every stage its replicas. Where one has fewer than another, neighbouring pipelines go through it
            together: replica i of n serves the pipelines i * dp / n to (i + 1) * dp / n.

    Raises:
        ValueError: where the numbers of replicas are no parts of the largest.
    """
    for index, replicas in enumerate(stages):
        if not replicas or plan.dp % len(replicas):
            raise ValueError(f"stage {index} has {len(replicas)} replicas, which do not divide {plan.dp}")
    pipelines = [
        tuple((replicas[number * len(replicas) // plan.dp], len(replicas)) for replicas in stages)
        for number in range(plan.dp)
    ]
    return MixedReplicas(
        tuple(ReplicaKind(_of(plan, kind), pipelines.count(kind)) for kind in dict.fromkeys(pipelines))
    )


def _of(plan: Strategy, pipeline: tuple[tuple[StageDevices, int], ...]) -> Strategy:
    """The plan as if all its replicas were like this one: devices and number of replicas of every stage."""
    groups = tuple(
        replace(group, chip=devices.chip, mesh=Mesh(devices.tp, plan.cp, replicas, plan.ep, plan.etp))
        for group, (devices, replicas) in zip(plan.groups, pipeline, strict=True)
    )
    return replace(plan, groups=groups).canonical()
