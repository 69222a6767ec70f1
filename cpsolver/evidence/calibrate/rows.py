"""What the published constants said of a run, and what the runs of other layouts say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean

import numpy as np

from cpsolver.evidence.calibrate.leave_out import leave_out
from cpsolver.evidence.calibrate.runs import Row
from cpsolver.evidence.intervals import half_width
from cpsolver.evidence.posterior.posterior import Belief
from cpsolver.evidence.posterior.predictions import Linear
from cpsolver.evidence.posterior.time_posterior import unlearnt


@dataclass(frozen=True)
class Told:
    """A run, and what the others say: `constants_s` by the constants that plans are chosen by, `middle_s` with what
    layouts alike showed, the middle of the 80 % interval from `low_s` to `high_s`. `score`: see LeftOut. Seconds.
    """

    row: Row
    constants_s: float
    middle_s: float
    low_s: float
    high_s: float
    score: float

    @property
    def measured_s(self) -> float:
        """Step time as measured."""
        assert self.row.run.step_time_s is not None, "only runs with a step time are told"
        return self.row.run.step_time_s

    @property
    def before(self) -> float:
        """predicted / measured - 1 with the published constants."""
        return self.row.published_s / self.measured_s - 1

    @property
    def after(self) -> float:
        """The same with constants that the others taught."""
        return self.constants_s / self.measured_s - 1

    @property
    def middle(self) -> float:
        """The same for the middle of the interval."""
        return self.middle_s / self.measured_s - 1

    @property
    def inside_before(self) -> bool:
        """The measured time lies in the published interval."""
        return self.row.low_s <= self.measured_s <= self.row.high_s

    @property
    def inside_after(self) -> bool:
        """It lies in the interval that the others give."""
        return self.low_s <= self.measured_s <= self.high_s


@dataclass(frozen=True)
class Error:
    """Over some runs: mean sizes of the errors, and the shares of measured times inside their intervals."""

    runs: int
    before: float
    after: float
    middle: float
    inside_before: float
    inside_after: float


def error_of(told: Sequence[Told]) -> Error:
    """The errors of these runs, one or more."""
    return Error(
        len(told),
        fmean(abs(each.before) for each in told),
        fmean(abs(each.after) for each in told),
        fmean(abs(each.middle) for each in told),
        fmean(each.inside_before for each in told),
        fmean(each.inside_after for each in told),
    )


def told_of(belief: Belief, timed: Sequence[Row]) -> tuple[Told, ...]:
    """Every run with a step time, by the runs of other layouts. The order is the belief's."""
    found, left = belief.times, leave_out(belief.times)
    linear = Linear(np.zeros(len(found.prior)), -found.off, found.slope)
    _, before = unlearnt(found.spread, found.prior).forecast(found.spots, linear)
    answer = []
    for at, row in enumerate(timed):
        measured = row.run.step_time_s or 0.0
        bare = measured * exp(-float(found.off[at]))  # as published, by the straight line through what was learnt
        sd_before = sqrt(float(before[at, at]) + found.spread.noise**2)
        half = half_width(float(left.sd[at]), sd_before, log(row.high_s / row.low_s) / 2)
        middle = bare * exp(float(left.mean[at]))
        constants = bare * exp(float(left.constants[at]))
        score = float(left.score[at])
        answer.append(Told(row, constants, middle, middle * exp(-half), middle * exp(half), score))
    return tuple(answer)
