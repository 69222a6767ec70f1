"""Predictions against measured runs for people: how far off, on what, and which rows are furthest off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from cpsolver.doors.report.layout import figure_table, section
from cpsolver.doors.report.text import part_name
from cpsolver.evidence.runs.score import MemoryScore, Scored, TimeScore, worst
from cpsolver.evidence.runs.validation import Validation
from cpsolver.inputs.text import percent, plural, seconds, signed_percent
from cpsolver.rules import RULES

_TITLES = {
    "source": "by source",
    "chip": "by chip",
    "precision": "by precision",
    "framework_year": "by year of the framework",
    "stack": "by stack profile",
    "parallel_kind": "by kind of parallelism",
}
_SMALLEST_PART = 0.01  # of a step: a smaller part of it is not listed


def validation_report(validation: Validation, most: int = 5) -> RenderableType:
    """The whole report; `most` is how many of the worst rows it shows."""
    parts: list[RenderableType] = list(_headline(validation))
    if validation.time is not None:
        parts += section("Step time", _times(validation, validation.time), Text(_TIME_NOTE, style="dim"))
    if validation.memory is not None:
        parts += section("Peak memory", _memory(validation, validation.memory), Text(_MEMORY_NOTE, style="dim"))
    if validation.rank.groups:
        parts += section("Order of layouts", *_rank(validation))
    furthest = worst(validation.scored, most)
    if furthest:
        parts += section("Furthest off", *_worst(furthest))
    if validation.refused:
        parts += section("Refused by a rule", *_refused(validation), Text(_RULES_NOTE, style="dim"))
    if validation.skipped:
        parts += section("Not predicted", *_skipped(validation))
    return Group(*parts)


_TIME_NOTE = (
    "Error: predicted / measured - 1. Off: its size, on average, the median, and what nine in ten stay below. "
    "Bias: the signed average; below 0 predicted too fast. In range: measured times inside the predicted range."
)
_MEMORY_NOTE = (
    "Short: predicted more than 5 % too small; with margin: even with the planner's default margin added. Device and "
    "reserved contain memory that is held beyond the need; plans count the need."
)
_RULES_NOTE = (
    "These runs ran: a rule that refuses one is the planner's error, and plans like it are missing from what it "
    "searches. docs/validate.md says where it is a stand-in for the run's layout that is refused."
)


def _headline(validation: Validation) -> Iterator[RenderableType]:
    rows, score = len(validation.outcomes), validation.time
    if score is None:
        yield Text(f"None of {plural(rows, 'measured run')} could be predicted.", style="bold red")
        return
    lean = "too fast" if score.bias < 0 else "too slow"
    yield Text.assemble(
        (f"{score.runs:,} of {plural(rows, 'measured run')} predicted: ", "bold"),
        (f"step time off by {percent(score.mean)} on average", "bold green"),
        f" (median {percent(score.median)}), {percent(abs(score.bias))} {lean} overall; ",
        f"{percent(score.inside)} of the measured times lie in the predicted range.",
    )
    broken = sum(bool(one.prediction.rules_broken) for one in validation.scored)
    if broken:
        rules = ", ".join(f"{name} {len(ids):,}" for name, ids in validation.refused.items())
        yield Text(f"{broken:,} of {plural(score.runs, 'run')} break a rule of the planner: {rules}.")


def _times(validation: Validation, overall: TimeScore) -> Table:
    table = figure_table("", "runs", "off", "median", "90 %", "bias", "in range")
    table.add_row("all runs", *_time_cells(overall), style="bold")
    for dimension, groups in validation.time_by.items():
        table.add_row("")
        table.add_row(Text(_TITLES[dimension], style="dim"))
        for name, score in groups.items():
            table.add_row(Text(name or "not stated"), *_time_cells(score))
    return table


def _time_cells(score: TimeScore) -> tuple[str, ...]:
    sizes = (percent(score.mean), percent(score.median), percent(score.p90))
    return (f"{score.runs:,}", *sizes, signed_percent(score.bias), f"{score.inside * 100:.0f} %")


def _memory(validation: Validation, overall: MemoryScore) -> Table:
    table = figure_table("as measured", "runs", "off", "bias", "short", "with margin")
    for name, score in {**validation.memory_by_kind, "all": overall}.items():
        shares = (f"{score.short * 100:.0f} %", f"{score.short_with_margin * 100:.0f} %")
        style = "bold" if name == "all" else None
        table.add_row(name, f"{score.runs:,}", percent(score.mean), signed_percent(score.bias), *shares, style=style)
    return table


def _rank(validation: Validation) -> Iterator[RenderableType]:
    rank = validation.rank
    told = f"{plural(len(rank.groups), 'group')} of runs that differ only in their layout"
    if rank.kendall_tau is not None:
        told += f"; Kendall's tau between predicted and measured order {rank.kendall_tau:.2f} (1: the same)"
    if rank.regret is not None:
        told += f"; the layout predicted fastest is {percent(rank.regret)} slower than the fastest measured"
    yield Text(told + ", on average." if len(rank.groups) > 1 else told + ".")
    table = figure_table("runs of a group", "layouts", "tau", "slower")
    for group in rank.groups:
        tau = "-" if group.kendall_tau is None else f"{group.kendall_tau:.2f}"
        name = f"{group.ids[0]} and {len(group.ids) - 1} more"
        table.add_row(Text(name), str(group.layouts), tau, percent(group.regret))
    yield table


def _worst(furthest: Sequence[Scored]) -> Iterator[RenderableType]:
    for one in furthest:
        predicted = seconds(one.prediction.step_time_s, of=one.measured_s)
        told = f": measured {seconds(one.measured_s)}, predicted {predicted}, {signed_percent(one.error)}"
        yield Text.assemble((one.run.id, "bold"), told)
        yield Padding(Text(_parts(one), style="dim"), (0, 0, 0, 2))
        for name, (first, *_) in one.prediction.rules_broken.items():
            yield Padding(Text(f"breaks {name}: {first}", style="yellow"), (0, 0, 0, 2))


def _parts(one: Scored) -> str:
    """Where the predicted time goes, largest part first: `compute 71.2 %, pipeline bubble 12.0 %`."""
    total = one.prediction.step_time_s
    parts = sorted(one.prediction.breakdown_s.items(), key=lambda part: -part[1])
    least = total * _SMALLEST_PART
    shown = [f"{part_name(name)} {percent(part / total)}" for name, part in parts if part > least]
    return f"{one.run.chip}, {one.prediction.stack}: " + ", ".join(shown)


def _skipped(validation: Validation) -> Iterator[RenderableType]:
    total = sum(map(len, validation.skipped.values()))
    yield Text(f"{plural(total, 'row')}, by reason")
    yield _ids_by(validation.skipped)


def _refused(validation: Validation) -> Iterator[RenderableType]:
    yield _ids_by({f"{name}: {RULES[name].words}": ids for name, ids in validation.refused.items()})


def _ids_by(reasons: Mapping[str, Sequence[str]]) -> Table:
    """The ids of rows below what they have in common, the most first."""
    table = Table.grid(Column(justify="right", no_wrap=True), Column(overflow="fold"), padding=(0, 2, 0, 0))
    for reason, ids in sorted(reasons.items(), key=lambda entry: -len(entry[1])):
        table.add_row(f"{len(ids):,}", Text(reason, style="bold"))
        table.add_row("", Text(", ".join(ids), style="dim"))
    return table
