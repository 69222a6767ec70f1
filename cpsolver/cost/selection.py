"""Attention over keys that an indexer selects, and over compressed keys: what it has beside other attention.

Latent attention with an indexer runs absorbed: its core works on one latent key for all heads (Megatron-LM d98e8a6,
core/transformer/experimental_attention_variant/dsa.py, absorbed_mla.py). Compressed attention is DeepSeek-V4's
(transformers 5.23, models/deepseek_v4): queries see a window, and beyond it one key for every few tokens, all of them
or those that an indexer selects. The indexer is whole on every tensor-parallel rank.
"""

from __future__ import annotations

import numpy as np

from cpsolver.cost.gemms import Gemm, absorbed
from cpsolver.cost.gemms import visible_share as plain_share
from cpsolver.cost.kinds import LayerKind, model_of
from cpsolver.cost.shard import Floats, Shard
from cpsolver.problem.problem import Problem
from models_zoo import Architecture
from models_zoo.params import compressor_widths


def attended_share(problem: Problem, kind: LayerKind) -> float:
    """Share of all pairs of a window's tokens that attention's core computes in a layer of that kind.

    Of packed sequences of L_i tokens in a window of W each attends to itself alone: the sum of (L_i / W)^2 times the
    share of its own pairs that it sees.
    """
    model = model_of(problem.model, kind)
    return sum(
        count * (tokens / problem.sequence) ** 2 * visible_share(model, kind, tokens, problem.stack.causal_fraction)
        for tokens, count in problem.windows.attended
    )


def computed_share(problem: Problem, kind: LayerKind) -> float:
    """Share of all pairs of a window's tokens that a flash kernel takes time for in a layer of that kind.

    What attention attends to, and the stack's `masked_keys` more of each query; no sequence takes more than all its
    pairs. A ring of context-parallel ranks adds none: only the step on a rank's own keys has a mask. Keys that an
    indexer or compression chose are gathered without one.
    """
    model = model_of(problem.model, kind)
    if kind.selects or model.attention.kind == "csa":
        return attended_share(problem, kind)
    causal, masked = problem.stack.causal_fraction, float(problem.stack.masked_keys)
    return sum(
        count
        * (tokens / problem.sequence) ** 2
        * min(1.0, visible_share(model, kind, tokens, causal) + masked / tokens)
        for tokens, count in problem.windows.attended
    )


def visible_share(model: Architecture, kind: LayerKind, sequence: int, causal: float) -> float:
    """Share of all pairs of tokens that attention's core computes in a layer of that kind."""
    if not kind.selects and model.attention.kind != "csa":
        return plain_share(model, sequence, causal, kind.full_attention)
    return visible_keys(model, kind, sequence, causal) / sequence


def visible_keys(model: Architecture, kind: LayerKind, sequence: int, causal: float) -> float:
    """Keys that a query attends to in the mean, causal as the stack counts it (half of all)."""
    attention = model.attention
    topk = attention.indexer.topk if attention.indexer is not None and kind.selects else sequence
    window = attention.sliding_window
    if attention.kind != "csa":
        near = min(topk, sequence if kind.full_attention or window is None else window)
        return _within(near, sequence, causal)
    found = _within(window or sequence, sequence, causal)
    if kind.compression:
        found += _within(min(topk * kind.compression, sequence), sequence, causal) / kind.compression
    return found


def scored_keys(kind: LayerKind, sequence: int, causal: float) -> float:
    """Keys that an indexer scores for a query in the mean."""
    return sequence * causal / max(1, kind.compression)


def _within(window: int, sequence: int, causal: float) -> float:
    """Keys within a window."""
    if window >= sequence:
        return sequence * causal
    return sequence * (window / sequence * (1 - window / (2 * sequence)) * 2 * causal)


def indexer_gemms(model: Architecture, shard: Shard, kind: LayerKind) -> list[Gemm]:
    """Queries of the scorer; its keys, or what they are compressed from, and a weight for each of its heads."""
    indexer = model.attention.indexer
    if indexer is None or not kind.scores:
        return []
    ones = np.ones(len(shard.tp))
    keys = compressor_widths(model, kind.compression)[1] if model.attention.kind == "csa" else indexer.dim
    return [
        Gemm("indexer queries", ones * indexer.heads * indexer.dim, ones * (model.attention.q_lora or model.hidden)),
        Gemm("indexer keys", ones * (keys + indexer.heads), ones * model.hidden),
    ]


def compressed_gemms(model: Architecture, shard: Shard, kind: LayerKind) -> list[Gemm]:
    """Projections of compressed attention: low-rank queries, one head of keys that are the values too, what it is
    compressed from, and an output by groups of heads."""
    attention, tp = model.attention, shard.tp.astype(np.float64)
    hidden, rank = np.full_like(tp, model.hidden), np.full_like(tp, attention.q_lora or 0)
    width, low, groups = model.heads * model.head_dim / tp, attention.o_lora or 0, (attention.o_groups or 1) / tp
    keys = model.head_dim + compressor_widths(model, kind.compression)[0]
    return [
        Gemm("q down", rank, hidden),
        Gemm("q up", width, rank),
        Gemm("keys", np.full_like(tp, keys), hidden),
        Gemm("attention output down", np.full_like(tp, low), width / groups, count=groups),
        Gemm("attention output", hidden, groups * low),
    ]


def saved_elements(model: Architecture, shard: Shard, kind: LayerKind) -> Floats:
    """Elements a token that such attention keeps.

    Absorbed: queries before and after they meet the keys' projection, the latent result, what it is projected to, and
    the low ranks with their norms. Compressed: queries before and after norm and rotation, the output before and after
    it is turned back, what it is projected to; keys, what they are compressed from, and its weights in fp32. An
    indexer: queries and keys before and after rotation, head weights, and four bytes for each key that it selects;
    where ranks exchange heads what follows rotation is of all their tokens, and so is what the weights are made of.
    """
    attention, tp = model.attention, shard.tp.astype(np.float64)
    heads, kept = model.heads / tp, np.zeros(len(tp))
    if absorbed(attention):
        nope, rope, value = attention.qk_nope or 0, attention.qk_rope or 0, attention.v_head or 0
        rank = attention.kv_lora or 0
        kept = heads * (nope + rope + (rank + rope) + rank + value) + 2 * (attention.q_lora or 0) + 2 * rank + rope
    elif attention.kind == "csa":
        pooled = compressor_widths(model, kind.compression)[0]
        kept = heads * 4 * model.head_dim + (attention.o_groups or 0) * (attention.o_lora or 0) / tp
        kept = kept + 2 * (attention.q_lora or 0) + 2 * model.head_dim + 2 * pooled
    indexer = attention.indexer
    if indexer is not None and kind.selects:
        keys = compressor_widths(model, kind.compression)[1] if attention.kind == "csa" else indexer.dim
        ranks = shard.ulysses.astype(np.float64)
        own = (1 + ranks) * (indexer.heads * indexer.dim + keys) + ranks * indexer.heads
        gathered = np.where(ranks > 1, ranks * model.hidden, 0.0)
        kept = kept + (own + gathered) * kind.scores + 2 * ranks * indexer.topk
    return np.asarray(kept)
