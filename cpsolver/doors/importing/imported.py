"""Imports a source as a spec and a plan: a training script, a list of arguments, a Hugging Face configuration."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cpsolver.doors.importing.accepted import accepted
from cpsolver.doors.importing.arguments import Arguments, by_name
from cpsolver.doors.importing.bridge_recipes import is_recipe, read_recipe
from cpsolver.doors.importing.catalogue_match import checkpoint_fields, match_model
from cpsolver.doors.importing.chips import asked_of_slurm, chips_of, listed_beside
from cpsolver.doors.importing.command import TrainingCommand, TrainingDevices, devices, find_training
from cpsolver.doors.importing.deepspeed_file import add_deepspeed, listed_hosts
from cpsolver.doors.importing.formats import recognised
from cpsolver.doors.importing.framework import FrameworkGuess, guess_framework, overlap_notes
from cpsolver.doors.importing.kernels import kernel_fields
from cpsolver.doors.importing.megatron_files import model_tokens
from cpsolver.doors.importing.model import model_fields
from cpsolver.doors.importing.nemo_command import nemo_file
from cpsolver.doors.importing.nemo_files import read_nemo
from cpsolver.doors.importing.nemo_recipes import is_nemo_recipe, read_nemo_recipe
from cpsolver.doors.importing.plan import ImportedPlan, read_plan
from cpsolver.doors.importing.primus_files import GIVEN
from cpsolver.doors.importing.reading import Reading
from cpsolver.doors.importing.recomputation import recomputed_functions, swapped_results, zero_memory
from cpsolver.doors.importing.scope import OutOfScopeError, out_of_scope
from cpsolver.doors.importing.shell import Script, read_script
from cpsolver.doors.importing.started import started_script
from cpsolver.doors.importing.swift_command import read_swift
from cpsolver.doors.importing.torchtitan_registry import is_registry, read_registry
from cpsolver.doors.importing.training import (
    adapter_fields,
    capacity_notes,
    gathered_tokens,
    training_fields,
)
from cpsolver.doors.importing.variables import MARKS, ShellVariables
from cpsolver.inputs.document import load_yaml, read_source
from cpsolver.inputs.english_sentences import configuration_reason
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import Strategy
from models_zoo import Architecture, UnsupportedConfigError, from_hugging_face, is_hugging_face

SCRIPT = later("script")
"""A kind of source; others are configurations, of a framework or of a model."""
FILL_IN = "fill-me-in"
"""Stands for a chip that was not named: a spec with it is refused until it is replaced."""
_BY_COMMAND = ("model-name", "config-file", "nnodes", "nproc-per-node", "nproc_per_node", "auto-parallel")
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

    `kind`, and what belongs in the fields of the spec to fill in, `placeholders`, are messages, in English. `refusals`
    say why there is no plan. `unused` are arguments of the framework that change no plan, `unknown` those that no
    framework here has.
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
    if source != "-" and options.chip is None:
        options = replace(options, chip=listed_beside(path))
    name, text = read_source(str(path))
    try:
        return _read(name, text, options)
    except ValueError as error:
        if _TOO_LONG not in str(error):
            raise
        most = say("{most:,} digits at most", most=sys.get_int_max_str_digits())
        raise InputError(Trouble("", "has a number too long to be read", allowed=most, file=name)) from None


_TOO_LONG = "for integer string conversion"
"""What Python says of a number of thousands of digits, wherever a text is made one."""
_VARIABLE = re.compile(r"\$\{(\w+)(:[^{}]*)?\}")
"""A variable of the environment in a configuration file, with its default."""


def _read(name: str, text: str, options: ImportOptions) -> Imported:
    if is_recipe(text):
        return _recipe(name, text, options)
    if is_nemo_recipe(text):
        return _file(name, text, options, read_nemo_recipe(name, text, options.arguments or ()))
    if is_registry(text):
        return _file(name, text, options, read_registry(name, text, options.arguments or ()))
    if (reader := recognised(text, options.arguments or (), options.given)) is not None:
        return _file(name, text, options, reader(name, _with_given(text, options.given)))
    if text.lstrip().startswith("{"):
        return _configuration(name, text, options)
    return _script(name, text, options)


def _with_given(text: str, given: Mapping[str, str]) -> str:
    """A file with the variables that the user gives: in the place of ${NAME}, and as the default in ${NAME:default}."""

    def replaced(found: re.Match[str]) -> str:
        if found[1] not in given:
            return found[0]
        return given[found[1]] if found[2] is None else f"${{{GIVEN}{found[1]}:{given[found[1]]}}}"

    return _VARIABLE.sub(replaced, text) if given else text


def _configuration(name: str, text: str, options: ImportOptions) -> Imported:
    """A Hugging Face configuration: the model, and placeholders for the rest."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(Trouble("", say("is not JSON: {error}", error=error), file=name)) from None
    if not is_hugging_face(config):
        message = say("is no configuration of a model: it has no model_type")
        raise InputError(Trouble("", message, allowed=say("a Hugging Face config.json, or a script"), file=name))
    try:
        fields = from_hugging_face(config)
    except UnsupportedConfigError as error:
        key = (error.value, error.allowed, error.nearest)
        raise InputError(
            [Trouble(error.where, configuration_reason(reason), *key, file=name) for reason in error.reasons]
        ) from None
    model, written = match_model(fields, name, str(config.get("_name_or_path", "")), None)
    sequence = options.sequence_length or min(model.max_positions or 4096, 4096)
    training = {"global_batch_size": options.global_batch_size or 256, "sequence_length": sequence}
    cluster, placeholders = _cluster(options, TrainingDevices(None, None))
    meanings = {
        "global_batch_size": later("sequences in one optimizer step"),
        "sequence_length": later("tokens in a sequence"),
    }
    placeholders |= {f"training.{key}": meaning for key, meaning in meanings.items() if getattr(options, key) is None}
    spec = {"model": written, "cluster": cluster, "training": training, **_profiles(options, None)}
    spec, _ = accepted(spec, None, False, placeholders)
    return Imported(name, later("configuration"), model, spec, placeholders=placeholders)


