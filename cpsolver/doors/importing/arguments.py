"""The arguments of a training command, read as argparse reads them: how many values each takes, prefixes, `=` forms."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cpsolver.doors.importing.variables import Variables
from cpsolver.inputs.data import package_data
from cpsolver.inputs.errors import Trouble
from cpsolver.spec.decisions import MOST

_TABLE = Path(__file__).parent / "arguments.yaml"
_LIKE = 0.85
"""How alike an unknown name must be to one that is used, of 1, to be taken for its misspelling."""


@cache
def table() -> dict[str, frozenset[str]]:
    """The names in arguments.yaml by its headings, without dashes."""
    return {heading: frozenset(names.split()) for heading, names in package_data(_TABLE).items()}


def _known() -> frozenset[str]:
    named = table()
    return named["flag"] | named["one"] | named["many"] | named["used"]


class Arguments:
    """What the arguments say, by name without dashes; `troubles` collects what is wrong with those asked for.

    `file` and `line` are those of the command. `unknown` are arguments that no parser of the table has, `loose` words
    that belong to no argument.
    """

    def __init__(
        self, tokens: Sequence[str], variables: Variables, file: str | None = None, line: int | None = None
    ) -> None:
        self.variables, self.file, self.line = variables, file, line
        self.troubles: list[Trouble] = []
        self.unknown: list[str] = []
        self.loose: list[str] = []
        self.given: dict[str, tuple[str, ...]] = {}
        self._asked: set[str] = set()
        self._parse(list(tokens))

    def _parse(self, tokens: list[str]) -> None:
        while tokens:
            token = tokens.pop(0)
            if not _is_option(token):
                self.loose.append(self.variables.shown(token))
                continue
            written, equals, value = token.partition("=")
            name = self._resolved(written.removeprefix("--"))
            values = [value] if equals else []
            most = 0 if equals or name in table()["flag"] else 1 if self._takes_one(name) else len(tokens)
            while tokens and len(values) < most and not _is_option(tokens[0]):
                values.append(tokens.pop(0))
            self.given[name] = tuple(values)

    def _takes_one(self, name: str) -> bool:
        named = table()
        return name in named["one"] or (name in named["used"] and name not in named["many"])

    def _resolved(self, written: str) -> str:
        """The name that a written one stands for: itself, or the only one that it is the start of."""
        if written in _known():
            return written
        begun = [name for name in _known() if name.startswith(written)]
        likely = [name for name in begun if name in table()["used"]] or begun
        if len(likely) == 1:
            return likely[0]
        if len(likely) > 1 and likely[0] in table()["used"]:
            options = [f"--{name}" for name in sorted(likely)]
            self.trouble(f"--{written}", "is the start of several arguments", allowed=", ".join(options))
            return written
        alike = difflib.get_close_matches(written.replace("_", "-"), table()["used"], n=1, cutoff=_LIKE)
        if alike and not _is_harmless(written):
            self.trouble(f"--{written}", "is not a known argument", nearest=(f"--{alike[0]}",))
        else:
            self.unknown.append(f"--{written}")
        return written

    def trouble(
        self, where: str, message: str, value: object = None, allowed: str | None = None, nearest: tuple[str, ...] = ()
    ) -> None:
        """Note what is wrong, at the command's place."""
        self.troubles.append(Trouble(where, message, value, allowed, nearest, line=self.line, file=self.file))

    def has(self, name: str) -> bool:
        """Whether the argument is given, whatever its values."""
        assert name in table()["used"], name
        self._asked.add(name)
        return name in self.given

    def values(self, name: str) -> tuple[str, ...]:
        """All values of an argument; none where it is not given, or one of them is unclear (which is a trouble)."""
        if not self.has(name):
            return ()
        for value in self.given[name]:
            for unclear in self.variables.unclear_in(value):
                self.trouble(
                    f"--{name}",
                    f"needs {unclear.name}, which {unclear.reason} (line {unclear.line})",
                    allowed=f"--set {unclear.name}=VALUE" if unclear.name.isidentifier() else None,
                )
                return ()
        return self.given[name]

    def text(self, name: str, default: str | None = None) -> str | None:
        """The value of an argument."""
        values = self.values(name)
        if not values:
            if self.has(name) and not self.given[name]:
                self.trouble(f"--{name}", "has no value")
            return default
        return values[-1]

    def number(self, name: str, default: int | None = None, least: int = 1, most: int = MOST) -> int | None:
        """The value of an argument as a whole number from `least` to `most`."""
        text = self.text(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            self.trouble(f"--{name}", "must be a whole number", text)
            return default
        if not least <= value <= most:
            bound = f"at least {least}" if value < least else f"at most {most:,}"
            self.trouble(f"--{name}", f"must be {bound}", value)
            return default
        return value

    def real(self, name: str, default: float) -> float:
        """The value of an argument as a number."""
        text = self.text(name)
        try:
            return default if text is None else float(text)
        except ValueError:
            self.trouble(f"--{name}", "must be a number", text)
            return default

    def numbers(self, name: str) -> list[int] | None:
        """The values of an argument as whole numbers, by blanks or commas; None where it is not given."""
        texts = [part for value in self.values(name) for part in value.replace(",", " ").split()]
        if not texts:
            self.text(name)
            return None
        try:
            return [int(text) for text in texts]
        except ValueError:
            self.trouble(f"--{name}", "must be whole numbers", " ".join(texts))
            return None

    def flag(self, name: str) -> bool:
        """Whether an argument without a value is there."""
        return self.has(name)

    def unused(self) -> tuple[str, ...]:
        """Arguments that a parser knows, that nobody asked for, and that are not harmless."""
        rest = [name for name in self.given if name not in self._asked and f"--{name}" not in self.unknown]
        wrong = {trouble.where for trouble in self.troubles}
        return tuple(f"--{name}" for name in rest if not _is_harmless(name) and f"--{name}" not in wrong)


def _is_option(token: str) -> bool:
    return token.startswith("--") and len(token) > 2


def _is_harmless(name: str) -> bool:
    return name.lower().startswith(tuple(table()["harmless"]))
