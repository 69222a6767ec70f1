"""Exact parameter counts from an architecture, as integers. Totals are without multi-token prediction and encoders.

Legend: h hidden, a heads, g kv_heads, d head_dim, f a feed-forward width.
"""

from __future__ import annotations

from dataclasses import dataclass

from models_zoo.schema import Architecture, LinearAttention, Mamba, Moe


@dataclass(frozen=True)
class LayerParameters:
    """One layer's parameters by part; `experts`: all routed, `active_experts`: those one token visits.

    `selection`: of attention's, what selects and compresses keys. `streams`: what mixes residual streams.
    """

    attention_qkv: int = 0
    attention_out: int = 0
    attention_norms: int = 0
    selection: int = 0
    mixer: int = 0
    mlp: int = 0
    norms: int = 0
    streams: int = 0
    router: int = 0
    experts: int = 0
    active_experts: int = 0
    shared_experts: int = 0

    @property
    def attention(self) -> int:
        """Everything in the attention block, its inner norms too."""
        return self.attention_qkv + self.attention_out + self.attention_norms + self.selection

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        return self._outside_experts + self.experts

    @property
    def active(self) -> int:
        """Parameters that one token uses."""
        return self._outside_experts + self.active_experts

    @property
    def _outside_experts(self) -> int:
        beside = self.norms + self.streams + self.router
        return self.attention + self.mixer + self.mlp + beside + self.shared_experts


def layer_parameters(arch: Architecture, layer_index: int = 0) -> LayerParameters:
    """Parameters of one layer (counted from 0), by part.

    Raises:
        IndexError: when the model has no such layer.
    """
    if not 0 <= layer_index < arch.layers:
        raise IndexError(f"{arch.name} has layers 0..{arch.layers - 1}, not {layer_index}")
    mixer = arch.mixer(layer_index)
    qkv, out, inner_norms = _attention(arch, layer_index) if mixer == "attention" else (0, 0, 0)
    experts = arch.has_experts(layer_index)
    router, all_experts, active, shared = _experts(arch, arch.moe) if experts and arch.moe else (0, 0, 0, 0)
    one_mixer_per_layer = arch.layer_pattern is not None
    shortcut = arch.moe is not None and arch.moe.shortcut
    dense, twice = arch.has_feed_forward(layer_index) and (shortcut or not experts), 2 if shortcut else 1
    return LayerParameters(
        attention_qkv=twice * qkv,
        attention_out=twice * out,
        attention_norms=twice * inner_norms,
        selection=_selection(arch, layer_index) if mixer == "attention" else 0,
        mixer=_other_mixer(arch, mixer),
        mlp=twice * _mlp(arch, arch.hidden, arch.ffn) if dense else 0,
        norms=twice * (1 if one_mixer_per_layer else arch.norms_per_layer) * _norm(arch),
        streams=2 * _streams(arch, arch.residual_streams + 2, 3),
        router=router,
        experts=all_experts,
        active_experts=active,
        shared_experts=shared,
    )


def embedding_parameters(arch: Architecture) -> int:
    """Word embeddings, learned positions and the norm after them, where the model has these."""
    words = arch.vocab * arch.hidden
    rows = (arch.max_positions or 0) + arch.position_offset if arch.position == "learned" else 0
    return words + rows * arch.hidden + (_norm(arch) if arch.embedding_norm else 0)


def final_streams_parameters(arch: Architecture) -> int:
    """What joins residual streams after the last layer."""
    return _streams(arch, 1, 1)


def _streams(arch: Architecture, sets: int, scales: int) -> int:
    """Hyper-connections of n streams: so many sets of n weights from all streams of a token, each with a base; scales
    (transformers 5.23, models/deepseek_v4)."""
    n = arch.residual_streams
    return 0 if n == 1 else sets * n * (n * arch.hidden + 1) + scales


def head_parameters(arch: Architecture) -> int:
    """The output projection; 0 when it is the word embedding itself."""
    return 0 if arch.tied_embeddings else arch.vocab * arch.hidden


def final_norm_parameters(arch: Architecture) -> int:
    """The norm after the last layer."""
    return _norm(arch)


def total_parameters(arch: Architecture) -> int:
    """All parameters, without multi-token prediction layers."""
    return _outside_layers(arch) + sum(layer_parameters(arch, index).total for index in range(arch.layers))


def active_parameters(arch: Architecture) -> int:
    """Parameters that one token uses: embeddings and head included, only the experts it visits."""
    return _outside_layers(arch) + sum(layer_parameters(arch, index).active for index in range(arch.layers))


