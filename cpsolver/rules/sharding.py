"""Rules on what data-parallel ranks shard."""

from __future__ import annotations

from collections.abc import Iterator, Set

from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import Sharded, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules.base import chosen, product, rule

NO_PIPELINE: tuple[Sharded, ...] = ("gradients", "parameters")
"""What is not sharded under a pipeline, unless the launcher can."""


@rule(
    "the distributed optimizer needs replicas, dp * cp > 1: without any it is the plain one",
    briefly=lambda *_: say("the distributed optimizer needs dp x cp > 1"),
)
def distributed_optimizer(problem: Problem, s: Strategy) -> Iterator[str]:
    if s.distributed_optimizer and all(mesh.dp * mesh.cp == 1 for mesh, _ in s.meshes):
        yield later("the distributed optimizer has nothing to shard over: dp is 1, and so is cp")


@rule(
    "some optimizers, offload and swap of states, and 8-bit weights need the distributed optimizer; one of whole "
    "matrices shards its own states alone, over all replicas",
    by_mesh=True,
)
def optimizer(problem: Problem, s: Strategy) -> Iterator[str]:
    """They work on a rank's share; without replicas that is the whole, and the plain optimizer does.

    Muon's distributed optimizer knows neither FSDP nor groups of replicas (Megatron-LM core_v0.19.0,
    training/arguments.py; core/optimizer/layer_wise_optimizer.py).
    """
    if problem.spec.training.whole_matrices and (s.sharded != "optimizer" or s.sharding_group):
        yield later(
            "{optimizer} shards the optimizer's states alone, over all replicas: sharded {s.sharded}, sharding_group "
            "{s.sharding_group}",
            optimizer=problem.spec.training.optimizer,
            s=s,
        )
    switch = problem.sharded_switch
    if switch is not None and s.dp * s.cp > 1 and not s.distributed_optimizer:
        yield later("{switch} needs the distributed optimizer", switch=switch)


def _sharding_in_short(_problem: Problem, asked: Set[str]) -> str:
    alone = say("gradients and parameters (ZeRO-2 and 3) are sharded without a pipeline only (pp 1)")
    group = say("a sharding group is a divisor of dp x cp, above 1 and below it (0: all of them)")
    return chosen({"sharded": alone, "sharding_group": group}, asked)


@rule(
    "gradients and parameters are sharded by the distributed optimizer, over replicas, and without a pipeline",
    briefly=_sharding_in_short,
    by_mesh=True,
)
def sharding(problem: Problem, s: Strategy) -> Iterator[str]:
    """Megatron's FSDP2 and DeepSpeed's PipelineEngine refuse a pipeline; where the spec names a launcher, the rule
    `launcher` says what its own profile does. A sharding group is some of the replicas; those of experts are
    cut into as many groups (Megatron-LM core/parallel_state.py asserts that they can be).
    """
    if s.sharded != "optimizer" and not s.distributed_optimizer:
        yield later("sharded {s.sharded} needs the distributed optimizer", s=s)
    elif s.sharded != "optimizer" and s.dp * s.cp == 1:
        yield later("sharded {s.sharded} has nothing to shard over: dp is 1, and so is cp", s=s)
    if s.sharded in NO_PIPELINE and s.pp > 1 and problem.launcher is None:
        yield later("{s.sharded} are not sharded under a pipeline: pp is {s.pp}, and must be 1", s=s)
    if problem.spec.training.parameter_offload and s.zero_stage != 3:
        yield later(
            "weights wait on the host (training.parameter_offload) where they are sharded only: {s.sharded}", s=s
        )
    yield from _group(problem, s)


def _group(problem: Problem, s: Strategy) -> Iterator[str]:
    """The sharding group, where there is one: 0 stands for all replicas, which is the only way to write that."""
    group, replicas = s.sharding_group, s.dp * s.cp
    if group == 0:
        return
    if not s.distributed_optimizer:
        yield later("sharding_group {group} needs the distributed optimizer", group=group)
    if not 1 < group < replicas or replicas % group:
        total = product({"dp": s.dp, "cp": s.cp})
        yield later(
            "sharding_group {group} is no part of {total} replicas: a divisor between 1 and {replicas}, or 0 for all",
            group=group,
            total=total,
            replicas=replicas,
        )
    elif problem.model.moe is not None:
        routed, groups = s.tp * replicas // (s.etp * s.ep), replicas // group
        if routed % groups:
            yield later(
                "sharding_group {group} makes {groups} groups of {replicas} replicas, which do not divide the {routed} "
                "replicas of experts",
                group=group,
                groups=groups,
                replicas=replicas,
                routed=routed,
            )
