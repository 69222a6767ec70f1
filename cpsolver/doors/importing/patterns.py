"""Patterns of the shell, by bash's manual ("Pattern Matching", "Brace Expansion"), and extended regular expressions."""

from __future__ import annotations

import re

_CLASSES = {"digit": "0-9", "alpha": "A-Za-z", "alnum": "A-Za-z0-9", "lower": "a-z", "upper": "A-Z", "space": r"\s"}
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])")
MOST_WORDS = 10_000
"""Words that one word in braces may become."""

_MOST_REPEATS = 4
"""Of a regular expression: each may try every place of a text again for every place of the one before."""

Piece = tuple[str, bool]
"""Text, and whether it is quoted: then it stands for itself."""


def glob_regex(pieces: list[Piece]) -> re.Pattern[str] | None:
    """A pattern as a regular expression; None for the extended ones (`@(a|b)`) and classes not known here."""
    text = "".join(re.sub(r"([\\*?\[\]()])", r"\\\1", part) if quoted else part for part, quoted in pieces)
    parts, at, ends = list[str](), 0, _set_ends(text)
    while at < len(text):
        letter = text[at]
        at += 1
        if letter == "\\" and at < len(text):
            parts.append(re.escape(text[at]))
            at += 1
        elif letter in "*?":
            if text.startswith("(", at):
                return None
            parts.append("" if letter == "*" else ".")
        elif letter == "[" and (end := _set_end(text, at, ends)):
            if (inner := _set(text[at:end])) is None:
                return None
            parts.append(inner)
            at = end + 1
        elif letter in "@+!" and text.startswith("(", at):
            return None
        else:
            parts.append(re.escape(letter))
    return re.compile(_without_retries(parts), re.DOTALL)


def _without_retries(parts: list[str]) -> str:
    """The pieces of a pattern as one expression, "" standing for `*`. Between two stars the first place that fits is as
    good as any other, so that no other is tried: tries of all would be as many as letters to the power of stars."""
    stretches: list[list[str]] = [[]]
    for part in parts:
        stretches[-1].append(part) if part else stretches.append([])
    first, *rest = ("".join(each) for each in stretches)
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>.*?{each})" for each in middle if each) + f".*{last}"


def _set_end(text: str, start: int, ends: list[int]) -> int:
    """The place of the bracket that closes a set of letters; 0 where none does."""
    at = start + (text[start : start + 1] in ("!", "^"))
    at += text[at : at + 1] == "]"
    return ends[at] if ends[at] < len(text) else 0


def _set_ends(text: str) -> list[int]:
    """Of every place in a set of letters the bracket that closes it, one of a class (`[:digit:]`) left out; the end of
    the text where none does."""
    ends, close = [len(text)] * (len(text) + 2), len(text)
    for at in reversed(range(len(text))):
        close = at if text.startswith(":]", at) else close
        if text[at] == "]":
            ends[at] = at
        else:
            ends[at] = ends[close + 2 if close < len(text) and text.startswith("[:", at) else at + 1]
    return ends


def _set(text: str) -> str | None:
    """A set of letters as one of a regular expression."""
    if re.search(r"\[:(\w+):\]", text):
        if any(name not in _CLASSES for name in re.findall(r"\[:(\w+):\]", text)):
            return None
        text = re.sub(r"\[:(\w+):\]", lambda match: _CLASSES[match.group(1)], text)
    elif "\\" in text or "[" in text:
        return None
    negated = text[0] in "!^"
    inner = (text[1:] if negated else text).replace("]", r"\]").replace("^", r"\^").replace("&", r"\&")
    try:
        return re.compile(f"[{'^' if negated else ''}{inner}]").pattern
    except re.error:
        return None


def extended_regex(pieces: list[Piece]) -> re.Pattern[str] | None:
    """The regular expression of `=~`; None where Python's could mean something else, or search for ages."""
    text, plain = "", "".join(part for part, quoted in pieces if not quoted)
    repeats = len(re.findall(r"[*+{|]", plain))
    if repeats > _MOST_REPEATS or (repeats > 1 and re.search(r"\)[*+{]", plain)):
        return None
    for part, quoted in pieces:
        if not quoted and re.search(r"\\[^.*+?()|^${}\[\]\\/-]|\(\?|[*+?}][*+?{]", part):
            return None
        part = re.sub(r"\[:(\w+):\]", lambda match: _CLASSES.get(match.group(1), "[:"), part) if not quoted else part
        text += re.escape(part) if quoted else part
    if "[:" in text or "[." in text or "[=" in text:
        return None
    try:
        return re.compile(re.sub(r"(?<!\\)\$(?=$|\))", r"\\Z", text))
    except re.error:
        return None


def braced(text: str) -> list[str]:
    """What the inside of braces stands for: `a,b` two texts, `1..4` four; [] where it is no brace expansion."""
    if match := _RANGE.fullmatch(text):
        return _numbers(*match.groups())
    if match := _LETTERS.fullmatch(text):
        first, last = map(ord, match.groups())
        return [chr(code) for code in range(first, last + (1 if first <= last else -1), 1 if first <= last else -1)]
    return []


def _numbers(first: str, last: str, step: str | None) -> list[str]:
    """The numbers of `first..last..step`, as wide as the widest where one of the two starts with a zero."""
    start, end, by = int(first), int(last), abs(int(step or 1)) or 1
    if abs(end - start) // by >= MOST_WORDS:
        return []
    padded = any(re.match(r"-?0\d", text) for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    numbers = range(start, end + 1, by) if start <= end else range(start, end - 1, -by)
    return [f"{number:0{width}d}" for number in numbers]
