"""The part of the page to play with: plans to pick from, their steps in time, and the data that the script draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cpsolver.doors.report.columns import ShownPlan
from cpsolver.doors.report.goals import chance
from cpsolver.doors.report.html.bars import legend
from cpsolver.doors.report.html.elements import Html, join, scrolling, section, tag
from cpsolver.doors.report.html.sections import fullest
from cpsolver.doors.report.html.shell import data_element, packed
from cpsolver.doors.report.pipeline_run import KINDS, PipelineRun, Span, run_pipeline
from cpsolver.doors.report.text import PART_NAMES, part_name
from cpsolver.explanation.closest import strategy_text
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import count, percent, seconds
from cpsolver.plans.dimensions import DEGREES
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

MOST_PLANS = 6
"""So many plans can be picked; a longer answer shows its first."""
MOST_PASSES = 30_000
"""Forwards and backwards of all plans of a page together; of longer steps the first microbatches are drawn."""
PICKS = (later("show"), later("against"))
"""What a row of a table can be picked for."""
_NO_SIZE = 1e-12


@dataclass(frozen=True)
class LaunchText:
    """What one plan is started with: for which framework, under which name, and the text itself."""

    target: str
    file: str
    text: str


def plan_list(plans: Sequence[Mapping[str, Any]], columns: Sequence[ShownPlan]) -> Html:
    """The plans as a table that can be sorted, with what can be done with the one that is picked."""
    several = len(columns) > 1
    sizes = [name for name in DEGREES if any(getattr(column.strategy, name) != 1 for column in columns)]
    choices = PICKS if several else ()
    heads = [picking_head(name) for name in choices]
    names = (say("plan"), say("step"), *sizes, "tokens/s", "MFU", say("memory"), say("P(OOM)"))
    heads += [tag("th", name, scope="col") for name in names]
    heads.append(tag("th", say("recommended as"), scope="col", class_="text"))
    rows = []
    for place, (plan, column) in enumerate(zip(plans, columns, strict=True)):
        cells = [choice(name, place, column.title) for name in choices]
        cells += _plan_cells(plan, column, sizes)
        rows.append(tag("tr", *cells, data_plan=str(place)))
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), class_="numbers sortable")
    versus = tag("div", id="versus", class_="live", hidden="hidden")
    title = say("Plans to pick") if several else say("At a glance")
    return section("pick", title, scrolling(say("Plans"), table), _plan_tools(), versus)


def picking_head(name: str) -> Html:
    """The head above a column of `choice`, which is not sorted."""
    return tag("th", say(name), scope="col", class_="live", hidden="hidden", data_still="1")


def choice(name: str, place: int, title: str) -> Html:
    """A table's cell that picks its row: to `show` it (the first at first), or to compare another `against` it."""
    key = {"show": "pick", "against": "versus"}[name]
    first = 0 if key == "pick" else -1
    given: dict[str, str | None] = {"checked": "checked"} if place == first else {}
    what = say("show {title}", title=title) if key == "pick" else say("compare with {title}", title=title)
    radio = tag("input", type="radio", name=key, value=str(place), aria_label=what, **given)
    return tag("td", tag("label", radio, class_="choice"), class_="live", hidden="hidden")


def _plan_cells(plan: Mapping[str, Any], column: ShownPlan, sizes: Sequence[str]) -> Iterator[Html]:
    evaluation, share = column.evaluation, fullest(plan)[1]
    yield tag("th", column.title or "plan", scope="row")
    yield tag("td", seconds(evaluation.step_time_s), data_sort=f"{evaluation.step_time_s:.9g}")
    for name in sizes:
        yield tag("td", str(getattr(column.strategy, name)))
    yield tag("td", count(evaluation.tokens_per_s), data_sort=f"{evaluation.tokens_per_s:.9g}")
    yield tag("td", percent(evaluation.mfu))
    yield tag("td", percent(share))
    yield tag("td", chance(column.out_of_memory), data_sort=f"{column.out_of_memory:.9g}")
    yield tag("td", ", ".join(map(say, column.roles)), class_="text")


def tools(buttons: Sequence[tuple[str, str]]) -> Html:
    """Buttons by id and words, seen where the script runs, and where it says what they have done."""
    made = (tag("button", words, type="button", id=key) for key, words in buttons)
    said = tag("span", id="said", class_="dim", aria_live="polite")
    return tag("div", *made, said, class_="live tools", hidden="hidden")


def _plan_tools() -> Html:
    buttons = (
        ("copy", say("Copy the launch")),
        ("save-json", say("Download the answer (JSON)")),
        ("save-trace", say("Download the trace")),
    )
    launch = tag("details", tag("summary", say("Launch")), tag("pre", "", tabindex="0"), id="launch")
    return join([tools(buttons), tag("div", launch, class_="live", hidden="hidden")])


