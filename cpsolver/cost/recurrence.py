"""Layers whose mixer is a recurrence over the sequence, computed in chunks: Mamba-2 and delta rules.

Sizes are those of Megatron-LM d98e8a6 (core/ssm/mamba_mixer.py, core/ssm/gated_delta_net/) with the kernels of
state-spaces/mamba (ops/triton/ssd_combined.py) and of flash-linear-attention (ops/gated_delta_rule/chunk.py, ops/kda/).
Tensor parallelism splits heads and groups, with a GEMM before and after as attention has; context parallelism exchanges
heads for tokens over all of its ranks, whatever attention does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cpsolver.cost.gemms import Gemm, attention_gemms
from cpsolver.cost.kinds import LayerKind
from cpsolver.cost.selection import compressed_gemms, indexer_gemms
from cpsolver.cost.shard import Floats, Shard
from cpsolver.inputs.language import later
from cpsolver.profiles.techniques import techniques
from models_zoo import Architecture
from models_zoo.schema import LinearAttention, Mixer

_KERNELS_OF_SCAN = 5
"""Kernels of one pass of a recurrence: sums of decays, products inside chunks, their states, passing these, output."""


@dataclass(frozen=True)
class Recurrence:
    """One layer's mixer on one device; all but `made_of` for one token.

    `flops`: matrix products of the recurrence, forward. `streamed`: elements that convolution, norms and gates read and
    write in `kernels` kernels. `kept`: elements that stay for the backward pass. `enters` and `leaves`: elements of
    each tensor that context-parallel ranks exchange before and after it.
    """

    name: str
    made_of: list[Gemm]
    flops: Floats
    streamed: Floats
    kernels: int
    kept: Floats
    enters: tuple[Floats, ...]
    leaves: Floats

    @property
    def launches(self) -> int:
        """Kernels of the recurrence itself."""
        return _KERNELS_OF_SCAN


def recurrence(model: Architecture, shard: Shard, mixer: Mixer) -> Recurrence:
    """The mixer of a layer that has no attention."""
    if mixer == "mamba":
        return _mamba(model, shard)
    linear = model.linear_attention
    assert linear is not None
    of_kind: Callable[[Architecture, LinearAttention, Shard], Recurrence] = {
        "gated_deltanet": _gated_delta_net,
        "kimi_delta_attention": _kimi_delta,
    }[linear.kind]
    return of_kind(model, linear, shard)


def mixer_gemms(model: Architecture, shard: Shard, kind: LayerKind) -> list[Gemm]:
    """The GEMMs before and after what mixes the tokens of a layer of that kind, attention or not."""
    if kind.attends:
        made_of = (
            compressed_gemms(model, shard, kind) if model.attention.kind == "csa" else attention_gemms(model, shard)
        )
        return [*made_of, *indexer_gemms(model, shard, kind)]
    return [] if kind.mixer == "none" else recurrence(model, shard, kind.mixer).made_of


def counted_flops(model: Architecture, mixer: Mixer) -> float:
    """FLOP of a token forward beside the GEMMs as Megatron-LM counts them for a whole layer (training/training.py,
    num_floating_point_operations): of the recurrence as such, whatever its kernels compute in chunks."""
    if mixer == "mamba":
        mamba = model.mamba
        assert mamba is not None
        return 7.0 * mamba.heads * mamba.head_dim * mamba.state
    linear = model.linear_attention
    assert linear is not None
    keys, values, heads, width = _widths(linear)
    return 8.0 * heads * width**2 + 2.0 * linear.conv * (2 * keys + values)


def split_heads(model: Architecture) -> dict[str, int]:
    """What tensor and context parallelism split of the model's recurrences, by name (behind a count): each a multiple
    of tp x cp."""
    found = {}
    if model.mamba is not None:
        found[later("{count} state-space heads")] = model.mamba.heads
    linear = model.linear_attention
    if linear is not None:
        found |= {later("{count} linear attention's key heads"): linear.key_heads or linear.heads or 1}
        found |= {later("{count} linear attention's value heads"): linear.value_heads or linear.heads or 1}
    return found


def held_whole(model: Architecture, mixer: Mixer) -> int:
    """Of a layer's mixer, the weights that every tensor-parallel rank holds whole: the norm of a head, and projections
    to the width of one."""
    linear = model.linear_attention
    if mixer != "linear" or linear is None:
        return 0
    if linear.kind == "gated_deltanet":
        return linear.value_dim or 0
    dim = linear.dim or 0
    return dim + model.hidden * dim * (1 if linear.full_rank_gate else 2)


def _mamba(model: Architecture, shard: Shard) -> Recurrence:
    """The input projection gives gate, values, keys, queries and steps (z, x, B, C, dt).

    Kept: what it gives, the scan's result before and after the gate, and the norm's. A context-parallel rank has a
    whole group of keys and queries at least.
    """
    mamba = model.mamba
    assert mamba is not None
    tp = shard.tp.astype(np.float64)
    hidden, heads, groups = np.full_like(tp, model.hidden), mamba.heads / tp, mamba.groups / tp
    inner, shared = heads * mamba.head_dim, groups * mamba.state
    into, chunk = 2 * inner + 2 * shared + heads, techniques().state_space_chunk
    exchanged = shared * np.maximum(1.0, shard.cp / groups)
    return Recurrence(
        name="state-space scan",
        made_of=[Gemm("state-space input", into, hidden), Gemm("state-space output", hidden, inner)],
        flops=2 * chunk * (shared + inner) + 4 * mamba.state * inner,
        streamed=2 * (inner + 2 * shared) + 2 * inner,
        kernels=2,
        kept=into + 3 * inner,
        enters=(inner, inner, exchanged, exchanged, heads),
        leaves=inner,
    )


def _gated_delta_net(model: Architecture, linear: LinearAttention, shard: Shard) -> Recurrence:
    """Queries, keys, values and a gate as wide as these; a decay and a strength for each value head.

    Kept: what the projection gives; queries and keys before and after they are normed and repeated for every value
    head; values; the chunks' inverses, a row of one a token and head; the result, a copy of its gate, and both normed.
    """
    tp = shard.tp.astype(np.float64)
    keys, values, heads, _ = (each / tp for each in _widths(linear))
    repeated, hidden = heads * (linear.key_dim or 0), np.full_like(tp, model.hidden)
    into, chunk = 2 * keys + 2 * values + 2 * heads, techniques().delta_rule_chunk
    return Recurrence(
        name="delta rule",
        made_of=[Gemm("linear attention input", into, hidden), Gemm("linear attention output", hidden, values)],
        flops=_delta_flops(repeated, values, linear.value_dim or 0, chunk),
        streamed=2 * (2 * keys + values) + 4 * keys + 2 * (keys + repeated) + 4 * values + 3 * values,
        kernels=10,
        kept=into + 2 * keys + 2 * repeated + (chunk + 3) * heads + 4 * values,
        enters=(into,),
        leaves=values,
    )


def _kimi_delta(model: Architecture, linear: LinearAttention, shard: Shard) -> Recurrence:
    """Queries, keys and values of one width, a decay for each element of it through the width of one head, and a gate.

    Kept: the three before and after their convolutions, the decays and their sums in fp32, the chunks' inverses and
    scores, the result, its gate, and both normed.
    """
    tp = shard.tp.astype(np.float64)
    dim, hidden = linear.dim or 0, np.full_like(tp, model.hidden)
    heads, narrow = (linear.heads or 0) / tp, np.full_like(tp, linear.dim or 0)
    width, chunk = heads * dim, techniques().delta_rule_chunk
    gate = [Gemm("linear attention gate", width, hidden)]
    if not linear.full_rank_gate:
        gate = [Gemm("linear attention gate", narrow, hidden), Gemm("linear attention gate", width, narrow)]
    made_of = [
        Gemm("linear attention input", 3 * width + heads, hidden),
        Gemm("linear attention decay", narrow, hidden),
        Gemm("linear attention decay", width, narrow),
        *gate,
        Gemm("linear attention output", hidden, width),
    ]
    return Recurrence(
        name="delta rule",
        made_of=made_of,
        flops=_delta_flops(width, width, dim, chunk),
        streamed=2 * 3 * width + 4 * width + 4 * width + 3 * width,
        kernels=12,
        kept=3 * width + 3 * width + 3 * width + (2 * chunk + 1) * heads + 3 * width + 2 * dim,
        enters=(3 * width, width, heads, width),
        leaves=width,
    )


def _delta_flops(keys: Floats, values: Floats, head: int, chunk: float) -> Floats:
    """In chunks of C tokens: the keys' products, w, u, the scores and their product with the values take C keys or
    values each; the state is read for w, written, and read for the queries."""
    return np.asarray(2 * chunk * (3 * keys + 2 * values) + 6 * keys * head)


def _widths(linear: LinearAttention) -> tuple[int, int, int, int]:
    """Of a whole layer: the width of all queries or keys, that of all values, value heads, the width of one."""
    if linear.kind == "gated_deltanet":
        heads, width = linear.value_heads or 0, linear.value_dim or 0
        return (linear.key_heads or 0) * (linear.key_dim or 0), heads * width, heads, width
    heads, width = linear.heads or 0, linear.dim or 0
    return heads * width, heads * width, heads, width
