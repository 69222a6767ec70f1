"""A cluster that is not there: hidden constants near the published ones, and what a plan's run would give on it.

For trying `apss-cp tune` without hardware (examples/simulated_cluster.py) and for studying it (benchmarks). The cost
model with other constants stands for the cluster, so what that model cannot describe is not seen here.
Every number is drawn from the seed and the name of what it belongs to, whatever else was drawn before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import exp, pi, sqrt
from random import Random
from statistics import median
from typing import Any, Literal

from cpsolver.cost.memory import StageBytes
from cpsolver.evaluation.evaluate import evaluate, stage_memory
from cpsolver.evidence.posterior.constants import UncertainConstant, moved, uncertain_constants
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import Violation, violations

_WAVES = 256
"""Cosines that make a field: their sum is as good as Gaussian, and its covariance near the kernel's
(Rahimi and Recht, Random Features for Large-Scale Kernel Machines, 2007)."""

Fate = Literal["ok", "oom", "failed", "timeout"]
"""How a run ends: well; out of memory; by an error that has nothing to do with the plan; not at all."""


@dataclass(frozen=True)
class Misfit:
    """By how much step times differ from the cost model, whatever its constants: a smooth field over layouts, drawn
    from the Gaussian process of posterior/misfit.py, and each plan's own rest. `level`: how much of both there is.
    """

    seed: int
    level: float

    def log_error(self, problem: Problem, strategy: Strategy) -> float:
        """log(step time / what the cost model says) of a plan."""
        import numpy as np

        from cpsolver.evidence.posterior.misfit import load_spread, locations
        from cpsolver.evidence.posterior.predictions import PlacedPlan

        spread, spot = load_spread(), locations([PlacedPlan(problem, strategy)])
        at = spot.coordinates[0]
        waves, phases = _waves(self.seed, spot.clusters[0], len(at))
        smooth = spread.misfit * sqrt(2 / _WAVES) * float(np.cos(waves @ at / spread.reach + phases).sum())
        own = _random(self.seed, "leftover", spot.identities[0]).gauss(0.0, spread.leftover)
        return self.level * (smooth + own)


@dataclass(frozen=True)
class Truth:
    """What nobody knows of a cluster. `positions`: where its constants lie, in standard deviations of their prior.

    `problem` has these constants, and no margin: a plan runs if it fits. `misfit`: what no constant explains, if any.
    """

    problem: Problem
    constants: tuple[UncertainConstant, ...]
    positions: tuple[float, ...]
    misfit: Misfit | None = None

    def step_time_s(self, strategy: Strategy) -> float:
        """Seconds that a step takes, without noise."""
        error = 0.0 if self.misfit is None else self.misfit.log_error(self.problem, strategy)
        return evaluate(self.problem, strategy).step_time_s * exp(error)

    def memory(self, strategy: Strategy) -> list[StageBytes]:
        """Bytes that each stage needs on a device."""
        return stage_memory(self.problem, strategy)

    def too_full(self, strategy: Strategy, memory: Sequence[StageBytes] | None = None) -> int | None:
        """The first stage that needs more than its device has, None where all fit. `memory` spares its count."""
        for index, (chip, need) in enumerate(zip(strategy.stage_chips, memory or self.memory(strategy), strict=True)):
            if need.total > self.problem.supply(chip).chip.memory_capacity_bytes:
                return index
        return None

    def refusals(self, strategy: Strategy) -> list[Violation]:
        """Rules but that on memory which the plan breaks: what a launcher refuses, before any device is asked."""
        return [found for found in violations(self.problem, strategy) if found.rule != "memory"]


def hidden_truth(problem: Problem, seed: int, scale: float = 1.0, misfit: float = 0.0) -> Truth:
    """A cluster as likely as any: its constants are drawn from the prior.

    `scale` widens the prior of constants of step times, not of memory. A constant has the same value in every problem
    with that chip or stack. `misfit`: how much of the misfit of spread.yaml there is, 1 for all of it.
    """
    constants = uncertain_constants([problem])
    positions = tuple(
        _random(seed, "constant", each.key).gauss(0.0, 1.0 if each.kind == "memory" else scale) for each in constants
    )
    true = moved(problem, constants, positions, f"simulated cluster {seed}")
    cluster = true.spec.cluster.model_copy(update={"memory_margin": 0.0})
    field = Misfit(seed, misfit) if misfit else None
    return Truth(replace(true, spec=true.spec.model_copy(update={"cluster": cluster})), constants, positions, field)


@dataclass(frozen=True)
class Run:
    """One run: how it ended, seconds of its iterations in order, and bytes by stage where it came so far.

    `full_stage`: the stage that ran out of memory.
    """

    fate: Fate
    iterations_s: tuple[float, ...] = ()
    stages: tuple[StageBytes, ...] = ()
    full_stage: int | None = None

    def step_time_s(self, skip: int) -> float:
        """Median of the iterations after the first `skip`."""
        return median(self.iterations_s[skip:])

    @cached_property
    def fullest(self) -> StageBytes:
        """The stage that needs most memory."""
        return max(self.stages, key=lambda stage: stage.total)


@dataclass(frozen=True)
class Cluster:
    """A truth with its weather. `noise`: standard deviation of the logarithm of a run's speed, and of each iteration's
    in the run. `failures`, `hangs`: share of the runs that end with an error, or not at all, whatever the plan.
    `start_up`: how many times as long the first iteration takes, which loads kernels.
    """

    truth: Truth
    seed: int
    noise: float = 0.0
    failures: float = 0.0
    hangs: float = 0.0
    start_up: float = 1.0

    def run(self, strategy: Strategy, trial: int, iterations: int) -> Run:
        """What the plan's run number `trial` gives; the same again for the same number. The plan must be legal."""
        drawn = _random(self.seed, "fate", trial).random()
        if drawn < self.failures:
            return Run("failed")
        stages = tuple(self.truth.memory(strategy))
        full = self.truth.too_full(strategy, stages)
        if full is not None:
            return Run("oom", stages=stages, full_stage=full)
        if drawn < self.failures + self.hangs:
            return Run("timeout", stages=stages)
        return Run("ok", self._iterations(strategy, trial, iterations), stages)

    def _iterations(self, strategy: Strategy, trial: int, count: int) -> tuple[float, ...]:
        draw = _random(self.seed, "noise", trial)
        usual = self.truth.step_time_s(strategy) * exp(draw.gauss(0.0, self.noise))
        times = [usual * exp(draw.gauss(0.0, self.noise)) for _ in range(count)]
        return (times[0] * self.start_up, *times[1:])


def describe(truth: Truth) -> Sequence[str]:
    """The hidden constants in words, those furthest from the published values first."""
    pairs = sorted(zip(truth.constants, truth.positions, strict=True), key=lambda pair: -abs(pair[1]))
    return [f"{each.key}: {each.value(at):.4g} (published: {each.start:.4g})" for each, at in pairs]


@lru_cache
def _waves(seed: int, cluster: str, size: int) -> tuple[Any, Any]:
    """Directions, shape (waves, coordinates), and phases of a field's cosines; other chips have another field."""
    import numpy as np

    draw = _random(seed, "misfit", cluster)
    waves = np.array([[draw.gauss(0.0, 1.0) for _ in range(size)] for _ in range(_WAVES)])
    return waves, np.array([draw.uniform(0.0, 2 * pi) for _ in range(_WAVES)])


def _random(seed: int, *what: str | int) -> Random:
    return Random(" ".join(map(str, (seed, *what))))
