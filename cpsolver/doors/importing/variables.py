"""The variables of a script, and what their expansions give by bash's manual ("Shell Parameter Expansion").

Reading alone cannot know some values: a command's output, the script's own arguments, a variable of the environment.
Such a value becomes a mark inside the text. It matters only where the text around it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from cpsolver.doors.importing.arithmetic import ArithmeticUnclearError, evaluate
from cpsolver.doors.importing.braces import brace_words
from cpsolver.doors.importing.lexer import Lexer, Word, WordPart
from cpsolver.doors.importing.patterns import Piece, glob_regex
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say

MARKS = ("\ue000", "\ue001")
"""What stands around the number of an unclear value in a text: letters of private use."""
_MARK = re.compile(r"(\d+)".join(MARKS))
_EXPANSION = re.compile(r"(!?)(#?)([A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)", re.ASCII | re.DOTALL)
_OPERATOR = re.compile(r"(:[-=+?]|[-=+?]|##|#|%%|%|//|/|\^\^|,,|:)(.*)", re.DOTALL)
_LONGEST = 1_000_000
"""Letters of a variable's value: a script that doubles a text again and again must not fill the memory."""
_MOST_LETTERS = 2**20
"""Letters of expansions that are read in all, those inside others again: a short text can ask for a tree of them."""
_OUTSIDE = re.compile(
    "SLURM.*|PBS.*|LSB.*|OMPI.*|SGE.*|NHOSTS|HOME|USER|LOGNAME|PATH|PWD|OLDPWD|HOSTNAME|SHELL|SHLVL|RANDOM|SECONDS|UID|EUID|PPID|LINENO"
    "|IFS|TERM|LANG|LC_.*|BASH.*|OSTYPE|HOSTTYPE|MACHTYPE|TMPDIR|LD_LIBRARY_PATH|PYTHONPATH|CUDA_HOME|VIRTUAL_ENV|CONDA.*"
    "|RANK|WORLD_SIZE|LOCAL_RANK|NODE_RANK|MASTER_ADDR|MASTER_PORT|EPOCH.*|FUNCNAME|PIPESTATUS|OPT.*|REPLY|DIRSTACK"
)
"""Variables that a shell, a batch system or a cluster sets, so that a script that does not set them finds a value."""
_TRIMS = ("#", "##", "%", "%%")


@dataclass(frozen=True)
class UnclearValue:
    """A value that reading cannot know: the variable, the line and the reason. `argument`: it is an argument of the
    script itself, or comes from one. `several`: it stands unquoted, and may be several words, or none."""

    name: str
    line: int
    reason: str
    argument: bool = False
    several: bool = False


