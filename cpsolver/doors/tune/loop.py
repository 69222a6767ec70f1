"""Choose, run, read, keep, and again; what was running when the last tuner ended is awaited first."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from cpsolver.doors.export.launch import CannotExpress
from cpsolver.doors.tune.jobs import JobBuilder
from cpsolver.doors.tune.logs import LogReading, log_facts, read_log
from cpsolver.doors.tune.outcome import Verdict, failure_kind, judge
from cpsolver.doors.tune.runner import prepare, run_trial
from cpsolver.doors.tune.state import State
from cpsolver.doors.tune.supervisor import LOG
from cpsolver.doors.tune.trial import Chooser, Proposal, Stop, Trial
from cpsolver.inputs.text import plural

CTRL_C = "stopped by Ctrl-C"
SIGNAL = "the running trial was ended by a signal, as schedulers send it when time is up"


@dataclass(frozen=True)
class TrialLimits:
    """When to stop. `max_trials`, `max_hours`: of all trials in the state; `trial_s`: the longest that one may take.

    `skip`: iterations left out as warm-up; `iterations`: measured ones after which a trial is ended; None: never.
    """

    skip: int
    max_trials: int | None = None
    max_hours: float | None = None
    trial_s: float | None = None
    iterations: int | None = None


class Display(Protocol):
    """Who is told how the trials go."""

    def running(self, trial: Trial) -> AbstractContextManager[Callable[[LogReading], None]]:
        """Around a trial; what it gives is told what the log says so far."""
        ...

    def finished(self, trial: Trial) -> None:
        """A trial is over."""
        ...


def tune(state: State, chooser: Chooser, builder: JobBuilder, limits: TrialLimits, display: Display) -> str:
    """Run trials until there is a reason to stop, which is returned. Ctrl-C ends the running trial, and is a reason."""
    done: list[Trial] = []
    try:
        for trial in [trial for trial in state.trials() if trial.outcome == "running" and not trial.asked]:
            if (stopped := _over(state, builder, limits, display, trial, done)) is not None:
                return stopped
        while (reason := _reason(state.trials(), done, limits)) is None:
            proposal = chooser.next(state.trials())
            if isinstance(proposal, Stop):
                return proposal.reason
            trial = begin(state, builder, proposal, asked=False, time_limit_s=_time_limit(state.trials(), limits))
            if (stopped := _over(state, builder, limits, display, trial, done)) is not None:
                return stopped
    except KeyboardInterrupt:
        return CTRL_C
    return reason


def begin(
    state: State, builder: JobBuilder, proposal: Proposal, *, asked: bool, time_limit_s: float | None = None
) -> Trial:
    """A new trial with all its files, kept as running; a plan that the target refuses has failed at once."""
    number = state.next_number()
    folder = state.directory(number)
    try:
        job = builder.build(proposal.strategy, number, folder)
    except CannotExpress as refused:
        state.begin(number, proposal, (), asked)
        note = f"{builder.target} cannot run this plan: {'; '.join(refused.reasons)}"
        return state.finish(number, Verdict("failed", note))
    if not asked:
        prepare(folder, job.command, job.environment, time_limit_s)
    return state.begin(number, proposal, job.command, asked)


def _over(
    state: State, builder: JobBuilder, limits: TrialLimits, display: Display, trial: Trial, done: list[Trial]
) -> str | None:
    """Run the trial, or await it where it runs already; keep how it went, also in `done`. Why it was ended for good."""
    stopped = None
    if trial.outcome == "running":
        expected, log = builder.expected(trial.strategy), trial.directory / LOG
        with display.running(trial) as tell:

            def watch(reading: LogReading) -> bool:
                tell(reading)
                return limits.iterations is not None and reading.iterations >= limits.iterations

            ending = run_trial(trial.directory, expected, limits.skip, watch)
        if ending.now:
            stopped = SIGNAL if ending.ended == "signal" else CTRL_C
        trial = state.finish(trial.number, judge(ending, read_log(log, expected, limits.skip), log))
    done.append(trial)
    display.finished(trial)
    return stopped


def _reason(trials: Sequence[Trial], done: Sequence[Trial], limits: TrialLimits) -> str | None:
    """Why no other trial is started; None: one is."""
    if limits.max_trials is not None and len(trials) >= limits.max_trials:
        return f"{plural(len(trials), 'trial')}: --max-trials {limits.max_trials}"
    if limits.max_hours is not None and _hours(trials) >= limits.max_hours:
        return f"trials took {_hours(trials):.2f} hours: --max-hours {limits.max_hours:g}"
    most = int(log_facts()["same_failures"]["value"])
    ran = [trial for trial in done if trial.command]  # what the target refuses is no fault of the command
    failed = list(takewhile(lambda trial: trial.outcome == "failed", reversed(ran)))[:most]
    if len(failed) == most and len({failure_kind(trial.note) for trial in failed}) == 1:
        tried = shlex.join(failed[0].command)
        return f"{most} trials in a row failed alike, so it is the command: {failed[0].note}. It was: {tried}"
    return None


def _hours(trials: Sequence[Trial]) -> float:
    return sum(trial.seconds or 0.0 for trial in trials) / 3600


def _time_limit(trials: Sequence[Trial], limits: TrialLimits) -> float | None:
    left = None if limits.max_hours is None else (limits.max_hours - _hours(trials)) * 3600
    known = [limit for limit in (limits.trial_s, left) if limit is not None]
    return min(known, default=None)
