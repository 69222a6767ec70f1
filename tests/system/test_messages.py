"""The catalogue of the program's messages is in step with the code, and has every field of the English."""

from __future__ import annotations

from cpsolver.inputs.language import CHINESE, say, speaking
from cpsolver.inputs.text import plural
from tools.messages import fields, lagging


def test_every_message_has_its_chinese() -> None:
    assert list(lagging()) == []


def test_fields_are_compared_with_their_formats() -> None:
    assert fields("{a:,} of {b}") == fields("{b} 中的 {a:,}") != fields("{a} of {b}")


def test_a_message_that_the_catalogue_lacks_is_said_in_english() -> None:
    with speaking(CHINESE):
        assert say("{what} that nobody says", what="a message") == "a message that nobody says"
        assert (say(""), plural(2, "plan")) == ("", "2 个方案")
