"""An answer as a piece of HTML for a notebook: it needs nothing else, and changes nothing around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from cpsolver.doors.report import console
from cpsolver.doors.report.columns import ShownPlan, shown_plan, shown_result, to_run
from cpsolver.doors.report.degrees import layer_traffic
from cpsolver.doors.report.goals import chance
from cpsolver.doors.report.html import sections
from cpsolver.doors.report.html.bars import StackedBar, stacked
from cpsolver.doors.report.html.elements import Html, block, inline, items, scrolling, tag
from cpsolver.doors.report.html.style import KINDS, LIGHT
from cpsolver.doors.report.text import part_names
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.inputs.text import count, percent, seconds
from cpsolver.plans.dimensions import DEGREES
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import Violation
from cpsolver.search.result import Result

_ROOT = ".apss-cp"
_COLOURS = f"{_ROOT} {{ {LIGHT}; --idle: #8884; --accent: #3b7dd8 }}"
_RULES = """
{ font: 14px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums }
p { margin: .2rem 0 } strong { font-weight: 650 } .dim { opacity: .7 }
.good { color: #1c8048 } .warn { color: #b07300 } .bad { color: #c93a30 }
.scroll { overflow-x: auto; max-width: 100% } figure { margin: .6rem 0 }
table { border-collapse: collapse; margin: .4rem 0 } figcaption, caption { opacity: .7; text-align: left }
th, td { padding: .12rem .6rem; text-align: right; white-space: nowrap; font-weight: 400; background: none }
th { opacity: .7 } td.text, th.text { text-align: left } tr.run td { font-weight: 650 }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1rem; padding: 0; margin: .3rem 0 }
.swatch { display: inline-block; width: .8em; height: .8em; margin-right: .4em }
.bars > div { display: grid; grid-template-columns: 10rem minmax(8rem, 40rem) 14rem; gap: .6rem; align-items: center }
.track { position: relative; display: flex; height: 1.1rem; background: #8882 }
.track i { height: 100% } .track b { position: absolute; top: -2px; bottom: -2px; width: 2px; background: currentColor }
.ranges .track { background: none; border-bottom: 1px solid #8886 }
.ranges .track i { position: absolute; top: 20%; height: 60%; background: var(--accent); opacity: .5 }
.ranges .tie .track i { background: var(--c2) }
"""


def answer_fragment(problem: Problem, result: Result, document: Mapping[str, Any]) -> str:
    """A search's answer: what is proven, the plans in a table, their times with intervals, where time and memory go.

    `document`: what `solve --json` prints of it.
    """
    shown = shown_result(problem, result)
    said = [line for line in console.verdict(problem, result, shown) if isinstance(line, Text)]
    parts = [_task(problem), *map(block, said)]
    if shown:
        place, plans = to_run(result), document["plans"]
        parts += [_plans(plans, shown, place), sections.intervals(plans)]
        parts += _where_it_goes(plans, shown, place)
    return _whole([*parts, *([items(document["reasons"])] if document["reasons"] else [])])


def plan_fragment(
    problem: Problem,
    strategy: Strategy,
    evaluation: Evaluation,
    violations: Sequence[Violation],
    document: Mapping[str, Any],
) -> str:
    """One plan: its numbers, where time and memory go, and the rules that it breaks."""
    shown = shown_plan(problem, "", strategy, evaluation)
    said = [console.headline(problem, "The plan", shown), console.legality(violations)]
    parts = [_task(problem), *map(block, said), sections.what_to_run(strategy)]
    parts += [items([str(found) for found in violations])] if violations else []
    return _whole([*parts, *_where_it_goes(document["plans"], [shown], 0)])


def _whole(parts: Sequence[str]) -> str:
    """The piece with its style, every rule of which is for what is inside alone."""
    own = " ".join(_scoped(line) for line in (_RULES.strip() + "\n" + KINDS.strip()).split("\n"))
    return str(tag("div", tag("style", Html(f"{_COLOURS} {own}")), *parts, class_=_ROOT.removeprefix(".")))


def _scoped(line: str) -> str:
    """A line of rules with each selector below the root."""
    found = []
    for rule in filter(None, (rule.strip() for rule in line.split("}"))):
        selectors, _, body = rule.partition("{")
        scoped = ", ".join(f"{_ROOT} {selector.strip()}".strip() for selector in selectors.split(","))
        found.append(f"{scoped} {{{body}}}")
    return " ".join(found)


def _task(problem: Problem) -> Html:
    first, *more = console.task(problem).renderables
    return tag("div", tag("p", inline(first)), *(block(line) for line in more))


def _plans(plans: Sequence[Mapping[str, Any]], shown: Sequence[ShownPlan], run: int) -> Html:
    """The plans, a row each; the one to run stands out."""
    sizes = [n for n in DEGREES if any(getattr(plan.strategy, n) != 1 for plan in shown)]
    heads = ("plan", *sizes, "step", "tokens/s", "MFU", "memory", "P(OOM)")
    rows = []
    for place, (plan, told) in enumerate(zip(shown, plans, strict=True)):
        cells = [str(told["rank"]), *(str(getattr(plan.strategy, name)) for name in sizes)]
        step, share = plan.evaluation.step_time_s, sections.fullest(told)[1]
        cells += [seconds(step), count(plan.evaluation.tokens_per_s), percent(plan.evaluation.mfu), percent(share)]
        cells.append(chance(plan.out_of_memory))
        data = (tag("td", cell) for cell in cells)
        roles = tag("td", ", ".join(plan.roles), class_="text")
        rows.append(tag("tr", *data, roles, class_="run" if place == run else None))
    head = tag("tr", *(tag("th", name) for name in heads), tag("th", "recommended as", class_="text"))
    return scrolling("Plans", tag("table", tag("thead", head), tag("tbody", *rows)))


def _where_it_goes(plans: Sequence[Mapping[str, Any]], shown: Sequence[ShownPlan], run: int) -> Iterator[Html]:
    """A step's parts of each plan, and the memory by stage of the one to run."""
    names = part_names(layer_traffic([plan.strategy for plan in shown]))
    bars = []
    for plan in plans:
        label = f"plan {plan['rank']}" if len(plans) > 1 else "a step"
        bars.append(StackedBar(label, plan["breakdown_s"], seconds(plan["step_time_s"])))
    yield tag("p", tag("strong", "Where the time of a step goes"))
    yield stacked(bars, names, seconds)
    whose = f" of plan {plans[run]['rank']}" if len(plans) > 1 else ""
    yield tag("p", tag("strong", f"Where the memory goes{whose}: GiB per GPU, by stage"))
    yield sections.memory_bars(plans[run])
