"""Memory in the terms of those who measure it: a framework counts other bytes than a device's meter shows."""

from __future__ import annotations

from collections.abc import Sequence

from cpsolver.cost.memory import StageBytes
from cpsolver.evaluation.evaluate import stage_memory
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem


def memory_bytes(problem: Problem, strategy: Strategy, kind: str | None) -> float:
    """What the fullest stage holds, in the terms of a kind of measurement (device, where none is stated)."""
    return in_terms_of(kind, stage_memory(problem, strategy))


def in_terms_of(kind: str | None, stages: Sequence[StageBytes]) -> float:
    """The same of stages whose memory is known."""
    memory = max(stages, key=lambda memory: memory.total)
    known = {"allocated": memory.allocated, "reserved": memory.device - memory.framework}
    return known.get(kind or "", memory.device)
