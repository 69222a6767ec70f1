"""torchtitan's TOML (releases 0.1 and 0.2) as the arguments of Megatron-LM that mean the same.

Read in torchtitan 038d5fd1 (models/llama3/train_configs) and 0.2.2: config/job_config.py (names, defaults), train.py
(sequences of a step), distributed/pipeline_parallel.py (microbatches, chunks, layers by stage). Names before 0.1, as in
TrustLLMeu/torchtitan 82f7387: config_manager.py, parallelisms/pipelining_utils.py. Models are those of the export.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from math import prod
from typing import Any

from cpsolver.doors.export.torchtitan import KNOWN
from cpsolver.doors.importing.catalogue_match import said_fields, size_arguments
from cpsolver.doors.importing.command import TrainingDevices
from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.reading import NO_DEVICES, Fields, Reading, as_tokens, table
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say
from models_zoo import load_architecture

_FRAMEWORK = FrameworkGuess("torchtitan-2025", "torchtitan", later("a configuration of torchtitan"))
_FLAVORS = {(model, flavor.lower()): name for name, (model, _, flavor) in KNOWN.items()}
_SECTIONS = ("model", "training", "parallelism", "activation_checkpoint", "optimizer", "float8", "experimental")
"""Those that fields are read of."""
_MICROBATCHES, _EACH = "experimental.pipeline_parallel_microbatches", "parallelism.pipeline_parallel_microbatch_size"
_STAGES = "parallelism.pipeline_parallel"
_PARTS = ("module_fqns_per_model_part", "pipeline_parallel_split_points", "pipeline_parallel_layers_per_stage")
_SHARED_OUT = later("layers are shared out over the stages as torchtitan 0.2 does; releases before share them evenly")
_POLICIES = ("default", "always", "never")
_USUAL = {
    "optimizer.name": ("AdamW", ("AdamW", "Adam")),
    "model.norm_type": ("rmsnorm", ("rmsnorm", "fused_rmsnorm", "compiled_rmsnorm")),
    "training.dtype": ("float32", ("float32",)),
    "training.mixed_precision_param": ("bfloat16", ("bfloat16",)),
    "training.mixed_precision_reduce": ("float32", ("float32",)),
}
"""Fields with the default and the values that the stack is of: another norm or precision is no plan's."""


def toml(text: str, file: str) -> dict[str, Any]:
    """The file's sections; raises InputError with the place of what is no TOML."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        line = re.search(r"at line (\d+)", str(error))
        raise InputError(
            Trouble("", say("is not TOML: {error}", error=error), file=file, line=int(line[1]) if line else None)
        ) from None


def read_torchtitan(name: str, data: dict[str, Any]) -> Reading:
    """A job's file; what it converts to 8 bits, or sends to the host, is refused."""
    flat: dict[str, Any] = {}
    for section, part in data.items():
        if isinstance(part, dict):
            flat |= {f"{section}.{key}": value for key, value in part.items()}
        elif section in _SECTIONS:
            raise InputError(Trouble(section, "must hold fields", part, file=name, path=(section,)))
        else:
            flat[section] = part
    flat, older = _newer(flat)
    fields = Fields(flat, name, "torchtitan")
    fields.refuse()
    model, refusals = _model(fields), []
    layers, notes = _layers(fields, model.get("layers", 0))
    tokens = [token for argument, value in size_arguments(model).items() for token in as_tokens(argument, value)]
    tokens += [*fields.mapped(), *_batch(fields, older), *_shards(fields), *layers, "--bf16", "--use-flash-attn"]
    tokens += ["--attention-dropout", "0", "--hidden-dropout", "0"]
    split = (fields.number("parallelism.tensor_parallel_degree", 1) or 1) > 1
    tokens += ["--sequence-parallel"] if fields.flag("parallelism.enable_sequence_parallel", True) and split else []
    for field, (default, choices) in _USUAL.items():
        fields.choice(field, dict.fromkeys(choices), default)
    recomputed = fields.text("activation_checkpoint.mode", "selective")
    option = fields.data.get("activation_checkpoint.selective_ac_option", "2")
    if recomputed == "full":
        tokens += ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    elif recomputed == "selective" and option == "op":
        tokens += ["--recompute-granularity", "selective", "--recompute-modules", "operators"]
    elif recomputed != "none":
        refusals.append(
            say(
                "activation_checkpoint: {recomputed} {option}: no plan says what is recomputed",
                recomputed=recomputed,
                option=option,
            )
        )
    refusals += _schedule(fields)
    launched = _devices(fields)
    fields.close()
    kind = later("configuration of torchtitan")
    return Reading(
        kind,
        tuple(tokens),
        _FRAMEWORK,
        launched,
        model=model,
        refusals=tuple(refusals),
        notes=notes,
        unread=fields.unread(),
    )


