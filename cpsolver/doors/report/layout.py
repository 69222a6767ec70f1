"""What the reports in rich's terms are laid out with: sections, and tables of figures."""

from __future__ import annotations

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text


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
