"""A source as a spec and a plan: training scripts, argument lists, Hugging Face configurations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.doors.importing.command import Devices, Training, devices, find_training
from cpsolver.doors.importing.framework import Framework, guess_framework
from cpsolver.doors.importing.known import catalogue_matches, unlikeness
from cpsolver.doors.importing.plan import Today, read_plan
from cpsolver.doors.importing.shape import model_fields
from cpsolver.doors.importing.shell import Script, read_script
from cpsolver.doors.importing.switches import training_fields
from cpsolver.inputs.document import read_text
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.resolve import resolve
from cpsolver.spec.spec import parse_spec
from models_zoo import Architecture, UnsupportedConfigError, from_hugging_face, is_hugging_face

FILL_IN = "fill-me-in"
"""Stands for a chip that was not named: a spec with it is refused until it is replaced."""


_BY_COMMAND = ("nnodes", "nproc-per-node", "nproc_per_node", "auto-parallel")
"""Arguments that say how many devices there are, or start another planner: read, or made superfluous, here."""
_TOKENIZERS = {"GPT2BPETokenizer": 50_257, "Llama2Tokenizer": 32_000}
"""Sizes of the tokenizers that Megatron's --tokenizer-type names and that are always the same ones."""


@dataclass(frozen=True)
class Options:
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


@dataclass(frozen=True)
class Imported:
    """A spec in plain values, the plan that the source runs, and what a user should know of the import.

    `placeholders` are fields of the spec to fill in, with what belongs there; `refusals` say why there is no plan;
    `unused` are arguments of the framework that no plan knows, `unknown` those that no parser here knows.
    """

    source: str
    kind: str
    model: Architecture
    spec: dict[str, Any]
    strategy: Strategy | None = None
    framework: Framework | None = None
    placeholders: dict[str, str] = field(default_factory=dict)
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def import_source(source: str, options: Options) -> Imported:
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


def _configuration(name: str, text: str, options: Options) -> Imported:
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
        raise InputError([_config_trouble(message, error, name) for message in error.reasons]) from None
    model, written = _model(fields, name, str(config.get("_name_or_path", "")), None)
    positions = model.max_positions or 4096
    training = {
        "global_batch_size": options.global_batch_size or 256,
        "sequence_length": options.sequence_length or min(positions, 4096),
    }
    cluster, placeholders = _cluster(options, Devices(None, None))
    asked = {"global_batch_size": "sequences in one optimizer step", "sequence_length": "tokens in a sequence"}
    placeholders |= {f"training.{key}": said for key, said in asked.items() if getattr(options, key) is None}
    spec = {"model": written, "cluster": cluster, "training": training, **_profiles(options, None)}
    _check(spec, name, placeholders)
    return Imported(name, "configuration", model, spec, placeholders=placeholders)


def _config_trouble(message: str, error: UnsupportedConfigError, name: str) -> Trouble:
    return Trouble(error.where, message, error.value, error.allowed, error.nearest, file=name)


def _script(name: str, text: str, options: Options) -> Imported:
    script = read_script(text, name, dict(options.given))
    training = find_training(script, name)
    arguments = Arguments(training.tokens, script.variables, name, training.line)
    arguments.given |= _replaced(options)
    told = devices(script, training, text)
    for asked in _BY_COMMAND:
        arguments.has(asked)
    cluster, placeholders = _cluster(options, told)
    world = options.num_gpus or told.total
    if world is None:
        needs = "; ".join(told.needs) or "neither the launcher nor the arguments say how many devices train"
        arguments.trouble("devices", needs, allowed="--num-gpus N (and --gpus-per-node M)")
    fields = model_fields(arguments, training.program)
    today, batch = read_plan(arguments, world, fields, options.chip or FILL_IN)
    section = training_fields(arguments, batch.tokens, batch.sequences)
    notes: list[str] = []
    model: Architecture | None = None
    written: Any = None
    try:
        model, written = _model(fields, name, f"{training.program} {text}", notes) if fields else (None, None)
    except InputError as error:
        arguments.troubles += error.troubles
    if arguments.troubles or model is None:
        raise InputError(_once(arguments.troubles))
    framework = guess_framework(arguments, training.launch, text, str(section["precision"]))
    spec = {"model": written, "cluster": cluster, "training": section, **_profiles(options, framework)}
    spec, left_out = _runnable(spec, options, name, placeholders)
    notes += left_out
    return Imported(
        name,
        "script",
        model,
        spec,
        today.strategy,
        framework,
        placeholders,
        today.refusals,
        tuple(_notes(script, training, arguments, today, [*notes, *_unread(arguments, written)])),
        arguments.unused(),
        tuple(dict.fromkeys(arguments.unknown)),
    )


def _replaced(options: Options) -> dict[str, tuple[str, ...]]:
    """Arguments that the user's options stand for."""
    told = {
        "vocab-size": options.vocab_size,
        "global-batch-size": options.global_batch_size,
        "seq-length": options.sequence_length,
    }
    return {name: (str(value),) for name, value in told.items() if value is not None}


def _once(troubles: list[Trouble]) -> list[Trouble]:
    return list({str(trouble): trouble for trouble in troubles}.values())


