"""A plan's degrees, layers by stage, recomputation and sharding in Megatron-LM's options."""

from __future__ import annotations

from collections.abc import Iterator

from cpsolver.doors.export.base import CannotExpress
from cpsolver.doors.export.dialect import Dialect, Flag
from cpsolver.doors.export.layout import is_accounted, is_even, is_first_last, layout_string
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.seed_format import SHARDING_STRATEGIES


def degree_flags(problem: Problem, s: Strategy) -> Iterator[Flag]:
    """Sizes of the parallel dimensions, but for context parallelism's kind and the layers by stage."""
    yield ("--tensor-model-parallel-size", str(s.tp))
    yield ("--pipeline-model-parallel-size", str(s.pp))
    yield ("--context-parallel-size", str(s.cp))
    if problem.model.moe is not None:
        yield ("--expert-model-parallel-size", str(s.ep))
        yield ("--expert-tensor-parallel-size", str(s.etp))  # left out it would be tp
    if s.sequence_parallel:
        yield ("--sequence-parallel",)


def context_flags(s: Strategy) -> Iterator[Flag]:
    """How context-parallel ranks exchange: neighbours' all-to-all inside, the ring outside."""
    if s.cp == 1:
        return
    yield ("--cp-comm-type", s.cp_comm_type)
    if s.cp_comm_type == "a2a+p2p":
        yield ("--hierarchical-context-parallel-sizes", str(s.ulysses), str(s.cp // s.ulysses))


def layer_flags(problem: Problem, s: Strategy, dialect: Dialect) -> Iterator[Flag]:
    """Layers by stage and chunk, by the plainest means that say them.

    Equal stages; embedding or head in the place of a layer; a first and a last stage of their own; a layout.
    """
    if is_even(s):
        yield from _chunk_flags(s, dialect.layers_per_chunk)
    elif is_accounted(s):
        embedding, head = s.slots
        if embedding:
            yield ("--account-for-embedding-in-pipeline-split",)
        if head:
            yield ("--account-for-loss-in-pipeline-split",)
        yield from _chunk_flags(s, False)
    elif is_first_last(s):
        yield ("--decoder-first-pipeline-num-layers", str(s.layers[0]))
        if s.pp > 2:  # of two stages the other has what is left; told both, the layers are divided by no stages
            yield ("--decoder-last-pipeline-num-layers", str(s.layers[-1]))
        yield from _chunk_flags(s, False)
    else:
        yield _layout(problem, s, dialect)


def _layout(problem: Problem, s: Strategy, dialect: Dialect) -> Flag:
    mtp = problem.model.mtp_layers
    if dialect.layout and (not mtp or dialect.layout_mtp):
        return ("--pipeline-model-parallel-layout", layout_string(s, mtp))
    what = "layout with multi-token prediction" if dialect.layout else "layout string"
    reason = f"{dialect.name} has no {what}: all stages but the first and the last need as many layers"
    raise CannotExpress((f"layers is {', '.join(map(str, s.layers))}: {reason}",))


def schedule_flags(problem: Problem, s: Strategy) -> Iterator[Flag]:
    """Breadth-first: all microbatches of a step pass a chunk together."""
    if s.schedule == "breadth_first":
        yield ("--microbatch-group-size-per-virtual-pipeline-stage", str(s.microbatches(problem.batch)))


def _chunk_flags(s: Strategy, by_layers: bool) -> Iterator[Flag]:
    if s.vpp == 1:
        return
    if by_layers:
        yield ("--num-layers-per-virtual-pipeline-stage", str(s.layers[0] // s.vpp))
    else:
        yield ("--num-virtual-stages-per-pipeline-rank", str(s.vpp))


def recompute_flags(s: Strategy) -> Iterator[Flag]:
    """One choice of recomputation for all stages.

    Raises CannotExpress where stages differ: Megatron-LM counts one number of layers in every chunk.
    """
    told = list(dict.fromkeys(zip(s.recompute, s.recompute_layers, s.recompute_modules, strict=True)))
    if len(told) > 1:
        words = ", ".join(" ".join([kind, *([str(n)] if n else []), *modules]) for kind, n, modules in told)
        raise CannotExpress((f"recompute differs by stage ({words}): one choice for all stages is possible",))
    kind, amount, modules = told[0]
    if kind == "selective":
        yield ("--recompute-granularity", "selective")
        yield ("--recompute-modules", *modules)
    elif kind != "none":
        yield ("--recompute-granularity", "full")
        yield ("--recompute-method", kind)
        yield ("--recompute-num-layers", str(amount))


def uses_fsdp(s: Strategy) -> bool:
    """Weights or gradients are shared out, not only the optimizer's states."""
    return s.distributed_optimizer and s.sharded != "optimizer"


def sharding_flags(s: Strategy, dialect: Dialect) -> Iterator[Flag]:
    """What replicas share out, and among how many of them."""
    if not s.distributed_optimizer:
        return
    yield ("--use-distributed-optimizer",)
    if uses_fsdp(s):
        yield (dialect.fsdp,)
        yield ("--data-parallel-sharding-strategy", SHARDING_STRATEGIES[s.sharded])
        if dialect.fsdp_checkpoint:
            yield ("--ckpt-format", dialect.fsdp_checkpoint)
    instances = s.replicas // s.sharding_ranks
    if instances > 1:
        yield ("--num-distributed-optimizer-instances", str(instances))


def batch_flags(problem: Problem, s: Strategy) -> Iterator[Flag]:
    """Sequences of a microbatch and of a step."""
    yield ("--micro-batch-size", str(s.mbs))
    yield ("--global-batch-size", str(problem.batch))


def check_schedule(s: Strategy, framework: str) -> None:
    """Raises CannotExpress for schedules and sizes of microbatches that no Megatron-LM runs."""
    reasons = []
    if s.schedule not in ("1f1b", "breadth_first"):
        reasons.append(f"schedule is {s.schedule}: {framework} runs 1f1b and breadth_first")
    if s.dynamic:
        reasons.append(f"micro_batches differ in size: {framework} has one --micro-batch-size")
    if reasons:
        raise CannotExpress(tuple(reasons))
