"""Which stages of a plan do not fit in memory: what the rule `memory` says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpsolver.cost.memory import StageBytes
from cpsolver.evaluation.evaluate import stage_memory
from cpsolver.inputs.language import later
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from hw_specs.units import GIB


def too_full(problem: Problem, s: Strategy, needed: Sequence[StageBytes] | None = None) -> Iterator[str]:
    """The stages that do not fit; `needed`: the bytes of all, where they are known."""
    for stage, (chip, need) in enumerate(zip(s.stage_chips, needed or stage_memory(problem, s), strict=True)):
        room = problem.capacity_bytes(problem.supply(chip).chip)
        if need.total > room * (1 + 1e-9):
            yield later(
                "stage {stage} on {chip} needs {need:.2f} GiB, {room:.2f} GiB are free for it",
                stage=stage,
                chip=chip,
                need=need.total / GIB,
                room=room / GIB,
            )
