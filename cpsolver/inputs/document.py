"""YAML 1.2 files (and so JSON) as plain values, with the line and column of each; duplicate keys are refused.

`989e12` is a number and `no` is text, as YAML 1.2 has it. Keys are always text, as written: `4090: 8` has the
key `"4090"`. Tags, dates and merge keys have no meaning here: a date is text, `<<` is a key like any other.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from cpsolver.inputs.english_sentences import parsers_words
from cpsolver.inputs.errors import InputError, Trouble, dotted
from cpsolver.inputs.errors import Path as KeyPath
from cpsolver.inputs.language import later, say
from cpsolver.inputs.limits import (
    MOST_DIGITS,
    MOST_DOCUMENT_BYTES,
    MOST_NESTED,
    MOST_SCRIPT_BYTES,
    MOST_SCRIPT_LINE,
    MOST_TEXT_BYTES,
    MOST_VALUES,
    MOST_YAML_PARTS,
)

_TAG = "tag:yaml.org,2002:"
_BRACKETS = re.compile(r"[][{}]")
_INT_BASES = {"0b": 2, "0o": 8, "0x": 16}
_TEXT_TAGS = frozenset(_TAG + name for name in ("str", "timestamp", "value", "merge"))


@dataclass(frozen=True)
class Document:
    """A parsed file: `data` in plain values, `file` its name for messages, `troubles` its duplicate keys.

    `data` holds only dict (with text keys), list, str, int, float, bool and None.
    """

    data: dict[str, Any]
    file: str | None = None
    troubles: tuple[Trouble, ...] = ()
    _root: Any = field(default=None, repr=False, compare=False)
    _items: dict[int, dict[str | int, tuple[Any, Any]]] = field(default_factory=dict, repr=False, compare=False)

    def position(self, path: KeyPath) -> tuple[int, int] | None:
        """Line and column, from 1, of the key (in a list: the item) at `path`; None where there is none."""
        node, mark = self._root, getattr(self._root, "start_mark", None)
        for part in path:
            step = self._items_of(node).get(part)
            if step is None:
                return None
            mark, node = step
        return None if mark is None else (mark.line + 1, mark.column + 1)

    def _items_of(self, node: Any) -> dict[str | int, tuple[Any, Any]]:
        """Where each key or item of a node starts, and its value; looked up once, for many places of one node."""
        if id(node) not in self._items:
            self._items[id(node)] = _items(node)
        return self._items[id(node)]

    def nearest_position(self, path: KeyPath) -> tuple[int, int] | None:
        """As `position`, or that of the closest thing around it in the file: a missing field's parent."""
        for length in range(len(path), 0, -1):
            place = self.position(path[:length])
            if place is not None:
                return place
        return self.position(())

    def located(self, trouble: Trouble) -> Trouble:
        """The trouble with this file's name, and the line and column of its `path` when it has none yet."""
        if trouble.line is not None:
            return trouble
        line, column = self.nearest_position(trouble.path) or (None, None)
        return replace(trouble, file=trouble.file or self.file, line=line, column=column)

    def in_order(self, troubles: Iterable[Trouble]) -> list[Trouble]:
        """The troubles, each located, in the order of the file."""
        located = [self.located(trouble) for trouble in troubles]
        return sorted(located, key=lambda trouble: (trouble.line or 0, trouble.column or 0))


def load_yaml(path: str | Path, *, collect: bool = False) -> Document:
    """The document in a file, or on standard input when `path` is "-".

    Raises InputError for a file that cannot be read, is not UTF-8, is empty, no mapping or not YAML, and for
    duplicate keys (all listed); with `collect` these last stay in the document's `troubles` instead.
    """
    name, text = read_text(path, MOST_DOCUMENT_BYTES)
    return parse_yaml(text, file=name, collect=collect)


def _too_large(told: str, file: str | None, line: int | None = None) -> InputError:
    """An input beyond one of the limits."""
    return InputError(Trouble("", later("{told}: no more is read", told=told), file=file, line=line))


def read_text(path: str | Path, most_bytes: int = MOST_TEXT_BYTES) -> tuple[str, str]:
    """The name for messages and the text of a UTF-8 file, or of standard input when `path` is "-".

    A byte order mark is left out. Raises InputError for a file that cannot be read, is larger than `most_bytes` (as is
    a device without an end) or is not UTF-8.
    """
    name = "<stdin>" if str(path) == "-" else str(path)
    try:
        raw = _read(path, most_bytes)
        if len(raw) > most_bytes:
            raise _too_large(later("is larger than {most:,} bytes", most=most_bytes), name)
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(Trouble("", "is not UTF-8 text: save the file as UTF-8", file=name, line=line)) from None
    except (OSError, ValueError) as error:
        reason = say("cannot be read: {why}", why=getattr(error, "strerror", None) or error)
        if isinstance(error, FileNotFoundError):
            reason = say("no such file")
        elif isinstance(error, IsADirectoryError):
            reason = say("is a directory, not a file")
        raise InputError(Trouble("", reason, file=name)) from None
    return name, text


