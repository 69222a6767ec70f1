"""GPT-NeoX's YAML (and DeepSpeed's fields in it) as the arguments of Megatron-LM that mean the same.

Read in gpt-neox ea7aefd: megatron/neox_arguments (names and defaults), megatron/model/transformer.py (ParallelMLP: what
becomes of intermediate_size), megatron/model/transformer_engine.py (TELayerNormMLP: nothing does; 8 bits are those of
te_fp8_mha alone), megatron/model/activations.py (which activations have a gate). In version 2 `fp16` has a type too
(at-aaims/forge 82edb69: train/megatron/neox_arguments/arguments.py). Stability AI's fork, not public, names gates and
shared heads: Stability-AI/StableLM 93eea08 (configs), and the widths of the models that it published. Geodesic's takes
a width that is given as it stands: MeridianResearch/geodesic-gpt-neox c43cf19 (ParallelMLP).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cpsolver.doors.importing.command import TrainingDevices
from cpsolver.doors.importing.deepspeed_fields import fields_on
from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.reading import Fields, Reading, as_tokens
from cpsolver.inputs.language import later, say
from models_zoo import list_architectures

_FRAMEWORK = FrameworkGuess("megatron-deepspeed", "deepspeed", later("a configuration of GPT-NeoX"))
_ACTIVATIONS = {"gelu": "gelu", "geglu": "geglu", "swiglu": "swiglu", "relu": "relu", "silu": "silu"}
_NORMS = {"layernorm": "layernorm", "te_layernorm": "layernorm", "rmsnorm": "rmsnorm", "te_rmsnorm": "rmsnorm"}
_POSITIONS = {"learned": "learned", "rotary": "rope", "alibi": "alibi", "sinusoidal": "none", "none": "none"}
_OPTIMIZERS = {"adam": "adam", "adamw": "adam", "cpu_adam": "adam", "lion": "lion"}
_GATED = {"gelu": "geglu", "silu": "swiglu"}
_GATES = {"gated": True, "regular": False, "llama": True}
_LLAMA = 256
"""What the width of LLaMA's block is a multiple of, in GPT-NeoX of 2023 (Vmjkom/gpt-neox 369a436: LLaMAParallelMLP)."""
_HEADS = ("multihead", "groupedquery", "multiquery")
_ATTENTION = {"global": False, "flash": True}
"""Kinds of attention_config, and whether they are a flash kernel."""


def read_neox(name: str, data: dict[str, Any]) -> Reading:
    """One file with model and training; NeoX merges several, which have to be merged before."""
    fields = Fields({key.replace("-", "_"): value for key, value in data.items()}, name, "neox")
    fields.refuse()
    layers = fields.number("num_layers")
    model = _model(fields)
    tokens = [*fields.mapped(), *_batch(fields), *_states(fields), *_attention(fields, layers or 0)]
    width, notes = _width(fields, bool(model["gated_mlp"]))
    tokens += as_tokens("ffn-hidden-size", width)
    fields.choice("attention_head_type", dict.fromkeys(_HEADS), _HEADS[0])
    groups = fields.number("num_kv_heads", 1 if fields.data.get("attention_head_type") == "multiquery" else None)
    if groups is not None:
        tokens += ["--group-query-attention", *as_tokens("num-query-groups", groups)]
    launched = TrainingDevices(None, None)
    nodes, per_node = fields.number("num_nodes", 1, least=-1), fields.number("num_gpus")
    if per_node:
        launched = TrainingDevices(per_node * max(1, nodes or 1), per_node)
    elif (world := fields.number("global_num_gpus")) is not None:
        launched = TrainingDevices(world, None)
    hint = fields.text("tokenizer_type") or ""
    notes = (*notes, *_beside(fields), *fields_on(fields.data, Path(name).name))
    fields.close()
    kind = later("configuration of GPT-NeoX")
    unread = fields.unread()
    return Reading(kind, tuple(tokens), _FRAMEWORK, launched, model=model, notes=notes, unread=unread, hint=hint)


