"""Predictions against measured runs for people: how far off, on what, and which rows are furthest off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from cpsolver.doors.report.layout import Prose, figure_table, section
from cpsolver.doors.report.text import part_name
from cpsolver.evidence.runs.score import MemoryScore, Scored, TimeScore, worst
from cpsolver.evidence.runs.validation import Validation
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import percent, plural, seconds, signed_percent
from cpsolver.rules import RULES

_TITLES = {
    "source": later("by source"),
    "chip": later("by chip"),
    "precision": later("by precision"),
    "framework_year": later("by year of the framework"),
    "stack": later("by stack profile"),
    "parallel_kind": later("by kind of parallelism"),
}
_SMALLEST_PART = 0.01  # of a step: a smaller part of it is not listed


def validation_report(validation: Validation, most: int = 5) -> RenderableType:
    """The whole report; `most` is how many of the worst rows it shows."""
    parts: list[RenderableType] = list(_headline(validation))
    if validation.time is not None:
        parts += section(say("Step time"), _times(validation, validation.time), Prose(say(_TIME_NOTE), style="dim"))
    if validation.memory is not None:
        parts += section(
            say("Peak memory"), _memory(validation, validation.memory), Prose(say(_MEMORY_NOTE), style="dim")
        )
    if validation.rank.groups:
        parts += section(say("Order of layouts"), *_rank(validation))
    furthest = worst(validation.scored, most)
    if furthest:
        parts += section(say("Furthest off"), *_worst(furthest))
    if validation.refused:
        parts += section(say("Refused by a rule"), *_refused(validation), Prose(say(_RULES_NOTE), style="dim"))
    if validation.skipped:
        parts += section(say("Not predicted"), *_skipped(validation))
    return Group(*parts)


_TIME_NOTE = later(
    "Error: predicted / measured - 1. Off: its size, on average, the median, and what nine in ten stay below. "
    "Bias: the signed average; below 0 predicted too fast. In range: measured times inside the predicted range."
)
_MEMORY_NOTE = later(
    "Short: predicted more than 5 % too small; with margin: even with the planner's default margin added. Device and "
    "reserved contain memory that is held beyond the need; plans count the need."
)
_RULES_NOTE = later(
    "These runs ran: a rule that refuses one is the planner's error, and plans like it are missing from what it "
    "searches. docs/validate.md says where it is a stand-in for the run's layout that is refused."
)


def _headline(validation: Validation) -> Iterator[RenderableType]:
    rows, score = len(validation.outcomes), validation.time
    if score is None:
        yield Text(say("None of {runs} could be predicted.", runs=plural(rows, "measured run")), style="bold red")
        return
    lean = later(" (median {median}), {bias} too fast overall; ")
    if score.bias >= 0:
        lean = later(" (median {median}), {bias} too slow overall; ")
    told = say("{count:,} of {runs} predicted: ", count=score.runs, runs=plural(rows, "measured run"))
    yield Text.assemble(
        (told, "bold"),
        (say("step time off by {mean} on average", mean=percent(score.mean)), "bold green"),
        say(lean, median=percent(score.median), bias=percent(abs(score.bias))),
        say("{share} of the measured times lie in the predicted range.", share=percent(score.inside)),
    )
    broken = sum(bool(one.prediction.rules_broken) for one in validation.scored)
    if broken:
        rules = ", ".join(f"{name} {len(ids):,}" for name, ids in validation.refused.items())
        told = say(
            "{broken:,} of {runs} break a rule of the planner: {rules}.",
            broken=broken,
            runs=plural(score.runs, "run"),
            rules=rules,
        )
        yield Text(told)


def _times(validation: Validation, overall: TimeScore) -> Table:
    table = figure_table("", *say("runs | off | median | 90 % | bias | in range").split(" | "))
    table.add_row(say("all runs"), *_time_cells(overall), style="bold")
    for dimension, groups in validation.time_by.items():
        table.add_row("")
        table.add_row(Text(say(_TITLES[dimension]), style="dim"))
        for name, score in groups.items():
            table.add_row(Text(name or say("not stated")), *_time_cells(score))
    return table


def _time_cells(score: TimeScore) -> tuple[str, ...]:
    sizes = (percent(score.mean), percent(score.median), percent(score.p90))
    return (f"{score.runs:,}", *sizes, signed_percent(score.bias), f"{score.inside * 100:.0f} %")


_KINDS = {"unstated": later("unstated"), "all": later("all")}


def _memory(validation: Validation, overall: MemoryScore) -> Table:
    table = figure_table(*say("as measured | runs | off | bias | short | with margin").split(" | "))
    for name, score in {**validation.memory_by_kind, "all": overall}.items():
        shares = (f"{score.short * 100:.0f} %", f"{score.short_with_margin * 100:.0f} %")
        style = "bold" if name == "all" else None
        shown = say(_KINDS.get(name, name))
        table.add_row(shown, f"{score.runs:,}", percent(score.mean), signed_percent(score.bias), *shares, style=style)
    return table


def _rank(validation: Validation) -> Iterator[RenderableType]:
    rank = validation.rank
    told = say("{groups} of runs that differ only in their layout", groups=plural(len(rank.groups), "group"))
    if rank.kendall_tau is not None:
        told += say(
            "; Kendall's tau between predicted and measured order {tau:.2f} (1: the same)", tau=rank.kendall_tau
        )
    if rank.regret is not None:
        told += say(
            "; the layout predicted fastest is {share} slower than the fastest measured", share=percent(rank.regret)
        )
    yield Prose(told + (say(", on average.") if len(rank.groups) > 1 else say(".")))
    table = figure_table(say("runs of a group"), say("layouts"), "tau", say("slower"))
    for group in rank.groups:
        tau = "-" if group.kendall_tau is None else f"{group.kendall_tau:.2f}"
        name = say("{first} and {count} more", first=group.ids[0], count=len(group.ids) - 1)
        table.add_row(Text(name), str(group.layouts), tau, percent(group.regret))
    yield table


def _worst(furthest: Sequence[Scored]) -> Iterator[RenderableType]:
    for one in furthest:
        predicted = seconds(one.prediction.step_time_s, of=one.measured_s)
        told = say(
            ": measured {measured}, predicted {predicted}, {error}",
            measured=seconds(one.measured_s),
            predicted=predicted,
            error=signed_percent(one.error),
        )
        yield Text.assemble((one.run.id, "bold"), told)
        yield Padding(Prose(_parts(one), style="dim"), (0, 0, 0, 2))
        for name, (first, *_) in one.prediction.rules_broken.items():
            yield Padding(
                Prose(say("breaks {name}: {finding}", name=name, finding=first), style="yellow"), (0, 0, 0, 2)
            )


def _parts(one: Scored) -> str:
    """Where the predicted time goes, largest part first: `compute 71.2 %, pipeline bubble 12.0 %`."""
    total = one.prediction.step_time_s
    parts = sorted(one.prediction.breakdown_s.items(), key=lambda part: -part[1])
    least = total * _SMALLEST_PART
    shown = [f"{part_name(name)} {percent(part / total)}" for name, part in parts if part > least]
    return f"{one.run.chip}, {one.prediction.stack}: " + ", ".join(shown)


def _skipped(validation: Validation) -> Iterator[RenderableType]:
    total = sum(map(len, validation.skipped.values()))
    yield Text(say("{rows}, by reason", rows=plural(total, "row")))
    yield _ids_by(validation.skipped)


def _refused(validation: Validation) -> Iterator[RenderableType]:
    yield _ids_by({f"{name}: {say(RULES[name].words)}": ids for name, ids in validation.refused.items()})


def _ids_by(reasons: Mapping[str, Sequence[str]]) -> Table:
    """The ids of rows below what they have in common, the most first."""
    table = Table.grid(Column(justify="right", no_wrap=True), Column(overflow="fold"), padding=(0, 2, 0, 0))
    for reason, ids in sorted(reasons.items(), key=lambda entry: -len(entry[1])):
        table.add_row(f"{len(ids):,}", Prose(reason, style="bold"))
        table.add_row("", Text(", ".join(ids), style="dim"))
    return table
