"""How far predictions are off, by what runs have in common: the spread behind the intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from cpsolver.evidence.intervals import UNSEEN, keys_of
from cpsolver.evidence.posterior.predictions import PlacedPlan
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.profiles.constants import Residuals

FEWEST = 8
"""A group needs so many runs to speak for itself."""
BORROWED = 4
"""Runs' worth of the wider group's spread that every group is mixed with."""
FRESH = 1.05
"""Runs that the fit has not seen are a little further off than those it has."""
LEAST = 0.02
"""No interval is narrower than this to either side: the same run measured twice differs by as much."""


def residual_groups(
    runs: Sequence[MeasuredRun], cases: Sequence[PlacedPlan], errors: Sequence[float], left_out: dict[str, float]
) -> dict[str, Residuals]:
    """Quantiles of log(measured / predicted) by group, from the widest to the narrowest; UNSEEN: left-out sources."""
    by_key: dict[str, list[float]] = defaultdict(list)
    parents: dict[str, str | None] = {}
    for case, error in zip(cases, errors, strict=True):
        keys = keys_of(case.problem, case.strategy)
        for key, parent in zip(keys, (*keys[1:], None), strict=True):
            by_key[key].append(-FRESH * float(error))
            parents[key] = parent
    unseen = np.array([-left_out[run.id] for run in runs])
    found = {UNSEEN: Residuals(rows=len(unseen), low=_quantile(unseen, 0.1), high=_quantile(unseen, 0.9))}
    for key in sorted(by_key, key=lambda name: name.count("/")):
        values, parent = np.array(by_key[key]), parents[key]
        if parent is not None and len(values) < FEWEST:
            continue
        low, high = _quantile(values, 0.1), _quantile(values, 0.9)
        wide = found.get(parent or "")
        if wide is not None:
            own = len(values) / (len(values) + BORROWED)
            low, high = own * low + (1 - own) * wide.low, own * high + (1 - own) * wide.high
        found[key] = Residuals(rows=len(values), low=round(min(low, -LEAST), 4), high=round(max(high, LEAST), 4))
    return found


def _quantile(values: np.ndarray, share: float) -> float:
    return round(float(np.quantile(values, share)), 4)