def _beside(fields: Fields) -> Iterator[str]:
    """What the plan does not hold of a split layer.

    gpt-neox ea7aefd: megatron/model/transformer.py, megatron/mpu/mappings.py.
    """
    if (fields.number("model_parallel_size", 1) or 1) == 1:
        return
    if fields.flag("gpt_j_residual"):
        yield say(
            "gpt_j_residual: attention and feed-forward block of a layer share one exchange of tensor parallelism; "
            "time is predicted too long"
        )
    if fields.flag("fp32_allreduce"):
        yield say("fp32_allreduce: exchanges of tensor parallelism in fp32; time is predicted too short")


def _model(fields: Fields) -> dict[str, Any]:
    """Norms, biases, activation, positions and head, as fields of an architecture."""
    activation = fields.choice("activation", _ACTIVATIONS, "gelu")
    attention, feed_forward = fields.flag("use_bias_in_attn_linear", True), fields.flag("use_bias_in_mlp", True)
    gated = fields.choice("mlp_type", _GATES, "regular") or activation in ("swiglu", "geglu")
    return {
        "activation": _GATED.get(activation, activation) if gated else activation,
        "gated_mlp": gated,
        "norm": fields.choice("norm", _NORMS, "layernorm"),
        "position": fields.choice("pos_emb", _POSITIONS, "learned"),
        "tied_embeddings": not fields.flag("no_weight_tying"),
        "bias_qkv": attention,
        "bias_attention_out": attention,
        "bias_mlp": feed_forward and fields.data.get("mlp_type") != "llama",
    }


