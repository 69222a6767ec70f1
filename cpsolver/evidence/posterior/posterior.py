"""What runs say of the uncertain constants: a posterior, forecasts of any plan under it, draws from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from cpsolver.evidence.posterior.constants import UncertainConstant, moved, uncertain_constants
from cpsolver.evidence.posterior.memory_posterior import MemoryEvidence, learn_memory
from cpsolver.evidence.posterior.misfit import Spread, load_spread, locations
from cpsolver.evidence.posterior.predictions import Floats, Linear, Lineariser, Observation, PlacedPlan, memories
from cpsolver.evidence.posterior.time_posterior import TimePosterior, learn_times
from cpsolver.problem.problem import Problem

NEED = "need"
_SOURCE = "learnt from your runs"


@dataclass(frozen=True)
class Posterior:
    """The posterior over `constants`, positions in standard deviations of the published spread.

    `mean` (constants,), `covariance` (constants, constants): of step times first, then of memory, which share nothing.
    """

    constants: tuple[UncertainConstant, ...]
    mean: Floats
    covariance: Floats
    times: TimePosterior
    observations: tuple[Observation, ...]
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

    def fill(self, placed: PlacedPlan) -> tuple[float, float]:
        """Mean and standard deviation of log(memory needed / memory there) on the stage of a plan that is fullest.

        Beside the constants, a plan's own need is as far off as the framework's own count of published runs is. (A run
        that fitted or ran out says less of the constants than that: it is weighed with the wider spread of NEED.)
        """
        count = len(self.times.prior)
        line = memories([placed], [NEED], self.constants[count:], self.mean[count:])
        slope = line.slope[0]
        own = self.times.spread.memory["allocated"]
        return float(line.value[0]), sqrt(float(slope @ self.covariance[count:, count:] @ slope) + own**2)

    def linear(self, places: Sequence[PlacedPlan]) -> Linear:
        """log(step time) of plans near the mean."""
        return self.lineariser(places, self.times.mean)

    def step_times(self, places: Sequence[PlacedPlan], linear: Linear | None = None) -> tuple[Floats, Floats]:
        """Mean (n,) and covariance (n, n) of log(true step time in seconds) of plans."""
        return self.times.forecast(locations(places), linear or self.linear(places))


def learn(
    observations: Sequence[Observation],
    problems: Sequence[Problem] = (),
    spread: Spread | None = None,
    lineariser: Lineariser | None = None,
) -> Posterior:
    """The posterior from what was seen, over the constants of these runs' problems and of `problems`.

    `lineariser`: that of an earlier posterior over the same constants, which spares work.
    """
    spread = spread or load_spread()
    constants = uncertain_constants([*problems, *(each.plan.problem for each in observations)])
    time = tuple(each for each in constants if each.kind != "memory")
    memory = tuple(each for each in constants if each.kind == "memory")
    timed = [each for each in observations if each.step_time_s is not None]
    places = [each.plan for each in timed]
    near = lineariser or Lineariser(time)
    assert near.constants == time, "the lineariser is of other constants"
    found = learn_times(
        spread,
        np.full(len(time), spread.scale),
        locations(places),
        np.array([log(each.step_time_s or 1.0) for each in timed]),
        lambda at: near(places, at),
    )
    at, covariance = _memory(observations, memory, spread)
    whole = np.zeros((len(constants), len(constants)))
    whole[: len(time), : len(time)], whole[len(time) :, len(time) :] = found.covariance, covariance
    return Posterior((*time, *memory), np.concatenate([found.mean, at]), whole, found, tuple(observations), near)


def _memory(
    observations: Sequence[Observation], constants: Sequence[UncertainConstant], spread: Spread
) -> tuple[Floats, Floats]:
    evidence = memory_evidence(observations, spread)
    return learn_memory(len(constants), evidence, lambda at: memory_linear(observations, constants, at))


def memory_evidence(observations: Sequence[Observation], spread: Spread) -> MemoryEvidence:
    """What was seen of memory: of those that were read, and of those that ended, in their order."""
    read, ended = read_and_ended(observations)
    return MemoryEvidence(
        np.array([log(each.memory_bytes or 1.0) for each in read]),
        np.array([spread.memory[each.memory_kind or "unstated"] for each in read]),
        np.zeros(len(ended)),
        np.array([each.out_of_memory for each in ended], dtype=bool),
        spread.memory[NEED],
    )


def memory_linear(
    observations: Sequence[Observation], constants: Sequence[UncertainConstant], at: Floats
) -> tuple[Linear, Linear]:
    """log(bytes) near positions: readings in their own terms, needs of the runs that ended."""
    read, ended = read_and_ended(observations)
    readings = memories([each.plan for each in read], [each.memory_kind for each in read], constants, at)
    return readings, memories([each.plan for each in ended], [NEED] * len(ended), constants, at)


def read_and_ended(observations: Sequence[Observation]) -> tuple[list[Observation], list[Observation]]:
    """Those whose memory was read, and those that fitted or ran out of it."""
    read = [each for each in observations if each.memory_bytes is not None]
    return read, [each for each in observations if each.out_of_memory or each.step_time_s is not None]
