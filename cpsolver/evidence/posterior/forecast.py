"""What an overlay says of a plan: its step time and how sure that is, with the runs and without them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np

from cpsolver.evidence.posterior.constants import UncertainConstant
from cpsolver.evidence.posterior.misfit import Locations, load_spread, locations
from cpsolver.evidence.posterior.predictions import Linear, Lineariser, PlacedPlan
from cpsolver.evidence.posterior.time_posterior import TimePosterior, closed_form, unlearnt
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import Overlay, uncertain

_ALMOST_ALL = 1 - 1e-9
"""A share of exactly 1 has no odds: an overlay's seven digits may round one up to it."""


@dataclass(frozen=True)
class Forecast:
    """log(step time in seconds) of a plan as it would be measured once: `mean` and `sd`.

    `predicted`: by the constants alone; `sd_before`: what `sd` was before any run.
    """

    mean: float
    sd: float
    predicted: float
    sd_before: float


def forecast(problem: Problem, overlay: Overlay, strategy: Strategy) -> Forecast:
    """The forecast of a plan; the problem's constants are the overlay's already."""
    posterior, constants = posterior_of(overlay)
    place, still = PlacedPlan(problem, strategy), np.zeros(len(constants))
    found = Lineariser(constants)([place], still)
    linear = Linear(posterior.mean, found.value, found.slope)
    mean, covariance = posterior.forecast(locations([place]), linear)
    _, before = unlearnt(posterior.spread, posterior.prior).forecast(locations([place]), linear)
    noise = posterior.spread.noise**2
    sds = sqrt(float(covariance[0, 0]) + noise), sqrt(float(before[0, 0]) + noise)
    return Forecast(float(mean[0]), sds[0], float(found.value[0]), sds[1])


@lru_cache(maxsize=8)
def posterior_of(overlay: Overlay) -> tuple[TimePosterior, tuple[UncertainConstant, ...]]:
    """The posterior of step times, and its constants, which start where the overlay has them."""
    spread, constants = load_spread(), _constants(overlay)
    runs = Locations(
        np.array([run.at for run in overlay.runs]),
        tuple(run.cluster for run in overlay.runs),
        tuple(run.layout for run in overlay.runs),
    )
    slopes = [[run.slopes.get(each.group, {}).get(each.name, 0.0) for each in constants] for run in overlay.runs]
    slope = np.array(slopes).reshape(len(overlay.runs), len(constants))
    off = np.array([run.off for run in overlay.runs])
    return closed_form(spread, np.full(len(constants), spread.scale), runs, slope, off), constants


def _constants(overlay: Overlay) -> tuple[UncertainConstant, ...]:
    """Those that move step times. A chip's factors are in its efficiencies already, and go on from 1."""
    entries = uncertain()
    chips = [
        UncertainConstant("chips", chip, name, 1.0, **entries["chips"][name])
        for chip, names in overlay.chips.items()
        for name in names
    ]
    stacks = [
        UncertainConstant(
            "stacks", stack, name, _inside(each.learnt, entries["stacks"][name]), **entries["stacks"][name]
        )
        for stack, names in overlay.stacks.items()
        for name, each in names.items()
        if name in entries["stacks"]
    ]
    return (*chips, *stacks)


def _inside(value: float, entry: dict[str, object]) -> float:
    """A share that was rounded to all is a little less."""
    return min(value, _ALMOST_ALL) if entry.get("share") else value
