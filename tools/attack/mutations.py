"""Ways to spoil an input: bytes flipped, cut or doubled, lines in another order, hostile words, numbers and depths."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

Mutation = Callable[[Random, bytes], bytes]

WORDS = (
    *("", "null", "true", "yes", "-", "~", "nan", ".nan", "inf", "-.inf", "1e308", "1e999", "-1", "0", "0.5", "-0"),
    *("1_000", "0x10", "010", "1.2.3", "9" * 400, str(2**63), str(2**31), "1e18", "1000000000000", "2026-01-01"),
    *("[]", "{}", "[[]]", "[1, 2]", "{a: 1}", "{1: 2}", "[null]", "''", '"\\0"', "!!binary aGk=", "!!set {a}", "!x y"),
    *("&a [*a]", "*a", "<<: *a", "? x", "- x", "---", "...", "%YAML 3.0", "| x", "> x", "#", "@", "`", "\t", "\\"),
    *("\x00", "\x1b[2J", "\x1b]0;x\x07", "\x9b2J", "\u202e", "\u2028", "\ud7ff", "\ufeff", "\x7f", "\x85", "é", "🙂"),
    *("$(reboot)", "`reboot`", "${x:=$x}", "$((1/0))", "$((2**99))", "$'\\x1b'", '"""', "<script>", "../../etc/passwd"),
    *("/dev/zero", "-h", "--help", "=1+1", "{0}", "%s", "a" * 5000, "{'x': 1}", "None", "False", "lambda: 0"),
)
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
WORD = re.compile(rb"[^\s,:\[\]{}\"'=()]+")


def _replaced(rng: Random, data: bytes, pattern: re.Pattern[bytes], by: bytes) -> bytes:
    found = list(pattern.finditer(data))
    if not found:
        return data + by
    place = rng.choice(found)
    return data[: place.start()] + by + data[place.end() :]


def flip_bits(rng: Random, data: bytes) -> bytes:
    """Some bits anywhere."""
    spoilt = bytearray(data or b"x")
    for _ in range(rng.choice((1, 1, 3, 20))):
        spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
    return bytes(spoilt)


def hostile_word(rng: Random, data: bytes) -> bytes:
    """A word in place of another."""
    return _replaced(rng, data, WORD, rng.choice(WORDS).encode("utf-8", "surrogatepass"))


def hostile_number(rng: Random, data: bytes) -> bytes:
    """A number, or what is none, in place of a number."""
    number = rng.choice((str(rng.choice((-1, 1)) * 10 ** rng.randrange(30)), str(rng.random()), rng.choice(WORDS)))
    return _replaced(rng, data, NUMBER, number.encode("utf-8", "surrogatepass"))


def another_number(rng: Random, data: bytes) -> bytes:
    """A number near another: what is legal but for one thing."""
    found = list(NUMBER.finditer(data))
    if not found:
        return data
    place = rng.choice(found)
    try:
        value = float(place[0])
        near: list[float | int] = [value + 1, value - 1, value * 2, value / 2, value * 1000, -value]
        near += [int(value) + 1, int(value) * 2, int(value) * 7]
    except (ValueError, OverflowError):
        return data
    return data[: place.start()] + str(rng.choice(near)).encode() + data[place.end() :]


def insert_word(rng: Random, data: bytes) -> bytes:
    """A word anywhere."""
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(WORDS).encode("utf-8", "surrogatepass") + data[at:]


def shuffle_lines(rng: Random, data: bytes) -> bytes:
    """Some neighbouring lines in another order."""
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines) or 1)
    some = lines[at : at + rng.randint(2, 6)]
    rng.shuffle(some)
    return b"".join([*lines[:at], *some, *lines[at + len(some) :]])


def drop_lines(rng: Random, data: bytes) -> bytes:
    """Some lines less."""
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines) or 1)
    return b"".join(lines[:at] + lines[at + rng.randint(1, 3) :])


def repeat_lines(rng: Random, data: bytes) -> bytes:
    """Some lines twice, or many times."""
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines) or 1)
    times = rng.choice((2, 2, 3, 300))
    return b"".join(lines[:at]) + b"".join(lines[at : at + 2]) * times + b"".join(lines[at + 2 :])


def cut_short(rng: Random, data: bytes) -> bytes:
    """Only the beginning, or only the end."""
    at = rng.randint(0, len(data))
    return data[:at] if rng.random() < 0.7 else data[at:]


def nest_deeply(rng: Random, data: bytes) -> bytes:
    """Brackets in brackets where a word was."""
    depth = rng.choice((5, 50, 1000, 20_000))
    first, last = rng.choice(((b"[", b"]"), (b"{a: ", b"}"), (b"(", b")"), (b"$(", b")"), (b"${x:-", b"}")))
    return _replaced(rng, data, WORD, first * depth + last * rng.choice((depth, depth, 0)))


def swap_words(rng: Random, data: bytes) -> bytes:
    """One word of the input in place of another: a known key, a wrong type, a wrong place."""
    found = [place[0] for place in WORD.finditer(data)]
    return _replaced(rng, data, WORD, rng.choice(found)) if found else data


def grow(rng: Random, data: bytes) -> bytes:
    """A line, or a word, that is very long."""
    return _replaced(rng, data, WORD, rng.choice((b"9", b"a", b"a,", b"1 ", b"x: ")) * rng.choice((3000, 100_000)))


MUTATIONS: tuple[Mutation, ...] = (
    *(flip_bits, hostile_word, hostile_word, hostile_number, hostile_number, another_number, another_number),
    *(insert_word, shuffle_lines, drop_lines, repeat_lines, cut_short, nest_deeply, swap_words, swap_words, grow),
)
"""Some stand twice: they reach deeper than what only spoils the syntax."""


def mutated(rng: Random, data: bytes) -> bytes:
    """The input with one to three of these done to it."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(MUTATIONS)(rng, data)
    return data