def read_source(path: str | Path) -> tuple[str, str]:
    """As `read_text`, for a script or a config.json: InputError also for a line that no command can have."""
    name, text = read_text(path, MOST_SCRIPT_BYTES)
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MOST_SCRIPT_LINE:
            raise _too_large(
                later("has a line of more than {most:,} characters", most=MOST_SCRIPT_LINE),
                name,
                number,
            )
    return name, text


def _read(path: str | Path, most_bytes: int) -> bytes:
    """The file's bytes, or standard input's: one more than the most, where there are more."""
    if str(path) == "-":
        return sys.stdin.buffer.read(most_bytes + 1)
    with Path(path).open("rb") as file:
        return file.read(most_bytes + 1)


def parse_yaml(text: str, file: str | None = None, *, collect: bool = False) -> Document:
    """The document in a text; `file` is its name in messages. Raises InputError as `load_yaml` does."""
    if _parts(text, file) > MOST_YAML_PARTS:
        return _large_json(text, file, collect)
    root = _compose(text, file)
    if root is None:
        raise InputError(Trouble("", "is empty: a mapping of fields is expected", file=file))
    reader = _Reader(file)
    try:
        data = reader.value(root, ())
    except RecursionError:
        raise InputError(Trouble("", "is nested too deeply, or in itself", file=file)) from None
    _check_mapping(data, file)
    troubles = tuple(sorted(reader.troubles, key=lambda trouble: (trouble.line or 0, trouble.column or 0)))
    if troubles and not collect:
        raise InputError(troubles)
    return Document(data, file, troubles, root)


def _check_mapping(data: Any, file: str | None) -> None:
    if not isinstance(data, dict):
        kind = later("a list") if isinstance(data, list) else later("a single value")
        raise InputError(
            Trouble("", later("is {kind}: a mapping of fields is expected", kind=kind), file=file, line=1, column=1)
        )


def _parts(text: str, file: str | None) -> int:
    """Line ends and commas, counted before anything is built: the parser makes a tree of all that there is, slowly."""
    parts = text.count("\n") + text.count(",")
    if parts > MOST_VALUES:
        raise _too_large(later("holds more than {most:,} values", most=MOST_VALUES), file)
    steps = ((sign in "[{") - (sign in "]}") for sign in _BRACKETS.findall(text))
    if max(accumulate(steps), default=0) > MOST_NESTED:
        raise InputError(
            Trouble("", later("is nested too deeply: more than {most} levels", most=MOST_NESTED), file=file)
        )
    return parts


