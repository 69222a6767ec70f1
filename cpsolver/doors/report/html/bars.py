"""Stacked bars with a legend and their numbers in a table, and intervals as bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from cpsolver.doors.report.html.elements import Html, scrolling, tag
from cpsolver.inputs.language import say
from cpsolver.inputs.text import span_text

NOTHING = 1e-9
"""A part smaller than this share of the whole is rounding."""
_MOST_BARS = 48  # more are thinned out to the first, the last and those at even distances


@dataclass(frozen=True)
class StackedBar:
    """One stacked bar: what is on the left of it, its parts by key, what is on the right, and where its limit is.

    `more` follows the label beside the bar, and has no room in the table of numbers.
    """

    label: str
    parts: Mapping[str, float]
    note: str
    limit: float | None = None
    more: str = ""

    @property
    def name(self) -> str:
        """The whole label."""
        return f"{self.label}, {self.more}" if self.more else self.label


def legend(names: Mapping[str, str]) -> Html:
    """What the colours mean; with a script, pointing at one shows where it is."""
    entries = (tag("li", tag("i", class_=f"swatch k-{key}"), name, data_kind=key) for key, name in names.items())
    return tag("ul", *entries, class_="legend")


def stacked(
    bars: Sequence[StackedBar], names: Mapping[str, str], written: Callable[[float], str], what: str = ""
) -> Html:
    """Bars of one scale; with `what`, which they are about, a table of the same numbers. Parts of nothing are left out.

    Args:
        bars: from the top.
        names: what the parts are called, by key and in their order; a key is also a colour of the style sheet.
        written: a part's size in words.
        what: the table's caption.
    """
    most = max(max(sum(bar.parts.values()), bar.limit or 0.0) for bar in bars) or 1.0
    used = {key: name for key, name in names.items() if any(bar.parts.get(key, 0.0) > NOTHING * most for bar in bars)}
    chart = tag("div", *(_drawn(bar, used, most, written) for bar in bars), class_="bars")
    told = [scrolling(what, _numbers(bars, used, written, what))] if what else []
    return tag("figure", legend(used), chart, *told)


def _drawn(bar: StackedBar, names: Mapping[str, str], most: float, written: Callable[[float], str]) -> Html:
    told = ", ".join(f"{name} {written(bar.parts.get(key, 0.0))}" for key, name in names.items())
    parts = [
        tag("i", class_=f"k-{key}", style=f"width:{size / most:.3%}", title=f"{name}: {written(size)}")
        for key, name in names.items()
        if (size := bar.parts.get(key, 0.0)) > 0
    ]
    if bar.limit is not None:
        parts.append(
            tag("b", style=f"left:{bar.limit / most:.3%}", title=say("usable: {written}", written=written(bar.limit)))
        )
    track = tag("span", *parts, class_="track", role="img", aria_label=f"{bar.name}: {told}")
    return tag("div", tag("span", bar.name, class_="label"), track, tag("span", bar.note, class_="note"))


def _numbers(bars: Sequence[StackedBar], names: Mapping[str, str], written: Callable[[float], str], what: str) -> Html:
    head = tag(
        "tr",
        tag("td"),
        *(tag("th", name, scope="col") for name in names.values()),
        tag("th", say("total"), scope="col"),
    )
    rows = []
    for bar in bars:
        cells = [tag("td", written(bar.parts.get(key, 0.0))) for key in names]
        rows.append(tag("tr", tag("th", bar.label, scope="row"), *cells, tag("td", written(sum(bar.parts.values())))))
    caption = tag("caption", what)
    return tag("table", caption, tag("thead", head), tag("tbody", *rows), class_="numbers")


def alike(rows: Iterable[tuple[tuple[str, str], StackedBar]]) -> list[StackedBar]:
    """Bars of neighbouring stages whose shown numbers are the same as one, `2–6 · h800`; thinned out where too many.

    Args:
        rows: for each stage what its label says after its number, in two parts, and its bar, whose own label does not
            matter.
    """
    listed = [(number, *row) for number, row in enumerate(rows)]
    bars = []
    for _, same in groupby(listed, key=lambda row: (row[1], row[2].note, _rounded(row[2]))):
        run = list(same)
        first, (chip, more), bar = run[0]
        bars.append(replace(bar, label=f"{span_text(first, run[-1][0])} · {chip}", more=more))
    if len(bars) <= _MOST_BARS:
        return bars
    return [bars[round(place * (len(bars) - 1) / (_MOST_BARS - 1))] for place in range(_MOST_BARS)]


def _rounded(bar: StackedBar) -> tuple[float, ...]:
    return tuple(round(value, 4) for value in bar.parts.values())


@dataclass(frozen=True)
class Range:
    """One interval: its label, its ends and the value within, what to write beside it; does it overlap the first?"""

    label: str
    low: float
    value: float
    high: float
    note: str
    tie: bool


def ranges(rows: Sequence[Range], what: str) -> Html:
    """Intervals on one scale that starts at nothing."""
    most = max(row.high for row in rows) * 1.02
    drawn = []
    for row in rows:
        width = f"left:{row.low / most:.3%};width:{(row.high - row.low) / most:.3%}"
        parts = tag("i", style=width), tag("b", style=f"left:{row.value / most:.3%}")
        told = f"{row.label}: {row.note}"
        track = tag("span", *parts, class_="track", role="img", aria_label=told, title=told)
        note = tag("span", row.note, class_="note")
        class_ = "tie" if row.tie else None
        drawn.append(tag("div", tag("span", row.label, class_="label"), track, note, class_=class_))
    return tag("figure", tag("div", *drawn, class_="bars ranges"), tag("figcaption", what))
