"""The GEMMs of a layer's parts, for one device: (rows per token, n, k) for T tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpsolver.cost.kinds import LayerKind
from cpsolver.cost.shard import Floats, Shard
from cpsolver.problem.problem import Problem
from cpsolver.profiles.techniques import techniques
from models_zoo import Architecture
from models_zoo.schema import Attention

_GROUPED_TILE = 128
"""Elements that a width of the experts' GEMMs should be a multiple of (profiles/stacks, uneven_grouped_gemm_speed)."""


@dataclass(frozen=True)
class Gemm:
    """`count` GEMMs of (rows * T, k) x (k, n) elements each; `grouped`: of experts, in one kernel for all.

    `name`: what a breakdown of compute calls it.
    """

    name: str
    n: Floats
    k: Floats
    rows: Floats | float = 1.0
    count: Floats | float = 1.0
    grouped: bool = False


def attention_gemms(model: Architecture, shard: Shard) -> list[Gemm]:
    """Projections before and after attention's core; a gate on its output is as wide as that."""
    tp = shard.tp.astype(np.float64)
    hidden, heads = np.full_like(tp, model.hidden), model.heads / tp
    attention = model.attention
    if attention.kind != "mla":
        kv_heads = np.maximum(1.0, model.kv_heads / tp)
        queries = heads * (2 if attention.output_gate else 1)
        tensors = 1 if attention.global_shared_kv and attention.sliding_window is None else 2  # see kinds.model_of
        width = (queries + tensors * kv_heads) * model.head_dim
        return [Gemm("qkv", width, hidden), Gemm("attention output", hidden, heads * model.head_dim)]
    nope, rope, value = attention.qk_nope or 0, attention.qk_rope or 0, attention.v_head or 0
    kv_rank = np.full_like(tp, attention.kv_lora or 0)
    each = np.ones_like(tp)
    up = [Gemm("kv up", heads * (nope + value), kv_rank)]
    if absorbed(attention):
        up = [Gemm("kv up", kv_rank, nope * each, count=heads), Gemm("kv up", value * each, kv_rank, count=heads)]
    made_of = [Gemm("kv down", kv_rank + rope, hidden), *up, Gemm("attention output", hidden, heads * value)]
    if attention.output_gate:
        made_of.append(Gemm("attention gate", heads * value, hidden))
    queries = heads * (nope + rope)
    if attention.q_lora is None:
        return [Gemm("queries", queries, hidden), *made_of]
    rank = np.full_like(tp, attention.q_lora)
    return [Gemm("q down", rank, hidden), Gemm("q up", queries, rank), *made_of]


def absorbed(attention: Attention) -> bool:
    """Latent attention whose core works on the latent keys themselves, one for all heads: where an indexer selects
    keys (Megatron-LM d98e8a6, core/transformer/experimental_attention_variant/absorbed_mla.py)."""
    return attention.kind == "mla" and attention.indexer is not None


def core_widths(model: Architecture) -> tuple[int, int]:
    """Elements of a head in the GEMM of queries and keys, and in the GEMM with the values."""
    attention = model.attention
    if absorbed(attention):
        return (attention.kv_lora or 0) + (attention.qk_rope or 0), attention.kv_lora or 0
    if attention.kind == "mla":
        return (attention.qk_nope or 0) + (attention.qk_rope or 0), attention.v_head or 0
    return model.head_dim, model.head_dim


def sent_widths(model: Architecture) -> tuple[int, ...]:
    """Elements of a head of each tensor of keys and values that ranks send each other: one where both are the same."""
    shared = absorbed(model.attention) or model.attention.kind == "csa"
    return core_widths(model)[: 1 if shared else 2]


def core_kv_heads(model: Architecture, shard: Shard) -> Floats:
    """Heads of keys and values on a device during attention's core: its share of those that are exchanged.

    Multi-head latent attention has as many as of queries; where an indexer selects keys, all heads share one.
    """
    if absorbed(model.attention):
        return np.ones(len(shard.tp))
    return exchanged_kv_heads(model, shard) / shard.ulysses


def exchanged_kv_heads(model: Architecture, shard: Shard) -> Floats:
    """Heads of keys and values on a device before heads are exchanged for tokens: at least one.

    Where more ranks exchange than there are heads, each is repeated for all queries that share it: MindSpeed 028de58,
    core/context_parallel/ulysses_context_parallel.py (repeat_interleave). The rule `context_exchange` says who does.
    """
    whole = model.heads if model.attention.kind == "mla" else model.kv_heads
    own = np.maximum(1.0, whole / shard.tp)
    return np.asarray(np.where(own < shard.ulysses, model.heads / shard.tp, own))


def feed_forward_gemms(
    model: Architecture, shard: Shard, width: int, fused: bool = True, name: str = "mlp"
) -> list[Gemm]:
    """A dense feed-forward block of that width: gate and up projection in one GEMM twice as wide, or in two."""
    tp = shard.tp.astype(np.float64)
    hidden, ffn = np.full_like(tp, model.hidden), width / tp
    gates = 2 if model.gated_mlp else 1
    up = f"{name} up"
    inside = [Gemm(up, gates * ffn, hidden)] if fused else gates * [Gemm(up, ffn, hidden)]
    return [*inside, Gemm(f"{name} down", hidden, ffn)]


