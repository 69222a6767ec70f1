"""The plans that may be tried next: what exact searches find under constants drawn from the posterior."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import exp
from pathlib import Path

from scipy.stats import norm

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evidence.posterior.posterior import Posterior
from cpsolver.evidence.posterior.predictions import Floats, PlacedPlan
from cpsolver.inputs.data import package_data
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import violations
from cpsolver.search.result import Result

_FILE = Path(__file__).parent / "thompson.yaml"


class CandidatePlans:
    """Candidate plans of a problem, each once, in the order in which they were found."""

    def __init__(self, problem: Problem, plans_a_search: int, most: int, solve: Callable[[Problem], Result]) -> None:
        self._problem, self._most, self._solve = problem, most, solve
        self._top = plans_a_search
        self._placed: dict[Strategy, PlacedPlan] = {}

    def placed(self, strategy: Strategy) -> PlacedPlan:
        """The plan with its problem, always the same object."""
        if strategy not in self._placed:
            self._placed[strategy] = PlacedPlan(self._problem, strategy)
        return self._placed[strategy]

    def search(self, posterior: Posterior, positions: Floats | None = None) -> list[Strategy]:
        """The best plans with the constants at these positions (default: the posterior's mean); they are kept too."""
        result = self._solve(self._searched(posterior, positions))
        if result.proof.stop == "interrupted":
            raise KeyboardInterrupt
        plans = [plan.strategy for plan in result.plans]
        self.keep(plans)
        return plans

    def keep(self, plans: Iterable[Strategy]) -> None:
        """Plans that were found before are candidates too."""
        for plan in plans:
            self.placed(plan)

    def legal(self, posterior: Posterior, keep: Sequence[Strategy]) -> list[Strategy]:
        """The candidates that fit by the posterior's mean, at most `most`; those to `keep` always and first."""
        problem = self._searched(posterior, None)
        others = [plan for plan in self._placed if plan not in keep and not violations(problem, plan)]
        if len(others) > self._most:
            others.sort(key=lambda plan: evaluate(problem, plan).step_time_s)
        return [*keep, *others[: self._most]]

    def _searched(self, posterior: Posterior, positions: Floats | None) -> Problem:
        problem = posterior.problem(self._problem, positions)
        return problem.with_(
            search={"top": self._top, "diverse": False}, cluster={"memory_margin": self._margin(posterior)}
        )

    def _margin(self, posterior: Posterior) -> float:
        """Share of the memory that a plan leaves free: the planner's, or less once trials tell what plans need.

        A margin that the spec names is kept. Without one a plan may run out with the chance of thompson.yaml.
        """
        usual = self._problem.memory_margin
        read = any(each.memory_bytes is not None or each.out_of_memory for each in posterior.observations)
        if self._problem.spec.cluster.memory_margin is not None or not read:
            return usual
        spread = max(posterior.fill(each.plan)[1] for each in posterior.observations)
        return min(usual, 1.0 - exp(-float(norm.ppf(1.0 - facts()["may_run_out"])) * spread))


def chance_of_running_out(posterior: Posterior, placed: PlacedPlan) -> float:
    """That a plan needs more memory than some device of it has."""
    mean, spread = posterior.fill(placed)
    return float(norm.cdf(mean / spread))


@cache
def facts() -> dict[str, float]:
    """The values of thompson.yaml by name."""
    return {name: entry["value"] for name, entry in package_data(_FILE).items()}