def _newer(flat: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The fields under their names of release 0.1, and whether one had the name that it had before."""
    names = {name: new for name, new in table("torchtitan")["older"].items() if name in flat}
    found = {name: value for name, value in flat.items() if name not in names}
    return {**{new: flat[name] for name, new in names.items()}, **found}, bool(names)


def _model(fields: Fields) -> dict[str, Any]:
    family, flavor = fields.text("model.name", "") or "", fields.text("model.flavor", "") or ""
    name = _FLAVORS.get((family, flavor.lower()))
    if name is None:
        known = ", ".join(f"{model} {size}" for model, _, size in KNOWN.values())
        fields.trouble("model.flavor", "is not one of the models that are known here", f"{family} {flavor}", known)
        return {}
    return {
        **said_fields(load_architecture(name)),
        "mtp_layers": 0,
    }  # 0.2.2, models/deepseek_v3: it has no multi-token prediction


def _batch(fields: Fields, older: bool) -> Iterator[str]:
    """Sequences of a microbatch and of a step: under a pipeline a replica's batch is all its microbatches, of which the
    configuration says how large they are, and before release 0.1 how many."""
    local = fields.number("training.local_batch_size", 8) or 8
    whole = fields.number("training.global_batch_size", -1, least=-1) or -1
    mbs, stages = local, fields.number("parallelism.pipeline_parallel_degree", 1) or 1
    count = fields.number(_MICROBATCHES, stages) or stages
    if stages > 1 and (older or fields.has(_MICROBATCHES)):
        mbs = max(1, local // count)
        if local % count:
            fields.trouble(_MICROBATCHES, say("{number} does not divide the batch", number=count), local)
    elif stages > 1:
        mbs = fields.number(_EACH, 1) or 1
    yield from as_tokens("micro-batch-size", mbs)
    if whole > 0:
        yield from as_tokens("global-batch-size", whole)
    else:
        yield from as_tokens("gradient-accumulation-steps", max(1, local // mbs))


def _shards(fields: Fields) -> Iterator[str]:
    """FSDP2 over the replicas, or over those of a group; whether weights stay gathered after the forward."""
    replicas = fields.number("parallelism.data_parallel_replicate_degree", 1) or 1
    shards = fields.number("parallelism.data_parallel_shard_degree", -1, least=-1)
    policy = fields.text("parallelism.fsdp_reshard_after_forward", "default")
    if policy not in _POLICIES:
        name = "parallelism.fsdp_reshard_after_forward"
        fields.trouble(name, "is not one of the choices", policy, ", ".join(_POLICIES))
    if shards == 1:
        return
    yield "--use-torch-fsdp2"
    piped = (fields.number("parallelism.pipeline_parallel_degree", 1) or 1) > 1
    if policy == "never" or (policy == "default" and piped):
        yield "--torch-fsdp2-no-reshard-after-forward"
    yield from as_tokens("num-distributed-optimizer-instances", replicas if replicas > 1 else None)


def _devices(fields: Fields) -> TrainingDevices:
    """The product of the degrees, where none is left to the number of devices (experts are spread over replicas)."""
    shards = fields.number("parallelism.data_parallel_shard_degree", -1, least=-1) or -1
    others = ("data_parallel_replicate", "tensor_parallel", "pipeline_parallel", "context_parallel")
    degrees = [fields.number(f"parallelism.{name}_degree", 1) or 1 for name in others]
    return TrainingDevices(shards * prod(degrees), None) if shards > 0 else NO_DEVICES


def _layers(fields: Fields, layers: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Layers of every stage as 0.2 shares them out, the embedding and the head each counted as so many layers."""
    stages = fields.number("parallelism.pipeline_parallel_degree", 1) or 1
    ends = [fields.number(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1, 0) for end in ("first", "last")]
    counted = [1 if end is None else end for end in ends]
    if stages < 2 or not layers or any(fields.has(f"parallelism.{name}") for name in _PARTS):
        return (), ()
    each, more = divmod(layers + sum(counted), stages)
    if each < max(1, *counted):
        fields.trouble(f"{_STAGES}_degree", say("more stages than its layers allow: {layers}", layers=layers), stages)
        return (), ()
    shares = [each + (stage < more) for stage in range(stages)]
    shares[0], shares[-1] = shares[0] - counted[0], shares[-1] - counted[1]
    return as_tokens("num-layer-list", ",".join(map(str, shares))), (_SHARED_OUT,)


def _schedule(fields: Fields) -> Iterator[str]:
    """Why no plan says the pipeline's schedule or its parts."""
    schedule = fields.text("parallelism.pipeline_parallel_schedule", "1F1B")
    piped = (fields.number("parallelism.pipeline_parallel_degree", 1) or 1) > 1
    if piped and schedule != "1F1B":
        yield say("parallelism.pipeline_parallel_schedule {schedule}: its parts are not read", schedule=schedule)
    for name in _PARTS:
        if fields.has(f"parallelism.{name}") and piped:
            yield say("parallelism.{name}: layers by stage are not read", name=name)
