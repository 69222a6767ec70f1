"""What some commands print, whose output their words and input alone decide: echo, basename, seq, cut and the like."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence

from cpsolver.doors.importing.arithmetic import ArithmeticUnclearError, evaluate
from cpsolver.doors.importing.patterns import braced

_UNCLEAR = "\ue000"
"""Begins the mark of a value that is not known (`variables`)."""
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def printed(words: Sequence[str], text: str | None) -> str | None:
    """What a command prints, given its words and the text that is piped to it (None: not known); None: not known."""
    command = _PRINTERS.get(words[0])
    return command(list(words[1:]), text) if command else None


def searched(words: Sequence[str], text: str | None) -> bool | None:
    """Whether `grep -q` finds its pattern in the text that is piped to it; None where that is not known.

    Known are patterns without a sign that means another: letters, digits, blanks and a few marks."""
    rest = list(words[1:])
    options = ""
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--":
            break
        options += option[1:]
        if option.endswith("e"):
            break
    if text is None or _UNCLEAR in text or len(rest) != 1 or "q" not in options or not set(options) <= set("qiFEe"):
        return None
    plain = r"[^\n]+" if "F" in options or words[0] == "fgrep" else r"[\w ,:/=@%~-]+"
    if not re.fullmatch(plain, rest[0], re.ASCII):
        return None
    pattern, searched_in = (part.lower() if "i" in options else part for part in (rest[0], text))
    return pattern in searched_in if (pattern + searched_in).isascii() or "i" not in options else None


def split_among(words: Sequence[str], text: str, separators: str) -> dict[str, str | list[str]] | None:
    """What `read` gives its variables of the first line of a text; None where that is not followed.

    Followed are -r and -a, separators that are blanks, none, or one other sign; the last variable has the rest.
    """
    match = re.fullmatch(r"read((?: -[ra]+)*)((?: [A-Za-z_]\w*)*)", " ".join(words), re.ASCII)
    line = text.partition("\n")[0]
    if match is None or _UNCLEAR in text or _UNCLEAR in separators or ("\\" in line and "r" not in match.group(1)):
        return None
    names = match.group(2).split() or ["REPLY"]
    blank = separators == " \t\n"
    if not match.group(2) or (not blank and (len(separators) > 1 or separators.isspace())):
        return None
    if separators and line.endswith(separators) and not blank:
        return None  # bash leaves one of these out, or not, by how many variables there are
    if blank and re.search(r"[^\S \t]", line):
        return None  # blanks to Python that are letters to bash
    if "a" in match.group(1):
        parts = line.split(None if blank else separators) if separators else [line]
        return {names[0]: parts if line else []} if len(names) == 1 else None
    line = line.strip(" \t") if blank else line
    parts = line.split(None if blank else separators, len(names) - 1) if separators else [line]
    return dict(zip(names, [*parts, *([""] * (len(names) - len(parts)))], strict=True))


def is_printer(name: str) -> bool:
    """Whether the output of the command is known here, and it does nothing else."""
    return name in _PRINTERS


def _echo(words: list[str], _text: str | None) -> str | None:
    newline, escaped = True, False
    while words and re.fullmatch("-[neE]+", words[0]):
        options = words.pop(0)
        newline &= "n" not in options
        escaped = "e" in options if set("eE") & set(options) else escaped
    line = " ".join(words)
    shown = _escaped(line) if escaped else line
    return None if shown is None else shown + "\n" * newline


def _escaped(line: str) -> str | None:
    """The text with its escapes; None with one that is not known here."""
    if re.search(r"\\[^nt\\]|\\$", re.sub(r"\\\\", "", line)):
        return None
    return re.sub(r"\\[nt\\]", lambda match: _ESCAPES[match.group()], line)


def _printf(words: list[str], _text: str | None) -> str | None:
    """printf with %s and whole numbers in %d, its format used again while there are words."""
    if not words or words[0].startswith("-"):
        return None
    form, values = _escaped(words[0]), words[1:]
    if form is None or re.search(r"%(?![sd%])", form):
        return None
    lines = []
    while True:
        places = re.findall("%[sd]", form)
        taken = [values.pop(0) if values else "" if place == "%s" else "0" for place in places]
        if any(
            place == "%d" and not re.fullmatch("-?[1-9][0-9]*|0", value)
            for place, value in zip(places, taken, strict=True)
        ):
            return None
        pieces = re.split("(%[sd%])", form)
        rest = iter(taken)
        lines += [next(rest) if piece in ("%s", "%d") else "%" if piece == "%%" else piece for piece in pieces]
        if not values or not places:
            return "".join(lines)


def _ends_unclear(path: str) -> bool:
    """Whether the path's last part holds an unclear value, which may have slashes of its own."""
    return _UNCLEAR in path.rstrip("/").rpartition("/")[2]


def _operands(words: list[str]) -> list[str]:
    """The words without the `--` that ends options."""
    return words[1:] if words[:1] == ["--"] else words


def _basename(words: list[str], _text: str | None) -> str | None:
    words = _operands(words)
    if not words or len(words) > 2 or words[0].startswith("-") or not words[0] or _ends_unclear(words[0]):
        return None
    name = posixpath.basename(words[0].rstrip("/")) or "/"
    suffix = words[1] if len(words) == 2 else ""
    return (name.removesuffix(suffix) if suffix != name else name) + "\n"


