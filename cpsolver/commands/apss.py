"""search: the flags and the output of the APSS tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cpsolver.commands import completion
from cpsolver.commands.common import exit_with, json_option, launcher_option, say_error
from cpsolver.commands.help import SpokenCommand


@click.command(cls=SpokenCommand)
@click.option(
    "--model-name",
    default="llama2-70b",
    show_default=True,
    help="Name in `apss-cp models`.",
    shell_complete=completion.models,
)
@click.option("--num-gpus", type=int, default=256, show_default=True, help="GPUs in use, up to 1,048,576.")
@click.option(
    "--gpu-infos",
    default="a800",
    show_default=True,
    metavar="TYPE[:MAX][,...]",
    shell_complete=completion.counted_chips,
    help="Chip types and the most devices of each; -1, or no number: no limit. Names in `apss-cp chips`.",
)
@click.option("--nproc-per-node", type=int, default=8, show_default=True, help="GPUs in a node.")
@click.option("--global-batch-size", type=int, default=1024, show_default=True, help="Sequences, up to 1,048,576.")
@click.option(
    "--sequence-length",
    type=int,
    default=4096,
    show_default=True,
    help="Tokens in a sequence: a multiple of 512, up to 1,048,576.",
)
@click.option("--top", type=int, default=5, show_default=True, help="How many plans, up to 100.")
@launcher_option
@click.option(
    "--mode",
    type=click.Choice(["fast", "analytic"]),
    default="fast",
    show_default=True,
    help="analytic: also write a trace of each plan to ./cache (for chrome://tracing or ui.perfetto.dev).",
)
@click.option("--tokens", type=float, help="Of the whole training: its days are told on stderr.")
@click.option("--prices", metavar="TYPE:DOLLARS[,...]", help="Per device-hour: its dollars are told too.")
@json_option
def search(mode: str, as_json: bool, **flags: Any) -> None:
    """Find the fastest plans with the flags of the APSS tool; one dictionary a plan, one a line, best first.

    \b
    Example:
      apss-cp search --model-name llama2-70b --num-gpus 256 --nproc-per-node 8 \\
        --gpu-infos a800:128,h800:160 --global-batch-size 512 --sequence-length 4096 --top 3

    A line is a Python literal; with --json it is JSON. The same search with a report: `apss-cp solve`.
    Exit codes: 0 a plan; 2 bad input; 3 proven that there is no plan; 4 interrupted before the first plan.
    """
    import cpsolver
    from cpsolver.doors.report.columns import shown_plan
    from cpsolver.doors.report.document import dumps_line
    from cpsolver.doors.report.open_switches import open_line, open_of_result
    from cpsolver.doors.report.outlook import outlook_words
    from cpsolver.doors.report.progress import Terminal
    from cpsolver.doors.report.seed_tool import Flags, plan_dictionary, problem_from_flags

    problem = problem_from_flags(Flags(**flags))
    if mode == "analytic":
        Path("cache").mkdir(exist_ok=True)
    result = cpsolver.solve(problem, display=Terminal())
    for plan in result.plans:
        line = plan_dictionary(problem, plan)
        click.echo(dumps_line(line) if as_json else repr(line))
    for best in result.plans[:1]:
        outlook = shown_plan(problem, "", best.strategy, best.evaluation).outlook
        if words := outlook_words(problem, outlook):
            click.echo(words, err=True)
    for told in open_line(open_of_result(problem, result)):
        click.echo(told.plain, err=True)
    for reason in result.reasons:
        say_error(reason)
    if as_json and not result.plans:
        click.echo(dumps_line({"status": result.status, "reasons": list(result.reasons)}))
    if mode == "analytic":
        from cpsolver.doors.report.plan_trace import write_traces

        for note in write_traces(problem, result, Path("cache")):
            click.echo(note, err=True)
    if result.plans and result.status != "optimal":
        gap = result.plans[0].gap
        to_gain = f"another plan may be up to {gap:.1%} faster" if gap < 1 else "no bound on other plans is known yet"
        click.echo(f"stopped early: {to_gain}", err=True)
    exit_with(result)
