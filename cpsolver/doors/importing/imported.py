"""Imports a source as a spec and a plan: a training script, a list of arguments, a Hugging Face configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.doors.importing.catalogue_match import match_model
from cpsolver.doors.importing.command import TrainingCommand, TrainingDevices, devices, find_training
from cpsolver.doors.importing.framework import FrameworkGuess, guess_framework, overlap_notes
from cpsolver.doors.importing.model import model_fields
from cpsolver.doors.importing.plan import ImportedPlan, read_plan
from cpsolver.doors.importing.shell import Script, read_script
from cpsolver.doors.importing.training import adapter_fields, training_fields
from cpsolver.inputs.document import read_text
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.resolve import resolve
from cpsolver.spec.spec import parse_spec
from models_zoo import Architecture, UnsupportedConfigError, from_hugging_face, is_hugging_face

FILL_IN = "fill-me-in"
"""Stands for a chip that was not named: a spec with it is refused until it is replaced."""
_BY_COMMAND = ("nnodes", "nproc-per-node", "nproc_per_node", "auto-parallel")
"""Arguments that give the number of devices, which `command` reads, or start another planner, which is not needed."""


@dataclass(frozen=True)
class ImportOptions:
    """What the user adds to a source; None: as the source says."""

    chip: str | None = None
    num_gpus: int | None = None
    gpus_per_node: int | None = None
    vocab_size: int | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    stack: str | None = None
    launcher: str | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Imported:
    """A spec in plain values, the plan that the source runs, and what a user should know of the import.

    `placeholders` are fields of the spec to fill in, with what belongs there. `refusals` say why there is no plan.
    `unused` are arguments of the framework that change no plan, `unknown` those that no framework here has.
    """

    source: str
    kind: str
    model: Architecture
    spec: dict[str, Any]
    strategy: Strategy | None = None
    framework: FrameworkGuess | None = None
    placeholders: dict[str, str] = field(default_factory=dict)
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def import_source(source: str, options: ImportOptions) -> Imported:
    """Import a script, a list of arguments ("-": standard input), a config.json or a folder with one.

    Raises InputError with every problem found.
    """
    path = Path(source)
    if source != "-" and path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise InputError(Trouble("", "is a folder without a config.json", file=source))
    name, text = read_text(str(path))
    if text.lstrip().startswith("{"):
        return _configuration(name, text, options)
    return _script(name, text, options)


def _configuration(name: str, text: str, options: ImportOptions) -> Imported:
    """A Hugging Face configuration: the model, and placeholders for the rest."""
    try:
        config = json.loads(text)
    except ValueError as error:
        raise InputError(Trouble("", f"is not JSON: {error}", file=name)) from None
    if not is_hugging_face(config):
        message = "is no configuration of a model: it has no model_type"
        raise InputError(Trouble("", message, allowed="a Hugging Face config.json, or a script", file=name))
    try:
        fields = from_hugging_face(config)
    except UnsupportedConfigError as error:
        key = (error.value, error.allowed, error.nearest)
        raise InputError([Trouble(error.where, reason, *key, file=name) for reason in error.reasons]) from None
    model, written = match_model(fields, name, str(config.get("_name_or_path", "")), None)
    sequence = options.sequence_length or min(model.max_positions or 4096, 4096)
    training = {"global_batch_size": options.global_batch_size or 256, "sequence_length": sequence}
    cluster, placeholders = _cluster(options, TrainingDevices(None, None))
    meanings = {"global_batch_size": "sequences in one optimizer step", "sequence_length": "tokens in a sequence"}
    placeholders |= {f"training.{key}": meaning for key, meaning in meanings.items() if getattr(options, key) is None}
    spec = {"model": written, "cluster": cluster, "training": training, **_profiles(options, None)}
    _check(spec, name, placeholders)
    return Imported(name, "configuration", model, spec, placeholders=placeholders)


def _script(name: str, text: str, options: ImportOptions) -> Imported:
    script = read_script(text, name, dict(options.given), options.arguments)
    training = find_training(script, name)
    arguments = Arguments(training.tokens, script.variables, name, training.line)
    arguments.given |= _replaced(options)
    launched = devices(script, training, text)
    for argument in _BY_COMMAND:
        arguments.has(argument)
    cluster, placeholders = _cluster(options, launched)
    world = options.num_gpus or launched.total
    if world is None:
        needs = "; ".join(launched.needs) or "neither the launcher nor the arguments say how many devices train"
        arguments.trouble("devices", needs, allowed="--num-gpus N (and --gpus-per-node M)")
    fields = model_fields(arguments, training.program)
    imported_plan, batch = read_plan(arguments, world, fields, options.chip or FILL_IN)
    section = training_fields(arguments, batch.tokens, batch.sequences) | adapter_fields(arguments, fields)
    notes: list[str] = []
    model: Architecture | None = None
    written: Any = None
    try:
        model, written = (
            match_model(fields, name, _hint(arguments, training.program, text), notes) if fields else (None, None)
        )
    except InputError as error:
        arguments.troubles += error.troubles
    if arguments.troubles or model is None:
        raise InputError(list({str(trouble): trouble for trouble in arguments.troubles}.values()))
    framework = guess_framework(arguments, training.launch, text, str(section["precision"]))
    spec = {"model": written, "cluster": cluster, "training": section, **_profiles(options, framework)}
    spec, left_out = _accepted(spec, options, name, placeholders)
    notes += [*left_out, *_unread(arguments, written), *([] if options.stack else overlap_notes(arguments, framework))]
    notes = _notes(script, training, arguments, imported_plan, notes)
    unused, unknown = arguments.unused(), tuple(dict.fromkeys(arguments.unknown))
    plan, refusals = imported_plan.strategy, imported_plan.refusals
    done = Imported(name, "script", model, spec, plan, framework, placeholders, refusals, tuple(notes))
    return replace(done, unused=unused, unknown=unknown)


def _hint(arguments: Arguments, program: str, text: str) -> str:
    """The text by whose words a model of the catalogue is likely; a merge file is of Megatron's default tokenizer."""
    merges = arguments.has("merge-file") and not arguments.has("tokenizer-type")
    return f"{program} {text}{' GPT2BPETokenizer' if merges else ''}"


