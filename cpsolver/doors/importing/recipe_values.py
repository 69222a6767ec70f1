"""Values of configurations that are read as text (recipe_text), and what operators make of them."""

from __future__ import annotations

import ast
import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


class _Unclear:
    """A value that reading cannot know."""

    def __bool__(self) -> bool:
        raise TypeError

    def __deepcopy__(self, _known: dict[int, Any]) -> _Unclear:
        return self

    def __repr__(self) -> str:
        return "UNCLEAR"


UNCLEAR = _Unclear()
_LARGEST = 10**15
"""The largest number that is followed."""
LONGEST = 1000
"""The longest text or list that is followed."""
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
}
TYPES: dict[str, type] = {"str": str, "int": int, "bool": bool, "float": float, "dict": dict, "list": list}
FUNCTIONS: dict[str, Callable[..., Any]] = {"len": len, "max": max, "min": min, "int": int, "list": list}
METHODS: dict[type, tuple[str, ...]] = {
    str: ("lower", "upper", "strip", "startswith", "endswith"),
    list: ("append", "extend", "insert", "remove", "pop", "copy", "clear"),
    dict: ("get", "items", "keys", "values", "update", "pop", "setdefault", "copy"),
}


@dataclass
class Configured:
    """An object with fields: of which class or function it is, and what its fields are set to."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)

    def put(self, dotted: str, value: Any) -> bool:
        """Set a field by the sections above it, made where they lack; False: something above it has no fields."""
        *path, last = dotted.split(".")
        held: Any = self
        for part in path:
            held = held.fields.setdefault(part, Configured(part)) if isinstance(held, Configured) else None
        if isinstance(held, Configured):
            held.fields[last] = value
        return isinstance(held, Configured)

    def get(self, dotted: str) -> Any:
        """A field by the sections above it; None where it is not set."""
        held: Any = self
        for part in dotted.split("."):
            held = held.fields.get(part) if isinstance(held, Configured) else None
        return held

    def plain(self) -> dict[str, Any]:
        """Its fields as nested dictionaries; UNCLEAR for those of which any part is not clear."""
        return {key: _plain(value) for key, value in self.fields.items()}


def from_library(name: str, given: list[Any], named: dict[str, Any]) -> Any:
    """What a function or a class of elsewhere gives: copies of copy and dataclasses, an object of a class."""
    if name in ("copy", "deepcopy", "replace") and given:
        copied = copy.deepcopy(given[0])
        return Configured(copied.kind, copied.fields | named) if isinstance(copied, Configured) else copied
    return UNCLEAR if name.lstrip("_")[:1].islower() else Configured(name, named)


def tried(function: Callable[..., Any], given: Sequence[Any]) -> Any:
    """What a function of Python's own gives; UNCLEAR where it refuses."""
    try:
        return function(*given)
    except (TypeError, ValueError, LookupError, AttributeError):
        return UNCLEAR


def _plain(value: Any) -> Any:
    if isinstance(value, Configured):
        return value.plain()
    parts = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else ()
    return UNCLEAR if any(_plain(part) is UNCLEAR for part in parts) else value


def truth(value: Any) -> bool | None:
    """Whether a value counts as true; None: not clear."""
    if value is UNCLEAR:
        return None
    return True if isinstance(value, Configured) else bool(value)


def applied(op: ast.AST, *values: Any) -> Any:
    """What an operator makes of values; UNCLEAR where any part of them is, and for what is too large to follow."""
    known = _OPERATORS.get(type(op))
    named = isinstance(op, ast.Is | ast.IsNot)
    if known is None or any(
        _plain(value) is UNCLEAR if not isinstance(value, Configured) else not named for value in values
    ):
        return UNCLEAR
    if isinstance(op, ast.Add | ast.Mult) and any(isinstance(value, str | list | tuple) for value in values):
        sizes = [len(value) if isinstance(value, str | list | tuple) else value for value in values]
        if any(not isinstance(size, int) or size > LONGEST for size in sizes):
            return UNCLEAR
    try:
        found = known(*values)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return UNCLEAR
    return UNCLEAR if isinstance(found, int) and abs(found) > _LARGEST else found


def item(held: Any, at: Any) -> Any:
    """What stands at a place or under a key; UNCLEAR where nothing is known to."""
    return UNCLEAR if at is UNCLEAR or isinstance(held, Configured) else tried(lambda: held[at], ())
