"""LoongForge: Megatron-Core 0.15's arguments with a recompute number for each stage, and the file that names the model.

Read in LoongForge c6275661 (2026-08): loongforge/train/parser.py (a model has to be named, by --model-name or by
--config-file), loongforge/models/utils.py (the file's keys are fields of the class that it names, all others come from
the arguments), loongforge/models/foundation (which layers each class builds).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cpsolver.doors.export import model_args, parallel_args, training_args
from cpsolver.doors.export.dialect import CORE_0_15, Flag, flattened
from cpsolver.doors.export.launch import Launch
from cpsolver.doors.export.megatron import environment_of, plan_notes, shared_flags
from cpsolver.doors.export.script import nodes_file, train_script
from cpsolver.doors.export.shared import yaml_text
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from models_zoo import Architecture

MODEL = "model.yaml"
SCRIPT = "${LOONGFORGE_PATH}/loongforge/train.py"
_SETUP = (
    "export LOONGFORGE_PATH=${LOONGFORGE_PATH:-/workspace/LoongForge}",
    "export PYTHONPATH=${MEGATRON_PATH:-/workspace/Loong-Megatron}:$LOONGFORGE_PATH:${PYTHONPATH:-}",
)
"""Where LoongForge and its Megatron-LM are, with the places that its own scripts have."""
_UNKNOWN = "???"
"""What OmegaConf refuses to go on without."""


def loongforge(problem: Problem, s: Strategy) -> Launch:
    """LoongForge of 2026-08 (formerly AIAK-Training-LLM); raises CannotExpress."""
    training_args.check_switches(problem.spec.training, CORE_0_15.name, CORE_0_15.switches)
    layers, notes = _layers(problem, s)
    in_the_file = set(model_args.indexer_flags(problem.model))
    shared = [flag for flag in shared_flags(problem, s, CORE_0_15) if flag not in in_the_file]
    flags = [*shared, *stage_recompute(problem, s), *layers]
    environment = environment_of(problem, s)
    here = f'  --config-file "${{CONFIG_FILE:-$(dirname "$0")/{MODEL}}}"'
    files = {
        "train.sh": train_script(problem, s, flags, environment, SCRIPT, setup=_SETUP, more=(here,)),
        MODEL: yaml_text("The model of a plan of apss-cp; train.sh gives it as --config-file.", config(problem)),
        "nodes.txt": nodes_file(problem, s),
    }
    notes = (*plan_notes(problem, s, CORE_0_15), *_notes(problem), *notes)
    arguments = ("--config-file", MODEL, *flattened(flags))
    return Launch(CORE_0_15.name, arguments, environment, files, "train.sh", notes, "train.sh")


def _layers(problem: Problem, s: Strategy) -> tuple[list[Flag], tuple[str, ...]]:
    """Layers by stage, and a note where the flag is one of LoongForge's own."""
    if s.vpp > 1 or parallel_args.is_plain(s) or problem.model.mtp_layers:
        return list(parallel_args.layer_flags(problem, s, CORE_0_15)), ()
    layout = parallel_args.layout_string(s, problem.model.mtp_layers)
    note = say(
        "--custom-pipeline-layers is deprecated; the same as --pipeline-model-parallel-layout '{layout}'", layout=layout
    )
    return [("--custom-pipeline-layers", ",".join(map(str, s.layers)))], (note,)


def stage_recompute(problem: Problem, s: Strategy) -> Iterator[Flag]:
    """One number of recomputed layers for each stage, where they differ."""
    if not parallel_args.recomputes_by_stage(s):
        yield from parallel_args.recompute_flags(problem, s)
        return
    yield ("--recompute-granularity", "full")
    yield ("--recompute-method", "block")
    yield ("--custom-pipeline-recompute-layers", ",".join(map(str, s.recompute_layers)))