def _width(fields: Fields, gated: bool) -> tuple[int | None, tuple[str, ...]]:
    """The feed-forward width as the framework has it, and a note where its forks read a width that is given otherwise.

    ParallelMLP has with a gate a third of what is given, in whole multiples; Transformer Engine's has all of it.
    """
    hidden, multiple = fields.number("hidden_size"), fields.number("mlp_multiple_of", 1) or 1
    if hidden is None:
        return None, ()
    given = fields.number("intermediate_size")
    width = given if given is not None else int(fields.real("expansion_factor", 4.0) * hidden)
    if fields.flag("te_layernorm_mlp"):
        return width, ()
    if fields.data.get("mlp_type") == "llama":
        return given if given is not None else _LLAMA * -(-int(2 * hidden * 4 / 3) // _LLAMA), ()
    inner = int(width * 2 / 3) // 2 if gated else width
    if fields.data.get("mlp_type") == "gated":  # StableLM 2 12B: 13824 of a width of 5120, in multiples of 256
        inner = width if given is not None else int(width * 2 / 3)
    elif gated and given is not None:
        if (given % 3 and multiple == 1) or _is_whole(fields, given):
            told = later(
                "intermediate_size {given}: taken as the width, as forks do; GPT-NeoX would take a third of it"
            )
            return given, (say(told, given=given),)
        told = later(
            "intermediate_size {given}: with a gate GPT-NeoX takes a third of it, {inner}; forks take it whole"
        )
        return multiple * -(-inner // multiple), (say(told, given=given, inner=inner),)
    return multiple * -(-inner // multiple), ()


def _is_whole(fields: Fields, width: int) -> bool:
    """Whether a model of the catalogue has this width beside the same layers and heads."""
    names = ("num_layers", "hidden_size", "num_attention_heads")
    sizes = tuple(fields.number(name) for name in names)
    groups = fields.number("num_kv_heads", sizes[2])
    shape = (*sizes, groups, width)
    return any(
        (each.layers, each.hidden, each.heads, each.kv_heads or each.heads, each.ffn) == shape
        for each in list_architectures()
    )


def _batch(fields: Fields) -> list[str]:
    """Sequences of a microbatch, and of a step: given, or so many microbatches of each replica; and the pipeline."""
    steps, whole = fields.number("gradient_accumulation_steps", 1), fields.number("train_batch_size")
    each = fields.number("train_micro_batch_size_per_gpu") or fields.number("batch_size")
    of_step = (
        as_tokens("gradient-accumulation-steps", steps) if whole is None else as_tokens("global-batch-size", whole)
    )
    stages = fields.number("pipe_parallel_size", 0, least=0)
    none = [] if stages else ["--no-pipeline-parallel"]
    return [
        *as_tokens("micro-batch-size", each),
        *of_step,
        *as_tokens("pipeline-model-parallel-size", stages or 1),
        *none,
    ]


def _states(fields: Fields) -> list[str]:
    """Precision, ZeRO stage, optimizer and recomputation."""
    kind = (fields.text("precision") or "").lower()
    half = {"bfloat16": "bf16", "bf16": "bf16", "fp16": "fp16", "half": "fp16"}.get(kind)
    if half is None and fields.section("fp16").get("type") == "bfloat16":
        half = "bf16"
    for name in ("fp16", "bf16"):
        section = fields.section(name)
        half = name if section.get("enabled", section.get(name, False)) and half is None else half
    zero = fields.section("zero_optimization").get("stage", 0)
    optimizer = str(fields.section("optimizer").get("type", "Adam")).lower()
    if optimizer not in _OPTIMIZERS:
        fields.trouble("optimizer.type", "is not planned for", optimizer, ", ".join(_OPTIMIZERS))
    tokens = [*([f"--{half}"] if half else []), *as_tokens("zero-stage", zero), "--deepspeed"]
    tokens += as_tokens("optimizer", _OPTIMIZERS.get(optimizer, "adam"))
    offload = fields.section("zero_optimization").get("offload_optimizer")
    if offload or fields.section("zero_optimization").get("cpu_offload"):
        tokens.append("--optimizer-cpu-offload")
    if fields.flag("checkpoint_activations"):
        tokens += ["--recompute-granularity", "full", "--recompute-method", "uniform"]
        tokens += as_tokens("recompute-num-layers", fields.number("checkpoint_num_layers", 1))
        by_deepspeed = fields.flag("deepspeed_activation_checkpointing", True)  # megatron/initialize.py gives it both
        tokens += ["--distribute-saved-activations"] * (fields.flag("partition_activations") and by_deepspeed)
        if fields.flag("checkpoint_in_cpu") and by_deepspeed:
            tokens += ["--deepspeed-activation-checkpointing", "--checkpoint-in-cpu"]
    else:
        for name in ("checkpoint_num_layers", "partition_activations", "checkpoint_in_cpu"):
            fields.has(name)
    dropout = [(f"{part}-dropout", fields.real(f"{part}_dropout", 0.0)) for part in ("attention", "hidden")]
    return [*tokens, *(token for name, value in dropout for token in as_tokens(name, value))]


def _attention(fields: Fields, layers: int) -> list[str]:
    """--use-flash-attn where all layers attend so; kinds that no architecture here says are troubles."""
    if fields.flag("te_mha"):  # Transformer Engine's attention, which asks for no kind
        fields.has("attention_config")
        return ["--use-flash-attn"]
    if not fields.has("attention_config"):
        return []
    kinds = _kinds(fields.data["attention_config"], layers)
    if unknown := [kind for kind in kinds if kind not in _ATTENTION]:
        fields.trouble("attention_config", "is not planned for", unknown[0], ", ".join(_ATTENTION))
        return []
    if len(set(kinds)) > 1:
        fields.trouble(
            "attention_config", "mixes kernels of attention, which no plan does", ", ".join(sorted(set(kinds)))
        )
    return ["--use-flash-attn"] if kinds and _ATTENTION[kinds[0]] else []


def _kinds(config: Any, layers: int) -> list[str]:
    """The kinds of `[[["flash"], 12]]`, of `["flash", ...]`, or of `[[["global"], "all"]]`; each once is enough."""
    if not isinstance(config, list) or layers < 1:
        return ["?"]
    found: list[str] = []
    for item in config:
        pattern = item[0] if isinstance(item, list) and item else item
        found += [str(kind) for kind in (pattern if isinstance(pattern, list) else [pattern])]
    return found
