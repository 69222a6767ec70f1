"""batch: many specs from one sweep file, in parallel, kept and resumed; compare: some, in a decision table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cpsolver.commands.common import (
    EXIT_BAD_INPUT,
    EXIT_INFEASIBLE,
    EXIT_INTERRUPTED,
    EXIT_NO_PLAN_IN_TIME,
    Finite,
    calibration_option,
    json_option,
    output_option,
    say_error,
    time_limit_option,
    write_answer,
)
from cpsolver.commands.help import SpokenCommand
from cpsolver.inputs.language import say

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cpsolver.doors.batch.compare import Comparison
    from cpsolver.doors.batch.run import SweepAnswer, SweepRequest


@click.command(cls=SpokenCommand)
@click.argument("sweep")
@json_option
@click.option("--db", metavar="FILE", help="Where results are kept; by default SWEEP with the ending .sqlite.")
@click.option("--jobs", "-j", type=click.IntRange(1, 4096), help="Cells solved at once; by default one a core.")
@time_limit_option("For each cell: stop after so many seconds with the best plans so far.")
@click.option("--retry-failed", is_flag=True, help="Solve again the cells that failed (a worker that died, say).")
@calibration_option
@click.option("--csv", "csv_file", metavar="FILE", help="Also write the cells as CSV.")
@click.option("--parquet", "parquet_file", metavar="FILE", help="Also write them as Parquet (needs pyarrow).")
@click.option("--html", "html_file", metavar="FILE", help="Also show them: one HTML page to play with.")
@click.option("--on", type=click.Choice(["ray"]), help="Solve on a Ray cluster; a local one without --ray-address.")
@click.option("--ray-address", metavar="ADDRESS", help="Of the Ray cluster: HOST:PORT, ray://HOST:PORT or auto.")
def batch(as_json: bool, csv_file: str | None, parquet_file: str | None, html_file: str | None, **options: Any) -> None:
    """Solve every cell of SWEEP (a YAML or JSON file, or - for standard input): models, chips, sizes, prices.

    \b
    Example:
      apss-cp batch examples/sweep.yaml --html sweep.html

    Each result is kept the moment it is known: a run that was stopped or killed goes on where it was when the
    same command is given again. A cell that is wrong or infeasible is a row that says so. docs/batch.md has the
    sweep file and the columns. Exit codes: 0 some cell has a plan; 2 bad input, or no cell could be solved;
    3 every cell that could be solved is infeasible; 4 no plan within the time limit; 130 stopped by Ctrl-C.
    """
    from cpsolver.doors.batch.run import SweepRequest

    request = SweepRequest(**options)
    _check(request, {"--csv": csv_file, "--parquet": parquet_file, "--html": html_file})
    answer = solved_sweep(request)
    _deliver(answer, as_json, csv_file, parquet_file, html_file)
    click.get_current_context().exit(sweep_exit_code(answer))


def solved_sweep(request: SweepRequest) -> SweepAnswer:
    """The sweep with all its cells; a run that is stopped ends the command, with what is kept told on stderr."""
    from cpsolver.doors.batch.run import run_batch

    answer = run_batch(request)
    if answer.damaged:
        click.echo(_damaged(answer), err=True)
    if answer.interrupted:
        missing = sum(row is None for row in answer.rows)
        told = say(
            "stopped: {kept:,} of {all:,} cells are kept in {database}; "
            "the same command goes on with the other {missing:,}",
            kept=len(answer.rows) - missing,
            all=len(answer.rows),
            database=answer.database,
            missing=missing,
        )
        say_error(told)
        click.get_current_context().exit(EXIT_INTERRUPTED)
    return answer


def _damaged(answer: SweepAnswer) -> str:
    places, database = ", ".join(map(str, answer.damaged)), answer.database
    if len(answer.damaged) == 1:
        return say("note: row {place} of {database} damaged: solved again", place=places, database=database)
    return say("note: rows {places} of {database} damaged: solved again", places=places, database=database)


def _check(request: SweepRequest, files: dict[str, str | None]) -> None:
    """Raise what would only show after the cells are solved: files that cannot be written, one for two things."""
    from cpsolver.doors.batch.run import database_path
    from cpsolver.inputs.errors import InputError, Trouble
    from cpsolver.inputs.output import check_files

    if any(files.values()):
        check_files({"--db": database_path(request), **files}, request.sweep)
    if files["--parquet"] is not None:
        from cpsolver.doors.batch.files import check_parquet

        check_parquet()
    if request.ray_address is not None and request.on is None:
        message = say("says where Ray is, and --on ray is missing")
        raise InputError(Trouble("--ray-address", message, request.ray_address))


def _deliver(
    answer: SweepAnswer, as_json: bool, csv_file: str | None, parquet_file: str | None, html_file: str | None
) -> None:
    from cpsolver.doors.batch import files
    from cpsolver.inputs.output import deliver, write_file

    if csv_file is not None:
        write_file(csv_file, files.sweep_csv(answer))
    if parquet_file is not None:
        files.write_parquet(answer, parquet_file)
    if html_file is not None:
        from cpsolver.doors.batch.page import sweep_page
        from cpsolver.doors.report.html.choices import choices_page

        deliver(choices_page(sweep_page(answer)), html_file)

    def report() -> RenderableType:
        from cpsolver.doors.batch.summary import summary

        return summary(answer)

    write_answer(as_json, None, lambda: files.document(answer), report)


def sweep_exit_code(answer: SweepAnswer) -> int:
    """0 when some cell has a plan, else what kept all from having one."""
    found = {row["status"] for _, row in answer.done}
    if found & {"optimal", "feasible"}:
        return 0
    if found == {"error"}:
        return EXIT_BAD_INPUT
    return EXIT_NO_PLAN_IN_TIME if "unknown" in found else EXIT_INFEASIBLE


@click.command(cls=SpokenCommand)
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
@click.option(
    "--on",
    multiple=True,
    metavar="CHIP:N[@PRICE][,...]",
    help="A cluster for the one SPEC, its price in dollars per device-hour; give it once for each.",
)
@click.option("--tokens", type=Finite(min=1), help="Of the whole training; replaces training.tokens.")
@click.option("--nodes/--no-nodes", "resize", default=True, help="Also with a node more and a node less (the default).")
@time_limit_option("For each search: stop after so many seconds with the best plan so far.")
@calibration_option
@json_option
@output_option
@click.option("--html", "html_file", metavar="FILE", help="Also write it as one HTML page to play with.")
def compare(as_json: bool, output: str | None, html_file: str | None, **options: Any) -> None:
    """Weigh SPECs, or clusters for one: expected days and dollars with intervals, the chance of being in time.

    \b
    Example:
      apss-cp compare spec.yaml --on h100:512@2.5 --on a800:768@1.2 --tokens 1e12
      apss-cp compare on-h100.yaml on-a800.yaml

    Prices are those of --on, else of the spec (cluster.prices). The winner costs the fewest dollars of those at least
    as likely as not to meet the spec's deadline. Break-even: the price with which an option would cost as much as the
    cheapest other one in time. Exit codes: 0 some option has a plan; 2 bad input; 3 none has one; 4 none was found in
    time.
    """
    from cpsolver.doors.batch.compare import ComparisonRequest
    from cpsolver.doors.batch.compare import compare as compared
    from cpsolver.doors.report.progress import Terminal
    from cpsolver.inputs.output import check_files, deliver

    check_files({"--html": html_file, "--output": output}, *options["specs"])
    found = compared(ComparisonRequest(**options), Terminal())
    if html_file is not None:
        from cpsolver.doors.batch.comparison_page import comparison_page
        from cpsolver.doors.report.html.choices import choices_page

        deliver(choices_page(comparison_page(found)), html_file)

    def document() -> dict[str, Any]:
        from cpsolver.doors.batch.decision import comparison_document

        return comparison_document(found)

    def report() -> RenderableType:
        from cpsolver.doors.batch.decision import comparison_report

        return comparison_report(found)

    write_answer(as_json, output, document, report)
    click.get_current_context().exit(compared_exit_code(found))


def compared_exit_code(found: Comparison) -> int:
    """0 when some option has a plan, else what kept all from having one."""
    statuses = {option.answer.result.status for option in found.options}
    if statuses & {"optimal", "feasible"}:
        return 0
    return EXIT_NO_PLAN_IN_TIME if "unknown" in statuses else EXIT_INFEASIBLE
