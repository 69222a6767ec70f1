"""Lines beside labels, and which of them stay where there is no room for all: what the first screen is laid out with.

A line never breaks inside a word, nor between a number and its unit: hard blanks join these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap

from rich.text import Text

LABEL = 10
"""Columns of the labels."""
_HARD = "\N{NO-BREAK SPACE}"
_ASCII = str.maketrans({"·": "|", "×": "x", "–": "-", "−": "-", "—": "-", "▸": ">", "…": "~", "≤": "<", "█": "#"})
"""Signs for terminals without UTF-8; whatever else they lack they show as a question mark."""


@dataclass(frozen=True)
class Block:
    """Lines beside a label. Where there are too many in all, blocks that `yields` most give up lines first, down to
    `least`; 0: none ever. `apart`: an empty line stands before it where there is room.
    """

    label: str
    lines: tuple[Text, ...]
    yields: int = 0
    least: int = 1
    apart: bool = False
    style: str = "bold"
    indent: int = LABEL

    def shortened(self, width: int) -> Block:
        """A line less; the last one says that something follows."""
        if len(self.lines) == 1:
            return replace(self, lines=())
        *kept, last = self.lines[:-1]
        words = last.plain.split(" ")
        while len(words) > 1 and len(" ".join(words)) + 2 > width - self.indent:
            words.pop()
        return replace(self, lines=(*kept, Text(f"{' '.join(words).rstrip(';,.')} …", style=last.style)))


def joined(text: str) -> str:
    """A text that no line breaks in."""
    return text.replace(" ", _HARD)


def paragraph(text: str, width: int, style: str = "", hanging: str = "") -> tuple[Text, ...]:
    """A text in lines of that width at most, all but the first after `hanging`; none for an empty one."""
    lines = wrap(text, width, break_on_hyphens=False, subsequent_indent=hanging)
    return tuple(Text(line.replace(_HARD, " "), style=style) for line in lines)


def pieces(said: Iterable[str], width: int, style: str = "") -> tuple[Text, ...]:
    """What belongs together, ` · ` between, with lines that break after one of them only."""
    whole = [joined(one) if len(one) < width else one for one in said]
    return paragraph(" ".join([*(f"{one}{_HARD}·" for one in whole[:-1]), *whole[-1:]]), width, style)


def fitted(blocks: Sequence[Block], width: int, most: int) -> list[Block]:
    """The blocks in so many lines: empty lines go first, from the last on, then lines of those that yield."""
    found = [block for block in blocks if block.lines]
    while _height(found) > most:
        apart = [place for place, block in enumerate(found) if block.apart]
        giving = [place for place, block in enumerate(found) if block.yields and len(block.lines) > block.least]
        if apart:
            found[apart[-1]] = replace(found[apart[-1]], apart=False)
        elif giving:
            place = max(giving, key=lambda place: (found[place].yields, place))
            found[place] = found[place].shortened(width)
            found = [block for block in found if block.lines]
        else:
            break
    return found


def _height(blocks: Iterable[Block]) -> int:
    return sum(len(block.lines) + block.apart for block in blocks)


def drawn(blocks: Iterable[Block], utf8: bool) -> Iterator[Text]:
    """The lines of all blocks, each label before its first line."""
    for block in blocks:
        if block.apart:
            yield Text()
        for number, line in enumerate(block.lines):
            label = (block.label if number == 0 else "").ljust(block.indent)
            whole = Text.assemble((label, block.style), line) if block.indent else line
            yield whole if utf8 else _in_ascii(whole)


def _in_ascii(line: Text) -> Text:
    plain = line.copy()
    plain.plain = line.plain.translate(_ASCII)  # sign by sign, so that styles stay where they are
    return plain
