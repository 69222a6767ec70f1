"""MindSpeed-LLM: the model in its options, with the layers that it has of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cpsolver.doors.export import model_args
from cpsolver.doors.export.dialect import CORE_0_12, Flag
from cpsolver.doors.export.launch import CannotExpress
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from models_zoo import Architecture
from models_zoo.schema import Indexer

DIALECT = replace(
    CORE_0_12, name="mindspeed-llm", source="MindSpeed-LLM c77308a1 on core_v0.12.1", layers_per_chunk=True
)
_SANDWICH = 4
"""Norms of a layer with one before and one behind each block."""
GATED = {"geglu": "--geglu", "geglu_tanh": "--gelu-tanh"}
"""Gated activations but SwiGLU (core/transformer/mlp.py)."""


def layer_spec(model: Architecture, tp: int) -> str | None:
    """Which of MindSpeed-LLM's layers the model has, a module of mindspeed_llm/tasks/models/spec.

    None: those that pretrain_gpt.py takes by itself, which have neither latent attention, norms of queries and keys,
    norms behind the blocks nor a bias in attention's output alone, whatever other options say.
    """
    attention = model.attention
    if model.moe is not None and model.moe.shortcut:
        return "longcat_spec"
    if attention.kind in ("mla", "csa"):
        return {"mla": "deepseek_spec", "csa": "deepseek4_spec"}[attention.kind]
    if model.norms_per_layer == _SANDWICH:
        return "gemma2_spec"
    if attention.qk_norm == "layer" and tp == 1:  # it asserts tp 1
        return "minimax_spec"
    if model.bias_attention_out and not model.bias_mlp:
        return "phi35_moe_spec"
    return "qwen3_spec" if attention.qk_norm == "head" else None


def model_flags(model: Architecture, sequence: int, spec: str | None, cp: int) -> Iterator[Flag]:
    """Its sizes and blocks; `spec`: its `layer_spec`."""
    for flag in model_args.model_flags(model, sequence, DIALECT):
        if flag[0] == "--position-embedding-type" and (model.position == "alibi" or spec == "deepseek4_spec"):
            yield (flag[0], "alibi" if model.position == "alibi" else "deepseek4")
        elif flag == ("--swiglu",):
            yield (GATED.get(model.activation, "--swiglu"),)
        else:
            yield flag
    yield from _beside_spec(model, spec)
    if _windowed(model, spec, cp):
        yield ("--sliding-window", str(model.attention.sliding_window))
    if model.attention.kind == "csa":
        yield from _compressed(model)
    if model.attention.indexer is not None:
        yield from _indexer(model.attention.indexer)
    if model.attention.kind == "mla" and model.attention.indexer is not None:  # what attention's time counts on
        yield from (("--enable-mla-absorb",), ("--mla-mm-split",))


def _beside_spec(model: Architecture, spec: str | None) -> Iterator[Flag]:
    """What a `layer_spec` asks for."""
    if spec == "gemma2_spec":
        yield ("--post-norm",)
        if _interleaved(model):
            yield ("--interleave-sliding-window", str(model.attention.sliding_window))
    elif spec == "minimax_spec":
        yield ("--qk-layernorm",)
    elif spec == "phi35_moe_spec":  # tasks/models/transformer/attention.py
        yield ("--add-dense-bias",)
    elif spec == "longcat_spec":  # both are in every LongCat (transformers 5.24, models/longcat_flash)
        yield from (("--enable-mla-scale-q-lora",), ("--enable-mla-scale-kv-lora",))


def _compressed(model: Architecture) -> Iterator[Flag]:
    """DeepSeek-V4's attention and hyper-connections (features_manager/transformer, csa_feature.py, mhc_feature.py).

    Its one head of keys and values is as wide as what other latent attention keeps.
    """
    attention = model.attention
    widths = {
        "--q-lora-rank": attention.q_lora,
        "--kv-lora-rank": model.head_dim,
        "--qk-head-dim": model.head_dim,
        "--qk-pos-emb-head-dim": attention.qk_rope,
        "--o-lora-rank": attention.o_lora,
        "--o-groups": attention.o_groups,
        "--sliding-window-size": attention.sliding_window,
    }
    yield ("--multi-latent-attention",)
    yield from ((name, str(width)) for name, width in widths.items() if width is not None)
    yield ("--qk-layernorm",)
    yield ("--kv-compress",)
    yield ("--compress-ratios", *map(str, attention.compression or ()))
    if model.mtp_layers:
        yield ("--mtp-spec", "mindspeed_llm.tasks.models.spec.deepseek4_spec", "mtp_spec")
    if model.residual_streams > 1:
        yield ("--enable-mhc",)
        yield ("--hc-mult", str(model.residual_streams))


def _indexer(indexer: Indexer) -> Iterator[Flag]:
    """It and its kernels: without these, scores of all keys are written (tasks/models/transformer/dsa_indexer.py)."""
    yield ("--enable-dsa-indexer",)
    yield ("--use-fused-lightning-indexer",)
    yield ("--use-fused-lightning-indexer-loss",)
    yield ("--use-sparse-flash-attn",)
    yield ("--index-n-heads", str(indexer.heads))
    yield ("--index-head-dim", str(indexer.dim))
    yield ("--index-topk", str(indexer.topk))
    if indexer.every > 1:
        yield ("--index-topk-freq", str(indexer.every))
        yield ("--index-skip-topk-offset", str(indexer.first))


def _interleaved(model: Architecture) -> bool:
    """Every second layer has a window, as Gemma 2's: tasks/models/transformer/transformer_layer.py, is_sliding."""
    return model.attention.sliding_window is not None and model.attention.full_every == 2


