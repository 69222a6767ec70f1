"""MindFormers' YAML of a LLaMA-like model as the arguments of Megatron-LM that mean the same.

Read in mindspore-lab/mindformers 009029eb: configs/llama2, mindformers/models/llama (the feed-forward's width),
mindformers/trainer/base_trainer.py (sequences of a step), docs on `offset` and on recomputation by stage. Of models
with LLaMA's configuration and layers of their own: Tele-AI/TeleChat2 cd9287f (research/baichuan, research/baichuan2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cpsolver.doors.importing.command import TrainingDevices
from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.reading import Fields, Reading, as_tokens
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say

_TYPES = {"LlamaConfig": "LLaMA's layers"}
_EXCHANGES = {"colossalai_cp": "allgather", "ulysses_cp": "a2a"}
_HALF = ("bfloat16", "float16")
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}
_WHOLE = ("--recompute-granularity", "full", "--recompute-method")
_POSITIONS = dict.fromkeys(("LlamaForCausalLM", "ParallelLlamaForCausalLM", "Baichuan7BV2ForCausalLM"), "rope")
_POSITIONS |= dict.fromkeys(("Baichuan13BForCausalLM", "Baichuan13BV2ForCausalLM"), "alibi")
"""Positions by the class of the model, of those whose layers are LLaMA's else."""
_FIXED: tuple[str, ...] = ("--swiglu", "--normalization", "RMSNorm")
_FIXED += ("--disable-bias-linear", "--attention-dropout", "0", "--hidden-dropout", "0", "--transformer-impl", "local")
"""What all models of these types have."""


def read_mindformers(name: str, data: dict[str, Any]) -> Reading:
    """A file that trains; predictions and exports are out of scope."""
    mode = data.get("run_mode", "train")
    if mode not in ("train", "finetune"):
        raise OutOfScopeError(Trouble("run_mode", "is no training", mode, "train, finetune", file=name))
    model = _part(name, data, "model", "model_config")
    parallel = _part(name, data, "parallel_config")
    more = {key: value for part in ("runner_config", "parallel") for key, value in _section(data, part).items()}
    own = {"micro_batch_interleave_num": data.get("micro_batch_interleave_num"),
           "arch": _section(_section(data, "model"), "arch").get("type")}  # fmt: skip
    fields = Fields({**more, **parallel, **model, **own}, name, "mindformers")
    fields.refuse()
    if (experts := _section(data, "moe_config").get("expert_num", 1)) != 1:
        fields.trouble("moe_config.expert_num", "experts of MindFormers are not read", experts, "1")
    fields.choice("type", _TYPES, "LlamaConfig")
    half = model.get("param_init_type", "float16") in _HALF
    degrees = {key: fields.number(key, 1) or 1 for key in ("data_parallel", "model_parallel", "pipeline_stage")}
    cp = fields.number("context_parallel", 1) or 1
    world = degrees["data_parallel"] * degrees["model_parallel"] * degrees["pipeline_stage"] * cp
    splits, refusals = _split(fields, degrees["pipeline_stage"])
    recomputed, more_refusals = _recomputation(_section(data, "recompute_config"), degrees["pipeline_stage"])
    tokens = (
        *_FIXED,
        *as_tokens("position-embedding-type", fields.choice("arch", _POSITIONS, "LlamaForCausalLM")),
        *fields.mapped(),
        *_model(fields),
        *_context(fields, cp),
        *_batch(fields, degrees),
        *splits,
        *recomputed,
    )
    if model.get("pet_config"):
        refusals += (say("pet_config: adapters of MindFormers are not read"),)
    if (fields.number("seq_split_num", 1) or 1) > 1:
        refusals += (say("seq_split_num: sequences in pieces along the pipeline, which no plan says"),)
    if _section(data, "swap_config").get("swap"):
        refusals += (say("swap_config: what is swapped to the host is not read"),)
    fields.close()
    stack = "mindformers-half" if half else "mindformers"
    guess = FrameworkGuess(stack, None, later("a configuration of MindFormers"))
    launched = TrainingDevices(world, None)
    return Reading(
        later("configuration of MindFormers"),
        tokens,
        guess,
        launched,
        refusals=refusals + more_refusals,
        unread=fields.unread(),
    )