def time_section(still: Html | None, whose: str) -> Html:
    """The step over time: the script's charts, and without it the picture of the first plan, where it has stages."""
    words = {
        "in": say("Zoom in"),
        "out": say("Zoom out"),
        "left": say("Earlier"),
        "right": say("Later"),
        "all": say("All of it"),
    }
    buttons = (tag("button", name, type="button", data_zoom=key) for key, name in words.items())
    tools = tag("div", *buttons, tag("span", id="window", class_="dim", aria_live="polite"), class_="tools")
    hint = say("Drag over a chart to zoom, double-click for all of it; Ctrl with the wheel zooms too.")
    named = legend({str(kind): say(name) for kind, name in KINDS.items()})
    live = tag(
        "div", tag("p", hint, class_="dim"), named, tools, tag("div", id="charts"), class_="live", hidden="hidden"
    )
    picture = [] if still is None else [tag("div", still, class_="still")]
    return section(
        "timeline", say("The pipeline over time: a step{whose}", whose=whose), live, *picture, live=still is None
    )


def page_data(
    problem: Problem,
    document: Mapping[str, Any],
    columns: Sequence[ShownPlan],
    launches: Sequence[LaunchText | None] = (),
) -> Html:
    """What the script shows; `steps`, the spans of every plan's step, are packed."""
    shown, plans, steps = {**document, "plans": document["plans"][: len(columns)]}, [], []
    passes = _shares([_passes(problem, column.strategy) for column in columns])
    for place, (plan, column) in enumerate(zip(document["plans"], columns, strict=False)):
        launch = launches[place] if place < len(launches) else None
        run = run_pipeline(
            column.strategy, column.evaluation, column.strategy.microbatches(problem.batch), passes[place]
        )
        plans.append({**_plan(plan, column, run), "launch": launch and asdict(launch)})
        steps.append(dict(zip(("spans", "rows"), _encoded(run), strict=True)))
    return data_element({"document": shown, "kinds": KINDS, "plans": plans, "steps": packed(steps)})


def _passes(problem: Problem, strategy: Strategy) -> int:
    return 2 * strategy.pp * strategy.vpp * strategy.microbatches(problem.batch)


def _shares(needs: Sequence[int]) -> list[int]:
    """How many passes of each plan are drawn: what short steps leave over is for the long ones."""
    left, given = MOST_PASSES, [0] * len(needs)
    for done, place in enumerate(sorted(range(len(needs)), key=lambda number: needs[number])):
        given[place] = min(needs[place], left // (len(needs) - done))
        left -= given[place]
    return given


def _plan(plan: Mapping[str, Any], column: ShownPlan, run: PipelineRun) -> dict[str, Any]:
    strategy = column.strategy
    return {
        "title": column.title or "plan",
        "words": strategy_text(strategy),
        "note": _note(run),
        "vpp": strategy.vpp,
        "stages": [f"{number} · {stage.chip}" for number, stage in enumerate(column.evaluation.stages)],
        "memory": [_memory(stage) for stage in plan["stages"]],
        "figures": list(_figures(plan, column)),
    }


def _note(run: PipelineRun) -> str:
    if run.whole:
        return say(
            "The schedule run event by event: {step_s}, {microbatches} microbatches.",
            step_s=seconds(run.step_s),
            microbatches=count(run.microbatches),
        )
    return say(
        "The first {shown} of {microbatches} microbatches, run event by event.",
        shown=count(run.shown),
        microbatches=count(run.microbatches),
    )


def _memory(stage: Mapping[str, Any]) -> dict[str, Any]:
    sizes = stage["memory_gib"]
    standing = sizes["total"] - sizes["activations"]
    return {
        "chip": stage["chip"],
        "standing": round(standing, 4),
        "activations": round(sizes["activations"], 4),
        "room": round(stage["capacity_gib"], 4),
    }


def _figures(plan: Mapping[str, Any], column: ShownPlan) -> Iterator[tuple[str, str, float]]:
    """What two plans are compared by: a name, the words and the number."""
    evaluation, step = column.evaluation, column.evaluation.step_time_s
    yield say("step"), seconds(step), step
    for key in PART_NAMES:
        value = plan["breakdown_s"].get(key, 0.0)
        yield part_name(key), seconds(value, of=step), value if value > _NO_SIZE else 0.0
    yield "tokens/s", count(evaluation.tokens_per_s), evaluation.tokens_per_s
    yield "MFU", percent(evaluation.mfu), evaluation.mfu
    yield say("memory, fullest"), percent(fullest(plan)[1]), fullest(plan)[1]
    yield say("P(out of memory)"), chance(column.out_of_memory), column.out_of_memory


def _encoded(run: PipelineRun) -> tuple[list[list[Any]], list[list[int]]]:
    """Every stage's spans, which leave no gap: which of the different ones, and which microbatch and chunk.

    The different ones are (kind, nanoseconds), and 1 where a backward is of the weights alone. Microbatch and chunk are
    one number, -1 where they mean nothing.
    """
    known: dict[tuple[Any, ...], int] = {}
    rows = []
    for spans in run.by_stage:
        row, now = list[int](), 0
        for span in spans:
            end = round(span.end_s * 1e9)
            key = (span.kind, end - now, 1) if span.weights else (span.kind, end - now)
            now = end
            row += [known.setdefault(key, len(known)), _which(span, run.strategy.vpp)]
        rows.append(row)
    return [list(key) for key in known], rows


def _which(span: Span, vpp: int) -> int:
    return -1 if span.microbatch < 0 else span.microbatch * vpp + max(0, span.chunk)
