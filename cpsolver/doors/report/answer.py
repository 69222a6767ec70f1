"""What `solve` and `plan` print: the first screen, and the parts of the report that are asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from rich.console import Group, RenderableType

from cpsolver.doors.report.columns import ShownPlan, shown_result, to_run
from cpsolver.doors.report.console import (
    disclaimer,
    memory_section,
    proof_account,
    result_report,
    time_sections,
)
from cpsolver.doors.report.evidence import TITLE as EVIDENCE
from cpsolver.doors.report.evidence import evidence
from cpsolver.doors.report.first_screen import FirstScreen
from cpsolver.doors.report.layout import section
from cpsolver.doors.report.legend import legend
from cpsolver.explanation.open_switches import open_switches
from cpsolver.inputs.language import say
from cpsolver.problem.problem import Problem
from cpsolver.search.result import Result

Part = Literal["full", "time", "memory", "proof", "evidence", "legend"]
"""What may be asked for; full: the report with all of it but the legend, in place of the first screen."""
_USUAL_WIDTH = 80


def answer(
    problem: Problem, result: Result, asked: Collection[Part] = (), next_steps: Sequence[str] = ()
) -> RenderableType:
    """The first screen with `next_steps` at its end, then the parts of the plan to run that are asked for."""
    screen = FirstScreen(problem, result, next_steps)
    parts: list[RenderableType] = [result_report(problem, result)] if "full" in asked else [screen]
    if "full" not in asked:
        parts += _parts(problem, result, asked)
    if "legend" in asked:
        parts += legend("\n".join(line.plain for line in screen.lines(_USUAL_WIDTH)))
    return Group(*parts)


def _parts(problem: Problem, result: Result, asked: Collection[Part]) -> Iterator[RenderableType]:
    """In the order of the report, however they were asked for."""
    plans = shown_result(problem, result)
    run = plans[to_run(result)] if plans else None
    if run is not None:
        yield from _of_plan(problem, run, asked, say(" of {title}", title=run.title) if len(plans) > 1 else "")
    if "proof" in asked:
        yield from section(say("Proof"), proof_account(problem, result))
    if "evidence" in asked:
        used = list(dict.fromkeys(run.strategy.stage_chips)) if run else []
        yield from section(say("What this is"), *disclaimer(problem, run.interval if run else None, used))


def _of_plan(problem: Problem, run: ShownPlan, asked: Collection[Part], whose: str) -> Iterator[RenderableType]:
    strategy, evaluation = run.strategy, run.evaluation
    if "time" in asked:
        left_open = open_switches(problem, strategy, evaluation, searched=True)
        yield from time_sections(problem, strategy, evaluation, whose, left_open)
    if "memory" in asked:
        yield from memory_section(problem, evaluation, whose)
    if "evidence" in asked:
        yield from section(say(EVIDENCE), *evidence(problem, strategy))
