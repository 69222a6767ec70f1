"""An axis of a sweep: a field of the spec with its values, or a name with values that set several fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpsolver.doors.batch.fields import FieldPath, is_field, leaves_of, nearest_fields, unknown_part
from cpsolver.inputs.errors import Path as KeyPath
from cpsolver.inputs.errors import Trouble, dotted
from cpsolver.inputs.language import later, say
from cpsolver.inputs.limits import MOST_CELLS

_RANGE = ("from", "to", "step")


@dataclass(frozen=True)
class Setting:
    """A value for a field of the spec; `origin` is where the sweep file has it."""

    path: FieldPath
    value: Any
    origin: KeyPath


@dataclass(frozen=True)
class Choice:
    """One value of an axis, or one cell of the list: what it is called, and the fields that it sets."""

    label: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Axis:
    """A name and its values."""

    name: str
    choices: tuple[Choice, ...]

    @property
    def paths(self) -> tuple[FieldPath, ...]:
        """The fields that its values set."""
        return tuple(dict.fromkeys(setting.path for choice in self.choices for setting in choice.settings))


def read_axis(name: str, values: Any, found: list[Trouble]) -> Axis | None:
    """The axis of that name in the grid; what is wrong with it is added to `found`, and None returned."""
    at: KeyPath = ("grid", name)
    if is_field(name) and unknown_part(tuple(name.split("."))) is not None:
        found.append(_unknown(name, at))
        return None
    items = _values(values, at, found)
    before = len(found)
    placed = list(enumerate(items or ()))
    if not is_field(name):
        placed = _mappings(name, placed, at, found)
    read = [_choice(name, item, (*at, place), found) for place, item in placed]
    choices = [choice for choice in read if choice is not None]
    check_labels(choices, at, found)
    return Axis(name, tuple(choices)) if items and len(found) == before else None


def check_labels(choices: Sequence[Choice], at: KeyPath, found: list[Trouble]) -> None:
    """Values that have the label of another one before them are added to `found`."""
    first: dict[str, int] = {}
    for place, choice in enumerate(choices):
        if first.setdefault(choice.label, place) != place:
            told = say("has the label of value {number}: {label!r}", number=first[choice.label] + 1, label=choice.label)
            found.append(Trouble(dotted((*at, place)), told, allowed=say("a label of its own"), path=(*at, place)))


def _mappings(name: str, placed: list[tuple[int, Any]], at: KeyPath, found: list[Trouble]) -> list[tuple[int, Any]]:
    """The mappings among an axis's values. The first value that is none is told for all: a range has thousands."""
    others = [(place, item) for place, item in placed if not isinstance(item, Mapping)]
    if others:
        place, item = others[0]
        told = say(
            "{name!r} is no field of a spec, and the values of an axis with a name of its own are mappings", name=name
        )
        allowed, path = say("{example} say", example="{label: small, cluster.num_gpus: 64}"), (*at, place)
        found.append(Trouble(dotted(path), told, item, allowed, nearest_fields(name), path=path))
    return [(place, item) for place, item in placed if isinstance(item, Mapping)]


def _values(values: Any, at: KeyPath, found: list[Trouble]) -> list[Any] | None:
    """The values of an axis, a range written out; None with a trouble where they are neither."""
    if isinstance(values, list) and values:
        return values
    if isinstance(values, Mapping) and set(values) == set(_RANGE):
        first, last, step = (values[key] for key in _RANGE)
        if all(type(one) is int for one in (first, last, step)) and step > 0 and first <= last:
            count = (last - first) // step + 1
            if count <= MOST_CELLS:
                return list(range(first, last + 1, step))
            found.append(too_many(count, at))
            return None
        told = later("must have whole numbers, `from` not above `to`, and a `step` above 0")
        found.append(Trouble(dotted(at), told, dict(values), path=at))
        return None
    told = later("must be a list of values") if values != [] else later("has no values")
    allowed = say("{list}, or {range}", list="[16, 32, 64]", range="{from: 16, to: 64, step: 16}")
    found.append(Trouble(dotted(at), told, values, allowed, path=at))
    return None


def too_many(count: int, at: KeyPath) -> Trouble:
    """More cells than a sweep may have."""
    told, most = say("makes {count:,} cells", count=count), say("at most {most:,}", most=MOST_CELLS)
    return Trouble(dotted(at), told, allowed=most, path=at)


def _choice(name: str, item: Any, at: KeyPath, found: list[Trouble]) -> Choice | None:
    if not is_field(name):
        return read_choice(item, at, found)
    label, value, origin = None, item, at
    if isinstance(item, Mapping) and set(item) == {"label", "value"}:
        label, value, origin = item["label"], item["value"], (*at, "value")
    settings = tuple(Setting(path, one, origin) for path, one in leaves_of(tuple(name.split(".")), value))
    return Choice(text_of(value if label is None else label), settings)


def read_choice(item: Any, at: KeyPath, found: list[Trouble]) -> Choice | None:
    """A mapping of dotted fields with, maybe, a label; what is wrong with it is added to `found`."""
    before = len(found)
    if not isinstance(item, Mapping):
        found.append(Trouble(dotted(at), later("must be a mapping of dotted fields"), item, path=at))
        return None
    fields = {key: value for key, value in item.items() if key != "label"}
    if not fields:
        found.append(Trouble(dotted(at), later("sets no field"), path=at))
    settings: list[Setting] = []
    for key, value in fields.items():
        for path, one in leaves_of(tuple(key.split(".")), value):
            if unknown_part(path) is not None:
                found.append(_unknown(".".join(path), (*at, key)))
            settings.append(Setting(path, one, (*at, key)))
    label = item.get("label")
    if label is None:
        label = fields if len(fields) > 1 else next(iter(fields.values()), None)
    return Choice(text_of(label), tuple(settings)) if len(found) == before else None


def _unknown(name: str, at: KeyPath) -> Trouble:
    wrong = unknown_part(tuple(name.split(".")))
    part, fields, _ = wrong if wrong is not None else (name, (), ())
    near = nearest_fields(name)
    allowed = None if near else ", ".join(fields)
    return Trouble(
        dotted(at), say("{part} is not a field of a spec", part=part), allowed=allowed, nearest=near, path=at
    )


def text_of(value: Any) -> str:
    """A value as a short label: `llama2-7b`, `512`, `a800:128 h800:160`."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}:{text_of(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(text_of(item) for item in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)