def _replaced(options: ImportOptions) -> dict[str, tuple[str, ...]]:
    """Arguments of the script that the user's options replace."""
    replacements = {
        "vocab-size": options.vocab_size,
        "global-batch-size": options.global_batch_size,
        "seq-length": options.sequence_length,
    }
    return {name: (str(value),) for name, value in replacements.items() if value is not None}


def _cluster(options: ImportOptions, launched: TrainingDevices) -> tuple[dict[str, Any], dict[str, str]]:
    """The cluster of the spec, and those of its fields that are placeholders, with what belongs there."""
    placeholders = {}
    total, per_node = options.num_gpus or launched.total, options.gpus_per_node or launched.per_node
    if total is None:
        total = per_node or 8
        placeholders["cluster.num_gpus"] = "devices that train"
    if per_node is None:
        per_node = 8 if total % 8 == 0 else total
        placeholders["cluster.gpus_per_node"] = "devices in a node"
    if options.chip is None:
        placeholders["cluster.chips"] = "a name that `apss-cp chips` lists; several with how many of each there are"
    cluster = {"num_gpus": total, "gpus_per_node": min(per_node, total), "chips": options.chip or FILL_IN}
    return cluster, placeholders


def _profiles(options: ImportOptions, framework: FrameworkGuess | None) -> dict[str, str]:
    """Stack and launcher of the spec: the user's choice, else the guessed framework's."""
    stack = options.stack or (framework.stack if framework else None)
    launcher = options.launcher or (framework.launcher if framework else None)
    launcher = None if launcher == "any" else launcher
    return {name: value for name, value in (("stack", stack), ("launcher", launcher)) if value is not None}


def _accepted(
    spec: dict[str, Any], options: ImportOptions, name: str, placeholders: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """The spec, checked, and notes. A guessed launcher is left out where its profile refuses what the script runs."""
    try:
        _check(spec, name, placeholders)
    except InputError as error:
        if options.launcher is not None or "launcher" not in spec:
            raise
        without_launcher = {key: value for key, value in spec.items() if key != "launcher"}
        try:
            _check(without_launcher, name, placeholders)
        except InputError:
            raise error from None
        reasons = "; ".join(f"{trouble.where}: {trouble.message}" for trouble in error.troubles)
        return without_launcher, [f"no launcher is written: {reasons}, and the script runs it"]
    return spec, []


def _check(spec: dict[str, Any], name: str, placeholders: Mapping[str, str]) -> None:
    """Raises InputError for a spec that other commands would refuse. A chip to be filled in is not looked up."""
    parsed = parse_spec(spec)
    if "cluster.chips" in placeholders:
        from cpsolver.profiles.framework import load_launcher
        from cpsolver.profiles.stack import load_stack

        if parsed.stack is not None:
            load_stack(parsed.stack)
        if parsed.launcher is not None:
            load_launcher(parsed.launcher)
    else:
        resolve(parsed)


def _notes(
    script: Script, training: TrainingCommand, arguments: Arguments, imported_plan: ImportedPlan, notes: list[str]
) -> list[str]:
    """What a user should know: what was not followed, and what was assumed."""
    texts = [*script.warnings, *notes, *imported_plan.notes]
    if not training.certain:
        texts.append(f"line {training.line}: the training command stands in a conditional or a function")
    if training.others:
        lines = ", ".join(map(str, training.others))
        texts.append(f"line {training.line} is taken; there are training commands in lines {lines} too")
    unknown_words = list(dict.fromkeys(word for word in arguments.loose if word.startswith("$")))
    if unknown_words:
        texts.append(f"not known, and arguments may be missing: {', '.join(unknown_words)} (--set NAME=VALUE)")
    if any(unclear.name in ("@", "*") for unclear in script.variables.unclear):
        texts.append("the script's own arguments ($@) are taken as none")
    if absent := script.variables.absent:
        names = ", ".join(absent)
        texts.append(f"taken as not set in the environment, where a condition asks: {names} (--set NAME=VALUE)")
    if defaults := script.variables.defaults:
        shown = ", ".join(f"{name}={value}" for name, value in defaults.items() if value)
        if shown:
            texts.append(f"defaults are taken for what the environment or the command line may set: {shown}")
    return texts


def _unread(arguments: Arguments, model: Any) -> list[str]:
    """Notes on files and modules that a script names and that are not read. `model` is that of the spec."""
    texts = []
    if arguments.has("spec") and not isinstance(model, str):
        module = arguments.variables.shown(" ".join(arguments.given["spec"]))
        texts.append(f"--spec {module} is not read: what it changes in a layer is not in the model here")
    if "deepspeed" in arguments.given and "zero-stage" not in arguments.given:
        texts.append("DeepSpeed's own file is not read: its ZeRO stage is taken as 0")
    return texts
