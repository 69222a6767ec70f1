"""The model in Megatron-LM's options, and what of it they cannot say."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from itertools import groupby

from cpsolver.doors.export.dialect import Dialect, Flag
from cpsolver.inputs.language import later, say
from models_zoo import Architecture

POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}
"""Our names of position embeddings -> those of --position-embedding-type."""
UNSAID = later("{name} has {what}: no option says so; give it in the framework's own model code")
UNSAID_BY_FIELDS = later("{name} has {what}: no field says so; give it in the framework's own model code")
"""What a note says of something that the model has, and the framework no words for."""
PADDING = 128
"""Vocabularies are padded to a multiple of this times tp (--make-vocab-size-divisible-by, its default)."""


def padded_vocabulary(model: Architecture, tp: int) -> int:
    """Rows of the embedding with its padding, over all tensor-parallel ranks."""
    unit = PADDING * tp
    return -(-model.vocab // unit) * unit


def model_flags(model: Architecture, sequence: int, dialect: Dialect) -> Iterator[Flag]:
    """Options that describe the model, as far as the dialect has them."""
    yield ("--num-layers", str(model.layers))
    yield ("--hidden-size", str(model.hidden))
    yield ("--ffn-hidden-size", str(model.ffn or (model.moe.expert_ffn if model.moe else 0)))
    yield ("--num-attention-heads", str(model.heads))
    yield from _attention_flags(model, dialect)
    yield ("--seq-length", str(sequence))
    yield ("--max-position-embeddings", str(max(model.max_positions or sequence, sequence)))
    yield ("--make-vocab-size-divisible-by", str(PADDING))
    yield ("--normalization", {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[model.norm])
    if model.norm_epsilon is not None:
        yield ("--norm-epsilon", f"{model.norm_epsilon:g}")
    yield ("--position-embedding-type", POSITIONS.get(model.position, "none"))
    if model.position == "rope" and model.rotary_base is not None:
        yield ("--rotary-base", str(model.rotary_base))
    yield from _activation_flags(model, dialect)
    if not model.tied_embeddings:
        yield ("--untie-embeddings-and-output-weights",)
    if not model.bias_mlp or _lost_bias(model, dialect):
        yield ("--disable-bias-linear",)
        if model.bias_qkv:
            yield ("--add-qkv-bias",)
    if model.mtp_layers:
        yield ("--mtp-num-layers", str(model.mtp_layers))


def special_flags(model: Architecture) -> Iterator[Flag]:
    """Options for layers that few models have (Megatron-LM d98e8a6, core/transformer/transformer_config.py)."""
    mamba, linear = model.mamba, model.linear_attention
    if model.layer_pattern is not None:
        yield ("--spec", "megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
    if mamba is not None:
        yield ("--mamba-num-heads", str(mamba.heads))
        yield ("--mamba-head-dim", str(mamba.head_dim))
        yield ("--mamba-num-groups", str(mamba.groups))
        yield ("--mamba-state-dim", str(mamba.state))
    if linear is not None:
        # The name up to core 0.19; later versions call it gdn, and take both.
        yield ("--experimental-attention-variant", "gated_delta_net")
        yield ("--linear-attention-freq", linear_layers(model))
        yield ("--linear-conv-kernel-dim", str(linear.conv))
        yield ("--linear-key-head-dim", str(linear.key_dim))
        yield ("--linear-value-head-dim", str(linear.value_dim))
        yield ("--linear-num-key-heads", str(linear.key_heads))
        yield ("--linear-num-value-heads", str(linear.value_heads))
    if model.mtp_layers > model.mtp_weights:
        yield ("--mtp-use-repeated-layer",)
    yield from indexer_flags(model)
    if model.moe is not None and model.moe.latent is not None:
        yield ("--moe-latent-size", str(model.moe.latent))


def indexer_flags(model: Architecture) -> Iterator[tuple[str, str]]:
    """Options for attention to keys that an indexer selects."""
    indexer = model.attention.indexer
    if indexer is None:
        return
    yield ("--experimental-attention-variant", "dsa")
    yield ("--dsa-indexer-n-heads", str(indexer.heads))
    yield ("--dsa-indexer-head-dim", str(indexer.dim))
    yield ("--dsa-indexer-topk", str(indexer.topk))
    if indexer.every > 1:
        yield ("--dsa-indexer-topk-freq", str(indexer.every))
        yield ("--dsa-indexer-skip-topk-offset", str(indexer.first))


def linear_layers(model: Architecture) -> str:
    """Which layers have linear attention, as --linear-attention-freq takes it: every n-th has none, or a list."""
    if model.full_attention_interval is not None:
        return str(model.full_attention_interval)
    return f"[{','.join(str(int(model.mixer(layer) == 'linear')) for layer in range(model.layers))}]"


def _unturned(layers: int, every: int) -> str:
    """Which layers have no rotary embedding, as --no-rope-freq takes it: every n-th where n divides them, or a list."""
    return (
        str(every) if layers % every == 0 else f"[{','.join(str(int(n % every == 0)) for n in range(1, layers + 1))}]"
    )


def _lost_bias(model: Architecture, dialect: Dialect) -> bool:
    """Its experts have biases, which the dialect's parser refuses."""
    return model.bias_mlp and model.moe is not None and not dialect.expert_bias


