"""What is to be said of a spec: its plans; why it has none; what its wishes cost, and what small changes of it gain.

All of it searches, so it takes its time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from cpsolver.explanation.advice import INTERRUPTED, Advice, advise, seconds_for
from cpsolver.explanation.cause import SECONDS, Explanation, explain_deadline, explanation
from cpsolver.explanation.favourite import FREED, Favourite, favourite
from cpsolver.explanation.remedies import Prices, wish_prices
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.search.result import Listener, Result
from cpsolver.search.search import search
from cpsolver.search.space import Spaces

_LEAST_S = 0.5
"""Seconds that reasons may take however little is left of the time."""
_NO_PLAN = later("there is no plan; looking for the reasons, and for changes that would help")


@runtime_checkable
class SearchDisplay(Protocol):
    """Shows a user who waits what is going on; each method opens what is shown while something takes long."""

    def searching(self) -> AbstractContextManager[Listener | None]:
        """A search, whose events go to the listener."""

    def waiting(self, what: str) -> AbstractContextManager[object]:
        """Something that tells nothing of how far it is."""

    def counting(self, what: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """Work in parts, of which (done, total) are told."""


class Silent:
    """A display that shows nothing."""

    def searching(self) -> AbstractContextManager[None]:
        """No listener."""
        return nullcontext()

    def waiting(self, _what: str) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()

    def counting(self, _what: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """Nobody who counts."""
        return nullcontext(lambda _done, _total: None)


SILENT = Silent()


def display_of(given: SearchDisplay | None) -> SearchDisplay:
    """The display of a call; None: a silent one. Raises InputError for what is none."""
    if given is None:
        return SILENT
    if not isinstance(given, SearchDisplay):
        raise InputError(
            Trouble("display", "must be a display, as cpsolver.doors.report.progress.Terminal() is", given)
        )
    return given


@dataclass(frozen=True)
class Account:
    """What `explain` says of a spec: its best plan, what its wishes cost and small changes gain, or why it has no plan.

    `result` is that of a search for one plan. With a plan `prices` and `advice` are there; without one `explanation`,
    and `reasons` are its lines or, where the time was too short, a line on that.
    """

    problem: Problem
    result: Result
    prices: Prices | None = None
    advice: Advice | None = None
    explanation: Explanation | None = None
    reasons: tuple[str, ...] = ()


def solve(problem: Problem, display: SearchDisplay = SILENT, spaces: Spaces | None = None) -> Result:
    """The search's answer; one that is infeasible has its reasons. `spaces`: see `search`."""
    with display.searching() as listener:
        result = search(problem, listener, spaces=spaces)
    if result.status != "infeasible" or result.reasons:
        return result
    limit, most = problem.spec.search.time_limit_s, SECONDS
    if limit is not None:
        most = min(SECONDS, max(_LEAST_S, limit - result.proof.seconds))
    with display.waiting(say(_NO_PLAN)):
        late = explain_deadline(problem, None if limit is None else most)
        return replace(result, reasons=late or explanation(problem, result, most).lines())


def explain_spec(problem: Problem, display: SearchDisplay = SILENT) -> Account:
    """Why the spec has no plan, or what its wishes cost and what small changes of it gain."""
    single = problem.with_(search={"top": 1})
    with display.searching() as listener:
        result = search(single, listener)
    if result.plans:
        return _with_plan(single, result, display)
    with display.waiting(say(_NO_PLAN)):
        late = explain_deadline(problem) if result.status == "infeasible" else ()
        why = Explanation(causes=list(late)) if late else explanation(problem, result)
    reasons = result.reasons or why.lines()
    if result.status != "infeasible":
        reasons = (say("No plan was found in the time given: a longer search.time_limit_s may find one, or prove it."),)
    return Account(problem, result, explanation=why, reasons=reasons)


def _with_plan(problem: Problem, result: Result, display: SearchDisplay) -> Account:
    """What the wishes cost, then what changes gain; after Ctrl-C nothing more is searched."""
    best = result.plans[0]
    if result.proof.stop == "interrupted":
        return Account(problem, result, prices=Prices((), settled=False, interrupted=True), advice=INTERRUPTED)
    with display.waiting(say("solving without each of the spec's wishes")):
        prices = wish_prices(problem, best)
    if prices.interrupted:
        return Account(problem, result, prices=prices, advice=INTERRUPTED)
    with display.counting(say("solving with other batches, devices and stacks")) as tell:
        advice = advise(problem, best, tell, seconds_for(result.proof.seconds))
        return Account(problem, result, prices=prices, advice=advice)


def explain_plan(problem: Problem, strategy: Strategy, display: SearchDisplay = SILENT) -> Favourite:
    """What the plan breaks or loses against the best one, and which of its decisions, freed alone, help most."""
    with display.counting(say("solving around the plan")) as tell:
        return favourite(problem, strategy, lambda done: tell(done, len(FREED) + 1))