@dataclass
class ShellVariables:
    """Scalars and arrays by name. `given` are values that the user fixed: what the script sets them to does not count.

    `defaults` collects what `${NAME:-default}` gave for names that the script itself does not set.
    """

    given: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    unclear: list[UnclearValue] = field(default_factory=list)
    defaults: dict[str, str] = field(default_factory=dict)
    positional: list[str] | None = None
    """The arguments of the script or function at hand; None: not known."""
    script: str | None = None
    """The script's file, `$0`."""
    status: bool | None = None
    """Whether the last command succeeded; None: not known."""
    asking: bool = False
    """In a condition: what the script does not set is taken as empty, and noted in `absent`."""
    open_world: bool = False
    """Whether a file that is not read may have set anything."""
    absent: dict[str, int] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    """Lines with arithmetic that is not followed, or that bash refuses."""
    exported: set[str] = field(default_factory=set)
    """Names that the programs which the script starts have too."""
    tables: set[str] = field(default_factory=set)
    """Names of associative arrays, which are not followed."""
    substitute: Callable[[str, int], str | None] | None = None
    """What a command prints; None: not known."""
    certain: Callable[[], bool] = lambda: True
    """Whether the command at hand runs in any case."""
    _places: dict[UnclearValue, int] = field(default_factory=dict)
    """Of the unclear values, in the order in which they came."""
    _spent: int = 0

    def __post_init__(self) -> None:
        self.scalars.update(self.given)

    def mark(self, name: str, line: int, reason: str, argument: bool = False) -> str:
        """The mark of an unclear value, to stand in a text."""
        return self._mark_of(UnclearValue(name, line, reason, argument))

    def _mark_of(self, value: UnclearValue) -> str:
        if value not in self._places:
            self._places[value] = len(self.unclear)
            self.unclear.append(value)
        return str(self._places[value]).join(MARKS)

    def _unquoted(self, text: str) -> str:
        """The text with marks of values that may be several words."""
        return _MARK.sub(lambda match: self._mark_of(replace(self.unclear[int(match[1])], several=True)), text)

    def _uncounted(self, values: list[str]) -> str | None:
        """The mark that leaves it open how many elements an array has; None where they are known."""
        several = (value for text in values for value in self.unclear_in(text) if value.several)
        return next(map(self._mark_of, several), None)

    def set_maybe(self, name: str, line: int, value: str) -> str:
        """The mark of a variable that is set to that value where it is not known whether the command runs."""
        shown = self.shown(value)
        told = say("is set in a conditional, which is not followed (to {shown!r} there)", shown=shown)
        return self.mark(name, line, told)

    def spend(self, text: str, line: int) -> None:
        """Count a text that is to be read; raises InputError where it was too much in all."""
        self._spent += len(text) + 1
        if self._spent > _MOST_LETTERS:
            told = say(
                "has expansions in expansions that come to more than {most_letters:,} letters: no more is read",
                most_letters=_MOST_LETTERS,
            )
            raise InputError(Trouble("", told, file=self.script, line=line))

    def unclear_in(self, text: str) -> list[UnclearValue]:
        """The unclear values that a text holds."""
        return [self.unclear[int(index)] for index in _MARK.findall(text)]

    def shown(self, text: str) -> str:
        """The text for people: `$NAME` where a value is unclear."""
        return _MARK.sub(lambda match: f"${self.unclear[int(match.group(1))].name}", text)

    def set(self, name: str, value: str) -> None:
        """Set a scalar, unless the user has given it."""
        if name not in self.given:
            self.arrays.pop(name, None)
            self.scalars[name] = (
                value if len(value) <= _LONGEST else self.mark(name, 0, say("is too long to be followed"))
            )

    def set_array(self, name: str, values: list[str]) -> None:
        """Set an array, unless the user has given a value of that name."""
        if name not in self.given:
            self.scalars.pop(name, None)
            fits = sum(map(len, values)) + len(values) <= _LONGEST
            self.arrays[name] = values if fits else [self.mark(name, 0, say("is too long to be followed"))]

    def unset(self, name: str) -> None:
        """Remove a variable."""
        if name not in self.given:
            self.scalars.pop(name, None)
            self.arrays.pop(name, None)

    def get(self, name: str) -> str | None:
        """A variable's value, an array's first element; None where the script does not set it."""
        if name in self.arrays:
            return self.arrays[name][0] if self.arrays[name] else None
        if name == "?" and self.status:
            return "0"
        if name.isdigit() and name not in self.given:
            return self._argument(int(name))
        return self.scalars.get(name)

    def is_set(self, name: str) -> bool | None:
        """Whether a variable is set; one that nothing sets is taken as not set in a condition, as where it is read."""
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            return None
        if name in self.arrays:
            return None  # its first element is asked for
        with self.question():
            value = self.scalars[name] if name in self.scalars else self._missing(name, 0)
        return None if self.unclear_in(value) else name in self.scalars

    def _argument(self, place: int) -> str | None:
        if place == 0:
            return self.script
        if self.positional is None:
            return None
        return self.positional[place - 1] if place <= len(self.positional) else ""

    @contextmanager
    def question(self) -> Iterator[None]:
        """While a condition is read."""
        before, self.asking = self.asking, True
        try:
            yield
        finally:
            self.asking = before

    def saved(self) -> tuple[dict[str, str], dict[str, list[str]], list[str] | None]:
        """Variables and arguments as they are, for `restore`."""
        arrays = {name: list(values) for name, values in self.arrays.items()}
        return dict(self.scalars), arrays, None if self.positional is None else list(self.positional)

    def restore(self, saved: tuple[dict[str, str], dict[str, list[str]], list[str] | None]) -> None:
        """Undo what a subshell did."""
        self.scalars, self.arrays, self.positional = saved

    def pieces(self, word: Word) -> list[Piece]:
        """A word as a pattern: its expansions done, its quoted parts marked."""
        parts = []
        for part in word.parts:
            value = part.text if part.kind == "text" else self._value(part, word.line)
            parts.append((" ".join(value) if isinstance(value, list) else value, part.quoted))
        return parts

    def fields(self, word: Word, operand: bool = False) -> list[str]:
        """The words that a word expands to: braces, then expansions, which are split at blanks where unquoted.

        `operand`: the word stands behind an operator in braces, where unquoted text is split as well.
        """
        if operand:
            return self._split(word, True)
        return [text for each in brace_words(word) for text in self._split(each, False)]

    def _split(self, word: Word, operand: bool) -> list[str]:
        words: list[str] = []
        unfinished: str | None = None
        for part in word.parts:
            if part.kind == "text" and (part.quoted or not operand):
                unfinished = (unfinished or "") + part.text
                continue
            value = part.text if part.kind == "text" else self._value(part, word.line)
            pieces = value if isinstance(value, list) else [value]
            if not part.quoted and not isinstance(value, _Fields):
                text = " ".join(pieces) if part.kind == "text" else self._unquoted(" ".join(pieces))
                if self.scalars.get("IFS", " \t\n") != " \t\n" and part.kind != "text":
                    text = self.mark("IFS", word.line, say("is set: how texts are split is not followed"))
                pieces = text.split()
                if unfinished is not None and text[:1].isspace():
                    words.append(unfinished)
                    unfinished = None
                ends = text[-1:].isspace()
            else:
                ends = False
            for index, piece in enumerate(pieces):
                if index and unfinished is not None:
                    words.append(unfinished)
                    unfinished = None
                unfinished = (unfinished or "") + piece
            if ends and unfinished is not None:
                words.append(unfinished)
                unfinished = None
        return words if unfinished is None else [*words, unfinished]

    def text(self, word: Word, skip: int = 0) -> str:
        """A word expanded but not split, as in an assignment, without its first `skip` letters (`NAME=`)."""
        parts = list(word.parts)
        if skip:
            parts[0] = WordPart("text", parts[0].text[skip:], parts[0].quoted)
        values = (part.text if part.kind == "text" else self._value(part, word.line) for part in parts)
        return "".join(" ".join(value) if isinstance(value, list) else value for value in values)

    def _value(self, part: WordPart, line: int) -> str | list[str]:
        self.spend(part.text, line)
        if part.kind == "command":
            printed = self.substitute(part.text, line) if self.substitute else None
            if printed is not None:
                return printed
            return self.mark(f"({part.text.strip()})", line, say("is the output of a command, which is not run"))
        if part.kind == "arithmetic":
            return self.arithmetic(part.text, line)
        return self._variable(part.text, line, part.quoted)

    def arithmetic(self, text: str, line: int) -> str:
        """The value of `$((text))`, or the mark of what makes it unclear."""
        expanded = self._inner(text, line)
        if marks := _MARK.search(expanded):
            return marks.group()

        def value_of(name: str) -> int:
            value = self.get(name)
            value = self._missing(name, line) if value is None else value
            self.spend(value, line)
            if marks := _MARK.search(value):
                raise _UnclearMark(marks.group())
            return evaluate(value, value_of)

        try:
            return str(evaluate(expanded, value_of))
        except _UnclearMark as error:
            return error.mark
        except (ArithmeticUnclearError, RecursionError) as error:
            self.faults.setdefault(line, str(error))
            return self.mark(f"(({text}))", line, say("is arithmetic that is not followed: {error}", error=error))

    def _inner(self, text: str, line: int) -> str:
        """The text of an operand, with its own expansions done."""
        return self.text(Lexer(text, None, line).operand())

    def _missing(self, name: str, line: int) -> str:
        if name in ("#", "@", "*") or name.isdigit():
            return self.mark(name, line, say("is an argument of the script"), argument=True)
        if self.asking and name.isidentifier() and not self.open_world and not _OUTSIDE.fullmatch(name):
            self.absent.setdefault(name, line)
            return ""
        if name in "?$!-":
            return self.mark(name, line, say("is known when the script runs only"))
        return self.mark(name, line, say("is not set in the script"))

    def _variable(self, text: str, line: int, quoted: bool = True) -> str | list[str]:
        match = _EXPANSION.fullmatch(text)
        if match is None:
            return self.mark(text, line, say("is an expansion that is not followed"))
        indirect, length, name, index, rest = match.groups()
        if indirect and index in ("@", "*"):
            return self._keys(name, line)
        if indirect:
            target = self.get(name)
            if target is None or not target.isidentifier():
                return self._missing(name, line) if target is None else target
            return self._variable(target + rest, line, quoted)
        if length:
            return self._length(name, index, line)
        if name == "#" and not rest and self.positional is not None:
            return self._count(self.positional)
        if name in ("@", "*") and self.positional is None:
            self.mark(name, line, say("are the script's own arguments, taken as none"), argument=True)
            return []
        if name in self.tables:
            return self.mark(name, line, say("is an associative array, which is not followed"))
        values = self._elements("@" if name == "*" else name, "*" if name == "*" and quoted else index, line)
        operator = _OPERATOR.fullmatch(rest) if rest else None
        if rest and operator is None:
            return self.mark(name, line, say("has an expansion that is not followed"))
        if operator is None:
            return values if values is not None else self._missing(name, line)
        kind, operand = operator.groups()
        if kind[-1] in "-=+?":
            return self._default(name, values, kind, operand, line, quoted)
        return self._operated(name, values, kind, operand, line)

    def _elements(self, name: str, index: str | None, line: int) -> str | list[str] | None:
        """A variable's value, all of an array's for [@] and [*], or one element."""
        if name == "@":
            return " ".join(self.positional or ()) if index == "*" else list(self.positional or ())
        if index in ("@", "*"):
            whole = self.arrays.get(name)
            if whole is None and name in self.scalars:
                whole = [self.scalars[name]]
            return " ".join(whole) if index == "*" and whole is not None else whole
        if index is None or name not in self.arrays:
            return self.get(name)
        place = self.arithmetic(index, line)
        if _MARK.search(place):
            return place
        values = self.arrays[name]
        if (open_count := self._uncounted(values if place.startswith("-") else values[: int(place) + 1])) is not None:
            return open_count
        return values[int(place)] if -len(values) <= int(place) < len(values) else None

    def _keys(self, name: str, line: int) -> str | list[str]:
        """The places of an array's elements."""
        if name in self.tables:
            return self.mark(name, line, say("is an associative array, which is not followed"))
        if (open_count := self._uncounted(self.arrays.get(name, []))) is not None:
            return open_count
        return [str(place) for place in range(len(self.arrays.get(name, [""] if name in self.scalars else [])))]

    def _length(self, name: str, index: str | None, line: int) -> str:
        if name in ("@", "*") and self.positional is not None:
            return self._count(self.positional)
        if name in self.tables:
            return self.mark(name, line, say("is an associative array, which is not followed"))
        if index in ("@", "*"):
            alone = _MARK.search(self.scalars.get(name, ""))  # what is asked for as an array, and not followed as one
            return alone.group() if alone else self._count(self.arrays.get(name, self.scalars.keys() & {name}))
        value = self.get(name)
        if value is None or _MARK.search(value):
            return self._missing(name, line) if value is None else value
        return str(len(value))

    def _count(self, values: Collection[str]) -> str:
        open_count = self._uncounted(list(values))
        return str(len(values)) if open_count is None else open_count

    def _operated(
        self, name: str, values: str | list[str] | None, operator: str, operand: str, line: int
    ) -> str | list[str]:
        if values is None:
            return self._missing(name, line)
        if isinstance(values, list):
            if operator == ":":
                values = [self.script or "", *values] if name in ("@", "*") else values
                bounds = self._bounds(operand, len(values), line)
                if isinstance(bounds, str):
                    return bounds
                end = bounds.start if bounds.stop is None else bounds.stop
                return self._uncounted(values if "-" in operand else values[:end]) or values[bounds]
            return [self._changed(name, value, operator, operand, line) for value in values]
        return self._changed(name, values, operator, operand, line)

    def _default(
        self, name: str, values: str | list[str] | None, operator: str, operand: str, line: int, quoted: bool
    ) -> str | list[str]:
        """`-`, `=`, `+` and `?`; with a colon an empty value counts as none. Quotes in the operand hold."""
        empty = values is None or (operator[0] == ":" and values in ("", []))
        kind = operator[-1]
        if kind == "+" and isinstance(values, str) and values and not _MARK.sub("", values):
            return values  # it may be empty, and what stands for it left out
        if empty == (kind == "+"):
            return "" if values is None or kind == "+" else values
        if kind == "?":
            return self._missing(name, line)
        sets, told = kind == "=" and not name.isdigit(), kind != "+" and values is None and name not in self.defaults
        default, maybe = self._inner(operand, line) if sets or told or quoted else "", sets and not self.certain()
        if told and not maybe:
            self.defaults.setdefault(name, default)
        if sets:
            self.set(name, self.set_maybe(name, line, default) if maybe else default)
        if sets or quoted:
            return default
        return _Fields(self.fields(Lexer(operand, None, line).operand(), operand=True))

    def _changed(self, name: str, value: str, operator: str, operand: str, line: int) -> str:
        """Trimming, substitution, case and substrings of one value."""
        if _MARK.search(value):
            return value
        if operator in ("^^", ",,") and not operand:
            return value.upper() if operator == "^^" else value.lower()
        if operator == ":":
            bounds = self._bounds(operand, len(value), line)
            return bounds if isinstance(bounds, str) else value[bounds]
        if operator in ("/", "//"):
            old, _, new = operand.partition("/")
            old, new = self._inner(old, line), self._inner(new, line)
            if old and not set(old) & set("*?[") and old[0] not in "#%":
                return value.replace(old, new, -1 if operator == "//" else 1)
        if operator in _TRIMS:
            pieces = self.pieces(Lexer(operand, None, line).operand())
            pattern = glob_regex(pieces)
            if pattern is not None and not any(_MARK.search(text) for text, _ in pieces):
                return _trimmed(value, operator, pattern)
        return self.mark(name, line, say("has an expansion that is not followed"))

    def _bounds(self, operand: str, length: int, line: int) -> slice | str:
        """What `${NAME:offset:length}` takes of so many letters or elements, or the mark of what makes it unclear."""
        first, _, second = operand.partition(":")
        bounds = [self.arithmetic(part, line) for part in (first, second) if part.strip()]
        if marks := [bound for bound in bounds if _MARK.search(bound)]:
            return marks[0]
        start = int(bounds[0]) if first.strip() else 0
        start = max(0, start + length) if start < 0 else start
        if len(bounds) < 2:
            return slice(start, None)
        amount = int(bounds[-1])
        return slice(start, start + amount if amount >= 0 else length + amount)


class _Fields(list[str]):
    """Words that need no more splitting."""


class _UnclearMark(Exception):
    """Arithmetic met an unclear value."""

    def __init__(self, mark: str) -> None:
        super().__init__(mark)
        self.mark = mark


def _trimmed(value: str, operator: str, pattern: re.Pattern[str]) -> str:
    """The value without its shortest (`#`, `%`) or longest (`##`, `%%`) start or end that fits the pattern."""
    lengths = range(len(value) + 1) if len(operator) == 1 else range(len(value), -1, -1)
    for length in lengths:
        at_start = operator[0] == "#"
        piece = value[:length] if at_start else value[len(value) - length :]
        if pattern.fullmatch(piece):
            return value[length:] if at_start else value[: len(value) - length]
    return value


def parse_given(texts: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE` texts of the command line as a mapping; raises InputError for any other."""
    wrong = [text for text in texts if not re.fullmatch(r"([A-Za-z_]\w*|\d+)=.*", text, re.ASCII | re.DOTALL)]
    if wrong:
        raise InputError([Trouble("--set", "is not NAME=VALUE", text) for text in wrong])
    return dict(text.split("=", 1) for text in texts)
