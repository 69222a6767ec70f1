"""Runs from before the tuning, as evidence for it: a table of measured runs, as `calibrate` reads it."""

from __future__ import annotations

from dataclasses import dataclass

from cpsolver.evidence.calibrate.observations import ObservedRun, evidence_of
from cpsolver.evidence.posterior.predictions import Observation
from cpsolver.evidence.runs.table import read_runs
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.problem.problem import Problem


@dataclass(frozen=True)
class Earlier:
    """What a table says of a problem's chips and stack, and a word on each row that is left out."""

    observations: tuple[Observation, ...]
    notes: tuple[str, ...]


def read_earlier(path: str, problem: Problem) -> Earlier:
    """The rows of a table with the problem's stack and chips of its own.

    Raises InputError with all that is wrong in the table, where no row is of these chips and this stack, and for chips
    that the spec describes itself: runs are of the catalogue's.
    """
    for name, request in problem.spec.cluster.chips.items():
        if request.spec is not None or request.file is not None:
            message = "has runs on chips of the catalogue, and the spec describes this one itself"
            raise InputError(Trouble("--runs", message, name))
    table = read_runs(path)
    if table.troubles:
        raise InputError(table.troubles)
    found = evidence_of(table)
    mine = [row for row in found.rows if _fits(row, problem)]
    here = f"{' and '.join(problem.chip_names)} with {problem.stack.name}"
    if not mine:
        there = sorted({" with ".join(row.group) for row in found.rows})
        message = f"has no run on {here} that can be learnt from"
        raise InputError(Trouble("--runs", message, path, f"such runs; it has: {'; '.join(there) or 'none'}"))
    others = [row.run.id for row in found.rows if row not in mine]
    notes = [f"{path}: {', '.join(ids)}: left out, {reason}" for reason, ids in found.left_out.items()]
    notes += [f"{path}: {', '.join(others)}: left out, not on {here}"] if others else []
    return Earlier(tuple(row.observation for row in mine), tuple(notes))


def _fits(row: ObservedRun, problem: Problem) -> bool:
    chip, stack = row.group
    return chip in problem.chip_names and stack == problem.stack.name
