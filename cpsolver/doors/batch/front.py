"""Which cells of a sweep are worth a choice: those that no other beats in both days and dollars, and the winner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpsolver.doors.batch.lines import Done
from cpsolver.doors.batch.rows import Row
from cpsolver.doors.report.outlook import MeanRange, Outlook, weighed
from cpsolver.inputs.language import say


@dataclass(frozen=True)
class Job:
    """Cells that train one model on the same tokens in sequences of one length, of known days and dollars.

    Only these can be weighed. `places`: where they stand among the sweep's. `front`: places in `cells` that no other
    beats, the soonest first. `winner`: the cheapest of those that are as likely as not in time, or of all without a
    deadline; None: none is.
    """

    model: str
    tokens: float
    sequence_length: int
    cells: tuple[Done, ...]
    places: tuple[int, ...]
    front: tuple[int, ...]
    winner: int | None

    @property
    def task(self) -> str:
        """What its cells train."""
        return task_words(self.model, self.sequence_length)


def task_words(model: str, sequence_length: int) -> str:
    """A model and how long its sequences are: what tells the jobs of a sweep apart."""
    return model + say(", sequences of {tokens:,}", tokens=sequence_length)


def jobs_of(done: Sequence[Done]) -> list[Job]:
    """The sweep's jobs, in the order of their first cells."""
    found: dict[tuple[str, float, int], list[int]] = {}
    for place, (case, row) in enumerate(done):
        tokens = None if case.problem is None else case.problem.spec.tokens
        if tokens is not None and row["days"] is not None and row["dollars"] is not None:
            found.setdefault((row["model"], tokens, row["sequence_length"]), []).append(place)
    return [
        Job(
            model,
            tokens,
            sequence,
            tuple(done[place] for place in places),
            tuple(places),
            *weighed([_outlook(done[p][1]) for p in places]),
        )
        for (model, tokens, sequence), places in found.items()
    ]


def _outlook(row: Row) -> Outlook:
    """A row's days, dollars and chance of being in time."""
    days, dollars = (MeanRange(row[f"{name}_low"], row[name], row[f"{name}_high"]) for name in ("days", "dollars"))
    return Outlook(days, dollars, row["deadline_probability"])


def winner_words(job: Job) -> str:
    """What makes the winner one; that there is none."""
    timed = any(row["deadline_probability"] is not None for _, row in job.cells)
    if job.winner is None:
        return say("Winner: none, for no cell is as likely as not in time.")
    return winner_line(job.cells[job.winner][0].cell.name, timed)


def winner_line(name: str, timed: bool) -> str:
    """The winner and why it is; `timed`: of those in time."""
    if timed:
        return say("Winner: {name}, the fewest dollars of those at least as likely as not in time.", name=name)
    return say("Winner: {name}, the fewest dollars.", name=name)


def fronts_document(done: Sequence[Done]) -> list[dict[str, Any]]:
    """The jobs in JSON's terms: places of cells in the list of all."""
    return [
        {
            "model": job.model,
            "tokens": job.tokens,
            "sequence_length": job.sequence_length,
            "front": [job.places[cell] for cell in job.front],
            "winner": None if job.winner is None else job.places[job.winner],
        }
        for job in jobs_of(done)
    ]
