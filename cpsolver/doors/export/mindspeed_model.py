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
    if attention.kind == "mla":
        return "deepseek_spec"
    if model.norms_per_layer == _SANDWICH:
        return "gemma2_spec"
    if attention.qk_norm == "layer" and tp == 1:  # it asserts tp 1
        return "minimax_spec"
    if model.bias_attention_out and not model.bias_mlp:
        return "phi35_moe_spec"
    return "qwen3_spec" if attention.qk_norm == "head" else None


def model_flags(model: Architecture, sequence: int, spec: str | None) -> Iterator[Flag]:
    """Its sizes and blocks; `spec`: its `layer_spec`."""
    for flag in model_args.model_flags(model, sequence, DIALECT):
        if flag[0] == "--position-embedding-type" and model.position == "alibi":
            yield (flag[0], "alibi")
        elif flag == ("--swiglu",):
            yield (GATED.get(model.activation, "--swiglu"),)
        else:
            yield flag
    if spec == "gemma2_spec":
        yield ("--post-norm",)
        if _interleaved(model):
            yield ("--interleave-sliding-window", str(model.attention.sliding_window))
    elif spec == "minimax_spec":
        yield ("--qk-layernorm",)


def _interleaved(model: Architecture) -> bool:
    """Every second layer has a window, as Gemma 2's: tasks/models/transformer/transformer_layer.py, is_sliding."""
    return model.attention.sliding_window is not None and model.attention.full_every == 2


def model_notes(problem: Problem, s: Strategy) -> Iterator[str]:
    """What of the model its options cannot say, without what MindSpeed-LLM has options or layers of its own for."""
    model, spec = problem.model, layer_spec(problem.model, s.tp)
    said = {
        "positions": model.position == "alibi",
        "activation": model.activation in GATED,
        "norms": spec == "gemma2_spec",
        "window": spec == "gemma2_spec" and _interleaved(model),
        "norm over all": spec == "minimax_spec",
        "bias of attention": spec == "phi35_moe_spec",
    }
    own = tuple(what for what, here in said.items() if here)
    yield from model_args.model_notes(model, problem.sequence, DIALECT, own)


def expert_flags(model: Architecture) -> Iterator[Flag]:
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
    for flag in model_args.expert_flags(model, DIALECT):
        if flag[0] == "--moe-layer-freq":
            yield ("--first-k-dense-replace", str(moe.first_dense))
            yield ("--moe-layer-freq", str(moe.freq))
        elif flag[0] == "--moe-shared-expert-intermediate-size" and not model_args.shared_width(model) % moe.expert_ffn:
            yield ("--n-shared-experts", str(model_args.shared_width(model) // moe.expert_ffn))
            if moe.shared_gate:
                yield ("--shared-expert-gate",)
        else:
            yield flag
