"""calibrate: what a user's own measured runs say of the constants, as a file for --calibration."""

from __future__ import annotations

import click

from cpsolver.commands.common import EXIT_BAD_INPUT, json_option, say_error


@click.command()
@click.argument("runs")
@click.option("--output", "-o", metavar="FILE", help="The calibration (RUNS with the ending .calibration.yaml).")
@click.option("--anyway", is_flag=True, help="Write it even where the runs are refused; the file says why they were.")
@click.option(
    "--worst", type=click.IntRange(0, 1000), default=5, show_default=True, help="How many of the worst runs to show."
)
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
    from cpsolver.commands.calibrate_run import run_calibration

    troubles, refused = run_calibration(runs, output, anyway, worst, as_json)
    for told in troubles:
        say_error(told)
    click.get_current_context().exit(EXIT_BAD_INPUT if refused else 0)
