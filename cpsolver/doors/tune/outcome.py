"""How a trial went, from how its command ended and what its log says."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from cpsolver.doors.tune.logs import LogReading, enough_iterations, looked_for
from cpsolver.doors.tune.runner import Ending
from cpsolver.doors.tune.trial import Outcome, TrialMemory
from cpsolver.inputs.errors import one_line

ENDED_BY = {"interrupted": "ended by Ctrl-C", "signal": "ended by a signal, as schedulers send it,"}
_CHANGING = re.compile(r"/\S+|\d+")


@dataclass(frozen=True)
class Verdict:
    """What is recorded of a trial when it is over; fields as in Trial."""

    outcome: Outcome
    note: str
    step_time_s: float | None = None
    peak_memory_gib: float | None = None
    memory_kind: TrialMemory | None = None
    seconds: float | None = None
    iterations: int = 0
    spread: float | None = None


def judge(ending: Ending, reading: LogReading, log: Path) -> Verdict:
    """The verdict on a trial whose command is over."""
    outcome, told = _outcome(ending, reading, log)
    timed = outcome in ("ok", "timeout", "interrupted") and reading.step_time_s is not None and reading.wrong is None
    timed = timed and (outcome == "ok" or reading.iterations >= enough_iterations())
    notes = "; ".join((*filter(None, [told]), *(reading.notes if timed else ())))
    return Verdict(
        outcome=outcome,
        note=one_line(notes),  # a log may hold what commands a terminal
        step_time_s=reading.step_time_s if timed else None,
        peak_memory_gib=None if outcome == "failed" else reading.peak_memory_gib,
        memory_kind=None if outcome == "failed" else reading.memory_kind,
        seconds=ending.seconds,
        iterations=reading.iterations if timed else 0,
        spread=reading.spread if timed else None,
    )


def failure_kind(note: str) -> str:
    """Failures of the same kind have the same text: their note without numbers and paths."""
    return _CHANGING.sub("#", note)


def _outcome(ending: Ending, reading: LogReading, log: Path) -> tuple[Outcome, str]:
    many = _measured_iterations(reading)
    if ending.error is not None:
        return "failed", f"not started: {ending.error}"
    if ending.lost is not None:
        return "interrupted", ending.lost
    if ending.ended in ENDED_BY:
        return "interrupted", f"{ENDED_BY[ending.ended]} after {many}"
    if reading.out_of_memory is not None and ending.code != 0 and ending.ended != "enough":
        return "oom", reading.out_of_memory
    if ending.ended == "timeout":
        return "timeout", f"ended at its time limit after {many}"
    if reading.wrong is not None:
        return "failed", reading.wrong
    if ending.ended == "enough":
        return "ok", f"ended after {many}, which {'was' if reading.iterations == 1 else 'were'} asked for"
    if ending.code == 0:
        return _ended_well(reading, log)
    return _ended_badly(ending, reading, log)


def _measured_iterations(reading: LogReading) -> str:
    """How many were measured, in the words of a state (`state_notes.KEPT`)."""
    return "1 measured iteration" if reading.iterations == 1 else f"{reading.iterations} measured iterations"


def _ended_well(reading: LogReading, log: Path) -> tuple[Outcome, str]:
    if reading.step_time_s is not None:
        return "ok", ""
    if reading.out_of_memory is not None:
        return "oom", reading.out_of_memory
    if reading.notes:
        return "failed", f"no step time: {'; '.join(reading.notes)}"
    return "failed", f"no step time in {log}. Looked for: {'; or '.join(looked_for())}"


def _ended_badly(ending: Ending, reading: LogReading, log: Path) -> tuple[Outcome, str]:
    how = how_ended(ending.code)
    why = reading.host_out_of_memory or reading.error or (reading.tail[-1].strip() if reading.tail else "")
    if reading.host_out_of_memory is None and ending.code == -signal.SIGKILL and not reading.error:
        why = "perhaps by the host's out-of-memory killer; that is not device memory"
    told = f"{how}: {why}" if why else how
    if reading.step_time_s is not None and reading.iterations >= enough_iterations():
        return "ok", f"after {_measured_iterations(reading)} the command ended with {told}"
    return "failed", f"{told} (log: {log})"


def how_ended(code: int | None) -> str:
    """An exit code in words; a negative one is a signal, and so is one above 128 as shells have it."""
    number = 0 if code is None else -code if code < 0 else code - 128 if code > 128 else 0
    try:
        return f"signal {signal.Signals(number).name}" if number else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"
