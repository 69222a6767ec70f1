"""ms-swift's `megatron sft` and `megatron pt` as the arguments of Megatron-LM that mean the same.

Read in ms-swift 3602360a5: swift/megatron/arguments (names and defaults), swift/cli/main.py (devices by NPROC_PER_NODE
and NNODES, without either one process; a file of fields in the first place); and in 3.10 (479fb102), whose checkpoints
are converted before. The model is named as on Hugging Face.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from cpsolver.doors.importing.catalogue_match import named_fields, size_arguments
from cpsolver.doors.importing.command import TrainingCommand, TrainingDevices
from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.reading import Fields, Reading, as_tokens
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.document import load_yaml
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say
from models_zoo import SPECIAL_LAYERS, Architecture, special_layers

_NPU = re.compile("ascend|npu|mindspeed", re.IGNORECASE)
_HEADS: tuple[str, ...] = ("linear_qkv",)
_SPLIT: tuple[str, ...] = ("linear_q_down_proj", "linear_q_up_proj")
_UNSPLIT: tuple[str, ...] = ("linear_q_proj",)
_LATENT = (*_UNSPLIT, *_SPLIT, "linear_kv_down_proj", "linear_kv_up_proj")
"""Of `all-linear`, what a decoder's attention has by Megatron-Core's names; queries of latent attention in one of two
ways."""
_BESIDE = ("vit_", "freeze_vit", "freeze_aligner", "aligner_lr")
_MTP = later("multi-token prediction")
_BATCH, _RANK = 16, 8  # MegatronArguments.global_batch_size and lora_rank, where they are not given


def read_swift(
    name: str, text: str, training: TrainingCommand, setting: Callable[[str], str | None]
) -> tuple[Reading, TrainingDevices]:
    """What a command says, and the devices by the variables of its environment, of which `setting` knows the values."""
    data = _given(name, training.tokens)
    fields = Fields(data, name, "swift")
    if (task := fields.text("task_type", "causal_lm")) != "causal_lm":
        told = later("is the training of {task}: only the training of a decoder is planned")
        raise OutOfScopeError(Trouble("--task_type", say(told, task=task), file=name, line=training.line))
    fields.refuse()
    model = _model(name, fields)
    adapters, refusals = _adapters(fields, model)
    tokens = [token for argument, value in size_arguments(model).items() for token in as_tokens(argument, value)]
    tokens += [*fields.mapped(), *_defaults(fields, "moe" in model), *_states(fields)]
    notes = [_packed() if fields.flag("packing") else _PADDED]
    if "model" not in data:
        notes.append(say("no --model: taken as its checkpoint's folder is named, {name}", name=_saved(fields)))
    if (encoded := _encoder(data)) and not fields.flag("language_model_only"):
        notes.append(say(_UNCOUNTED, names=" ".join(encoded)))
    notes += [_OTHER_SHARES] if adapters and (fields.number("tensor_model_parallel_size", 1) or 1) > 1 else []
    fields.close()
    reading = Reading(
        later("script of ms-swift"),
        tuple(tokens),
        _framework(text, fields),
        model=model,
        training={"lora": adapters} if adapters else {},
        refusals=tuple(refusals),
        notes=tuple(notes),
        unread=tuple(f"--{each}" for each in fields.unread()),
        hint=str(data.get("model") or _saved(fields) or ""),
    )
    return reading, _devices(setting)


_OTHER_SHARES = later(
    "adapters are counted as Megatron-Bridge splits them over tensor-parallel ranks; ms-swift has half of each whole"
)
_PADDED = later("without --packing: sequences as long as their data; they are taken as long as --max_length here")
_APART = later("several sequences in a window, each attending to itself; attention is predicted too long")
_UNCOUNTED = later(
    "{names}: the model has an encoder of images beside its decoder, which is not counted; memory is predicted too "
    "low, time too short"
)


def _packed() -> str:
    """The note on packed sequences: --packing sets padding_free, by which batches have `packed_seq_params` (ms-swift
    3602360a5, megatron/arguments/megatron_base_args.py, megatron/trainers/base.py)."""
    return say("{names} is not in the plan: {what}", names="--packing", what=say(_APART))


def _encoder(data: Mapping[str, Any]) -> list[str]:
    """Arguments for what stands beside the decoder of a model whose name does not say so (Llama 4)."""
    return [f"--{field}" for field in data if field.startswith(_BESIDE)]


def _given(name: str, words: Sequence[str]) -> dict[str, Any]:
    """The fields of a command: those of a file in the first place, then `--name value ...`."""
    found: dict[str, Any] = {}
    rest = list(words)
    if rest and rest[0].endswith((".yaml", ".yml", ".json")):
        file = next((folder / rest[0] for folder in Path(name).parents if (folder / rest[0]).is_file()), None)
        if file is None:
            told = say("is not in the script's folder or above it")
            raise InputError(Trouble(rest[0], told, file=name))
        found |= {key: value for key, value in load_yaml(file).data.items() if key != "ENV"}
        del rest[0]
    at: str | None = None
    for word in rest:
        if word.startswith("--"):
            at, equals, value = word[2:].partition("=")
            found[at] = _value(value) if equals else True
        elif at is not None:
            before = found[at]
            found[at] = _value(word) if before is True else [*(before if isinstance(before, list) else [before]), word]
    return found


def _value(word: str) -> Any:
    """A word as the value that it writes."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    return int(word) if re.fullmatch(r"-?\d{1,18}", word) else word