def _dirname(words: list[str], _text: str | None) -> str | None:
    words = _operands(words)
    if len(words) != 1 or words[0].startswith("-") or not words[0] or _ends_unclear(words[0]):
        return None
    head = posixpath.dirname(words[0].rstrip("/") or "/")
    return (head.rstrip("/") or ("/" if head else ".")) + "\n"


def _expr(words: list[str], _text: str | None) -> str | None:
    if not words or not all(re.fullmatch(r"-?\d+|[-+*/%()]", word) for word in words):
        return None
    decimal = [str(int(word)) if word.lstrip("-").isdigit() else word for word in words]
    try:
        return f"{evaluate(' '.join(decimal), lambda name: 0)}\n"
    except ArithmeticUnclearError:
        return None


def _bc(words: list[str], text: str | None) -> str | None:
    if words or text is None or not re.fullmatch(r"[\d\s()+*/%-]+", text) or len(text.split("\n")) > 2:
        return None
    numbers = re.sub(r"\b0+(?=\d)", "", text)
    try:
        return f"{evaluate(numbers, lambda name: 0)}\n"
    except ArithmeticUnclearError:
        return None


def _seq(words: list[str], _text: str | None) -> str | None:
    if not 1 <= len(words) <= 3 or not all(re.fullmatch("-?[1-9][0-9]{0,5}|0", word) for word in words):
        return None
    first = words[0] if len(words) > 1 else "1"
    step = words[1] if len(words) == 3 else "1"
    if step == "0" or (int(words[-1]) - int(first)) * int(step) < 0:
        return "" if step != "0" else None
    return "".join(f"{number}\n" for number in braced(f"{first}..{words[-1]}..{step}")) or None


def _wc(words: list[str], text: str | None) -> str | None:
    if text is None or words not in (["-l"], ["-w"]):
        return None
    return f"{text.count(chr(10)) if words == ['-l'] else len(text.split())}\n"


def _tr(words: list[str], text: str | None) -> str | None:
    """tr of single letters and of cases."""
    if text is None or len(words) != 2:
        return None
    sets = [_ESCAPES.get(word, word) for word in words]
    if sets in (["[:upper:]", "[:lower:]"], ["A-Z", "a-z"]):
        return text.lower() if text.isascii() else None
    if sets in (["[:lower:]", "[:upper:]"], ["a-z", "A-Z"]):
        return text.upper() if text.isascii() else None
    if words[0] == "-d" and len(sets[1]) == 1:
        return text.replace(sets[1], "")
    return text.replace(sets[0], sets[1]) if all(len(each) == 1 for each in sets) else None


def _cut(words: list[str], text: str | None) -> str | None:
    options = "\x00".join(words)
    match = re.fullmatch("-d\x00?([^\x00])\x00-f\x00?([1-9])", options) or re.fullmatch(
        "-f\x00?(?P<field>[1-9])\x00-d\x00?(?P<mark>[^\x00])", options
    )
    if match is None or text is None:
        return None
    mark = match.groupdict().get("mark") or match.group(1)
    place = int(match.groupdict().get("field") or match.group(2))
    rows: list[str] = []
    for row in text.removesuffix("\n").split("\n") if text else ():
        parts = row.split(mark)
        rows.append(row if len(parts) == 1 else parts[place - 1] if place <= len(parts) else "")
    return "".join(f"{row}\n" for row in rows)


_ONE = r"(?:[\w ,:/=@%]|\\d|\[[\w-]+\])"
_FOUND = re.compile(rf"(?:\(\?<=[\w ,:/=@%-]+\))?(?:{_ONE}\+?)(?:-|{_ONE}\+?)*", re.ASCII)
"""Patterns that grep and Python read alike: signs, digits, classes, `+`, and a text that stands before (`(?<=`)."""
_LONGEST = {0: 10_000, 1: 10_000, 2: 400}
"""By how many repeats a pattern has, the longest text in which it is found at once, however they meet."""


def _grep(words: list[str], text: str | None) -> str | None:
    """`grep -o`: what the pattern finds, each on a line of its own; `\\d` and a text before with -P alone."""
    if text is None or len(words) != 2 or words[0] not in ("-oP", "-Po", "-oE", "-Eo") or not text.isascii():
        return None
    pattern = words[1]
    if not _FOUND.fullmatch(pattern) or ("P" not in words[0] and re.search(r"\\d|\(", pattern)):
        return None
    if len(text) > _LONGEST.get(pattern.count("+"), 0):
        return None
    try:
        found = [match for line in text.split("\n") for match in re.findall(pattern, line)]
    except re.error:  # a class like [z-a]
        return None
    return "".join(f"{match}\n" for match in found)


def _cat(words: list[str], text: str | None) -> str | None:
    return text if not words else None


_PRINTERS: dict[str, Callable[[list[str], str | None], str | None]] = {
    "echo": _echo,
    "printf": _printf,
    "basename": _basename,
    "dirname": _dirname,
    "expr": _expr,
    "bc": _bc,
    "seq": _seq,
    "wc": _wc,
    "tr": _tr,
    "cut": _cut,
    "cat": _cat,
    "grep": _grep,
}
