"""The policies by name, and the plain one: the K fastest plans of one search, in order, which any other has to beat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

from cpsolver.doors.report.progress import Watcher
from cpsolver.doors.tune.trial import Chooser, PlanEstimate, Proposal, Stop, Trial, best_trial
from cpsolver.evidence.intervals import interval
from cpsolver.evidence.posterior import check_scipy
from cpsolver.evidence.posterior.predictions import Observation
from cpsolver.inputs.language import say
from cpsolver.problem.problem import Problem
from cpsolver.search.result import Result
from cpsolver.search.search import search

POLICIES = {"thompson": "thompson:thompson", "top": "choosers:in_order"}
"""Name -> "module:function" of this package, the function a `Maker`; loaded when the policy is asked for."""
DEFAULT_POLICY = "thompson"


@dataclass(frozen=True)
class ChooserSettings:
    """What a user may say about choosing; None: the policy's own default.

    `top`: how many plans of a search. `gain`, `chance`: stop when the chance that another plan is faster by that share
    is below. `seed` of what is drawn. `earlier`: runs of the same chips and stack from before the trials.
    """

    top: int | None = None
    gain: float | None = None
    chance: float | None = None
    seed: int = 0
    earlier: tuple[Observation, ...] = ()


Maker = Callable[[Problem, ChooserSettings], Chooser]


def make_chooser(policy: str, problem: Problem, settings: ChooserSettings) -> Chooser:
    """The chooser of that name. `problem`: with the launcher that the plans are exported to.

    Raises InputError where a library that it needs is not installed.
    """
    if policy == "thompson":
        check_scipy("tune")
    module, name = POLICIES[policy].split(":")
    maker: Maker = getattr(import_module(f"cpsolver.doors.tune.{module}"), name)
    return maker(problem, settings)


def in_order(problem: Problem, settings: ChooserSettings) -> InOrder:
    """A chooser with `settings.top` plans, or as many as the spec's search.top says."""
    if settings.top is None:
        return InOrder(problem)
    return InOrder(problem.with_(search={"top": settings.top, "diverse": False}))


class InOrder:
    """A chooser that tries the `search.top` best plans by their rank and learns nothing from the trials."""

    def __init__(self, problem: Problem, solve: Callable[[Problem], Result] | None = None) -> None:
        """`solve`: what searches; by default the search, with its progress on stderr."""
        self._problem, self._solve = problem, solve or watched_search
        self._interrupted = False

    @cached_property
    def _plans(self) -> tuple[PlanEstimate, ...]:
        result = self._solve(self._problem)
        if result.proof.stop == "interrupted":
            self._interrupted = True
            raise KeyboardInterrupt  # here it means: no more trials, not: the best plans so far
        found = []
        for plan in result.plans:
            seconds = plan.evaluation.step_time_s
            found.append(PlanEstimate(plan.strategy, seconds, *interval(self._problem, plan.strategy, seconds)))
        return tuple(found)

    def next(self, trials: Sequence[Trial]) -> Proposal | Stop:
        """The best plan that was not tried; one whose trial was interrupted before it was measured comes again."""
        tried = {trial.strategy for trial in trials if trial.settled or trial.outcome == "running"}
        for rank, plan in enumerate(self._plans, 1):
            if plan.strategy not in tried:
                why = f"plan {rank} of {len(self._plans)} by prediction"
                return Proposal(plan.strategy, why, plan.predicted_s, plan.low_s, plan.high_s)
        if not self._plans:
            return Stop(say("the search finds no plan: `apss-cp solve` says why"))
        if len(self._plans) == 1:
            return Stop(say("the one plan of the search (search.top) was tried"))
        return Stop(say("all {count} plans of the search (search.top) were tried", count=len(self._plans)))

    def estimates(self, trials: Sequence[Trial]) -> Sequence[PlanEstimate]:
        """The predictions of all its plans, as before the trials; none where the search was interrupted."""
        return () if self._interrupted else self._plans

    def best(self, trials: Sequence[Trial]) -> Trial | None:
        """The trial with the least measured step time."""
        return best_trial(trials)


def watched_search(problem: Problem) -> Result:
    """The search, with its progress on stderr."""
    with Watcher() as watcher:
        return search(problem, watcher)
