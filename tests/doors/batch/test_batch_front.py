"""Days and dollars of a sweep: the front, the winner, and dollars at every width."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from cpsolver.doors.batch.cases import make_cases
from cpsolver.doors.batch.files import document
from cpsolver.doors.batch.front import Job, jobs_of, winner_words
from cpsolver.doors.batch.page import sweep_page
from cpsolver.doors.batch.rows import new_row
from cpsolver.doors.batch.summary import summary
from tests.support.batch_sweeps import POINTS, TIMED, answer, sweep_of
from tests.support.command import in_tmp

__all__ = ["in_tmp"]


def job(*arguments: Any) -> Job:
    (found,) = jobs_of(answer(*arguments).done)
    return found


def test_the_front_is_what_no_other_beats_in_both() -> None:
    found = job()
    assert [POINTS[cell] for cell in found.front] == [(14.0, 190e3), (25.0, 140e3), (44.0, 110e3), (80.0, 100e3)]
    assert found.winner == 0  # without a deadline the cheapest
    for one, (days, dollars) in enumerate(POINTS):  # by the definition
        beaten = any(d <= days and c <= dollars and (d, c) != (days, dollars) for d, c in POINTS)
        assert (one in found.front) == (not beaten)


def test_equal_cells_are_both_on_the_front() -> None:
    assert job((None,) * 5, ((10.0, 5.0),) * 5).front == (0, 1, 2, 3, 4)


def test_the_winner_is_the_cheapest_that_is_as_likely_as_not_in_time() -> None:
    found = job((0.01, 0.49, 0.7, 0.8, 0.99))
    assert found.winner == 3
    assert winner_words(found) == ("Winner: 64, the fewest dollars of those at least as likely as not in time.")
    late = job((0.1,) * 5)
    assert late.winner is None
    assert winner_words(late) == "Winner: none, for no cell is as likely as not in time."


def test_other_tokens_are_another_job() -> None:
    both = TIMED + "grid: {training.tokens: [1.0e+12, 2.0e+12], cluster.num_gpus: [16, 32]}"
    cases = make_cases(sweep_of(both))
    rows = [new_row(case) | {"days": 1.0, "dollars": float(place)} for place, case in enumerate(cases)]
    found = jobs_of(list(zip(cases, rows, strict=True)))
    assert [(one.tokens, one.places) for one in found] == [(1e12, (0, 1)), (2e12, (2, 3))]


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_dollars_are_told_at_every_width(width: int) -> None:
    console = Console(file=StringIO(), width=width)
    console.print(summary(answer((0.01, 0.49, 0.7, 0.8, 0.99))))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for part in ("no other cell is both sooner and cheaper", "$140 k", "$126 k–$168 k", "49 %", "Winner: 64"):
        assert part in text
    assert text.count("$140 k") == 2  # on the front, and in the table of cells
    assert text.count("$150 k") == 1  # of the cell that is beaten
    assert "tokens/s per $/h" in text


def test_the_document_has_the_front() -> None:
    places = document(answer())["fronts"]
    front = {"front": [4, 3, 1, 0], "winner": 0}
    assert places == [{"model": "llama2-7b", "tokens": 1e12, "sequence_length": 4096, **front}]


def test_jobs_that_differ_in_their_sequences_alone_are_told_apart() -> None:
    cases = make_cases(sweep_of(TIMED + "grid: {training.sequence_length: [4096, 8192]}"))
    figures = {"days": 1.0, "days_low": 1.0, "days_high": 1.0, "dollars": 5.0, "dollars_low": 5.0, "dollars_high": 5.0}
    rows = [new_row(case) | figures | {"devices": 32, "status": "optimal"} for case in cases]
    whole = answer()
    both = replace(whole, cases=tuple(cases), rows=tuple(rows))
    console = Console(file=StringIO(), width=100)
    console.print(summary(both))
    assert isinstance(console.file, StringIO)
    for length, name in (("4,096", "4096"), ("8,192", "8192")):
        assert f"llama2-7b, sequences of {length}, 1e+12 tokens\n" in console.file.getvalue()
        assert f"llama2-7b, sequences of {length}: Winner: {name}, the fewest dollars." in sweep_page(both).notes
