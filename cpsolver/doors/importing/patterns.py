"""Patterns of the shell, by bash's manual ("Pattern Matching", "Brace Expansion"), and extended regular expressions."""

from __future__ import annotations

import re

_CLASSES = {"digit": "0-9", "alpha": "A-Za-z", "alnum": "A-Za-z0-9", "lower": "a-z", "upper": "A-Z", "space": r"\s"}
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])")
_MOST = 10_000
"""Words that one word in braces may become."""

Piece = tuple[str, bool]
"""Text, and whether it is quoted: then it stands for itself."""


def glob_regex(pieces: list[Piece]) -> re.Pattern[str] | None:
    """A pattern as a regular expression; None for the extended ones (`@(a|b)`) and classes not known here."""
    text = "".join(re.sub(r"([\\*?\[\]()])", r"\\\1", part) if quoted else part for part, quoted in pieces)
    parts, at = [], 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter == "\\" and at < len(text):
            parts.append(re.escape(text[at]))
            at += 1
        elif letter in "*?":
            if text.startswith("(", at):
                return None
            parts.append(".*" if letter == "*" else ".")
        elif letter == "[" and (end := _set_end(text, at)):
            if (inner := _set(text[at:end])) is None:
                return None
            parts.append(inner)
            at = end + 1
        elif letter in "@+!" and text.startswith("(", at):
            return None
        else:
            parts.append(re.escape(letter))
    return re.compile("".join(parts), re.DOTALL)


def _set_end(text: str, start: int) -> int:
    """The place of the bracket that closes a set of letters; 0 where none does."""
    at = start + (text[start : start + 1] in ("!", "^"))
    at += text[at : at + 1] == "]"
    while at < len(text) and text[at] != "]":
        at = text.index(":]", at) + 2 if text.startswith("[:", at) and ":]" in text[at:] else at + 1
    return at if at < len(text) else 0


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
    """The regular expression of `=~`; None where Python's could mean something else."""
    text = ""
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
    if abs(end - start) // by >= _MOST:
        return []
    padded = any(re.match(r"-?0\d", text) for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    numbers = range(start, end + 1, by) if start <= end else range(start, end - 1, -by)
    return [f"{number:0{width}d}" for number in numbers]