def block_gemms(
    model: Architecture, shard: Shard, kind: LayerKind, load: float = 1.0, fused: bool = True
) -> list[Gemm]:
    """The feed-forward block of a layer of that kind: dense, experts under a load (see `routed_load`), or none."""
    if not kind.feed_forward:
        return []
    if kind.experts:
        return expert_gemms(model, shard, load)
    return feed_forward_gemms(model, shard, model.ffn, fused)


def expert_gemms(model: Architecture, shard: Shard, load: float = 1.0) -> list[Gemm]:
    """Router, shared experts and the routed experts that a device holds, under `load` times its even share of tokens.

    Of T tokens a device has T / tp to itself. The etp * ep devices that shard the experts send all of theirs to
    `Moe.computed` experts each: T / tp * etp * ep * computed / experts rows for an expert, each of whose etp ranks sees
    them all.
    Projections to a latent width and back are whole on every rank, for its own tokens.
    """
    moe = model.moe
    assert moe is not None
    tp = shard.tp.astype(np.float64)
    hidden = np.full_like(tp, model.hidden)
    local = np.maximum(1.0, moe.experts / shard.ep)
    rows = load * moe.computed * (shard.etp / tp) / local
    ffn = moe.expert_ffn / shard.etp.astype(np.float64)
    width = np.full_like(tp, model.expert_width)
    made_of = [
        Gemm("router", np.full_like(tp, moe.choices), hidden),
        Gemm("experts up", ffn * (2 if model.gated_mlp else 1), width, rows, local, grouped=True),
        Gemm("experts down", width, ffn, rows, local, grouped=True),
    ]
    if moe.latent:
        made_of += [Gemm("latent down", width, hidden, 1 / tp), Gemm("latent up", hidden, width, 1 / tp)]
    if moe.shared_experts:
        made_of += feed_forward_gemms(model, shard, moe.shared_width, name="shared experts")
    return made_of


def unmasked_blocks(problem: Problem) -> tuple[float, int]:
    """Share of all pairs of tokens that attention without a flash kernel computes, and the GEMMs for it.

    Triangle attention goes over blocks of b rows: the i-th uses the keys of the first i blocks only, n = s / b blocks
    in all: (n + 1) / 2n of the pairs, and all of them for the s mod b rows that are left (AscendSpeed 64b1937,
    ascendspeed/core/transformer/module/triangle_attention.py).
    """
    if not problem.spec.training.triangle_attention:
        return 1.0, 1
    sequence, block = problem.sequence, int(techniques().triangle_block)
    count, left = divmod(sequence, block)
    pairs = block**2 * count * (count + 1) / 2 + left * sequence
    return pairs / sequence**2, count + (left > 0)


def triangle_copies(problem: Problem, tokens: Floats) -> Floats:
    """Rows of keys and of values that triangle attention's blocks hold copies of, in all: (n + 1) / 2 of each."""
    if not problem.spec.training.triangle_attention:
        return np.zeros_like(tokens)
    share, _ = unmasked_blocks(problem)
    return np.asarray(tokens * share * problem.sequence / techniques().triangle_block)


def routed_load(problem: Problem) -> float:
    """Tokens at the most loaded device's experts relative to an even share: the other devices wait for it.

    A capacity factor drops what is beyond it.
    """
    training = problem.spec.training
    most, limit = training.expert_imbalance, training.expert_capacity_factor
    return most if limit is None else min(most, limit)


def copies_sent(problem: Problem) -> float:
    """Of a token's `top_k` choices those whose copies travel: experts that do nothing need none, but get one in some
    frameworks."""
    moe = problem.model.moe
    if moe is None:
        return 0.0
    return moe.computed + float(problem.stack.zero_experts_sent) * (moe.top_k - moe.computed)


def visible_share(model: Architecture, sequence: int, causal: float, full_attention: bool) -> float:
    """Share of all pairs of tokens that attention computes in a layer: causal, and within a window."""
    window = model.attention.sliding_window
    if full_attention or window is None or window >= sequence:
        return causal
    return window / sequence * (1 - window / (2 * sequence)) * 2 * causal


def grouped_speed(problem: Problem, gemm: Gemm) -> tuple[Floats, tuple[str, ...]]:
    """The rate of the experts' GEMMs against dense ones, where one kernel has several, and the constants behind it."""
    whole = (np.asarray(gemm.n) % _GROUPED_TILE == 0) & (np.asarray(gemm.k) % _GROUPED_TILE == 0)
    several = (np.asarray(gemm.count) > 1) & problem.spec.training.moe_grouped_gemm
    slower = {"grouped_gemm_speed": several, "uneven_grouped_gemm_speed": several & ~whole}
    speed, uneven = (np.where(where, getattr(problem.stack, name), 1.0) for name, where in slower.items())
    return speed * uneven, tuple(name for name, where in slower.items() if where.any())
