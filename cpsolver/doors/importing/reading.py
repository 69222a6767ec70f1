"""What a configuration file of a framework says, as the arguments of a training command; and how such files are known.

Each reader turns one format into Megatron-LM's arguments, so that what they mean is said once. Fields by name stand as
data in formats.yaml: those that become an argument, those that change neither model nor plan, those that are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cpsolver.doors.importing.command import TrainingDevices
from cpsolver.doors.importing.framework import FrameworkGuess
from cpsolver.inputs.data import package_data
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say

_LARGEST = 1e9
NO_DEVICES = TrainingDevices(None, None)
"""A file that says nothing of devices."""
_TABLE = Path(__file__).parent / "formats.yaml"


@dataclass(frozen=True)
class Reading:
    """The arguments that a file of a format stands for, the devices it names, and what a user should know.

    `kind`: the format in words. `program`: what is started, where the file says so. `model` and `training`: fields of
    the architecture and of the spec's section that no argument says. `refusals`: why no plan can express what runs.
    `unread`: fields of the file that nothing here uses. `hint`: text by whose words a model of the catalogue is likely.
    `as_arguments`: the file's fields are Megatron-LM's arguments, so that one which is not there is not given.
    """

    kind: str
    tokens: tuple[str, ...]
    framework: FrameworkGuess
    launched: TrainingDevices = NO_DEVICES
    program: str = ""
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    hint: str = ""
    as_arguments: bool = False


@cache
def table(name: str) -> dict[str, Any]:
    """The fields of a format, from formats.yaml: `arguments`, `harmless`, `refused`."""
    return dict(package_data(_TABLE)[name])


def as_tokens(argument: str, value: Any) -> tuple[str, ...]:
    """`--argument value`, as these frameworks turn settings into arguments: true is the flag, false is nothing."""
    if value is None or value is False:
        return ()
    if value is True:
        return (f"--{argument}",)
    values = value if isinstance(value, list) else [value]
    return (f"--{argument}", *map(str, values))


class Fields:
    """The fields of a file by name, with what is wrong of them in `troubles`; `unread` are those nobody asked for."""

    def __init__(self, data: Mapping[str, Any], file: str, format_name: str) -> None:
        self.data, self.file = dict(data), file
        self.known = table(format_name)
        self.troubles: list[Trouble] = []
        self._asked: set[str] = set()

    def trouble(self, where: str, message: str, value: object = None, allowed: str | None = None) -> None:
        """Note what is wrong with a field."""
        self.troubles.append(Trouble(where, message, value, allowed, file=self.file, path=tuple(where.split("."))))

    def has(self, name: str) -> bool:
        """Whether the field is given and not null."""
        self._asked.add(name)
        return self.data.get(name) is not None

    def number(self, name: str, default: int | None = None, least: int = 1) -> int | None:
        """A field that is a whole number."""
        if not self.has(name):
            return default
        value = self.data[name]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.trouble(name, "must be a whole number", value)
            return default
        if value < least:
            self.trouble(name, say("must be at least {number}", number=least), value)
            return default
        return value

    def real(self, name: str, default: float) -> float:
        """A field that is a number, as large as no width is."""
        value = self.data[name] if self.has(name) else default
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
            self.trouble(name, say("must be a number below {largest:g}", largest=_LARGEST), value)
            return default
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """A field that is true or false."""
        value = self.data[name] if self.has(name) else default
        if not isinstance(value, bool):
            self.trouble(name, "must be true or false", value)
            return default
        return value

    def text(self, name: str, default: str | None = None) -> str | None:
        """A field that is a text."""
        value = self.data[name] if self.has(name) else default
        if value is not None and not isinstance(value, str):
            self.trouble(name, "must be a text", value)
            return default
        return value

    def section(self, name: str) -> dict[str, Any]:
        """A field that holds fields; empty where it is not given."""
        value = self.data[name] if self.has(name) else {}
        if not isinstance(value, dict):
            self.trouble(name, "must hold fields", value)
            return {}
        return value

    def choice(self, name: str, choices: Mapping[str, Any], default: str) -> Any:
        """What one of some texts stands for."""
        value = self.text(name, default)
        if value is None or value not in choices:
            self.trouble(name, "is not planned for", value, ", ".join(choices))
            return choices[default]
        return choices[value]

    def mapped(self) -> Iterator[str]:
        """The arguments of fields that have one of the same meaning."""
        for name, argument in self.known.get("arguments", {}).items():
            if self.has(name):
                value = self.data[name]
                if isinstance(value, dict):
                    self.trouble(name, "must be a plain value")
                    continue
                yield from as_tokens(argument, value)

    def refuse(self) -> None:
        """Note the fields that change the model, its time or its memory in a way that is not planned for."""
        for name, what in self.known.get("refused", {}).items():
            if self.has(name) and self.data[name] not in (False, 0, "", [], {}):
                self.trouble(name, say("{what}: that is not planned for", what=say(what)))

    def unread(self) -> tuple[str, ...]:
        """Fields that nothing asked for and that are not harmless."""
        harmless = tuple(self.known.get("harmless", "").split())
        names = [name for name in self.data if name not in self._asked and not name.startswith(harmless)]
        return tuple(names)

    def close(self) -> None:
        """Raise InputError with all that is wrong."""
        if self.troubles:
            raise InputError(self.troubles)


def flattened(data: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Plain values and lists of nested settings, each with its path."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield from flattened(value, (*path, name))
        else:
            yield (*path, name), value


def as_scalar(text: str, constants: Mapping[str, Any]) -> Any:
    """A text as the value that it looks like: one of the constants by its small letters, a number, or itself."""
    if text.lower() in constants:
        return constants[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
