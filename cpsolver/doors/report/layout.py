"""What the reports in rich's terms are laid out with: sections, and tables of figures."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from cpsolver.doors.report.blocks import paragraph
from cpsolver.inputs.language import ENGLISH, spoken


def section(title: str, *content: RenderableType) -> list[RenderableType]:
    """An empty line, the title, and the content indented below it."""
    return ["", Text(title, style="bold underline"), *(Padding(part, (0, 0, 0, 1)) for part in content)]


def item(text: str) -> RenderableType:
    """A line of a list, its later lines below its first word."""
    grid = Table.grid()
    grid.add_row("- ", Text(text))
    return grid


def figure_table(first: str, *heads: str, gap: int = 2) -> Table:
    """An empty table with those heads: the first column is text, the others are figures."""
    columns = [Column(first, overflow="fold"), *(Column(head, justify="right", no_wrap=True) for head in heads)]
    return Table(*columns, box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")


class Prose:
    """Sentences in lines as wide as there is room: rich breaks at blanks alone, and Chinese has none."""

    def __init__(self, text: str, style: str = "") -> None:
        self._text = Text(text, style=style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if spoken() == ENGLISH:
            yield self._text
        else:
            yield from paragraph(self._text.plain, options.max_width, str(self._text.style))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._text)
