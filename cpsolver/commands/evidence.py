"""validate and calibrate: predictions against measured runs, and what the runs say of the constants."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cpsolver.commands.common import (
    EXIT_BAD_INPUT,
    calibration_option,
    json_option,
    output_option,
    say_error,
    write_answer,
)
from cpsolver.commands.help import SpokenCommand
from cpsolver.inputs.language import say

if TYPE_CHECKING:
    from cpsolver.evidence.calibrate.result import CalibrationResult
    from cpsolver.evidence.runs.validation import Validation

worst_option = click.option(
    "--worst", type=click.IntRange(0, 1000), default=5, show_default=True, help="How many of the worst runs to show."
)


@click.command(cls=SpokenCommand)
@click.argument("cases", required=False)
@json_option
@calibration_option
@output_option
@click.option("--scatter", metavar="FILE.html", help="Also draw predicted against measured into FILE.html.")
@worst_option
def validate(
    cases: str | None, as_json: bool, calibration: str | None, output: str | None, scatter: str | None, worst: int
) -> None:
    """Predict the runs of CASES (a CSV file, or - for standard input) and compare with what was measured.

    \b
    Example:
      apss-cp validate --scatter predicted.html

    Without CASES: the published runs that come with apss-cp. A table of your own has the same columns. Rows that
    are wrong are told on stderr and left out. Exit codes: 0 some run was predicted; 2 none was, or bad input.
    """
    from cpsolver.doors.report.validation import validation_report
    from cpsolver.doors.report.validation_document import validation_document

    validation = _validated(cases, output, scatter, calibration)
    write_answer(
        as_json, output, lambda: validation_document(validation, worst), lambda: validation_report(validation, worst)
    )
    if scatter is not None:
        from cpsolver.doors.report.scatter import scatter_html
        from cpsolver.inputs.output import deliver

        deliver(scatter_html(validation), scatter)
    for trouble in validation.troubles:
        say_error(str(trouble))
    if not validation.scored:
        say_error(say("none of the runs could be predicted"))
    click.get_current_context().exit(0 if validation.scored else EXIT_BAD_INPUT)


def _validated(path: str | None, output: str | None, scatter: str | None, calibration: str | None) -> Validation:
    """Every complete run of a table ("-": standard input; None: the published runs) predicted, with a bar on stderr.

    Raises InputError for a table that cannot be read, and for files of the answer that could not be written.
    """
    from cpsolver.doors.report.progress import Bar
    from cpsolver.evidence.runs.table import PUBLISHED, read_runs
    from cpsolver.evidence.runs.validation import predict, validate
    from cpsolver.inputs.errors import InputError, Trouble
    from cpsolver.inputs.output import check_writable
    from cpsolver.profiles.constants import load_overlay

    cases = str(PUBLISHED) if path is None else path
    check_writable(output, cases)
    check_writable(scatter, cases)
    if output is not None and scatter is not None and Path(output).absolute() == Path(scatter).absolute():
        raise InputError(Trouble("", "is the file of --output and of --scatter: give two", file=scatter))
    table = read_runs(cases)
    predicted = predict if calibration is None else partial(predict, overlay=load_overlay(calibration))
    with Bar(say("predicting runs")) as bar:
        return validate(table.runs, predicted, bar, table.troubles)


@click.command(cls=SpokenCommand)
@click.argument("runs")
@click.option("--output", "-o", metavar="FILE", help="The calibration (RUNS with the ending .calibration.yaml).")
@click.option("--anyway", is_flag=True, help="Write it even where the runs are refused; the file says why they were.")
@worst_option
@json_option
def calibrate(runs: str, output: str | None, anyway: bool, worst: int, as_json: bool) -> None:
    """Learn from your own measured RUNS (a CSV file, or - for standard input) the constants that differ by cluster.

    \b
    Example:
      apss-cp calibrate our-runs.csv -o our-cluster.yaml
      apss-cp solve spec.yaml --calibration our-cluster.yaml

    RUNS has the columns of `apss-cp validate`, and `outcome` (ok, oom, failed); `tune --runs-csv` writes it. Every run
    is left out in turn to see what the others teach. Runs that are too few, contradict each other or teach nothing are
    refused. Needs scipy (apss-cp[calibrate]). docs/calibrate.md has the columns, the file and what it changes.
    Exit codes: 0 written; 2 bad input, or refused.
    """
    from cpsolver.doors.report.calibration import calibration_document, calibration_report
    from cpsolver.doors.report.document import versions
    from cpsolver.evidence.calibrate.checks import common_factor
    from cpsolver.evidence.calibrate.overlay import overlay_of, overlay_text
    from cpsolver.evidence.posterior import check_scipy
    from cpsolver.inputs.output import beside, check_writable, deliver

    check_scipy("calibrate")
    target = output or beside(runs, ".calibration.yaml")
    check_writable(target, runs)
    result = _calibrated(runs)
    overlay = overlay_of(result, str(versions()["apss_cp"]))
    refused = bool(result.doubts) and not anyway
    if not refused:
        deliver(overlay_text(overlay).rstrip("\n"), target)
    written = None if refused else target
    write_answer(
        as_json,
        None,
        lambda: calibration_document(result, overlay, written),
        lambda: calibration_report(result, overlay, written, worst),
    )
    if (factor := common_factor(result.runs)) is not None:
        click.echo(say("note: {text}", text=factor), err=True)
    for trouble in (*result.evidence.troubles, *result.doubts):
        say_error(str(trouble))
    if refused:
        kept = say(" ({target} is as it was)", target=target) if Path(target).exists() else ""
        say_error(
            say(
                "nothing was written{kept}; mend the rows or leave them out, or --anyway writes it all the same",
                kept=kept,
            )
        )
    click.get_current_context().exit(EXIT_BAD_INPUT if refused else 0)


def _calibrated(path: str) -> CalibrationResult:
    """What the runs of a table teach, with bars on stderr; raises InputError where no run can be learnt from."""
    from cpsolver.doors.report.progress import Bar
    from cpsolver.evidence.calibrate.observations import evidence_of
    from cpsolver.evidence.calibrate.result import calibrate as learn
    from cpsolver.evidence.runs.table import read_runs
    from cpsolver.inputs.errors import InputError, Trouble

    name = "<stdin>" if path == "-" else path
    table = read_runs(path)
    with Bar(say("reading runs")) as bar:
        evidence = evidence_of(table, bar)
    if not evidence.timed:
        reasons = [f"{reason}: {', '.join(ids)}" for reason, ids in evidence.left_out.items()]
        message = say("none of its runs has a step time that can be learnt from")
        raise InputError([*table.troubles, Trouble("", say("; ").join([message, *reasons]), file=name)])
    with Bar(say("learning from runs")) as bar:
        return learn(evidence, name, bar)