def _model(name: str, fields: Fields) -> dict[str, Any]:
    """The fields of the architecture that --model names; without modules of multi-token prediction unless they are
    asked for, whatever the model has."""
    named = fields.text("model") or _saved(fields)
    if named is None:
        fields.trouble("--model", "is not given: the model")
        return {}
    modules = {
        "mtp_layers": fields.number("mtp_num_layers", 0, least=0),
        "mtp_repeated": fields.flag("mtp_shared_weights"),
    }
    return {**named_fields(named, name, "--model"), **modules}


def _saved(fields: Fields) -> str | None:
    """The model that the folder of a converted checkpoint is named by (`Qwen3-30B-A3B-mcore`); its args.json has it."""
    folders = [fields.text(name) for name in ("load", "mcore_model")]
    last = next((PurePosixPath(folder).name for folder in folders if folder), "")
    found = re.fullmatch(r"(.+?)[-_]mcore(?:[-_].*)?", last, re.IGNORECASE)
    return found and found[1]


def _defaults(fields: Fields, has_experts: bool) -> Iterator[str]:
    """Arguments whose defaults are others than Megatron-LM's."""
    yield from as_tokens("micro-batch-size", fields.number("micro_batch_size", 1))
    yield from as_tokens("global-batch-size", fields.number("global_batch_size", _BATCH))
    yield from as_tokens("expert-tensor-parallel-size", fields.number("expert_tensor_parallel_size", 1))
    packed = fields.number("packing_length") if fields.flag("packing") else None
    if length := fields.number("seq_length") or packed:  # before max_length
        yield from as_tokens("seq-length", length)
    yield from ("--attention-dropout", "0", "--hidden-dropout", "0", "--attention-backend")
    yield fields.text("attention_backend", "flash") or "flash"
    granularity = fields.text("recompute_granularity", "selective")
    if granularity != "none":
        yield from as_tokens("recompute-granularity", granularity)
    if fields.flag("moe_enable_deepep"):
        yield "--moe-enable-deepep"
    if has_experts:
        yield from as_tokens("moe-token-dispatcher-type", fields.text("moe_token_dispatcher_type", "alltoall"))


def _states(fields: Fields) -> Iterator[str]:
    """Precision, and what replicas share out."""
    half = fields.flag("fp16") or fields.text("torch_dtype") in ("float16", "fp16")
    fields.has("bf16")
    yield "--fp16" if half else "--bf16"
    if fields.flag("use_megatron_fsdp"):
        yield "--use-megatron-fsdp"
        strategy = fields.text("data_parallel_sharding_strategy", "optim_grads_params")
        yield from as_tokens("data-parallel-sharding-strategy", strategy)
    if fields.flag("use_distributed_optimizer", True):
        yield "--use-distributed-optimizer"


def _adapters(fields: Fields, model: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The spec's `lora`, each expert with adapters of its own; or why no plan says what is trained."""
    tuner, rank = fields.text("tuner_type", fields.text("train_type", "full")), fields.number("lora_rank", _RANK)
    given = fields.data.get("target_modules", "all-linear") if fields.has("target_modules") else "all-linear"
    if tuner == "full" or not model:
        return {}, []
    attention = model.get("attention", {})
    every = (*(_LATENT if attention.get("kind") == "mla" else _HEADS), "linear_proj", "linear_fc1", "linear_fc2")
    every = tuple(name for name in every if name not in (_UNSPLIT if attention.get("q_lora") else _SPLIT))
    names = [str(each) for each in (given if isinstance(given, list) else [given])]
    names = [each for name in names for each in (every if name == "all-linear" else (name,))]
    if tuner != "lora" or not set(names) <= set(every):
        told = later("--tuner_type {tuner} of {names}: no plan says what is trained")
        return {}, [say(told, tuner=tuner, names=", ".join(names))]
    architecture = Architecture.model_validate({"name": "imported", **model})
    special = [SPECIAL_LAYERS[name] for name in special_layers(architecture)]
    if special := special + [_MTP] * (architecture.mtp_layers > 0):
        return {}, [say("adapters beside {special} are not counted", special=say(special[0]))]
    own = {} if architecture.moe is None else {"share_expert_adapters": False}
    return {"rank": rank, "targets": names, **own}, []


def _framework(text: str, fields: Fields) -> FrameworkGuess:
    """The stack by the chips that the text names; no profile has its launcher."""
    if _NPU.search(text):
        return FrameworkGuess("mindspeed", None, later("ms-swift's `megatron`, on Ascend"))
    stack = "megatron-core" if fields.data.get("overlap_grad_reduce") is True else "megatron-core-plain"
    return FrameworkGuess(stack, None, later("ms-swift's `megatron`"))


def _devices(setting: Callable[[str], str | None]) -> TrainingDevices:
    """By NPROC_PER_NODE and NNODES; one process without both."""
    given = {name: setting(name) for name in ("NPROC_PER_NODE", "NNODES")}
    if not any(given.values()):
        return TrainingDevices(1, 1)
    each, nodes = given["NPROC_PER_NODE"] or "", given["NNODES"] or "1"
    unclear = [name for name, value in zip(given, (each, nodes), strict=True) if not value.isdigit()]
    if unclear:
        told = later("the environment says how many train, and the script does not: {names}")
        return TrainingDevices(None, None, (say(told, names=", ".join(unclear)),))
    return TrainingDevices(int(each) * int(nodes), int(each))