def _quick_geglu(model: Architecture) -> bool:
    """Its gate is x * sigmoid(1.702 x), gpt-oss's."""
    return model.gated_mlp and model.activation == "quick_geglu"


def _activation_flags(model: Architecture, dialect: Dialect) -> Iterator[Flag]:
    if _quick_geglu(model) and dialect.quick_geglu:
        yield ("--quick-geglu",)
        yield from [("--glu-linear-offset", str(model.gate_offset))] if model.gate_offset else []
        if model.activation_clamp is not None:
            yield ("--activation-func-clamp-value", str(model.activation_clamp))
    elif model.gated_mlp:
        yield ("--swiglu",)
    elif model.activation == "relu2":
        yield ("--squared-relu",)


def _attention_flags(model: Architecture, dialect: Dialect) -> Iterator[Flag]:
    attention = model.attention
    if attention.kind == "mla":
        yield ("--multi-latent-attention",)
        widths = {
            "--q-lora-rank": attention.q_lora,
            "--kv-lora-rank": attention.kv_lora,
            "--qk-head-dim": attention.qk_nope,
            "--qk-pos-emb-head-dim": attention.qk_rope,
            "--v-head-dim": attention.v_head,
        }
        yield from ((name, str(width)) for name, width in widths.items() if width is not None)
        yield ("--kv-channels", str(attention.v_head))
    elif attention.kind != "csa":  # which Megatron-LM does not have, and its forks name in their own way
        if model.kv_heads != model.heads:
            yield ("--group-query-attention",)
            yield ("--num-query-groups", str(model.kv_heads))
        yield ("--kv-channels", str(model.head_dim))
    if attention.qk_norm == "head" or attention.kind == "mla":
        yield ("--qk-layernorm",)
    if attention.sliding_window is not None and dialect.windows:
        yield ("--window-size", f"{attention.sliding_window - 1},0")  # tokens before and after, itself not counted
        if attention.full_every is not None:
            yield ("--window-attn-skip-freq", str(attention.full_every))
    if attention.no_rope_every is not None and dialect.no_rope_freq:
        yield ("--no-rope-freq", _unturned(model.layers, attention.no_rope_every))
    if attention.output_gate and dialect.output_gate:
        yield ("--attention-output-gate",)
    if attention.sinks and dialect.sinks:
        yield ("--softmax-type", "learnable")


def expert_flags(model: Architecture, dialect: Dialect, grouped: bool = True) -> Iterator[Flag]:
    """Options that describe the experts, `grouped` in one kernel or not; nothing for a dense model."""
    moe = model.moe
    if moe is None:
        return
    yield ("--num-experts", str(moe.experts))
    yield ("--moe-router-topk", str(moe.top_k))
    yield ("--moe-ffn-hidden-size", str(moe.expert_ffn))
    if model.layer_pattern is None:
        yield ("--moe-layer-freq", expert_layers(model))
    if moe.shared_experts:
        yield ("--moe-shared-expert-intermediate-size", str(shared_width(model)))
        if moe.shared_gate and dialect.shared_gate:
            yield ("--moe-shared-expert-gate",)
    if moe.router_bias and not moe.router_softmax:  # else TopKRouter has it where all products have biases
        yield ("--moe-router-score-function", "sigmoid")
        yield ("--moe-router-enable-expert-bias",)
    elif moe.top_k == 1:
        yield ("--moe-router-pre-softmax",)  # of one score alone the softmax is 1: TransformerConfig refuses it
    if model.router_scaling is not None:
        yield ("--moe-router-topk-scaling-factor", f"{model.router_scaling:g}")
    if moe.top_groups < moe.groups:
        yield ("--moe-router-num-groups", str(moe.groups))
        yield ("--moe-router-group-topk", str(moe.top_groups))
    if grouped:
        yield ("--moe-grouped-gemm",)


