"""What makes one plan better than another: a score, its step time times a rate that its devices decide.

For throughput the rate is 1 and the score the step time. For cost the rate is dollars per second over tokens per
step, and the score dollars per million tokens. A bound on the time times the lowest rate is a bound on the score.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpsolver.cost.kinds import counts_before
from cpsolver.cost.schedules import HAS_FORM
from cpsolver.cost.shard import Candidates, Floats, Ints
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.spec.search import ObjectiveName

MOST_EXCESS = 0.10
"""Of plans over several chip types those whose formula is further above the best by events, or above the deadline, are
not looked at: it may be, by `most_excess`, where there are few microbatches. Of 12 mixed specs none had another best
plan without this limit, which took up to 40 times as long."""
_WIDEST_EXCESS = 1.0
"""The same where none within that limit is in time: with as many microbatches as stages no formula is further above."""
_HOUR_S = 3600.0
_TOKENS = 1e6
_DOWN = 1.0 - 1e-12
"""Lowers a product of two or three floats by more than rounding can have raised it: a bound must not be too high."""
_DOWN_SUM = 1.0 - 1e-9
"""The same for sums over layers and chip types with differences of nearly equal numbers in them."""


@dataclass(frozen=True)
class Objective:
    """Scores of plans and bounds on them, the smaller the better.

    `prices` is the score of a second on one device of each chip type, in the order of the problem's supplies; None
    where the score is the step time. Plans slower than `deadline_s` are no answer: event by event where schedules are
    run so, and by formula a plan may be slower by what that may be above events.
    """

    name: ObjectiveName
    problem: Problem
    prices: Floats | None
    deadline_s: float
    widest: bool = False

    @property
    def excess(self) -> float:
        """Plans over several chip types whose formula is further above the best by events, or above the deadline, are
        not looked at. The `widest` limit is for problems without a plan within it."""
        return _WIDEST_EXCESS if self.widest else MOST_EXCESS

    @property
    def runs_events(self) -> bool:
        """Whether plans are found by their formula, and the schedule run event by event has the last word."""
        return self.problem.mixed

    @property
    def unit(self) -> str:
        """What a score is counted in."""
        return "s" if self.prices is None else "$ per million tokens"

    @property
    def highest_rate(self) -> float:
        """No plan has a higher one."""
        return 1.0 if self.prices is None else float(self.prices.max()) * self.problem.num_gpus

    @property
    def latest_s(self) -> float:
        """Plans slower than that by formula miss the deadline event by event too."""
        return self.deadline_s * (1 + self.excess) if self.runs_events else self.deadline_s

    @property
    def may_be_late_by_formula(self) -> bool:
        """Whether plans that miss the deadline by formula may be in time event by event."""
        return self.deadline_s < self.latest_s < float("inf")

    @property
    def widens(self) -> bool:
        """Whether plans that are further above the deadline by formula may be in time as well. What is known of frames
        within the narrower limit, where late ones have no bound, does not hold for these."""
        return self.problem.mixed and self.may_be_late_by_formula and not self.widest

    def score(self, strategy: Strategy, step_s: float) -> float:
        """A plan's score; infinite where it misses the deadline."""
        return self.late_score(strategy, step_s) if step_s <= self.deadline_s else float("inf")

    def both(self, strategy: Strategy, formula_s: float, events_s: float) -> tuple[float, float]:
        """The scores of a step time by formula, which may be late, and of the one event by event."""
        by_formula = self.late_score(strategy, formula_s) if formula_s <= self.latest_s else float("inf")
        return by_formula, self.score(strategy, events_s)

    def late_score(self, strategy: Strategy, step_s: float) -> float:
        """A plan's score, whether or not it meets the deadline."""
        if self.prices is None:
            return step_s
        dollars = dollars_per_million_tokens(self.problem, strategy, step_s)
        assert dollars is not None
        return dollars

    def limits_of_plan(self, limits: tuple[float, float, float], rate: float) -> tuple[float, float, float]:
        """The step times of plans of such a rate above which they miss the limits on the score or the deadline: that of
        plans of any use by formula, that by events, and that of plans of use by formula."""
        any_use, by_events, by_formula = (limit / rate for limit in limits)
        return min(any_use, self.latest_s), min(by_events, self.deadline_s), min(by_formula, self.deadline_s)

    def limits_s(self, limits: Floats, rates: Floats) -> Floats:
        """The step times, (n,), of plans of such rates above which they miss their limits or the deadline."""
        return np.minimum(limits / rates, self.deadline_s)

    def latest_limits_s(self, limits: Floats, rates: Floats) -> Floats:
        """The same by formula, of plans that may be of use by events alone."""
        return np.minimum(limits / rates, self.latest_s)

    def bounds(self, seconds: Floats, rates: Floats) -> Floats:
        """Bounds on the score from bounds on the time and the rates; infinite where the deadline is missed for sure."""
        scores = seconds if self.prices is None else seconds * rates * _DOWN
        return np.where(seconds > self.latest_s, np.inf, scores)

    def rates(self, width: Ints, pp: Ints, least: Ints, most: Ints) -> Floats:
        """The lowest rates of plans of `pp` stages of `width` devices, (n,) each, of which each chip type serves from
        `least` to `most`, (n, chip types) each.
        """
        if self.prices is None:
            return np.ones(len(width))
        left, total = pp - least.sum(axis=1), (least * self.prices).sum(axis=1)
        for index in np.argsort(self.prices).tolist():
            taken = np.clip(np.minimum(most[:, index] - least[:, index], left), 0, None)
            total = total + taken * self.prices[index]
            left = left - taken
        return np.asarray(total * width)

    def row_bounds(self, rows: Candidates, seconds: Floats, kinds: Floats) -> Floats:
        """Bounds on the score of rows whose chips are open, from bounds on their time.

        With several chip types the fastest and the cheapest may be others. No stage takes longer than the slowest, so a
        microbatch of the slowest costs no less than every layer where its work is cheapest; and all stages together,
        one after the other, cost as much for each of the dearest devices among all in use. `kinds`: seconds of a layer
        of each kind on each chip type, (types, kinds, n).
        """
        if self.prices is None:
            return self.bounds(seconds, seconds)
        width, limits = rows.stage_devices, np.array([supply.limit for supply in self.problem.supplies])
        most = np.minimum(limits[None, :] // width[:, None], rows.pp[:, None])
        lowest = self.rates(width, rows.pp, np.zeros_like(most), most)
        scores = self.bounds(seconds, lowest)
        if len(limits) == 1:
            return scores
        prices, used = self.prices[:, None], most.T > 0
        cheapest = np.where(used[:, None], kinds * prices[:, None], np.inf).min(axis=0)
        dearest = np.where(used, prices, prices.min()).max(axis=0) * width
        numbers = counts_before(self.problem.model, 1)[:, -1:]
        work = (cheapest * numbers).sum(axis=0) * width
        beside = np.where(HAS_FORM[rows.schedule], 0.0, np.maximum(1.0, lowest / dearest) - 1.0)
        times = rows.microbatches + beside / rows.vpp  # other schedules may hide all of it
        return np.asarray(np.maximum(scores, work * times * _DOWN_SUM))


def objective_of(problem: Problem) -> Objective:
    """The objective that the spec names. The fastest plan is an answer whether or not it is in time."""
    search = problem.spec.search
    tokens = problem.useful_tokens
    limit_s = None if search.objective == "throughput" else deadline_step_s(problem)
    deadline_s = float("inf") if limit_s is None else limit_s
    prices = None
    if search.objective == "cost":
        known = device_prices(problem)
        prices = np.array([known[name] for name in problem.chip_names]) / _HOUR_S / tokens * _TOKENS
    return Objective(search.objective, problem, prices, deadline_s)


def rank(problem: Problem, strategy: Strategy, step_s: float) -> tuple[int, float]:
    """What plans are ordered by, the smaller the better: devices where the fewest are asked for, then the score.

    The deadline does not count: whether a plan meets it is for the rules.
    """
    objective = objective_of(problem)
    devices = strategy.devices if objective.name == "fewest_chips" else 0
    return devices, objective.late_score(strategy, step_s)


def deadline_step_s(problem: Problem) -> float | None:
    """The longest step with which the spec's deadline is met; None without one."""
    deadline = problem.spec.deadline
    return None if deadline is None else deadline.step_time_s(problem.useful_tokens)


def device_prices(problem: Problem) -> dict[str, float]:
    """Dollars per device-hour of the chip types whose price is known."""
    prices = problem.spec.cluster.prices or {}
    written = zip(problem.spec.cluster.chips, problem.chip_names, strict=True)
    return {name: prices[key] for key, name in written if key in prices}


def dollars_per_million_tokens(problem: Problem, strategy: Strategy, step_s: float) -> float | None:
    """What training on a million tokens costs with a plan; None where a chip's price is not known.

    Devices that the plan leaves idle cost nothing.
    """
    hourly = dollars_per_hour(problem, strategy)
    return None if hourly is None else step_s * hourly / _HOUR_S / problem.useful_tokens * _TOKENS


def dollars_per_hour(problem: Problem, strategy: Strategy) -> float | None:
    """What the devices that a plan uses cost in an hour; None where a chip's price is not known."""
    prices, used = device_prices(problem), dict.fromkeys(strategy.stage_chips)
    if any(name not in prices for name in used):
        return None
    return sum(prices[name] * strategy.devices_on(name) for name in used)
