"""What the other runs say of each layout: the posterior without it, in closed form from the posterior with it.

Straight lines stay where they are: leaving readings out is a change of the same linear model. A layout that was
measured several times is left out whole, for its other readings would give it away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpsolver.evidence.posterior.predictions import Floats
from cpsolver.evidence.posterior.time_posterior import Level, TimePosterior


@dataclass(frozen=True)
class LeftOut:
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
    """Readings left out, at one level of misfit, as LeftOut; `weight`: the logarithm of the level's, `score` signed."""

    weight: float
    mean: Floats
    variance: Floats
    constants: Floats
    score: Floats


def leave_out(found: TimePosterior) -> LeftOut:
    """Every layout of the posterior's runs left out in turn."""
    count = len(found.off)
    answer = LeftOut(*(np.zeros(count) for _ in range(4)))
    inverses = [_inverse(found, level) for level in found.levels]
    for rows in _layouts(found.spots.identities):
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


def _inverse(found: TimePosterior, level: Level) -> Floats:
    """Of the readings' covariance."""
    runs = found.spots, found.slope
    readings = found.joint(level.size, runs, runs) + found.spread.noise**2 * np.eye(len(found.off))
    return np.asarray(np.linalg.inv(readings), dtype=np.float64)


def _without(found: TimePosterior, level: Level, inverse: Floats, rows: list[int]) -> _Without:
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


def _evidence(found: TimePosterior, level: Level, inverse: Floats) -> float:
    """Logarithm of a level's prior and of the likelihood of all readings, but for a constant."""
    return float(np.log(found.spread.levels[level.size])) + _density(found.off, inverse)


def _density(off: Floats, precision: Floats) -> float:
    return float(-0.5 * off @ precision @ off + 0.5 * np.linalg.slogdet(precision)[1])


def _shares(logs: Sequence[float]) -> Floats:
    shares = np.exp(np.array(logs) - max(logs))
    return np.asarray(shares / shares.sum())
