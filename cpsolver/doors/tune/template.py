"""The user's command with fields in it: `{arguments}`, `{plan}`, `{tp}`; checked before anything runs."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter

from cpsolver.inputs.errors import InputError, Trouble, nearest_names
from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

ARGUMENTS = "arguments"
_SIZES = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "mbs")
FIELDS = (ARGUMENTS, "plan", "directory", "trial", *_SIZES, "gbs", "num_gpus", "nodes", "gpus_per_node", "seq_length")
"""What may stand in braces."""
_SHELL = "/bin/sh"
_TEXTS = (ARGUMENTS, "plan", "directory")
"""Fields whose values may be any text, so that a shell's quotes matter; the others are numbers."""
_PLACES = {
    "'": later("stands in quotes, where no quoting holds for every value: let it stand by itself"),
    '"': later("stands in quotes, where no quoting holds for every value: let it stand by itself"),
    "`": later("stands in backticks, where no quoting holds for every value: let it stand by itself"),
    "#": later("stands in a comment, where no quoting holds for every value: let it stand by itself"),
    "<<": later("stands after <<, where no quoting holds for every value: let it stand by itself"),
}
_ESCAPED = later("stands after a backslash, where no quoting holds for every value: let it stand by itself")


@dataclass(frozen=True)
class Template:
    """A command to be. `words`: it split as a shell would, with `shell` the whole text as one word."""

    text: str
    words: tuple[str, ...]
    shell: bool = False

    @property
    def fields(self) -> frozenset[str]:
        """Names of the fields that it has."""
        return frozenset(name for word in self.words for _, name in _parts(word) if name is not None)

    def command(self, values: Mapping[str, str], arguments: Sequence[str]) -> tuple[str, ...]:
        """The words to run, without a shell, or through /bin/sh with every value quoted."""
        if self.shell:
            quoted = {name: shlex.quote(value) for name, value in values.items()}
            return (_SHELL, "-c", _filled(self.text, {**quoted, ARGUMENTS: shlex.join(arguments)}))
        found: list[str] = []
        for word in self.words:
            found += arguments if word == f"{{{ARGUMENTS}}}" else [_filled(word, values)]
        return tuple(found)


def parse_template(text: str, shell: bool) -> Template:
    """Reads a template. Raises InputError with everything that is wrong with it."""
    try:
        words = (text,) if shell else tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(Trouble("--run", say("cannot be split into words: {error}", error=error), text)) from None
    if not any(word.strip() for word in words):
        raise InputError(Trouble("--run", later("is empty: give the command that trains")))
    troubles = [trouble for word in words for trouble in _word_troubles(word, shell)]
    if shell and not troubles:
        troubles = [Trouble("--run", place, field) for field, place in quoted_fields(text)]
    if troubles:
        raise InputError(troubles)
    return Template(text, words, shell)


def quoted_fields(text: str) -> list[tuple[str, str]]:
    """Fields with texts that do not stand by themselves for a POSIX shell: `{plan}` and where, in words."""
    found: list[tuple[str, str]] = []
    inside: list[str] = []  # what is open, the innermost last: quotes, ( and what _PLACES has
    for literal, name in _parts(text):
        escaped = _read_on(literal, inside)
        place = _PLACES.get(inside[-1]) if inside else None
        if name in _TEXTS and (escaped or place or "<<" in inside):
            found.append((f"{{{name}}}", _ESCAPED if escaped else place or _PLACES["<<"]))
    return found


def _read_on(literal: str, inside: list[str]) -> bool:
    """Follow what opens and closes in a stretch of shell; whether it ends in a backslash for what follows."""
    escaped, before = False, " "
    for place, letter in enumerate(literal):
        innermost = inside[-1] if inside else ""
        if escaped:
            escaped = False
        elif letter == "\\" and innermost not in ("'", "#"):
            escaped = True
        elif innermost in ("'", '"', "`", "#"):
            if letter == ("\n" if innermost == "#" else innermost):
                inside.pop()
            elif innermost == '"' and literal.startswith("$(", place):
                inside.append("$")
        elif innermost == "$" or letter in "'\"`(" or (letter == "#" and before in " \t\n;|&("):
            inside[-1:] = ["("] if innermost == "$" else [*inside[-1:], letter]
        elif letter == ")" and innermost == "(":
            inside.pop()
        elif literal.startswith("<<", place):
            inside.insert(0, "<<")
        before = letter
    return escaped


def check_command(template: Template) -> None:
    """Raises InputError where there is no such command; a first word with fields is only known when a trial starts."""
    first = template.words[0]
    if template.shell or any(name is not None for _, name in _parts(first)):
        return
    first = _filled(first, {})
    if shutil.which(first) is not None:
        return
    if "=" in first.split("/")[0]:
        message = later("is no command: a NAME=value before one needs --shell, or `env` in front of it")
    elif os.sep in first and Path(first).exists():
        message = later("may not be run: make it executable (chmod +x)")
        if Path(first).is_dir():
            message = later("is a directory")
    elif os.sep in first:
        message = later("there is no such file")
    else:
        message = later("there is no such command on the PATH")
    raise InputError(Trouble("--run", message, first))


def values_of(problem: Problem, strategy: Strategy, number: int, directory: Path, plan: Path) -> dict[str, str]:
    """What stands in every field but `arguments`, for a trial."""
    sizes = {name: getattr(strategy, name) for name in _SIZES}
    node = min(problem.node, strategy.devices)
    more = {
        "plan": plan,
        "directory": directory,
        "trial": number,
        "gbs": problem.batch,
        "num_gpus": strategy.devices,
        "nodes": -(-strategy.devices // node),
        "gpus_per_node": node,
        "seq_length": problem.sequence,
    }
    return {name: str(value) for name, value in {**sizes, **more}.items()}


def _parts(word: str) -> Iterator[tuple[str, str | None]]:
    """The word as literal texts, each with the name of the field after it; ValueError for single braces."""
    for literal, name, form, conversion in Formatter().parse(word):
        whole = name and name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
        yield literal, whole if name else name


def _filled(text: str, values: Mapping[str, str]) -> str:
    return "".join(literal + ("" if name is None else values[name]) for literal, name in _parts(text))


def _word_troubles(word: str, shell: bool) -> Iterator[Trouble]:
    try:
        names = [name for _, name in _parts(word) if name is not None]
    except ValueError:
        yield Trouble("--run", later("has a brace without its partner: write {{ for {, and }} for }"), word)
        return
    for name in names:
        if name not in FIELDS:
            allowed = ", ".join(FIELDS) + say("; {{ and }} are braces")
            yield Trouble("--run", later("is not a field"), f"{{{name}}}", allowed, nearest_names(name, FIELDS))
        elif name == ARGUMENTS and not shell and word != f"{{{ARGUMENTS}}}":
            yield Trouble("--run", later("{arguments} is many words: it must stand as a word of its own"), word)
