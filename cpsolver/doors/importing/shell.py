"""A script read from top to bottom: assignments done, conditionals named and not followed, commands collected."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cpsolver.doors.importing.lexer import ASSIGNMENT, Command, Lexer, Word
from cpsolver.doors.importing.variables import ShellVariables
from cpsolver.inputs.errors import InputError, Trouble

_OPENING = ("if", "for", "while", "until", "case", "select")
_CLOSING = ("fi", "done", "esac")
_BETWEEN = ("then", "else", "do", "!", "time")
_DECLARING = ("export", "declare", "typeset", "local", "readonly")
_TESTS = ("[", "[[", "test", "((")
_CHANGES = re.compile(r"([A-Za-z_]\w*)\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)")


@dataclass(frozen=True)
class ScriptCommand:
    """A command that the script would run: its expanded words; `certain` where no conditional stands around it."""

    line: int
    words: tuple[str, ...]
    certain: bool


@dataclass
class Script:
    """What reading a script gave. Warnings say what was not followed, each with its line."""

    variables: ShellVariables
    runs: list[ScriptCommand] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def warn(self, line: int, message: str) -> None:
        """Note something that was not followed, once."""
        text = f"line {line}: {message}"
        if text not in self.warnings:
            self.warnings.append(text)


def read_script(text: str, file: str | None, given: dict[str, str]) -> Script:
    """Read a script; `given` are values of variables that hold whatever the script says.

    Raises InputError for text that is no shell script (quotes or brackets that never close).
    """
    script = Script(ShellVariables(dict(given)))
    try:
        _ScriptReader(script).read(Lexer(text, file).commands())
    except RecursionError:
        raise InputError(Trouble("", "calls itself, or is nested too deeply, to be followed", file=file)) from None
    return script


class _ScriptReader:
    """Goes through commands; `around` are the constructs that are open."""

    def __init__(self, script: Script) -> None:
        self.script, self.variables = script, script.variables
        self.around: list[str] = []
        self.saved: list[tuple[dict[str, str], dict[str, list[str]]]] = []
        self.after: tuple[str, str] = ("", "")  # first word of the command before, and the operator behind it

    def read(self, commands: list[Command]) -> None:
        for index, command in enumerate(commands):
            following = commands[index + 1] if index + 1 < len(commands) else None
            if self._function(command, following):
                continue
            words = self._constructs(list(command.words))
            if words:
                self._simple(command, words)
            first = _first(words)
            self._brackets(command)
            self.after = (first, command.ended_by)

    @property
    def certain(self) -> bool:
        """The command at hand runs whatever happens."""
        if any(name not in ("{", "(") for name in self.around):
            return False
        before, operator = self.after
        return operator != "||" and not (operator == "&&" and before in _TESTS)

    def _function(self, command: Command, following: Command | None) -> bool:
        """`name ()`: the braces that follow are a function's."""
        named = len(command.words) == 1 and command.ended_by == "("
        if named and following is not None and not following.words and following.ended_by == ")":
            self.around.append("function")
            return True
        return not command.words and command.ended_by == ")" and self.around[-1:] == ["function"]

    def _constructs(self, words: list[Word]) -> list[Word]:
        """What is left of a command without its reserved words, which open and close constructs."""
        while words:
            plain = words[0].plain
            if plain in _OPENING:
                self.around.append(plain)
                if plain in ("for", "select") and len(words) > 1 and (name := words[1].plain):
                    self._unclear(name, words[1].line, "is the variable of a loop")
                return []
            if plain in _CLOSING or plain == "}":
                if self.around:
                    self.around.pop()
                return []
            if plain == "elif":
                return []
            if plain == "function":
                self.around.append("function")
                words = words[2:]
            elif plain == "{":
                if self.around[-1:] != ["function"]:
                    self.around.append("{")
                words = words[1:]
            elif plain in _BETWEEN:
                words = words[1:]
            else:
                return words
        return words

    def _brackets(self, command: Command) -> None:
        """Subshells: what they set is gone when they end; patterns of `case` end with a parenthesis too."""
        if command.ended_by == "(":
            self.around.append("(")
            arrays = {name: list(values) for name, values in self.variables.arrays.items()}
            self.saved.append((dict(self.variables.scalars), arrays))
        elif command.ended_by == ")" and self.around[-1:] == ["("]:
            self.around.pop()
            self.variables.scalars, self.variables.arrays = self.saved.pop()

    def _simple(self, command: Command, words: list[Word]) -> None:
        if command.ended_by == ")" and self.around[-1:] == ["case"]:
            return  # a pattern
        if words[0].parts and words[0].parts[0].text == "((":
            for found in _CHANGES.finditer(words[0].parts[-1].text):
                name = found.group(1) or found.group(2)
                self._unclear(name, words[0].line, "is changed by arithmetic that is not followed")
            return
        first = _first(words)
        if first in _DECLARING:
            self._declare(words[1:])
        elif all(_assigns(word) for word in words):
            for word in words:
                self._assign(word)
        elif first == "unset" and self.certain:
            for word in words[1:]:
                self.variables.unset(word.plain or "")
        elif first == "read":
            for word in words[1:]:
                if (name := word.plain) and not name.startswith("-"):
                    self._unclear(name, word.line, "is read when the script runs")
        elif first in ("source", "."):
            named = self.variables.shown(" ".join(self.variables.text(word) for word in words[1:]))
            self.script.warn(command.line, f"the file {named} is not read, nor what it sets")
        elif first == "eval":
            text = " ".join(field for word in words[1:] for field in self.variables.fields(word))
            self.read(Lexer(text, None, command.line).commands())
        else:
            self._run(command.line, words)

    def _run(self, line: int, words: list[Word]) -> None:
        while words and _assigns(words[0]):
            name = ASSIGNMENT.match(words[0].parts[0].text)
            words = words[1:]
            if words and name is not None and name.group(1) not in self.variables.scalars:
                reason = "is set for one command only (blanks in a value need quotes)"
                self.variables.mark(name.group(1), line, reason)
        fields = tuple(field for word in words for field in self.variables.fields(word))
        if fields:
            self.script.runs.append(ScriptCommand(line, fields, self.certain))

    def _declare(self, words: list[Word]) -> None:
        for word in words:
            if _assigns(word):
                self._assign(word)

    def _assign(self, word: Word) -> None:
        found = ASSIGNMENT.match(word.parts[0].text)
        assert found is not None
        name, index, adds = found.groups()
        if not self.certain:
            self._assign_maybe(word, name, found.group(), bool(adds))
        elif index is not None:
            self._unclear(name, word.line, "has an element set by itself, which is not followed")
        elif word.items is not None:
            values = [field for item in word.items for field in self.variables.fields(item)]
            scalar = self.variables.scalars.get(name)
            before = self.variables.arrays.get(name, [] if scalar is None else [scalar])
            self.variables.set_array(name, [*before, *values] if adds else values)
        elif adds and name in self.variables.arrays:
            values = list(self.variables.arrays[name]) or [""]
            values[0] += self.variables.text(word, len(found.group()))
            self.variables.set_array(name, values)
        else:
            before_text = (self.variables.get(name) or "") if adds else ""
            self.variables.set(name, before_text + self.variables.text(word, len(found.group())))

    def _assign_maybe(self, word: Word, name: str, head: str, adds: bool) -> None:
        """An assignment in a conditional: what is added is left out, what is replaced is unclear from here on."""
        if word.items is not None:
            value = " ".join(field for item in word.items for field in self.variables.fields(item))
            before = " ".join(self.variables.arrays[name]) if name in self.variables.arrays else None
        else:
            value, before = self.variables.text(word, len(head)), self.variables.get(name)
        if name in self.variables.given or (value == before and not adds):
            return
        shown = self.variables.shown(value)
        if adds:
            self.script.warn(word.line, f"in a conditional, not followed: nothing is added to {name} ({shown})")
        elif before is not None and any(part.argument for part in self.variables.unclear_in(value)):
            self.script.warn(word.line, f"{name} may come from the script's arguments; its value before is taken")
        else:
            self._unclear(name, word.line, f"is set in a conditional, which is not followed (to {shown!r} there)")

    def _unclear(self, name: str, line: int, reason: str) -> None:
        self.variables.set(name, self.variables.mark(name, line, reason))


def _first(words: list[Word]) -> str:
    """The first word, for comparison with names of commands."""
    if not words:
        return ""
    return words[0].plain or (words[0].parts[0].text if words[0].parts else "")


def _assigns(word: Word) -> bool:
    first = word.parts[0] if word.parts else None
    return first is not None and not first.quoted and first.kind == "text" and bool(ASSIGNMENT.match(first.text))
