"""The result for people: the best measured plan and how to run it, every trial, and what is believed of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cpsolver.doors.report.console import task
from cpsolver.doors.report.layout import Prose, section
from cpsolver.doors.tune.display import (
    command_words,
    measured_words,
    memory_words,
    plan_words,
    seconds_words,
    times_words,
    trial_line,
)
from cpsolver.doors.tune.jobs import COMMAND, PLAN
from cpsolver.doors.tune.result import TuningResult
from cpsolver.doors.tune.state_notes import retold
from cpsolver.doors.tune.trial import PlanEstimate, Trial
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import elapsed, percent, plural

_SHOWN = 5
_STYLES = {"ok": "green", "oom": "red", "failed": "red", "running": "cyan"}


def tuning_report(answer: TuningResult) -> RenderableType:
    """The report of a tuning."""
    parts: list[RenderableType] = [task(answer.problem), "", *_verdict(answer)]
    if answer.trials:
        parts += section(say("Trials"), _table(answer.trials), *_notes(answer.trials))
    if answer.untried:
        parts += section(say("Plans not measured"), _estimates(answer.untried[:_SHOWN]), *_more(answer.untried))
    parts += section(
        say("Going on"),
        Prose(say("Stopped: {reason}.", reason=answer.reason)),
        Text(say("To go on: {command}", command=answer.resume)),
    )
    return Group(*parts)


def asked_report(trials: Sequence[Trial], reason: str | None) -> RenderableType:
    """What --ask has given out, and how to tell what came of it."""
    parts: list[RenderableType] = []
    for trial in trials:
        predicted = times_words(trial.predicted_s, trial.low_s, trial.high_s)
        parts += [
            Text.assemble((say("trial {number}: ", number=trial.number), "bold"), plan_words(trial.strategy)),
            Prose(say("  {why}; predicted {predicted}", why=retold(trial.why), predicted=predicted)),
            Text(say("  plan: {file}", file=trial.directory / PLAN), overflow="fold"),
        ]
        run = say("  run: {command}", command=command_words(trial.command))
        parts += [Text(run, overflow="fold")] if trial.command else []
        then = say("  then: --tell {number} --log FILE (or --step-time S, --oom, --failed WHY)", number=trial.number)
        parts.append(Text(then))
    return Group(*parts, *([Text(say("Nothing more to try: {reason}.", reason=reason))] if reason else []))


def one_trial_report(trial: Trial) -> RenderableType:
    """What was kept of a trial that was told."""
    return Prose(trial_line(trial))


def _verdict(answer: TuningResult) -> Iterator[RenderableType]:
    best = answer.best
    if best is None or best.step_time_s is None:
        told = say("Nothing was measured in {trials}.", trials=plural(len(answer.trials), "trial"))
        yield Text(told, style="bold red")
        return
    rate, plan = answer.problem.batch * answer.problem.sequence / best.step_time_s, plan_words(best.strategy)
    yield Text.assemble(
        (say("Best measured plan: "), "bold"),
        (say("{seconds} per step", seconds=seconds_words(best.step_time_s)), "bold green"),
        say(", {rate:,.0f} tokens/s, trial {number}: {plan}", rate=rate, number=best.number, plan=plan),
    )
    others = [trial for trial in answer.trials if trial.measured and trial.number != best.number]
    if others:
        second = min(others, key=lambda trial: trial.step_time_s or 0.0)
        yield Prose(_next_words(best, second, (second.step_time_s or 0.0) / best.step_time_s - 1))
    yield Text(say("plan: {file}", file=best.directory / PLAN), overflow="fold")
    if best.command:
        yield Text(say("run:  {file}, which is", file=best.directory / COMMAND), overflow="fold")
        yield Padding(Text(command_words(best.command), style="dim", overflow="fold"), (0, 0, 0, 2))


def _next_words(best: Trial, second: Trial, ahead: float) -> str:
    if ahead < 0:
        return say(
            "Trial {number} measured {share} less, and is believed to be slower: noise decided.",
            number=second.number,
            share=percent(-ahead),
        )
    known = [trial.spread for trial in (best, second) if trial.spread is not None]
    told = later("The next is {share} slower (trial {number}).")
    if known and ahead < max(known):
        told = later("The next is {share} slower (trial {number}): within the spread of their iterations, a tie.")
    return say(told, share=percent(ahead), number=second.number)


def _table(trials: Sequence[Trial]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("#", justify="right")
    for name in (say("plan"), say("predicted"), say("measured"), say("memory"), say("outcome")):
        table.add_column(name, overflow="fold")
    table.add_column(say("took"), justify="right", no_wrap=True)
    for trial in trials:
        table.add_row(
            str(trial.number),
            plan_words(trial.strategy),
            times_words(trial.predicted_s, trial.low_s, trial.high_s),
            measured_words(trial),
            memory_words(trial),
            Text(trial.outcome, style=_STYLES.get(trial.outcome, "yellow")),
            "–" if trial.seconds is None else elapsed(trial.seconds),
        )
    return table


def _notes(trials: Sequence[Trial]) -> Iterator[RenderableType]:
    for trial in trials:
        if trial.note:
            yield Prose(f"{trial.number}: {retold(trial.note)}", style="dim")


def _estimates(plans: Sequence[PlanEstimate]) -> Table:
    chances = any(plan.chance_best is not None for plan in plans)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in (say("plan"), say("believed"), *((say("fastest of all"),) if chances else ())):
        table.add_column(name, overflow="fold")
    for plan in plans:
        row = [plan_words(plan.strategy), times_words(plan.predicted_s, plan.low_s, plan.high_s)]
        if chances:
            row.append("–" if plan.chance_best is None else percent(plan.chance_best))
        table.add_row(*row)
    return table


def _more(plans: Sequence[PlanEstimate]) -> Iterator[RenderableType]:
    if len(plans) > _SHOWN:
        yield Text(say("and {count} more (--json has all)", count=len(plans) - _SHOWN), style="dim")


def state_name(spec: str) -> Path:
    """The folder of the state where none is named: the spec's name with the ending .tune."""
    return Path("spec.tune") if spec == "-" else Path(spec).with_suffix(".tune")
