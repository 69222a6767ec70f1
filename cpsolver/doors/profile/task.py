"""Tasks to measure, and their measurements."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Size = dict[str, int | str]


@dataclass(frozen=True)
class MeasurementTask:
    """What to run. `kind` and `size` identify it, and are its key in the journal.

    `label` is for people. `flops` and `bytes` are those of one call, to predict its time and its memory. Tasks of lower
    `rank` run first. Of the tasks of a `group` one measurement is enough.
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
        """The key in the journal: equal for the same task in any run."""
        return key_of(self.kind, self.size)


@dataclass(frozen=True)
class Measurement:
    """The measurement of a task: seconds of each timed call, or the bytes that were counted.

    `allocated`: the same bytes by the device's allocator, None where it does not count. `note`: the kernel that was
    chosen. `day`: the date, as YYYY-MM-DD.
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
        """The key of the task."""
        return key_of(self.kind, self.size)

    @property
    def median_s(self) -> float:
        """The median of the repeats in seconds."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """The distance of the quartiles of the repeats, as a fraction of the median."""
        ordered = sorted(self.seconds)
        last = len(ordered) - 1
        return (ordered[round(0.75 * last)] - ordered[round(0.25 * last)]) / self.median_s

    def number(self, name: str) -> int:
        """A whole number of the task's size."""
        return int(self.size[name])


@dataclass(frozen=True)
class NotMeasured:
    """A task that was not measured, and why."""

    label: str
    reason: str


@dataclass(frozen=True)
class MeasurementSet:
    """The measurements of a run (with those taken up from earlier runs), what was left out, and how the run ended."""

    measurements: tuple[Measurement, ...]
    left_out: tuple[NotMeasured, ...] = ()
    taken_up: int = 0
    interrupted: bool = False
    wall_s: float = 0.0
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def days(self) -> str:
        """The date of the measurements, or the first and the last of them."""
        days = sorted({measurement.day for measurement in self.measurements if measurement.day})
        return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "never"

    def of(self, kind: str, **size: int | str) -> list[Measurement]:
        """The measurements of a kind with these values in their size."""
        return [
            measurement
            for measurement in self.measurements
            if measurement.kind == kind and all(measurement.size.get(k) == v for k, v in size.items())
        ]


def key_of(kind: str, size: Size) -> str:
    """The key of a task in the journal."""
    return json.dumps([kind, size], sort_keys=True)