def shared_width(model: Architecture) -> int:
    """Feed-forward width of all shared experts together; 0 without any."""
    moe = model.moe
    return 0 if moe is None else moe.shared_width


def expert_layers(model: Architecture) -> str:
    """Which layers have experts, as --moe-layer-freq takes it: "1" for all, else a list with repeats."""
    pattern = [int(model.has_experts(layer)) for layer in range(model.layers)]
    if all(pattern):
        return "1"
    runs = [(kind, len(list(run))) for kind, run in groupby(pattern)]
    if len(runs) > 8:
        return f"[{','.join(map(str, pattern))}]"
    return f"({'+'.join(f'[{kind}]*{length}' for kind, length in runs)})"


def _unknown(model: Architecture) -> str:
    """What the user has to look up, since no plan depends on it and the catalogue does not have it."""
    rope, router = model.position == "rope", model.moe is not None
    flags = [*["--rotary-base"] * (rope and model.rotary_base is None)]
    flags += ["--rotary-percent"] * (rope and model.attention.kind != "mla")  # latent attention's widths say it
    flags += [say("rope scaling")] * rope
    flags += ["--norm-epsilon"] * (model.norm_epsilon is None)
    told = "".join(say("{name}, ", name=name) for name in flags)
    losses = say(", the router's loss") if router and model.router_scaling is not None else ""
    losses = say(", the router's loss and scaling") if router and model.router_scaling is None else losses
    return say("{flags}--init-method-std and the training schedule{losses}", flags=told, losses=losses)


_WORDS = {
    "positions": later("{position} positions"),
    "activation": later("the activation {activation}"),
    "norm after the embedding": later("a norm after the embedding"),
    "norms": later("{norms} norms a layer"),
    "norm over all": later("a norm over all queries and keys of a layer"),
    "window": later("a sliding window"),
    "sinks": later("attention sinks"),
    "gate of attention": later("a gate on attention's output"),
    "no rope": later("layers without rotary embedding"),
    "bias of attention": later("a bias in attention's output, but none in the feed-forward"),
    "bias of feed-forward": later("a bias in the feed-forward, but none in attention's output"),
    "bias of experts": later("biases in experts"),
    "bias of router": later("a bias in the router"),
    "gate of experts": later("a gate on shared experts"),
}
"""What a model may have and options cannot say, by short names."""


def _inexpressible(model: Architecture, dialect: Dialect) -> Mapping[str, bool]:
    """Which of _WORDS the model has and the dialect does not."""
    attention, moe = model.attention, model.moe
    return {
        "positions": model.position not in POSITIONS,
        "activation": model.activation not in ("swiglu", "gelu", "relu2")
        and not (_quick_geglu(model) and dialect.quick_geglu),
        "norm after the embedding": model.embedding_norm,
        "norms": model.norms_per_layer > 2,
        "norm over all": attention.qk_norm == "layer",
        "window": attention.sliding_window is not None and not dialect.windows,
        "sinks": attention.sinks and not dialect.sinks,
        "gate of attention": attention.output_gate and not dialect.output_gate,
        "no rope": attention.no_rope or (attention.no_rope_every is not None and not dialect.no_rope_freq),
        "bias of attention": model.bias_attention_out and not model.bias_mlp,
        "bias of feed-forward": model.bias_mlp and not model.bias_attention_out,
        "bias of experts": _lost_bias(model, dialect),
        "bias of router": moe is not None and moe.router_softmax and _lost_bias(model, dialect),
        "gate of experts": moe is not None and moe.shared_gate and not dialect.shared_gate,
    }


def model_notes(
    model: Architecture, sequence: int, dialect: Dialect, said: Container[str] = (), unsaid: str = UNSAID
) -> Iterator[str]:
    """What the model has and the dialect's options cannot say, and what the catalogue does not know.

    `said`: names of _WORDS that the target says in a way of its own; `unsaid`: UNSAID in words that suit the target.
    """
    values = {"position": model.position, "activation": model.activation, "norms": model.norms_per_layer}
    for what, present in _inexpressible(model, dialect).items():
        if present and what not in said:
            yield say(unsaid, name=model.name, what=say(_WORDS[what], **values))
    if model.position == "learned" and model.max_positions and sequence > model.max_positions:
        yield say(
            "the position table has {max_positions} rows in {name}, and the sequence {sequence} tokens",
            max_positions=model.max_positions,
            name=model.name,
            sequence=sequence,
        )
    yield say("not in the catalogue, and left to you: {unknown}", unknown=_unknown(model))