def family(model: Architecture) -> tuple[str, str] | None:
    """LoongForge's class and family whose layers the model has; None: it has no such layers.

    LLaMAConfig has no experts, MimoConfig is that with multi-token prediction; DeepseekConfig has latent attention, in
    models with experts alone, with an indexer or without; Qwen3Config and MinimaxConfig have experts in every layer and
    no shared ones, the latter with norms over all queries and all keys, and multi-token prediction.
    """
    moe, latent = model.moe, model.attention.kind == "mla"
    if model.attention.indexer is not None and not latent:
        return None
    if moe is None:
        if latent:
            return None
        return ("MimoConfig", "mimo") if model.mtp_layers else ("LLaMAConfig", "llama")
    if latent:
        return None if moe.shared_gate else ("DeepseekConfig", "deepseek")
    if moe.shared_experts or not all(map(model.has_experts, range(model.layers))):
        return None
    if model.attention.qk_norm == "layer":
        return ("MinimaxConfig", "minimax")
    return None if model.mtp_layers else ("Qwen3Config", "qwen3")


def config(problem: Problem) -> dict[str, Any]:
    """The model as --config-file takes it: fields of the class in `_target_`, whose defaults would stand otherwise."""
    model, dropout = problem.model, 0.1 if problem.spec.training.dropout else 0.0
    latent = model.attention.kind == "mla"
    name, kind = family(model) or (_UNKNOWN, _UNKNOWN)
    return {
        "_target_": name if name == _UNKNOWN else f"loongforge.models.foundation.{name}",
        "model_type": kind,
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn or (model.moe.expert_ffn if model.moe else 0),
        "num_attention_heads": model.heads,
        **({} if latent else {"group_query_attention": model.kv_heads != model.heads, "kv_channels": model.head_dim}),
        "num_query_groups": model.heads if latent else model.kv_heads,
        "position_embedding_type": model_args.POSITIONS.get(model.position, "none"),
        "add_position_embedding": model.position == "learned",
        "rotary_interleaved": False,
        "normalization": {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[model.norm],
        "swiglu": model.gated_mlp,
        "attention_dropout": dropout,
        "hidden_dropout": dropout,
        "add_bias_linear": model.bias_mlp,
        "add_qkv_bias": model.bias_qkv,
        "qk_layernorm": latent or model.attention.qk_norm is not None,
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        **(_latent(model) if latent else {}),
        **_indexer(model),
        **(_experts(model) if model.moe else {}),
        **({"mtp_num_layers": model.mtp_layers} if model.mtp_layers else {}),
    }


def _latent(model: Architecture) -> dict[str, Any]:
    attention = model.attention
    widths = {
        "q_lora_rank": attention.q_lora,
        "kv_lora_rank": attention.kv_lora,
        "qk_head_dim": attention.qk_nope,
        "qk_pos_emb_head_dim": attention.qk_rope,
        "v_head_dim": attention.v_head,
    }
    return {"multi_latent_attention": True, **widths}


def _indexer(model: Architecture) -> dict[str, Any]:
    """Which keys are selected: fields of Megatron-Core's own class, by configs/models/glm5 and glm5.2."""
    flags = model_args.indexer_flags(model)
    fields = {name.removeprefix("--").replace("-", "_"): value for name, value in flags}
    return {name: int(value) if value.isdigit() else value for name, value in fields.items()}


def _experts(model: Architecture) -> dict[str, Any]:
    moe, layers = model.moe, model_args.expert_layers(model)
    assert moe is not None
    fields: dict[str, Any] = {
        "num_experts": moe.experts,
        "moe_ffn_hidden_size": moe.expert_ffn,
        "moe_layer_freq": int(layers) if layers.isdigit() else f'${{moe_freq:"{layers}"}}',
    }
    return fields | ({"moe_shared_expert_intermediate_size": moe.shared_width} if moe.shared_experts else {})


def _notes(problem: Problem) -> Iterator[str]:
    model = problem.model
    said = ("norm over all",) if family(model) == ("MinimaxConfig", "minimax") else ()
    yield from model_args.model_notes(model, problem.sequence, CORE_0_15, said)
    if family(model) is None:
        yield say(
            "no class of LoongForge builds the layers of {name}: {model} has {unknown} where yours is named",
            name=model.name,
            model=MODEL,
            unknown=_UNKNOWN,
        )
