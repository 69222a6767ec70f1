"""What the calibrated cost model says of a measured run."""

from __future__ import annotations

from dataclasses import replace

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.meters import in_terms_of
from cpsolver.evidence.intervals import interval
from cpsolver.evidence.runs.case import Case, Unpredictable, make_case
from cpsolver.evidence.runs.run import MeasuredRun, Prediction
from cpsolver.problem.problem import Problem, Supply
from cpsolver.problem.resolve import laid_over
from cpsolver.profiles.calibration import Calibration, load_calibration
from cpsolver.profiles.overlay import Overlay
from hw_specs.units import bytes_to_gib

__all__ = ["Unpredictable", "calibrated", "predict"]


def calibrated(case: Case, calibration: Calibration) -> Problem:
    """The run's problem under a calibration."""
    problem = case.problem
    supplies = tuple(Supply(calibration.chip(supply.chip), supply.limit) for supply in problem.supplies)
    return replace(problem, supplies=supplies, stack=calibration.stack(problem.stack))


def predict(run: MeasuredRun, overlay: Overlay | None = None) -> Prediction:
    """Step time with its interval, and memory in the terms of the run's own measurement.

    `overlay`: what runs of the user's own taught, on top of the published calibration.

    Raises:
        Unpredictable: when the cost model does not know the run's framework or layout, or the overlay not its chip
            and stack.
    """
    case = make_case(run)
    problem = calibrated(case, load_calibration())
    if overlay is not None:
        problem = _overlaid(problem, overlay)
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
    )


def _overlaid(problem: Problem, overlay: Overlay) -> Problem:
    chip, stack = problem.supplies[0].name, problem.stack.name
    if not overlay.has(chip, stack):
        raise Unpredictable(f"the calibration does not cover {chip} with {stack}, only {overlay.covered}")
    return laid_over(problem, overlay)
