"""A search's answer, or the judgement of a given plan, as one HTML page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cpsolver.doors.report import console
from cpsolver.doors.report.columns import ShownPlan, shown_plan, shown_result
from cpsolver.doors.report.document import evaluation_document, result_document, versions
from cpsolver.doors.report.evidence import TITLE as EVIDENCE
from cpsolver.doors.report.evidence import evidence
from cpsolver.doors.report.html import sections
from cpsolver.doors.report.html.elements import Html, block, inline, section, tag
from cpsolver.doors.report.html.style import SCRIPT, STYLE
from cpsolver.doors.report.html.timeline import timeline_figure
from cpsolver.doors.report.open_switches import TITLE, open_line, open_of_plan, open_of_result
from cpsolver.doors.report.operators import matrices_notes, operators_title
from cpsolver.doors.report.pipeline_run import run_pipeline
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.evaluation.operators import compute_by_operator
from cpsolver.explanation.open_switches import OpenSwitches
from cpsolver.inputs.text import plural
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import Violation
from cpsolver.search.result import Result

_MOST_PASSES = 20_000  # more are drawn with the first microbatches only


def result_page(problem: Problem, result: Result) -> str:
    """The page of `solve`; a result without plans has its reasons instead of numbers."""
    left_open = open_of_result(problem, result)
    document = result_document(problem, result, left_open)
    columns = shown_result(problem, result)
    said = [line for line in console.verdict(problem, result, columns) if isinstance(line, Text)]
    parts = [_header(problem, said, document["plans"], columns, left_open)]
    if columns:
        best, whose = columns[0], " of plan 1" if len(columns) > 1 else ""
        chances = list(console.chance_lines(problem, columns))
        parts.append(sections.plans(problem, columns, "Plans compared" if len(columns) > 1 else "The plan"))
        parts += _of_plan(problem, best, document["plans"], whose, chances, left_open)
    parts += sections.lines("reasons", "Why there is no plan, and what would help", document["reasons"])
    parts.append(section("proof", "Proof", block(console.proof_account(problem, result))))
    used = list(dict.fromkeys(chip for column in columns for chip in column.strategy.stage_chips))
    parts.append(_basis(problem, columns, used))
    return _page(problem, parts)


def evaluation_page(
    problem: Problem, strategy: Strategy, evaluation: Evaluation | None, violations: Sequence[Violation]
) -> str:
    """The page of `evaluate`; a plan that could not be evaluated has its broken rules only."""
    left_open = open_of_plan(problem, strategy, evaluation)
    document = evaluation_document(problem, strategy, evaluation, violations, left_open)
    columns = [] if evaluation is None else [shown_plan(problem, "", strategy, evaluation)]
    said = [console.headline(problem, "The plan", column) for column in columns]
    said += [line for column in columns for line in console.whole_training(problem, column)]
    parts = [_header(problem, [*said, console.legality(violations)], document["plans"], columns, left_open)]
    parts += sections.lines("violations", "Broken rules", [str(found) for found in violations])
    if columns:
        parts.append(sections.plans(problem, columns, "The plan"))
        parts += _of_plan(problem, columns[0], document["plans"], "", [], left_open)
    parts.append(_basis(problem, columns, list(dict.fromkeys(strategy.stage_chips))))
    return _page(problem, parts)


def _header(
    problem: Problem,
    said: Sequence[Text],
    plans: Sequence[Mapping[str, Any]],
    columns: Sequence[ShownPlan],
    left_open: OpenSwitches | None,
) -> Html:
    first, *more = console.task(problem).renderables
    parts = [
        tag("p", "apss-cp: a training plan", class_="brand"),
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
    if strategy.pp > 1:
        run = run_pipeline(strategy, evaluation, strategy.microbatches(problem.batch), _MOST_PASSES)
        yield section("timeline", f"The pipeline over time: a step{whose}", timeline_figure(run))
    costs = [tag("p", note, class_="dim") for note in matrices_notes(problem, strategy)]
    yield section("time", f"Where the time goes: a step{whose}", sections.time_parts(plans[0], strategy), *costs)
    operators = compute_by_operator(problem, strategy, evaluation)
    yield section("compute", f"{operators_title(operators, strategy.pp)}{whose}", sections.compute_parts(operators))
    if left_open is not None:
        yield section("switches", f"{TITLE}: a step{whose}", sections.switches(left_open))
    notes = [tag("p", note, class_="dim") for note in console.memory_notes(problem, evaluation)]
    title = f"Where the memory goes: GiB per GPU{whose}"
    yield section("memory", title, sections.memory_parts(plans[0]), *notes)
    yield section("uncertainty", "How sure the times are", sections.intervals(plans), *map(block, chances))
    yield section("evidence", EVIDENCE, *map(block, evidence(problem, strategy)))


def _basis(problem: Problem, columns: Sequence[ShownPlan], chips: Sequence[str]) -> Html:
    told = console.disclaimer(problem, columns[0].interval if columns else None, chips)
    return section("basis", "What this rests on", *map(block, told))


def _page(problem: Problem, parts: Sequence[Html]) -> str:
    """The document around the parts. Its policy lets nothing be loaded, and no script run but the page's own."""
    digest = b64encode(sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"apss-cp: {problem.model.name} on {plural(problem.num_gpus, 'GPU')}"),
        tag("style", Html(STYLE)),
    )
    made = ", ".join(f"{name} {number}" for name, number in versions().items() if number)
    footer = tag("footer", tag("p", f"Made by {made.replace('apss_cp', 'apss-cp')}. This file needs no network."))
    body = tag("body", tag("main", *parts), footer, tag("script", Html(SCRIPT)))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}"
