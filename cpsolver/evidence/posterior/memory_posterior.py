"""The posterior of memory from meters, and from runs that did or did not fit: a Gaussian at its peak (Laplace)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.stats import norm

from cpsolver.evidence.posterior.predictions import Floats, Linear
from cpsolver.evidence.posterior.time_posterior import STILL


@dataclass(frozen=True)
class MemoryEvidence:
    """Readings: `log_bytes` (n,) with standard deviations `off` (n,). Runs that fitted or `ran_out`, (k,) of bool:
    `log_capacity` (k,) in the terms of their needs, `slack` the standard deviation of log(need).
    """

    log_bytes: Floats
    off: Floats
    log_capacity: Floats
    ran_out: np.ndarray
    slack: float


def learn_memory(
    count: int, evidence: MemoryEvidence, linearise: Callable[[Floats], tuple[Linear, Linear]], rounds: int = 3
) -> tuple[Floats, Floats]:
    """Positions (count,) and covariance of the constants of memory, whose priors are standard normal.

    `linearise` gives the readings and the needs near positions.
    """
    at: Floats = np.zeros(count)
    found: Floats = np.eye(count)
    if not len(evidence.log_bytes) and not len(evidence.log_capacity):
        return at, found
    for _ in range(rounds):
        readings, needs = linearise(at)
        answer = minimize(_minus_log, at, args=(evidence, readings, needs), jac=_gradient, method="BFGS")
        moved = float(np.abs(answer.x - at).max(initial=0.0))
        at = np.asarray(answer.x, dtype=np.float64)
        found = np.asarray(np.linalg.inv(_curvature(at, evidence, readings, needs)), dtype=np.float64)
        if moved < STILL:
            break
    return at, found


def _scores(at: Floats, evidence: MemoryEvidence, needs: Linear) -> tuple[Floats, Floats]:
    """How far each run was on the side where it turned out to be, in standard deviations, and the sign of that side."""
    sign = np.where(evidence.ran_out, 1.0, -1.0)
    return sign * (needs.near(at) - evidence.log_capacity) / evidence.slack, sign


def _minus_log(at: Floats, evidence: MemoryEvidence, readings: Linear, needs: Linear) -> float:
    off = (evidence.log_bytes - readings.near(at)) / evidence.off
    scores, _ = _scores(at, evidence, needs)
    return float(0.5 * at @ at + 0.5 * off @ off - norm.logcdf(scores).sum())


def _gradient(at: Floats, evidence: MemoryEvidence, readings: Linear, needs: Linear) -> Floats:
    off = (evidence.log_bytes - readings.near(at)) / evidence.off**2
    scores, sign = _scores(at, evidence, needs)
    return np.asarray(at - readings.slope.T @ off - needs.slope.T @ (_hazard(scores) * sign / evidence.slack))


def _curvature(at: Floats, evidence: MemoryEvidence, readings: Linear, needs: Linear) -> Floats:
    scores, _ = _scores(at, evidence, needs)
    hazard = _hazard(scores)
    bend = hazard * (hazard + scores) / evidence.slack**2
    told = (readings.slope.T / evidence.off**2) @ readings.slope
    return np.asarray(np.eye(len(at)) + told + (needs.slope.T * bend) @ needs.slope)


def _hazard(scores: Floats) -> Floats:
    return np.asarray(np.exp(norm.logpdf(scores) - norm.logcdf(scores)))
