"""solve and evaluate: a spec in, plans or the judgement of one out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cpsolver.commands.common import (
    EXIT_BAD_INPUT,
    EXIT_INFEASIBLE,
    Finite,
    calibration_option,
    exit_with,
    json_option,
    known_as,
    output_option,
    part_options,
    rank_option,
    say_error,
    set_option,
    spec_argument,
    time_limit_option,
    verbose_option,
    write_answer,
)
from cpsolver.commands.help import SpokenCommand
from cpsolver.commands.next_steps import Given, next_steps
from cpsolver.inputs.language import ENGLISH, later, say, speaking

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cpsolver import Evaluation, Plan, PlanAnswer, Problem, Strategy, Violation
    from cpsolver.doors.report.answer import Part

html_option = click.option("--html", metavar="FILE", help="Write the report as one HTML file too.")
trace_option = click.option("--trace", metavar="FILE", help="Write a step's timeline too, for ui.perfetto.dev.")


@click.command(cls=SpokenCommand)
@spec_argument
@json_option
@verbose_option
@click.option("--top", type=click.IntRange(1, 100), help="How many plans; replaces search.top of the spec.")
@time_limit_option("Stop after so many seconds with the best plans so far; replaces search.time_limit_s.")
@part_options
@calibration_option
@output_option
@html_option
@trace_option
@click.option("--trace-plan", type=click.IntRange(1, 100), metavar="N", help="The plan for --trace, by its rank (1).")
@click.option("--verify", is_flag=True, help="A second opinion on the answer: one CP-SAT model of all that is close.")
@click.option(
    "--verify-time",
    "verify_s",
    type=Finite(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long --verify may take.",
)
def solve(
    spec: str,
    as_json: bool,
    verbose: bool,
    top: int | None,
    time_limit_s: float | None,
    calibration: str | None,
    output: str | None,
    html: str | None,
    trace: str | None,
    trace_plan: int | None,
    verify: bool,
    verify_s: float,
    parts: list[Part],
) -> None:
    """Find the K best plans for SPEC (a YAML or JSON file, or - for standard input), and prove it.

    \b
    Example:
      apss-cp solve examples/llama2-70b-a800-256.yaml --top 5
      apss-cp solve examples/llama2-70b-mixed.yaml --time --memory
      apss-cp solve examples/llama2-70b-mixed.yaml --html report.html --trace step.json

    The answer is a screen: what to run, how sure that is, the other plans, what to do next; --full and the flags below
    it show more. The best are the fastest, unless the spec's search.objective is cost or fewest_chips.
    Ctrl-C ends the search with the best plans so far and what could still be gained. Exit codes: 0 a plan;
    2 bad input; 3 proven that there is no plan; 4 no plan found within the time limit; 70 --verify contradicts the
    answer, which is a bug.
    """
    import cpsolver
    from cpsolver.doors.report.progress import Terminal
    from cpsolver.inputs.output import check_files, write_file

    problem = cpsolver.load_problem(spec, calibration=calibration, top=top, time_limit_s=time_limit_s)
    check_files({"--output": output, "--html": html, "--trace": trace}, spec)
    _check_trace_plan(problem, trace, trace_plan)
    display = Terminal(verbose)
    found = cpsolver.plan(problem, display=display)
    if verify:
        with display.waiting(f"a second opinion, {verify_s:g} s at most"):
            found = found.verify(time_limit_s=verify_s)
    result = found.result
    given = Given(spec, calibration, {"--top": top, "--time-limit": time_limit_s})
    write_result(found, as_json, output, parts, lambda: next_steps(problem, result, given))
    if html is not None:
        write_file(html, found.to_html())
    if trace is not None:
        rank = trace_plan or 1
        chosen = next((plan for plan in result.plans if plan.rank == rank), None)
        _write_trace(trace, problem, chosen, f"there is no plan {rank}")
    exit_with(result)


@click.command(cls=SpokenCommand)
@spec_argument
@click.option("--strategy", "-s", metavar="FILE", help="The plan: YAML, JSON or an APSS line.")
@known_as("strategy", "--plan", "-p")
@set_option
@rank_option
@json_option
@calibration_option
@output_option
@html_option
@trace_option
def evaluate(
    spec: str,
    strategy: str | None,
    settings: tuple[str, ...],
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
      apss-cp evaluate examples/llama2-70b-a800-256.yaml --set tp=8 --set pp=8

    With --set the rest is filled in, and told: dp is what is left, micro batches of 1, layers split evenly, flags as
    the spec's launcher has them. The plan's file is what `solve --json` prints (--plan-rank says which
    of its plans), has the shape of "strategy" in it, or is one line of `apss-cp search`.
    Exit codes: 0 evaluated and legal; 2 bad input, or no plan that could be evaluated (its layers, degrees,
    batch or chips do not add up); 3 evaluated, but a rule refuses it (out of memory, say).
    """
    import cpsolver
    from cpsolver.inputs.output import check_files, write_file

    problem = cpsolver.load_problem(spec, calibration=calibration)
    plan, added = chosen_plan(problem, strategy, settings, plan_rank)
    check_files({"--output": output, "--html": html, "--trace": trace}, spec, *filter(None, [strategy]))
    broken, evaluation = cpsolver.check(problem, plan), sound_evaluation(problem, plan)
    _write_evaluation(problem, plan, evaluation, broken, added, as_json, output)
    if html is not None:
        write_file(html, _page(problem, plan, evaluation, broken))
    if trace is not None:
        answer = None if evaluation is None else cpsolver.Plan(1, plan, evaluation, 0.0)
        _write_trace(trace, problem, answer, later("the plan could not be evaluated"))
    if evaluation is None:
        for violation in broken:
            say_error(f"{strategy or '--set'}: {violation}")
        click.get_current_context().exit(EXIT_BAD_INPUT)
    click.get_current_context().exit(EXIT_INFEASIBLE if broken else 0)


