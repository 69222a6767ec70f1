"""MindFormers' YAML of a LLaMA-like model, or for its core, as the arguments of Megatron-LM that mean the same.

Read in mindspore-lab/mindformers 009029eb: configs/llama2, mindformers/models/llama (the feed-forward's width),
mindformers/trainer/base_trainer.py (sequences of a step), docs on `offset` and on recomputation by stage. Of models
with LLaMA's configuration and layers of their own: Tele-AI/TeleChat2 cd9287f (research/baichuan, research/baichuan2).
What is shared out, sliced or swapped: mindspore-ai/mindformers 167a50de, mindformers/trainer/training_args.py,
core/optim/adamw.py, modules/transformer/transformer.py (recompute_slice_activation).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cpsolver.doors.importing.catalogue_match import size_arguments
from cpsolver.doors.importing.command import TrainingDevices
from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.mindformers_models import core_model, is_core
from cpsolver.doors.importing.reading import Fields, Reading, as_tokens
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say

_TYPES = {"LlamaConfig": "LLaMA's layers"}
_EXCHANGES = {"colossalai_cp": "allgather", "ulysses_cp": "a2a"}
_HALF = ("bfloat16", "float16")
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}
_WHOLE = ("--recompute-granularity", "full", "--recompute-method")
_OPTIMIZERS = {"muon": "muon", "adam": "adam"}
"""By the parts of their names; PmaAdamW averages weights besides."""
_UNEVEN = later("offset of several chunks: chunks of different lengths")
_SCHEDULERS = ("1f1b", "seqpipe", "seqvpp")
"""Those that run 1F1B, interleaved or not, where sequences are whole."""
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
    config = _part(name, data, "model", "model_config")
    parallel = _part(name, data, "parallel_config")
    core = is_core(data, config)
    more = {key: value for part in ("runner_config", "parallel") for key, value in _section(data, part).items()}
    own = {"micro_batch_interleave_num": data.get("micro_batch_interleave_num"),
           "batch_size": _section(data, "runner_config").get("batch_size"),
           "arch": _section(_section(data, "model"), "arch").get("type")}  # fmt: skip
    fields = Fields({**more, **parallel, **config, **own}, name, "mindformers_core" if core else "mindformers")
    fields.refuse()
    model, tokens = _core(fields, data) if core else ({}, _llama(fields, data))
    half = (fields.text("params_dtype", "float32") if core else config.get("param_init_type", "float16")) in _HALF
    degrees = {key: fields.number(key, 1) or 1 for key in ("data_parallel", "model_parallel", "pipeline_stage")}
    cp = fields.number("context_parallel", 1) or 1
    world = degrees["data_parallel"] * degrees["model_parallel"] * degrees["pipeline_stage"] * cp
    layers = model.get("layers", 0) if core else fields.number("num_layers") or 0
    splits, refusals = _split(fields, degrees["pipeline_stage"], layers)
    recomputed, more_refusals = _recomputation(_section(data, "recompute_config"), degrees["pipeline_stage"])
    tokens = (
        *tokens,
        *fields.mapped(),
        *_context(fields, cp),
        *_batch(fields, degrees),
        *splits,
        *recomputed,
        *_sliced(fields, _section(data, "recompute_config"), degrees["model_parallel"]),
        *_optimizer(fields, _section(data, "optimizer"), degrees["data_parallel"]),
    )
    fields.close()
    stack = "mindformers-half" if half else "mindformers"
    return Reading(
        later("configuration of MindFormers"),
        tokens,
        FrameworkGuess(stack, None, later("a configuration of MindFormers")),
        TrainingDevices(world, None),
        model=model,
        refusals=(*refusals, *more_refusals, *_no_words(fields, data)),
        notes=() if core else tuple(_whole_ends(fields, degrees)),
        unread=fields.unread(),
    )


def _llama(fields: Fields, data: Mapping[str, Any]) -> tuple[str, ...]:
    """A model with LLaMA's layers, by its own names."""
    if (experts := _section(data, "moe_config").get("expert_num", 1)) != 1:
        fields.trouble("moe_config.expert_num", "experts of MindFormers are not read", experts, "1")
    fields.choice("type", _TYPES, "LlamaConfig")
    positions = fields.choice("arch", _POSITIONS, "LlamaForCausalLM")
    return (*_FIXED, *as_tokens("position-embedding-type", positions), *_model(fields))


