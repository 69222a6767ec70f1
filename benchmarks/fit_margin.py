"""The share of device memory to keep free for a stack whose published readings exceed what the model says they need.

A margin is for what the model does not know, so it is set by the worst readings and not by a mean: the least margin
with which at most one published reading of the stack in TENTH is above the plan's. Not the very worst: a meter shows
what the allocator holds while there is room, tables have slips (one run of BigScience's takes 65 GB with half the micro
batch with which the next takes 56), and a margin that a single reading sets refuses runs that ran. Stacks with fewer
readings than FEWEST, or with none above the margin of all stacks, keep that one.
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
TENTH = 10
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
    needed = {name: sorted(shares)[-1 - len(shares) // TENTH] for name, shares in short.items()}
    return {
        name: Fitted(value=math.ceil(share * _STEP) / _STEP, start=start[name], error=0.0, rows=len(short[name]))
        for name, share in needed.items()
        if len(short[name]) >= FEWEST and share > start[name]
    }