def _section(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _part(name: str, data: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """The fields at a path; raises InputError where there are none."""
    found: Any = data
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise InputError(Trouble(".".join(path), "must hold fields", found, file=name, path=path))
    return found


def _model(fields: Fields) -> Iterator[str]:
    """Width of the feed-forward, key-value heads, biases, head and precision."""
    hidden, multiple = fields.number("hidden_size"), fields.number("multiple_of", 256) or 256
    width = fields.number("intermediate_size")
    if width is None and hidden is not None:
        factor = fields.real("ffn_dim_multiplier", 0.0)
        whole = int((factor + 0.01) * 4 * hidden) if fields.has("ffn_dim_multiplier") else 4 * hidden
        width = multiple * -(-int(2 * whole / 3) // multiple)
    yield from as_tokens("ffn-hidden-size", width)
    groups, heads = fields.number("n_kv_heads"), fields.number("num_heads")
    if groups is not None and groups != heads:
        yield from ("--group-query-attention", *as_tokens("num-query-groups", groups))
    if fields.flag("qkv_has_bias"):
        yield "--add-qkv-bias"
    if not fields.flag("tie_word_embeddings"):
        yield "--untie-embeddings-and-output-weights"
    if fields.flag("use_flash_attention"):
        yield "--use-flash-attn"
    yield f"--{fields.choice('compute_dtype', _PRECISIONS, 'float16')}"


def _context(fields: Fields, cp: int) -> Iterator[str]:
    """How keys and values reach the other ranks: gathered by default, passed around a ring, or heads exchanged."""
    ring = fields.flag("use_ring_attention")
    algorithm = fields.choice("context_parallel_algo", _EXCHANGES, "colossalai_cp")
    if cp > 1:
        yield from as_tokens("cp-comm-type", "p2p" if ring else algorithm)


def _batch(fields: Fields, degrees: Mapping[str, int]) -> Iterator[str]:
    """Sequences of a microbatch and of a step: microbatches count under a pipeline alone, else accumulation does."""
    copies = fields.number("micro_batch_interleave_num", 1) or 1
    mbs = (fields.number("batch_size", 1) or 1) * copies
    rounds = fields.number("micro_batch_num", 1) or 1
    steps = fields.number("gradient_accumulation_steps", 1) or 1
    count = rounds if degrees["pipeline_stage"] > 1 else steps
    yield from as_tokens("micro-batch-size", mbs)
    yield from as_tokens("global-batch-size", mbs * degrees["data_parallel"] * count)


def _split(fields: Fields, pp: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Layers by stage, from `offset` to the even share, and why no plan says them."""
    chunks, offset = fields.number("pp_interleave_num", 1) or 1, fields.data.get("offset", 0)
    tokens = as_tokens("num-virtual-stages-per-pipeline-rank", chunks) if chunks > 1 else ()
    layers = fields.number("num_layers") or 0
    if not isinstance(offset, list) or not any(offset):
        return tokens, ()
    whole = all(isinstance(one, int) and not isinstance(one, bool) for one in offset)
    if chunks > 1 or not whole:
        return tokens, (say("offset of several chunks: chunks of different lengths"),)
    if len(offset) != pp:
        fields.trouble("offset", say("has {offset} numbers for {pp} stages", offset=len(offset), pp=pp))
        return tokens, ()
    return (*tokens, *as_tokens("num-layer-list", ",".join(str(layers // pp + one) for one in offset))), ()


def _recomputation(config: Mapping[str, Any], pp: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Whole layers, all or so many by stage; what is recomputed by operators has no words here."""
    whole, chosen = config.get("recompute", False), config.get("select_recompute", False)
    refusals: tuple[str, ...] = ()
    if chosen and (not isinstance(chosen, list) or any(chosen)):
        refusals = (
            say("recompute_config.select_recompute: operators of a layer, which no plan says as MindFormers does"),
        )
    if whole is True:
        return (*_WHOLE, "uniform", "--recompute-num-layers", "1"), refusals
    if isinstance(whole, list) and any(whole):
        if len(whole) != pp or not all(isinstance(one, int) for one in whole):
            return (), (*refusals, say("recompute_config.recompute: not one number of layers for each stage"))
        return (*_WHOLE, "block", "--custom-pipeline-recompute-layers", ",".join(map(str, whole))), refusals
    return (), refusals
