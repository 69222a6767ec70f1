"""How far predictions are off, by what runs have in common, and where their publisher was left out: the intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from cpsolver.evidence.intervals import UNSEEN, keys_of, kind_of
from cpsolver.evidence.posterior.predictions import PlacedPlan
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.profiles.constants import Residuals

FEWEST = 8
"""A group needs so many runs to be told of."""


def residual_groups(
    runs: Sequence[MeasuredRun], cases: Sequence[PlacedPlan], errors: Sequence[float], left_out: dict[str, float]
) -> dict[str, Residuals]:
    """The 10 % and 90 % quantiles of log(measured / predicted) by group.

    `errors` and `left_out` are log(predicted / measured), the latter with the run's publisher left out of the fit: the
    groups of UNSEEN, by kind of model, which the intervals are. The others say how well known kinds of runs are met.
    """
    by_key: dict[str, list[float]] = defaultdict(list)
    for run, case, error in zip(runs, cases, errors, strict=True):
        by_key[UNSEEN[kind_of(case.problem)]].append(-left_out[run.id])
        for key in keys_of(case.problem, case.strategy):
            by_key[key].append(-float(error))
    return {
        key: Residuals(rows=len(values), low=_quantile(values, 0.1), high=_quantile(values, 0.9))
        for key, values in sorted(by_key.items(), key=lambda item: (item[0].count("/"), item[0]))
        if len(values) >= FEWEST
    }


def _quantile(values: Sequence[float], share: float) -> float:
    return round(float(np.quantile(values, share)), 4)
