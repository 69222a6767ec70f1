"""What commands do between their options and their exit code: search, validate, show a catalogue, write an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.output import check_writable, deliver, deliver_report, file_error

if TYPE_CHECKING:
    from cpsolver.evaluation.evaluate import Evaluation
    from cpsolver.evidence.runs.validation import Validation
    from cpsolver.plans.strategy import Strategy
    from cpsolver.problem.problem import Problem
    from cpsolver.rules import Violation
    from cpsolver.search.result import Result


def watched_search(problem: Problem, verbose: bool) -> Result:
    """The search with its progress on stderr; an infeasible result has its reasons."""
    from cpsolver.doors.report.progress import Waiting, Watcher
    from cpsolver.search import search as engine

    with Watcher(verbose) as watcher:
        result = engine.search(problem, watcher)
    if result.status == "infeasible" and not result.reasons:
        from cpsolver.explanation import explain_infeasible
        from cpsolver.explanation.deadline import explain_deadline

        with Waiting("there is no plan; looking for the reasons, and for changes that would help"):
            reasons = explain_deadline(problem) or explain_infeasible(problem, result)
        return replace(result, reasons=reasons)
    return result


def deliver_result(problem: Problem, result: Result, as_json: bool, output: str | None) -> None:
    """Write the answer of `solve`."""
    if as_json:
        from cpsolver.doors.report.document import dumps, result_document

        deliver(dumps(result_document(problem, result)), output)
    else:
        from cpsolver.doors.report.console import result_report

        deliver_report(result_report(problem, result), output)


def deliver_evaluation(
    problem: Problem,
    plan: Strategy,
    evaluation: Evaluation | None,
    broken: Sequence[Violation],
    as_json: bool,
    output: str | None,
) -> None:
    """Write the answer of `evaluate`; as text there is none for a plan that could not be evaluated."""
    if as_json:
        from cpsolver.doors.report.document import dumps, evaluation_document

        deliver(dumps(evaluation_document(problem, plan, evaluation, broken)), output)
    elif evaluation is not None:
        from cpsolver.doors.report.console import evaluation_report

        deliver_report(evaluation_report(problem, plan, evaluation, broken), output)


def validate_table(
    path: str | None, output: str | None, scatter: str | None, calibration: str | None = None
) -> Validation:
    """Every complete run of a table ("-": standard input; None: the published runs) predicted, with a bar on stderr.

    `calibration`: an overlay's file, for predictions with what it learnt.
    Raises InputError for a table that cannot be read, and for files of the answer that could not be written.
    """
    from cpsolver.doors.report.progress import Bar
    from cpsolver.evidence.runs.table import PUBLISHED, read_runs
    from cpsolver.evidence.runs.validation import validate

    cases = str(PUBLISHED) if path is None else path
    check_writable(output, cases)
    check_writable(scatter, cases)
    if output is not None and scatter is not None and Path(output).absolute() == Path(scatter).absolute():
        raise InputError(Trouble("", "is the file of --output and of --scatter: give two", file=scatter))
    table = read_runs(cases)
    from cpsolver.evidence.runs.validation import predict
    from cpsolver.profiles.constants import load_overlay

    overlay = None if calibration is None else load_overlay(calibration)
    with Bar("predicting runs") as bar:
        return validate(
            table.runs, predict if overlay is None else partial(predict, overlay=overlay), bar, table.troubles
        )


def deliver_validation(
    validation: Validation, as_json: bool, output: str | None, scatter: str | None, worst: int
) -> None:
    """Write the answer of `validate`, and its plots where a file for them is named."""
    if as_json:
        from cpsolver.doors.report.document import dumps
        from cpsolver.doors.report.validation_document import validation_document

        deliver(dumps(validation_document(validation, worst)), output)
    else:
        from cpsolver.doors.report.validation import validation_report

        deliver_report(validation_report(validation, worst), output)
    if scatter is not None:
        from cpsolver.doors.report.scatter import scatter_html

        deliver(scatter_html(validation), scatter)


def show_models(name: str | None, as_json: bool) -> None:
    """Print the catalogue's models, or one of them; raises InputError for an unknown name."""
    from cpsolver.doors.report import catalogue

    if as_json:
        deliver(catalogue.models_json(name), None)
    else:
        deliver_report(catalogue.models_report(name))


def show_chips(name: str | None, as_json: bool) -> None:
    """Print the catalogue's chips, or one of them; raises InputError for an unknown name."""
    from cpsolver.doors.report import catalogue

    if as_json:
        deliver(catalogue.chips_json(name), None)
    else:
        deliver_report(catalogue.chips_report(name))


def show_stacks(name: str | None, as_json: bool) -> None:
    """Print the software-stack profiles, or one of them; raises InputError for an unknown name."""
    from cpsolver.doors.report import stacks

    if as_json:
        deliver(stacks.stacks_json(name), None)
    else:
        deliver_report(stacks.stacks_report(name))


def write_starter(path: str, text: str, force: bool) -> None:
    """Write a new file; one that is there already is replaced with `force` only. Raises InputError when it cannot."""
    try:
        with open(path, "w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise file_error(path, "is there already: give another path, or --force to replace it") from None
    except OSError as error:
        raise file_error(path, f"cannot be written: {error.strerror}") from None
