"""What a spec's own wishes cost: for each pin, ban and setting, the best plan without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cpsolver.explanation.changes import Changer, Clock, Remedy, best_plan, is_better, rank_of
from cpsolver.explanation.remedies import settings_freed
from cpsolver.explanation.wishes import wishes
from cpsolver.problem.problem import Problem
from cpsolver.search.result import Plan

_SECONDS = 40.0  # for all of them


@dataclass(frozen=True)
class Prices:
    """Wishes that cost something, each with the best plan without it, the dearest first.

    `settled`: all of it is proven, that the other wishes cost nothing too, and there was time for every one.
    """

    found: tuple[Remedy, ...]
    settled: bool


def wish_prices(problem: Problem, best: Plan, seconds: float = _SECONDS) -> Prices:
    """The single wishes without which a plan exists that is better than `best` in the spec's objective."""
    clock = Clock(seconds)
    tried = list(_freed(Changer(problem, clock)))
    own = rank_of(problem, best)
    found = sorted(
        (price for price in tried if is_better(rank_of(problem, price.plan), own)),
        key=lambda price: rank_of(problem, price.plan),
    )
    settled = best.proven and clock.left > 0 and not clock.cut_short and all(price.plan.proven for price in tried)
    return Prices(tuple(found), settled)


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
