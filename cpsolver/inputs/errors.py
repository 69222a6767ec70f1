"""What a user did wrong, said so that it can be mended: place, value, what is allowed, the nearest name."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cpsolver.inputs.language import later, say

EXIT_BAD_INPUT = 2
"""The input is wrong; every problem found was listed."""
EXIT_INFEASIBLE = 3
"""It is proven that no plan exists."""
EXIT_NO_PLAN_IN_TIME = 4
"""The time limit passed before a first plan was found."""

Path = tuple[str | int, ...]
"""The keys and list indices that lead to a value, e.g. `("cluster", "num_gpus")`."""


class _Short(reprlib.Repr):
    """Short forms, of whole numbers of any size too: Python writes those of thousands of digits in hexadecimal only."""

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() < 10_000:
            return super().repr_int(x, level)
        digits = f"{x:#x}"
        return f"{digits[:28]}...{digits[-29:]}"


_short = _Short()
_short.maxstring = _short.maxother = _short.maxlong = 60
_short.maxlevel = 3


def shown(value: object) -> str:
    """A value as a user would recognise it, shortened to some 60 characters; true and false as in YAML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _short.repr(value)


def one_line(text: str) -> str:
    """Text as one line of printable characters, for a comment in a file; all others as Python escapes them: `\\n`.

    A name of the user's then cannot end the comment that it stands in.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def dotted(path: Iterable[str | int]) -> str:
    """A path as people write it: `search.pin.tp[1]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


@dataclass(frozen=True)
class Trouble:
    """One problem in the input.

    `where` is the dotted name of the value, `value` what was written (None: nothing to show), `message` what
    is wrong, `allowed` what would be right, `nearest` the names most like the one written, best first. `line`
    and `column` count from 1. `path` is `where` in parts; a document can turn it into a line and a column.
    """

    where: str
    message: str
    value: Any = None
    allowed: str | None = None
    nearest: tuple[str, ...] = ()
    line: int | None = None
    column: int | None = None
    file: str | None = None
    path: Path = ()

    @property
    def place(self) -> str:
        """`file:line:column`, as far as it is known; empty when nothing is."""
        file = None if self.file is None else one_line(self.file)
        return ":".join(str(part) for part in (file, self.line, self.column) if part is not None)

    def __str__(self) -> str:
        where = one_line(self.where)
        name = where + (f" = {shown(self.value)}" if self.value is not None and where else "")
        head = " ".join(part for part in (self.place, name) if part)
        message = one_line(say(self.message))
        text = f"{head}: {message}" if head else message
        if self.allowed:
            text += say(" (allowed: {allowed})", allowed=one_line(say(self.allowed)))
        if self.nearest:
            text += say("; did you mean {names}?", names=say(" or ").join(repr(name) for name in self.nearest))
        return text

    def as_dict(self) -> dict[str, object]:
        """The same for machines: plain values only, `value` as text."""
        return {
            "where": self.where,
            "value": None if self.value is None else shown(self.value),
            "message": self.message,
            "allowed": self.allowed,
            "nearest": list(self.nearest),
            "file": self.file,
            "line": self.line,
            "column": self.column,
        }


class InputError(Exception):
    """The input is wrong. `troubles` lists every problem that was found, in the order of the file."""

    exit_code = EXIT_BAD_INPUT

    def __init__(self, troubles: Trouble | Iterable[Trouble]) -> None:
        self.troubles: tuple[Trouble, ...] = (troubles,) if isinstance(troubles, Trouble) else tuple(troubles)
        super().__init__(self.troubles)

    def __str__(self) -> str:
        return "\n".join(str(trouble) for trouble in self.troubles)


class InternalError(Exception):
    """A bug in this program: something is so that no input may make so. The command line ends with exit code 70."""


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter not in "_- .")


def nearest_names(name: object, candidates: Iterable[str], most: int = 2) -> tuple[str, ...]:
    """The candidates most like `name`, best first, at most `most`; empty when none is close.

    Upper and lower case, `_`, `-`, `.` and blanks make no difference.
    """
    if not isinstance(name, str) or not _plain(name):
        return ()
    by_plain: dict[str, list[str]] = {}
    for candidate in candidates:
        by_plain.setdefault(_plain(candidate), []).append(candidate)
    if _plain(name) in by_plain:
        return tuple(by_plain[_plain(name)][:most])
    close = difflib.get_close_matches(_plain(name)[:100], by_plain, n=most, cutoff=0.6)
    return tuple(candidate for plain in close for candidate in by_plain[plain])[:most]


_BOUNDS = (
    ("greater_than_equal", "ge", later("must be at least {number}")),
    ("greater_than", "gt", later("must be more than {number}")),
    ("less_than_equal", "le", later("must be at most {number}")),
    ("less_than", "lt", later("must be less than {number}")),
)
_NOT_A = {
    "bool_type": later("must be true or false"),
    "string_type": later("must be text"),
    "float_type": later("must be a number"),
    "finite_number": later("must be a finite number"),
    "model_type": later("must be a mapping of fields"),
    "model_attributes_type": later("must be a mapping of fields"),
    "dict_type": later("must be a mapping"),
    "mapping_type": later("must be a mapping"),
    "tuple_type": later("must be a list"),
    "list_type": later("must be a list"),
    "too_short": later("must name at least one value"),
    "string_too_short": later("must not be empty"),
    "invalid_key": later("is not text, and a field's name is"),
    "missing": later("is required, and missing"),
    "extra_forbidden": later("is not a known field"),
}
_IS_A: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (type(None), later(", and nothing is given")),
    (bool, later(", not true or false")),
    (str, later(", not text")),
    ((float, int), later(", not a number")),
    (Mapping, later(", not a mapping")),
    ((list, tuple), later(", not a list")),
)


def number(value: float | int) -> str:
    """A number for people: thousands separated, `1,048,576`."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _explain(kind: str, value: object, context: Mapping[str, Any], fallback: str) -> str:
    """A validation error of pydantic, by its type, in plain words: what must be, and how the value is not."""
    for name, key, words in _BOUNDS:
        if kind == name and key in context:
            return say(words, number=number(context[key]))
    if kind == "literal_error":
        return say("is not one of the choices")
    if kind in ("int_type", "int_from_float", "int_parsing_size", "int_parsing"):
        point = isinstance(value, float)
        told = say(", written without a decimal point or exponent") if point else _is_a(value)
        return say("must be a whole number") + told
    text = say(_NOT_A.get(kind, fallback))
    return text + _is_a(value) if kind.endswith("_type") else text


def _is_a(value: object) -> str:
    return next((say(words) for kind, words in _IS_A if isinstance(value, kind)), "")


FieldsAt = Callable[[Path], Mapping[str, Any]]
"""The fields (pydantic's, by name) of the model that stands at a path; empty where none does."""


def validation_trouble(detail: Mapping[str, Any], data: Any, fields_at: FieldsAt) -> Trouble:
    """One of pydantic's error details as a Trouble; `data` is what was validated, as the user wrote it.

    An error of type "rule" brings its own words: its context has `text`, `allowed` and maybe `nearest`.
    """
    loc, kind, context = detail["loc"], detail["type"], detail.get("ctx", {})
    path, value = _as_written(loc, data)
    allowed: str | None = _bounds(loc, fields_at)
    nearest: tuple[str, ...] = ()
    if kind == "missing":
        path, value, allowed = (*path, loc[-1]), None, None
    elif kind == "rule":
        message, allowed, nearest = context["text"], context["allowed"], context.get("nearest", ())
        return Trouble(dotted(path), message, value, allowed, nearest, path=path)
    elif kind == "extra_forbidden":
        fields = list(fields_at(loc[:-1]))
        nearest = nearest_names(loc[-1], fields)
        allowed = None if nearest else ", ".join(fields)
    elif kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        allowed, nearest = ", ".join(choices), nearest_names(value, choices)
    elif kind in ("model_type", "model_attributes_type"):
        allowed = ", ".join(fields_at(loc)) or None
    message = _explain(kind, value, context, detail["msg"])
    return Trouble(dotted(path), message, value, allowed, nearest, path=path)


def _as_written(loc: Path, data: Any) -> tuple[Path, Any]:
    """The path and value in the user's own data, without the steps that only a short form's long form has."""
    path: list[str | int] = []
    for part in loc:
        listed = isinstance(data, (list, tuple)) and isinstance(part, int) and part < len(data)
        if listed or (isinstance(data, Mapping) and part in data):
            data = data[part]
            path.append(part)
    return tuple(path), data


def _bounds(loc: Path, fields_at: FieldsAt) -> str | None:
    """`1 to 1,048,576` for a number's field with two bounds."""
    field = fields_at(loc[:-1]).get(str(loc[-1])) if loc else None
    least = most = None
    for rule in getattr(field, "metadata", ()):
        least, most = getattr(rule, "ge", least), getattr(rule, "le", most)
    return (
        say("{least} to {most}", least=number(least), most=number(most))
        if least is not None and most is not None
        else None
    )
