"""Calibration from a table of runs: the posterior, how well it predicts each run unseen, and reasons to refuse it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cpsolver.evidence.calibrate.checks import (
    apart,
    contradictions,
    fitting,
    implausible,
    no_improvement,
    too_few,
    unexplained,
)
from cpsolver.evidence.calibrate.leave_one_out import LeaveOneOut, MeanErrors, leave_one_out, mean_errors
from cpsolver.evidence.calibrate.memory import MemoryReading, RanOut, memory_left_out, ran_out
from cpsolver.evidence.calibrate.observations import Evidence
from cpsolver.evidence.posterior.constants import uncertain_constants
from cpsolver.evidence.posterior.misfit import load_spread
from cpsolver.evidence.posterior.posterior import Posterior, learn
from cpsolver.evidence.posterior.predictions import Lineariser
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class CalibrationResult:
    """What was learnt from the table `file`. `runs`: the timed ones, each left out."""

    file: str
    evidence: Evidence
    posterior: Posterior
    runs: tuple[LeaveOneOut, ...]
    readings: tuple[MemoryReading, ...]
    ran_out: tuple[RanOut, ...]

    @property
    def doubts(self) -> tuple[Trouble, ...]:
        """Reasons to refuse, in the language of now."""
        spread, found = load_spread(), self.error
        return (
            *too_few(self.evidence, self.file),
            *contradictions(self.evidence, spread, self.file),
            *unexplained(self.runs, self.file),
            *apart(self.runs, self.file),
            *implausible(self.posterior, prior_sds(self.posterior), self.file),
            *fitting(self.ran_out, spread, self.file),
            *no_improvement(found.before, found.after, self.file),
        )

    @property
    def error(self) -> MeanErrors:
        """Over all runs with a step time."""
        return mean_errors(self.runs)

    @cached_property
    def groups(self) -> dict[tuple[str, str], tuple[LeaveOneOut, ...]]:
        """The runs with a step time of every chip and stack."""
        found: dict[tuple[str, str], list[LeaveOneOut]] = {}
        for each in self.runs:
            found.setdefault(each.row.group, []).append(each)
        return {group: tuple(runs) for group, runs in found.items()}


def calibrate(evidence: Evidence, file: str, on_progress: OnProgress | None = None) -> CalibrationResult:
    """Learn from all rows, doubtful or not. `on_progress`: runs done, and how many there are.

    Raises InputError where no row has a step time.
    """
    if not evidence.timed:
        raise InputError(Trouble("", say("none of its runs has a step time that can be learnt from"), file=file))
    observations = [row.observation for row in evidence.rows]
    constants = uncertain_constants(each.plan.problem for each in observations)
    lineariser = Lineariser(tuple(each for each in constants if each.kind != "memory"))
    for done, row in enumerate(evidence.timed, 1):  # what takes longest; `learn` goes on from there
        lineariser([row.observation.plan], np.zeros(len(lineariser.constants)))
        if on_progress is not None:
            on_progress(done, len(evidence.timed))
    posterior = learn(observations, lineariser=lineariser)
    runs = leave_one_out(posterior, evidence.timed)
    return CalibrationResult(file, evidence, posterior, runs, memory_left_out(posterior), ran_out(posterior))


def prior_sds(posterior: Posterior) -> list[float]:
    """Standard deviation of each constant's position without runs."""
    count = len(posterior.times.prior)
    return [*map(float, posterior.times.prior), *[1.0] * (len(posterior.constants) - count)]
