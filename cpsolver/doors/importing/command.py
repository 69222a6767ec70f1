"""Finds the training command of a script: its program, its arguments, and the devices that it starts on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePosixPath

from cpsolver.doors.importing.printed import is_printer
from cpsolver.doors.importing.scope import OutOfScopeError, out_of_scope
from cpsolver.doors.importing.shell import Script, ScriptCommand, read_text_commands
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say

_LAUNCHERS = ("torchrun", "deepspeed", "msrun", "accelerate", "mpirun", "srun")
_MODULES = ("torch.distributed.launch", "torch.distributed.run")
_MODEL_ARGUMENTS = ("--num-layers", "--hidden-size", "--tensor-model-parallel-size", "--micro-batch-size", "--yaml-cfg")
_PER_NODE = (
    "nproc_per_node",
    "nproc-per-node",
    "num_gpus",
    "local_worker_num",
    "ntasks-per-node",
    "gpus-per-node",
    "npernode",
    "ppn",
)
_NODES = ("nnodes", "num_nodes", "nodes")
_NEVER_TRAIN = (
    "tee",
    "logger",
    "grep",
    "sed",
    "awk",
    "ls",
    "cp",
    "mv",
    "rm",
    "mkdir",
    "touch",
    "kill",
    "pkill",
    "find",
)
"""Commands beside those whose output is known that only show or move what a training command is made of."""
_SHOWN = 3
"""Values that a message names, of those that are not known."""
SWIFT, _SWIFT_STARTS = "megatron", ("sft", "pt", "rlhf", "export")
"""ms-swift's program, and what it starts."""
_FORKING = ("torchrun", "deepspeed")
"""Launchers that start the processes of a node themselves."""
_TASKS = ("ntasks-per-node", "npernode", "ppn")
"""Slurm's and MPI's processes of a node: each is a device's, if it is no launcher."""
_ALL = ("worker_num", "np", "n", "ntasks")


