"""How far a search is, told to whoever shows it."""

from __future__ import annotations

import math

from cpsolver.doors.report.progress import Telling
from cpsolver.inputs.language import CHINESE, speaking
from cpsolver.search.result import Progress


def heard(language: str) -> list[str]:
    told: list[str] = []
    display = Telling(told.append)
    with speaking(language):
        with display.searching() as listen:
            listen(Progress(1.0, math.inf, 0, 1200, 0, ""))
            listen(Progress(2.0, 3.0, 1, 5, 0, ""))
            listen(Progress(3.0, 3.0, 1, 5, 0, ""))
        with display.waiting("why"), display.counting("changes") as count:
            count(2, 5)
    return told


def test_events_of_a_search_become_texts() -> None:
    told = heard("en")
    assert told[:2] == ["listing the candidates", "no plan yet, 1,200 candidates open"]
    assert told[2].startswith("50 % proven")
    assert told[3:] == [
        "best 3 s, proven; looking for the next best", "why", "changes", "changes: 2 of 5 done",
    ]  # fmt: skip


def test_they_are_in_the_language_spoken() -> None:
    assert heard(CHINESE)[-1] == "changes：已完成 2 / 5"
