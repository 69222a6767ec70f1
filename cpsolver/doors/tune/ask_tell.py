"""Trials that somebody else runs: numbers given out, and what came of them told back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cpsolver.doors.tune.jobs import JobBuilder
from cpsolver.doors.tune.logs import enough_iterations, log_facts, read_log
from cpsolver.doors.tune.loop import begin
from cpsolver.doors.tune.outcome import Verdict, judge
from cpsolver.doors.tune.runner import Ending
from cpsolver.doors.tune.state import State
from cpsolver.doors.tune.trial import Chooser, Stop, Trial, TrialMemory
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say


@dataclass(frozen=True)
class ReportedResult:
    """What a user says of a trial: exactly one of a log, a step time in seconds, out of memory, why it failed."""

    log: str | None = None
    step_time_s: float | None = None
    oom: bool = False
    failed: str | None = None
    peak_memory_gib: float | None = None
    memory_kind: TrialMemory | None = None


def ask(state: State, chooser: Chooser, builder: JobBuilder, count: int | None) -> tuple[list[Trial], str | None]:
    """The open trials that were given out, or `count` new ones; and why there are no more, if there are not.

    Without a count and with none open: one new one. A plan that the target refuses is kept as failed, and passed over.
    """
    given = [trial for trial in state.trials() if trial.asked and trial.outcome == "running"]
    if given and count is None:
        return given, None
    new: list[Trial] = []
    while len(new) < (count or 1):
        proposal = chooser.next(state.trials())
        if isinstance(proposal, Stop):
            return new, proposal.reason
        trial = begin(state, builder, proposal, asked=True)
        new += [trial] if trial.outcome == "running" else []
    return new, None


def check_report(reported: ReportedResult) -> None:
    """Raises InputError with everything that is wrong with what is told."""
    troubles = list(_troubles(reported))
    if troubles:
        raise InputError(troubles)


def _troubles(reported: ReportedResult) -> Iterator[Trouble]:
    ways = {
        "--log": reported.log is not None,
        "--step-time": reported.step_time_s is not None,
        "--oom": reported.oom,
        "--failed": reported.failed is not None,
    }
    given = [name for name, there in ways.items() if there]
    if len(given) != 1:
        message = (
            say("needs one of them, and {given} are given", given=say(" and ").join(given))
            if given
            else say("needs what came of the trial")
        )
        yield Trouble("--tell", message, allowed=", ".join(ways))
    if reported.step_time_s is not None:
        limits = log_facts()["step_time_s"]
        if not limits["least"] <= reported.step_time_s <= limits["most"]:
            allowed = say("{least:g} to {most:g} seconds", least=limits["least"], most=limits["most"])
            yield Trouble("--step-time", later("is no time that a step takes"), reported.step_time_s, allowed)
    if reported.peak_memory_gib is not None and not (
        math.isfinite(reported.peak_memory_gib) and reported.peak_memory_gib > 0
    ):
        yield Trouble("--peak-memory", later("must be more than 0 GiB"), reported.peak_memory_gib)
    if reported.peak_memory_gib is not None and (reported.log is not None or reported.failed is not None):
        yield Trouble("--peak-memory", later("goes with --step-time or --oom"))
    if reported.peak_memory_gib is not None and reported.memory_kind is None:
        yield Trouble(
            "--memory-kind", later("is missing: who counted --peak-memory"), allowed="allocated, reserved, device"
        )
    if reported.memory_kind is not None and reported.peak_memory_gib is None:
        yield Trouble("--peak-memory", later("is missing: --memory-kind says who counted it"))
    if reported.log is not None and not Path(reported.log).is_file():
        there = Path(reported.log).exists()
        yield Trouble("--log", later("is no plain file") if there else later("there is no such file"), reported.log)


def tell(state: State, builder: JobBuilder, number: int, reported: ReportedResult, skip: int) -> Trial:
    """Keep what came of a trial. Raises InputError, and nothing changes, for a number that is not open."""
    check_report(reported)
    known = {trial.number: trial for trial in state.trials()}
    trial = known.get(number)
    open_ = [str(trial.number) for trial in known.values() if trial.asked and trial.outcome == "running"]
    allowed = ", ".join(open_) or say("none is open: --ask gives one out")
    if trial is None:
        raise InputError(Trouble("--tell", later("is no trial of this state"), number, allowed))
    if trial.outcome != "running":
        raise InputError(
            Trouble("--tell", say("was told before, or ran: {outcome}", outcome=trial.outcome), number, allowed)
        )
    if not trial.asked:
        raise InputError(
            Trouble("--tell", later("is run by `apss-cp tune --run`, which reads its log itself"), number, allowed)
        )
    return state.finish(number, _verdict(builder, trial, reported, skip))


def _verdict(builder: JobBuilder, trial: Trial, reported: ReportedResult, skip: int) -> Verdict:
    if reported.log is not None:
        log = Path(reported.log)
        reading = read_log(log, builder.expected(trial.strategy), skip)
        short = reading.error is not None and reading.iterations < enough_iterations()
        died = short or reading.out_of_memory is not None
        return judge(Ending(int(died), None, None), reading, log)  # how it ended is not known but from the log
    memory = (reported.peak_memory_gib, reported.memory_kind)
    if reported.oom:
        return Verdict("oom", "told so", None, *memory)
    if reported.failed is not None:
        return Verdict("failed", reported.failed)
    return Verdict("ok", "told so", reported.step_time_s, *memory, iterations=1)
