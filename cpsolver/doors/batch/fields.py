"""Dotted names of a spec's fields: which there are, and setting them in a spec's plain values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil
from typing import Any, get_args

from pydantic import BaseModel

from cpsolver.inputs.errors import nearest_names
from cpsolver.spec.cluster import NO_LIMIT, Cluster
from cpsolver.spec.spec import Spec

FieldPath = tuple[str, ...]
"""A field in parts: `("cluster", "num_gpus")`."""

_CHIPS = ("cluster", "chips")
_NODE = Cluster.model_fields["gpus_per_node"].default


def is_field(name: str) -> bool:
    """Whether a dotted name starts with a field of a spec, so that it can only mean one."""
    return name.split(".")[0] in Spec.model_fields


def unknown_part(path: FieldPath) -> tuple[str, tuple[str, ...], tuple[str, ...]] | None:
    """The part of a path that no section has, what the section has, and the nearest names; None: all is known."""
    section: type[BaseModel] | None = Spec
    for place, part in enumerate(path):
        if section is None:
            return None  # names of chips, or a model's own fields: the spec's check knows them
        fields = tuple(section.model_fields)
        if part not in fields:
            near = nearest_names(part, fields) or nearest_names(part, _leaves())
            return ".".join(path[: place + 1]), fields, near
        section = section_at(path[: place + 1])
    return None


def section_at(path: FieldPath) -> type[BaseModel] | None:
    """The section (pydantic's model) at a path; None where a value stands."""
    section: type[BaseModel] = Spec
    for part in path:
        field = section.model_fields.get(part)
        found = [] if field is None else [kind for kind in _kinds(field.annotation) if issubclass(kind, BaseModel)]
        if not found:
            return None
        section = found[0]
    return section


def _kinds(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type):
        yield annotation
    elif getattr(annotation, "__origin__", None) is not dict:
        for part in get_args(annotation):
            yield from _kinds(part)


def _leaves() -> list[str]:
    """Names of the fields in all sections, dotted: what a bare `num_gpus` may have meant."""
    found: list[str] = []
    waiting: list[FieldPath] = [()]
    while waiting:
        path = waiting.pop()
        section = section_at(path)
        for name in () if section is None else section.model_fields:
            found.append(".".join((*path, name)))
            waiting.append((*path, name))
    return found


def nearest_fields(name: str) -> tuple[str, ...]:
    """The dotted fields most like a name: by the whole of it, or by its last part."""
    leaves = _leaves()
    last = {leaf.split(".")[-1]: leaf for leaf in reversed(leaves)}
    near = nearest_names(name, leaves) or tuple(last[part] for part in nearest_names(name.split(".")[-1], last))
    return near[:2]


def leaves_of(path: FieldPath, value: Any) -> Iterator[tuple[FieldPath, Any]]:
    """The fields that a value at a path sets: a section's mapping sets those that it names and leaves the others."""
    if isinstance(value, Mapping) and section_at(path) is not None:
        for name, item in value.items():
            yield from leaves_of((*path, *str(name).split(".")), item)
    else:
        yield path, value


def with_field(data: Mapping[str, Any], path: FieldPath, value: Any, at: FieldPath = ()) -> dict[str, Any]:
    """The spec's values with the one at `path` replaced; sections on the way are made where they are missing."""
    first, *rest = path
    here = (*at, first)
    if rest:
        inside = data.get(first)
        if here == _CHIPS:
            inside = _chips(inside)
        value = with_field(inside if isinstance(inside, Mapping) else {}, tuple(rest), value, here)
    return {**data, first: value}


def _chips(value: Any) -> Any:
    """The short forms of `chips`, one name or a list of them, as a mapping."""
    names = [value] if isinstance(value, str) else value
    return dict.fromkeys(names, NO_LIMIT) if isinstance(names, list) else value


def with_shares(data: dict[str, Any]) -> dict[str, Any]:
    """The spec's values with `chips: {a800: 50 %}` as numbers of devices: that share of num_gpus, in whole nodes.

    Rounded up, so that shares of 100 % in all are enough. What is no share, or has no size to be a share of, stays.
    """
    cluster = data.get("cluster")
    if not isinstance(cluster, Mapping) or not isinstance(cluster.get("chips"), Mapping):
        return data
    total, node = cluster.get("num_gpus"), cluster.get("gpus_per_node", _NODE)
    if type(total) is not int or type(node) is not int or total < 1 or node < 1:
        return data
    chips = {name: _devices(chip, total, node) for name, chip in cluster["chips"].items()}
    return {**data, "cluster": {**cluster, "chips": chips}}


def _devices(chip: Any, total: int, node: int) -> Any:
    """A share as a number of devices; anything else as it is, and what has more digits than a share needs."""
    share = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?%", chip.strip()) if isinstance(chip, str) else None
    if share is None:
        return chip
    return max(1, ceil(Fraction(share[1]) / 100 * total / node)) * node


def overlap(one: FieldPath, other: FieldPath) -> bool:
    """Whether one field is the other, or stands inside it."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
