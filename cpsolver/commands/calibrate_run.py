"""`apss-cp calibrate`: the run between options and exit code, and its answer for machines."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpsolver.doors.report.document import dumps, versions
from cpsolver.doors.report.progress import Bar
from cpsolver.evidence.posterior import check_scipy
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.output import check_writable, deliver, deliver_report

if TYPE_CHECKING:
    from cpsolver.evidence.calibrate.leave_one_out import LeaveOneOut
    from cpsolver.evidence.calibrate.result import CalibrationResult
    from cpsolver.profiles.constants import Overlay


def run_calibration(path: str, output: str | None, anyway: bool, worst: int, as_json: bool) -> tuple[list[str], bool]:
    """Learn, write the overlay and print the report; what was wrong, a line each, and whether the runs were refused.

    Raises InputError where scipy is missing, the table cannot be read, or no run can be learnt from.
    """
    check_scipy("calibrate")
    from cpsolver.evidence.calibrate.observations import evidence_of
    from cpsolver.evidence.calibrate.overlay import overlay_of, overlay_text
    from cpsolver.evidence.calibrate.result import calibrate
    from cpsolver.evidence.runs.table import read_runs

    target = output or ("calibration.yaml" if path == "-" else str(Path(path).with_suffix(".calibration.yaml")))
    check_writable(target, path)
    table = read_runs(path)
    with Bar("reading runs") as bar:
        evidence = evidence_of(table, bar)
    troubles = [str(trouble) for trouble in table.troubles]
    if not evidence.timed:
        reasons = [f"{reason}: {', '.join(ids)}" for reason, ids in evidence.left_out.items()]
        message = "none of its runs has a step time that can be learnt from"
        raise InputError([*table.troubles, Trouble("", "; ".join([message, *reasons]), file=_name(path))])
    with Bar("learning from runs") as bar:
        result = calibrate(evidence, _name(path), bar)
    overlay = overlay_of(result, str(versions()["apss_cp"]))
    refused = bool(result.doubts) and not anyway
    if not refused:
        deliver(overlay_text(overlay).rstrip("\n"), target)
    written = None if refused else target
    if as_json:
        deliver(dumps(calibration_document(result, overlay, written)), None)
    else:
        from cpsolver.doors.report.learnt import calibration_report

        deliver_report(calibration_report(result, overlay, written, worst))
    return [*troubles, *_told(result, refused, target)], refused


def _told(result: CalibrationResult, refused: bool, target: str) -> list[str]:
    """The doubts, and what became of the file."""
    doubts = [str(doubt) for doubt in result.doubts]
    if refused:
        kept = f" ({target} is as it was)" if Path(target).exists() else ""
        doubts.append(f"nothing was written{kept}; mend the rows or leave them out, or --anyway writes it all the same")
    return doubts


def _name(path: str) -> str:
    return "<stdin>" if path == "-" else path


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
        "groups": [_group(chip, stack, told) for (chip, stack), told in result.groups.items()],
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


def _group(chip: str, stack: str, told: tuple[LeaveOneOut, ...]) -> dict[str, Any]:
    from cpsolver.evidence.calibrate.leave_one_out import mean_errors

    return {"chip": chip, "stack": stack, **asdict(mean_errors(told))}


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
