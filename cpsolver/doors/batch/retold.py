"""What is kept in English, told again in the language spoken: why a cell has no answer, how a size differs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cpsolver.doors.batch.cases import SweepCase
from cpsolver.doors.batch.on_ray import RAY_FAILURES
from cpsolver.doors.batch.pool import FAILURES
from cpsolver.doors.batch.rows import Row
from cpsolver.inputs.language import ENGLISH, say, spoken

_FIELD = re.compile(r"\\\{(\w+)\\\}")


def retold(text: str, messages: Sequence[str]) -> str:
    """The text, which one of the messages has become with its fields filled, in the language spoken."""
    for message in messages if spoken() != ENGLISH else ():
        if found := re.fullmatch(_FIELD.sub(r"(?P<\1>.+?)", re.escape(message)), text, re.DOTALL):
            return say(message, **found.groupdict())
    return text


def error_text(case: SweepCase, row: Row) -> str | None:
    """What is wrong with a cell's spec, or what went wrong when it was solved."""
    error = row["error"]
    if error is None or error == case.error:
        return case.told
    return retold(error, (*FAILURES, *RAY_FAILURES))
