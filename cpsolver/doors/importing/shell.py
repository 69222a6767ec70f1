"""Reads a script from top to bottom: does its assignments, collects its commands, and does not follow conditionals."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cpsolver.doors.importing.lexer import Command, Lexer, Word, assignment_head
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
    """A command that the script would run, its words expanded. `certain`: it is in no conditional and no function."""

    line: int
    words: tuple[str, ...]
    certain: bool


@dataclass
class Script:
    """What reading a script gave. A warning names something that was not followed, and its line."""

    variables: ShellVariables
    commands: list[ScriptCommand] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def warn(self, line: int, message: str) -> None:
        """Note something that was not followed, once."""
        text = f"line {line}: {message}"
        if text not in self.warnings:
            self.warnings.append(text)


def read_script(text: str, file: str | None, given: dict[str, str]) -> Script:
    """Read a script. `given` are values of variables that the user fixed: what the script sets them to does not count.

    Raises InputError for text that is no shell script (quotes or brackets that never close).
    """
    script = Script(ShellVariables(dict(given)))
    try:
        _ScriptReader(script).read(Lexer(text, file).commands())
    except RecursionError:
        raise InputError(Trouble("", "calls itself, or is nested too deeply, to be followed", file=file)) from None
    return script


class _ScriptReader:
    """Goes through the commands of a script. `constructs` are those open at the current command, outermost first."""

    def __init__(self, script: Script) -> None:
        self.script, self.variables = script, script.variables
        self.constructs: list[str] = []
        self.saved_variables: list[tuple[dict[str, str], dict[str, list[str]]]] = []
        self.previous: tuple[str, str] = ("", "")  # first word of the last command, and the operator that ended it

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
            self.previous = (first, command.ended_by)

    @property
    def certain(self) -> bool:
        """Whether the command at hand runs in any case: no conditional, loop or function decides it."""
        if any(name not in ("{", "(") for name in self.constructs):
            return False
        previous, operator = self.previous
        return operator != "||" and not (operator == "&&" and previous in _TESTS)

    def _function(self, command: Command, following: Command | None) -> bool:
        """Whether the command is the head of a function, `name ()`, whose body is in the braces that follow."""
        named = len(command.words) == 1 and command.ended_by == "("
        if named and following is not None and not following.words and following.ended_by == ")":
            self.constructs.append("function")
            return True
        return not command.words and command.ended_by == ")" and self.constructs[-1:] == ["function"]

    def _constructs(self, words: list[Word]) -> list[Word]:
        """Open and close constructs by the reserved words of a command; returns its other words."""
        while words:
            plain = words[0].plain
            if plain in _OPENING:
                self.constructs.append(plain)
                if plain in ("for", "select") and len(words) > 1 and (name := words[1].plain):
                    self._unclear(name, words[1].line, "is the variable of a loop")
                return []
            if plain in _CLOSING or plain == "}":
                if self.constructs:
                    self.constructs.pop()
                return []
            if plain == "elif":
                return []
            if plain == "function":
                self.constructs.append("function")
                words = words[2:]
            elif plain == "{":
                if self.constructs[-1:] != ["function"]:
                    self.constructs.append("{")
                words = words[1:]
            elif plain in _BETWEEN:
                words = words[1:]
            else:
                return words
        return words

    def _brackets(self, command: Command) -> None:
        """Open and close subshells. What they set is undone at their end. (A pattern of `case` ends with `)` too.)"""
        if command.ended_by == "(":
            self.constructs.append("(")
            arrays = {name: list(values) for name, values in self.variables.arrays.items()}
            self.saved_variables.append((dict(self.variables.scalars), arrays))
        elif command.ended_by == ")" and self.constructs[-1:] == ["("]:
            self.constructs.pop()
            self.variables.scalars, self.variables.arrays = self.saved_variables.pop()

    def _simple(self, command: Command, words: list[Word]) -> None:
        if command.ended_by == ")" and self.constructs[-1:] == ["case"]:
            return  # a pattern
        if words[0].parts and words[0].parts[0].text == "((":
            for change in _CHANGES.finditer(words[0].parts[-1].text):
                name = change.group(1) or change.group(2)
                self._unclear(name, words[0].line, "is changed by arithmetic that is not followed")
            return
        first = _first(words)
        if first in _DECLARING:
            self._assign(words[1:])
        elif all(assignment_head(word) for word in words):
            self._assign(words)
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
        while words and (head := assignment_head(words[0])):
            words = words[1:]
            if words and head.group(1) not in self.variables.scalars:
                reason = "is set for one command only (blanks in a value need quotes)"
                self.variables.mark(head.group(1), line, reason)
        fields = tuple(field for word in words for field in self.variables.fields(word))
        if fields:
            self.script.commands.append(ScriptCommand(line, fields, self.certain))

    def _assign(self, words: list[Word]) -> None:
        """Do the assignments among the words."""
        for word in words:
            if head := assignment_head(word):
                self._assign_one(word, head)

    def _assign_one(self, word: Word, head: re.Match[str]) -> None:
        name, index, adds = head.groups()
        if not self.certain:
            self._assign_maybe(word, name, head.group(), bool(adds))
        elif index is not None:
            self._unclear(name, word.line, "has an element set by itself, which is not followed")
        elif word.items is not None:
            values = [field for item in word.items for field in self.variables.fields(item)]
            scalar = self.variables.scalars.get(name)
            elements = self.variables.arrays.get(name, [] if scalar is None else [scalar])
            self.variables.set_array(name, [*elements, *values] if adds else values)
        elif adds and name in self.variables.arrays:
            values = list(self.variables.arrays[name]) or [""]
            values[0] += self.variables.text(word, len(head.group()))
            self.variables.set_array(name, values)
        else:
            prefix = (self.variables.get(name) or "") if adds else ""
            self.variables.set(name, prefix + self.variables.text(word, len(head.group())))

    def _assign_maybe(self, word: Word, name: str, head: str, adds: bool) -> None:
        """An assignment in a conditional: an addition is left out, and a replaced value is unclear from here on."""
        if word.items is not None:
            value = " ".join(field for item in word.items for field in self.variables.fields(item))
            current = " ".join(self.variables.arrays[name]) if name in self.variables.arrays else None
        else:
            value, current = self.variables.text(word, len(head)), self.variables.get(name)
        if name in self.variables.given or (value == current and not adds):
            return
        shown = self.variables.shown(value)
        if adds:
            self.script.warn(word.line, f"in a conditional, not followed: nothing is added to {name} ({shown})")
        elif current is not None and any(part.argument for part in self.variables.unclear_in(value)):
            self.script.warn(word.line, f"{name} may come from the script's arguments; its value before is taken")
        else:
            self._unclear(name, word.line, f"is set in a conditional, which is not followed (to {shown!r} there)")

    def _unclear(self, name: str, line: int, reason: str) -> None:
        self.variables.set(name, self.variables.mark(name, line, reason))


def _first(words: list[Word]) -> str:
    """The first word, to compare with names of commands."""
    if not words:
        return ""
    return words[0].plain or (words[0].parts[0].text if words[0].parts else "")
