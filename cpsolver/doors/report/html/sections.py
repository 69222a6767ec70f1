"""The sections of the page. Numbers come from the JSON document, texts from the terminal's report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cpsolver.doors.report import open_switches
from cpsolver.doors.report.columns import ShownPlan
from cpsolver.doors.report.degrees import layer_traffic
from cpsolver.doors.report.goals import chance
from cpsolver.doors.report.html.bars import NOTHING, Range, StackedBar, alike, ranges, stacked
from cpsolver.doors.report.html.elements import Html, items, join, plan_rows, scrolling, section, tag
from cpsolver.doors.report.operators import HEADS, operator_rows, unmeasured_text
from cpsolver.doors.report.outlook import days_text, total_dollars
from cpsolver.doors.report.plan_table import PlanTable
from cpsolver.doors.report.text import part_names
from cpsolver.evaluation.operators import StageOperators
from cpsolver.explanation.closest import strategy_text
from cpsolver.explanation.open_switches import OpenSwitches
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import about, count, percent, plural, runs, seconds, unit
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

Document = Mapping[str, Any]
"""One plan, or one stage, of the JSON document."""

MEMORY_NAMES = {
    "weights": later("weights"),
    "gradients": later("gradients"),
    "optimizer": later("optimizer state"),
    "activations": later("activations"),
    "buffers": later("short-lived tensors"),
    "fragments": later("fragments"),
    "framework": later("context and communicators"),
}
_LONG = 18  # characters of a cell that may be broken into lines
_MEMORY_KEYS = {"optimizer": "optimizer_state"}  # the optimizer has another colour as a part of the time


def gib(value: float) -> str:
    """GiB to a tenth, as the terminal's report has them."""
    return f"{value:.1f} GiB"


def what_to_run(strategy: Strategy) -> Html:
    """The plan in a line, and which chips serve which stages."""
    groups = [
        say(
            "{num_stages} on {chip} ({layers} layers)",
            num_stages=plural(g.num_stages, "stage"),
            chip=g.chip,
            layers=runs(g.layers),
        )
        for g in strategy.groups
    ]
    schedule = "" if strategy.schedule == "1f1b" else say(", schedule {schedule}", schedule=strategy.schedule)
    line = tag("p", tag("code", strategy_text(strategy) + schedule))
    return tag("div", line, tag("p", say("The pipeline: {groups}.", groups=say(", then ").join(groups))), class_="plan")


def tiles(plan: Document) -> Html:
    """The plan's figures at a glance."""
    step = plan["step_time_s"]
    low, high = (about(plan[f"step_time_{end}_s"], step) for end in ("low", "high"))
    chip, share = fullest(plan)
    told: tuple[tuple[str, str, str], ...] = (
        (
            say("step time"),
            f"{about(step)} {unit(step)}",
            say("80 % interval {low} to {high} {unit}", low=low, high=high, unit=unit(step)),
        ),
        (
            "tokens/s",
            count(plan["throughput_tokens_per_s"]),
            say("{rate:,.1f} per GPU", rate=plan["throughput_tokens_per_s_per_gpu"]),
        ),
        ("MFU", percent(plan["mfu"]), say("of the peak; recomputation not counted")),
        (
            say("memory, fullest"),
            percent(share),
            say("of {gib} usable, {chip}", gib=gib(plan["capacity_gib"][chip]), chip=chip),
        ),
    )
    told += _outlook_tiles(plan)
    tile = (tag("div", tag("dt", name), tag("dd", value), tag("dd", more)) for name, value, more in told)
    return tag("dl", *tile, class_="tiles")


def _outlook_tiles(plan: Document) -> tuple[tuple[str, str, str], ...]:
    """Days and dollars of the whole training and the chance of being in time, as far as they are known."""
    told = []
    for name, title, text in (("days", later("days"), days_text), ("dollars", later("dollars"), total_dollars)):
        if (found := plan[name]) is not None:
            told.append(
                (
                    say(title),
                    text(found["mean"]),
                    say("80 % interval {low} to {high}", low=text(found["low"]), high=text(found["high"])),
                )
            )
    if (probability := plan["deadline_probability"]) is not None:
        told.append((say("in time"), chance(probability), say("chance that the deadline is met")))
    return tuple(told)


def fullest(plan: Document) -> tuple[str, float]:
    """The chip type with the fullest stage, and how full that is of what is usable."""
    shares = {chip: used / plan["capacity_gib"][chip] for chip, used in plan["memory_gib"].items()}
    chip = max(shares, key=lambda name: shares[name])
    return chip, shares[chip]


def plans(problem: Problem, columns: Sequence[ShownPlan], title: str) -> Html:
    """The plans side by side; what differs between them is marked."""
    several = len(columns) > 1
    body = [_plan_row(label, cells, several) for label, cells in plan_rows(PlanTable(problem, columns))]
    table = scrolling(say("{title}: a table", title=title), tag("table", tag("tbody", *body), class_="plans"))
    if not several:
        return section("plans", title, table)
    box = Html('<input type="checkbox">')
    switch = tag("label", box, say(" only what differs"), class_="switch", hidden="hidden")
    return section("plans", title, tag("p", say("Marked: what is not the same in all plans. "), switch), table)


def _plan_row(label: str, cells: Sequence[str], several: bool) -> Html:
    shown = label.strip()
    if not any(cell for cell in cells):
        return tag("tr", tag("th", shown, scope="rowgroup", colspan=len(cells) + 1), class_="part")
    if not shown:
        return tag("tr", tag("td"), *(tag("th", cell, scope="col") for cell in cells), class_="heads")
    differs = several and len(set(cells)) > 1
    data = (_cell(cell, differs) for cell in cells)
    class_ = " ".join(filter(None, ("key" * (shown == say("step time")), "same" * (several and not differs))))
    head = tag("th", shown, scope="row", class_="sub" if label.startswith("  ") else None)
    return tag("tr", head, *data, class_=class_ or None)


