"""What import does not plan, by name: programs that train no decoder, and arguments that no spec or plan can say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePosixPath

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.inputs.data import package_data
from cpsolver.inputs.errors import InputError
from cpsolver.inputs.language import later, say

_TABLE = Path(__file__).parent / "scope.yaml"
_HYBRID = re.compile(r"mamba|hybrid")
_PATTERNS = ("hybrid-layer-pattern", "hybrid-override-pattern")


class OutOfScopeError(InputError):
    """A source that trains no decoder: there is nothing to plan here, however it is written."""


@cache
def _section(name: str) -> dict[str, str]:
    return {str(key): str(value) for key, value in package_data(_TABLE)[name].items()}


def out_of_scope(program: str, tokens: Sequence[str]) -> str | None:
    """What a program is that trains no decoder, by its name and its arguments; None for one that does."""
    module = "/" not in program and not program.endswith(".py")
    path = PurePosixPath((program.replace(".", "/") if module else program).lower())
    name = path.name
    for pattern, what in _section("programs").items():
        if re.search(pattern, name):
            return say("is {what}: only the training of a decoder is planned", what=say(what))
    if (folder := _section("folders").get(path.parent.name)) is not None:
        return say("is {what}: only the training of a decoder is planned", what=say(folder))
    given = {token.split("=")[0].removeprefix("--") for token in tokens if token.startswith("--")}
    for argument, what in _section("arguments_scope").items():
        if argument in given:
            told = later("is {what} (--{argument}): only the training of a decoder is planned")
            return say(told, what=say(what), argument=argument)
    for argument in ("stage", "train-mode"):
        chosen = [after for before, after in pairwise(tokens) if before == f"--{argument}"]
        if chosen and (stage := _section("stages").get(chosen[-1])):
            told = later("is {what} (--{argument} {stage}): only the training of one decoder is planned")
            return say(told, what=say(stage), argument=argument, stage=chosen[-1])
    if _HYBRID.search(name) and not given & set(_PATTERNS):
        return say("is a model of state-space layers whose places no pattern of the arguments says")
    return None


def refuse_models(arguments: Arguments) -> None:
    """Note each argument that changes the model in a way that no architecture here says."""
    for name, what in _section("model").items():
        if name in arguments.given and not _is_off(arguments, name):
            if name == "is-hybrid-model" and set(_PATTERNS) & arguments.given.keys():
                continue
            arguments.note_read(name)
            arguments.trouble(f"--{name}", say("{what}: no architecture here says that", what=say(what)))


def plan_refusals(arguments: Arguments) -> list[str]:
    """Why no plan can say what the arguments do to time or memory."""
    found = [(name, what) for name, what in _section("plan").items() if name in arguments.given]
    for name, _ in found:
        arguments.note_read(name)
    return [
        say("--{name}: {what}, which no plan knows", name=name, what=say(what))
        for name, what in found
        if not _is_off(arguments, name)
    ]


def notes_beside(arguments: Arguments) -> list[str]:
    """What the plan does not hold of the script, and which way predictions err without it."""
    found = [(conditions.split(), what) for conditions, what in _section("beside").items()]
    found = [(names, what) for names, what in found if all(_given(arguments, name) for name in names)]
    shown = [([name.replace("=", " ") for name in names if not name.startswith("!")], what) for names, what in found]
    for name in (name.split()[0] for names, _ in shown for name in names):
        arguments.note_read(name)
    return [
        say(
            "{names} is not in the plan: {what}",
            names=say(" and ").join(f"--{name}" for name in names),
            what=say(what),
        )
        for names, what in shown
        if not any(" " not in name and _is_off(arguments, name) for name in names)
    ]


def names_with_words() -> frozenset[str]:
    """Arguments that are refused or told of by name, of those that change a model, its time or its memory."""
    conditions = [part for text in _section("beside") for part in text.split()]
    beside = [condition.removeprefix("!").partition("=")[0] for condition in conditions]
    return frozenset([*_section("model"), *_section("plan"), *beside])


def _given(arguments: Arguments, condition: str) -> bool:
    """Whether `name` is given, `name=value` is given so, or `!name` is not given."""
    name, _, value = condition.removeprefix("!").partition("=")
    given = name in arguments.given and (not value or value in arguments.given[name])
    return given != condition.startswith("!")


def _is_off(arguments: Arguments, name: str) -> bool:
    """Whether the argument's value says that it is not in use."""
    return arguments.given[name] in (
        ("0",),
        ("False",),
        ("false",),
        ("None",),
        ("none",),
        ("disable",),
        ("standard",),
        ("0.0",),
    )
