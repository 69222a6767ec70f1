"""What tests of the belief and of Thompson sampling share: a small problem, plans of it, toys, trials."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cpsolver.doors.tune.trial import Proposal, Trial
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evidence.posterior.misfit import Locations, Spread
from cpsolver.evidence.posterior.predictions import Floats, PlacedPlan
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.stack import Constants
from cpsolver.rules import violations
from cpsolver.search.result import Plan, Proof, Result, StopReason
from tests.support.problems import chip_spec, problem_of, strategy_of, with_stack

DEGREES = [(1, 1, 8), (2, 1, 4), (4, 1, 2), (8, 1, 1), (1, 2, 4), (2, 2, 2), (1, 4, 2), (2, 4, 1)]
"""tp, pp, dp."""


@cache
def small(gb: float = 40, margin: float | None = 0.04) -> Problem:
    """Eight devices in nodes of two; every constant of the stack that may be uncertain is there."""
    problem = problem_of({"x": chip_spec(gb=gb)}, gpus=8, node=2, batch=16, margin=margin)
    return with_stack(problem, activation_overhead=0.05, cached_share=0.1, cached_bytes=1e9)


@cache
def lean(gb: float = 40, margin: float | None = 0.04) -> Problem:
    """The same with few uncertain constants: nothing is hidden, nothing the host's, no memory the framework's."""
    host = ("host_layer_us", "microbatch_overhead_us", "step_overhead_ms", "straggling", "gradient_sum_bytes")
    memory = ("framework_bytes", "cached_share", "cached_bytes")
    overlaps = (name for name in Constants.model_fields if "_overlap" in name)
    return with_stack(small(gb, margin), **dict.fromkeys((*host, *memory, *overlaps), 0.0))


@cache
def menu() -> tuple[Strategy, ...]:
    """Legal plans of the small problem that differ in degrees and micro batch."""
    found = []
    for tp, pp, dp in DEGREES:
        flags = "f" + "s" * (tp > 1) + "z" * (dp > 1)
        layers = "x:" + ",".join([str(4 // pp)] * pp)
        found += [strategy_of(layers, tp=tp, dp=dp, mbs=mbs, flags=flags) for mbs in (1, 2)]
    return tuple(found)


def places(problem: Problem, count: int | None = None) -> list[PlacedPlan]:
    """Plans of the menu with their problem."""
    return [PlacedPlan(problem, plan) for plan in menu()[:count]]


class Menu:
    """An exact search of the menu alone. `asked`: the problems that it was given; `stop`: how its proofs end."""

    def __init__(self, plans: Sequence[Strategy] | None = None, stop: StopReason = "complete") -> None:
        self.plans, self.stop, self.asked = tuple(menu() if plans is None else plans), stop, list[Problem]()

    def __call__(self, problem: Problem) -> Result:
        self.asked.append(problem)
        fit = [plan for plan in self.plans if not violations(problem, plan)]
        ranked = sorted(((evaluate(problem, plan), plan) for plan in fit), key=lambda pair: pair[0].step_time_s)
        top = ranked[: problem.spec.search.top]
        plans = tuple(Plan(rank, plan, found, 0.0) for rank, (found, plan) in enumerate(top, 1))
        proof = Proof(
            *(len(self.plans), dict[str, int](), len(self.plans) - len(fit), 0, len(fit), 0, 0, 0, 0.0),
            *(self.stop, 0.0, 0.0),
        )
        return Result("optimal" if plans else "infeasible", plans, proof)


def trial(number: int, plan: Strategy | Proposal, seconds: float | None = None, **more: Any) -> Trial:
    """A trial of a plan that took so long, by default one that ended well."""
    strategy = plan.strategy if isinstance(plan, Proposal) else plan
    told: dict[str, Any] = {"outcome": "ok", "peak_memory_gib": None, "memory_kind": None, "seconds": 1.0, "note": ""}
    shown: dict[str, Any] = {"directory": Path(), "why": "", "predicted_s": 1.0, "low_s": 0.5, "high_s": 2.0}
    return Trial(number=number, strategy=strategy, step_time_s=seconds, **shown, **told | more)


def spread_of(levels: dict[float, float] | None = None, **changes: float) -> Spread:
    """Sizes of errors for toys."""
    memory = {"allocated": 0.03, "reserved": 0.1, "device": 0.1, "unstated": 0.1, "need": 0.06}
    given: dict[str, Any] = {"scale": 1.0, "misfit": 0.1, "reach": 2.0, "leftover": 0.05, "noise": 0.02, **changes}
    return Spread(levels=levels or {0.25: 0.4, 2.0: 0.6}, memory=memory, **given)


def spots_of(coordinates: Sequence[float] | Floats, first: int = 0) -> Locations:
    """Plans of one cluster on a line, each its own; the numbers of their names begin with `first`."""
    names = tuple(str(first + index) for index in range(len(coordinates)))
    return Locations(np.array(coordinates, dtype=float).reshape(-1, 1), ("one",) * len(names), names)
