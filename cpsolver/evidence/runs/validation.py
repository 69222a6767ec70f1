"""Predictions against a table of measured runs, row by row, with their scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.meters import in_terms_of
from cpsolver.evidence.intervals import interval
from cpsolver.evidence.runs.mixed import predict_mixed, stated
from cpsolver.evidence.runs.plan import NO_PREDICTION, Unpredictable, placed_plan, why_unpredictable
from cpsolver.evidence.runs.ranking import RankScore, rank_score
from cpsolver.evidence.runs.run import MeasuredRun, Prediction
from cpsolver.evidence.runs.score import (
    DIMENSIONS,
    MemoryScore,
    Scored,
    TimeScore,
    memory_by_kind,
    memory_score,
    time_score,
    times_by,
)
from cpsolver.evidence.runs.table import missing_columns
from cpsolver.inputs.errors import Trouble
from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import Overlay, load_calibration
from cpsolver.rules import RULES
from hw_specs.units import bytes_to_gib

_NOT_TIMED = {
    "oom": later("ran out of memory: no step time to predict"),
    "failed": later("failed: no step time to predict"),
}

Predict = Callable[[MeasuredRun], Prediction]
"""A prediction of a complete run; raises Unpredictable for a run that is beyond the cost model."""


@dataclass(frozen=True)
class RowOutcome:
    """What became of a row: a prediction, or the reason why there is none. `run` is None for a row with a trouble."""

    id: str
    line: int
    run: MeasuredRun | None = None
    prediction: Prediction | None = None
    skipped: str | None = None

    @property
    def scored(self) -> Scored | None:
        """Run and prediction together, where there are both."""
        return None if self.run is None or self.prediction is None else Scored(self.run, self.prediction)


@dataclass(frozen=True)
class Validation:
    """A table's rows in the order of the file, the troubles found in it, and the scores of what was predicted."""

    outcomes: tuple[RowOutcome, ...]
    troubles: tuple[Trouble, ...] = ()

    @cached_property
    def scored(self) -> tuple[Scored, ...]:
        """The predicted runs."""
        return tuple(scored for outcome in self.outcomes if (scored := outcome.scored) is not None)

    @cached_property
    def skipped(self) -> dict[str, tuple[str, ...]]:
        """The ids of the rows that were not predicted, by the reason."""
        reasons: dict[str, list[str]] = {}
        for outcome in self.outcomes:
            if outcome.skipped is not None:
                reasons.setdefault(outcome.skipped, []).append(outcome.id)
        return {reason: tuple(ids) for reason, ids in reasons.items()}

    @cached_property
    def refused(self) -> dict[str, tuple[str, ...]]:
        """Rule -> the ids of the predicted runs that break it, the rule that most break first."""
        rules: dict[str, list[str]] = {}
        for one in self.scored:
            for name in one.prediction.rules_broken:
                rules.setdefault(name, []).append(one.run.id)
        return {name: tuple(ids) for name, ids in sorted(rules.items(), key=lambda entry: -len(entry[1]))}

    @cached_property
    def time(self) -> TimeScore | None:
        """Step-time errors of all predicted runs; None where there are none."""
        return time_score(self.scored)

    @cached_property
    def time_by(self) -> dict[str, dict[str, TimeScore]]:
        """The same by source, chip and so on: dimension -> group -> score."""
        return {dimension: times_by(self.scored, dimension) for dimension in DIMENSIONS}

    @cached_property
    def memory(self) -> MemoryScore | None:
        """Memory errors of all predicted runs whose memory was measured; None where there are none."""
        return memory_score(self.scored)

    @cached_property
    def memory_by_kind(self) -> dict[str, MemoryScore]:
        """The same by how it was measured."""
        return memory_by_kind(self.scored)

    @cached_property
    def rank(self) -> RankScore:
        """Whether the predictions order layouts as the measurements do."""
        return rank_score(self.scored)


