"""What is kept in English, told again in the language spoken: why a cell has no answer, how a size differs."""

from __future__ import annotations

from collections.abc import Sequence

from cpsolver.doors.batch.cases import SweepCase
from cpsolver.doors.batch.on_ray import RAY_FAILURES
from cpsolver.doors.batch.pool import FAILURES
from cpsolver.doors.batch.rows import Row
from cpsolver.inputs.language import ENGLISH, filled_from, say, spoken


def retold(text: str, messages: Sequence[str]) -> str:
    """The text, which one of the messages has become with its fields filled, in the language spoken."""
    found = None if spoken() == ENGLISH else filled_from(text, messages)
    return text if found is None else say(found[0], **found[1])


def error_text(case: SweepCase, row: Row) -> str | None:
    """What is wrong with a cell's spec, or what went wrong when it was solved."""
    error = row["error"]
    if error is None or error == case.error:
        return case.told
    return retold(error, (*FAILURES, *RAY_FAILURES))
