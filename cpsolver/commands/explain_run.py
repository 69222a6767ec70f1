"""What the command `explain` does between its options and its exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cpsolver.doors.report.document import dumps, problem_document, versions
from cpsolver.doors.report.explanations import (
    favourite_document,
    favourite_report,
    infeasible_document,
    prices_document,
    prices_report,
)
from cpsolver.doors.report.progress import Bar, Waiting, Watcher
from cpsolver.explanation.cause import Explanation, explanation
from cpsolver.explanation.deadline import explain_deadline
from cpsolver.explanation.favourite import FREED, favourite
from cpsolver.explanation.prices import wish_prices
from cpsolver.inputs.output import deliver, deliver_report
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.search.search import search


def explain_plan(problem: Problem, strategy: Strategy, as_json: bool, output: str | None) -> bool:
    """Write why the plan is not the best; whether it is legal."""
    with Bar("solving around the plan") as bar:
        found = favourite(problem, strategy, lambda done: bar(done, len(FREED) + 1))
    _write(problem, favourite_report(problem, found), favourite_document(problem, found), as_json, output)
    return not found.broken


def explain_spec(problem: Problem, as_json: bool, output: str | None) -> bool:
    """Write why the spec has no plan, or what its wishes cost; whether it has one."""
    settings = problem.spec.search.model_copy(update={"top": 1})
    one = replace(problem, spec=problem.spec.model_copy(update={"search": settings}))
    with Watcher() as watcher:
        result = search(one, watcher)
    if result.plans:
        with Waiting("solving without each of the spec's wishes"):
            prices = wish_prices(one, result.plans[0])
        best = result.plans[0]
        _write(problem, prices_report(one, best, prices), prices_document(one, best, prices), as_json, output)
        return True
    with Waiting("there is no plan; looking for the reasons, and for changes that would help"):
        late = explain_deadline(problem) if result.status == "infeasible" else ()
        found = Explanation(causes=list(late)) if late else explanation(problem, result)
    reasons: Sequence[str] = result.reasons or found.lines()
    if result.status != "infeasible":
        reasons = ("No plan was found in the time given: a longer search.time_limit_s may find one, or prove it.",)
    document = {"status": result.status, **infeasible_document(problem, found, reasons)}
    _write(problem, _reasons(reasons), document, as_json, output)
    return False


def _reasons(reasons: Sequence[str]) -> RenderableType:
    return Text("\n".join(reasons))


def _write(
    problem: Problem, report: RenderableType, document: dict[str, Any], as_json: bool, output: str | None
) -> None:
    if as_json:
        deliver(dumps({**document, "problem": problem_document(problem), "versions": versions()}), output)
    else:
        deliver_report(report, output)
