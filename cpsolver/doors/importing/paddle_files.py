"""The JSON or YAML of PaddleNLP's, PaddleFormers' and ERNIEKit's trainers as the arguments of Megatron-LM that mean the
same.

Read in PaddleNLP 9749ccd0: llm/config (names), paddlenlp/trainer/training_args.py (defaults, degrees, sharding); and in
PaddleFormers 1.2.0, whose degrees are called sizes: trainer/training_args.py, cli/hparams (other defaults), configs of
PaddleFormers 66ba2384 and ERNIE 3b228864. The model is named as on Hugging Face: one of the catalogue, or a folder with
its config.json beside the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from cpsolver.doors.importing.catalogue_match import named_fields, size_arguments
from cpsolver.doors.importing.command import TrainingDevices
from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.reading import NO_DEVICES, Fields, Reading, as_tokens, table
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.errors import Trouble
from cpsolver.inputs.language import later, say

_FRAMEWORK = FrameworkGuess("paddlenlp", None, later("arguments of PaddleNLP's or PaddleFormers' trainer"))
_STAGES = {"": 0, "stage1": 1, "stage2": 2, "stage3": 3}
_WHOLE = ("full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
_RECOMPUTED = {"full": _WHOLE, "core_attn": ("selective",)}
_NEWER = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"),
    *("sharding_parallel_size", "context_parallel_size", "sep_parallel_size", "recompute_method"),
)
"""Names since PaddleFormers 1, where other defaults hold."""
_EAGER = ("eager", "sdpa_math")
_TRAINED = ("sft", "pt", "ernie_pretrain", "dsv3_pretrain")
"""Stages that train one decoder."""
_PACKED = later("several sequences in a window, each attending to itself; attention is predicted too long")
_AS_DATA = later("sequences as long as their data; they are taken as long as the longest here")
_MASTER = later("gradients summed in fp32; with the stack paddlenlp memory and time are predicted too low")
_O1 = later("weights in fp32 without a copy in 16 bits; they are taken as of level O2 here")
_MOMENTS = later("the optimizer's moments in 16 bits; memory is predicted too high")
_PIECES = later("experts' tokens in pieces; memory is predicted too high")


def read_paddle(name: str, data: dict[str, Any]) -> Reading:
    """A file of trainer arguments with the model that it names."""
    flat = {**data.get("ernie_model_config", {}), **data} if isinstance(data.get("ernie_model_config"), dict) else data
    fields = Fields(flat, name, "paddle")
    newer = any(each in flat for each in _NEWER)
    _in_scope(fields, name)
    fields.refuse()
    tuning = fields.text("fine_tuning", "LoRA" if fields.has("stage") and newer else "full") or ""
    if tuning.lower() != "full":
        fields.trouble("fine_tuning", say("{what}: that is not planned for", what=say("adapters of PaddleNLP")), tuning)
    model = _model(name, fields, newer)
    recomputed, refusals = _recomputation(fields, newer)
    replicas = fields.number("data_parallel_degree", 1, least=-1) or fields.number("data_parallel_size", 1, least=-1)
    if (replicas or 1) > 1 and (fields.has("sharding_parallel_degree") or fields.has("sharding_parallel_size")):
        refusals += (say("data_parallel_degree beside sharding_parallel_degree: groups of replicas are not read"),)
    sizes = [token for argument, value in size_arguments(model).items() for token in as_tokens(argument, value)]
    tokens = [*sizes, *fields.mapped(), *_batch(fields), *_states(fields, newer), *recomputed]
    tokens += [*_experts(fields), *_sequences(fields, newer)]
    tokens += ["--attention-dropout", "0", "--hidden-dropout", "0", "--transformer-impl", "local"]
    launched, told = _devices(fields)
    notes = (*told, *_notes(fields, newer))
    refusals += tuple(_schedule(fields))
    fields.close()
    kind = later("arguments of PaddleNLP")
    return Reading(
        kind, tuple(tokens), _FRAMEWORK, launched, model=model, refusals=refusals, notes=notes, unread=fields.unread()
    )


def _devices(fields: Fields) -> tuple[TrainingDevices, tuple[str, ...]]:
    """The product of the degrees, where the file says over how many replicas states are shared out."""
    names = ("tensor", "pipeline", "context", "sep", "sharding")
    degrees = {}
    for name in names:
        former, today = f"{name}_parallel_degree", f"{name}_{'model_' * (name in names[:2])}parallel_size"
        degrees[name] = fields.number(former, fields.number(today, -1, least=-1), least=-1) or -1
    if degrees["sharding"] < 1:
        return NO_DEVICES, ()
    total = prod(max(1, degree) for degree in degrees.values())
    told = say("devices by the degrees: {total}; of more, each so many would be a group of replicas", total=total)
    return TrainingDevices(total, None), (told,)


def _in_scope(fields: Fields, name: str) -> None:
    """Raises OutOfScopeError for preferences, reward models and quantization."""
    stage = fields.text("stage", "pt") or "pt"
    others = {
        field: what for field, what in table("paddle")["others"].items() if fields.has(field) and fields.data[field]
    }
    if stage.lower() not in _TRAINED:
        others["stage"] = later("no training by next tokens alone")
    if others:
        field, what = next(iter(others.items()))
        told = say("is {what}: only the training of a decoder is planned", what=say(what))
        raise OutOfScopeError(Trouble(field, told, fields.data[field], file=name))


def _model(name: str, fields: Fields, newer: bool) -> dict[str, Any]:
    """The fields of the architecture that `model_name_or_path` names, with as many layers as the file gives it.

    Since PaddleFormers 1 multi-token prediction is asked for, whatever the model's config.json has (LlmMetaConfig).
    """
    named = fields.text("model_name_or_path")
    if named is None:
        fields.trouble("model_name_or_path", "is not given: the model")
        return {}
    model = named_fields(named, name, "model_name_or_path")
    layers = fields.number("num_hidden_layers", model["layers"])
    modules = fields.number("num_nextn_predict_layers", 0 if newer else model.get("mtp_layers", 0), least=0)
    return {**model, "layers": layers, "mtp_layers": modules or 0}


def _batch(fields: Fields) -> Iterator[str]:
    """Sequences of a microbatch and of a step; PaddleNLP accumulates where it has no pipeline too."""
    mbs = fields.number("per_device_train_batch_size", fields.number("batch_size", 8))
    steps = fields.number("gradient_accumulation_steps", 1)
    yield from as_tokens("micro-batch-size", mbs)
    whole = fields.number("global_train_batch_size", fields.number("global_batch_size", None, least=-1), least=-1)
    if whole is not None and whole > 0:
        yield from as_tokens("global-batch-size", whole)
    else:
        yield from as_tokens("gradient-accumulation-steps", steps)


def _switch(fields: Fields, name: str, default: bool = False) -> bool:
    """A field that is true or false, or 1 or 0."""
    if fields.has(name) and fields.data[name] in (0, 1):
        return bool(fields.data[name])
    return fields.flag(name, default)


def _states(fields: Fields, newer: bool) -> Iterator[str]:
    """Precision, what replicas share out, where the optimizer's states wait, and attention's kernel."""
    sharding = (fields.text("sharding", "stage1" if newer else "") or "").split()
    stage = next((one for one in sharding if one != "offload"), "")
    if stage not in _STAGES:
        fields.trouble("sharding", "is not planned for", stage, ", ".join(filter(None, _STAGES)))
    yield from as_tokens("zero-stage", _STAGES.get(stage, 0) or None)
    fields.has("sharding_parallel_degree")  # all replicas but where data_parallel_degree has some of them
    chunks = fields.number("virtual_pp_degree", fields.number("virtual_pipeline_model_parallel_size", 1)) or 1
    yield from as_tokens("num-virtual-stages-per-pipeline-rank", chunks if chunks > 1 else None)
    if "offload" in sharding:
        yield "--optimizer-cpu-offload"
    if _switch(fields, "tensorwise_offload_optimizer") or _switch(fields, "offload_optim"):
        yield "--swap-optimizer"
    optimizer = fields.text("optim", "adamw") or "adamw"
    if optimizer not in ("adamw", "adamw_custom", "muon"):
        fields.trouble("optim", "is not planned for", optimizer, "adamw, adamw_custom, muon")
    yield from as_tokens("optimizer", "muon" if optimizer == "muon" else "adam")
    half = [each for each in ("bf16", "fp16") if _switch(fields, each)]
    if not half and (newer or fields.has("compute_type")):
        half = [fields.choice("compute_type", {"bf16": "bf16", "fp16": "fp16"}, "bf16")]
    yield from (f"--{each}" for each in half)
    kernel = fields.text("_attn_implementation", fields.text("attn_impl", "flashmask" if newer else None))
    if _switch(fields, "use_flash_attention", kernel is not None and kernel not in _EAGER):
        yield "--use-flash-attn"
    if fields.has("sequence_parallel") and fields.data["sequence_parallel"] in (True, 1):
        yield "--sequence-parallel"


def _experts(fields: Fields) -> Iterator[str]:
    """Over the ranks of tensor parallelism too, each expert whole."""
    fields.has("use_expert_parallel")
    ranks = fields.number("expert_parallel_degree", fields.number("expert_model_parallel_size", 1, least=-1), least=-1)
    if (ranks or 1) > 1:
        yield from (*as_tokens("expert-model-parallel-size", ranks), *as_tokens("expert-tensor-parallel-size", 1))
    yield from as_tokens("moe-expert-capacity-factor", fields.data.get("moe_expert_capacity_factor"))


def _sequences(fields: Fields, newer: bool) -> Iterator[str]:
    """How long they are, and over how many ranks, which pass keys and values around or exchange heads."""
    names = ("max_seq_length", "max_seq_len", "max_length")
    length = next((fields.number(name) for name in names if fields.has(name)), 4096 if newer else None)
    yield from as_tokens("seq-length", length)
    ring = fields.number("context_parallel_degree", fields.number("context_parallel_size", 1, least=-1), least=-1) or 1
    heads = fields.number("sep_parallel_degree", fields.number("sep_parallel_size", 1, least=-1), least=-1) or 1
    if ring > 1 and heads > 1:
        fields.trouble("sep_parallel_degree", "is not planned for beside a ring", heads)
    elif max(ring, heads) > 1:
        yield from as_tokens("context-parallel-size", max(ring, heads))
        yield from as_tokens("cp-comm-type", "a2a" if heads > 1 else "p2p")


def _recomputation(fields: Fields, newer: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Whole layers or attention's core; what else PaddleNLP recomputes has no words here.

    PaddleFormers 1 asks for it by the granularity alone, and before that by a switch.
    """
    granularity = fields.text("recompute_granularity", None if newer else "full")
    method, number = fields.text("recompute_method", "uniform"), fields.number("recompute_num_layers", 1)
    asked = _switch(fields, "recompute", newer and granularity is not None)
    fields.has("recompute_modules")
    if not asked:
        return (), ()
    parts = [
        name for name in ("refined_recompute", "no_recompute_layers", "recompute_modules") if fields.data.get(name)
    ]
    if parts or (granularity or "full") not in _RECOMPUTED:
        told = say("recompute_granularity {granularity}: no plan says what is recomputed", granularity=granularity)
        return (), (told if not parts else say("{name}: no plan says what is recomputed", name=parts[0]),)
    if granularity == "core_attn":
        return ("--recompute-granularity", *_RECOMPUTED["core_attn"]), ()
    layers = as_tokens("recompute-num-layers", number)
    return ("--recompute-granularity", "full", "--recompute-method", str(method), *layers), ()


