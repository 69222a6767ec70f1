"""A first split of a plan and proven lower bounds, from the same integers that the solver gets.

`exact` finds the best split for a choice of options that leaves every stage to itself: always where stages choose on
their own, layers are of several kinds, or a step is a StepForm. Otherwise `guess` comes first, and `exact` where that
does not settle it and there are few choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from math import prod

from cpsolver.cost.shard import Ints
from cpsolver.search.compile.chains import NEVER
from cpsolver.search.compile.data import PlanData
from cpsolver.search.compile.exact import Choice, Split, Splitter
from cpsolver.search.compile.given import GivenSplitter
from cpsolver.search.compile.guess import guessed

_FEW = 128
"""Choices of a shared option by chip type that are looked at one by one."""
_MOST_CHOICES = 64
"""Choices, settled or not, that are looked at for one plan: where that is not enough the solver goes on, which is
quicker from there."""


def warm_start(
    plan: PlanData,
    by_stage: bool,
    late: Callable[[], bool] = lambda: False,
    limit: int = NEVER,
    known: Split | None = None,
    given: Ints | None = None,
) -> Split | None:
    """The best split found, with bounds on all; None where the plan cannot hold the model.

    `by_stage`: every stage chooses its option for itself. `given`: the only splits that are allowed, (splits, pp);
    without them a launcher's split of layers is not looked at, nor that the head may stand for no more layers than a
    chunk has. Once it is `late` any split will do, and where no split has an objective up to the `limit` none need be
    there. `known`: a split of a plan whose step is a StepForm, with a lower bound on all.
    """
    if plan.needed < plan.pp or (given is not None and not len(given)):
        return None
    if by_stage or plan.odd is not None or plan.form is not None or given is not None:
        return _exact(plan, by_stage, known, late, limit, given)
    guesses = [
        split
        for choices in _tied_choices(plan)
        if (split := guessed(plan, {chip: list(picks) for chip, picks in choices.items()})) is not None
    ]
    if not guesses:
        return None
    best = min(guesses, key=lambda split: split.objective)
    slowest, lower = (min(getattr(split, name) for split in guesses) for name in ("slowest", "lower"))
    best = replace(best, slowest=slowest, lower=lower)
    if best.lower >= min(limit, best.objective) or prod(map(len, plan.by_chip.values())) > _FEW:
        return best
    return _exact(plan, by_stage, best, late, limit)


def may_run_within(plan: PlanData, limit: float) -> bool:
    """Whether some split of the plan might end within a limit when its schedule is run event by event.

    `limit`: vpp times the step time, in integer steps. Stages choose their options on their own here: none is missed.
    """
    splitter = Splitter(plan)
    return any(splitter.may_run_within(choice, int(limit)) for choice in _tied_choices(plan))


def _exact(
    plan: PlanData,
    by_stage: bool,
    best: Split | None,
    late: Callable[[], bool],
    limit: int,
    given: Ints | None = None,
) -> Split | None:
    """The best split of all choices of options that leave each stage to itself.

    Chip types settle on the option that their stages share one after the other: until then each stage takes its own
    best, so that no split is missed when the choices are taken in the order of their least slowest stage and the rest
    is left out once that alone makes a plan no better than the best.
    """
    search = _Choices(plan, Splitter(plan) if given is None else GivenSplitter(plan, given))
    for tied in _tied_choices(plan):
        search.add(tied, len(tied) if by_stage else 0)
    return search.best(best, late, limit)


class _Choices:
    """Choices of options, of which the first chip types have settled on one, by their least slowest stage."""

    def __init__(self, plan: PlanData, splitter: Splitter) -> None:
        self._splitter, self._chips, self._by_chains = splitter, list(plan.by_chip), plan.form is not None
        self._waiting: list[tuple[int, int, int, int, Choice]] = []
        self._added = 0

    def add(self, choice: Choice, settled: int) -> None:
        """A choice of which that many chip types have settled."""
        slowest = self._splitter.slowest(choice)
        if slowest >= NEVER:
            return
        self._added += 1
        least = self._splitter.least_objective(choice, slowest)
        heappush(self._waiting, (least, self._added, settled, slowest, choice))

    def best(self, best: Split | None, late: Callable[[], bool], limit: int) -> Split | None:
        """The best split of all, and no worse than one that is known, with bounds on all; None where none fits.

        The best so far spares work, and lets the bound of a choice be no more than its objective: the least bound of
        all choices is one on any split all the same. Once it is `late`, or after many choices, the first
        split ends it, and so does a bound above the `limit`.
        """
        slowest, lower, left, floor = [], [], _MOST_CHOICES, 0 if best is None else best.lower
        while self._waiting and self._waiting[0][0] < (limit + 1 if best is None else min(limit + 1, best.objective)):
            left -= 1
            if best is not None and (late() or left < 0):
                break
            _, _, settled, least, choice = heappop(self._waiting)
            if settled < len(self._chips):
                chip = self._chips[settled]
                for pick in choice[chip]:
                    self.add({**choice, chip: (pick,)}, settled + 1)
                continue
            split = self._best_of(choice, least, NEVER if best is None else best.objective, floor, limit)
            slowest.append(split.slowest)
            lower.append(split.lower)
            if best is None or split.objective < best.objective:
                best = split
        if best is None or best.objective >= NEVER:
            return None
        slowest += (waiting[3] for waiting in self._waiting)
        lower += [min(best.objective, waiting[0]) for waiting in self._waiting[:1]]
        return replace(best, slowest=min(slowest), lower=min(lower))

    def _best_of(self, choice: Choice, slowest: int, known: int, floor: int, limit: int) -> Split:
        """The best split of a choice; by chains none is looked for above the limit, if there is proof
        that all are."""
        if not self._by_chains:
            return self._splitter.best(choice, slowest, known)
        below = min(known, limit + 1)
        split = self._splitter.best(choice, slowest, below, floor)
        if split.objective < NEVER or split.lower >= below:
            return split
        return self._splitter.best(choice, slowest, known, floor)


def _tied_choices(plan: PlanData) -> Iterator[Choice]:
    """The options of each chip type that may stand together: for every tie that all types know."""
    for tie in sorted({tie for own in plan.by_chip.values() for tie in own.tie.tolist()}):
        choices = {
            chip: tuple(i for i, of_option in enumerate(own.tie.tolist()) if of_option == tie)
            for chip, own in plan.by_chip.items()
        }
        if all(choices.values()):
            yield choices
