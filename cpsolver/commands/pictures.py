"""The files that a command writes beside its answer: the report as a page, a step as a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.output import file_error
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import Violation
from cpsolver.search.result import Plan, Result


def check_trace_plan(problem: Problem, trace: str | None, rank: int | None) -> None:
    """Raises InputError where a plan is asked for that the search will not return, or no file for its trace."""
    top = problem.spec.search.top
    if rank is not None and trace is None:
        raise InputError(Trouble("--trace-plan", "says which plan to trace, but not where to: give --trace FILE too"))
    if rank is not None and rank > top:
        allowed = f"1 to {top}, or a larger --top (search.top)"
        raise InputError(Trouble("--trace-plan", "is not a plan of this search", rank, allowed))


def write_result_pictures(
    problem: Problem, result: Result, html: str | None, trace: str | None, rank: int
) -> Iterator[str]:
    """Write what `solve` was asked for; yields what there is to note. Raises InputError for a file that fails."""
    if html is not None:
        from cpsolver.doors.report.html.page import result_page

        _write_page(html, result_page(problem, result))
    if trace is not None:
        chosen = [plan for plan in result.plans if plan.rank == rank]
        yield from _write_trace(problem, chosen, trace, f"there is no plan {rank}")


def write_evaluation_pictures(
    problem: Problem,
    plan: Strategy,
    evaluation: Evaluation | None,
    broken: Sequence[Violation],
    html: str | None,
    trace: str | None,
) -> Iterator[str]:
    """The same for `evaluate`; a plan that could not be evaluated has a page, which says why, and no trace."""
    if html is not None:
        from cpsolver.doors.report.html.page import evaluation_page

        _write_page(html, evaluation_page(problem, plan, evaluation, broken))
    if trace is not None:
        chosen = [] if evaluation is None else [Plan(1, plan, evaluation, 0.0)]
        yield from _write_trace(problem, chosen, trace, "the plan could not be evaluated")


def _write_page(path: str, page: str) -> None:
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise file_error(path, f"cannot be written: {error.strerror}") from None


def _write_trace(problem: Problem, chosen: Sequence[Plan], path: str, missing: str) -> Iterator[str]:
    from cpsolver.doors.report.plan_trace import cut_note, plan_trace
    from cpsolver.doors.report.trace import write_chrome_trace

    if not chosen:
        yield f"{missing}: no trace was written to {path}"
        return
    trace = plan_trace(problem, chosen[0])
    try:
        write_chrome_trace(path, trace)
    except OSError as error:
        raise file_error(path, f"cannot be written: {error.strerror}") from None
    if note := cut_note(trace):
        yield f"{note} {path}"
