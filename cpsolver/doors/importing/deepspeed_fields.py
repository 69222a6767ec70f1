"""What else DeepSpeed's own file says that changes a model, its memory or its time: told, as no plan holds it.

Names and defaults are those of DeepSpeed edaa7221 (0.19.6): runtime/constants.py, runtime/zero/config.py,
runtime/tensor_parallel/config.py, compression/constants.py. The table is `deepspeed_file` in scope.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.inputs.data import package_data
from cpsolver.inputs.language import say

_TABLE = Path(__file__).parent / "scope.yaml"
_OFF = ("", "none", "null", "false", "0")
_BATCHES = (("train_batch_size", "global-batch-size"), ("train_micro_batch_size_per_gpu", "micro-batch-size"))
"""A field, and the argument that has to say the same: the engine counts by the one, the data come by the other."""


def notes_of_fields(data: Mapping[str, Any], file: str, arguments: Arguments) -> list[str]:
    """A note for each field that is on, and for each batch that is not the arguments'."""
    told = fields_on(data, file)
    for field, name in _BATCHES:
        number, given = data.get(field), arguments.given.get(name, ("",))[-1:]
        if isinstance(number, int) and given and given[0].isdigit() and int(given[0]) != number:
            told.append(
                say(
                    "{file}: {field} {number}, where --{name} says {given}, which is taken",
                    file=file,
                    field=field,
                    number=number,
                    name=name,
                    given=given[0],
                )
            )
    return told


def fields_on(data: Mapping[str, Any], file: str) -> list[str]:
    """A note for each field that is on."""
    return [
        say("{file}: {field} is not in the plan: {what}", file=file, field=field, what=say(what))
        for field, what in _fields().items()
        if _says(data, field)
    ]


@cache
def _fields() -> dict[str, str]:
    return {str(key): str(value) for key, value in package_data(_TABLE)["deepspeed_file"].items()}


def _says(data: Mapping[str, Any], condition: str) -> bool:
    """Whether a field, by its place (`section.name`), is on, or has the value behind `=`."""
    place, _, wanted = condition.partition("=")
    value: Any = data
    for part in place.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return str(value).lower() == wanted if wanted else is_on(value)


def is_on(value: Any) -> bool:
    """Whether a value says that something is in use: a section by what is `enabled` in it, a number above 1."""
    if isinstance(value, dict):
        switches = list(_switches(value))
        return any(switches) if switches else bool(value)
    if isinstance(value, str):
        return value.lower() not in _OFF
    return value > 1 if isinstance(value, int | float) and not isinstance(value, bool) else value is True


def _switches(section: Mapping[str, Any]) -> Iterator[bool]:
    for name, value in section.items():
        if name == "enabled":
            yield value is True or str(value).lower() == "true"
        elif isinstance(value, dict):
            yield from _switches(value)