def encoder_of(arch: Architecture) -> Architecture | None:
    """The layers of the encoder of images as a model of their own, without vocabulary; None: the model has none.

    A block of patches that see one another counts as a window to either side of half as many.
    """
    vision = arch.vision
    if vision is None:
        return None
    window = {} if vision.window is None else {"sliding_window": max(1, vision.window // 2)}
    every = {} if vision.full_every is None else {"full_every": vision.full_every}
    names = ("layers", "hidden", "ffn", "heads", "gated_mlp", "activation", "norm")
    biases = ("bias_qkv", "bias_attention_out", "bias_mlp")
    same = {name: getattr(vision, name) for name in (*names, *biases)}
    position = "none" if vision.positions else "rope"
    attention = {**window, **every}
    fields = {"name": f"{arch.name}'s encoder", "vocab": 1, "position": position, "attention": attention}
    return Architecture.model_validate({**same, **fields})


def encoder_parameters(arch: Architecture) -> int:
    """The encoder's parameters but for its projectors: patches, positions, layers, norms; 0 without one."""
    vision, encoder = arch.vision, encoder_of(arch)
    if vision is None or encoder is None:
        return 0
    each = layer_parameters(encoder).total + 2 * vision.hidden * vision.layer_scale
    rows = vision.positions + vision.class_token
    patches = _linear(vision.patch_inputs, vision.hidden, vision.patch_bias)
    return patches + rows * vision.hidden + vision.layers * each + vision.final_norm * _norm(encoder)


def projector_parameters(arch: Architecture) -> int:
    """Of all projectors of the encoder: their norms and two linear layers each; 0 without one."""
    vision, encoder = arch.vision, encoder_of(arch)
    if vision is None or encoder is None:
        return 0
    width, per_element = vision.projector or arch.hidden, _norm(encoder) // vision.hidden
    linear = _linear(vision.joined, width, True) + _linear(width, arch.hidden, True)
    norm = {"patch": vision.hidden, "joined": vision.joined, "none": 0}[vision.projector_norm]
    return linear + per_element * norm + vision.deepstack * (linear + per_element * vision.joined)


def _outside_layers(arch: Architecture) -> int:
    ends = embedding_parameters(arch) + head_parameters(arch) + final_norm_parameters(arch)
    return ends + final_streams_parameters(arch)


def _norm(arch: Architecture) -> int:
    return arch.hidden * (2 if arch.norm_bias else 1)


def _linear(inputs: int, outputs: int, bias: bool) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _mlp(arch: Architecture, width: int, ffn: int) -> int:
    up = _linear(width, ffn, arch.bias_mlp) * (2 if arch.gated_mlp else 1)
    return up + _linear(ffn, width, arch.bias_mlp)


def _other_mixer(arch: Architecture, mixer: str) -> int:
    if mixer == "linear" and arch.linear_attention is not None:
        linear = arch.linear_attention
        return (_gated_deltanet if linear.kind == "gated_deltanet" else _kimi_delta)(linear, arch.hidden)
    if mixer == "mamba" and arch.mamba is not None:
        return _mamba(arch.mamba, arch.hidden)
    return 0


def _attention(arch: Architecture, layer_index: int) -> tuple[int, int, int]:
    """Input projections, output projection and inner norms (with sinks) of one attention block."""
    kinds = {"mla": _latent_attention, "csa": _compressed_attention}
    qkv, out, norms = kinds.get(arch.attention.kind, _grouped_attention)(arch, layer_index)
    sinks = arch.heads if arch.attention.sinks else 0
    return qkv, out, norms + sinks


def _grouped_attention(arch: Architecture, layer_index: int) -> tuple[int, int, int]:
    """Multi-head, grouped-query and multi-query attention: q is h·a·d, k and v h·g·d each, out a·d·h."""
    attention = arch.attention
    global_layer = attention.sliding_window is not None and arch.attends_fully(layer_index)
    head_dim = attention.global_head_dim if global_layer and attention.global_head_dim else arch.head_dim
    kv_heads = attention.global_kv_heads if global_layer and attention.global_kv_heads else arch.kv_heads
    shared = global_layer and attention.global_shared_kv
    queries = arch.heads * head_dim * (2 if attention.output_gate else 1)
    keys_values = kv_heads * head_dim * (1 if shared else 2)
    qkv = _linear(arch.hidden, queries + keys_values, arch.bias_qkv)
    out = _linear(arch.heads * head_dim, arch.hidden, arch.bias_attention_out)
    norms = {"head": 2 * head_dim, "layer": (arch.heads + kv_heads) * head_dim}
    return qkv, out, norms.get(attention.qk_norm or "", 0)


def _latent_attention(arch: Architecture, _layer_index: int) -> tuple[int, int, int]:
    """Multi-head latent attention: q and kv pass through low-rank widths that carry a norm each."""
    attention = arch.attention
    kv_lora, nope = attention.kv_lora or 0, attention.qk_nope or 0
    rope, v_head = attention.qk_rope or 0, attention.v_head or 0
    queries, query_norm = _low_rank_queries(arch, arch.heads * (nope + rope))
    keys_values = arch.hidden * (kv_lora + rope) + kv_lora * arch.heads * (nope + v_head)
    out_width = arch.heads * v_head
    gate = arch.hidden * out_width if attention.output_gate else 0
    return queries + keys_values + gate, out_width * arch.hidden, query_norm + kv_lora


def _compressed_attention(arch: Architecture, _layer_index: int) -> tuple[int, int, int]:
    """Compressed sparse attention: low-rank queries, one shared kv head, low-rank output by groups of heads; sinks."""
    attention = arch.attention
    o_lora, groups = attention.o_lora or 0, attention.o_groups or 0
    width = arch.heads * arch.head_dim
    queries, query_norm = _low_rank_queries(arch, width)
    out = width * o_lora + groups * o_lora * arch.hidden
    return queries + arch.hidden * arch.head_dim, out, query_norm + arch.head_dim


def _low_rank_queries(arch: Architecture, outputs: int) -> tuple[int, int]:
    rank = arch.attention.q_lora
    if rank is None:
        return arch.hidden * outputs, 0
    return arch.hidden * rank + rank * outputs, rank


def compressor_widths(arch: Architecture, compression: int) -> tuple[int, int]:
    """Elements a token that keys are pooled from, and those that an indexer's are: values and weights of both.

    Where an indexer selects, windows overlap and have two sets (transformers 5.23, models/deepseek_v4).
    """
    indexer, ratios = arch.attention.indexer, arch.attention.compression
    if not compression or not ratios:
        return 0, 0
    overlapping = compression == min(filter(None, ratios))
    scored = 4 * indexer.dim if indexer is not None and overlapping else 0
    return (4 if overlapping else 2) * arch.head_dim, scored


def _selection(arch: Architecture, layer_index: int) -> int:
    """The indexer of a layer with one, and what compresses keys: projections, a bias by place, a norm."""
    indexer, compression = arch.attention.indexer, arch.compression_of(layer_index)
    found = 0
    if arch.attention.kind == "csa" and compression:
        pooled, scored = compressor_widths(arch, compression)
        found = (pooled + scored) * arch.hidden + compression * (pooled + scored) // 2 + arch.head_dim
    if indexer is None or not arch.scores_keys(layer_index):
        return found
    if arch.attention.kind == "csa":
        return found + _indexer_queries(arch) + indexer.dim
    return found + _indexer_queries(arch) + arch.hidden * indexer.dim + 2 * indexer.dim


def _indexer_queries(arch: Architecture) -> int:
    """Queries of the scorer and one weight a head."""
    indexer = arch.attention.indexer
    if indexer is None:
        return 0
    return (arch.attention.q_lora or arch.hidden) * indexer.heads * indexer.dim + arch.hidden * indexer.heads


def _experts(arch: Architecture, moe: Moe) -> tuple[int, int, int, int]:
    """Router (and latent projections), all routed experts, those one token visits, shared experts."""
    expert = _mlp(arch, moe.latent or arch.hidden, moe.expert_ffn)
    shared = _mlp(arch, arch.hidden, moe.shared_ffn or moe.expert_ffn) * moe.shared_experts
    gate = arch.hidden if moe.shared_gate else 0
    router = _linear(arch.hidden, moe.choices, moe.router_bias)
    latent = 2 * arch.hidden * moe.latent if moe.latent else 0
    return router + latent, moe.experts * expert, round(moe.computed * expert), shared + gate


def _mamba(mamba: Mamba, hidden: int) -> int:
    """Mamba-2: input projection, convolution, per-head constants (A, D, dt), gated norm, output."""
    inner = mamba.heads * mamba.head_dim
    convolved = inner + 2 * mamba.groups * mamba.state
    into = hidden * (inner + convolved + mamba.heads)
    convolution = convolved * (mamba.conv + 1)
    return into + convolution + 3 * mamba.heads + inner + inner * hidden


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
    into = 3 * hidden * width + low_rank + hidden * heads + gate
    convolution, constants = 3 * width * linear.conv, heads + width
    return into + convolution + constants + dim + width * hidden
