"""How far off memory was and is: readings left out in turn, and what the runs that ran out of it say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np

from cpsolver.evidence.posterior.memory_posterior import MemoryEvidence, learn_memory
from cpsolver.evidence.posterior.posterior import Posterior, memory_evidence, memory_linear, read_and_ended
from cpsolver.evidence.posterior.predictions import Floats, Linear, Observation


@dataclass(frozen=True)
class MemoryReading:
    """A reading of memory: predicted / measured - 1 with the published constants, and by the other runs."""

    name: str
    before: float
    after: float


@dataclass(frozen=True)
class RanOut:
    """A run that ran out of memory: the share of the device that it needed, as published and as learnt."""

    name: str
    before: float
    after: float

    @property
    def explained(self) -> bool:
        """It is said not to fit."""
        return self.after > 1.0


def memory_left_out(
    posterior: Posterior, on_progress: Callable[[int, int], None] | None = None
) -> tuple[MemoryReading, ...]:
    """Every reading left out in turn, with what its run says of fitting; predictions are straight lines meanwhile."""
    constants = [each for each in posterior.constants if each.kind == "memory"]
    at, spread = posterior.mean[len(posterior.constants) - len(constants) :], posterior.times.spread
    read, ended = read_and_ended(posterior.observations)
    whole, lines = memory_evidence(posterior.observations, spread), memory_linear(posterior.observations, constants, at)
    published = memory_linear(posterior.observations, constants, np.zeros(len(constants)))[0].value
    found = []
    for index, each in enumerate(read):
        evidence, fewer = _without(each, read, ended, whole, lines)
        moved, _ = learn_memory(len(constants), evidence, lambda _, fewer=fewer: fewer, rounds=1)  # type: ignore[misc]
        measured = log(each.memory_bytes or 1.0)
        after = float(lines[0].near(moved)[index])
        found.append(MemoryReading(each.name, exp(float(published[index]) - measured) - 1, exp(after - measured) - 1))
        if on_progress is not None:
            on_progress(index + 1, len(read))
    return tuple(found)


def _without(
    one: Observation,
    read: Sequence[Observation],
    ended: Sequence[Observation],
    whole: MemoryEvidence,
    lines: tuple[Linear, Linear],
) -> tuple[MemoryEvidence, tuple[Linear, Linear]]:
    readings = np.array([each is not one for each in read], dtype=bool)
    needs = np.array([each is not one for each in ended], dtype=bool)
    evidence = replace(
        whole,
        log_bytes=whole.log_bytes[readings],
        off=whole.off[readings],
        log_capacity=whole.log_capacity[needs],
        ran_out=whole.ran_out[needs],
    )
    return evidence, (_some(lines[0], readings), _some(lines[1], needs))


def _some(line: Linear, rows: np.ndarray) -> Linear:
    return Linear(line.at, line.value[rows], line.slope[rows])


def ran_out(posterior: Posterior) -> tuple[RanOut, ...]:
    """What the runs that ran out of memory needed, by the published constants and by those learnt."""
    constants = [each for each in posterior.constants if each.kind == "memory"]
    observations = [each for each in posterior.observations if each.out_of_memory]
    learnt: Floats = posterior.mean[len(posterior.constants) - len(constants) :]
    before, after = (memory_linear(observations, constants, at)[1].value for at in (np.zeros(len(constants)), learnt))
    return tuple(
        RanOut(each.name, exp(float(then)), exp(float(now)))
        for each, then, now in zip(observations, before, after, strict=True)
    )
