"""All that comes of a table of runs: the belief, how it would have done on each run, what speaks against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cpsolver.evidence.calibrate.checks import (
    contradictions,
    fitting,
    implausible,
    nothing_learnt,
    too_few,
    unexplained,
)
from cpsolver.evidence.calibrate.memory import RanOut, Reading, memory_left_out, ran_out
from cpsolver.evidence.calibrate.rows import Error, Told, error_of, told_of
from cpsolver.evidence.calibrate.runs import Evidence
from cpsolver.evidence.posterior.constants import uncertain_constants
from cpsolver.evidence.posterior.misfit import load_spread
from cpsolver.evidence.posterior.posterior import Belief, learn
from cpsolver.evidence.posterior.predictions import Lineariser
from cpsolver.inputs.errors import InputError, Trouble

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Lesson:
    """What was learnt from the runs of `file`. `told`: of each run with a step time; `doubts`: reasons to refuse."""

    file: str
    evidence: Evidence
    belief: Belief
    told: tuple[Told, ...]
    readings: tuple[Reading, ...]
    ran_out: tuple[RanOut, ...]
    doubts: tuple[Trouble, ...]

    @property
    def error(self) -> Error:
        """Over all runs with a step time."""
        return error_of(self.told)

    @cached_property
    def groups(self) -> dict[tuple[str, str], tuple[Told, ...]]:
        """The runs with a step time of every chip and stack."""
        found: dict[tuple[str, str], list[Told]] = {}
        for each in self.told:
            found.setdefault(each.row.group, []).append(each)
        return {group: tuple(told) for group, told in found.items()}


def learn_from(evidence: Evidence, file: str, on_progress: OnProgress | None = None) -> Lesson:
    """Learn from all rows, doubtful or not. `on_progress`: runs done, and how many there are.

    Raises InputError where no row has a step time.
    """
    if not evidence.timed:
        raise InputError(Trouble("", "none of its runs has a step time that can be learnt from", file=file))
    seen = [row.seen for row in evidence.rows]
    constants = uncertain_constants(each.place.problem for each in seen)
    lineariser = Lineariser(tuple(each for each in constants if each.kind != "memory"))
    for done, row in enumerate(evidence.timed, 1):  # what takes longest; `learn` goes on from there
        lineariser([row.seen.place], np.zeros(len(lineariser.constants)))
        if on_progress is not None:
            on_progress(done, len(evidence.timed))
    belief = learn(seen, lineariser=lineariser)
    told = told_of(belief, evidence.timed)
    found = error_of(told)
    short = ran_out(belief)
    doubts = (
        *too_few(evidence, file),
        *contradictions(evidence, load_spread(), file),
        *unexplained(told, file),
        *implausible(belief, sds_before(belief), file),
        *fitting(short, load_spread(), file),
        *nothing_learnt(found.before, found.after, file),
    )
    return Lesson(file, evidence, belief, told, memory_left_out(belief), short, doubts)


def sds_before(belief: Belief) -> list[float]:
    """Standard deviation of each constant's position without runs."""
    count = len(belief.times.prior)
    return [*map(float, belief.times.prior), *[1.0] * (len(belief.constants) - count)]
