"""The matrix products of a layer's parts, for one device: (rows per token, n, k) for T tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpsolver.cost.shard import Floats, Shard
from models_zoo import Architecture


@dataclass(frozen=True)
class Product:
    """`count` products of (rows * T, k) x (k, n) elements each; `grouped`: of experts, in one kernel for all."""

    n: Floats
    k: Floats
    rows: Floats | float = 1.0
    count: Floats | float = 1.0
    grouped: bool = False


def attention_products(model: Architecture, shard: Shard) -> list[Product]:
    """Projections before and after attention's core."""
    tp = shard.tp.astype(np.float64)
    hidden, heads = np.full_like(tp, model.hidden), model.heads / tp
    attention = model.attention
    if attention.kind != "mla":
        kv_heads = np.maximum(1.0, model.kv_heads / tp)
        return [
            Product((heads + 2 * kv_heads) * model.head_dim, hidden),
            Product(hidden, heads * model.head_dim),
        ]
    nope, rope, value = attention.qk_nope or 0, attention.qk_rope or 0, attention.v_head or 0
    kv_rank = np.full_like(tp, attention.kv_lora or 0)
    found = [
        Product(kv_rank + rope, hidden),
        Product(heads * (nope + value), kv_rank),
        Product(hidden, heads * value),
    ]
    queries = heads * (nope + rope)
    if attention.q_lora is None:
        return [Product(queries, hidden), *found]
    rank = np.full_like(tp, attention.q_lora)
    return [Product(rank, hidden), Product(queries, rank), *found]


def core_widths(model: Architecture) -> tuple[int, int]:
    """Elements of a head in the product of queries and keys, and in the product with the values."""
    attention = model.attention
    if attention.kind == "mla":
        return (attention.qk_nope or 0) + (attention.qk_rope or 0), attention.v_head or 0
    return model.head_dim, model.head_dim


def feed_forward_products(model: Architecture, shard: Shard, width: int) -> list[Product]:
    """A dense feed-forward block of that width (before the gate doubles its input side)."""
    tp = shard.tp.astype(np.float64)
    hidden, ffn = np.full_like(tp, model.hidden), width / tp
    return [Product(ffn * (2 if model.gated_mlp else 1), hidden), Product(hidden, ffn)]


def expert_products(model: Architecture, shard: Shard) -> list[Product]:
    """Router, shared experts and the routed experts that a device holds, each with its even share of tokens."""
    moe = model.moe
    assert moe is not None
    tp = shard.tp.astype(np.float64)
    hidden = np.full_like(tp, model.hidden)
    local = np.maximum(1.0, moe.experts / shard.ep)
    rows = moe.top_k / local  # every one of ep devices sends its share to this one
    ffn = moe.expert_ffn / tp
    found = [
        Product(np.full_like(tp, moe.experts), hidden),
        Product(ffn * (2 if model.gated_mlp else 1), hidden, rows, local, grouped=True),
        Product(hidden, ffn, rows, local, grouped=True),
    ]
    if moe.shared_experts:
        found += feed_forward_products(model, shard, moe.shared_experts * (moe.shared_ffn or moe.expert_ffn))
    return found


def dense_share(model: Architecture) -> float:
    """Share of the layers that have a dense feed-forward block; 1 without experts."""
    if model.moe is None:
        return 1.0
    return sum(not model.has_experts(index) for index in range(model.layers)) / model.layers


def visible_share(model: Architecture, sequence: int, causal: float) -> float:
    """Share of all pairs of tokens that attention computes, the mean over the layers: causal, and within a window."""
    window = model.attention.sliding_window
    if window is None or window >= sequence:
        return causal
    near = window / sequence * (1 - window / (2 * sequence)) * 2 * causal
    full = sum(model.attends_fully(index) for index in range(model.layers)) / model.layers
    return full * causal + (1 - full) * near
