"""What `profile` says: figures beside the catalogue's, the cost model beside the device, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from cpsolver.inputs.language import say

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from cpsolver.doors.profile.compare import EfficiencyRow, ModelComparison
    from cpsolver.doors.profile.run import Profile


def profile_document(done: Profile, target: str) -> dict[str, Any]:
    """What `profile --json` prints. Seconds and bytes."""
    measured = done.measured
    return {
        "file": target,
        "provenance": measured.provenance,
        "replaces": None if done.entry is None else done.entry.name,
        "chip": done.fields,
        "missing": list(done.missing),
        "comparison": _with_ratios(done.rows),
        "products": _with_ratios(done.gemms),
        "layer_time": _with_ratios(done.layers),
        "layer_bytes": _with_ratios(done.bytes),
        "measurements": [asdict(measurement) for measurement in measured.measurements],
        "left_out": [asdict(left_out) for left_out in measured.left_out],
        "taken_up": measured.taken_up,
        "interrupted": measured.interrupted,
        "wall_s": measured.wall_s,
    }


def _with_ratios(rows: Sequence[ModelComparison | EfficiencyRow]) -> list[dict[str, Any]]:
    return [{**asdict(row), "ratio": row.ratio} for row in rows]


def profile_report(done: Profile, target: str, device: str) -> RenderableType:
    """Figures beside the catalogue's, the cost model beside the device, and what is missing."""
    from rich.console import Group
    from rich.text import Text

    from cpsolver.doors.report.layout import Prose

    measured = done.measured
    taken = say(", {count} of them taken up from the journal", count=measured.taken_up) if measured.taken_up else ""
    head = say(
        "{device}: {count} measurements in {seconds:,.0f} s{taken}",
        device=device,
        count=len(measured.measurements),
        seconds=measured.wall_s,
        taken=taken,
    )
    parts: list[RenderableType] = [Text(head, style="bold"), Prose(_entry_line(done, device)), ""]
    parts += [_figures(done), Prose(_figures_note(done), style="dim"), ""]
    parts += _pairs(say("Time, the cost model with this file"), done.layers, 1e-3, "ms")
    parts += _gemm_lines(done.gemms)
    parts += _pairs(say("Kept by a layer, the memory model"), done.bytes, 2.0**20, "MiB")
    parts += list(_left_out(done))
    parts += [Prose(line, style="bold" if place == 0 else "") for place, line in enumerate(_ending(done, target))]
    return Group(*parts)


def _entry_line(done: Profile, device: str) -> str:
    from cpsolver.doors.profile.chip_file import similar_entries

    if done.entry is not None:
        return say("What is not measured comes from the catalogue's {name}.", name=done.entry.name)
    near = similar_entries(device)
    hint = say(" (nearest: {names})", names=", ".join(near)) if near else ""
    return say("The catalogue has no entry for it{hint}; --replaces CHIP names one.", hint=hint)


def _table(heads: Sequence[str]) -> Table:
    from rich.table import Table as RichTable

    table = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left", no_wrap=place > 0)
    return table


def _figures(done: Profile) -> RenderableType:
    table = _table((say("figure"), say("catalogue"), say("planned with"), say("measured"), say("ratio"), say("spread")))
    for row in done.rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        spread = "" if row.spread is None else f"{row.spread:.1%}"
        known = (_number(row.catalogue), _number(row.planned), _number(row.measured))
        table.add_row(row.name, *known, ratio, spread)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def _figures_note(done: Profile) -> str:
    note = say("ratio: measured over the catalogue's. spread: distance of the quartiles of the repeats.")
    if done.entry is None:
        return note
    return say(
        "{note} planned with: the catalogue's times the factors fitted to published runs. A chip file is taken at its "
        "word, without these factors (docs/profile.md).",
        note=note,
    )


def _pairs(title: str, pairs: Sequence[ModelComparison], unit: float, word: str) -> list[RenderableType]:
    if not pairs:
        return []
    from rich.text import Text

    counted = any(pair.allocated is not None for pair in pairs)
    heads = (title, say("measured {unit}", unit=word), say("predicted"), say("ratio"))
    table = _table((*heads, *([say("allocator")] if counted else [])))
    for pair in pairs:
        allocated = [] if not counted else [_number(pair.allocated and pair.allocated / unit)]
        sizes = (_number(pair.measured / unit), _number(pair.predicted / unit))
        table.add_row(pair.what, *sizes, f"{pair.ratio:.2f}", *allocated)
    return [table, Text("")]


def _gemm_lines(gemms: Sequence[ModelComparison]) -> list[RenderableType]:
    """How far the cost model is off over all GEMMs, and the worst."""
    if not gemms:
        return []
    from rich.text import Text

    from cpsolver.doors.report.layout import Prose

    farthest = max(gemms, key=lambda gemm: abs(gemm.ratio - 1))
    typical = median(abs(gemm.ratio - 1) for gemm in gemms)
    line = say(
        "{count} products: predicted {typical:.0%} off in the median; the worst is {what}: {measured:,.3g} ms, "
        "predicted {predicted:,.3g}.",
        count=len(gemms),
        typical=typical,
        what=farthest.what,
        measured=farthest.measured * 1e3,
        predicted=farthest.predicted * 1e3,
    )
    return [Prose(line), Text("")]


def _left_out(done: Profile) -> Iterator[RenderableType]:
    """What was not measured, by reason."""
    from rich.text import Text

    from cpsolver.doors.report.layout import Prose

    by_reason: dict[str, list[str]] = {}
    for left_out in done.measured.left_out:
        by_reason.setdefault(say(left_out.reason), []).append(left_out.label)
    if by_reason:
        yield Text(say("Not measured"), style="bold")
    for reason, labels in by_reason.items():
        more = say(" and {count} more", count=len(labels) - 3) if len(labels) > 3 else ""
        some = say("; ").join(labels[:3])
        yield Prose(say("{reason}: {labels}", reason=reason, labels=f"{some}{more}"))
    if by_reason:
        yield Text("")


def _ending(done: Profile, target: str) -> list[str]:
    lines = [say("Written: {file}", file=target)]
    if done.measured.interrupted:
        lines.append(say("Interrupted: the same command goes on from the journal."))
    if done.missing:
        missing = say("; ").join(map(say, done.missing))
        lines.append(say("No plan can be made with it yet: {missing}. Add the fields to the file.", missing=missing))
    return lines
