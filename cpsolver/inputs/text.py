"""How numbers, spans and bars are written, in messages and reports: units everywhere, thousands separated."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from itertools import groupby

from cpsolver.inputs.errors import number
from cpsolver.inputs.language import counted

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a text starts with that spreadsheets take for a formula."""


def seconds(value: float, of: float | None = None) -> str:
    """Seconds in the unit that suits `of` (by default the value itself): 9.577 s, 41.3 ms."""
    if (value if of is None else of) < 1:
        return f"{value * 1e3:,.1f} ms"
    return f"{value:,.3f} s" if (value if of is None else of) < 1000 else f"{value:,.1f} s"


def unit(of: float) -> str:
    """The unit in which `about` writes a time of that many seconds."""
    return "ms" if of < 1 else "s"


def about(value: float, of: float | None = None) -> str:
    """Seconds to some three digits, in the unit that suits `of` (by default the value itself) and without it: 17.5."""
    size = value if of is None else of
    scale = 1e3 if unit(size) == "ms" else 1.0
    digits = 0 if size * scale >= 100 else 1 if size * scale >= 10 else 2
    shown = f"{value * scale:,.{digits}f}"
    return shown if value * scale < 1e4 else shown.replace(",", "")


def elapsed(value: float) -> str:
    """Seconds that something took: 0.99 s, 74 s."""
    return f"{value:.2f} s" if value < 10 else f"{value:,.0f} s"


def percent(share: float) -> str:
    """A share as a percentage with one decimal."""
    return f"{share * 100:.1f} %"


def signed_percent(share: float) -> str:
    """The same with its sign; what rounds to nothing is `+0.0 %`, whichever side of 0 it is."""
    return f"{round(share * 100, 1) + 0.0:+.1f} %"


def count(value: float) -> str:
    """A whole number with its thousands separated."""
    return number(round(value))


def csv_text(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A table as comma-separated values, in which no text is a formula to a spreadsheet: one that starts like one gets
    an apostrophe in front."""
    text = StringIO()
    writer = csv.writer(text)
    for row in (header, *rows):
        writer.writerow([f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell for cell in row])
    return text.getvalue()


def plural(amount: int, word: str) -> str:
    """`1 plan`, `2 plans`; the word is of the catalogue of messages."""
    return counted(amount, word)


def runs(values: Sequence[object]) -> str:
    """Equal neighbours together: `6, 7 ×8, 6`."""
    lengths = [(value, len(list(same))) for value, same in groupby(values)]
    return ", ".join(f"{value} ×{length}" if length > 1 else f"{value}" for value, length in lengths)


def span_text(first: int, last: int) -> str:
    """Neighbouring numbers: `2–6`, or `2` where there is one."""
    return f"{first}" if first == last else f"{first}–{last}"


def bar(share: float, width: int, encoding: str = "utf-8") -> str:
    """A bar of `share` of the width, to an eighth of a column; at least a sliver for what is not nothing."""
    share = min(1.0, max(0.0, share))
    if not encoding.lower().startswith("utf"):
        return "#" * round(share * width)
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
