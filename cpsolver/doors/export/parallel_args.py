"""A plan's degrees, layers by stage, recomputation and sharding in Megatron-LM's options."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from cpsolver.doors.export.dialect import Dialect, Flag
from cpsolver.doors.export.shared import sharding_instances
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.seed_format import SHARDING_STRATEGIES
from models_zoo import Architecture


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
    """How context-parallel ranks communicate: neighbours' all-to-all inside, the ring outside."""
    if s.cp == 1:
        return
    yield ("--cp-comm-type", s.cp_comm_type)
    if s.cp_comm_type == "a2a+p2p":
        yield ("--hierarchical-context-parallel-sizes", str(s.ulysses), str(s.cp // s.ulysses))


def layer_flags(problem: Problem, s: Strategy, dialect: Dialect) -> Iterator[Flag]:
    """Layers by stage and chunk, by the plainest means that say them.

    Equal stages; embedding or head in the place of a layer; a first and a last stage of their own; a layout. Of a model
    whose layers are one block each, the pattern of these says all.
    """
    if problem.model.layer_pattern is not None:
        yield ("--hybrid-layer-pattern", pattern_string(s, problem.model))
    elif is_even(s):
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
        yield ("--pipeline-model-parallel-layout", layout_string(s, problem.model.mtp_layers))


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


def recompute_flags(problem: Problem, s: Strategy) -> Iterator[Flag]:
    """One choice of recomputation for all stages: Megatron-LM counts one number of layers in every chunk."""
    kind = s.recompute[0]
    if kind == "selective":
        yield ("--recompute-granularity", "selective")
        yield ("--recompute-modules", *s.recompute_modules[0])
    elif kind != "none":
        yield ("--recompute-granularity", "full")
        yield ("--recompute-method", kind)
        yield ("--recompute-num-layers", str(s.recompute_layers[0]))
        if shares_checkpoints(problem, s):
            yield ("--distribute-saved-activations",)


def shares_checkpoints(problem: Problem, s: Strategy) -> bool:
    """Inputs of recomputed layers are shared out: Megatron-LM asserts tensor parallelism, and none of sequences."""
    whole = any(kind in ("block", "uniform") for kind in s.recompute)
    wanted = problem.spec.training.distribute_saved_activations
    return wanted and whole and max(mesh.tp for mesh, _ in s.meshes) > 1 and not s.sequence_parallel


def recomputes_by_stage(s: Strategy) -> bool:
    """Stages recompute differently."""
    return len(set(zip(s.recompute, s.recompute_layers, s.recompute_modules, strict=True))) > 1


def uses_fsdp(s: Strategy) -> bool:
    """Weights or gradients are sharded, not only the optimizer's states."""
    return s.distributed_optimizer and s.sharded != "optimizer"


def sharding_flags(s: Strategy, dialect: Dialect) -> Iterator[Flag]:
    """What replicas shard, and among how many of them."""
    if not s.distributed_optimizer:
        return
    yield ("--use-distributed-optimizer",)
    if uses_fsdp(s):
        yield (dialect.fsdp,)
        yield ("--data-parallel-sharding-strategy", SHARDING_STRATEGIES[s.sharded])
        if dialect.fsdp_checkpoint:
            yield ("--ckpt-format", dialect.fsdp_checkpoint)
    instances = sharding_instances(s)
    if instances > 1:
        yield ("--num-distributed-optimizer-instances", str(instances))


def batch_flags(problem: Problem, s: Strategy) -> Iterator[Flag]:
    """Sequences of a microbatch and of a step."""
    yield ("--micro-batch-size", str(s.mbs))
    yield ("--global-batch-size", str(problem.batch))


# Layers by stage and chunk, and the ways in which the Megatron family can say them.


def stage_chunks(s: Strategy) -> tuple[tuple[int, ...], ...]:
    """Layers of every chunk of every stage: all of a stage alike, fewer where the embedding or the head stands."""
    chunks = [[width] * s.vpp for width in s.chunks]
    embedding, head = s.slots
    chunks[0][0] -= embedding
    chunks[-1][-1] -= head
    return tuple(map(tuple, chunks))


def is_even(s: Strategy) -> bool:
    """All stages have as many layers, and all chunks."""
    return len(set(s.layers)) == 1 and not any(s.slots)


def is_accounted(s: Strategy) -> bool:
    """All chunks are alike once the embedding or the head, or both, count as a layer each."""
    return max(s.slots) == 1 and len(set(s.chunks)) == 1


def is_first_last(s: Strategy) -> bool:
    """All stages between the first and the last have as many layers, and chunks hold nothing but layers."""
    return s.pp > 1 and not any(s.slots) and len(set(s.layers[1:-1])) < 2


def is_plain(s: Strategy) -> bool:
    """A flag or two say the layers of all stages, without a list of them."""
    return is_even(s) or is_accounted(s) or is_first_last(s)


def pattern_string(s: Strategy, model: Architecture) -> str:
    """Megatron-LM's --hybrid-layer-pattern: a letter a layer, "|" between the chunks of all stages, the first chunks of
    all stages first; then the layers of each module of multi-token prediction behind a "/" of its own
    (core/models/hybrid/hybrid_layer_allocation.py)."""
    by_stage, parts, begin = stage_chunks(s), [], 0
    pattern, modules = model.layer_pattern or "", model.mtp_layers * f"/{model.mtp_pattern}"
    for chunk in range(s.vpp):
        for stage in range(s.pp):
            end = begin + by_stage[stage][chunk]
            parts.append(pattern[begin:end])
            begin = end
    return "|".join(parts) + modules


def layout_string(s: Strategy, mtp_layers: int = 0) -> str:
    """Megatron-LM's --pipeline-model-parallel-layout: E embedding, t layer, m multi-token prediction, L head.

    Stages stand in the order of the first chunks of all, then the second chunks (pipeline_parallel_layer_layout.py);
    "|" separates them, "x*n" and "(x)*n" repeat.
    """
    by_stage = stage_chunks(s)
    counts = [by_stage[stage][chunk] for chunk in range(s.vpp) for stage in range(s.pp)]
    parts = ["t" * count if count < 2 else f"t*{count}" for count in counts]
    parts[0] = "E" + parts[0]
    parts[-1] += "m" * mtp_layers + "L"
    if len(parts) < 3:
        return "|".join(parts)
    middle = ""
    for part, run in groupby(parts[1:-1]):
        times = len(list(run))
        middle += f"({part}|)*{times}" if times > 1 and part else f"{part}|" * times
    return f"{parts[0]}|{middle}{parts[-1]}"
