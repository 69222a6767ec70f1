"""Parameter counts of the token mixers that are not attention: linear attention and state-space layers."""

from __future__ import annotations

from models_zoo.schema import LinearAttention, Mamba


def mamba_parameters(mamba: Mamba, hidden: int) -> int:
    """Mamba-2: input projection, convolution, per-head constants (A, D, dt), gated norm, output."""
    inner = mamba.heads * mamba.head_dim
    convolved = inner + 2 * mamba.groups * mamba.state
    into = hidden * (inner + convolved + mamba.heads)
    convolution = convolved * (mamba.conv + 1)
    return into + convolution + 3 * mamba.heads + inner + inner * hidden


def linear_attention_parameters(linear: LinearAttention, hidden: int) -> int:
    """One linear-attention mixer of either kind."""
    if linear.kind == "gated_deltanet":
        return _gated_deltanet(linear, hidden)
    return _kimi_delta(linear, hidden)


def _gated_deltanet(linear: LinearAttention, hidden: int) -> int:
    """q, k, v, gate z; b and a per value head; convolution on q, k, v; decay constants; head norm; output."""
    keys = (linear.key_heads or 0) * (linear.key_dim or 0)
    values = (linear.value_heads or 0) * (linear.value_dim or 0)
    value_heads = linear.value_heads or 0
    into = hidden * (2 * keys + 2 * values + 2 * value_heads)
    convolution = (2 * keys + values) * linear.conv
    return into + convolution + 2 * value_heads + (linear.value_dim or 0) + values * hidden


def _kimi_delta(linear: LinearAttention, hidden: int) -> int:
    """q, k, v with convolutions; low-rank decay gate; beta; output gate; head norm; output."""
    heads, dim = linear.heads or 0, linear.dim or 0
    width = heads * dim
    low_rank = hidden * dim + dim * width
    gate = hidden * width if linear.full_rank_gate else low_rank
    constants = heads + width
    return (
        3 * hidden * width
        + 3 * width * linear.conv
        + low_rank
        + hidden * heads
        + gate
        + constants
        + dim
        + width * hidden
    )
