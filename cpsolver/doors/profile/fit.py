"""From seconds of collectives by payload to an endless payload's bandwidth, the half payload and the latency.

The cost model's own form (cpsolver/cost/collectives.py): seconds = latency * rounds / 2 + rounds * (g - 1) / g *
(p + min(p, half)) / bandwidth for a buffer of p bytes over g ranks; an all-reduce has two rounds, others one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cpsolver.doors.profile.settings import Search

Points = Sequence[tuple[int, float]]
"""Payload in bytes, seconds."""
_MIB = 2.0**20


@dataclass(frozen=True)
class Fit:
    """Bus bandwidth for an endless payload in bytes/s, and the root mean square of the relative errors."""

    bandwidth: float
    error: float


def rounds(collective: str) -> float:
    """How often the buffer goes around."""
    return 2.0 if collective == "all_reduce" else 1.0


def fit_bandwidth(points: Points, collective: str, group: int, latency_s: float, half: float) -> Fit | None:
    """Least squares of the relative errors with latency and half payload given; None where latency is all there is."""
    turns = rounds(collective)
    fixed = latency_s * turns / 2
    rows = [
        (turns * (group - 1) / group * (payload + min(payload, half)) / seconds, 1.0 - fixed / seconds)
        for payload, seconds in points
    ]
    inverse = sum(x * y for x, y in rows) / sum(x * x for x, _ in rows)
    if inverse <= 0:
        return None
    error = (sum((x * inverse - y) ** 2 for x, y in rows) / len(rows)) ** 0.5
    return Fit(1.0 / inverse, error)


def fit_half_payload(points: Points, group: int, latency_s: float, search: Search) -> float | None:
    """Half payload of all-reduces in bytes: the one under which the seconds are matched best. None: no bandwidth."""
    ratio = (search.most / search.least) ** (1.0 / (search.steps - 1))
    best: tuple[float, float] | None = None
    for step in range(search.steps):
        half = search.least * ratio**step * _MIB
        fit = fit_bandwidth(points, "all_reduce", group, latency_s, half)
        if fit is not None and (best is None or fit.error < best[0]):
            best = fit.error, half
    return None if best is None else best[1]
