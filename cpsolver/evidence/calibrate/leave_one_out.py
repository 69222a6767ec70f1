"""Each layout left out in turn: what the published constants say of its runs, and what the runs of other layouts say.

The posterior without a layout follows in closed form from the posterior with it: predictions stay the straight lines
that they are, so leaving readings out is a change of one linear model. A layout that was measured several times is
left out whole, for its other readings would give it away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean

import numpy as np

from cpsolver.evidence.calibrate.observations import ObservedRun
from cpsolver.evidence.intervals import half_width
from cpsolver.evidence.posterior.posterior import Posterior
from cpsolver.evidence.posterior.predictions import Floats, Linear
from cpsolver.evidence.posterior.time_posterior import MisfitLevel, TimePosterior, unlearnt


@dataclass(frozen=True)
class LeaveOneOut:
    """A run, and its prediction in seconds from the runs of other layouts alone.

    `constants_s`: by the constants that those runs teach; `middle_s`: with the misfit that layouts like it showed,
    which is the middle of the 80 % interval from `low_s` to `high_s`. `score`: see LeftOutMoments.
    """

    row: ObservedRun
    constants_s: float
    middle_s: float
    low_s: float
    high_s: float
    score: float

    @property
    def measured_s(self) -> float:
        """Step time as measured."""
        assert self.row.run.step_time_s is not None, "only runs with a step time are left out"
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
class MeanErrors:
    """Over some runs: mean sizes of the errors, and the shares of measured times inside their intervals."""

    runs: int
    before: float
    after: float
    middle: float
    inside_before: float
    inside_after: float


def mean_errors(runs: Sequence[LeaveOneOut]) -> MeanErrors:
    """The errors of these runs, one or more."""
    return MeanErrors(
        len(runs),
        fmean(abs(each.before) for each in runs),
        fmean(abs(each.after) for each in runs),
        fmean(abs(each.middle) for each in runs),
        fmean(each.inside_before for each in runs),
        fmean(each.inside_after for each in runs),
    )


def leave_one_out(posterior: Posterior, timed: Sequence[ObservedRun]) -> tuple[LeaveOneOut, ...]:
    """Every run with a step time, by the runs of other layouts. The order is the posterior's."""
    found, left = posterior.times, leave_out(posterior.times)
    linear = Linear(np.zeros(len(found.prior)), -found.off, found.slope)
    _, before = unlearnt(found.spread, found.prior).forecast(found.locations, linear)
    answer = []
    for at, row in enumerate(timed):
        measured = row.run.step_time_s or 0.0
        bare = measured * exp(-float(found.off[at]))  # as published, by the straight line through what was learnt
        sd_before = sqrt(float(before[at, at]) + found.spread.noise**2)
        half = half_width(float(left.sd[at]), sd_before, log(row.high_s / row.low_s) / 2)
        middle = bare * exp(float(left.mean[at]))
        constants = bare * exp(float(left.constants[at]))
        score = float(left.score[at])
        answer.append(LeaveOneOut(row, constants, middle, middle * exp(-half), middle * exp(half), score))
    return tuple(answer)


@dataclass(frozen=True)
class LeftOutMoments:
    """Of each run (n,), by the runs of other layouts, as logarithms of the ratio to the published prediction.

    `mean` and `sd` of a reading; `constants`: the prediction by the constants alone; `score`: how many standard
    deviations the reading lies from the mean at the level of misfit that suits it best.
    """

    mean: Floats
    sd: Floats
    constants: Floats
    score: Floats


@dataclass(frozen=True)
class _Without:
    """As LeftOutMoments, at one level of misfit; `weight`: the logarithm of the level's, `score` signed."""

    weight: float
    mean: Floats
    variance: Floats
    constants: Floats
    score: Floats


def leave_out(found: TimePosterior) -> LeftOutMoments:
    """Every layout of the posterior's runs left out in turn."""
    count = len(found.off)
    answer = LeftOutMoments(*(np.zeros(count) for _ in range(4)))
    inverses = [_inverse(found, level) for level in found.levels]
    for rows in _layouts(found.locations.identities):
        without = [_without(found, level, inverse, rows) for level, inverse in zip(found.levels, inverses, strict=True)]
        weights = _shares([each.weight for each in without])
        mean = sum(weight * each.mean for weight, each in zip(weights, without, strict=True))
        square = sum(
            weight * (each.variance + (each.mean - mean) ** 2) for weight, each in zip(weights, without, strict=True)
        )
        answer.mean[rows], answer.sd[rows] = mean, np.sqrt(square)
        answer.constants[rows] = sum(weight * each.constants for weight, each in zip(weights, without, strict=True))
        answer.score[rows] = np.min([np.abs(each.score) for each in without], axis=0)
    return answer


def _layouts(identities: Sequence[str]) -> list[list[int]]:
    found: dict[str, list[int]] = {}
    for row, identity in enumerate(identities):
        found.setdefault(identity, []).append(row)
    return list(found.values())


def _inverse(found: TimePosterior, level: MisfitLevel) -> Floats:
    """Of the readings' covariance."""
    runs = found.locations, found.slope
    readings = found.joint(level.size, runs, runs) + found.spread.noise**2 * np.eye(len(found.off))
    return np.asarray(np.linalg.inv(readings), dtype=np.float64)


def _without(found: TimePosterior, level: MisfitLevel, inverse: Floats, rows: list[int]) -> _Without:
    """A block of a Gaussian conditioned on the rest: its precision is the block of the whole's precision."""
    block = np.linalg.inv(inverse[np.ix_(rows, rows)])
    away = block @ level.solved[rows]  # readings less their means
    solved = level.solved - inverse[:, rows] @ away  # of the rest; 0 in the rows left out
    positions = found.prior**2 * (found.slope.T @ solved)
    variance = np.diag(block)
    return _Without(
        _evidence(found, level, inverse) - _density(away, inverse[np.ix_(rows, rows)]),
        found.off[rows] - away,
        variance,
        found.slope[rows] @ positions,
        away / np.sqrt(variance),
    )


def _evidence(found: TimePosterior, level: MisfitLevel, inverse: Floats) -> float:
    """Logarithm of a level's prior and of the likelihood of all readings, but for a constant."""
    return float(np.log(found.spread.levels[level.size])) + _density(found.off, inverse)


def _density(off: Floats, precision: Floats) -> float:
    return float(-0.5 * off @ precision @ off + 0.5 * np.linalg.slogdet(precision)[1])


def _shares(logs: Sequence[float]) -> Floats:
    shares = np.exp(np.array(logs) - max(logs))
    return np.asarray(shares / shares.sum())
