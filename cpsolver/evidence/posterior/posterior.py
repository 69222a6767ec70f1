"""What runs say of the uncertain constants: a posterior, forecasts of any plan under it, draws from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from cpsolver.evidence.posterior.constants import Uncertain, moved, uncertain_constants
from cpsolver.evidence.posterior.evidence import Seen
from cpsolver.evidence.posterior.memory_posterior import MemoryEvidence, learn_memory
from cpsolver.evidence.posterior.misfit import Spread, load_spread, spots
from cpsolver.evidence.posterior.predictions import Floats, Linear, Lineariser, Place, memories
from cpsolver.evidence.posterior.time_posterior import TimePosterior, learn_times
from cpsolver.problem.problem import Problem

NEED = "need"
_SOURCE = "learnt from your runs"


@dataclass(frozen=True)
class Belief:
    """The posterior over `constants`, positions in standard deviations of the published spread.

    `mean` (constants,), `covariance` (constants, constants): of step times first, then of memory, which share nothing.
    """

    constants: tuple[Uncertain, ...]
    mean: Floats
    covariance: Floats
    times: TimePosterior
    seen: tuple[Seen, ...]
    lineariser: Lineariser

    def problem(self, problem: Problem, positions: Floats | None = None) -> Problem:
        """The problem with the constants at these positions, at the mean where none are given."""
        return moved(problem, self.constants, self.mean if positions is None else positions, _SOURCE)

    def draw(self, random: np.random.Generator) -> Floats:
        """Positions drawn from the posterior; those of memory are at the mean."""
        levels = self.times.levels
        level = levels[random.choice(len(levels), p=[each.weight for each in levels])]
        times = random.multivariate_normal(level.mean, level.covariance, method="eigh")
        return np.concatenate([times, self.mean[len(level.mean) :]])

    def fill(self, place: Place) -> tuple[float, float]:
        """Mean and standard deviation of log(memory needed / memory there) on the stage of a plan that is fullest.

        Beside the constants, a plan's own need is as far off as the framework's own count of published runs is. (A run
        that fitted or ran out says less of the constants than that: it is weighed with the wider spread of NEED.)
        """
        count = len(self.times.prior)
        line = memories([place], [NEED], self.constants[count:], self.mean[count:])
        slope = line.slope[0]
        own = self.times.spread.memory["allocated"]
        return float(line.value[0]), sqrt(float(slope @ self.covariance[count:, count:] @ slope) + own**2)

    def linear(self, places: Sequence[Place]) -> Linear:
        """log(step time) of plans near the mean."""
        return self.lineariser(places, self.times.mean)

    def step_times(self, places: Sequence[Place], linear: Linear | None = None) -> tuple[Floats, Floats]:
        """Mean (n,) and covariance (n, n) of log(true step time in seconds) of plans."""
        return self.times.forecast(spots(places), linear or self.linear(places))


def learn(
    seen: Sequence[Seen],
    problems: Sequence[Problem] = (),
    spread: Spread | None = None,
    lineariser: Lineariser | None = None,
) -> Belief:
    """The posterior from what was seen, over the constants of these runs' problems and of `problems`.

    `lineariser`: that of an earlier belief over the same constants, which spares work.
    """
    spread = spread or load_spread()
    constants = uncertain_constants([*problems, *(each.place.problem for each in seen)])
    time = tuple(each for each in constants if each.kind != "memory")
    memory = tuple(each for each in constants if each.kind == "memory")
    timed = [each for each in seen if each.step_time_s is not None]
    places = [each.place for each in timed]
    near = lineariser or Lineariser(time)
    assert near.constants == time, "the lineariser is of other constants"
    found = learn_times(
        spread,
        np.full(len(time), spread.scale),
        spots(places),
        np.array([log(each.step_time_s or 1.0) for each in timed]),
        lambda at: near(places, at),
    )
    at, covariance = _memory(seen, memory, spread)
    whole = np.zeros((len(constants), len(constants)))
    whole[: len(time), : len(time)], whole[len(time) :, len(time) :] = found.covariance, covariance
    return Belief((*time, *memory), np.concatenate([found.mean, at]), whole, found, tuple(seen), near)


def _memory(seen: Sequence[Seen], constants: Sequence[Uncertain], spread: Spread) -> tuple[Floats, Floats]:
    return learn_memory(len(constants), memory_evidence(seen, spread), lambda at: memory_linear(seen, constants, at))


def memory_evidence(seen: Sequence[Seen], spread: Spread) -> MemoryEvidence:
    """What was seen of memory: of those that were read, and of those that ended, in their order."""
    read, ended = read_and_ended(seen)
    return MemoryEvidence(
        np.array([log(each.memory_bytes or 1.0) for each in read]),
        np.array([spread.memory[each.memory_kind or "unstated"] for each in read]),
        np.zeros(len(ended)),
        np.array([each.out_of_memory for each in ended], dtype=bool),
        spread.memory[NEED],
    )


def memory_linear(seen: Sequence[Seen], constants: Sequence[Uncertain], at: Floats) -> tuple[Linear, Linear]:
    """log(bytes) near positions: readings in their own terms, needs of the runs that ended."""
    read, ended = read_and_ended(seen)
    readings = memories([each.place for each in read], [each.memory_kind for each in read], constants, at)
    return readings, memories([each.place for each in ended], [NEED] * len(ended), constants, at)


def read_and_ended(seen: Sequence[Seen]) -> tuple[list[Seen], list[Seen]]:
    """Those whose memory was read, and those that fitted or ran out of it."""
    read = [each for each in seen if each.memory_bytes is not None]
    return read, [each for each in seen if each.out_of_memory or each.step_time_s is not None]
