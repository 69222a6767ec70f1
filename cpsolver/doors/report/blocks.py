"""Lines beside labels, and which of them stay where there is no room for all: what the first screen is laid out with.

A line never breaks inside a word, nor between a number and its unit: hard blanks join these. Chinese has no blanks
between words: there a line breaks between any two characters, but before no mark that ends something.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap

from rich.cells import cell_len, set_cell_size
from rich.text import Text

LABEL = 10
"""Columns of the labels."""
_HARD = "\N{NO-BREAK SPACE}"
_ASCII = str.maketrans({"·": "|", "×": "x", "–": "-", "−": "-", "—": "-", "▸": ">", "…": "~", "≤": "<", "█": "#"})
"""Signs for terminals without UTF-8; whatever else they lack they show as a question mark."""
_WIDE = "[\u2e80-\u9fff\uff00-\uffef]"
_ENDS = "，。；：！？、）》”」·"
_JOINT = "\N{WORD JOINER}"
"""Between characters that no line breaks between, where wide ones are among them."""
_UNBROKEN = re.compile(rf"[（《“]?(?:[^ ]{_JOINT})*(?:{_WIDE}|(?:(?!{_WIDE})[^ ])+)[{_ENDS}]*[ ]*|[ ]+")
"""What a line does not break in: a word, or a wide character, with the marks that follow it."""
_LEFT_OFF = " ;,.；，。、"


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
        words = _unbroken(last.plain)
        while len(words) > 1 and cell_len("".join(words).rstrip()) + 2 > width - self.indent:
            words.pop()
        return replace(self, lines=(*kept, Text(f"{''.join(words).rstrip(_LEFT_OFF)} …", style=last.style)))


def joined(text: str) -> str:
    """A text that no line breaks in."""
    return (_JOINT if re.search(_WIDE, text) else "").join(text.replace(" ", _HARD))


def paragraph(text: str, width: int, style: str = "", hanging: str = "") -> tuple[Text, ...]:
    """A text in lines of that width at most, all but the first after `hanging`; none for an empty one."""
    wide = re.search(_WIDE, text)
    lines = (
        _wrapped(text, width, hanging) if wide else wrap(text, width, break_on_hyphens=False, subsequent_indent=hanging)
    )
    return tuple(Text(line.replace(_HARD, " ").replace(_JOINT, ""), style=style) for line in lines)


def _unbroken(text: str) -> list[str]:
    return _UNBROKEN.findall(text)


def _wrapped(text: str, width: int, hanging: str) -> list[str]:
    """The lines of a text in which some characters are two columns wide."""
    lines = [""]
    for word in _unbroken(text):
        if lines[-1].strip() and cell_len(lines[-1] + word.rstrip(" ")) > width:
            lines.append(hanging)
        lines[-1] += word
        while cell_len(lines[-1].rstrip(" ")) > width:
            fits = set_cell_size(lines[-1], width).rstrip(" ")
            lines[-1:] = [fits, hanging + lines[-1][len(fits) :]]
    return [line.rstrip(" ") for line in lines]


def pieces(said: Iterable[str], width: int, style: str = "") -> tuple[Text, ...]:
    """What belongs together, ` · ` between, with lines that break after one of them only."""
    *first, last = said
    whole = [joined(f"{one} ·") if cell_len(one) < width else f"{one}{_HARD}·" for one in first]
    return paragraph(" ".join([*whole, joined(last) if cell_len(last) < width else last]), width, style)


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
            label = block.label if number == 0 else ""
            label += " " * (block.indent - cell_len(label))
            whole = Text.assemble((label, block.style), line) if block.indent else line
            yield whole if utf8 else _in_ascii(whole)


def _in_ascii(line: Text) -> Text:
    plain = line.copy()
    plain.plain = line.plain.translate(_ASCII)  # sign by sign, so that styles stay where they are
    return plain
