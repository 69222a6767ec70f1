"""A page of many answers, of a sweep or a comparison: a picture of all, a table to pick from, and what is picked.

The table's numbers are the picture's and those that two picked answers are compared by: each stands in the page once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpsolver.doors.report.choices import ChoicesPage, Column, Detail, Pick
from cpsolver.doors.report.html import sections
from cpsolver.doors.report.html.elements import Html, block, drawn, join, scrolling, section, tag
from cpsolver.doors.report.html.play import PICKS, choice, picking_head, tools
from cpsolver.doors.report.html.sections import Document
from cpsolver.doors.report.html.shell import data_element, document, packed
from cpsolver.explanation.closest import strategy_text
from cpsolver.inputs.language import say
from cpsolver.inputs.text import count, percent, seconds
from cpsolver.plans.strategy import Strategy


def choices_page(page: ChoicesPage) -> str:
    """The page as one file; every text in it is escaped."""
    header = tag("header", tag("p", page.brand, class_="brand"), tag("h1", page.title), *map(block, page.said))
    detail = tag("div", id="detail", class_="live", hidden="hidden")
    parts = [header, _picture(page), _table(page), detail]
    given = {
        "what": page.what,
        "file": page.file,
        "first": next((place for place, one in enumerate(page.choices) if one.winner), 0),
        "axes": [[column.name for column in page.columns].index(name) for name in page.axes],
        "packed": packed(
            {"details": [_detail(one.detail) for one in page.choices], "document": page.document, "csv": page.csv}
        ),
    }
    return document(say("apss-cp: {title}", title=page.title), parts, data_element(given), "choices.js")


def _picture(page: ChoicesPage) -> Html:
    hint = say(
        "Pick a point to see its plan; drag to zoom, double-click for all. Ringed: no other {what} is better in both.",
        what=say(page.what),
    )
    words = {"up": say("Up "), "across": say("Across ")}
    picks = (tag("label", word, tag("select", id=key), class_="axis") for key, word in words.items())
    live = tag(
        "div",
        tag("div", *picks, class_="tools"),
        tag("div", id="lines", class_="tools", role="group", aria_label=say("Shown in the picture")),
        tag("div", id="charts"),
        tag("p", say("Point at one, or go through them with the arrow keys."), class_="readout", aria_live="polite"),
        tag("p", hint, class_="dim"),
        tag("div", id="front"),
        class_="live",
        hidden="hidden",
    )
    stills = (join([tag("h3", title), scrolling(title, drawn(svg))]) for title, svg in page.stills)
    rest = [tag("div", *stills, class_="still")] if page.stills else []
    rest += [tag("p", note) for note in page.notes]
    return section("picture", say("Weighed against each other"), live, *rest, live=not rest)


def _table(page: ChoicesPage) -> Html:
    heads = [picking_head(name) for name in PICKS]
    heads.append(tag("th", say(page.what), scope="col", class_="name"))
    heads += [_head(column) for column in page.columns]
    rows = [_row(page, place, one) for place, one in enumerate(page.choices)]
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), class_="numbers sortable")
    buttons = (("save-json", say("Download JSON")), ("save-csv", say("Download CSV")))
    versus = tag("div", id="versus", class_="live", hidden="hidden")
    title = say("{what}s to pick", what=say(page.what).capitalize())
    return section("pick", title, scrolling(say("{title}: a table", title=title), table), tools(buttons), versus)


def _head(column: Column) -> Html:
    more = {"data_better": column.better or None, "data_unit": column.unit or None}
    class_ = "text" if column.text else None
    return tag("th", say(column.name), scope="col", class_=class_, data_size="1" if column.size else None, **more)


def _row(page: ChoicesPage, place: int, one: Pick) -> Html:
    cells = [choice(name, place, one.name) for name in PICKS]
    cells.append(tag("th", one.name, scope="row"))
    for column, (words, number) in zip(page.columns, one.cells, strict=True):
        class_ = "text" if column.text else None
        cells.append(tag("td", words, class_=class_, data_sort=None if number is None else f"{number:.9g}"))
    class_ = "winner" if one.winner else None
    return tag("tr", *cells, class_=class_, data_place=str(place), data_line=one.line, data_task=one.task)


def _detail(one: Detail) -> Html:
    """The best plan of an answer, where its time and memory go, and the answer's other plans."""
    plans, strategies = one.plans, one.strategies
    parts = [tag("p", line) for line in one.said]
    if plans:
        parts += [sections.what_to_run(strategies[0]), sections.tiles(plans[0])]
    if plans and not one.brief:
        parts += [tag("h3", say("Where the time of a step goes")), sections.time_parts(plans[0], strategies[0])]
        memory = say("Where the memory goes: GiB per GPU{whose}", whose="")
        parts += [tag("h3", memory), sections.memory_parts(plans[0])]
    if len(plans) > 1:
        parts += _others(plans, strategies)
    return join(parts)


def _others(plans: Sequence[Document], strategies: Sequence[Strategy]) -> Iterator[Html]:
    yield tag("h3", say("Its plans"))
    heads = [tag("th", name, scope="col") for name in (say("plan"), say("step"), "tokens/s", "MFU", say("memory"))]
    rows = []
    for plan, strategy in zip(plans, strategies, strict=True):
        figures = (seconds(plan["step_time_s"]), count(plan["throughput_tokens_per_s"]), percent(plan["mfu"]))
        cells = (tag("td", words) for words in (*figures, percent(sections.fullest(plan)[1])))
        decided = tag("td", strategy_text(strategy), class_="text")
        rows.append(tag("tr", tag("th", str(plan["rank"]), scope="row"), *cells, decided))
    head = tag("tr", *heads, tag("th", say("decisions"), scope="col", class_="text"))
    yield scrolling(say("Plans"), tag("table", tag("thead", head), tag("tbody", *rows), class_="numbers cells"))
    yield sections.intervals(plans)
