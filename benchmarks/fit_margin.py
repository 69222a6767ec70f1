"""The share of device memory to keep free for a stack whose published readings exceed what the model says they need.

A margin is for what the model does not know, so it is set by the worst reading and not by a mean: the least margin
with which no published reading of the stack is above the plan's. Stacks with fewer readings than FEWEST, or with none
above the margin of all stacks, keep that one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cpsolver.evaluation.meters import memory_bytes
from cpsolver.evidence.posterior.predictions import PlacedPlan
from cpsolver.evidence.runs.run import MeasuredRun
from cpsolver.profiles.constants import Calibration, Fitted
from hw_specs.units import gib_to_bytes

FEWEST = 8
"""Readings that a margin needs."""
_STEP = 1000
"""Margins are rounded up to thousandths."""


def fit_margins(
    runs: Sequence[MeasuredRun], cases: Sequence[PlacedPlan], calibration: Calibration
) -> dict[str, Fitted]:
    """Fitted memory_margin by stack, for a calibration whose other constants are settled."""
    short: dict[str, list[float]] = {}
    start: dict[str, float] = {}
    for run, case in zip(runs, cases, strict=True):
        if run.peak_mem_gib is None:
            continue
        problem = case.problem.with_constants(calibration)
        said = memory_bytes(problem, case.strategy, run.peak_mem_kind)
        short.setdefault(problem.stack.name, []).append(1.0 - said / gib_to_bytes(run.peak_mem_gib))
        start[problem.stack.name] = case.problem.stack.memory_margin
    return {
        name: Fitted(value=math.ceil(max(shares) * _STEP) / _STEP, start=start[name], error=0.0, rows=len(shares))
        for name, shares in short.items()
        if len(shares) >= FEWEST and max(shares) > start[name]
    }
