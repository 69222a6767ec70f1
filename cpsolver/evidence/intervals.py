"""How sure a prediction is: the interval that holds the true step time four times in five.

A user's cluster is none that the constants were fitted to, so the interval is that of publishers whose runs the fit had
not seen, for dense models and for those with experts apart. It is wider where a plan has what no published run has.

Where the user's own runs were learnt from (Problem.overlay), what they leave unknown of the plan counts instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Literal

from cpsolver.evidence.reach import beyond_runs
from cpsolver.inputs.language import counted, say
from cpsolver.plans.replicas import MixedReplicas
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import Calibration, Overlay, load_calibration

EVERY = "every run"
UNSEEN = {"dense": "unseen publisher, dense", "experts": "unseen publisher, experts"}
LEARNT = "learnt from"
WITHIN_80 = 1.2816
"""Standard deviations from the mean of a normal distribution that enclose four in five."""
_WIDER = 1.5
"""How much wider for a chip architecture that no run measured, for a pipeline over several chip types, and for sizes
beyond those of every run, and where something of how it ran is assumed."""


def kind_of(problem: Problem) -> Literal["dense", "experts"]:
    """Whose errors a model has: no dense run says how experts behave."""
    return "dense" if problem.model.moe is None else "experts"


def alike(problem: Problem, strategy: Strategy, calibration: Calibration) -> int:
    """Published runs of the plan's stack, chip architecture and kind of model, where they are enough to speak of."""
    group = calibration.residuals.get(keys_of(problem, strategy)[1])
    return 0 if group is None else group.rows


def keys_of(problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """The groups that a plan belongs to, narrowest first: stack, architecture, kind of model, scale."""
    chip = problem.supply(strategy.stage_chips[0]).chip
    pair = f"{problem.stack.name}/{chip.architecture or chip.name}"
    kind = kind_of(problem)
    scale = "one node" if strategy.devices <= problem.node else "nodes"
    return (f"{pair}/{kind}/{scale}", f"{pair}/{kind}", pair, EVERY)


def interval(problem: Problem, strategy: Strategy, seconds: float) -> tuple[float, float]:
    """The least and the most seconds that a step takes, four times in five."""
    low, high, _ = spread(problem, strategy)
    return seconds * exp(low), seconds * exp(high)


def replicas_interval(
    problem: Problem, plan: MixedReplicas, seconds: float, assumed: Sequence[str] = ()
) -> tuple[float, float]:
    """As `interval`, of a plan with replicas of different kinds; `assumed`: what is taken for granted of how it ran."""
    calibration = load_calibration()
    group = calibration.residuals[UNSEEN[kind_of(problem)]]
    of_kinds = (beyond_runs(problem, kind.strategy) for kind in plan.kinds)
    beyond = dict.fromkeys(told for found in of_kinds for told in found)
    wider = _WIDER ** (len(_of_chips(problem, plan.chips, calibration)) + bool(beyond) + bool(assumed))
    return seconds * exp(wider * group.low), seconds * exp(wider * group.high)


def spread(problem: Problem, strategy: Strategy, calibration: Calibration | None = None) -> tuple[float, float, str]:
    """The interval as logarithms of the ratio to the prediction, and the group of runs that it comes from."""
    calibration = calibration or load_calibration()
    low, high, basis = _published(problem, strategy, calibration)
    if problem.overlay is None:
        return low, high, basis
    from cpsolver.evidence.posterior.forecast import forecast

    found = forecast(problem, problem.overlay, strategy)
    half, middle = half_width(found.sd, found.sd_before, (high - low) / 2), found.mean - found.predicted
    basis = f"{LEARNT} {_rows(problem.overlay, problem, strategy)} in {problem.overlay.file}"
    return middle - half, middle + half, basis


def half_width(sd: float, sd_before: float, published: float) -> float:
    """Half an interval, as a logarithm, where runs have left `sd` of a standard deviation `sd_before`.

    `published`: half the interval without the runs. Where that is wider than `sd_before` says, it knows of more that
    may go wrong than the posterior does, and the answer is wider by as much.
    """
    return WITHIN_80 * sd * max(1.0, published / (WITHIN_80 * sd_before))


def _rows(overlay: Overlay, problem: Problem, strategy: Strategy) -> str:
    runs = sum(
        each.runs
        for each in overlay.covers
        if each.stack == problem.stack.name and each.chip in set(strategy.stage_chips)
    )
    return counted(runs, "run")


def _published(problem: Problem, strategy: Strategy, calibration: Calibration) -> tuple[float, float, str]:
    """The interval by the errors on published runs."""
    unknown, kind = _unknowns(problem, strategy, calibration), kind_of(problem)
    group = calibration.residuals[UNSEEN[kind]]
    wider = _WIDER ** len(unknown)
    models = say("dense models") if kind == "dense" else say("models with experts")
    told = say(
        "{runs} published runs of {models}, their publishers left out of the fit", runs=group.rows, models=models
    )
    return wider * group.low, wider * group.high, say("; half as wide again for ").join((told, *unknown))


def _unknowns(problem: Problem, strategy: Strategy, calibration: Calibration) -> list[str]:
    """What no published run has of a plan, in words."""
    found = _of_chips(problem, tuple(dict.fromkeys(strategy.stage_chips)), calibration)
    beyond = beyond_runs(problem, strategy)
    return [*found, ", ".join(beyond)] if beyond else found


def _of_chips(problem: Problem, names: tuple[str, ...], calibration: Calibration) -> list[str]:
    """What no published run has of a plan on these chip types."""
    measured = _architectures(calibration)
    found = [say("a pipeline over several chip types")] if len(names) > 1 else []
    new = [name for name in names if problem.supply(name).chip.architecture not in measured]
    return [*found, say("{chips}, a kind of chip that no run has", chips=say(" and ").join(new))] if new else found


def _architectures(calibration: Calibration) -> set[str]:
    return {key.split("/")[1] for key in calibration.residuals if "/" in key}
