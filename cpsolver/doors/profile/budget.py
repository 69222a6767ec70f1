"""Goes through the tasks within a time budget: what is known is taken up, what fails or would take too long is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from cpsolver.doors.profile.task import Measurement, MeasurementTask, NotMeasured

Outcome = Measurement | str
"""A measurement, or why there is none."""
NO_TIME = "no time left (--time-budget)"
INTERRUPTED = "interrupted"


@dataclass
class Rates:
    """The fastest seen so far of each kind and precision, FLOP/s and bytes/s, for how long a task will take."""

    fastest: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def learn(self, task: MeasurementTask, measured: Measurement) -> None:
        """Take a measurement into account."""
        if not measured.seconds:
            return
        for what, amount in (("flops", task.flops), ("bytes", task.bytes)):
            rate, key = amount / measured.median_s, self._key(task, what)
            self.fastest[key] = max(rate, self.fastest.get(key, 0.0))

    def seconds(self, task: MeasurementTask) -> float:
        """Of one call at the least; 0 where nothing like it was seen. What multiplies goes at products' rates."""
        products = self.fastest.get(("gemm", str(task.size.get("precision", "bf16")), "flops"), 0.0)
        if task.kind == "memory":
            rate, amount = self.fastest.get(self._key(task, "bytes"), 0.0), task.bytes
        else:
            rate, amount = self.fastest.get(self._key(task, "flops"), products) or products, task.flops
        return amount / rate if rate else 0.0

    def _key(self, task: MeasurementTask, what: str) -> tuple[str, str, str]:
        return task.kind, str(task.size.get("precision", "bf16")), what


@dataclass
class MeasurementRun:
    """What a run does with each task.

    `measure` takes one; `known` are of earlier runs; `keep` puts a new one on disk; `tell` hears how many of how many
    are done. `budget_s`: of the whole run; `longest_s`: of one task; `calls` of it are made at least.
    """

    measure: Callable[[MeasurementTask], Outcome]
    known: dict[str, Measurement]
    keep: Callable[[Measurement], None]
    tell: Callable[[int, int], None]
    budget_s: float
    longest_s: float
    calls: int
    found: list[Measurement] = field(default_factory=list)
    left_out: list[NotMeasured] = field(default_factory=list)
    taken_up: int = 0
    interrupted: bool = False
    rates: Rates = field(default_factory=Rates)
    began: float = field(default_factory=time.monotonic)

    def all(self, tasks: Iterable[MeasurementTask]) -> None:
        """Every task in turn; Ctrl-C ends it with what there is."""
        listed = list(tasks)
        groups: dict[str, NotMeasured] = {}
        done: set[str] = set()
        place = 0
        try:
            for place, task in enumerate(listed):
                self.tell(place, len(listed))
                if task.group in done:
                    continue
                reason = self._one(task)
                if not reason:
                    done.add(task.group or task.key)
                elif task.group:
                    groups[task.group] = NotMeasured(task.label, reason)
                else:
                    self.left_out.append(NotMeasured(task.label, reason))
        except KeyboardInterrupt:
            self.interrupted = True
            for task in listed[place:]:
                if task.group:
                    groups.setdefault(task.group, NotMeasured(task.label, INTERRUPTED))
                else:
                    self.left_out.append(NotMeasured(task.label, INTERRUPTED))
        self.left_out += [told for group, told in groups.items() if group not in done]
        self.tell(len(listed), len(listed))

    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self.budget_s - (time.monotonic() - self.began)

    def _one(self, task: MeasurementTask) -> str:
        """Why there is nothing of it; empty when there is."""
        old = self.known.get(task.key)
        if old is not None:
            self.found.append(old)
            self.rates.learn(task, old)
            self.taken_up += 1
            return ""
        if self.left_s() <= 0:
            return NO_TIME
        wanted = self.rates.seconds(task) * self.calls
        if wanted > min(self.left_s(), self.longest_s):
            return f"would take some {wanted:,.0f} s"
        outcome = self.measure(task)
        if isinstance(outcome, str):
            return outcome
        outcome = replace(outcome, day=datetime.now(UTC).date().isoformat())
        self.keep(outcome)
        self.found.append(outcome)
        self.rates.learn(task, outcome)
        return ""
