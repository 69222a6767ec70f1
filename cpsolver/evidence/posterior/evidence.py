"""What was seen of a plan: a step time, a reading of memory, or that it ran out of it."""

from __future__ import annotations

from dataclasses import dataclass

from cpsolver.evidence.posterior.predictions import Place


@dataclass(frozen=True)
class Seen:
    """A plan that was run. Seconds and bytes, None where not known; `memory_kind` as in cpsolver.evidence.runs.run.

    `out_of_memory`: it needed more than the device has; it has no step time then.
    """

    name: str
    place: Place
    step_time_s: float | None = None
    memory_bytes: float | None = None
    memory_kind: str | None = None
    out_of_memory: bool = False
