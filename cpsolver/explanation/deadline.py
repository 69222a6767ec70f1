"""Why no plan meets a deadline: what the fastest one takes."""

from __future__ import annotations

from dataclasses import replace

from cpsolver.explanation.changes import seconds
from cpsolver.problem.problem import Problem
from cpsolver.search.objective import objective_of
from cpsolver.search.search import search

_SECONDS = 30.0  # for the fastest plan


def without_deadline(problem: Problem) -> Problem:
    """The problem of the single fastest plan on as many of the devices as it likes."""
    settings = {"objective": "throughput", "deadline": None, "top": 1, "time_limit_s": _SECONDS}
    cluster = problem.spec.cluster.model_copy(update={"idle": problem.may_idle})
    chosen = problem.spec.search.model_copy(update=settings)
    return replace(problem, spec=problem.spec.model_copy(update={"search": chosen, "cluster": cluster}))


def explain_deadline(problem: Problem) -> tuple[str, ...]:
    """Lines for people on a problem with a deadline that no plan meets; empty where it is not the deadline."""
    wanted = problem.spec.search.deadline
    if wanted is None:
        return ()
    plans = search(without_deadline(problem)).plans
    if not plans:
        return ()
    limit, step = objective_of(problem).deadline_s, plans[0].evaluation.step_time_s
    asked = f"{wanted.tokens:,.0f} tokens in {wanted.days:g} days ask for steps of at most {seconds(limit)}"
    best = f"the fastest plan takes {seconds(step)}, on {plans[0].strategy.devices:,} devices"
    return (f"{asked}; {best}: {wanted.days * step / limit:,.1f} days.",)