def _large_json(text: str, file: str | None, collect: bool) -> Document:
    """What programs write, by a reader that is fast and knows no lines."""
    twice = list[str]()

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice.extend(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        return dict(pairs)

    try:
        data = json.loads(text, object_pairs_hook=mapping, parse_constant=str)
    except (ValueError, RecursionError):
        told = later("has more than {most:,} lines and commas, and is not JSON", most=MOST_YAML_PARTS)
        raise _too_large(told, file) from None
    _check_mapping(data, file)
    troubles = tuple(
        Trouble(name, later("the key {name!r} is written twice", name=name), file=file) for name in dict.fromkeys(twice)
    )
    if troubles and not collect:
        raise InputError(troubles)
    return Document(data, file, troubles)


def _compose(text: str, file: str | None) -> Any:
    """The tree of nodes, or None for an empty text."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return YAML(typ="safe", pure=True).compose(_without_tabs(text))
    except MarkedYAMLError as error:
        raise InputError(_syntax(error, file)) from None
    except YAMLError as error:
        reason = parsers_words(str(getattr(error, "reason", None) or error).splitlines()[0])
        at = getattr(error, "position", None)
        line = text[:at].count("\n") + 1 if isinstance(at, int) else None
        raise InputError(Trouble("", later("is not YAML: {reason}", reason=reason), file=file, line=line)) from None
    except RecursionError:
        raise InputError(Trouble("", "is nested too deeply", file=file)) from None
    except (ValueError, AttributeError, AssertionError, IndexError, KeyError, TypeError) as error:
        # slips of the parser itself on broken text
        raise InputError(Trouble("", later("is not YAML: {reason}", reason=error), file=file)) from None


def _without_tabs(text: str) -> str:
    """JSON may be indented by tabs, which YAML refuses; a tab cannot stand inside a JSON string."""
    if "\t" in text and text.lstrip().startswith("{"):
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return text
        return text.replace("\t", " ")
    return text


def _syntax(error: Any, file: str | None) -> Trouble:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "cannot be read"
    if "'\\t'" in problem or "\t" in problem:
        problem = later("a tab stands where blanks are needed: indent with blanks")
    elif "mapping values are not allowed" in problem:
        problem = later("a second ':' or a wrong indentation (quote text that holds ': ')")
    elif problem.startswith("but found another document"):
        problem = later("holds a second document ('---'): one is expected")
    elif error.context and error.problem:
        problem = later("{problem} {context}", problem=parsers_words(problem), context=parsers_words(error.context))
    else:
        problem = parsers_words(problem)
    return Trouble(
        "", later("is not YAML: {reason}", reason=problem), file=file, **({} if mark is None else _counted(mark))
    )


def _counted(mark: Any) -> dict[str, Any]:
    """A mark's line and column, counted from 1."""
    return {"line": mark.line + 1, "column": mark.column + 1}


def _items(node: Any) -> dict[str | int, tuple[Any, Any]]:
    """Where each key or item starts, and its value's node; of a key that stands twice, the first."""
    value = getattr(node, "value", None)
    if not isinstance(value, list):
        return {}
    if node.id != "mapping":
        return {index: (item.start_mark, item) for index, item in enumerate(value)}
    return {str(key.value): (key.start_mark, child) for key, child in reversed(value) if key.id == "scalar"}


class _Reader:
    """Turns nodes into plain values; what it cannot turn it lists in `troubles`."""

    def __init__(self, file: str | None) -> None:
        self.file = file
        self.troubles: list[Trouble] = []
        self.count = 0

    def trouble(self, node: Any, path: KeyPath, message: str, value: object = None) -> None:
        self.troubles.append(
            Trouble(dotted(path), message, value, file=self.file, path=path, **_counted(node.start_mark))
        )

    def value(self, node: Any, path: KeyPath) -> Any:
        self.count += 1
        if self.count > MOST_VALUES:
            raise _too_large(later("holds more than {most:,} values", most=MOST_VALUES), self.file)
        if node.id in ("mapping", "sequence") and str(node.tag) not in (_TAG + "map", _TAG + "seq"):
            self.trouble(node, path, _no_meaning(str(node.tag)))
        if node.id == "mapping":
            return self.mapping(node, path)
        if node.id == "sequence":
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self.scalar(node, path)

    def mapping(self, node: Any, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        first_line: dict[str, int] = {}
        for key, child in node.value:
            if key.id != "scalar":
                self.trouble(key, path, later("a key must be plain text, not a list or a mapping"))
                continue
            name = str(key.value)
            if name in values:
                self.trouble(
                    key,
                    (*path, name),
                    later(
                        "the key {name!r} is written twice, first on line {first_line}",
                        name=name,
                        first_line=first_line[name],
                    ),
                )
                continue
            first_line[name] = key.start_mark.line + 1
            values[name] = self.value(child, (*path, name))
        return values

    def scalar(self, node: Any, path: KeyPath) -> Any:
        text, tag = str(node.value), str(node.tag)
        if tag in _TEXT_TAGS:
            return text
        try:
            return _SCALARS[tag](text)
        except KeyError:
            self.trouble(node, path, _no_meaning(tag))
        except ValueError:
            self.trouble(node, path, later("cannot be read as {tag}", tag=tag.replace(_TAG, "")), value=text)
        return text


def _no_meaning(tag: str) -> str:
    return later("the tag {tag} has no meaning here", tag=tag.replace(_TAG, "!!"))


def _int(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").replace("_", "").lower()
    base = _INT_BASES.get(digits[:2])
    if len(digits) > MOST_DIGITS:
        raise ValueError(text)
    return sign * (int(digits[2:], base) if base else int(digits))


def _float(text: str) -> float:
    plain = text.replace("_", "").lower()
    return float(plain.replace(".inf", "inf").replace(".nan", "nan"))


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_SCALARS: dict[str, Any] = {
    _TAG + "int": _int,
    _TAG + "float": _float,
    _TAG + "bool": _bool,
    _TAG + "null": lambda text: None,
}
