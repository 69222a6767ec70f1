"""One thing to measure, and what came of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Size = dict[str, int | str]


@dataclass(frozen=True)
class MeasurementTask:
    """What to run: `kind` and `size` name it, and are its key in the journal.

    `label` is for people. `flops` and `bytes`: of one call, for how long it may take and what it needs. `rank`: tasks
    of a lower one come first. Of a `group` the first that can be measured is enough.
    """

    kind: str
    size: Size
    label: str
    flops: float = 0.0
    bytes: float = 0.0
    rank: int = 1
    group: str = ""

    @property
    def key(self) -> str:
        """The same for the same task in any run."""
        return key_of(self.kind, self.size)


@dataclass(frozen=True)
class Measurement:
    """What came of a task: seconds of each timed call, or the bytes that were counted.

    `allocated`: the same bytes by the device allocator's counters, None where it has none. `note`: what was run where
    there is a choice. `day`: when, as YYYY-MM-DD.
    """

    kind: str
    size: Size
    seconds: tuple[float, ...] = ()
    bytes: float | None = None
    allocated: float | None = None
    note: str = ""
    day: str = ""

    @property
    def key(self) -> str:
        """The task's."""
        return key_of(self.kind, self.size)

    @property
    def median_s(self) -> float:
        """The median of the repeats in seconds."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the repeats lie within so much around the median: the distance of the quartiles, as a share of it."""
        ordered = sorted(self.seconds)
        last = len(ordered) - 1
        return (ordered[round(0.75 * last)] - ordered[round(0.25 * last)]) / self.median_s

    def number(self, name: str) -> int:
        """A whole number of its size."""
        return int(self.size[name])


@dataclass(frozen=True)
class NotMeasured:
    """What was not measured, and why."""

    label: str
    reason: str


@dataclass(frozen=True)
class MeasurementSet:
    """All that a run has: measurements (of earlier runs too), what was left out, and how it ended."""

    found: tuple[Measurement, ...]
    left_out: tuple[NotMeasured, ...] = ()
    taken_up: int = 0
    interrupted: bool = False
    wall_s: float = 0.0
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def days(self) -> str:
        """When it was measured: a day, or the first and the last."""
        listed = sorted({each.day for each in self.found if each.day})
        return " to ".join(dict.fromkeys((listed[0], listed[-1]))) if listed else "never"

    def of(self, kind: str, **size: int | str) -> list[Measurement]:
        """Those of a kind whose size has these."""
        return [
            each for each in self.found if each.kind == kind and all(each.size.get(k) == v for k, v in size.items())
        ]


def key_of(kind: str, size: Size) -> str:
    """A task's name in the journal."""
    return json.dumps([kind, size], sort_keys=True)
