"""What the calibrated cost model says of a measured run."""

from __future__ import annotations

from dataclasses import replace

from cpsolver.calibration import Calibration, load_calibration
from cpsolver.cost.memory import StageBytes
from cpsolver.evaluate import evaluate
from cpsolver.measured.case import Case, Unpredictable, make_case
from cpsolver.measured.run import MeasuredRun, Prediction
from cpsolver.problem import Problem, Supply
from cpsolver.uncertainty import interval
from hw_specs.units import bytes_to_gib

__all__ = ["Unpredictable", "calibrated", "predict"]


def calibrated(case: Case, calibration: Calibration) -> Problem:
    """The run's problem under a calibration."""
    problem = case.problem
    supplies = tuple(Supply(calibration.chip(supply.chip), supply.limit) for supply in problem.supplies)
    return replace(problem, supplies=supplies, stack=calibration.stack(problem.stack))


def predict(run: MeasuredRun) -> Prediction:
    """Step time with its interval, and memory in the terms of the run's own measurement.

    Raises:
        Unpredictable: when the cost model does not know the run's framework or layout.
    """
    case = make_case(run)
    problem = calibrated(case, load_calibration())
    found = evaluate(problem, case.strategy)
    low, high = interval(problem, case.strategy, found.step_time_s)
    fullest = max((stage.memory for stage in found.stages), key=lambda memory: memory.total)
    return Prediction(
        step_time_s=found.step_time_s,
        low_s=low,
        high_s=high,
        memory_gib=bytes_to_gib(_in_terms_of(run.peak_mem_kind, fullest)),
        memory_with_margin_gib=bytes_to_gib(
            _in_terms_of(run.peak_mem_kind, fullest) / (1.0 - problem.spec.cluster.memory_margin)
        ),
        breakdown_s=dict(found.breakdown_s),
        stack=problem.stack.name,
        architecture=problem.supplies[0].chip.architecture or problem.supplies[0].name,
    )


def _in_terms_of(kind: str | None, memory: StageBytes) -> float:
    known = {"allocated": memory.allocated, "reserved": memory.device - memory.framework}
    return known.get(kind or "", memory.device)
