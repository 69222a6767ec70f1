"""Words with braces, by bash's manual ("Brace Expansion"): `a{b,c}` is two words, `{1..4}` four."""

from __future__ import annotations

from itertools import pairwise

from cpsolver.doors.importing.lexer import Word, WordPart
from cpsolver.doors.importing.patterns import MOST_WORDS, braced
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say

_MOST_BRACES = 100
"""Of one word: what stands in braces is read once for every pair around it."""


def brace_words(word: Word) -> list[Word]:
    """The words that the braces of a word make of it, unquoted ones only: `a{b,c}` gives two.

    Raises InputError for a word with more braces, or that stands for more words, than anybody writes.
    """
    plain = [part.kind == "text" and not part.quoted for part in word.parts]
    braces = sum(part.text.count("{") for part, is_plain in zip(word.parts, plain, strict=True) if is_plain)
    if word.items is not None or not braces:
        return [word]
    atoms: list[WordPart] = []
    for part, is_plain in zip(word.parts, plain, strict=True):
        atoms += [WordPart("text", letter) for letter in part.text] if is_plain else [part]
    if braces > _MOST_BRACES or (found := _alternatives(atoms)) is None:
        told = say(
            "has a word with more than {most_braces} braces, or that stands for more than {most_words:,} words",
            most_braces=_MOST_BRACES,
            most_words=MOST_WORDS,
        )
        raise InputError(Trouble("", told, line=word.line))
    return [_joined(word.line, each) for each in found]


def _joined(line: int, atoms: list[WordPart]) -> Word:
    word = Word(line)
    for atom in atoms:
        word.add(atom)
    return word


def _alternatives(atoms: list[WordPart]) -> list[list[WordPart]] | None:
    """The words of a text of single letters and quoted parts; None: too many."""
    for start, atom in enumerate(atoms):
        if _letter(atom) != "{":
            continue
        end, commas = _brace_end(atoms, start)
        if end is None:
            continue
        choices = _choices(atoms, start, commas, end)
        if choices is None:
            return None
        if choices:
            rest = _alternatives(atoms[end + 1 :])
            if rest is None or len(choices) * len(rest) > MOST_WORDS:
                return None
            return [[*atoms[:start], *choice, *after] for choice in choices for after in rest]
    return [atoms]


def _choices(atoms: list[WordPart], start: int, commas: list[int], end: int) -> list[list[WordPart]] | None:
    """What the braces between two places stand for; [] where they are no expansion, None: too much."""
    if not commas:
        inner = atoms[start + 1 : end]
        numbers = braced("".join(map(_letter, inner))) if all(map(_letter, inner)) else []
        return [[WordPart("text", text)] for text in numbers]
    found: list[list[WordPart]] = []
    for a, b in pairwise([start, *commas, end]):
        some = _alternatives(atoms[a + 1 : b])
        if some is None or len(found) + len(some) > MOST_WORDS:
            return None
        found += some
    return found


def _letter(atom: WordPart) -> str:
    return atom.text if atom.kind == "text" and not atom.quoted else ""


def _brace_end(atoms: list[WordPart], start: int) -> tuple[int | None, list[int]]:
    """The place of the closing brace, and of the commas between that belong to no inner pair."""
    depth = 0
    commas: list[int] = []
    for place in range(start, len(atoms)):
        letter = _letter(atoms[place])
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth == 0:
            return place, commas
        if letter == "," and depth == 1:
            commas.append(place)
    return None, []
