"""What the terminal report says, as HTML: the same texts and numbers, read from rich's renderables."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cpsolver.doors.report.html.elements import Html, join, tag
from cpsolver.doors.report.plan_table import PlanTable

_WIDE = 1_000_000  # columns: room for every plan side by side
_CLASSES = {"green": "good", "yellow": "warn", "red": "bad"}


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