def time_parts(plan: Document, strategy: Strategy) -> Html:
    """The parts of the step by the slowest stage, as a bar and in numbers, then every stage's own."""
    names = part_names(layer_traffic([strategy]))
    step = plan["step_time_s"]

    def written(value: float) -> str:
        return seconds(value, of=step)

    whole = stacked([StackedBar(say("step"), plan["breakdown_s"], written(step))], names, written)
    numbers = _step_parts(plan, names)
    rows = [_time_bar(plan, stage) for stage in plan["stages"]]
    names["bubble"] = say("waiting for other stages")
    each = stacked(alike(rows), names, written, say("By stage, all microbatches of a step"))
    return join([whole, numbers, tag("h3", say("By stage")), each])


def _cell(said: str, differs: bool) -> Html:
    classes = " ".join(filter(None, ("differs" * differs, "long" * (len(said) > _LONG))))
    return tag("td", said, class_=classes or None)


def _step_parts(plan: Document, names: Mapping[str, str]) -> Html:
    """The parts of the step in seconds and per cent; they sum to it."""
    step = plan["step_time_s"]
    parts = {names[key]: value for key, value in plan["breakdown_s"].items() if value > NOTHING * step} | {
        say("step"): step
    }
    rows = (
        tag("tr", tag("th", name, scope="row"), tag("td", seconds(value, of=step)), tag("td", percent(value / step)))
        for name, value in parts.items()
    )
    return tag("table", tag("tbody", *rows), class_="numbers")


def compute_parts(found: StageOperators) -> Html:
    """Compute of the slowest stage by operator, and what each one's speed rests on."""
    head = tag("tr", *(tag("th", say(name), scope="col") if name else tag("td") for name in HEADS))
    rows = [
        tag("tr", tag("th", name, scope="row"), *(tag("td", cell) for cell in cells))
        for name, *cells in operator_rows(found)
    ]
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="numbers sortable")
    return join([scrolling(say("Compute by operator"), table), tag("p", unmeasured_text(found), class_="dim")])


def switches(found: OpenSwitches) -> Html:
    """The switches that the spec leaves open, with the value taken and the others."""
    head = tag("tr", *(tag("th", say(name), scope="col") if name else tag("td") for name in open_switches.HEADS))
    rows = [
        tag("tr", tag("th", name, scope="row"), tag("td", taken), tag("td", others))
        for name, taken, others in open_switches.switch_rows(found)
    ]
    table = tag("table", tag("thead", head), tag("tbody", *rows))
    told = [tag("p", line, class_="dim") for line in open_switches.switches_lines(found)]
    return join([*([scrolling(say(open_switches.TITLE), table)] if rows else []), *told])


def _time_bar(plan: Document, stage: Document) -> tuple[tuple[str, str], StackedBar]:
    m, of_one, after = plan["microbatches"], stage["microbatch_s"], stage["after_pipeline_s"]
    parts = {name: m * value for name, value in of_one.items() if name != "total"}
    waits = max(0.0, plan["step_time_s"] - sum(parts.values()) - sum(after.values()))
    parts = {**parts, "bubble": waits, **after}
    return _stage_label(stage), StackedBar("", parts, say("{time} a microbatch", time=seconds(of_one["total"])))


def memory_parts(plan: Document) -> Html:
    """What fills each stage's memory, as bars and in numbers."""
    return memory_bars(plan, say("GiB of one GPU, by stage"))


def memory_bars(plan: Document, caption: str = "") -> Html:
    """The same as bars; with the caption of a table as numbers too."""
    names = {_MEMORY_KEYS.get(key, key): say(name) for key, name in MEMORY_NAMES.items()}
    rows = [_memory_bar(stage) for stage in plan["stages"]]
    return stacked(alike(rows), names, gib, caption)


def _memory_bar(stage: Document) -> tuple[tuple[str, str], StackedBar]:
    sizes, room = stage["memory_gib"], stage["capacity_gib"]
    parts = {_MEMORY_KEYS.get(key, key): sizes[key] for key in MEMORY_NAMES}
    note = say(
        "{total:.1f} of {room:.1f} GiB, {share:.0f} %",
        total=sizes["total"],
        room=room,
        share=sizes["total"] / room * 100,
    )
    return _stage_label(stage), StackedBar("", parts, note, limit=room)


def _stage_label(stage: Document) -> tuple[str, str]:
    return stage["chip"], plural(stage["layers"], "layer")


def intervals(plans: Sequence[Document]) -> Html:
    """Every plan's interval, on one scale."""
    rows = []
    for plan in plans:
        step, low, high = (plan[f"step_time_{end}s"] for end in ("", "low_", "high_"))
        note = say(
            "{step} {unit} ({low} to {high})",
            step=about(step),
            unit=unit(step),
            low=about(low, step),
            high=about(high, step),
        )
        rows.append(
            Range(
                say("plan {rank}", rank=plan["rank"]), low, step, high, note, plan["tie_with_best"] and len(plans) > 1
            )
        )
    what = say("Step time with its 80 % interval; the line within: the prediction.")
    return ranges(rows, what + (say(" Orange: overlaps the first plan's.") if any(row.tie for row in rows) else ""))


def lines(key: str, title: str, told: Sequence[str]) -> Iterator[Html]:
    """A section of a list; nothing without entries."""
    if told:
        yield section(key, title, items(told))
