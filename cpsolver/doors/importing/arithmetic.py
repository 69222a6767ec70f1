"""Shell arithmetic, `$((...))`: whole numbers of 64 bits, operators and precedence as in C."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

from cpsolver.inputs.language import say

_TOKEN = re.compile(r"\s*(0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*|\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%()<>&|^~!?:])")
_LEVELS: tuple[tuple[str, ...], ...] = (
    *(("||",), ("&&",), ("|",), ("^",), ("&",)),
    *(("==", "!="), ("<=", ">=", "<", ">"), ("<<", ">>"), ("+", "-"), ("*", "/", "%")),
)
"""Binary operators from the loosest to the tightest. ** is tighter than all of them, and groups to the right."""
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "||": lambda a, b: int(bool(a or b)),
    "&&": lambda a, b: int(bool(a and b)),
    "<<": lambda a, b: a << (b & 63),
    ">>": lambda a, b: a >> (b & 63),
}
_OPERATORS |= {"|": operator.or_, "^": operator.xor, "&": operator.and_}
_OPERATORS |= {"==": operator.eq, "!=": operator.ne, "<=": operator.le}
_OPERATORS |= {">=": operator.ge, "<": operator.lt, ">": operator.gt}
_OPERATORS |= {"+": operator.add, "-": operator.sub, "*": operator.mul}


class ArithmeticUnclearError(Exception):
    """An expression that cannot be evaluated here; the text says why."""


def evaluate(text: str, value_of: Callable[[str], int]) -> int:
    """The value of an expression; `value_of` gives a variable's. Raises ArithmeticUnclearError."""
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ArithmeticUnclearError(say("{text!r} is not followed in arithmetic", text=text[at:].strip()))
        tokens.append(match.group(1))
        at = match.end()
    if not tokens:
        return 0
    reader = _ExpressionParser(tokens, value_of)
    value = reader.choice()
    if reader.tokens:
        raise ArithmeticUnclearError(say("{token!r} is not followed in arithmetic", token=reader.tokens[0]))
    return value


class _ExpressionParser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, tokens: list[str], value_of: Callable[[str], int]) -> None:
        self.tokens, self.value_of = tokens, value_of

    def choice(self) -> int:
        condition = self._binary(0)
        if not self._take("?"):
            return condition
        first = self.choice()
        self._need(":")
        second = self.choice()
        return first if condition else second

    def _binary(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._power()
        left = self._binary(level + 1)
        while self.tokens and self.tokens[0] in _LEVELS[level]:
            left = _applied(self.tokens.pop(0), left, self._binary(level + 1))
        return left

    def _power(self) -> int:
        base = self._unary()
        if not self._take("**"):
            return base
        exponent = self._power()
        if not 0 <= exponent <= 63:
            raise ArithmeticUnclearError(say("exponent {exponent} is not between 0 and 63", exponent=exponent))
        return _wrapped(base**exponent)

    def _unary(self) -> int:
        if not self.tokens:
            raise ArithmeticUnclearError(say("the expression ends too early"))
        token = self.tokens.pop(0)
        if token in ("-", "+", "!", "~"):
            value = self._unary()
            return {"-": -value, "+": value, "!": int(value == 0), "~": ~value}[token]
        if token == "(":
            value = self.choice()
            self._need(")")
            return value
        if token[0].isdigit():
            return _number(token)
        if token[0].isalpha() or token[0] == "_":
            return self.value_of(token)
        raise ArithmeticUnclearError(say("{token!r} is not followed in arithmetic", token=token))

    def _take(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False

    def _need(self, token: str) -> None:
        if not self._take(token):
            raise ArithmeticUnclearError(say("{token!r} is missing in arithmetic", token=token))


def _number(token: str) -> int:
    """A number in C's notation: 0x hexadecimal, a leading 0 octal."""
    base = 16 if token[:2].lower() == "0x" else 8 if token[0] == "0" and len(token) > 1 else 10
    try:
        return _wrapped(int(token, base))
    except ValueError:
        raise ArithmeticUnclearError(say("{token!r} is no octal number", token=token)) from None


def _applied(symbol: str, left: int, right: int) -> int:
    if symbol not in ("/", "%"):
        return _wrapped(int(_OPERATORS[symbol](left, right)))
    if right == 0:
        raise ArithmeticUnclearError(say("division by 0"))
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return _wrapped(quotient if symbol == "/" else left - right * quotient)


def _wrapped(value: int) -> int:
    """The value in 64 bits with sign."""
    return (value + 2**63) % 2**64 - 2**63
