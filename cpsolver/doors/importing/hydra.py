"""Hydra's configuration files: those that `defaults` names beside one, and `${...}` as far as text alone decides it.

By the documentation of Hydra 1.3 (defaults list, packages) and OmegaConf 2.3 (interpolations, resolvers). Other
resolvers are those of NeMo v2.0.0 (core/config/hydra_runner.py), of its launcher 26e42fa (auto_configurator/main.py)
and of NVIDIA's MLPerf submissions (mlcommons/training_results_v4.0 6fe9543, gpt3/implementations/nemo). Nothing is run.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from cpsolver.doors.importing.reading import as_scalar
from cpsolver.inputs.document import load_yaml
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say

MISSING = "???"
"""A value that has to be given elsewhere."""
_MOST_DEEP, _MOST_STEPS, _MOST_TEXT = 50, 10_000, 10_000
"""Interpolations in interpolations, where more are a circle; looked up for a value; and letters of a text from them."""
_MOST_FILES = 20
_LARGEST = 1e15
_CLOSE = 0.75
"""How alike a misspelt field is to one beside it (difflib's ratio)."""
_PATH = re.compile(r"(\.*)([A-Za-z_][\w-]*(?:\.[\w-]+)*)")
_CALL = re.compile(r"([A-Za-z_][\w.]*)\s*:(.*)", re.DOTALL)
_ENTRY = re.compile(r"(optional\s+|override\s+)*([^@:\s]+)(?:@([\w.]+))?")
OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_]\w*(?:\.\w+)+)(?:=(.*))?", re.DOTALL)
"""A word of a command line that sets a field."""
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None}
_NUMBERS: dict[str, Callable[..., Any]] = {
    "multiply": lambda one, other: one * other,
    "sum": lambda one, other: one + other,
    "add": lambda one, other: one + other,
    "div": lambda one, other: one / other,
    "floor_div": lambda one, other: one // other,
    "divide_floor": lambda one, other: int(one // other),
    "ceil_div": lambda one, other: -(-one // other),
    "divide_ceil": lambda one, other: math.ceil(one / other),
    "lt": lambda one, other: one < other,
}
_VALUES: dict[str, Callable[..., Any]] = {
    "eq": lambda one, other: one == other,
    "neq": lambda one, other: one != other,
    "or": lambda *values: any(values),
    "if": lambda condition, one, other: one if condition else other,
}


class UndecidedError(Exception):
    """A value that the text does not decide; `name`: what would have to be known."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def is_open(value: Any) -> TypeGuard[str]:
    """Whether a value has to be looked up, or is missing."""
    return isinstance(value, str) and (value == MISSING or "${" in value)


class Interpolations:
    """The values of a configuration. `taken`: defaults of variables of the environment, of the values asked for.

    Paths may begin with the group that the file is part of where another names it. `given`: what the user says of
    variables, and of fields that are not in the file.
    """

    def __init__(self, data: Mapping[str, Any], given: Mapping[str, str] | None = None) -> None:
        self._data, self._given = data, given or {}
        self.taken: dict[str, str] = {}
        self._steps = 0

    def decided(self, text: str, parent: tuple[str, ...]) -> Any:
        """The value that a text stands for at a place below `parent`. Raises UndecidedError."""
        self._steps = 0
        return self._expanded(text, parent, 0)

    def _expanded(self, text: str, parent: tuple[str, ...], depth: int) -> Any:
        if text == MISSING:
            raise UndecidedError(MISSING)
        self._steps += 1
        if depth > _MOST_DEEP or self._steps > _MOST_STEPS:
            raise UndecidedError(text)
        values = [self._inner(part, parent, depth + 1) if inner else part for part, inner in _pieces(text)]
        if len(values) == 1:
            return values[0]
        whole = "".join("null" if value is None else str(value) for value in values)
        if len(whole) > _MOST_TEXT:
            raise UndecidedError(text)
        return whole

    def _inner(self, text: str, parent: tuple[str, ...], depth: int) -> Any:
        """What stands between the braces: a path, or a resolver with its arguments."""
        if call := _CALL.fullmatch(text.strip()):
            return self._called(call[1], call[2], parent, depth)
        path = _PATH.fullmatch(text.strip())
        if path is None or len(path[1]) > len(parent) + 1:
            raise UndecidedError(text.strip())
        above = parent[: len(parent) - len(path[1]) + 1] if path[1] else ()
        return self._found((*above, *path[2].split(".")), path[2], depth)

    def _found(self, path: tuple[str, ...], name: str, depth: int) -> Any:
        node: Any = self._data
        if path[0] not in self._data and len(path) > 1 and path[1] in self._data:
            path = path[1:]
        for part in path:
            if not isinstance(node, dict) or part not in node:
                if name in self._given:
                    return as_value(self._given[name])
                raise UndecidedError(name)
            node = node[part]
        return self._expanded(node, path[:-1], depth) if is_open(node) else node

    def _called(self, resolver: str, text: str, parent: tuple[str, ...], depth: int) -> Any:
        given = [part.strip() for part in _arguments(text)]
        if resolver == "oc.env":
            return self._environment(given, parent, depth)
        values = [self._argument(part, parent, depth) for part in given]
        if resolver == "oc.decode" and len(values) == 1:
            return as_value(values[0]) if isinstance(values[0], str) else values[0]
        numbers = all(_is_number(value) for value in values)
        function = _NUMBERS.get(resolver) if numbers else None
        function = function or _VALUES.get(resolver)
        try:
            result = None if function is None else function(*values)
        except (TypeError, ValueError, ArithmeticError):
            function = None
        if function is None or (isinstance(result, int | float) and not abs(result) < _LARGEST):
            raise UndecidedError(f"{resolver}:{text}")
        return result

    def _argument(self, part: str, parent: tuple[str, ...], depth: int) -> Any:
        """The value of an argument of a resolver; in quotes a text, whatever it stands for."""
        if "${" not in part:
            return as_value(part)
        quoted = part[0] in "\"'" and part[-1] == part[0]
        return str(self._expanded(part[1:-1], parent, depth)) if quoted else self._expanded(part, parent, depth)

    def _environment(self, given: list[str], parent: tuple[str, ...], depth: int) -> Any:
        """A variable of the environment: what the user says, else its default."""
        if given and given[0] in self._given:
            return as_value(self._given[given[0]])
        if len(given) != 2:
            raise UndecidedError(given[0] if given else "oc.env")
        name, default = given
        value = self._expanded(default, parent, depth) if "${" in default else default
        self.taken[name] = str(value)
        return None if value is None or str(value).lower() == "null" else str(value).strip("\"'")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_value(text: str) -> Any:
    """A plain text as the value that OmegaConf reads it for."""
    text = text.strip()
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else as_scalar(text, _CONSTANTS)


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """The parts of a text, and whether each is what stands between `${` and `}`."""
    while (start := text.find("${")) >= 0:
        if start:
            yield text[:start], False
        end = _closing(text, start + 2)
        yield text[start + 2 : end], True
        text = text[end + 1 :]
    if text:
        yield text, False


def _closing(text: str, start: int) -> int:
    """The place of the brace that closes the one before `start`."""
    depth = 1
    for place in range(start, min(len(text), start + _MOST_TEXT)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise UndecidedError(text)


def _arguments(text: str) -> Iterator[str]:
    """The arguments of a resolver, which commas outside braces and quotes part."""
    depth, quote, start = 0, "", 0
    for place, letter in enumerate(text):
        if quote or letter in "\"'":
            quote = "" if letter == quote else quote or letter
        elif letter in "{}":
            depth += 1 if letter == "{" else -1
        elif letter == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def composed(name: str, data: Mapping[str, Any], harmless: tuple[str, ...]) -> dict[str, Any]:
    """A file with those that its `defaults` name, which are looked for beside it.

    `harmless`: starts of places where a file that is missing changes nothing of a plan. Raises InputError for others.
    """
    return _Composed(name, harmless).of(data, 0)


class _Composed:
    def __init__(self, name: str, harmless: tuple[str, ...]) -> None:
        self._name, self._harmless = name, harmless
        self._folder = None if name == "<stdin>" else Path(name).absolute().parent

    def of(self, data: Mapping[str, Any], depth: int) -> dict[str, Any]:
        own = {key: value for key, value in data.items() if key != "defaults"}
        listed = data.get("defaults") or []
        if not isinstance(listed, list):
            raise InputError(Trouble("defaults", say("must be a list"), file=self._name, path=("defaults",)))
        entries = listed if "_self_" in listed else [*listed, "_self_"]  # the file itself counts last without it
        if len(entries) > _MOST_FILES or depth > _MOST_FILES:
            told = say("names more files than are read: {most}", most=_MOST_FILES)
            raise InputError(Trouble("defaults", told, file=self._name, path=("defaults",)))
        found: dict[str, Any] = {}
        for entry in entries:
            found = merged(found, own if entry == "_self_" else self._entry(entry, depth))
        return found

    def _entry(self, entry: Any, depth: int) -> dict[str, Any]:
        """The settings of one entry, at the place where they belong."""
        group, option = next(iter(entry.items())) if isinstance(entry, dict) and entry else (entry, "")
        match = _ENTRY.fullmatch(str(group).strip())
        if option is None or match is None or match[2].startswith("hydra/"):
            return {}
        where = match[3] if match[3] is not None else match[2].replace("/", ".") if option else ""
        place = [part for part in where.split(".") if part and part not in ("_global_", "_here_")]
        file = f"{match[2]}/{option}" if option else match[2]
        path = None if "$" in file else self._file(file if file.endswith(".yaml") else f"{file}.yaml")
        if path is None:
            if "optional" in str(group) or (where and where.startswith(self._harmless)):
                return {}
            allowed = say("that file beside this one")
            told = say("needs {file}.yaml, which its defaults name", file=file)
            raise InputError(Trouble("defaults", told, allowed=allowed, file=self._name, path=("defaults",)))
        settings: dict[str, Any] = self.of(load_yaml(path).data, depth + 1)
        for part in reversed(place):
            settings = {part: settings}
        return settings

    def _file(self, name: str) -> Path | None:
        """A file below the folder of the first."""
        if self._folder is None:
            return None
        try:
            path = (self._folder / name).resolve()
            return path if path.is_relative_to(self._folder.resolve()) and path.is_file() else None
        except (OSError, RuntimeError, ValueError):  # what no file can be named
            return None


def overridden(data: dict[str, Any], words: Sequence[str], inside: str, file: str) -> dict[str, Any]:
    """A configuration with what a command line sets: `a.b=value`, with `+` a field that is new, `~a.b` none.

    `inside`: the group that the file is part of, which may stand before. Raises InputError for other words, and for a
    field that is not there and like one.
    """
    for word in words:
        match = OVERRIDE.fullmatch(word)
        if match is None:
            raise InputError(Trouble("--args", "is no override", word, "section.field=value", file=file))
        path = match[2].removeprefix(f"{inside}.").split(".")
        beside = _section(data, path[:-1])
        nearest = difflib.get_close_matches(path[-1], beside, n=2, cutoff=_CLOSE) if path[-1] not in beside else []
        if nearest and "+" not in match[1]:
            raise InputError(Trouble("--args", "is no field of the file", word, None, tuple(nearest), file=file))
        settings: Any = None if match[1] == "~" else _listed(match[3] or "null")
        for part in reversed(path):
            settings = {part: settings}
        data = merged(data, settings)
    return data


def _section(data: Mapping[str, Any], path: Sequence[str]) -> list[str]:
    """The names of the fields at a path; none where there is no section."""
    found: Any = data
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    return list(found) if isinstance(found, dict) else []


def _listed(text: str) -> Any:
    """The value that a command line writes: a list in brackets, or a plain one."""
    if text.startswith("[") and text.endswith("]"):
        return [as_value(part) for part in text[1:-1].split(",") if part.strip()]
    return as_value(text)


def merged(base: Any, more: Any) -> Any:
    """Settings on others, section by section."""
    if not isinstance(base, dict) or not isinstance(more, dict):
        return more
    return base | {key: merged(base[key], value) if key in base else value for key, value in more.items()}