@dataclass(frozen=True)
class _Training:
    """What a source says of a training, whatever its format: its arguments and devices, and what starts it.

    `reading`: of a configuration file. `before`, `after`: notes on a script, before and after those on what it says.
    """

    kind: str
    arguments: Arguments
    launched: TrainingDevices
    text: str
    program: str = ""
    launch: tuple[str, ...] = ()
    reading: Reading | None = None
    before: tuple[str, ...] = ()
    after: Callable[[], list[str]] = list


def _script(
    name: str,
    text: str,
    options: ImportOptions,
    environment: Mapping[str, str] | None = None,
    before: tuple[Path, ...] = (),
    notes: tuple[str, ...] = (),
) -> Imported:
    """A script; one that trains nothing itself is read as the script that it starts. `before`: those that led here."""
    script = read_script(text, name, dict(options.given), options.arguments, options.gpus_per_node, environment)
    script.warnings[:0] = notes
    if (configured := nemo_file(script, name)) is not None:
        reading = read_nemo(str(configured[0]), load_yaml(configured[0]).data, configured[1], options.given)
        reading = replace(reading, notes=(*script.warnings, *reading.notes, *_defaults(script)))
        return _file(name, text, options, reading)
    named = [] if options.chip else [chip for chip in [asked_of_slurm(text)] if chip]
    options = replace(options, chip=named[0]) if named else options
    try:
        training = find_training(script, name)
    except InputError as error:
        other = None if isinstance(error, OutOfScopeError) else started_script(script, name, before)
        if other is None:
            raise
        options = replace(options, arguments=other.arguments)
        led = (*before, Path(name).absolute())
        return _script(str(other.path), other.text, options, other.environment, led, (*notes, *other.notes))
    for variable, value in training.settings.items():
        script.variables.set(variable, value)
    if training.of_swift:
        return _swift(name, text, script, training, options)
    tokens = (*training.tokens, *model_tokens(training.tokens, name))
    arguments = Arguments(tokens, script.variables, name, training.line)
    launched = devices(script, training, text)
    if launched.total is None and (hosts := listed_hosts(training.launch, name)):
        launched = TrainingDevices(sum(hosts), max(hosts))
    return _imported(
        name,
        _Training(
            SCRIPT,
            arguments,
            launched,
            text,
            training.program,
            training.launch,
            before=(
                *(say("#SBATCH lines ask for {chip}: taken for the chip", chip=chip) for chip in named),
                *script.warnings,
            ),
            after=lambda: _words(script, training, arguments),
        ),
        options,
    )


