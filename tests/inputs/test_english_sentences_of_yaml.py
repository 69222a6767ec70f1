"""What the YAML parser says of broken texts is said in Chinese too, and in English as it says it."""

from __future__ import annotations

import re

import pytest

from cpsolver.inputs.document import parse_yaml
from cpsolver.inputs.errors import InputError
from cpsolver.inputs.language import CHINESE, ENGLISH, say, speaking

BROKEN = (
    "a: {b: 1\nc: d: e",
    "a: [1, 2\nb: 3",
    "a: *x",
    'a: "x',
    "a: 'x",
    "a: %b",
    "a: @b",
    "a: |x\n b",
    "a: |0\n b",
    'a: "\\y"',
    'a: "\\x1"',
    "a: !x!y z",
    "a:\n- b\n c: d",
    "a: - b",
    "? a\n? b: ? c",
    "[a, b",
    "a: [b, }",
    "a\nb: c",
    "a: &",
    "%x\n",
    "a: \x01",
    "- a\nb: c",
    "a: [b]c",
)


def told(text: str, language: str) -> str:
    with speaking(language), pytest.raises(InputError) as wrong:
        parse_yaml(text)
    with speaking(language):
        return "; ".join(say(trouble.message) for trouble in wrong.value.troubles)


@pytest.mark.parametrize("text", BROKEN)
def test_it_is_said_in_chinese(text: str) -> None:
    english, chinese = told(text, ENGLISH), told(text, CHINESE)
    assert not re.search("[一-鿿]", english)
    assert re.search("[一-鿿]", chinese)
    assert not re.search(r"\b(expected|found|while|not|is|end|are)\b", re.sub(r"<[\w ]+>|'[^']*'", "", chinese)), (
        chinese
    )