def _model(fields: dict[str, Any], name: str, hint: str, notes: list[str] | None) -> tuple[Architecture, Any]:
    """The architecture, and how the spec names it: a model of the catalogue that agrees in all fields, or the fields.

    A script may leave the vocabulary to its tokenizer: that of the model with the same shape is taken, with a note.
    """
    try:
        matches = catalogue_matches(fields, f"{name} {hint}")
    except ValidationError as error:
        details = [
            (".".join(map(str, detail["loc"])), detail["msg"].removeprefix("Value error, "))
            for detail in error.errors(include_url=False)
        ]
        raise InputError([Trouble(f"model.{where}", text, file=name) for where, text in details]) from None
    if "vocab" not in fields:
        vocabulary, note = _vocabulary(matches, fields.get("max_positions"), f"{name} {hint}")
        if vocabulary is None:
            raise InputError(Trouble("--vocab-size", note, allowed="--vocab-size N", file=name))
        if notes is not None:
            notes.append(note)
        fields = {**fields, "vocab": vocabulary}
        matches = [match for match in matches if match.vocab == vocabulary]
    if matches:
        return matches[0], matches[0].name
    return Architecture.model_validate({"name": "imported", **fields}), {"name": "imported", **fields}


def _vocabulary(matches: Sequence[Architecture], positions: Any, hint: str) -> tuple[int | None, str]:
    """A vocabulary for a model that has none, and where it is from: a model of the same shape, else the tokenizer.

    None where models that are equally likely differ in it, or there is none; the text then says so.
    """
    for tokenizer, size in _TOKENIZERS.items():
        if tokenizer in hint and (not matches or size in {match.vocab for match in matches}):
            return size, f"no --vocab-size: taken as {tokenizer}'s, {size:,}"
    if not matches:
        return None, "is not given: the tokenizer has it, and no model of the catalogue has this shape"
    least = unlikeness(matches[0], positions, hint)
    likely = {match.vocab: match.name for match in reversed(matches) if unlikeness(match, positions, hint) == least}
    if len(likely) > 1:
        told = ", ".join(f"{size:,} ({name})" for size, name in sorted(likely.items()))
        return None, f"is not given: the tokenizer has it, and models of this shape have {told}"
    return matches[0].vocab, f"no --vocab-size: taken as {matches[0].name}'s, {matches[0].vocab:,}"


def _cluster(options: Options, told: Devices) -> tuple[dict[str, Any], dict[str, str]]:
    """The spec's cluster, and what of it is a placeholder."""
    placeholders = {}
    total, per_node = options.num_gpus or told.total, options.gpus_per_node or told.per_node
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


def _profiles(options: Options, framework: Framework | None) -> dict[str, str]:
    """Stack and launcher: as the user says, else the framework's."""
    stack = options.stack or (framework.stack if framework else None)
    launcher = options.launcher or (framework.launcher if framework else None)
    launcher = None if launcher == "any" else launcher
    return {name: value for name, value in (("stack", stack), ("launcher", launcher)) if value is not None}


def _runnable(
    spec: dict[str, Any], options: Options, name: str, placeholders: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """The spec, checked; without a launcher that was guessed where its profile has not what the script runs."""
    try:
        _check(spec, name, placeholders)
    except InputError as error:
        if options.launcher is not None or "launcher" not in spec:
            raise
        free = {key: value for key, value in spec.items() if key != "launcher"}
        try:
            _check(free, name, placeholders)
        except InputError:
            raise error from None
        told = "; ".join(f"{trouble.where}: {trouble.message}" for trouble in error.troubles)
        return free, [f"no launcher is written: {told}, and the script runs it"]
    return spec, []


def _check(spec: dict[str, Any], name: str, placeholders: Mapping[str, str]) -> None:
    """The spec must be one that the other commands take; names are looked up but for a chip to fill in."""
    parsed = parse_spec(spec)
    if "cluster.chips" in placeholders:
        from cpsolver.profiles.launcher import load_launcher
        from cpsolver.profiles.stack import load_stack

        load_stack(parsed.stack)
        if parsed.launcher is not None:
            load_launcher(parsed.launcher)
    else:
        resolve(parsed)


def _notes(script: Script, training: Training, arguments: Arguments, today: Today, notes: list[str]) -> list[str]:
    """What a user should know: what was not followed, and what was taken for granted."""
    found = [*script.warnings, *notes, *today.notes]
    if not training.certain:
        found.append(f"line {training.line}: the training command stands in a conditional or a function")
    if training.others:
        lines = ", ".join(map(str, training.others))
        found.append(f"line {training.line} is taken; there are training commands in lines {lines} too")
    missing = list(dict.fromkeys(word for word in arguments.loose if word.startswith("$")))
    if missing:
        found.append(f"not known, and arguments may be missing: {', '.join(missing)} (--set NAME=VALUE)")
    if any(unclear.name in ("@", "*") for unclear in script.variables.unclear):
        found.append("the script's own arguments ($@) are taken as none")
    if defaults := script.variables.defaults:
        told = ", ".join(f"{name}={value}" for name, value in defaults.items() if value)
        if told:
            found.append(f"defaults are taken for what the environment or the command line may set: {told}")
    return found


def _unread(arguments: Arguments, model: Any) -> list[str]:
    """Files and modules that a script names and that are not read; `model` is what the spec says of it."""
    found = []
    if arguments.has("spec") and not isinstance(model, str):
        named = arguments.variables.shown(" ".join(arguments.given["spec"]))
        found.append(f"--spec {named} is not read: what it changes in a layer is not in the model here")
    if "deepspeed" in arguments.given and "zero-stage" not in arguments.given:
        found.append("DeepSpeed's own file is not read: its ZeRO stage is taken as 0")
    return found
