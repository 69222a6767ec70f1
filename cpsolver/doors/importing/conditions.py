"""Conditions of the shell: `[ ]`, `test` and `[[ ]]`, by bash's manual ("Bash Conditional Expressions").

A condition holds (True), does not (False), or cannot be decided by reading (None): files, unclear values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from cpsolver.doors.importing.grammar import Block, Condition, Simple
from cpsolver.doors.importing.lexer import Word, WordPart
from cpsolver.doors.importing.patterns import extended_regex, glob_regex
from cpsolver.doors.importing.variables import ShellVariables
from cpsolver.inputs.language import say

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
}
_BINARY = ("=", "==", "!=", "=~", "<", ">", "-nt", "-ot", "-ef", *_NUMBERS)
_FILES = frozenset(f"-{letter}" for letter in "abcdefghkprstuwxGLNOS")
_LONGEST_SEARCHED = 400
"""Letters of a text that a regular expression is held against."""
_UNARY = frozenset(("-z", "-n", "-v", "-o", "-R")) | _FILES


def all_of(first: bool | None, second: bool | None) -> bool | None:
    """Whether both hold."""
    return False if first is False or second is False else None if first is None or second is None else True


def negated(value: bool | None) -> bool | None:
    """Whether it does not hold."""
    return None if value is None else not value


def holds_test(words: Sequence[str], variables: ShellVariables) -> bool | None:
    """Whether `[ words ]` holds, by the number of its words as POSIX has it."""
    if any(variables.unclear_in(word) for word in words):
        return None
    match list(words):
        case []:
            return False
        case [text]:
            return text != ""
        case ["!", *rest] if len(rest) < 3 or (len(rest) == 3 and words[2] not in _BINARY):
            return negated(holds_test(rest, variables))
        case [operator, text]:
            return _unary(operator, text, variables) if operator in _UNARY else None
        case [left, operator, right] if operator in _BINARY:
            return _compared(left, operator, right)
        case [first, "-a" | "-o" as operator, second]:
            return (first != "" and second != "") if operator == "-a" else (first != "" or second != "")
        case ["(", text, ")"]:
            return text != ""
        case ["!", *rest] if len(rest) == 3:
            return negated(holds_test(rest, variables))
    return _joined(list(words), variables)


def _joined(words: list[str], variables: ShellVariables) -> bool | None:
    """Tests joined by -o and -a, the tighter one, without parentheses."""
    if "(" in words or ")" in words or "!" in words:
        return None
    for operator in ("-o", "-a"):
        if operator in words:
            at = words.index(operator)
            before, after = words[:at], words[at + 1 :]
            if len(before) not in (1, 2, 3, 7, 11) or not after:
                return None
            left, right = holds_test(before, variables), holds_test(after, variables)
            if operator == "-a":
                return all_of(left, right)
            return negated(all_of(negated(left), negated(right)))
    return None


def _unary(operator: str, text: str, variables: ShellVariables) -> bool | None:
    if operator == "-v":
        return variables.is_set(text)
    if operator in ("-z", "-n"):
        return (text == "") == (operator == "-z")
    return False if operator in _FILES and text == "" else None


def _compared(left: str, operator: str, right: str) -> bool | None:
    """A comparison of two texts as `[ ]` makes it."""
    if operator in ("=", "=="):
        return left == right
    if operator == "!=":
        return left != right
    if operator in _NUMBERS and all(re.fullmatch(r"\s*[-+]?\d{1,18}\s*", text) for text in (left, right)):
        return _NUMBERS[operator](int(left), int(right))
    return None  # files, an order that depends on the language, or an error


def asked_empty(condition: Block) -> str | None:
    """The variable of which a condition asks that alone whether it is empty, `[ -z "$NAME" ]`; None for any other."""
    (node, *others) = condition
    if others or not isinstance(node, Simple | Condition):
        return None
    words = [word.plain or word for word in node.words]
    if isinstance(node, Simple):
        if words[0] not in ("[", "test"):
            return None
        words = words[1:-1] if words[0] == "[" else words[1:]
    match words:
        case ["-z", Word(parts=[WordPart(kind="variable", text=name)])] if name.isidentifier():
            return name
    return None


def holds_condition(condition: Condition, variables: ShellVariables) -> bool | None:
    """Whether `[[ ... ]]` holds; None too where it is not followed."""
    reader = _ConditionReader(list(condition.words), variables)
    value = reader.any_of()
    return None if reader.words else value


class _ConditionReader:
    """Recursive descent over the words of `[[ ]]`; `words` are those that are left."""

    def __init__(self, words: list[Word], variables: ShellVariables) -> None:
        self.words, self.variables = words, variables

    def any_of(self) -> bool | None:
        value = self._every()
        while self._take("||"):
            value = negated(all_of(negated(value), negated(self._every())))
        return value

    def _every(self) -> bool | None:
        value = self._one()
        while self._take("&&"):
            value = all_of(value, self._one())
        return value

    def _one(self) -> bool | None:
        if self._take("!"):
            return negated(self._one())
        if self._take("("):
            value = self.any_of()
            if self._take(")"):
                return value
            self._give_up()
            return None
        if not self.words:
            self._give_up()
            return None
        first = self.words.pop(0)
        operator = self.words[0].plain if self.words else None
        if first.plain in _UNARY and self.words and operator not in ("&&", "||", ")", *_BINARY):
            text = self.variables.text(self.words.pop(0))
            return None if self.variables.unclear_in(text) else _unary(str(first.plain), text, self.variables)
        if operator in _BINARY and len(self.words) > 1:
            self.words.pop(0)
            return self._compare(self.variables.text(first), str(operator), self.words.pop(0))
        text = self.variables.text(first)
        return None if self.variables.unclear_in(text) else text != ""

    def _compare(self, left: str, operator: str, right: Word) -> bool | None:
        text = self.variables.text(right)
        if operator == "=~":
            self.variables.set("BASH_REMATCH", self.variables.mark("BASH_REMATCH", right.line, say("is not followed")))
        if self.variables.unclear_in(left + text):
            return None
        if operator in _NUMBERS:
            numbers = [self.variables.arithmetic(side, right.line) for side in (left, text)]
            return None if any(map(self.variables.unclear_in, numbers)) else _NUMBERS[operator](*map(int, numbers))
        pieces = self.variables.pieces(right)
        if operator == "=~":
            expression = extended_regex(pieces)
            known = expression is not None and len(left) <= _LONGEST_SEARCHED
            return expression.search(left) is not None if known and expression is not None else None
        if operator in ("=", "==", "!="):
            pattern = glob_regex(pieces)
            return None if pattern is None else (pattern.fullmatch(left) is not None) == (operator != "!=")
        return None

    def _take(self, word: str) -> bool:
        if self.words and self.words[0].plain == word:
            self.words.pop(0)
            return True
        return False

    def _give_up(self) -> None:
        self.words.append(Word(0))  # what is left over makes it undecided
