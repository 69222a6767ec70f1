"""torchtitan's TOML (releases 0.1 and 0.2) as the arguments of Megatron-LM that mean the same.

Read in torchtitan 038d5fd1 (models/llama3/train_configs) and 0.2.2: config/job_config.py (names, defaults), train.py
(sequences of a step), distributed/pipeline_parallel.py (microbatches, chunks). Models are those that the export knows.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from cpsolver.doors.export.torchtitan import KNOWN
from cpsolver.doors.importing.catalogue_match import size_arguments
from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.doors.importing.reading import Fields, Reading, as_tokens
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say
from models_zoo import load_architecture
from models_zoo.schema import DESCRIPTIVE_FIELDS

_FRAMEWORK = FrameworkGuess("torchtitan-2025", "torchtitan", later("a configuration of torchtitan"))
_FLAVORS = {(model, flavor.lower()): name for name, (model, _, flavor) in KNOWN.items()}
_SECTIONS = ("model", "training", "parallelism", "activation_checkpoint", "optimizer", "float8")
_POLICIES = ("default", "always", "never")
_OPTIMIZERS = {"AdamW": "adam", "Adam": "adam"}


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
    for section in _SECTIONS:
        part = data.get(section, {})
        if not isinstance(part, dict):
            raise InputError(Trouble(section, "must hold fields", part, file=name, path=(section,)))
        flat |= {f"{section}.{key}": value for key, value in part.items()}
    fields = Fields(flat, name, "torchtitan")
    fields.refuse()
    model, refusals = _model(fields), []
    tokens = [token for argument, value in size_arguments(model).items() for token in as_tokens(argument, value)]
    tokens += [*fields.mapped(), *_batch(fields), *_shards(fields), "--bf16", "--use-flash-attn"]
    tokens += ["--attention-dropout", "0", "--hidden-dropout", "0"]
    tokens += ["--sequence-parallel"] if (fields.number("parallelism.tensor_parallel_degree", 1) or 1) > 1 else []
    fields.choice("optimizer.name", _OPTIMIZERS, "AdamW")
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
    fields.close()
    kind = later("configuration of torchtitan")
    return Reading(kind, tuple(tokens), _FRAMEWORK, model=model, refusals=tuple(refusals), unread=fields.unread())


def _model(fields: Fields) -> dict[str, Any]:
    family, flavor = fields.text("model.name", "") or "", fields.text("model.flavor", "") or ""
    name = _FLAVORS.get((family, flavor.lower()))
    if name is None:
        known = ", ".join(f"{model} {size}" for model, _, size in KNOWN.values())
        fields.trouble("model.flavor", "is not one of the models that are known here", f"{family} {flavor}", known)
        return {}
    excluded = set(DESCRIPTIVE_FIELDS) - {"max_positions"} | {"name"}
    return load_architecture(name).model_dump(exclude_none=True, exclude=excluded)


def _batch(fields: Fields) -> Iterator[str]:
    """Sequences of a microbatch and of a step: under a pipeline a replica's batch is all its microbatches."""
    local = fields.number("training.local_batch_size", 8) or 8
    whole = fields.number("training.global_batch_size", -1, least=-1) or -1
    mbs = local
    if (fields.number("parallelism.pipeline_parallel_degree", 1) or 1) > 1:
        mbs = fields.number("parallelism.pipeline_parallel_microbatch_size", 1) or 1
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


def _schedule(fields: Fields) -> Iterator[str]:
    """Why no plan says the pipeline's schedule or its parts."""
    schedule = fields.text("parallelism.pipeline_parallel_schedule", "1F1B")
    piped = (fields.number("parallelism.pipeline_parallel_degree", 1) or 1) > 1
    if piped and schedule != "1F1B":
        yield say("parallelism.pipeline_parallel_schedule {schedule}: its parts are not read", schedule=schedule)
    parts = ("module_fqns_per_model_part", "pipeline_parallel_split_points", "pipeline_parallel_layers_per_stage")
    for name in parts:
        if fields.has(f"parallelism.{name}") and piped:
            yield say("parallelism.{name}: layers by stage are not read", name=name)
