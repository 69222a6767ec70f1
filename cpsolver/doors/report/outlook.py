"""What the whole training takes with a plan: days and dollars with their intervals, and the chance of being in time.

Days are of optimizer steps alone: what failures, checkpoints and evaluations take comes on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from math import ceil
from typing import Any

from cpsolver.doors.report.goals import chance
from cpsolver.doors.report.interval import Interval
from cpsolver.evidence.step_times import StepTimes
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.search.objective import deadline_step_s, dollars_per_hour

_DAY_S, _HOURS = 86_400.0, 24.0


@dataclass(frozen=True)
class MeanRange:
    """The mean of what may come, and the ends between which it lies four times in five."""

    low: float
    mean: float
    high: float

    def times(self, factor: float) -> MeanRange:
        """In another unit."""
        return MeanRange(self.low * factor, self.mean * factor, self.high * factor)


@dataclass(frozen=True)
class Outlook:
    """Days and dollars of the whole training; None where its tokens, or a chip's price, are not known.

    `deadline_probability`: that the steps take no longer than the deadline leaves them; None without a deadline.
    """

    days: MeanRange | None = None
    dollars: MeanRange | None = None
    deadline_probability: float | None = None

    def document(self) -> dict[str, Any]:
        """In JSON's terms."""
        return asdict(self)


UNKNOWN = Outlook()


def outlook(problem: Problem, strategy: Strategy, step_s: float, interval: Interval) -> Outlook:
    """That of a plan whose predicted step time has that interval."""
    tokens = problem.spec.tokens
    if tokens is None:
        return UNKNOWN
    times = StepTimes.through(interval.low_s, step_s * (1 + interval.middle), interval.high_s)
    limit_s, hourly = deadline_step_s(problem), dollars_per_hour(problem, strategy)
    in_days = steps_of(problem, tokens) / _DAY_S
    days = MeanRange(interval.low_s, times.mean_s, interval.high_s).times(in_days)
    return Outlook(
        days,
        None if hourly is None else days.times(_HOURS * hourly),
        None if limit_s is None else times.within(limit_s),
    )


def steps_of(problem: Problem, tokens: float) -> int:
    """Optimizer steps that see so many tokens: the last one may see some more."""
    return ceil(tokens / problem.useful_tokens)


EVEN = 0.5
"""The chance from which a plan counts as in time: its predicted step is no longer than the deadline allows."""


def weighed(outlooks: Sequence[Outlook]) -> tuple[tuple[int, ...], int | None]:
    """The front and the winner of those whose days and dollars are known, as places.

    Front: what no other beats in both, the soonest first. Winner: the cheapest of those at least as likely as not in
    time, or of all without a deadline; None where there is none.
    """
    points = {p: (one.days.mean, one.dollars.mean) for p, one in enumerate(outlooks) if one.days and one.dollars}
    order = sorted(points, key=points.__getitem__)
    front: list[int] = []
    for place in order:
        if not front or points[place][1] < points[front[-1]][1] or points[place] == points[front[-1]]:
            front.append(place)
    chances = {place: outlooks[place].deadline_probability for place in order}
    in_time = [place for place, chance in chances.items() if chance is None or chance >= EVEN]
    return tuple(front), min(in_time, key=lambda place: points[place][::-1], default=None)


def days_text(value: float) -> str:
    """Days to some three digits: 44.1."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def total_dollars(value: float) -> str:
    """Dollars of a whole training to some three digits: $1.36 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size * 0.9995:
            scaled = value / size
            return f"${scaled:,.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f}{unit}"
    return f"${value:,.0f}" if value >= 100 else f"${value:,.2f}"


def outlook_words(problem: Problem, found: Outlook) -> str:
    """Days, dollars and the chance of being in time, in a sentence; empty where the tokens are not known."""
    if found.days is None or problem.spec.tokens is None:
        return ""
    low, mean, high = (days_text(value) for value in astuple(found.days))
    said = say(
        "{tokens:.4g} tokens: {mean} days expected (80 % interval {low} to {high})",
        tokens=problem.spec.tokens,
        mean=mean,
        low=low,
        high=high,
    )
    if found.dollars is not None:
        low, mean, high = (total_dollars(value) for value in astuple(found.dollars))
        said += say(", {mean} ({low} to {high})", mean=mean, low=low, high=high)
    deadline = problem.spec.deadline
    if deadline is not None and found.deadline_probability is not None:
        said += say(
            "; {deadline_probability} likely within {days:g} days",
            deadline_probability=chance(found.deadline_probability),
            days=deadline.days,
        )
    return say("{said}.", said=said)
