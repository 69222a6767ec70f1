"""validate: predictions against measured runs."""

from __future__ import annotations

import click

from cpsolver.commands.common import EXIT_BAD_INPUT, calibration_option, json_option, output_option, say_error


@click.command()
@click.argument("cases", required=False)
@json_option
@calibration_option
@output_option
@click.option("--scatter", metavar="FILE.html", help="Also draw predicted against measured into FILE.html.")
@click.option(
    "--worst", type=click.IntRange(0, 1000), default=5, show_default=True, help="How many of the worst runs to show."
)
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
    from cpsolver.commands.answers import deliver_validation, validate_table

    validation = validate_table(cases, output, scatter, calibration)
    deliver_validation(validation, as_json, output, scatter, worst)
    for trouble in validation.troubles:
        say_error(str(trouble))
    if not validation.scored:
        say_error("none of the runs could be predicted")
    click.get_current_context().exit(0 if validation.scored else EXIT_BAD_INPUT)
