"""The least-squares problem behind the calibration: which constants are free, where they start, what they explain.

Residuals are log(predicted / measured) of step times, bent so that outliers pull less (pseudo-Huber), and for each
constant its distance from the start, in units of how far it may plausibly be. Positive constants move on a log scale,
shares (0 to 1) on a logit scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from cpsolver.cost.memory import StageBytes
from cpsolver.evaluation.evaluate import evaluate, stage_memory
from cpsolver.evidence.posterior.predictions import PlacedPlan
from cpsolver.problem.problem import Supply
from cpsolver.profiles.constants import ALL, Calibration, Fitted
from cpsolver.profiles.stack import Stack, load_stack

Floats = NDArray[np.float64]
NOISE = 0.05
"""A typical difference between two measurements of the same run: three to seven per cent in the table."""
BEND = 3.0
"""Residuals beyond so many times the noise count linearly, not squared."""
METHOD = "least squares on log(predicted / measured) of published step times, with priors; memory: least absolute error"
STEPS_LEFT_OUT = 3
"""Gauss-Newton steps from the answer for all runs to that without some."""
STEP = 0.05
"""How far a constant moves for a derivative, in standard deviations of its prior."""


@dataclass(frozen=True)
class Free:
    """A constant to fit. `group`: an architecture or a stack, or ALL; `spread`: one standard deviation of its prior."""

    kind: Literal["chips", "stacks"]
    group: str
    name: str
    start: float | None
    spread: float
    share: bool = False
    why: str = ""

    def value(self, position: float, start: float) -> float:
        """The constant at a position of the fit, which counts standard deviations from the start."""
        if self.share:
            return float(1 / (1 + np.exp(-(np.log(start / (1 - start)) + position * self.spread))))
        return float(start * np.exp(position * self.spread))

    def position(self, value: float, start: float) -> float:
        """Where the fit would be for that value: the other way round of `value`."""
        if self.share:
            return float((np.log(value / (1 - value)) - np.log(start / (1 - start))) / self.spread)
        return float(np.log(value / start) / self.spread)

    def serves(self, case: PlacedPlan) -> bool:
        """Whether a run's prediction can depend on it."""
        if self.group == ALL:
            return True
        chip = case.problem.supplies[0].chip
        stack = case.problem.stack
        return self.group in (
            (chip.architecture, chip.variant) if self.kind == "chips" else (stack.name, *stack.fitted_with)
        )


def calibration(
    free: Sequence[Free], positions: Sequence[float] | Floats, rows: Sequence[int] | None = None
) -> Calibration:
    """The constants at those positions, as a calibration.

    A chip's factor starts at 1, for the factor of all chips is applied too; a stack's constant replaces that of all.
    """
    found: dict[str, dict[str, dict[str, Fitted]]] = {"chips": {}, "stacks": {}}
    for index, (each, position) in enumerate(zip(free, positions, strict=True)):
        start = each.start
        if start is None:
            start = 1.0 if each.kind == "chips" else found["stacks"][ALL][each.name].value
        entry = Fitted(value=each.value(position, start), start=start, error=0.0, rows=rows[index] if rows else 0)
        found[each.kind].setdefault(each.group, {})[each.name] = entry
    return Calibration(name="fit", method=METHOD, chips=found["chips"], stacks=found["stacks"])


def positions_of(free: Sequence[Free], found: Calibration) -> Floats:
    """Where the constants of a calibration lie, 0 for those that it does not have: where a new fit may begin."""
    positions = []
    for each in free:
        entry = (found.chips if each.kind == "chips" else found.stacks).get(each.group, {}).get(each.name)
        positions.append(0.0 if entry is None else each.position(entry.value, entry.start))
    return np.array(positions)


def load_free(path: Path) -> list[Free]:
    """The constants of fit_constants.yaml; those of all chips and stacks come first."""
    from ruamel.yaml import YAML

    tables = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    found: list[Free] = []
    kinds: tuple[Literal["chips", "stacks"], ...] = ("chips", "stacks")
    for kind in kinds:
        shared = {name: entry.get("share", False) for name, entry in tables[kind][ALL].items()}
        for group, names in tables[kind].items():
            for name, entry in names.items():
                share = entry.get("share", shared.get(name, False))
                found.append(Free(kind, group, name, entry.get("start"), entry["spread"], share, entry.get("why", "")))
    return found


class Predictor:
    """Step times of runs under one calibration, whose stacks are made once."""

    def __init__(self, found: Calibration) -> None:
        self._found = found
        self._stacks: dict[str, Stack] = {}

    def step_time_s(self, case: PlacedPlan, memory_bytes: list[StageBytes] | None = None) -> float:
        """The step time of a run; memory, which does not depend on the calibration, may be given."""
        problem = case.problem
        name = problem.stack.name
        if name not in self._stacks:
            self._stacks[name] = self._found.stack(load_stack(name))
        supply = Supply(self._found.chip(problem.supplies[0].chip), problem.num_gpus)
        problem = replace(problem, supplies=(supply,), stack=self._stacks[name])
        return evaluate(problem, case.strategy, memory_bytes).step_time_s