def _swift(name: str, text: str, script: Script, training: TrainingCommand, options: ImportOptions) -> Imported:
    """A command of ms-swift, read as the arguments that it stands for."""
    tokens = tuple(map(script.variables.shown, training.tokens))
    reading, launched = read_swift(name, text, replace(training, tokens=tokens), script.variables.get)
    arguments = Arguments(reading.tokens, script.variables, name, training.line)
    said = _Training(SCRIPT, arguments, launched, text, reading=reading, before=tuple(script.warnings))
    return _imported(name, replace(said, after=lambda: _words(script, training, arguments)), options)


def _recipe(name: str, text: str, options: ImportOptions) -> Imported:
    """A recipe of Megatron-Bridge; the chip is by its name where none is given."""
    reading, chip = read_recipe(name, text, options.arguments or ())
    if options.chip is None and chip is not None:
        options = replace(options, chip=chip)
        note = say("the recipe's name says {chip}: taken for the chip", chip=chip)
        reading = replace(reading, notes=(*reading.notes, note))
    return _file(name, text, options, reading)


def _file(name: str, text: str, options: ImportOptions, reading: Reading) -> Imported:
    """A configuration file of a framework, read as the arguments that it stands for."""
    if reason := out_of_scope(reading.program, reading.tokens):
        allowed = say("pretraining or tuning of a decoder")
        raise OutOfScopeError(Trouble(reading.program or "arguments", reason, allowed=allowed, file=name))
    if any(mark in token for token in reading.tokens for mark in MARKS):
        raise InputError(Trouble("", say("has characters of private use, U+E000 or U+E001"), file=name))
    arguments = Arguments(reading.tokens, ShellVariables(), name)
    return _imported(name, _Training(reading.kind, arguments, reading.launched, text, reading=reading), options)


def _imported(name: str, said: _Training, options: ImportOptions) -> Imported:
    arguments, reading = said.arguments, said.reading
    arguments.given |= _replaced(options)
    told = add_deepspeed(arguments, name, said.text)
    for argument in _BY_COMMAND:
        arguments.has(argument)
    cluster, placeholders = _cluster(options, said.launched)
    fields = model_fields(arguments, said.program)
    fields |= reading.model if reading and fields else {}
    told += _of_checkpoint(name, said, fields)
    plan, batch = read_plan(arguments, _world(said, options), fields, options.chip or FILL_IN)
    if reading and reading.refusals:
        plan = replace(plan, strategy=None, refusals=(*reading.refusals, *plan.refusals))
    section = training_fields(arguments, batch.tokens, batch.sequences) | adapter_fields(arguments, fields)
    section |= reading.training if reading else {}
    again, notes = recomputed_functions(arguments, plan.strategy, "lora" in section)
    experts, told_of_experts = zero_memory(arguments, plan.strategy, "lora" in section)
    swapped, told_of_results = swapped_results(arguments, plan.strategy)
    swapped |= {"recompute_mlp_layers": plan.blocks} if plan.blocks else {}
    section |= again | experts | swapped
    notes += told_of_experts + told_of_results + capacity_notes(arguments)
    model, written = _model(name, said, fields, notes)
    guessed = guess_framework(arguments, said.launch, said.text, str(section["precision"]))
    framework = reading.framework if reading else guessed
    if guessed.stack != "ascendspeed":  # other frameworks with --DDP-impl make one product of both
        section.pop("fused_gate_up", None)
    as_arguments = reading is None or reading.as_arguments
    if "moe" in fields and not arguments.of_deepspeed():
        by_megatron = as_arguments and arguments.has("num-experts")
        section |= {"moe_grouped_gemm": False} if by_megatron and not arguments.has("moe-grouped-gemm") else {}
        gathered, told_of_tokens = gathered_tokens(arguments, plan.strategy, by_megatron)
        section, notes = section | gathered, notes + told_of_tokens
    if as_arguments and model is not None:
        fused, told_of_kernels = kernel_fields(arguments, model, options.stack or framework.stack)
        section, notes = section | fused, notes + told_of_kernels
    spec = {"model": written, "cluster": cluster, "training": section, **_profiles(options, framework)}
    spec |= _searched(plan)
    spec, left_out = accepted(spec, plan.strategy, options.launcher is None, placeholders)
    notes += [
        *left_out,
        *_unread(arguments, written),
        *told,
        *([] if options.stack else overlap_notes(arguments, framework)),
    ]
    notes = [*said.before, *(reading.notes if reading else ()), *notes, *plan.notes, *said.after()]
    if suspect := [*arguments.suspect(), *by_name(reading.unread if reading else ())]:
        warned = later("{names}: not known here, and may change the plan: the plan is without")
        notes.append(say(warned, names=" ".join(dict.fromkeys(suspect))))
    unused = (*arguments.unused(), *(reading.unread if reading else ()))
    unknown = tuple(dict.fromkeys(arguments.unread()))
    done = Imported(name, said.kind, model, spec, plan.strategy, framework, placeholders, plan.refusals, tuple(notes))
    return replace(done, unused=unused, unknown=unknown)


