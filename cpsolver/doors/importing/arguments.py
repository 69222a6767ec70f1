"""The arguments of a training command, read as argparse reads them: how many values each takes, prefixes, `=` forms."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from cpsolver.doors.importing.variables import ShellVariables
from cpsolver.inputs.data import package_data
from cpsolver.inputs.errors import Trouble
from cpsolver.inputs.language import say
from cpsolver.spec.training import MOST

_TABLE = Path(__file__).parent / "arguments.yaml"
_LIKE = 0.85
"""Similarity, of 1, from which an unknown name counts as a misspelling of one that is read."""
_LIKE_WORDS, _LIKE_JOINED = 0.6, 0.95
"""The same of each of its words, and of all letters where dashes stand elsewhere."""


@cache
def table() -> dict[str, frozenset[str]]:
    """The names in arguments.yaml by its headings, without dashes."""
    return {heading: frozenset(names.split()) for heading, names in package_data(_TABLE).items()}


@cache
def _former() -> dict[str, str]:
    """Names of Megatron-LM 1.1.5 and of DeepSpeed's examples on it -> today's.

    Megatron-DeepSpeed 8387ae1 (megatron/arguments.py) says what stands for the first and the third; the last is of
    alibaba/Megatron-LLaMA 25306de, whose own distributed optimizer overlaps what it sends.
    """
    return pairs("former")


@cache
def pairs(heading: str) -> dict[str, str]:
    """The words below a heading of arguments.yaml that has them in pairs: what is written, and what stands for it."""
    words = str(package_data(_TABLE)[heading]).split()
    return dict(zip(words[::2], words[1::2], strict=True))


def _known() -> frozenset[str]:
    names = table()
    return names["flag"] | names["one"] | names["many"] | names["used"]


class Arguments:
    """The arguments of a training command by name, without dashes. `troubles` collects what is wrong with those read.

    `file` and `line`: the place of the command. `unknown` are arguments that no parser of the table has, `loose` words
    that belong to no argument.
    """

    def __init__(
        self, tokens: Sequence[str], variables: ShellVariables, file: str | None = None, line: int | None = None
    ) -> None:
        self.variables, self.file, self.line = variables, file, line
        self.troubles: list[Trouble] = []
        self.unknown: list[str] = []
        self.loose: list[str] = []
        self.given: dict[str, tuple[str, ...]] = {}
        self._looked_up: set[str] = set()
        self._parse(list(tokens))

    def _parse(self, tokens: list[str]) -> None:
        names = table()
        while tokens:
            token = tokens.pop(0)
            if not _is_option(token):
                self.loose.append(self.variables.shown(token))
                continue
            written, equals, value = token.partition("=")
            name = self._resolved(written.removeprefix("--"))
            values = [value] if equals else []
            takes_one = name in names["one"] or (name in names["used"] and name not in names["many"])
            limit = 0 if equals or name in names["flag"] else 1 if takes_one else len(tokens)
            while tokens and len(values) < limit and not _is_option(tokens[0]):
                values.append(tokens.pop(0))
            today = _former().get(name, name)
            self.given[name if today in self.given else today] = tuple(values)

    def _resolved(self, written: str) -> str:
        """The full name of an argument as written, which argparse lets users abbreviate."""
        if written in _known():
            return written
        completions = [name for name in _known() if name.startswith(written)]
        candidates = [name for name in completions if name in table()["used"]] or completions
        if len(candidates) == 1:
            return candidates[0]
        if len(candidates) > 1 and candidates[0] in table()["used"]:
            options = [f"--{name}" for name in sorted(candidates)]
            self.trouble(f"--{written}", "is the start of several arguments", allowed=", ".join(options))
            return written
        similar = difflib.get_close_matches(written.replace("_", "-"), table()["used"], n=3, cutoff=_LIKE)
        meant = [name for name in similar if _misspells(written.replace("_", "-"), name)]
        if meant and not _is_harmless(written):
            self.trouble(f"--{written}", "is not a known argument", nearest=(f"--{meant[0]}",))
        else:
            self.unknown.append(f"--{written}")
        return written

    def trouble(
        self, where: str, message: str, value: object = None, allowed: str | None = None, nearest: tuple[str, ...] = ()
    ) -> None:
        """Note what is wrong, with the place of the command."""
        self.troubles.append(Trouble(where, message, value, allowed, nearest, line=self.line, file=self.file))

    def has(self, name: str) -> bool:
        """Whether the argument is given, whatever its values."""
        assert name in table()["used"], name
        self._looked_up.add(name)
        return name in self.given

    def note_read(self, name: str) -> None:
        """Count an argument as read, of whatever table it is."""
        self._looked_up.add(name)

    def of_deepspeed(self) -> bool:
        """Whether the experts are Megatron-DeepSpeed's, whose arguments have other names and defaults."""
        return "deepspeed" in self.given or self.has("expert-interval")

    def values(self, name: str) -> tuple[str, ...]:
        """All values of an argument; none where it is not given, or where one is unclear, which is a trouble."""
        if not self.has(name):
            return ()
        for value in self.given[name]:
            for unclear in self.variables.unclear_in(value):
                self.trouble(
                    f"--{name}",
                    say(
                        "needs {name}, which {reason} (line {line})",
                        name=unclear.name,
                        reason=unclear.reason,
                        line=unclear.line,
                    ),
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
            told = say("must be at most {number}", number=f"{most:,}")
            told = say("must be at least {number}", number=least) if value < least else told
            self.trouble(f"--{name}", told, value)
            return default
        return value

    def real(self, name: str, default: float) -> float:
        """The value of an argument as a number."""
        text = self.text(name)
        try:
            number = default if text is None else float(text)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return number
        self.trouble(f"--{name}", "must be a number", text)
        return default

    def numbers(self, name: str) -> list[int] | None:
        """The values of an argument as whole numbers, separated by blanks or commas; None where it is not given."""
        texts = [
            part for value in self.values(name) for part in pairs("sizes").get(value, value).replace(",", " ").split()
        ]
        if not texts:
            self.text(name)
            return None
        try:
            return [int(text) for text in texts]
        except ValueError:
            self.trouble(f"--{name}", "must be whole numbers", " ".join(texts))
            return None

    def unread(self) -> list[str]:
        """Arguments that no framework here knows, and that nothing is told of."""
        return [written for written in self.unknown if written.removeprefix("--") not in self._looked_up]

    def suspect(self) -> list[str]:
        """Of these the ones that may change the plan: no word of the name says that it is about something else.

        A start that is harmless in names that are known counts where no word says that the name matters.
        """
        return [written for written in self.unread() if _is_suspect(written)]

    def unused(self) -> tuple[str, ...]:
        """Arguments that the frameworks know, that the import does not read, and that are not harmless."""
        unread = [name for name in self.given if name not in self._looked_up and f"--{name}" not in self.unknown]
        in_trouble = {trouble.where for trouble in self.troubles}
        return tuple(f"--{name}" for name in unread if not _is_harmless(name) and f"--{name}" not in in_trouble)


_MATTERS = re.compile(
    "parallel|optimizer|recompute|offload|overlap|shard|pipeline|expert|moe|fp8|fp4|quant|lora|interleav|schedule|freeze|"
    "alibi|attn|attention|window|norm(?!aliz)|all-to-all|all2all|"
    "hidden[-_]size|per[-_]layer|sdpa|[-_]dim([-_]|$)|mtp(?![-_]loss)|nextn"
)


def by_name(names: Iterable[str]) -> list[str]:
    """Of arguments or fields those whose names say that they may change the plan."""
    return [name for name in names if _MATTERS.search(name)]


def _is_suspect(written: str) -> bool:
    """Whether a name that no framework here has may change the plan."""
    name = written.removeprefix("--").lower()
    starts = [start for start in table()["harmless"] if name.startswith(start)]
    if starts:
        return bool(by_name([name[max(map(len, starts)) :]])) and not _is_aside(written)
    return bool(by_name([name])) or not _is_aside(written)


def _misspells(written: str, name: str) -> bool:
    """Whether a name is the other with letters wrong or words left out; one with another word is a fork's own."""
    ours, theirs = written.split("-"), name.split("-")
    if len(ours) == len(theirs):
        return all(_ratio(one, other) >= _LIKE_WORDS for one, other in zip(ours, theirs, strict=True))
    if len(ours) < len(theirs):
        rest = iter(theirs)
        if all(any(_ratio(one, other) >= _LIKE_WORDS for other in rest) for one in ours):
            return True
    return _ratio("".join(ours), "".join(theirs)) >= _LIKE_JOINED


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _is_option(token: str) -> bool:
    return token.startswith("--") and len(token) > 2


def _is_aside(written: str) -> bool:
    """Whether a word of the name is about what is logged, read, written or learned."""
    return any(word in table()["aside"] for word in re.split("[-_]+", written.lower()))


def _is_harmless(name: str) -> bool:
    return name.lower().startswith(tuple(table()["harmless"]))
