"""How far measured runs reach: the ranges that evidence/reach.py holds plans against."""

from __future__ import annotations

from collections.abc import Iterable

from cpsolver.evidence.reach import DEGREES, QUANTITIES, Ranges, Sizes
from cpsolver.evidence.runs.run import MeasuredRun


def sizes_of_run(run: MeasuredRun) -> Sizes | None:
    """A run's sizes, a degree that is not known 1; None where it has no step time, or too little is known of it."""
    if run.step_time_s is None or run.num_gpus is None or run.seq_len is None:
        return None
    degrees = {name: getattr(run, name) or 1 for name in DEGREES}
    return Sizes(degrees, run.num_gpus, run.gpus_per_node or 8, run.seq_len, run.moe_experts or 0)


def ranges_of(runs: Iterable[MeasuredRun]) -> Ranges:
    """How far these runs reach."""
    found: Ranges = {"dense": {}, "experts": {}}
    for run in runs:
        sizes = sizes_of_run(run)
        if sizes is None:
            continue
        reached = found[sizes.kind]
        for name, quantity in QUANTITIES.items():
            value = quantity.value(sizes)
            if value is not None and (name not in reached or quantity.beyond(value, reached[name])):
                reached[name] = value
    return found