def _schedule(fields: Fields) -> Iterator[str]:
    """Why no plan has the pipeline's order, or where experts stand."""
    settings = fields.text("pipeline_parallel_config", "") or ""
    if _switch(fields, "use_dualpipev") or "use_dualpipev" in settings.replace(",", " ").split():
        yield say("use_dualpipev: DualPipeV (PaddlePaddle), which no plan here has")
    if fields.has("moe_group") and fields.data["moe_group"] not in ("ep", "dummy"):
        yield say("moe_group {group}: no plan has the experts there", group=fields.data["moe_group"])


def _notes(fields: Fields, newer: bool) -> Iterator[str]:
    """What a plan does not hold, and which way a prediction errs."""
    tuned = (fields.text("stage", "") or "").lower() == "sft" or fields.has("dataset_name_or_path")
    packed = _switch(fields, "packing") or _switch(fields, "zero_padding")
    given = {
        "packing" if fields.has("packing") else "zero_padding": _PACKED if packed and tuned else None,
        "stage SFT": _AS_DATA if tuned and not packed else None,
        "amp_master_grad": _MASTER if _switch(fields, "amp_master_grad", newer) else None,
        "fp16_opt_level": _O1 if fields.text("fp16_opt_level", "O1") != "O2" else None,
        "use_lowprecision_moment": _MOMENTS if _switch(fields, "use_lowprecision_moment") else None,
    }
    for name in ("moe_subbatch_token_num", "moe_subbatch_token_num_before_dispatch"):
        given[name] = _PIECES if (fields.number(name, 0, least=0) or 0) > 0 else None
    for name, told in given.items():
        if told is not None:
            yield say("{name}: {told}", name=name, told=say(told))
