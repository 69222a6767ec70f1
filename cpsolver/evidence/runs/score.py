"""How far predictions are from measurements: pure functions over runs with their predictions.

An error of a time or a size is predicted / measured - 1: negative where the prediction is too small.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median

import numpy as np

from cpsolver.evidence.runs.run import MeasuredRun, Prediction
from cpsolver.inputs.data import package_data

_YEARS = Path(__file__).parent / "framework_years.yaml"
SHORT = -0.05
"""A memory error below this counts as under-predicted: more than 5 % too small."""


@dataclass(frozen=True)
class Scored:
    """A run with its prediction; the run's step time is known."""

    run: MeasuredRun
    prediction: Prediction

    @property
    def measured_s(self) -> float:
        """Step time as measured, in seconds."""
        assert self.run.step_time_s is not None, "only complete runs are scored"
        return self.run.step_time_s

    @property
    def error(self) -> float:
        """Error of the step time."""
        return self.prediction.step_time_s / self.measured_s - 1

    @property
    def log_error(self) -> float:
        """Size of the error as a ratio: twice as fast is as wrong as twice as slow."""
        return abs(math.log(self.prediction.step_time_s / self.measured_s))

    @property
    def inside(self) -> bool:
        """The measured time lies in the predicted range."""
        return self.prediction.low_s <= self.measured_s <= self.prediction.high_s

    @property
    def memory_error(self) -> float | None:
        """Error of the peak memory; None where none was measured."""
        measured = self.run.peak_mem_gib
        return None if measured is None else self.prediction.memory_gib / measured - 1


@dataclass(frozen=True)
class TimeScore:
    """Step-time errors of some runs: mean, median and 90th percentile of their size, and their signed mean.

    `inside`: share of runs whose measured time lies in the predicted range.
    """

    runs: int
    mean: float
    median: float
    p90: float
    bias: float
    inside: float


@dataclass(frozen=True)
class MemoryScore:
    """Memory errors of some runs: mean size, signed mean, and the share predicted more than 5 % too small.

    `short_with_margin` is that share with the planner's default margin on top of the prediction.
    """

    runs: int
    mean: float
    bias: float
    short: float
    short_with_margin: float


def time_score(scored: Sequence[Scored]) -> TimeScore | None:
    """The score of these runs; None without runs."""
    if not scored:
        return None
    errors = [one.error for one in scored]
    sizes = [abs(error) for error in errors]
    inside = fmean(one.inside for one in scored)
    return TimeScore(len(scored), fmean(sizes), median(sizes), float(np.percentile(sizes, 90)), fmean(errors), inside)


def memory_score(scored: Sequence[Scored]) -> MemoryScore | None:
    """The score of those runs whose memory was measured; None when there are none."""
    errors, planned = [], []
    for one in scored:
        if one.run.peak_mem_gib is not None:
            errors.append(one.prediction.memory_gib / one.run.peak_mem_gib - 1)
            planned.append(one.prediction.memory_with_margin_gib / one.run.peak_mem_gib - 1)
    if not errors:
        return None
    return MemoryScore(
        runs=len(errors),
        mean=fmean(map(abs, errors)),
        bias=fmean(errors),
        short=fmean(error < SHORT for error in errors),
        short_with_margin=fmean(error < SHORT for error in planned),
    )


def parallel_kind(run: MeasuredRun) -> str:
    """Which kinds of parallelism a run uses: `tp+pp+zero1`; data parallelism is named only where it is the only one."""
    kinds = [name for name in ("tp", "pp", "vpp", "cp", "ep") if (getattr(run, name) or 1) > 1]
    if run.sharding not in (None, "none"):
        kinds.append(str(run.sharding))
    return "+".join(kinds) or ("dp" if (run.dp or 1) > 1 else "one GPU")


def framework_year(name: str) -> str:
    """The year that a framework's version is from, by the name that a run gives it; "unknown" where no rule tells."""
    for pattern, year in _rules():
        if found := pattern.match(name):
            groups = found.groupdict()
            return year or groups.get("year") or f"20{groups['yy']}"
    return "unknown"


@cache
def _rules() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Pattern and year of each rule, in order; an empty year stands in the name itself."""
    rules = package_data(_YEARS)["rules"]
    return tuple((re.compile(rule["pattern"]), str(rule.get("year", ""))) for rule in rules)


DIMENSIONS: Mapping[str, Callable[[Scored], str]] = {
    "source": lambda one: one.run.source,
    "chip": lambda one: one.run.chip,
    "precision": lambda one: one.run.precision or "unknown",
    "framework_year": lambda one: framework_year(one.run.framework),
    "stack": lambda one: one.prediction.stack,
    "parallel_kind": lambda one: parallel_kind(one.run),
}
"""What scores are told apart by."""


def times_by(scored: Iterable[Scored], dimension: str) -> dict[str, TimeScore]:
    """The score of each group along one of DIMENSIONS, by the group's name, sorted."""
    groups = _grouped(scored, DIMENSIONS[dimension])
    return {name: found for name in sorted(groups) if (found := time_score(groups[name])) is not None}


def memory_by_kind(scored: Iterable[Scored]) -> dict[str, MemoryScore]:
    """The score of each kind of memory measurement that occurs."""
    groups = _grouped(scored, lambda one: one.run.peak_mem_kind or "unstated")
    return {kind: found for kind in sorted(groups) if (found := memory_score(groups[kind])) is not None}


def worst(scored: Iterable[Scored], most: int) -> list[Scored]:
    """The runs that are furthest off by ratio, worst first."""
    return sorted(scored, key=lambda one: -one.log_error)[:most]


def _grouped(scored: Iterable[Scored], name_of: Callable[[Scored], str]) -> dict[str, list[Scored]]:
    groups: dict[str, list[Scored]] = {}
    for one in scored:
        groups.setdefault(name_of(one), []).append(one)
    return groups