def _page(problem: Problem, plan: Strategy, evaluation: Evaluation | None, broken: Sequence[Violation]) -> str:
    """The page of one plan; one that could not be evaluated has its broken rules."""
    import cpsolver
    from cpsolver.doors.report.html.page import evaluation_page

    if evaluation is None:
        return evaluation_page(problem, plan, None, broken)
    return cpsolver.JudgedPlan(problem, plan, evaluation).to_html()


def chosen_plan(
    problem: Problem, strategy: str | None, settings: Sequence[str], rank: int
) -> tuple[Strategy, Mapping[str, Any]]:
    """The plan of --strategy, or that of --set with what was filled in, which stderr tells. Raises InputError."""
    import cpsolver
    from cpsolver.inputs.errors import InputError, Trouble
    from cpsolver.problem.filled import fill_strategy, read_settings

    if strategy is not None and settings:
        raise InputError(Trouble("--set", "makes a plan, and --strategy names one: give one of them"))
    check_rank(strategy)
    if strategy is not None:
        return cpsolver.load_strategy(strategy, problem, rank), {}
    if not settings:
        raise InputError(Trouble("", "which plan? Give --strategy FILE, or decisions of it: --set tp=8 --set pp=8"))
    filled = fill_strategy(problem, read_settings(settings))
    click.echo(say("filled in: {decisions}", decisions=filled), err=True)
    return filled.strategy, filled.added


def check_rank(strategy: str | None) -> None:
    """Raises InputError for --plan-rank where no file has plans to choose from."""
    from click.core import ParameterSource

    from cpsolver.inputs.errors import InputError, Trouble

    given = click.get_current_context().get_parameter_source("plan_rank") is ParameterSource.COMMANDLINE
    if given and strategy is None:
        raise InputError(Trouble("--plan-rank", "says which plan of --strategy, and none is given"))


def sound_evaluation(problem: Problem, plan: Strategy) -> Evaluation | None:
    """What the plan gives; None where its sizes do not add up, of which the broken rules tell."""
    import cpsolver

    try:
        return cpsolver.evaluate(problem, plan)
    except cpsolver.InputError:
        return None


def write_result(
    found: PlanAnswer,
    as_json: bool,
    output: str | None,
    parts: Sequence[Part] = ("full",),
    steps: Callable[[], Sequence[str]] = tuple,
) -> None:
    """Write the answer of a search; as text with those parts, and with commands to go on with."""

    def report() -> RenderableType:
        from cpsolver.doors.report.answer import answer

        return answer(found.problem, found.result, parts, steps())

    write_answer(as_json, output, found.to_dict, report)


def _write_evaluation(
    problem: Problem,
    plan: Strategy,
    evaluation: Evaluation | None,
    broken: Sequence[Violation],
    added: Mapping[str, Any],
    as_json: bool,
    output: str | None,
) -> None:
    """Write the answer of `evaluate`; as text there is none for a plan that could not be evaluated.

    `added`: the decisions that were filled in, which the document names.
    """

    def document() -> dict[str, Any]:
        from cpsolver.doors.report.document import evaluation_document
        from cpsolver.doors.report.open_switches import open_of_plan

        told = evaluation_document(problem, plan, evaluation, broken, open_of_plan(problem, plan, evaluation))
        return {**told, "filled_in": dict(added)} if added else told

    def report() -> RenderableType:
        from cpsolver.doors.report.console import evaluation_report

        assert evaluation is not None
        return evaluation_report(problem, plan, evaluation, broken)

    if as_json or evaluation is not None:
        write_answer(as_json, output, document, report)


def _check_trace_plan(problem: Problem, trace: str | None, rank: int | None) -> None:
    """Raises InputError where a plan is asked for that the search will not return, or no file for its trace."""
    from cpsolver.inputs.errors import InputError, Trouble

    top = problem.spec.search.top
    if rank is not None and trace is None:
        raise InputError(Trouble("--trace-plan", "says which plan to trace, but not where to: give --trace FILE too"))
    if rank is not None and rank > top:
        allowed = later("1 to {top}, or a larger --top (search.top)", top=top)
        raise InputError(Trouble("--trace-plan", "is not a plan of this search", rank, allowed))


def _write_trace(path: str, problem: Problem, plan: Plan | None, missing: str) -> None:
    """Write a step of the plan as a trace; what there is to note of it goes to stderr. Raises InputError."""
    from cpsolver.doors.report.plan_trace import cut_note, plan_trace
    from cpsolver.doors.report.trace import write_chrome_trace
    from cpsolver.inputs.output import file_error

    if plan is None:
        click.echo(say("note: {missing}: no trace was written to {path}", missing=say(missing), path=path), err=True)
        return
    with speaking(ENGLISH):  # a file for another program
        trace = plan_trace(problem, plan)
    try:
        write_chrome_trace(path, trace)
    except OSError as error:
        raise file_error(path, later("cannot be written: {why}", why=error.strerror)) from None
    if note := cut_note(trace):
        click.echo(f"note: {note} {path}", err=True)
