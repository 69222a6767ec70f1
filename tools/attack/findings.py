"""What an attack found, and the smallest input that still shows it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from time import monotonic
from typing import Any


@dataclass(frozen=True)
class Finding:
    """Something that must not be. `reproduction` is text that shows it: a spec, or an input with its command."""

    kind: str
    what: str
    seed: str
    reproduction: str

    def __str__(self) -> str:
        return f"{self.kind}, seed {self.seed}: {self.what}\n{self.reproduction.rstrip()}\n"


@dataclass
class Report:
    """Counts by kind of attack, and findings."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Report) -> None:
        """Take in what another part has found."""
        self.counts.update(other.counts)
        self.findings += other.findings

    def as_text(self) -> str:
        """Counts as a list, then every finding with its reproduction."""
        lines = [f"{count:8,}  {what}" for what, count in sorted(self.counts.items())]
        return "\n".join([*lines, "", *map(str, self.findings), f"{len(self.findings)} findings"])

    def as_json(self) -> str:
        """The same for machines."""
        return json.dumps({"counts": dict(self.counts), "findings": [vars(one) for one in self.findings]}, indent=1)


def smallest(value: Any, still: Callable[[Any], bool], seconds: float = 60.0) -> Any:
    """The value with fields and items dropped one by one as long as `still` holds, within so many seconds."""
    end, again = monotonic() + seconds, True
    while again and monotonic() < end:
        again = False
        for path in list(_paths(value)):
            shorter = _without(value, path)
            if shorter is not None and monotonic() < end and still(shorter):
                value, again = shorter, True
                break
    return value


def shortest(text: bytes, still: Callable[[bytes], bool], seconds: float = 20.0) -> bytes:
    """The text with stretches cut out, halves first and single bytes last, as long as `still` holds."""
    end, size = monotonic() + seconds, max(1, len(text) // 2)
    while size and monotonic() < end:
        at = 0
        while at < len(text) and monotonic() < end:
            shorter = text[:at] + text[at + size :]
            if still(shorter):
                text = shorter
            else:
                at += size
        size //= 2
    return text


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Keys that lead to every part, whole parts before what is in them."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield (*before, key)
        yield from _paths(part, (*before, key))


def _without(value: Any, path: tuple[Any, ...]) -> Any:
    copy = deepcopy(value)
    inner = copy
    try:
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
    except (KeyError, IndexError, TypeError):
        return None
    return copy
