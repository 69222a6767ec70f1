"""What a spec's own wishes cost: for each pin, ban and setting, the best plan without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cpsolver.explain.changes import Changer, Clock, Remedy, best_plan
from cpsolver.explain.remedies import settings_freed
from cpsolver.explain.wishes import wishes
from cpsolver.problem import Problem
from cpsolver.result import Plan

_SECONDS = 40.0  # for all of them
_GAIN = 1e-6  # relative: a smaller one is rounding


def wish_prices(problem: Problem, best: Plan, seconds: float = _SECONDS) -> list[Remedy]:
    """The single wishes without which a faster plan than `best` exists, with that plan, the dearest first."""
    changer = Changer(problem, Clock(seconds))
    least = best.evaluation.step_time_s * (1 - _GAIN)
    found = [price for price in _freed(changer) if price.plan.evaluation.step_time_s < least]
    return sorted(found, key=lambda price: price.plan.evaluation.step_time_s)


def _freed(changer: Changer) -> Iterator[Remedy]:
    single: list[tuple[dict[tuple[str, ...], Any], str]] = [
        ({wish.path: None}, f"without {wish}") for wish in wishes(changer.problem)
    ]
    single += settings_freed(changer.problem)
    for changes, text in single:
        other = changer.changed(changes)
        plan = None if other is None else best_plan(other, changer.clock)
        if other is not None and plan is not None:
            yield Remedy(text, other.spec, plan, 0.0)
