"""Chances: that a plan runs out of memory, and that it is the best of several, by the errors on published runs.

Errors have heavy tails: all are taken as Student's t with FREEDOM degrees of freedom, whose middle and scale stand in
risk.yaml (benchmarks/fit_risk.py). Memory has two kinds of readings, a framework's own count and a device's meter. A
plan's need lies between the two, so its chance is the mean of what the two say.

Of two plans of one problem most errors are alike. What is left is each plan's own error, and what comes of the parts of
the step (evaluation.PARTS) being more or less wrong than others: the farther apart two plans' shares of these parts,
the less is known of which is faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path

import numpy as np

from cpsolver.evaluation.evaluation import PARTS, Evaluation
from cpsolver.evidence.intervals import kind_of
from cpsolver.inputs.data import package_schema
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

RISK = Path(__file__).parents[1] / "profiles" / "calibrations" / "risk.yaml"
FREEDOM = 4
"""Degrees of freedom of every error: its distribution has a closed form, and the likelihood of 2 or 8 is no better."""
_DRAWS, _SEED, _DIGITS = 20_000, 14, 3
"""Draws for a chance among several plans, right to half a point; always the same, so that an answer repeats."""
_MOST_MARGIN, _FINE = 0.5, 1e-6
"""Of device memory, as a spec allows it; how near to the least that will do."""


@dataclass(frozen=True)
class MemoryMisses:
    """Of log(measured / predicted): its middle and scale, and on how many readings of the group's own they rest."""

    middle: float
    scale: float
    readings: int


@dataclass(frozen=True)
class OrderMisses:
    """Of log(measured / predicted) of one layout less that of another: `own` scale of any two, and `shares`, that for
    each unit of distance between their shares of the step's parts. From so many `layouts` of `tasks`.
    """

    own: float
    shares: float
    layouts: int
    tasks: int

    def scale(self, first: np.ndarray, second: np.ndarray) -> float:
        """Of two plans with these shares, (parts,) each."""
        return sqrt(self.own**2 + self.shares**2 * float(((first - second) ** 2).sum()))


@dataclass(frozen=True)
class Risk:
    """The file. `memory`: kind of reading -> "dense", "experts" or "stack/dense" and so on -> its error."""

    memory: Mapping[str, Mapping[str, MemoryMisses]]
    order: OrderMisses


def load_risk() -> Risk:
    """What published runs say."""
    return package_schema(RISK, Risk)


def below(score: float) -> float:
    """The chance that an error of scale 1 around 0 is below: Student's t with four degrees of freedom."""
    share = score**2 / (FREEDOM + score**2)
    return 0.5 + 0.25 * (3.0 - share) * sqrt(share) * (1.0 if score > 0 else -1.0)


def memory_errors(problem: Problem, risk: Risk) -> list[MemoryMisses]:
    """One for each kind of reading: of the stack and kind of model, where it has readings enough, else of the kind."""
    kind = kind_of(problem)
    return [groups.get(f"{problem.stack.name}/{kind}", groups[kind]) for groups in risk.memory.values()]


def out_of_memory_probability(problem: Problem, strategy: Strategy, evaluation: Evaluation) -> float:
    """The chance that the fullest stage needs more than its device has, all of it: the margin is there to be used."""
    room = min(
        log(problem.supply(stage.chip).chip.memory_capacity_bytes / stage.memory.total) for stage in evaluation.stages
    )
    left = 1.0 if problem.overlay is None else _left_unknown(problem, strategy)
    return round(_chance(problem, room, left), _DIGITS)


def _chance(problem: Problem, room: float, left: float = 1.0) -> float:
    """The chance that a need is more than its prediction by a factor of e to the `room`."""
    errors = memory_errors(problem, load_risk())
    chances = [1.0 - below((room - left * error.middle) / (left * error.scale)) for error in errors]
    return sum(chances) / len(chances)


def margin_for(problem: Problem, risk: float) -> float:
    """The share of device memory to keep free so that no plan has a chance of `risk` or more of running out of it; at
    most _MOST_MARGIN, which may be too little for that. The user's own runs, which make it smaller, are left out.
    """
    low, high = 0.0, -log(1.0 - _MOST_MARGIN)
    while high - low > _FINE:
        middle = (low + high) / 2
        low, high = (low, middle) if round(_chance(problem, middle), _DIGITS) < risk else (middle, high)
    return 1.0 - exp(-high)


def _left_unknown(problem: Problem, strategy: Strategy) -> float:
    """How much of what was unsure of a plan's memory the user's own runs have left, from 0 to 1."""
    from cpsolver.evidence.posterior.constants import UncertainConstant
    from cpsolver.evidence.posterior.misfit import load_spread
    from cpsolver.evidence.posterior.predictions import PlacedPlan, memories
    from cpsolver.profiles.constants import uncertain

    assert problem.overlay is not None
    entries, stack = uncertain()["memory"], problem.stack.name
    learnt = {name: each for name, each in problem.overlay.stacks.get(stack, {}).items() if name in entries}
    constants = [
        UncertainConstant("memory", stack, name, each.learnt, **entries[name]) for name, each in learnt.items()
    ]
    slope = memories([PlacedPlan(problem, strategy)], ["need"], constants, np.zeros(len(constants))).slope[0]
    own = load_spread().memory["allocated"] ** 2
    before = sum((move * each.sd_before) ** 2 for move, each in zip(slope, learnt.values(), strict=True))
    after = sum((move * each.sd) ** 2 for move, each in zip(slope, learnt.values(), strict=True))
    return min(1.0, sqrt((after + own) / (before + own)))


def loss_if_unmeasured() -> float:
    """What it costs on average, as a share of the step, that a plan has something that no run has had.

    The error of a layout of its own, where it is against us: the mean of the positive part of Student's t with four
    degrees of freedom is half its scale.
    """
    return 0.5 * load_risk().order.own / sqrt(2.0)


def shares(evaluation: Evaluation) -> np.ndarray:
    """Each part's share of the step, in the order of PARTS."""
    return np.array([evaluation.breakdown_s[part] for part in PARTS]) / evaluation.step_time_s


def faster(predicted_s: tuple[float, float], parts: tuple[np.ndarray, np.ndarray], error: OrderMisses) -> float:
    """The chance that the first of two plans is faster than the second, given their shares."""
    return below(log(predicted_s[1] / predicted_s[0]) / error.scale(*parts))


def best_chances(scores: Sequence[float], evaluations: Sequence[Evaluation]) -> list[float]:
    """For each plan of one problem the chance that its score is truly the least; scores go with step times.

    A draw has an error of each part, the same for all plans, and an error of each plan's own.
    """
    if not scores:
        return []
    order, random = load_risk().order, np.random.default_rng(_SEED)
    parts = np.array([shares(each) for each in evaluations])
    own = random.standard_normal((_DRAWS, len(scores))) * (order.own / sqrt(2.0))
    common = random.standard_normal((_DRAWS, len(PARTS))) @ parts.T * order.shares
    wide = np.sqrt(FREEDOM / random.chisquare(FREEDOM, (_DRAWS, 1)))
    winners = np.argmin(np.log(scores) + wide * (own + common), axis=1)
    counted = np.bincount(winners, minlength=len(scores)) / _DRAWS
    return [round(float(each), _DIGITS) for each in counted]
