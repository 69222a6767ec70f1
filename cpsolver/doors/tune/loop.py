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
from cpsolver.doors.tune.state_notes import retold
from cpsolver.doors.tune.supervisor import LOG
from cpsolver.doors.tune.trial import Chooser, Proposal, Stop, Trial
from cpsolver.inputs.language import ENGLISH, later, say, speaking
from cpsolver.inputs.text import plural

CTRL_C = later("stopped by Ctrl-C")
SIGNAL = later("the running trial was ended by a signal, as schedulers send it when time is up")


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


@dataclass(frozen=True)
class _Done:
    """A trial that is over, and whether its log tells an iteration."""

    trial: Trial
    trained: bool


def tune(state: State, chooser: Chooser, builder: JobBuilder, limits: TrialLimits, display: Display) -> str:
    """Run trials until there is a reason to stop, which is returned. Ctrl-C ends the running trial, and is a reason."""
    done: list[_Done] = []
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
        return say(CTRL_C)
    return reason


def begin(
    state: State, builder: JobBuilder, proposal: Proposal, *, asked: bool, time_limit_s: float | None = None
) -> Trial:
    """A new trial with all its files, kept as running; a plan that the target refuses has failed at once."""
    number = state.next_number()
    folder = state.directory(number)
    try:
        with speaking(ENGLISH):  # what is kept and what is exported is English
            job = builder.build(proposal.strategy, number, folder)
    except CannotExpress as refused:
        state.begin(number, proposal, (), asked)
        note = f"{builder.target} cannot run this plan: {'; '.join(refused.reasons)}"
        return state.finish(number, Verdict("failed", note))
    if not asked:
        prepare(folder, job.command, job.environment, time_limit_s)
    return state.begin(number, proposal, job.command, asked)


def _over(
    state: State, builder: JobBuilder, limits: TrialLimits, display: Display, trial: Trial, done: list[_Done]
) -> str | None:
    """Run the trial, or await it where it runs already; keep how it went, also in `done`. Why it was ended for good."""
    stopped, trained = None, False
    if trial.outcome == "running":
        expected, log = builder.expected(trial.strategy), trial.directory / LOG
        with display.running(trial) as tell:

            def watch(reading: LogReading) -> bool:
                tell(reading)
                return limits.iterations is not None and reading.iterations >= limits.iterations

            ending = run_trial(trial.directory, expected, limits.skip, watch)
        if ending.now:
            stopped = say(SIGNAL if ending.ended == "signal" else CTRL_C)
        reading = read_log(log, expected, limits.skip)
        trained = reading.began
        trial = state.finish(trial.number, judge(ending, reading, log))
    done.append(_Done(trial, trained))
    display.finished(trial)
    return stopped


def _reason(trials: Sequence[Trial], done: Sequence[_Done], limits: TrialLimits) -> str | None:
    """Why no other trial is started; None: one is."""
    if limits.max_trials is not None and len(trials) >= limits.max_trials:
        trials_told = plural(len(trials), "trial")
        return say("{trials}: --max-trials {most}", trials=trials_told, most=limits.max_trials)
    if limits.max_hours is not None and _hours(trials) >= limits.max_hours:
        hours = _hours(trials)
        return say("trials took {hours:.2f} hours: --max-hours {most:g}", hours=hours, most=limits.max_hours)
    return _same_failures(done)


_ALIKE = {
    "same_failures": later("{count} trials in a row failed alike, so it is the command: {note}. It was: {command}"),
    "same_starts": later(
        "{count} trials in a row failed alike before the first iteration, so it is the command: {note}. It was: "
        "{command}"
    ),
}


def _same_failures(done: Sequence[_Done]) -> str | None:
    """That the last trials failed alike: fewer of them do where none came as far as an iteration."""
    ran = [each for each in done if each.trial.command]  # what the target refuses is no fault of the command
    failed = list(takewhile(lambda each: each.trial.outcome == "failed", reversed(ran)))
    for name, told in _ALIKE.items():
        most = int(log_facts()[name]["value"])
        last = failed[:most]
        alike = len(last) == most and len({failure_kind(each.trial.note) for each in last}) == 1
        if alike and not (name == "same_starts" and any(each.trained for each in last)):
            note, command = retold(last[0].trial.note), shlex.join(last[0].trial.command)
            return say(told, count=most, note=note, command=command)
    return None


def _hours(trials: Sequence[Trial]) -> float:
    return sum(trial.seconds or 0.0 for trial in trials) / 3600


def _time_limit(trials: Sequence[Trial], limits: TrialLimits) -> float | None:
    left = None if limits.max_hours is None else (limits.max_hours - _hours(trials)) * 3600
    known = [limit for limit in (limits.trial_s, left) if limit is not None]
    return min(known, default=None)