def predict(run: MeasuredRun, overlay: Overlay | None = None) -> Prediction:
    """Step time with its interval, and memory in the terms of the run's own measurement.

    `overlay`: what runs of the user's own taught, on top of the published calibration.

    Raises:
        Unpredictable: when the cost model does not know the run's framework or layout, or the overlay not its chip
            and stack.
    """
    if run.mixed:
        if overlay is not None:
            raise Unpredictable(say("a calibration covers one chip type and stack, and the run has several types"))
        return predict_mixed(run)
    case = placed_plan(run)
    problem = case.problem.with_constants(load_calibration())
    if overlay is not None:
        chip, stack = problem.supplies[0].name, problem.stack.name
        if not overlay.has(chip, stack):
            raise Unpredictable(
                say(
                    "the calibration does not cover {chip} with {stack}, only {covered}",
                    chip=chip,
                    stack=stack,
                    covered=overlay.covered,
                )
            )
        problem = problem.with_constants(overlay)
    found = evaluate(problem, case.strategy)
    low, high = interval(problem, case.strategy, found.step_time_s)
    memory = in_terms_of(run.peak_mem_kind, [stage.memory for stage in found.stages])
    return Prediction(
        step_time_s=found.step_time_s,
        low_s=low,
        high_s=high,
        memory_gib=bytes_to_gib(memory),
        memory_with_margin_gib=bytes_to_gib(memory / (1.0 - problem.memory_margin)),
        breakdown_s=dict(found.breakdown_s),
        stack=problem.stack.name,
        architecture=problem.supplies[0].chip.architecture or problem.supplies[0].name,
        rules_broken=rules_broken(problem, case.strategy),
    )


def rules_broken(problem: Problem, strategy: Strategy) -> dict[str, tuple[str, ...]]:
    """Rule -> all that it finds in the plan, for those that the planner would refuse it for.

    Unlike `rules.violations` memory is judged of plans of any structure: this one ran, so its bytes mean something.
    """
    return {name: found for name, rule in RULES.items() if (found := tuple(rule(problem, strategy)))}


def validate(
    runs: Sequence[MeasuredRun],
    predict: Predict,
    on_progress: Callable[[int, int], None] | None = None,
    troubles: Iterable[Trouble] = (),
) -> Validation:
    """Predicts every complete run. `troubles` are a table's, whose rows are counted as skipped.

    `on_progress` is called after each run with how many are done, and how many there are.
    """
    troubles = tuple(troubles)
    outcomes = _troubled(troubles)
    for done, run in enumerate(runs, 1):
        outcomes.append(_outcome(run, predict))
        if on_progress is not None:
            on_progress(done, len(runs))
    return Validation(tuple(sorted(outcomes, key=lambda outcome: outcome.line)), troubles)


def _outcome(run: MeasuredRun, predict: Predict) -> RowOutcome:
    if run.outcome != "ok":
        return RowOutcome(run.id, run.line, run, skipped=say(_NOT_TIMED[run.outcome]))
    try:
        missing = missing_columns(stated(run)[0] if run.mixed else run)
        if missing or not (run.complete or run.mixed):
            told = ", ".join(missing) or say("the table marks it so")
            return RowOutcome(run.id, run.line, run, skipped=say("incomplete: {columns}", columns=told))
        prediction = predict(run)
    except NO_PREDICTION as error:
        return RowOutcome(run.id, run.line, run, skipped=why_unpredictable(error))
    times = prediction.step_time_s, prediction.memory_gib
    if not all(math.isfinite(value) and value > 0 for value in times):
        return RowOutcome(run.id, run.line, run, skipped=say("the cost model gives no finite step time or memory"))
    return RowOutcome(run.id, run.line, run, prediction)


def _troubled(troubles: Iterable[Trouble]) -> list[RowOutcome]:
    """One outcome for each row at fault, with all the columns that are wrong."""
    rows: dict[tuple[int, str], list[str]] = {}
    for trouble in troubles:
        column = str(trouble.path[-1]) if len(trouble.path) > 1 else say("its number of cells")
        rows.setdefault((trouble.line or 0, str(trouble.path[0])), []).append(column)
    found = []
    for (line, name), columns in rows.items():
        at_fault = ", ".join(dict.fromkeys(columns))
        found.append(
            RowOutcome(name or say("line {line}", line=line), line, skipped=say("wrong: {columns}", columns=at_fault))
        )
    return found
