"""The result for people: the best measured plan and how to run it, every trial, and what is believed of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cpsolver.doors.report.console import task
from cpsolver.doors.report.layout import section
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
from cpsolver.doors.tune.trial import PlanEstimate, Trial
from cpsolver.inputs.text import elapsed, percent, plural

_SHOWN = 5
_STYLES = {"ok": "green", "oom": "red", "failed": "red", "running": "cyan"}


def tuning_report(answer: TuningResult) -> RenderableType:
    """The report of a tuning."""
    parts: list[RenderableType] = [task(answer.problem), "", *_verdict(answer)]
    if answer.trials:
        parts += section("Trials", _table(answer.trials), *_notes(answer.trials))
    if answer.untried:
        parts += section("Plans not measured", _estimates(answer.untried[:_SHOWN]), *_more(answer.untried))
    parts += section("Going on", Text(f"Stopped: {answer.reason}."), Text(f"To go on: {answer.resume}"))
    return Group(*parts)


def asked_report(trials: Sequence[Trial], reason: str | None) -> RenderableType:
    """What --ask has given out, and how to tell what came of it."""
    parts: list[RenderableType] = []
    for trial in trials:
        predicted = times_words(trial.predicted_s, trial.low_s, trial.high_s)
        parts += [
            Text.assemble((f"trial {trial.number}: ", "bold"), plan_words(trial.strategy)),
            Text(f"  {trial.why}; predicted {predicted}"),
            Text(f"  plan: {trial.directory / PLAN}", overflow="fold"),
        ]
        parts += [Text(f"  run: {command_words(trial.command)}", overflow="fold")] if trial.command else []
        parts.append(Text(f"  then: --tell {trial.number} --log FILE (or --step-time S, --oom, --failed WHY)"))
    return Group(*parts, *([Text(f"Nothing more to try: {reason}.")] if reason else []))


def one_trial_report(trial: Trial) -> RenderableType:
    """What was kept of a trial that was told."""
    return Text(trial_line(trial))


def _verdict(answer: TuningResult) -> Iterator[RenderableType]:
    best = answer.best
    if best is None or best.step_time_s is None:
        yield Text(f"Nothing was measured in {plural(len(answer.trials), 'trial')}.", style="bold red")
        return
    rate = answer.problem.batch * answer.problem.sequence / best.step_time_s
    yield Text.assemble(
        ("Best measured plan: ", "bold"),
        (f"{seconds_words(best.step_time_s)} per step", "bold green"),
        f", {rate:,.0f} tokens/s, trial {best.number}: {plan_words(best.strategy)}",
    )
    others = [trial for trial in answer.trials if trial.measured and trial.number != best.number]
    if others:
        second = min(others, key=lambda trial: trial.step_time_s or 0.0)
        yield Text(_next_words(best, second, (second.step_time_s or 0.0) / best.step_time_s - 1))
    yield Text(f"plan: {best.directory / PLAN}", overflow="fold")
    if best.command:
        yield Text(f"run:  {best.directory / COMMAND}, which is", overflow="fold")
        yield Padding(Text(command_words(best.command), style="dim", overflow="fold"), (0, 0, 0, 2))


def _next_words(best: Trial, second: Trial, ahead: float) -> str:
    if ahead < 0:
        return f"Trial {second.number} measured {percent(-ahead)} less, and is believed to be slower: noise decided."
    known = [trial.spread for trial in (best, second) if trial.spread is not None]
    told = f"The next is {percent(ahead)} slower (trial {second.number})"
    return told + (": within the spread of their iterations, a tie." if known and ahead < max(known) else ".")


def _table(trials: Sequence[Trial]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("#", justify="right")
    for name in ("plan", "predicted", "measured", "memory", "outcome"):
        table.add_column(name, overflow="fold")
    table.add_column("took", justify="right", no_wrap=True)
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
            yield Text(f"{trial.number}: {trial.note}", style="dim", overflow="fold")


def _estimates(plans: Sequence[PlanEstimate]) -> Table:
    chances = any(plan.chance_best is not None for plan in plans)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("plan", "believed", *(("fastest of all",) if chances else ())):
        table.add_column(name, overflow="fold")
    for plan in plans:
        row = [plan_words(plan.strategy), times_words(plan.predicted_s, plan.low_s, plan.high_s)]
        if chances:
            row.append("–" if plan.chance_best is None else percent(plan.chance_best))
        table.add_row(*row)
    return table


def _more(plans: Sequence[PlanEstimate]) -> Iterator[RenderableType]:
    if len(plans) > _SHOWN:
        yield Text(f"and {len(plans) - _SHOWN} more (--json has all)", style="dim")


def state_name(spec: str) -> Path:
    """The folder of the state where none is named: the spec's name with the ending .tune."""
    return Path("spec.tune") if spec == "-" else Path(spec).with_suffix(".tune")
