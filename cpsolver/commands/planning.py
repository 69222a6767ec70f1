"""solve and evaluate: a spec in, plans or the judgement of one out."""

from __future__ import annotations

import click

from cpsolver.commands.common import (
    EXIT_BAD_INPUT,
    EXIT_INFEASIBLE,
    calibration_option,
    exit_with,
    json_option,
    output_option,
    rank_option,
    say_error,
    spec_argument,
)

html_option = click.option("--html", metavar="FILE", help="Write the report as one HTML file too.")
trace_option = click.option("--trace", metavar="FILE", help="Write a step's timeline too, for ui.perfetto.dev.")


@click.command()
@spec_argument
@json_option
@click.option("--verbose", "-v", is_flag=True, help="Show every step of the search on stderr.")
@click.option("--top", type=click.IntRange(1, 100), help="How many plans; replaces search.top of the spec.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop after so many seconds with the best plans so far; replaces search.time_limit_s.",
)
@calibration_option
@output_option
@html_option
@trace_option
@click.option("--trace-plan", type=click.IntRange(1, 100), metavar="N", help="The plan for --trace, by its rank (1).")
def solve(
    spec: str,
    as_json: bool,
    verbose: bool,
    top: int | None,
    time_limit: float | None,
    calibration: str | None,
    output: str | None,
    html: str | None,
    trace: str | None,
    trace_plan: int | None,
) -> None:
    """Find the K best plans for SPEC (a YAML or JSON file, or - for standard input), and prove it.

    \b
    Example:
      apss-cp solve examples/llama2-70b-a800-256.yaml --top 5
      apss-cp solve examples/llama2-70b-mixed.yaml --html report.html --trace step.json

    The best are the fastest, unless the spec's search.objective is cost or fewest_chips.
    Ctrl-C ends the search with the best plans so far and what could still be gained. Exit codes: 0 a plan;
    2 bad input; 3 proven that there is no plan; 4 no plan found within the time limit.
    """
    from cpsolver.commands.answers import deliver_result, watched_search
    from cpsolver.commands.pictures import check_trace_plan, write_result_pictures
    from cpsolver.inputs.output import check_files
    from cpsolver.problem.load import load_problem

    problem = load_problem(spec, calibration, top=top, time_limit_s=time_limit)
    check_files({"--output": output, "--html": html, "--trace": trace}, spec)
    check_trace_plan(problem, trace, trace_plan)
    result = watched_search(problem, verbose)
    deliver_result(problem, result, as_json, output)
    for note in write_result_pictures(problem, result, html, trace, trace_plan or 1):
        click.echo(f"note: {note}", err=True)
    exit_with(result)


@click.command()
@spec_argument
@click.option("--strategy", "-s", required=True, metavar="FILE", help="The plan: YAML, JSON or an APSS line.")
@rank_option
@json_option
@calibration_option
@output_option
@html_option
@trace_option
def evaluate(
    spec: str,
    strategy: str,
    plan_rank: int,
    as_json: bool,
    calibration: str | None,
    output: str | None,
    html: str | None,
    trace: str | None,
) -> None:
    """Predict step time, throughput and memory of one plan for SPEC, and list every rule that it breaks.

    \b
    Example:
      apss-cp evaluate examples/seed-published.yaml --strategy examples/seed-published-strategy.yaml

    The plan's file is what `solve --json` prints (--plan-rank says which of its plans), has the shape of "strategy" in
    it, or is one line of `apss-cp search`.
    Exit codes: 0 evaluated and legal; 2 bad input, or no plan that could be evaluated (its layers, degrees,
    batch or chips do not add up); 3 evaluated, but a rule refuses it (out of memory, say).
    """
    from cpsolver import rules
    from cpsolver.commands.answers import deliver_evaluation
    from cpsolver.commands.pictures import write_evaluation_pictures
    from cpsolver.evaluation import evaluate as judge
    from cpsolver.inputs.output import check_files
    from cpsolver.problem.load import load_problem
    from cpsolver.problem.strategy_file import load_strategy

    problem = load_problem(spec, calibration)
    plan = load_strategy(strategy, problem, plan_rank)
    check_files({"--output": output, "--html": html, "--trace": trace}, spec, strategy)
    broken = rules.violations(problem, plan)
    sound = not rules.structure_violations(problem, plan)
    evaluation = judge.evaluate(problem, plan) if sound else None
    deliver_evaluation(problem, plan, evaluation, broken, as_json, output)
    for note in write_evaluation_pictures(problem, plan, evaluation, broken, html, trace):
        click.echo(f"note: {note}", err=True)
    if evaluation is None:
        for found in broken:
            say_error(f"{strategy}: {found}")
    click.get_current_context().exit(EXIT_INFEASIBLE if sound and broken else 0 if sound else EXIT_BAD_INPUT)
