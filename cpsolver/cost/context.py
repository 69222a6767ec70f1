"""Seconds that context-parallel ranks take to bring queries, keys and values together, by how they communicate them.

The causal mask leaves every rank the same work: Megatron cuts a sequence into 2 * cp chunks and gives rank r the r-th
from either end (Megatron-LM core/utils.py, get_batch_on_this_cp_rank); after an exchange of heads a rank has the whole
sequence. What a device sends does not depend on the mask or a window: all keys and values travel.
"""

from __future__ import annotations

import numpy as np

from cpsolver.cost.collectives import Collective, collective_seconds
from cpsolver.cost.gemms import core_kv_heads, core_widths, sent_widths
from cpsolver.cost.recurrence import recurrence
from cpsolver.cost.shard import Floats, Shard
from cpsolver.problem.problem import Problem
from hw_specs import Chip
from models_zoo.schema import Mixer


def context_seconds(problem: Problem, chip: Chip, shard: Shard, core: Floats) -> tuple[Floats, Floats]:
    """Forward and backward of one layer and microbatch that nothing hides.

    Only the ring runs beside attention's core (`core` seconds of the device, forward).
    """
    forward, backward = _open_ring(problem, chip, shard, core)
    gather, scatter = gather_seconds(problem, chip, shard)
    heads = head_all_to_all_seconds(problem, chip, shard)
    return (
        heads + np.where(shard.cp_gather, gather, forward),
        heads + np.where(shard.cp_gather, gather + scatter, backward),
    )


def _open_ring(problem: Problem, chip: Chip, shard: Shard, core: Floats) -> tuple[Floats, Floats]:
    """Forward and backward seconds of the ring beyond the steps of attention that it runs beside.

    While a rank computes with one share of keys and values the next arrives, so each transfer has a step of its own,
    of which `context_overlap` can hide it. Backward every step has one: keys and values in the first, their gradients
    in the last, both in all between (Transformer Engine d0067d0, context_parallel.py, AttnFuncWithCPAndKVP2P).
    """
    steps = np.maximum(2.0, shard.ring)
    once = ring_seconds(problem, chip, shard) / (steps - 1)
    forward = problem.stack.context_overlap * core / steps
    backward = problem.stack.attention_backward_flops_factor * forward
    return (
        (steps - 1) * np.maximum(0.0, once - forward),
        2 * np.maximum(0.0, once - backward) + (steps - 2) * np.maximum(0.0, 2 * once - backward),
    )


def exchange_seconds(problem: Problem, chip: Chip, shard: Shard, mixer: Mixer) -> tuple[Floats, Floats]:
    """Forward and backward of a recurrence: all context-parallel ranks exchange heads for tokens before it and back
    after it, tensor by tensor, whatever attention does; exposed (Megatron-LM core/ssm/mamba_context_parallel.py)."""
    of, seconds = recurrence(problem.model, shard, mixer), np.zeros(len(shard.tp))
    for elements in (*of.enters, of.leaves):
        payload = shard.tokens(problem.sequence) * elements * problem.element_bytes
        seconds = seconds + collective_seconds(problem, chip, "all_to_all", payload, shard.cp, shard.tp)
    return seconds, seconds


def ring_seconds(problem: Problem, chip: Chip, shard: Shard) -> Floats:
    """Keys and values once around the ring, in seconds; backward takes twice that.

    Each rank passes on what it has for the heads left to it, from the tokens of all ranks it exchanged heads with.
    """
    return _gathered(problem, chip, shard, "all_gather", sum(sent_widths(problem.model)))


def gather_seconds(problem: Problem, chip: Chip, shard: Shard) -> tuple[Floats, Floats]:
    """Keys and values gathered in one go each, and their gradients scattered, in seconds; exposed.

    Forward gathers; backward gathers again and scatters (Transformer Engine, AttnFuncWithCPAndKVAllGather: "KV
    all-gather between CP ranks is exposed").
    """
    widths, none = sent_widths(problem.model), np.zeros(len(shard.tp))
    gather = sum((_gathered(problem, chip, shard, "all_gather", width) for width in widths), start=none)
    scatter = sum((_gathered(problem, chip, shard, "reduce_scatter", width) for width in widths), start=none)
    return gather, scatter


def head_all_to_all_seconds(problem: Problem, chip: Chip, shard: Shard) -> Floats:
    """Heads for tokens and back among `ulysses` neighbours, in seconds, one direction of the model; exposed.

    Four all-to-alls: queries, keys, values, and the output; backward those of their gradients (Transformer Engine,
    AttnFuncWithCPAndQKVOA2A; DeepSpeed-Ulysses, arXiv:2309.14509).
    """
    keys, values = core_widths(problem.model)
    queries = problem.model.heads / shard.tp
    kv_heads = core_kv_heads(problem.model, shard) * shard.ulysses
    seconds = np.zeros(len(shard.tp))
    for elements in (queries * keys, kv_heads * keys, kv_heads * values, queries * values):
        payload = shard.tokens(problem.sequence) * elements * problem.element_bytes
        seconds = seconds + collective_seconds(problem, chip, "all_to_all", payload, shard.ulysses, shard.tp)
    return seconds


def selection_seconds(problem: Problem, chip: Chip, shard: Shard) -> Floats:
    """An indexer's queries, keys and the inputs of its weights, gathered from all ranks that exchange heads, in
    seconds; backward scatters their gradients, in as many (MindSpeed-LLM c77308a1, dsa_indexer.py)."""
    indexer = problem.model.attention.indexer
    if indexer is None:
        return np.zeros(len(shard.tp))
    width = (indexer.heads + 1) * indexer.dim + problem.model.hidden
    payload = shard.tokens(problem.sequence) * shard.ulysses * width * problem.element_bytes
    return collective_seconds(problem, chip, "all_gather", payload, shard.ulysses, shard.tp)


def _gathered(problem: Problem, chip: Chip, shard: Shard, kind: Collective, width: int) -> Floats:
    """Seconds of a collective on tensors of the whole sequence, `width` elements for each head of keys and values."""
    payload = problem.element_bytes * core_kv_heads(problem.model, shard) * width * shard.mbs * problem.sequence
    return collective_seconds(problem, chip, kind, np.asarray(payload), shard.ring, shard.tp * shard.ulysses)
