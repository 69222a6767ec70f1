"""The 80 % interval of a plan's step time, what it rests on, and which intervals overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from cpsolver.evidence.intervals import EVERY, alike, spread
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import about, plural, unit
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import Calibration, load_calibration

_INSIDE = later("80 % interval: the true step time lies inside four times in five, ")
_ASIDE = 0.02
"""How far the middle of an interval may lie from the prediction before a report says so."""


@dataclass(frozen=True)
class Interval:
    """Seconds between which a step takes four times in five.

    `basis`: the runs that it comes from; `alike`: how many fitted runs have the plan's stack, chips and kind of model;
    `learnt`: whether they are the user's own. `middle`: the middle of the interval / the prediction - 1.
    """

    low_s: float
    high_s: float
    basis: str
    alike: int
    learnt: bool = False
    middle: float = 0.0

    def overlaps(self, other: Interval) -> bool:
        """Whether the two have a time in common."""
        return self.low_s <= other.high_s and other.low_s <= self.high_s


def interval_of(
    problem: Problem, strategy: Strategy, seconds: float, calibration: Calibration | None = None
) -> Interval:
    """The interval of a plan whose predicted step time is that."""
    low, high, basis = spread(problem, strategy, calibration)
    ends = seconds * exp(low), seconds * exp(high)
    if problem.overlay is not None:
        doubts = say(", which was written in spite of doubts: {doubts}", doubts="; ".join(problem.overlay.doubts))
        basis += doubts if problem.overlay.doubts else ""
        return Interval(*ends, basis, alike=0, learnt=True, middle=exp((low + high) / 2) - 1)
    return Interval(*ends, basis, alike(problem, strategy, calibration or load_calibration()))


def ties(intervals: Sequence[Interval]) -> list[bool]:
    """For each plan whether its interval overlaps the first one's; the first overlaps itself."""
    return [each.overlaps(intervals[0]) for each in intervals]


def in_words(interval: Interval, seconds: float) -> str:
    """The interval in the unit of the step time that it belongs to: `16.3 to 19.0 s`."""
    return say(
        "{low_s} to {high_s} {unit}",
        low_s=about(interval.low_s, seconds),
        high_s=about(interval.high_s, seconds),
        unit=unit(seconds),
    )


def provenance(interval: Interval | None, calibration: Calibration | None = None) -> list[str]:
    """What predictions and an interval rest on, a sentence or two a line; None where there is no plan."""
    runs = (calibration or load_calibration()).residuals.get(EVERY)
    fitted = f"{plural(runs.rows, 'published run')}" if runs else say("published runs")
    own = say(" and then to your own runs") if interval is not None and interval.learnt else ""
    told = [
        say(
            "Predictions, not measurements, of a cost model whose constants were fitted to "
            "{fitted}{own}. MFU: model FLOPs, causal attention, no recomputation.",
            fitted=fitted,
            own=own,
        )
    ]
    if interval is not None and interval.learnt:
        told.append(f"{say(_INSIDE)}{interval.basis}.{_aside(interval)}")
    elif interval is not None:
        seen = f"{interval.alike:,}" if interval.alike else say("Few or none")
        told.append(
            say(
                "{inside}by the errors on {basis}. {seen} of the fitted runs have this software stack, "
                "architecture of chips and kind of model. Your own runs make it narrower: `apss-cp "
                "calibrate`.",
                inside=say(_INSIDE),
                basis=interval.basis,
                seen=seen,
            )
        )
    return [*told, say("How far off the predictions were, run by run: `apss-cp validate`; in prose: docs/accuracy.md.")]


def _aside(interval: Interval) -> str:
    """Where the middle of the interval is not the prediction: what the runs showed that no constant can say."""
    if abs(interval.middle) <= _ASIDE:
        return ""
    way = say("slower") if interval.middle > 0 else say("faster")
    return say(
        " Its middle lies {middle:.1f} % {side} the prediction: layouts like this one ran {way} "
        "than the constants can say, which plans are compared by.",
        middle=abs(interval.middle) * 100,
        side=say("above") if interval.middle > 0 else say("below"),
        way=way,
    )