def bent(residual: Floats) -> Floats:
    """Pseudo-Huber: the square of the result grows like the residual's square, far out like its size."""
    scaled = residual / NOISE
    return np.asarray(np.sign(scaled) * BEND * np.sqrt(2 * (np.sqrt(1 + (scaled / BEND) ** 2) - 1)))


_work: Fit | None = None
"""In a worker process: the fit that it works for."""


def _adopt(fit: Fit) -> None:
    global _work
    _work = fit


def _without(rows: Sequence[int]) -> Floats:
    assert _work is not None
    return _work.positions_without(rows)


def _column(positions: Floats, index: int) -> list[float]:
    assert _work is not None
    moved = positions.copy()
    moved[index] += STEP
    return _work.some_errors(moved, _work.served[index])


class Fit:
    """Fits the free constants to runs; `served`: for each constant the runs whose prediction can depend on it."""

    def __init__(self, cases: Sequence[PlacedPlan], measured: Sequence[float], free: Sequence[Free], workers: int = 2):
        self.cases, self.measured, self.free = list(cases), list(measured), list(free)
        self.served = [[at for at, case in enumerate(cases) if each.serves(case)] for each in free]
        self._memory = [stage_memory(case.problem, case.strategy) for case in self.cases]
        self._workers = workers
        self._known: tuple[Floats, Floats] | None = None

    def without(self, groups: Sequence[Sequence[int]], begin: Floats) -> list[Floats]:
        """For each group of runs the positions that fit the other runs best.

        Each goes on from `begin`, the answer for all runs, by Gauss-Newton steps with the derivatives there, which
        hardly change on the way (tests/benchmarks/test_fit.py).
        """
        if self._known is None or not np.array_equal(self._known[0], begin):
            with self._pool() as self._running:
                self._known = begin, self._jacobian(begin)
            del self._running
        with self._pool() as pool:
            return list(pool.map(_without, groups))

    def positions_without(self, rows: Sequence[int]) -> Floats:
        """One of the answers of `without`."""
        assert self._known is not None
        positions, table = self._known
        kept = np.setdiff1d(np.arange(len(self.cases) + len(self.free)), rows)
        slope = table[kept]
        for _ in range(STEPS_LEFT_OUT):
            residuals = self._residuals(positions)[kept]
            positions = positions - np.linalg.solve(slope.T @ slope, slope.T @ residuals)
        return np.asarray(positions)

    def run(self, start: Floats | None = None, rounds: int = 12) -> Floats:
        """Positions of the constants at the best fit."""
        at = np.zeros(len(self.free)) if start is None else start
        with self._pool() as pool:
            self._running = pool
            answer = least_squares(self._residuals, at, jac=self._jacobian, max_nfev=rounds, xtol=1e-3, ftol=1e-4)
        del self._running
        self.jacobian = answer.jac
        return np.asarray(answer.x)

    def errors(self, positions: Floats) -> Floats:
        """log(predicted / measured) of every run."""
        return np.array(self.some_errors(positions, range(len(self.cases))))

    def some_errors(self, positions: Floats, rows: Sequence[int]) -> list[float]:
        """As `errors`, for some of the runs."""
        predictor = Predictor(calibration(self.free, positions))
        seconds = [predictor.step_time_s(self.cases[at], self._memory[at]) for at in rows]
        return [float(np.log(each / self.measured[at])) for each, at in zip(seconds, rows, strict=True)]

    def _pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._workers, initializer=_adopt, initargs=(self,))

    def _residuals(self, positions: Floats) -> Floats:
        return np.concatenate([bent(self.errors(positions)), positions])

    def _jacobian(self, positions: Floats) -> Floats:
        if self._known is not None and np.array_equal(self._known[0], positions):
            return self._known[1]
        here = self.errors(positions)
        table = np.zeros((len(self.cases) + len(self.free), len(self.free)))
        for index, moved in enumerate(self._running.map(partial(_column, positions), range(len(self.free)))):
            touched = self.served[index]
            table[touched, index] = (bent(np.array(moved)) - bent(here[touched])) / STEP
        table[len(self.cases) :] = np.eye(len(self.free))
        return table

    def calibration(self, positions: Floats, rows: Sequence[int]) -> Calibration:
        """The constants at those positions with their standard errors and the number of runs that they serve."""
        found = calibration(self.free, positions, rows)
        for each, error in zip(self.free, self.standard_errors(), strict=True):
            table = found.chips if each.kind == "chips" else found.stacks
            entry = table[each.group][each.name]
            table[each.group][each.name] = entry.model_copy(update={"error": each.spread * float(error)})
        return found

    def rows_that_feel(self, positions: Floats, share: float) -> list[int]:
        """For each constant, how many runs' predictions one standard deviation of it moves by that share or more."""
        here, counts = self.errors(positions), []
        with self._pool() as pool:
            for index, moved in enumerate(pool.map(partial(_column, positions), range(len(self.free)))):
                change = np.abs(np.array(moved) - here[self.served[index]]) / STEP
                counts.append(int((change >= share).sum()))
        return counts

    def standard_errors(self) -> Floats:
        """Of the positions, from the curvature at the answer: 1 where the runs say nothing beyond the prior."""
        return np.asarray(np.sqrt(np.diag(np.linalg.inv(self.jacobian.T @ self.jacobian))))
