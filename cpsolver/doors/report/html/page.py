"""A search's answer, or the judgement of a given plan, as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cpsolver.doors.report import console
from cpsolver.doors.report.columns import ShownPlan, shown_plan, shown_result
from cpsolver.doors.report.document import evaluation_document, result_document
from cpsolver.doors.report.evidence import TITLE as EVIDENCE
from cpsolver.doors.report.evidence import evidence
from cpsolver.doors.report.html import sections
from cpsolver.doors.report.html.elements import Html, block, inline, section, tag
from cpsolver.doors.report.html.play import MOST_PLANS, LaunchText, page_data, plan_list, time_section
from cpsolver.doors.report.html.proof_map import map_figure
from cpsolver.doors.report.html.shell import document
from cpsolver.doors.report.html.timeline import timeline_figure
from cpsolver.doors.report.open_switches import TITLE, open_line, open_of_plan, open_of_result
from cpsolver.doors.report.operators import matrices_notes, operators_title
from cpsolver.doors.report.pipeline_run import run_pipeline
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.evaluation.operators import compute_by_operator
from cpsolver.explanation.open_switches import OpenSwitches
from cpsolver.inputs.language import say
from cpsolver.inputs.text import plural
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import Violation
from cpsolver.search.proof_map import proof_map
from cpsolver.search.result import Result

_MOST_PASSES = 20_000  # more are drawn with the first microbatches only


def result_page(problem: Problem, result: Result, launches: Sequence[LaunchText | None] = ()) -> str:
    """The page of `solve`; a result without plans has its reasons instead of numbers.

    `launches`: what each plan is started with, as far as that is known.
    """
    left_open = open_of_result(problem, result)
    told = result_document(problem, result, left_open)
    columns = shown_result(problem, result)
    said = [line for line in console.verdict(problem, result, columns) if isinstance(line, Text)]
    parts = [_header(problem, said, told["plans"], columns, left_open)]
    if columns:
        best, whose = columns[0], say(" of plan 1") if len(columns) > 1 else ""
        chances = list(console.chance_lines(problem, columns))
        picked = columns[:MOST_PLANS]
        parts.append(plan_list(told["plans"][: len(picked)], picked))
        parts += _of_plan(problem, best, told["plans"], whose, chances, left_open)
        parts += _of_others(problem, picked, told["plans"])
        parts.append(_proof(problem, result))
        title = say("All decisions and figures") if len(columns) > 1 else say("The plan")
        parts.append(sections.plans(problem, columns, title))
    else:
        parts += sections.lines("reasons", say("Why there is no plan, and what would help"), result.reasons)
        parts.append(_proof(problem, result))
    used = list(dict.fromkeys(chip for column in columns for chip in column.strategy.stage_chips))
    parts.append(_basis(problem, columns, used))
    return _page(problem, parts, page_data(problem, told, columns[:MOST_PLANS], launches))


def evaluation_page(
    problem: Problem,
    strategy: Strategy,
    evaluation: Evaluation | None,
    violations: Sequence[Violation],
    launch: LaunchText | None = None,
) -> str:
    """The page of `evaluate`; a plan that could not be evaluated has its broken rules only."""
    left_open = open_of_plan(problem, strategy, evaluation)
    told = evaluation_document(problem, strategy, evaluation, violations, left_open)
    columns = [] if evaluation is None else [shown_plan(problem, "", strategy, evaluation)]
    said = [console.headline(problem, say("The plan"), column) for column in columns]
    said += [line for column in columns for line in console.whole_training(problem, column)]
    parts = [_header(problem, [*said, console.legality(violations)], told["plans"], columns, left_open)]
    parts += sections.lines("violations", say("Broken rules"), [str(found) for found in violations])
    if columns:
        parts.append(plan_list(told["plans"], columns))
        parts += _of_plan(problem, columns[0], told["plans"], "", [], left_open)
        parts.append(sections.plans(problem, columns, say("The plan")))
    parts.append(_basis(problem, columns, list(dict.fromkeys(strategy.stage_chips))))
    return _page(problem, parts, page_data(problem, told, columns, [launch]))


def _header(
    problem: Problem,
    said: Sequence[Text],
    plans: Sequence[Mapping[str, Any]],
    columns: Sequence[ShownPlan],
    left_open: OpenSwitches | None,
) -> Html:
    first, *more = console.task(problem).renderables
    parts = [
        tag("p", say("apss-cp: a training plan"), class_="brand"),
        tag("h1", inline(first)),
        *(block(line) for line in more),
        *(block(line) for line in (*said, *console.foreign(problem))),
    ]
    if columns:
        best = columns[0]
        doubts = (*console.tight(problem, best.evaluation), *console.unmeasured(problem, best.strategy))
        parts += [block(line) for line in (*doubts, *open_line(left_open))]
        parts += [sections.what_to_run(columns[0].strategy), sections.tiles(plans[0])]
    return tag("header", *parts)


def _of_plan(
    problem: Problem,
    best: ShownPlan,
    plans: Sequence[Mapping[str, Any]],
    whose: str,
    chances: Sequence[RenderableType],
    left_open: OpenSwitches | None,
) -> Iterator[Html]:
    strategy, evaluation = best.strategy, best.evaluation
    still = None
    if strategy.pp > 1:
        still = timeline_figure(run_pipeline(strategy, evaluation, strategy.microbatches(problem.batch), _MOST_PASSES))
    yield time_section(still, "")
    yield _numbers_of(problem, best, plans, 0, whose)
    if left_open is not None:
        yield section(
            "switches", say("{title}: a step{whose}", title=say(TITLE), whose=whose), sections.switches(left_open)
        )
    yield section("uncertainty", say("How sure the times are"), sections.intervals(plans), *map(block, chances))
    yield section("evidence", say(EVIDENCE), *map(block, evidence(problem, strategy)))


def _of_others(problem: Problem, columns: Sequence[ShownPlan], plans: Sequence[Mapping[str, Any]]) -> Iterator[Html]:
    """The same numbers of the other plans, shown when one is picked."""
    for place, column in enumerate(columns[1:], 1):
        yield _numbers_of(problem, column, plans, place, say(" of {title}", title=column.title))


def _numbers_of(
    problem: Problem, column: ShownPlan, plans: Sequence[Mapping[str, Any]], place: int, whose: str
) -> Html:
    """Where time, compute and memory of a plan go. Only the first plan's are seen where no script runs."""
    strategy, evaluation, plan = column.strategy, column.evaluation, plans[place]
    key = f"-{place + 1}" if place else ""
    costs = [tag("p", note, class_="dim") for note in matrices_notes(problem, strategy)]
    time = section(
        f"time{key}",
        say("Where the time goes: a step{whose}", whose=whose),
        sections.time_parts(plan, strategy),
        *costs,
    )
    operators = compute_by_operator(problem, strategy, evaluation)
    title = f"{operators_title(operators, strategy.pp)}{whose}"
    compute = section(f"compute{key}", title, sections.compute_parts(operators))
    notes = [tag("p", note, class_="dim") for note in console.memory_notes(problem, evaluation)]
    title = say("Where the memory goes: GiB per GPU{whose}", whose=whose)
    memory = section(f"memory{key}", title, sections.memory_parts(plan), *notes)
    hidden = "hidden" if place else None
    return tag("div", time, compute, memory, class_="of-plan", data_plan=str(place), hidden=hidden)


def _proof(problem: Problem, result: Result) -> Html:
    """The account of all candidates, and its map."""
    found = proof_map(problem, result)
    figure = [map_figure(problem, result, found)] if found is not None and found.cells else []
    return section("proof", say("Proof"), *figure, block(console.proof_account(problem, result)))


def _basis(problem: Problem, columns: Sequence[ShownPlan], chips: Sequence[str]) -> Html:
    told = console.disclaimer(problem, columns[0].interval if columns else None, chips)
    return section("basis", say("What this rests on"), *map(block, told))


def _page(problem: Problem, parts: Sequence[Html], data: Html) -> str:
    title = say("apss-cp: {name} on {num_gpus}", name=problem.model.name, num_gpus=plural(problem.num_gpus, "GPU"))
    return document(title, parts, data, "play.js")