def _of_checkpoint(name: str, said: _Training, fields: dict[str, Any]) -> list[str]:
    """Give the model what --use-checkpoint-args takes from a checkpoint; returns notes."""
    if not said.arguments.has("use-checkpoint-args") or not fields:
        return []
    saved, note = checkpoint_fields(fields, f"{name} {_hint(said.arguments, said.program, said.text)}")
    fields |= saved
    return [note]


def _searched(plan: ImportedPlan) -> dict[str, Any]:
    """The section `search` without which the plan is none of the spec's."""
    search: dict[str, Any] = {"layer_split": "even"} if plan.blocks else {}
    if plan.strategy is not None and any(len(set(of.recompute_layers)) > 1 for of in plan.strategy.groups):
        search["recompute_scope"] = "stage"
    return {"search": search} if search else {}


def _world(said: _Training, options: ImportOptions) -> int | None:
    """All devices; what is missing goes to the troubles."""
    world = options.num_gpus or said.launched.total
    if world is None:
        needs = say("; ").join(said.launched.needs) or say(
            "neither the launcher nor the arguments say how many devices train"
        )
        said.arguments.trouble("devices", needs, allowed=say("--num-gpus N (and --gpus-per-node M)"))
    return world


def _model(name: str, said: _Training, fields: dict[str, Any], notes: list[str]) -> tuple[Architecture, Any]:
    """The model and how the spec names it. Raises InputError with all that is wrong with the source."""
    arguments = said.arguments
    hint = f"{_hint(arguments, said.program, said.text)} {said.reading.hint if said.reading else ''}"
    found: tuple[Architecture, Any] | None = None
    try:
        tokenizer = (_tokenizer(arguments), _tokenizer_type(arguments))
        found = match_model(fields, name, hint, notes, *tokenizer) if fields else None
    except InputError as error:
        arguments.troubles += error.troubles
    if arguments.troubles or found is None:
        raise InputError(list({str(trouble): trouble for trouble in arguments.troubles}.values()))
    return found


def _hint(arguments: Arguments, program: str, text: str) -> str:
    """The text by whose words a model of the catalogue is likely; a merge file is of Megatron's default tokenizer."""
    merges = arguments.has("merge-file") and not arguments.has("tokenizer-type")
    return f"{program} {text}{' GPT2BPETokenizer' if merges else ''}"


