"""The words on the first screen, explained: those that are on it, as docs/glossary.md has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from cpsolver.doors.report.layout import section
from cpsolver.inputs.data import package_schema
from cpsolver.inputs.language import later, say

TITLE = later("What the words mean")


def legend_words() -> Mapping[str, str]:
    """Word -> what it means; some are parts of words of the screen."""
    return package_schema(Path(__file__).with_name("legend.yaml"), dict[str, str])


def legend(screen: str) -> list[RenderableType]:
    """A section with those of the words that stand on the screen, given as text."""
    table = Table.grid(Column(style="bold", no_wrap=True), Column(), padding=(0, 2, 0, 0))
    for word, meaning in on_screen(screen):
        table.add_row(word, Text(meaning))
    return section(say(TITLE), table)


def on_screen(screen: str) -> Iterator[tuple[str, str]]:
    """Words that stand there, with what they mean; words of the same meaning in one."""
    there: dict[str, list[str]] = {}
    for word, meaning in legend_words().items():
        if re.search(rf"(?<![a-z]){re.escape(say(word))}", screen, re.IGNORECASE):
            there.setdefault(say(meaning), []).append(say(word))
    yield from ((", ".join(words), meaning) for meaning, words in there.items())
