"""Runs the tasks within a time budget: takes up earlier measurements, and notes what fails or would take too long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from cpsolver.doors.profile.task import Measurement, MeasurementTask, NotMeasured
from cpsolver.inputs.language import later, say

Outcome = Measurement | str
"""A measurement, or why there is none."""
NO_TIME = later("no time left (--time-budget)")
INTERRUPTED = later("interrupted")


@dataclass
class Rates:
    """The fastest rate so far of each kind and precision in FLOP/s and bytes/s, to predict how long a task takes."""

    fastest: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def learn(self, task: MeasurementTask, measured: Measurement) -> None:
        """Update the rates by a measurement."""
        if not measured.seconds:
            return
        for what, amount in (("flops", task.flops), ("bytes", task.bytes)):
            rate, key = amount / measured.median_s, self._key(task, what)
            self.fastest[key] = max(rate, self.fastest.get(key, 0.0))

    def seconds(self, task: MeasurementTask) -> float:
        """Seconds of one call at the least; 0 where no rate is known. Kinds without a rate take that of GEMMs."""
        gemm_rate = self.fastest.get(("gemm", str(task.size.get("precision", "bf16")), "flops"), 0.0)
        if task.kind == "memory":
            rate, amount = self.fastest.get(self._key(task, "bytes"), 0.0), task.bytes
        else:
            rate, amount = self.fastest.get(self._key(task, "flops"), gemm_rate) or gemm_rate, task.flops
        return amount / rate if rate else 0.0

    def _key(self, task: MeasurementTask, what: str) -> tuple[str, str, str]:
        return task.kind, str(task.size.get("precision", "bf16")), what


@dataclass
class MeasurementRun:
    """Runs the tasks and collects their measurements.

    `measure` runs a task; `known` are measurements of earlier runs, by key; `keep` writes a new one to disk; `tell`
    gets how many tasks of how many are done. `budget_s` is for the whole run, `longest_s` for one task, which takes
    `calls` calls or more.
    """

    measure: Callable[[MeasurementTask], Outcome]
    known: dict[str, Measurement]
    keep: Callable[[Measurement], None]
    tell: Callable[[int, int], None]
    budget_s: float
    longest_s: float
    calls: int
    measurements: list[Measurement] = field(default_factory=list)
    left_out: list[NotMeasured] = field(default_factory=list)
    taken_up: int = 0
    interrupted: bool = False
    rates: Rates = field(default_factory=Rates)
    began: float = field(default_factory=time.monotonic)

    def all(self, tasks: Iterable[MeasurementTask]) -> None:
        """Run every task in turn. Ctrl-C ends the run and keeps what was measured."""
        ordered = list(tasks)
        groups: dict[str, NotMeasured] = {}
        done: set[str] = set()
        index = 0
        try:
            for index, task in enumerate(ordered):
                self.tell(index, len(ordered))
                if task.group in done:
                    continue
                reason = self._measured(task)
                if not reason:
                    done.add(task.group or task.key)
                elif task.group:
                    groups[task.group] = NotMeasured(task.label, reason)
                else:
                    self.left_out.append(NotMeasured(task.label, reason))
        except KeyboardInterrupt:
            self.interrupted = True
            for task in ordered[index:]:
                if task.group:
                    groups.setdefault(task.group, NotMeasured(task.label, INTERRUPTED))
                else:
                    self.left_out.append(NotMeasured(task.label, INTERRUPTED))
        self.left_out += [left_out for group, left_out in groups.items() if group not in done]
        self.tell(len(ordered), len(ordered))

    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self.budget_s - (time.monotonic() - self.began)

    def _measured(self, task: MeasurementTask) -> str:
        """Run one task: why there is no measurement of it, or an empty text."""
        earlier = self.known.get(task.key)
        if earlier is not None:
            self.measurements.append(earlier)
            self.rates.learn(task, earlier)
            self.taken_up += 1
            return ""
        if self.left_s() <= 0:
            return NO_TIME
        expected_s = self.rates.seconds(task) * self.calls
        if expected_s > min(self.left_s(), self.longest_s):
            return say("would take some {seconds:,.0f} s", seconds=expected_s)
        outcome = self.measure(task)
        if isinstance(outcome, str):
            return outcome
        outcome = replace(outcome, day=datetime.now(UTC).date().isoformat())
        self.keep(outcome)
        self.measurements.append(outcome)
        self.rates.learn(task, outcome)
        return ""
