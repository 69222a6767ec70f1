"""Many answers to choose from, of a sweep or a comparison, as their page shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import RenderableType

from cpsolver.plans.strategy import Strategy


@dataclass(frozen=True)
class Column:
    """A column of the table. `better`: which of its numbers are; only those columns may be an axis of the picture.

    `text`: words, which need room. `size`: along it the answers of a line are joined.
    """

    name: str
    unit: str = ""
    better: Literal["lower", "higher", ""] = ""
    text: bool = False
    size: bool = False


Cell = tuple[str, float | None]
"""What stands in a column, and its number in the column's unit where it has one."""


@dataclass(frozen=True)
class Detail:
    """What is shown of an answer that is picked: `said`, then its plans as in `solve --json`, the best with its parts.

    `brief`: without where time and memory go.
    """

    said: Sequence[str]
    plans: Sequence[Mapping[str, Any]]
    strategies: Sequence[Strategy]
    brief: bool = False


@dataclass(frozen=True)
class Pick:
    """One answer. `line`: it has the colour of those with the same; `task`: only with those it is weighed.

    `cells`: one for each column. `detail`: what is shown when it is picked. `winner`: it is marked.
    """

    name: str
    line: str
    task: str
    cells: tuple[Cell, ...]
    detail: Detail
    winner: bool = False


@dataclass(frozen=True)
class ChoicesPage:
    """All that the page has.

    `what`: one of the answers in a word, `cell`. `said`: paragraphs under the title. `axes`: names of the columns that
    are across and up at first. `notes`: below the picture. `stills`: pictures as SVG, each with its title, where no
    script runs and on paper; what is in them is escaped.
    `document` and `csv`: what can be saved, in files called `file`.
    """

    brand: str
    title: str
    what: str
    said: Sequence[RenderableType]
    columns: Sequence[Column]
    choices: Sequence[Pick]
    axes: tuple[str, str]
    notes: Sequence[str]
    stills: Sequence[tuple[str, str]]
    document: Mapping[str, Any]
    csv: str
    file: str
