"""The posterior of step times: constants and misfit together are Gaussian at each level of misfit, levels are weighed.

With log(measured) = f(constants) + misfit + noise, f linear near the answer, all that can be asked has a closed form.
f is linearised again where the constants have gone until they stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpsolver.evidence.posterior.misfit import Locations, Spread, covariance, locations
from cpsolver.evidence.posterior.predictions import Floats, Linear

ROUNDS = 5
"""Most times that predictions are linearised anew: a bound, should they never settle."""
STILL = 0.05
"""Constants that move less, in standard deviations of their priors, have arrived: a twentieth of the prior's width."""


@dataclass(frozen=True)
class MisfitLevel:
    """The posterior at one level of misfit: weight, constants' positions and covariance, and what predictions need.

    `solved` is the inverse covariance of the readings times how far they are off, (n,); `factor` the covariance's lower
    Cholesky factor.
    """

    size: float
    weight: float
    mean: Floats
    covariance: Floats
    solved: Floats
    factor: Floats


@dataclass(frozen=True)
class TimePosterior:
    """What runs say of step times. `prior`: standard deviations of the positions, (constants,).

    `locations` and `slope` (runs, constants): where the runs lie and how their predictions move with the constants.
    `off` (runs,): log(measured / predicted at positions 0), by the predictions' straight lines.
    """

    spread: Spread
    prior: Floats
    locations: Locations
    slope: Floats
    off: Floats
    levels: tuple[MisfitLevel, ...]

    @property
    def mean(self) -> Floats:
        """Positions of the constants."""
        return np.asarray(sum(level.weight * level.mean for level in self.levels))

    @property
    def covariance(self) -> Floats:
        """Of the positions, levels mixed."""
        return _mixed(self.levels, [(level.mean, level.covariance) for level in self.levels])

    def forecast(self, plans: Locations, linear: Linear) -> tuple[Floats, Floats]:
        """Mean (n,) and covariance (n, n) of log(true step time) of plans, levels mixed."""
        return self.mixed([self.at_level(level, plans, linear) for level in self.levels])

    def mixed(self, moments: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
        """Mean and covariance of the levels' mixture."""
        mean = np.asarray(sum(level.weight * each for level, (each, _) in zip(self.levels, moments, strict=True)))
        return mean, _mixed(self.levels, moments)

    def at_level(self, level: MisfitLevel, plans: Locations, linear: Linear) -> tuple[Floats, Floats]:
        """The same at one level of misfit."""
        own = self.joint(level.size, (plans, linear.slope), (plans, linear.slope))
        cross = self.joint(level.size, (plans, linear.slope), (self.locations, self.slope))
        value = linear.near(np.zeros(len(self.prior)))
        return value + cross @ level.solved, own - cross @ _solved(level.factor, cross.T)

    def joint(self, size: float, ours: tuple[Locations, Floats], others: tuple[Locations, Floats]) -> Floats:
        """Prior covariance of the logarithms of plans' true step times, from constants and misfit."""
        constants = (ours[1] * self.prior**2) @ others[1].T
        return np.asarray(constants + size**2 * covariance(self.spread, ours[0], others[0]))


def unlearnt(spread: Spread, prior: Floats) -> TimePosterior:
    """The posterior without any run, which is the prior."""
    none, count = np.zeros(0), len(prior)
    total = sum(spread.levels.values())
    levels = [
        MisfitLevel(size, share / total, np.zeros(count), np.diag(prior**2), none, np.eye(0))
        for size, share in spread.levels.items()
    ]
    return TimePosterior(spread, prior, locations([]), np.zeros((0, count)), none, tuple(levels))


def learn_times(
    spread: Spread, prior: Floats, runs: Locations, log_seconds: Floats, linearise: Callable[[Floats], Linear]
) -> TimePosterior:
    """The posterior from step times; `linearise` gives the runs' predictions near positions."""
    found = unlearnt(spread, prior)
    if not len(log_seconds):
        return found
    for _ in range(ROUNDS):
        at, lines = found.mean, linearise(found.mean)
        found = closed_form(spread, prior, runs, lines.slope, log_seconds - lines.near(np.zeros(len(prior))))
        if float(np.abs(found.mean - at).max(initial=0.0)) < STILL:
            break
    return found


def closed_form(spread: Spread, prior: Floats, runs: Locations, slope: Floats, off: Floats) -> TimePosterior:
    """The posterior from runs whose predictions are straight lines; arguments as the fields of TimePosterior."""
    if not len(off):
        return unlearnt(spread, prior)
    bare = TimePosterior(spread, prior, runs, slope, off, ())
    return replace(bare, levels=_weighed([_level(bare, size) for size in spread.levels]))


def _level(found: TimePosterior, size: float) -> MisfitLevel:
    """The posterior at a level; its `weight` is the logarithm of the level's prior and likelihood."""
    spread, off, runs = found.spread, found.off, (found.locations, found.slope)
    factor: Floats = np.asarray(
        np.linalg.cholesky(found.joint(size, runs, runs) + spread.noise**2 * np.eye(len(off))), dtype=np.float64
    )
    solved = _solved(factor, off)
    gain = found.prior[:, None] ** 2 * found.slope.T
    left = np.diag(found.prior**2) - gain @ _solved(factor, gain.T)
    likelihood = -0.5 * float(off @ solved) - float(np.log(np.diag(factor)).sum())
    return MisfitLevel(size, float(np.log(spread.levels[size])) + likelihood, gain @ solved, left, solved, factor)


def _solved(factor: Floats, right: Floats) -> Floats:
    """The inverse of the matrix whose Cholesky factor is given, times what stands right."""
    return np.asarray(np.linalg.solve(factor.T, np.linalg.solve(factor, right)))


def _weighed(levels: Sequence[MisfitLevel]) -> tuple[MisfitLevel, ...]:
    logs = np.array([level.weight for level in levels])
    shares = np.exp(logs - logs.max())
    return tuple(
        replace(level, weight=float(share)) for level, share in zip(levels, shares / shares.sum(), strict=True)
    )


def _mixed(levels: Sequence[MisfitLevel], moments: Sequence[tuple[Floats, Floats]]) -> Floats:
    mean = sum(level.weight * each for level, (each, _) in zip(levels, moments, strict=True))
    parts = [
        level.weight * (covariance_ + np.outer(each - mean, each - mean))
        for level, (each, covariance_) in zip(levels, moments, strict=True)
    ]
    return np.asarray(sum(parts))
