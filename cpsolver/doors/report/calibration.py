"""What runs taught, for people: constants, errors before and after, memory, misfit, the worst rows, what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import hypot
from statistics import fmean
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cpsolver.doors.report.document import versions
from cpsolver.doors.report.layout import Prose, figure_table, section
from cpsolver.evidence.calibrate.checks import limits
from cpsolver.evidence.calibrate.leave_one_out import LeaveOneOut, MeanErrors, mean_errors
from cpsolver.evidence.calibrate.result import CalibrationResult
from cpsolver.evidence.posterior.constants import UncertainConstant
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import percent, plural, seconds, signed_percent
from cpsolver.profiles.constants import Overlay, OverlayConstant


def calibration_report(
    result: CalibrationResult, overlay: Overlay, written: str | None, most: int = 5
) -> RenderableType:
    """The whole report; `written`: the overlay's file, None where the runs were refused; `most` worst rows."""
    parts: list[RenderableType] = [_headline(result)]
    parts += section(say("Step time, each layout predicted by the others"), *_errors(result))
    parts += section(say("Constants"), *_constants(result, overlay))
    parts += section(say("What no constant explains"), Prose(_misfit(result)))
    if result.readings or result.ran_out:
        parts += section(say("Memory"), *_memory(result))
    if most:
        parts += section(say("Furthest off"), _worst(result.runs, most), Prose(say(_WORST_NOTE), style="dim"))
    if result.evidence.left_out or result.evidence.troubles:
        parts += section(say("Not learnt from"), *_left_out(result))
    parts += section(say("Next"), *map(Text, _next(result, written)))
    return Group(*parts)


def _headline(result: CalibrationResult) -> Text:
    found = result.error
    better = found.after < found.before
    return Text.assemble(
        (say("{runs} with a step time: ", runs=plural(found.runs, "run")), "bold"),
        (say("off by {error} on average", error=percent(found.after)), "bold green" if better else "bold red"),
        say(" by what the other runs teach, {error} with the published constants.", error=percent(found.before)),
    )


def _errors(result: CalibrationResult) -> Iterator[RenderableType]:
    heads = (say("runs"), say("published"), say("learnt"), say("middle"), say("in 80 %, published"), say("learnt"))
    table = figure_table("", *heads)
    table.add_row(say("all runs"), *_cells(result.error), style="bold")
    if len(result.groups) > 1:
        for (chip, stack), told in result.groups.items():
            table.add_row(say("{chip} with {stack}", chip=chip, stack=stack), *_cells(mean_errors(told)))
    yield table
    note = say(
        "Mean size of predicted / measured - 1 with the published constants, with those that the other runs teach, and "
        "of the middle of the interval, which also takes in what layouts alike showed."
    )
    yield Prose(note, style="dim")


def _cells(found: MeanErrors) -> tuple[str, ...]:
    errors = percent(found.before), percent(found.after), percent(found.middle)
    return (f"{found.runs:,}", *errors, f"{found.inside_before * 100:.0f} %", f"{found.inside_after * 100:.0f} %")


def _constants(result: CalibrationResult, overlay: Overlay) -> Iterator[RenderableType]:
    known = {(each.group, each.name): each for each in result.posterior.constants}
    groups = [*overlay.chips.items(), *overlay.stacks.items()]
    table = figure_table("", say("published"), *(say("likely"), say("learnt"), say("likely"), say("runs")), gap=1)
    unchanged: dict[str, list[str]] = {}
    for group, constants in groups:
        narrowed = {name: fit for name, fit in constants.items() if _is_narrowed(fit)}
        unchanged[group] = [name for name in constants if name not in narrowed]
        if narrowed:
            table.add_row(Text(group, style="bold"))
        for name, fit in narrowed.items():
            table.add_row(f"  {name}", *_values(known[group, name], fit), str(fit.rows))
    if table.row_count:
        yield table
    for group, names in unchanged.items():
        if names:
            told = say("{group}: nothing learnt of {names}", group=group, names=", ".join(names))
            yield Prose(told, style="dim")
    note = say(
        "Of a chip, factors on its published efficiencies; of a stack, values. Likely: two in three, before and after."
    )
    yield Prose(note, style="dim")


def _is_narrowed(fit: OverlayConstant) -> bool:
    return fit.rows > 0 and fit.sd <= limits().learnt * fit.sd_before


def _values(constant: UncertainConstant, each: OverlayConstant) -> tuple[str, ...]:
    factor = "×" if constant.kind == "chips" else ""

    def likely(middle: float, sd: float) -> str:
        return f"{_figure(constant.value(middle - sd))}–{_figure(constant.value(middle + sd))}"

    published, learnt = likely(0.0, each.sd_before), likely(each.position, each.sd)
    return f"{factor}{_figure(each.published)}", published, f"{factor}{_figure(each.learnt)}", learnt


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value / 1e9:.3g}e9" if value >= 1e7 else f"{value:,.0f}"


_FITS = (
    (0.4, later("The cost model fits these runs closely: {told}")),
    (0.8, later("The cost model fits these runs well: {told}")),
    (1.5, later("The cost model fits these runs as well as published clusters in general: {told}")),
)
_BADLY = later(
    "The cost model fits these runs badly: {told} Runs of several versions, models or networks in one table look like "
    "that: calibrate them apart."
)


