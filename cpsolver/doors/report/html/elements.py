"""HTML by small functions: whatever is not HTML already is escaped, so that no name can become markup.

What the terminal report says becomes HTML too, the same texts and numbers, read from rich's renderables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cpsolver.doors.report.plan_table import PlanTable

_WIDE = 1_000_000  # columns: room for every plan side by side
_CLASSES = {"green": "good", "yellow": "warn", "red": "bad"}
_EMPTY = frozenset({"meta", "link", "br", "input"})
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
"""Characters that HTML does not allow; those that it does are tab and newline."""


class Html(str):
    """Text that is HTML."""

    __slots__ = ()


def text(value: str) -> Html:
    """Anything as HTML: escaped, unless it is HTML."""
    return value if isinstance(value, Html) else Html(escape(_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", value)))


def drawn(svg: str) -> Html:
    """A picture whose texts are escaped already, less what HTML does not allow."""
    return Html(_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", svg))


def join(parts: Iterable[str], between: str = "") -> Html:
    """Several parts after each other, escaped unless they are HTML."""
    return Html(text(between).join(text(part) for part in parts))


def tag(element: str, /, *children: str, **attributes: str | float | None) -> Html:
    """An element. Attributes that are None are left out; `class_` is class, `aria_label` is aria-label."""
    given = (
        f' {key.rstrip("_").replace("_", "-")}="{text(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    opened = f"<{element}{''.join(given)}>"
    return Html(opened if element in _EMPTY else f"{opened}{join(children)}</{element}>")


def section(key: str, title: str, *content: str, live: bool = False) -> Html:
    """A section with its heading; `key` is its id. `live`: it is seen where the page's script runs, and there only."""
    heading = tag("h2", title, id=f"{key}-title")
    seen: dict[str, str | None] = {"class_": "live", "hidden": "hidden"} if live else {}
    return tag("section", heading, *content, id=key, aria_labelledby=f"{key}-title", **seen)


def scrolling(label: str, *content: str) -> Html:
    """What may be wider than the page: it scrolls by itself, with the keyboard too."""
    return tag("div", *content, class_="scroll", role="region", aria_label=label, tabindex="0")


def items(lines: Iterable[str], class_: str | None = None) -> Html:
    """A list."""
    return tag("ul", *(tag("li", line) for line in lines), class_=class_)


def inline(said: RenderableType) -> Html:
    """A text with its emphasis."""
    if not isinstance(said, Text):
        return join([str(said)])
    parts = []
    for segment in said.render(Console()):
        style, shown = segment.style, join([segment.text])
        if style and style.dim:
            shown = tag("span", shown, class_="dim")
        parts.append(tag("strong", shown) if style and style.bold else shown)
    return join(parts)


def block(said: RenderableType) -> Html:
    """Texts as paragraphs, tables as tables, groups as what they hold."""
    if isinstance(said, Group):
        return join(block(one) for one in said.renderables)
    if isinstance(said, Padding):
        return block(said.renderable)
    if isinstance(said, Table):
        return tag("table", tag("tbody", *(tag("tr", *(tag("td", inline(c)) for c in row)) for row in rows_of(said))))
    if isinstance(said, Text):
        lines = (line for line in said.split("\n") if line.plain.strip())
        return join(tag("p", inline(line), class_=_class_of(said)) for line in lines)
    return tag("p", str(said)) if str(said) else Html()


def _class_of(said: Text) -> str | None:
    words = str(said.style).split()
    return next((_CLASSES[word] for word in words if word in _CLASSES), "dim" if "dim" in words else None)


def rows_of(table: Table) -> list[list[RenderableType]]:
    """A table's cells, row by row."""
    columns = [list(column.cells) for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def plan_rows(plans: PlanTable) -> list[tuple[str, list[str]]]:
    """(label, a cell a plan) of every row of the table of plans; headings have empty cells, lesser labels an indent."""
    console = Console(width=_WIDE)
    (table,) = (part for part in plans.__rich_console__(console, console.options) if isinstance(part, Table))
    plain = [[cell.plain if isinstance(cell, Text) else str(cell) for cell in row] for row in rows_of(table)]
    return [(label, cells) for label, *cells in plain]
