"""A first split of a plan and proven lower bounds, from the same integers that the solver gets.

`exact` finds the best split for a choice of options that leaves every stage to itself: always where stages choose on
their own, or layers are of several kinds. Otherwise `guess` comes first, and `exact` where that does not settle it and
there are few choices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

from cpsolver.search.compile.data import PlanData
from cpsolver.search.compile.exact import NEVER, Options, Split, Splitter
from cpsolver.search.compile.guess import guessed

_FEW = 128
"""Choices of a shared option by chip type that are looked at one by one."""


def warm_start(plan: PlanData, by_stage: bool) -> Split | None:
    """The best split found, with bounds on all; None where the plan cannot hold the model.

    `by_stage`: every stage chooses its option for itself. A launcher's split of layers is not looked at, nor that the
    head may stand for no more layers than a chunk has.
    """
    if plan.needed < plan.pp:
        return None
    if by_stage or plan.odd is not None:
        return _exact(plan, by_stage, None)
    guesses = [split for choices in _tied_choices(plan) if (split := guessed(plan, choices)) is not None]
    if not guesses:
        return None
    best = min(guesses, key=lambda split: split.objective)
    slowest, lower = (min(getattr(split, name) for split in guesses) for name in ("slowest", "lower"))
    best = replace(best, slowest=slowest, lower=lower)
    if best.lower >= best.objective or prod(map(len, plan.by_chip.values())) > _FEW:
        return best
    return _exact(plan, by_stage, best)


def _exact(plan: PlanData, by_stage: bool, best: Split | None) -> Split | None:
    """The best split of all choices of options that leave each stage to itself.

    The best one so far spares work, and lets the bound of a choice be no more than its objective: the least bound of
    all choices is one on any split all the same.
    """
    splitter = Splitter(plan)
    slowest, lower = [], []
    for choice in _choices(plan, by_stage):
        known = NEVER if best is None else best.objective
        split = splitter.best(choice, known)
        if split is None:
            continue
        slowest.append(split.slowest)
        lower.append(split.lower)
        if split.objective < known:
            best = split
    return None if best is None else replace(best, slowest=min(slowest), lower=min(lower))


def _tied_choices(plan: PlanData) -> Iterator[dict[int, list[int]]]:
    """The options of each chip type that may stand together: for every tie that all types know."""
    for tie in sorted({tie for own in plan.by_chip.values() for tie in own.tie.tolist()}):
        choices = {
            chip: [i for i, of_option in enumerate(own.tie.tolist()) if of_option == tie]
            for chip, own in plan.by_chip.items()
        }
        if all(choices.values()):
            yield choices


def _choices(plan: PlanData, by_stage: bool) -> Iterator[tuple[Options, ...]]:
    """For each stage the options it may have: all of its chip type's, or one that the whole type shares."""
    for tied in _tied_choices(plan):
        if by_stage:
            yield tuple(tuple(tied[chip]) for chip in plan.chips)
            continue
        for picks in product(*tied.values()):
            chosen = dict(zip(tied, picks, strict=True))
            yield tuple((chosen[chip],) for chip in plan.chips)
