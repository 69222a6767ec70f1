"""The model in Megatron-LM's options, and what of it they cannot say."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from cpsolver.doors.export.dialect import Dialect, Flag
from models_zoo import Architecture

POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}
"""Our names of position embeddings -> those of --position-embedding-type."""
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
    yield ("--position-embedding-type", POSITIONS.get(model.position, "none"))
    yield from _activation_flags(model)
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
    mamba, linear, indexer = model.mamba, model.linear_attention, model.attention.indexer
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
    if indexer is not None:
        yield ("--experimental-attention-variant", "dsa")
        yield ("--dsa-indexer-n-heads", str(indexer.heads))
        yield ("--dsa-indexer-head-dim", str(indexer.dim))
        yield ("--dsa-indexer-topk", str(indexer.topk))
        if indexer.every > 1:
            yield ("--dsa-indexer-topk-freq", str(indexer.every))
            yield ("--dsa-indexer-skip-topk-offset", str(indexer.first))
    if model.moe is not None and model.moe.latent is not None:
        yield ("--moe-latent-size", str(model.moe.latent))


def linear_layers(model: Architecture) -> str:
    """Which layers have linear attention, as --linear-attention-freq takes it: every n-th has none, or a list."""
    if model.full_attention_interval is not None:
        return str(model.full_attention_interval)
    return f"[{','.join(str(int(model.mixer(layer) == 'linear')) for layer in range(model.layers))}]"


def _lost_bias(model: Architecture, dialect: Dialect) -> bool:
    """Its experts have biases, which the dialect's parser refuses."""
    return model.bias_mlp and model.moe is not None and not dialect.expert_bias


def _activation_flags(model: Architecture) -> Iterator[Flag]:
    if model.gated_mlp:
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
    else:
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
    if attention.output_gate and dialect.output_gate:
        yield ("--attention-output-gate",)
    if attention.sinks and dialect.sinks:
        yield ("--softmax-type", "learnable")


def expert_flags(model: Architecture, dialect: Dialect) -> Iterator[Flag]:
    """Options that describe the experts; nothing for a dense model."""
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
    if moe.router_bias:
        yield ("--moe-router-score-function", "sigmoid")
        yield ("--moe-router-enable-expert-bias",)
    elif moe.top_k == 1:
        yield ("--moe-router-pre-softmax",)  # of one score alone the softmax is 1: TransformerConfig refuses it
    if moe.top_groups < moe.groups:
        yield ("--moe-router-num-groups", str(moe.groups))
        yield ("--moe-router-group-topk", str(moe.top_groups))
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


def model_notes(model: Architecture, sequence: int, dialect: Dialect) -> Iterator[str]:
    """What the model has and the dialect's options cannot say, and what the catalogue does not know."""
    attention, moe = model.attention, model.moe
    inexpressible = {
        f"{model.position} positions": model.position not in POSITIONS,
        f"the activation {model.activation}": model.activation not in ("swiglu", "gelu", "relu2"),
        "a norm after the embedding": model.embedding_norm,
        f"{model.norms_per_layer} norms a layer": model.norms_per_layer > 2,
        "a norm over all queries and keys of a layer": attention.qk_norm == "layer",
        "a sliding window": attention.sliding_window is not None and not dialect.windows,
        "attention sinks": attention.sinks and not dialect.sinks,
        "a gate on attention's output": attention.output_gate and not dialect.output_gate,
        "layers without rotary embedding": attention.no_rope,
        "a bias in attention's output, but none in the feed-forward": model.bias_attention_out and not model.bias_mlp,
        "a bias in the feed-forward, but none in attention's output": model.bias_mlp and not model.bias_attention_out,
        "biases in experts": _lost_bias(model, dialect),
        "a gate on shared experts": moe is not None and moe.shared_gate and not dialect.shared_gate,
    }
    for what, present in inexpressible.items():
        if present:
            yield f"{model.name} has {what}: no option says so; give it in the framework's own model code"
    if model.position == "learned" and model.max_positions and sequence > model.max_positions:
        yield f"the position table has {model.max_positions} rows in {model.name}, and the sequence {sequence} tokens"
    rope = "--rotary-base, rope scaling, " if model.position == "rope" else ""
    router = ", the router's loss and scaling" if moe is not None else ""
    options = f"{rope}--norm-epsilon, --init-method-std and the training schedule{router}"
    yield f"not in the catalogue, and left to you: {options}"
