"""replicas: data parallelism over unequal chips, each with its own share of the batch."""

from __future__ import annotations

from typing import Literal

import click

from cpsolver.commands.common import (
    EXIT_INFEASIBLE,
    calibration_option,
    json_option,
    output_option,
    say_error,
    spec_argument,
    write_answer,
)
from cpsolver.commands.help import SpokenCommand
from cpsolver.inputs.language import say


@click.command(cls=SpokenCommand)
@spec_argument
@click.option(
    "--counts",
    type=click.Choice(["own", "common"]),
    default="own",
    show_default=True,
    help="Microbatches of each kind: own, a number of its own (SynerFuse); common, one for all (FlagScale 0.3).",
)
@json_option
@calibration_option
@output_option
def replicas(
    spec: str, counts: Literal["own", "common"], as_json: bool, calibration: str | None, output: str | None
) -> None:
    """Share the batch of SPEC out over unequal chips: data parallelism, each chip type with its own micro batch.

    \b
    Example:
      apss-cp replicas examples/llama2-7b-replicas.yaml --counts common

    Every replica stands on one chip type, without a pipeline, and takes as many sequences as its chips are fast: the
    best shares there are, for every tp, sharding (ZeRO-0 and 1; 2 and 3 where pinned) and recomputation (none, or every
    layer), which all replicas have in common. The spec says how many of each chip type there are, and names no
    launcher. docs/replicas.md has more. Exit codes: 0 a plan; 2 bad input; 3 no micro batch fits, or no shares sum to
    the batch.
    """
    import cpsolver
    from cpsolver.doors.report.replicas import replicas_document, replicas_report
    from cpsolver.inputs.output import check_writable

    problem = cpsolver.load_problem(spec, calibration=calibration)
    check_writable(output, spec)
    found = cpsolver.plan_replicas(problem, counts)
    if found is None:
        say_error(
            say("no plan: a micro batch of 1 does not fit somewhere, or no shares of whole sequences sum to the batch")
        )
        click.get_current_context().exit(EXIT_INFEASIBLE)
    write_answer(
        as_json,
        output,
        lambda: replicas_document(problem, found, counts),
        lambda: replicas_report(problem, found, counts),
    )