def _whole_ends(fields: Fields, degrees: Mapping[str, int]) -> Iterator[str]:
    """The note on `vocab_emb_dp`, true by default, but false in a pipeline.

    mindformers 167a50de: models/llama/llama.py, core/parallel_config.py, modules/transformer/transformer.py.
    """
    if fields.flag("vocab_emb_dp", True) and degrees["model_parallel"] > 1 and degrees["pipeline_stage"] == 1:
        yield say(
            "vocab_emb_dp: the embedding and the head are whole on each rank of tensor parallelism; memory is "
            "predicted too low, time too short"
        )


def _core(fields: Fields, data: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The architecture of a model of the core, and what its arguments say of sizes, sequences and precision."""
    model = core_model(fields, data)
    tokens = [token for argument, value in size_arguments(model).items() for token in as_tokens(argument, value)]
    length = fields.number("seq_length") or _found(_section(data, "train_dataset"), "seq_length") or 4096
    tokens += [*as_tokens("seq-length", length), "--attention-dropout", "0", "--hidden-dropout", "0"]
    tokens += ["--use-flash-attn"] if fields.flag("use_flash_attention", True) else []
    fields.has("untie_embeddings_and_output_weights")
    tokens += as_tokens("moe-expert-capacity-factor", fields.data.get("moe_expert_capacity_factor"))
    tokens.append(f"--{fields.choice('compute_dtype', _PRECISIONS, 'bfloat16')}")
    if "moe" in model:  # training_graph/transformer/moe/ffn.py: over all ranks of tp and dp, each expert whole
        tokens += as_tokens("expert-tensor-parallel-size", fields.number("expert_model_parallel", 1))
    return model, (*tokens, "--transformer-impl", "local")


def _found(section: Mapping[str, Any], name: str) -> int | None:
    """The first whole number of a name in settings within settings."""
    for key, value in section.items():
        if key == name and isinstance(value, int):
            return value
        parts = value if isinstance(value, list) else [value]
        for part in parts:
            if isinstance(part, dict) and (found := _found(part, name)) is not None:
                return found
    return None


def _sliced(fields: Fields, config: Mapping[str, Any], tp: int) -> tuple[str, ...]:
    """What is kept for recomputation is shared out over the ranks of tp, as it is beside sequence parallelism."""
    asked = config.get("recompute_slice_activation") is True and config.get("recompute") not in (False, None)
    return ("--distribute-saved-activations",) * (asked and tp > 1 and not fields.data.get("use_seq_parallel"))


def _optimizer(fields: Fields, optimizer: Mapping[str, Any], replicas: int) -> Iterator[str]:
    """Which optimizer, whether its states wait on the host, and over how many replicas they are shared out."""
    kind = str(optimizer.get("type", "AdamW")).lower()
    known = next((name for part, name in _OPTIMIZERS.items() if part in kind), None)
    if known is None or "pma" in kind:
        fields.trouble("optimizer.type", "is not planned for", optimizer.get("type"), ", ".join(_OPTIMIZERS))
    yield from as_tokens("optimizer", known)
    if optimizer.get("swap") is True:
        yield "--swap-optimizer"
    sizes = fields.section("parallel_optimizer_config")
    shards = fields.data.get("optimizer_weight_shard_size", sizes.get("optimizer_weight_shard_size", -1))
    grouped = isinstance(shards, int) and 0 < shards < replicas and not replicas % shards
    if grouped and fields.data.get("enable_parallel_optimizer"):
        yield from as_tokens("num-distributed-optimizer-instances", replicas // shards)


def _no_words(fields: Fields, data: Mapping[str, Any]) -> Iterator[str]:
    """Why no plan says what runs."""
    if fields.data.get("pet_config"):
        yield say("pet_config: adapters of MindFormers are not read")
    if (fields.number("seq_split_num", 1) or 1) > 1:
        yield say("seq_split_num: sequences in pieces along the pipeline, which no plan says")
    if _section(data, "swap_config").get("swap"):
        yield say("swap_config: what is swapped to the host is not read")
    scheduler = fields.section("pipeline_config").get("pipeline_scheduler", "1f1b")
    if scheduler not in _SCHEDULERS and (fields.number("pipeline_stage", 1) or 1) > 1:
        yield say("pipeline_config.pipeline_scheduler {scheduler}: no plan has its order", scheduler=scheduler)


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
    """Sequences of a microbatch and of a step: microbatches count under a pipeline alone, else accumulation does.

    `batch_size` is the runner's (base_trainer.py); the model's own of that name is for predictions.
    """
    copies = fields.number("micro_batch_interleave_num", 1) or 1
    mbs = (fields.number("batch_size", 1) or 1) * copies
    rounds = fields.number("micro_batch_num", 1) or 1
    steps = fields.number("gradient_accumulation_steps", 1) or 1
    count = rounds if degrees["pipeline_stage"] > 1 else steps
    yield from as_tokens("micro-batch-size", mbs)
    yield from as_tokens("global-batch-size", mbs * degrees["data_parallel"] * count)


def _split(fields: Fields, pp: int, layers: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Layers by stage, from `offset` to the even share, and why no plan says them."""
    chunks, offset = fields.number("pp_interleave_num", 1) or 1, fields.data.get("offset", 0)
    tokens = as_tokens("num-virtual-stages-per-pipeline-rank", chunks) if chunks > 1 else ()
    if not isinstance(offset, list) or not any(offset):
        return tokens, ()
    whole = all(isinstance(one, int) and not isinstance(one, bool) for one in offset)
    if chunks > 1 or not whole:
        return _chunks(offset, pp, layers // (pp * chunks)), (say(_UNEVEN),)
    if len(offset) != pp:
        fields.trouble("offset", say("has {offset} numbers for {pp} stages", offset=len(offset), pp=pp))
        return tokens, ()
    return (*tokens, *as_tokens("num-layer-list", ",".join(str(layers // pp + one) for one in offset))), ()


def _by_chunk(numbers: Any, pp: int) -> bool:
    """Whether a list has a whole number for each stage of each chunk."""
    chunks = numbers if isinstance(numbers, list) else []
    whole = all(isinstance(chunk, list) and len(chunk) == pp for chunk in chunks)
    return bool(chunks) and whole and all(type(one) is int for chunk in chunks for one in chunk)


def _chunks(offset: list[Any], pp: int, each: int) -> tuple[str, ...]:
    """Layers by stage, of all its chunks together: the sequences of a step are right, where no plan is."""
    if not _by_chunk(offset, pp):
        return ()
    stages = [sum(each + one for one in of_stage) for of_stage in zip(*offset, strict=True)]
    return as_tokens("num-layer-list", ",".join(map(str, stages)))


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
    if _by_chunk(whole, pp):
        number = whole[0][0]
        if all(one == number for chunk in whole for one in chunk):
            return (*_WHOLE, "block", *as_tokens("recompute-num-layers", number)) if number else (), refusals
        return (), (*refusals, say("recompute_config.recompute: unequal numbers of layers in a stage's chunks"))
    if isinstance(whole, list) and any(whole):
        if len(whole) != pp or not all(isinstance(one, int) for one in whole):
            return (), (*refusals, say("recompute_config.recompute: not one number of layers for each stage"))
        return (*_WHOLE, "block", "--custom-pipeline-recompute-layers", ",".join(map(str, whole))), refusals
    return (), refusals
