"""What the cost model says of plans, and how it changes with the constants: logarithms and their derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from cpsolver.evaluation.evaluate import evaluate, stage_memory
from cpsolver.evaluation.meters import memory_bytes
from cpsolver.evidence.posterior.constants import UncertainConstant, moved
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

Floats = NDArray[np.float64]
STEP = 0.1
"""How far a constant moves for a derivative, in standard deviations of its prior: small beside the prior, large beside
rounding."""
NEAR = 0.5
"""Slopes serve positions that are no farther, in the same unit: step times are nearly linear in logarithms."""
_SOURCE = "moved"


@dataclass(frozen=True, eq=False)
class PlacedPlan:
    """A plan and the problem that it solves. Compared by identity, so that it is a quick key of what is kept of it."""

    problem: Problem
    strategy: Strategy


@dataclass(frozen=True)
class Observation:
    """What was measured of a plan: seconds and bytes, None where not known; `memory_kind` as in evidence/runs/run.py.

    `out_of_memory`: it needed more than the device has; it has no step time then.
    """

    name: str
    plan: PlacedPlan
    step_time_s: float | None = None
    memory_bytes: float | None = None
    memory_kind: str | None = None
    out_of_memory: bool = False


@dataclass(frozen=True)
class Linear:
    """Logarithms near some positions: `value` (n,) there, `slope` (n, constants) for a standard deviation each."""

    at: Floats
    value: Floats
    slope: Floats

    def near(self, positions: Floats) -> Floats:
        """The values at positions close by, shape (n,)."""
        return self.value + self.slope @ (positions - self.at)


class Lineariser:
    """log(step time in seconds) of plans near positions; slopes are kept while constants have hardly moved.

    `at_origin`: slopes are always those at the published constants, whatever was asked for before.
    """

    def __init__(self, constants: Sequence[UncertainConstant], at_origin: bool = False) -> None:
        self.constants, self._at_origin = tuple(constants), at_origin
        self._known: dict[PlacedPlan, tuple[Floats, Floats]] = {}

    def __call__(self, plans: Sequence[PlacedPlan], at: Floats) -> Linear:
        """Values at the positions exactly, slopes there, near them, or at the origin."""
        return _stacked(at, [self._row(placed, at) for placed in plans], len(self.constants))

    def _row(self, placed: PlacedPlan, at: Floats) -> tuple[float, Floats]:
        memory = stage_memory(placed.problem, placed.strategy)  # does not depend on what moves step times

        def value(positions: Floats) -> float:
            problem = moved(placed.problem, self.constants, positions, _SOURCE)
            return log(evaluate(problem, placed.strategy, memory).step_time_s)

        where = np.zeros(len(at)) if self._at_origin else at
        known = self._known.get(placed)
        if known is None or float(np.abs(known[0] - where).max(initial=0.0)) > NEAR:
            serves = [each.kind != "memory" and _serves(each, placed.problem) for each in self.constants]
            here, slope = _row(value, serves, where)
            known = self._known[placed] = where, slope
            if not self._at_origin:
                return here, slope
        return value(at), known[1]


def memories(
    plans: Sequence[PlacedPlan], kinds: Sequence[str | None], constants: Sequence[UncertainConstant], at: Floats
) -> Linear:
    """log(bytes of the fullest stage) of each plan in the terms of a kind of reading.

    "need": log of what must fit, over what the device has, on the stage where that is most.
    """
    rows = [_memory_row(placed, kind, constants, at) for placed, kind in zip(plans, kinds, strict=True)]
    return _stacked(at, rows, len(constants))


def _stacked(at: Floats, rows: Sequence[tuple[float, Floats]], count: int) -> Linear:
    slopes = np.array([slope for _, slope in rows]).reshape(len(rows), count)
    return Linear(at, np.array([value for value, _ in rows]), slopes)


def _serves(each: UncertainConstant, problem: Problem) -> bool:
    return each.group in (problem.stack.name, *problem.chip_names)


def _memory_row(
    placed: PlacedPlan, kind: str | None, constants: Sequence[UncertainConstant], at: Floats
) -> tuple[float, Floats]:
    def value(positions: Floats) -> float:
        problem = moved(placed.problem, constants, positions, _SOURCE)
        if kind == "need":
            return _log_fill(problem, placed.strategy)
        return log(memory_bytes(problem, placed.strategy, kind))

    return _row(value, [each.kind == "memory" and _serves(each, placed.problem) for each in constants], at)


def _log_fill(problem: Problem, strategy: Strategy) -> float:
    stages = zip(strategy.stage_chips, stage_memory(problem, strategy), strict=True)
    return log(max(stage.total / problem.supply(chip).chip.memory_capacity_bytes for chip, stage in stages))


def _row(value: Callable[[Floats], float], moves: Sequence[bool], at: Floats) -> tuple[float, Floats]:
    here, slope = value(at), np.zeros(len(at))
    for index, does in enumerate(moves):
        if does:
            there = at.copy()
            there[index] += STEP
            slope[index] = (value(there) - here) / STEP
    return here, slope