def _misfit(result: CalibrationResult) -> str:
    times = result.posterior.times
    size = sum(level.weight * level.size for level in times.levels)
    usual = hypot(times.spread.misfit, times.spread.leftover)
    told = say(
        "beyond all constants, step times are off by some {here}; on published clusters in general {usual}.",
        here=percent(size * usual),
        usual=percent(usual),
    )
    return say(next((words for most, words in _FITS if size <= most), _BADLY), told=told)


def _memory(result: CalibrationResult) -> Iterator[RenderableType]:
    if result.readings:
        before, after = (fmean(abs(getattr(each, name)) for each in result.readings) for name in ("before", "after"))
        furthest = max(result.readings, key=lambda reading: abs(reading.after))
        told = say(
            "{readings}: off by {after} on average by what the others teach, {before} with the published constants; "
            "furthest {name}, {error}.",
            readings=plural(len(result.readings), "reading"),
            after=percent(after),
            before=percent(before),
            name=furthest.name,
            error=signed_percent(furthest.after),
        )
        yield Prose(told)
    for each in result.ran_out:
        told = say(
            "{name} ran out of memory: {verdict} (needs {after:.0%} of the device, {before:.0%} as published).",
            name=each.name,
            verdict=say("explained") if each.explained else say("not explained: it is still said to fit"),
            after=each.after,
            before=each.before,
        )
        yield Prose(told)


_WORST_NOTE = later("By the others: the middle of the interval that the runs of other layouts give.")


def _worst(told: Sequence[LeaveOneOut], most: int) -> Table:
    table = figure_table("", say("measured"), say("published"), say("error"), say("by the others"), say("error"))
    for each in sorted(told, key=lambda one: -abs(one.middle))[:most]:
        published, others = (seconds(value, of=each.measured_s) for value in (each.row.published_s, each.middle_s))
        errors = signed_percent(each.before), signed_percent(each.middle)
        measured = seconds(each.measured_s)
        table.add_row(each.row.run.id, measured, published, errors[0], others, errors[1])
    return table


def _left_out(result: CalibrationResult) -> Iterator[RenderableType]:
    for reason, ids in result.evidence.left_out.items():
        told = say("{rows}, {reason}: {ids}", rows=plural(len(ids), "row"), reason=reason, ids=", ".join(ids))
        yield Prose(told)
    if result.evidence.troubles:
        lines = len({trouble.line for trouble in result.evidence.troubles})
        yield Text(say("{rows} at fault, told on stderr", rows=plural(lines, "row")))


def _next(result: CalibrationResult, written: str | None) -> Iterator[str]:
    if written is None:
        yield say("Refused, and nothing written: the reasons are on stderr.")
        return
    if result.doubts:
        yield say("Written in spite of doubts, which {written} repeats.", written=written)
    yield f"apss-cp solve SPEC --calibration {written}"
    yield f"apss-cp evaluate SPEC --strategy PLAN --calibration {written}"
    note = say("these runs look better now than new ones will")
    yield f"apss-cp validate {result.file} --calibration {written}   # {note}"


def calibration_document(result: CalibrationResult, overlay: Overlay, written: str | None) -> dict[str, Any]:
    """What `calibrate --json` prints. Times in seconds, errors as predicted / measured - 1.

    `after` leaves each layout out in turn; `middle` is that of the interval, the others are by the constants alone.
    """
    levels = result.posterior.times.levels
    return {
        "status": "refused" if written is None else "written",
        "file": written,
        "doubts": list(overlay.doubts),
        "covers": [each.model_dump() for each in overlay.covers],
        "constants": {"chips": _plain(overlay.chips), "stacks": _plain(overlay.stacks)},
        "error": asdict(result.error),
        "groups": [{"chip": c, "stack": s, **asdict(mean_errors(runs))} for (c, s), runs in result.groups.items()],
        "misfit_levels": {f"{level.size:g}": level.weight for level in levels},
        "rows": [_row(each) for each in result.runs],
        "memory": [asdict(each) for each in result.readings],
        "out_of_memory": [{**asdict(each), "explained": each.explained} for each in result.ran_out],
        "left_out": {reason: list(ids) for reason, ids in result.evidence.left_out.items()},
        "troubles": [trouble.as_dict() for trouble in result.evidence.troubles],
        "versions": versions(),
    }


def _plain(groups: Any) -> dict[str, Any]:
    return {group: {name: each.model_dump() for name, each in constants.items()} for group, constants in groups.items()}


def _row(each: LeaveOneOut) -> dict[str, Any]:
    return {
        "id": each.row.run.id,
        "chip": each.row.group[0],
        "stack": each.row.group[1],
        "measured_s": each.measured_s,
        "published_s": each.row.published_s,
        "published_low_s": each.row.low_s,
        "published_high_s": each.row.high_s,
        "constants_s": each.constants_s,
        "middle_s": each.middle_s,
        "low_s": each.low_s,
        "high_s": each.high_s,
        "before": each.before,
        "after": each.after,
        "deviations": each.score,
    }
