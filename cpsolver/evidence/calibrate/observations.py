"""A table of measured runs as evidence: which rows tell something, and why the others do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evidence.intervals import interval
from cpsolver.evidence.posterior.predictions import Observation, PlacedPlan
from cpsolver.evidence.runs.plan import NO_PREDICTION, placed_plan, why_unpredictable
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.evidence.runs.table import Table, missing_columns
from cpsolver.inputs.errors import Trouble
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import load_calibration
from hw_specs.units import gib_to_bytes


@dataclass(frozen=True)
class ObservedRun:
    """A run that tells something, and what the published constants said of it.

    `published_s`, and `low_s` to `high_s`, its 80 % interval, in seconds.
    """

    run: MeasuredRun
    observation: Observation
    published_s: float
    low_s: float
    high_s: float

    @property
    def group(self) -> tuple[str, str]:
        """Chip and stack."""
        return self.observation.plan.strategy.stage_chips[0], self.observation.plan.problem.stack.name

    @property
    def layout(self) -> tuple[object, ...]:
        """What was run on what: rows that have it in common are readings of one thing."""
        problem, chip = self.observation.plan.problem, self.observation.plan.problem.supplies[0].chip
        task = repr((problem.model, problem.spec.training))
        links = problem.num_gpus, problem.node, chip.scale_out.bandwidth_gbit_s
        return self.observation.plan.strategy, task, *links, *self.group


@dataclass(frozen=True)
class Evidence:
    """The rows in the table's order, what else was in it by the reason, and what was wrong."""

    rows: tuple[ObservedRun, ...]
    left_out: dict[str, tuple[str, ...]]
    troubles: tuple[Trouble, ...]

    @property
    def timed(self) -> tuple[ObservedRun, ...]:
        """Those with a step time."""
        return tuple(row for row in self.rows if row.run.step_time_s is not None)


def evidence_of(table: Table, on_progress: Callable[[int, int], None] | None = None) -> Evidence:
    """What a table tells. `on_progress` is called after each run with how many are done, and how many there are."""
    rows: list[ObservedRun] = []
    left_out: dict[str, list[str]] = {}
    for done, run in enumerate(table.runs, 1):
        found = _row(run)
        if isinstance(found, ObservedRun):
            rows.append(found)
        else:
            left_out.setdefault(found, []).append(run.id)
        if on_progress is not None:
            on_progress(done, len(table.runs))
    return Evidence(tuple(rows), {reason: tuple(ids) for reason, ids in left_out.items()}, table.troubles)


def _row(run: MeasuredRun) -> ObservedRun | str:
    """The row as evidence, or why it is none."""
    if run.outcome == "failed":
        return say("failed for a reason that says nothing of the layout")
    if not run.complete:
        return say("incomplete: {columns}", columns=", ".join(missing_columns(run)) or say("the table marks it so"))
    try:
        case = placed_plan(run)
        problem = case.problem.with_constants(load_calibration())
        found = evaluate(problem, case.strategy)
        low, high = interval(problem, case.strategy, found.step_time_s)
    except NO_PREDICTION as error:
        return why_unpredictable(error)
    if not (math.isfinite(found.step_time_s) and found.step_time_s > 0):
        return say("the cost model gives no finite step time")
    return ObservedRun(run, _observation(run, problem, case.strategy), found.step_time_s, low, high)


def _observation(run: MeasuredRun, problem: Problem, strategy: Strategy) -> Observation:
    memory = None if run.peak_mem_gib is None or run.outcome == "oom" else gib_to_bytes(run.peak_mem_gib)
    kind = None if memory is None else run.peak_mem_kind
    return Observation(run.id, PlacedPlan(problem, strategy), run.step_time_s, memory, kind, run.outcome == "oom")
