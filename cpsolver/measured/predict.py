"""What the calibrated cost model says of a measured run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cpsolver.calibration import Calibration, load_calibration
from cpsolver.cost.memory import StageBytes
from cpsolver.evaluate import evaluate, stage_memory
from cpsolver.measured.case import Case, Unpredictable, make_case
from cpsolver.measured.run import MeasuredRun, Prediction
from cpsolver.problem import Problem, Supply
from cpsolver.strategy import Strategy
from cpsolver.uncertainty import interval
from hw_specs.units import bytes_to_gib

__all__ = ["Unpredictable", "calibrated", "memory_bytes", "predict"]


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
    memory = _in_terms_of(run.peak_mem_kind, [stage.memory for stage in found.stages])
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


def memory_bytes(problem: Problem, strategy: Strategy, kind: str | None) -> float:
    """What the fullest stage holds, in the terms of a kind of measurement (device, where none is stated)."""
    return _in_terms_of(kind, stage_memory(problem, strategy))


def _in_terms_of(kind: str | None, stages: Sequence[StageBytes]) -> float:
    memory = max(stages, key=lambda memory: memory.total)
    known = {"allocated": memory.allocated, "reserved": memory.device - memory.framework}
    return known.get(kind or "", memory.device)