def _tokenizer_type(arguments: Arguments) -> str:
    """The type of the tokenizer; empty where it is not given, or its value not known."""
    given = "".join(arguments.given.get("tokenizer-type", ())[-1:])
    return "" if arguments.variables.unclear_in(given) else given


def _tokenizer(arguments: Arguments) -> str:
    """The tokenizer's path or repository as far as it is known; empty without one."""
    names = ("tokenizer-name-or-path", "tokenizer-model")
    given = next((arguments.given[name][-1] for name in names if arguments.given.get(name)), "")
    return "" if arguments.variables.unclear_in(given.rpartition("/")[2]) else arguments.variables.shown(given)


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
        placeholders["cluster.num_gpus"] = later("devices that train")
    if per_node is None:
        per_node = 8 if total % 8 == 0 else total
        placeholders["cluster.gpus_per_node"] = later("devices in a node")
    if options.chip is None:
        placeholders["cluster.chips"] = later(
            "a name that `apss-cp chips` lists; several with how many of each there are"
        )
    cluster = {"num_gpus": total, "gpus_per_node": min(per_node, total), "chips": chips_of(options.chip or FILL_IN)}
    return cluster, placeholders


def _profiles(options: ImportOptions, framework: FrameworkGuess | None) -> dict[str, str]:
    """Stack and launcher of the spec: the user's choice, else the guessed framework's."""
    stack = options.stack or (framework.stack if framework else None)
    launcher = options.launcher or (framework.launcher if framework else None)
    launcher = None if launcher == "any" else launcher
    return {name: value for name, value in (("stack", stack), ("launcher", launcher)) if value is not None}


def _words(script: Script, training: TrainingCommand, arguments: Arguments) -> list[str]:
    """What a user should know of a script: what was not followed, and what was assumed."""
    texts = []
    if not training.certain:
        texts.append(say("line {line}: the training command stands in a conditional or a function", line=training.line))
    if training.others:
        lines = ", ".join(map(str, training.others))
        texts.append(
            say(
                "line {line} is taken; there are training commands in lines {lines} too",
                line=training.line,
                lines=lines,
            )
        )
    unknown_words = list(dict.fromkeys(word for word in arguments.loose if word.startswith("$")))
    if unknown_words:
        texts.append(
            say(
                "not known, and arguments may be missing: {unknown_words} (--set NAME=VALUE)",
                unknown_words=", ".join(unknown_words),
            )
        )
    if any(unclear.name in ("@", "*") for unclear in script.variables.unclear):
        texts.append(say("the script's own arguments ($@) are taken as none"))
    if absent := script.variables.absent:
        names = ", ".join(absent)
        texts.append(
            say("taken as not set in the environment, where a condition asks: {names} (--set NAME=VALUE)", names=names)
        )
    return [*texts, *_defaults(script)]


def _defaults(script: Script) -> list[str]:
    """A note on what the environment may set, where the script has a default."""
    given = {name: script.variables.shown(value) for name, value in script.variables.defaults.items() if value}
    shown = ", ".join(f"{name}={value}" for name, value in given.items())
    told = later("defaults are taken for what the environment or the command line may set: {shown}")
    return [say(told, shown=shown)] if shown else []


def _in_the_model(spec: Sequence[str], model: Mapping[str, Any]) -> bool:
    """Whether the layers of that --spec are in the model, all that it changes of them: MindSpeed-LLM's own names."""
    has = {
        "deepseek_spec": model.get("attention", {}).get("kind") == "mla",
        "deepseek4_spec": model.get("attention", {}).get("kind") == "csa",
        "longcat_spec": model.get("moe", {}).get("shortcut", False),
    }
    return any(name in module and there for name, there in has.items() for module in spec)


def _unread(arguments: Arguments, model: Any) -> list[str]:
    """Notes on files and modules that a script names and that are not read. `model` is that of the spec."""
    texts = []
    if arguments.has("spec") and not isinstance(model, str) and not _in_the_model(arguments.values("spec"), model):
        module = arguments.variables.shown(" ".join(arguments.given["spec"]))
        texts.append(
            say("--spec {module} is not read: what it changes in a layer is not in the model here", module=module)
        )
    return texts