def _windowed(model: Architecture, spec: str | None, cp: int) -> bool:
    """Every layer has a window, which context_parallel_feature.py refuses beside context parallelism."""
    attention = model.attention
    everywhere = attention.sliding_window is not None and attention.full_every is None
    return everywhere and cp == 1 and spec not in ("gemma2_spec", "deepseek4_spec")


def model_notes(problem: Problem, s: Strategy) -> Iterator[str]:
    """What of the model its options cannot say, without what MindSpeed-LLM has options or layers of its own for."""
    model, spec = problem.model, layer_spec(problem.model, s.tp)
    said = {
        "positions": model.position == "alibi",
        "activation": model.activation in GATED,
        "norms": spec == "gemma2_spec",
        "norm over all": spec == "minimax_spec",
        "bias of attention": spec == "phi35_moe_spec",
        **dict.fromkeys(
            ("sinks", "window"), spec == "deepseek4_spec" or (spec == "gemma2_spec" and _interleaved(model))
        ),
    }
    said["window"] |= _windowed(model, spec, s.cp)
    own = tuple(what for what, here in said.items() if here)
    yield from model_args.model_notes(model, problem.sequence, DIALECT, own)


def expert_flags(model: Architecture, grouped: bool = True) -> Iterator[Flag]:
    """MindSpeed-LLM tells the layers with experts in its own way; and counts shared experts, of the routed ones' width.

    With --first-k-dense-replace of at least 1 they are the layers from there on whose number, from 0, is a multiple of
    --moe-layer-freq, otherwise all (core/transformer/transformer_block.py, _transformer_block_build_layers).
    """
    moe = model.moe
    if moe is None:
        return
    first, every = moe.first_dense, moe.freq
    for layer in range(model.layers):
        if model.has_experts(layer) != (first == 0 or (layer >= first and layer % every == 0)):
            told = say(
                "experts stand in every {every} layers from layer {first}: MindSpeed-LLM has them in all, or in "
                "multiples of --moe-layer-freq after some dense layers",
                every=every,
                first=max(first, moe.offset),
            )
            raise CannotExpress((told,))
    for flag in model_args.expert_flags(model, DIALECT, grouped):
        if flag[0] == "--moe-layer-freq":
            yield ("--first-k-dense-replace", str(moe.first_dense))
            yield ("--moe-layer-freq", str(moe.freq))
        elif flag[0] == "--moe-shared-expert-intermediate-size" and not model_args.shared_width(model) % moe.expert_ffn:
            yield ("--n-shared-experts", str(model_args.shared_width(model) // moe.expert_ffn))
            if moe.shared_gate:
                yield ("--shared-expert-gate",)
        elif flag[0] == "--moe-router-score-function" and model.attention.kind == "csa":
            yield (flag[0], "sqrtsoftplus")
        elif flag[0] == "--moe-router-score-function" and moe.shortcut:
            yield ("--moe-router-load-balancing-type", "softmax_topk")
        else:
            yield flag
    if moe.zero_experts:
        yield ("--num-zero-experts", str(moe.zero_experts))
    if moe.hash_routed_layers:
        yield ("--n-hash-layers", str(moe.hash_routed_layers))
