"""The plain choice: the K fastest plans of one exact search, in order. What anything cleverer has to beat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from cpsolver.doors.report.progress import Watcher
from cpsolver.doors.tune.choosers import ChooserSettings
from cpsolver.doors.tune.trial import Believed, Proposal, Stop, Trial, best_trial
from cpsolver.evidence.intervals import interval
from cpsolver.problem.problem import Problem
from cpsolver.search.result import Result
from cpsolver.search.search import search


def in_order(problem: Problem, settings: ChooserSettings) -> InOrder:
    """A chooser with `settings.top` plans, or as many as the spec's search.top says."""
    if settings.top is None:
        return InOrder(problem)
    more = problem.spec.search.model_copy(update={"top": settings.top})
    return InOrder(replace(problem, spec=problem.spec.model_copy(update={"search": more})))


class InOrder:
    """A chooser that tries the `search.top` best plans by their rank and learns nothing from the trials."""

    def __init__(self, problem: Problem, solve: Callable[[Problem], Result] | None = None) -> None:
        """`solve`: what searches; by default the search, with its progress on stderr."""
        self._problem, self._solve = problem, solve or _watched
        self._interrupted = False

    @cached_property
    def _plans(self) -> tuple[Believed, ...]:
        result = self._solve(self._problem)
        if result.proof.stop == "interrupted":
            self._interrupted = True
            raise KeyboardInterrupt  # here it means: no more trials, not: the best plans so far
        found = []
        for plan in result.plans:
            seconds = plan.evaluation.step_time_s
            found.append(Believed(plan.strategy, seconds, *interval(self._problem, plan.strategy, seconds)))
        return tuple(found)

    def next(self, trials: Sequence[Trial]) -> Proposal | Stop:
        """The best plan that was not tried; one whose trial was interrupted before it was measured comes again."""
        tried = {trial.strategy for trial in trials if trial.settled or trial.outcome == "running"}
        for rank, plan in enumerate(self._plans, 1):
            if plan.strategy not in tried:
                why = f"plan {rank} of {len(self._plans)} by prediction"
                return Proposal(plan.strategy, why, plan.predicted_s, plan.low_s, plan.high_s)
        if not self._plans:
            return Stop("the search finds no plan: `apss-cp solve` says why")
        return Stop(f"all {len(self._plans)} plans of the search (search.top) were tried")

    def believed(self, trials: Sequence[Trial]) -> Sequence[Believed]:
        """The predictions of all its plans, as before the trials; none where the search was interrupted."""
        return () if self._interrupted else self._plans

    def best(self, trials: Sequence[Trial]) -> Trial | None:
        """The trial with the least measured step time."""
        return best_trial(trials)


def _watched(problem: Problem) -> Result:
    with Watcher() as watcher:
        return search(problem, watcher)