@dataclass(frozen=True)
class TrainingCommand:
    """The command that trains: its line, its program (`pretrain_gpt.py`) and its arguments.

    `launch` are the words before the program, `tokens` those after it. `certain`: in no conditional. `others`: lines of
    further training commands. `settings`: variables that are set for it alone.
    """

    line: int
    program: str
    launch: tuple[str, ...]
    tokens: tuple[str, ...]
    certain: bool
    others: tuple[int, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def of_swift(self) -> bool:
        """Whether it is ms-swift's, whose arguments have other names."""
        return self.program.startswith(f"{SWIFT} ")


def find_training(script: Script, file: str | None) -> TrainingCommand:
    """The training command of a script; of a text that is a plain list of arguments, all of them.

    Raises InputError where there is none.
    """
    commands = script.commands
    if commands and all(command.words[0].startswith("-") for command in commands):
        words = tuple(word for command in commands for word in command.words)
        return TrainingCommand(commands[0].line, "", (), words, True)
    trainings = [training for command in commands for training in _trainings(script, command)]
    named = [training for training in trainings if training.program or not _is_rest(training)]
    if not named:
        _other_programs(script, file)
    trainings = named or trainings
    if not trainings:
        ended = (
            say("; it ends in line {ended}, before its last line (--args gives it arguments)", ended=script.ended)
            if script.ended
            else ""
        )
        ended += _likeliest(script)
        message = say("has no training command: none of its commands has model arguments{ended}", ended=ended)
        allowed = say("torchrun, python -m torch.distributed.launch or deepspeed with --num-layers, --hidden-size ...")
        raise InputError(Trouble("", message, allowed=allowed, file=file))
    reasons = {id(training): out_of_scope(training.program, training.tokens) for training in trainings}
    inside = [training for training in trainings if reasons[id(training)] is None]
    if not inside:
        first = trainings[0]
        allowed = say("pretraining or tuning of a decoder")
        raise OutOfScopeError(
            Trouble(
                script.variables.shown(first.program) or "program",
                str(reasons[id(first)]),
                allowed=allowed,
                line=first.line,
                file=file,
            )
        )
    chosen = next((training for training in inside if training.certain), inside[0])
    trainings = inside
    others = tuple(training.line for training in trainings if training is not chosen)
    return replace(chosen, others=others)


def _likeliest(script: Script) -> str:
    """In words, the last program that is started with words whose values are not known; empty where there is none."""
    for run in reversed(script.commands):
        split = None if is_printer(run.words[0]) or run.words[0] in _NEVER_TRAIN else _split(run.words)
        program = PurePosixPath(script.variables.shown(split[0])).name if split else ""
        if not split or not program.endswith(".py") or out_of_scope(program, split[2]):
            continue
        unclear = {one.name: one for word in split[2] for one in script.variables.unclear_in(word)}
        if unclear:
            each = later("{name}, which {reason} (line {line})")
            shown = [say(each, name=one.name, reason=one.reason, line=one.line) for one in unclear.values()]
            told = later("; in line {line} {program} starts with what is not known: {shown}")
            return say(told, line=run.line, program=program, shown=say("; ").join(shown[:_SHOWN]))
    return ""


def _is_rest(training: TrainingCommand) -> bool:
    """Whether the command is the rest of one that a blank behind a line's backslash cuts off."""
    return bool(training.tokens) and training.tokens[0].startswith("--")


def _other_programs(script: Script, file: str | None) -> None:
    """Raises OutOfScopeError for a script whose programs are known, and train no decoder."""
    found = [(run, split) for run in script.commands if (split := _split(run.words)) and split[0]]
    reasons = [out_of_scope(split[0], split[2]) for _, split in found]
    if found and all(reasons):
        run, (program, *_) = found[0]
        allowed = say("pretraining or tuning of a decoder")
        shown = script.variables.shown(program)
        raise OutOfScopeError(Trouble(shown, str(reasons[0]), allowed=allowed, line=run.line, file=file))


def _trainings(script: Script, run: ScriptCommand) -> list[TrainingCommand]:
    """The training commands in a command, also in a text that it passes to another shell (`bash -c`, `srun`)."""
    if is_printer(run.words[0]) or run.words[0] in _NEVER_TRAIN:
        return []
    if (at := _swift(run.words)) is not None:
        parts = f"{SWIFT} {run.words[at + 1]}", run.words[:at], run.words[at + 2 :]
        return [TrainingCommand(run.line, *parts, run.certain, settings=run.settings)]
    split = _split(run.words)
    if split is not None and any(word.split("=")[0].replace("_", "-") in _MODEL_ARGUMENTS for word in split[2]):
        return [TrainingCommand(run.line, *split, run.certain, settings=run.settings)]
    sentences = [word for word in run.words if any(char.isspace() for char in word)]
    given = {after for before, after in zip(run.words, run.words[1:], strict=False) if before in ("-c", "-lc", "-xc")}
    shell_texts = [text for text in sentences if text in given or any(name in text for name in _MODEL_ARGUMENTS)]
    trainings: list[TrainingCommand] = []
    for text in shell_texts[:1]:
        before = run.words[: run.words.index(text)]
        for command in read_text_commands(script, text, run.line):
            if command.words != run.words:
                nested = _trainings(script, replace(command, line=run.line, certain=run.certain))
                trainings += [replace(training, launch=(*before, *training.launch)) for training in nested]
    return trainings


def _swift(words: Sequence[str]) -> int | None:
    """Where `megatron sft` stands, or what else ms-swift starts so."""
    pairs = enumerate(pairwise(words))
    return next((at for at, (word, after) in pairs if word == SWIFT and after in _SWIFT_STARTS), None)


def _split(words: Sequence[str]) -> tuple[str, tuple[str, ...], tuple[str, ...]] | None:
    """The program, the words before it and the words after it; None for a command that trains nothing."""
    names = [PurePosixPath(word).name for word in words]
    launched = any(name in _LAUNCHERS or re.fullmatch(r"python[\d.]*", name) for name in names) or any(
        word in _MODULES for word in words
    )
    for index, name in enumerate(names):
        module = index > 0 and words[index - 1] == "-m" and words[index] not in _MODULES
        if name.endswith(".py") or (module and launched):
            return words[index], tuple(words[:index]), tuple(words[index + 1 :])
    if launched or any(word.startswith("--") for word in words[:2]):
        first = next((index for index, word in enumerate(words) if word.split("=")[0] in _MODEL_ARGUMENTS), None)
        if first is not None:  # the program's name is in a variable of the environment
            return "", (), tuple(words)
    return None


@dataclass(frozen=True)
class TrainingDevices:
    """Devices in all and in a node; None: not given. `needs`: the unclear values that they depend on, in words."""

    total: int | None
    per_node: int | None
    needs: tuple[str, ...] = ()


def devices(script: Script, training: TrainingCommand, text: str) -> TrainingDevices:
    """The devices that the training starts on, by its launcher, its own arguments, and #SBATCH lines of the text."""
    options = _options([*_batch_lines(text), *training.tokens, *training.launch])
    launched = any(PurePosixPath(word).name in _FORKING or word in _MODULES for word in training.launch)
    needs: list[str] = []

    def number(names: Sequence[str]) -> int | None:
        for name in names:
            value = options.get(name)
            if value is None:
                continue
            if value.isdigit():
                return int(value)
            for unclear in script.variables.unclear_in(value):
                told = say(
                    "needs {name}, which {reason} (line {line})",
                    name=unclear.name,
                    reason=unclear.reason,
                    line=unclear.line,
                )
                needs.append(f"--{name} {told}")
        return None

    if (included := _included(options.get("include", ""))) is not None:
        return included
    per_node = number([name for name in _PER_NODE if not (launched and name in _TASKS)])
    nodes, total_given = number(_NODES), number(() if launched else _ALL)
    if per_node is not None and nodes is None and not needs:
        nodes = 1 if launched else None  # both start one node by default
    if per_node is None and nodes is None and total_given is None:
        return TrainingDevices(None, None, tuple(needs))
    total = per_node * nodes if per_node and nodes else total_given
    return TrainingDevices(total, per_node, tuple(needs))


def _included(text: str) -> TrainingDevices | None:
    """The devices that DeepSpeed's --include names, `HOST:0,1@HOST:0,1`; None for hosts without theirs."""
    hosts = [re.fullmatch(r"[\w.-]+:(\d+(?:,\d+)*)", host, re.ASCII) for host in text.split("@")]
    slots = [len(set(host.group(1).split(","))) for host in hosts if host]
    if len(slots) < len(hosts):
        return None
    return TrainingDevices(sum(slots), slots[0] if len(set(slots)) == 1 else None)


def _options(words: Sequence[str]) -> dict[str, str]:
    """The options of a launcher by name, without dashes. The last of several counts."""
    options: dict[str, str] = {}
    for index, word in enumerate(words):
        if not word.startswith("-"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if equals:
            options[name] = value
        elif index + 1 < len(words) and not words[index + 1].startswith("-"):
            options[name] = words[index + 1]
    options.setdefault("nodes", options.get("N", ""))
    asked = re.match(r"gpu:(?:[\w.-]+:)?(\d+)$", options.get("gres", ""))
    options.setdefault("gpus-per-node", asked[1] if asked else "")
    return {name: value for name, value in options.items() if value}


def _batch_lines(text: str) -> list[str]:
    """Slurm's options, from the comments of a batch script."""
    return [word for line in re.findall(r"^#SBATCH\s+([^#\n]*)", text, re.MULTILINE) for word in line.split()]
