"""export and ranks: a plan as what a framework is started with, and which rank stands where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from cpsolver.commands import completion
from cpsolver.commands.common import (
    EXIT_INFEASIBLE,
    calibration_option,
    exit_with,
    json_option,
    known_as,
    output_option,
    rank_option,
    spec_argument,
    write_answer,
)
from cpsolver.commands.help import SpokenCommand
from cpsolver.commands.planning import write_result
from cpsolver.inputs.language import say

if TYPE_CHECKING:
    from cpsolver import Launch, Problem, Result, Strategy

JOBS = ("sbatch", "kubernetes", "pytorchjob", "volcano", "ssh")
_MOST = 100
"""The most plans that a search may be asked for (search.top)."""
plan_option = click.option(
    "--plan", "-p", metavar="FILE", help="The plan: what `solve --json` wrote, or a strategy file; else SPEC is solved."
)


@click.command(cls=SpokenCommand)
@spec_argument
@click.option(
    "--to",
    "target",
    required=True,
    metavar="TARGET",
    help="The framework: a launcher's name.",
    shell_complete=completion.launchers,
)
@plan_option
@known_as("plan", "--strategy", "-s")
@rank_option
@click.option(
    "--job",
    type=click.Choice(JOBS),
    help="Write what starts all nodes, too: a batch script of Slurm, manifests of Kubernetes (its own jobs, "
    "Kubeflow's, Volcano's), a loop of ssh.",
)
@click.option("--output", "-o", "folder", metavar="DIR", help="Write the files into DIR instead of stdout.")
@click.option("--force", is_flag=True, help="Replace files that DIR has already.")
@calibration_option
@json_option
def export(
    spec: str,
    target: str,
    plan: str | None,
    plan_rank: int,
    job: str | None,
    folder: str | None,
    force: bool,
    calibration: str | None,
    as_json: bool,
) -> None:
    """Turn a plan for SPEC into the arguments, files and environment that a framework is started with.

    \b
    Example:
      apss-cp export spec.yaml --to megatron-lm --plan plans.json --plan-rank 2 -o launch

    Targets: megatron-lm, megatron-core-0.13, megatron-core-0.12, megatron-bridge, verl, mindspeed-llm, loongforge,
    flagscale, deepspeed, megatron-deepspeed, torchtitan, accelerate, paddleformers, mindformers. plans.json is what
    `apss-cp solve spec.yaml --json` prints.

    A plan that the framework cannot run is refused with the reasons, and with the nearest plan that it can run.
    Exit codes: 0 exported; 2 bad input; 3 the framework cannot run the plan, or there is no plan at all.
    """
    import cpsolver
    from cpsolver.doors.export.launch import check_directory, check_target
    from cpsolver.doors.export.report import launch_document, launch_text
    from cpsolver.doors.report.document import dumps

    check_target(target)
    if folder is not None:
        check_directory(folder)
    problem = cpsolver.load_problem(spec, calibration=calibration)
    strategy = _plan(problem, plan, plan_rank, target)
    try:
        launch = cpsolver.export(problem, strategy, target, folder=folder, force=force, job=job)
    except cpsolver.CannotExpress as refused:
        _refuse(problem, strategy, target, refused.reasons, as_json)
        click.get_current_context().exit(EXIT_INFEASIBLE)
    if as_json:
        click.echo(dumps(launch_document(problem, strategy, launch)))
    elif folder is None:
        click.echo(launch_text(launch))
    else:
        _say_what_to_start(launch, folder, launch.main if job else launch.start[0])


@click.command(cls=SpokenCommand)
@spec_argument
@plan_option
@known_as("plan", "--strategy", "-s")
@rank_option
@calibration_option
@json_option
@output_option
def ranks(
    spec: str, plan: str | None, plan_rank: int, calibration: str | None, as_json: bool, output: str | None
) -> None:
    """Show which ranks form the tp, cp, ep, dp and pp groups of a plan for SPEC, and on which node each rank is.

    \b
    Example:
      apss-cp ranks examples/llama2-70b-a800-256.yaml

    The order is Megatron's (tp-cp-ep-dp-pp). --json gives every group and the place of every rank.
    """
    import cpsolver
    from cpsolver.doors.export.report import ranks_document, ranks_report
    from cpsolver.inputs.errors import InputError, Trouble
    from cpsolver.inputs.output import check_writable
    from cpsolver.problem.ranks import rank_map

    problem = cpsolver.load_problem(spec, calibration=calibration)
    check_writable(output, spec)
    strategy = _plan(problem, plan, plan_rank)
    places = rank_map(problem, strategy)
    try:
        _ = places.groups
    except (ValueError, ZeroDivisionError):
        if not (broken := cpsolver.check(problem, strategy)):
            raise
        told = [say("has no groups to show, for the plan is not legal: {broken}", broken=each) for each in broken]
        raise InputError([Trouble("--plan", each, file=plan) for each in told]) from None
    write_answer(as_json, output, lambda: ranks_document(problem, places), lambda: ranks_report(problem, places))


def _plan(problem: Problem, path: str | None, number: int, target: str | None = None) -> Strategy:
    """The plan of the file, or of a search; ends the command where a search finds none."""
    if path is not None:
        from cpsolver.doors.export.judge import load_plan

        return load_plan(path, number, problem)
    import cpsolver

    asked = click.get_current_context().get_parameter_source("plan_rank") is ParameterSource.COMMANDLINE
    result = _searched(problem, None if asked else target)  # a rank is one of the answer of `solve`
    if result.plans and len(result.plans) < number <= _MOST and problem.spec.search.top < number:
        result = _searched(problem.with_(search={"top": number}), None)
    if not result.plans:
        as_json = bool((click.get_current_context().find_root().obj or {}).get("json"))
        write_result(cpsolver.PlanAnswer(problem, result), as_json, None)
        exit_with(result)
    if len(result.plans) < number:
        allowed = say("1 to {plans}", plans=len(result.plans))
        raise cpsolver.InputError(cpsolver.Trouble("--plan-rank", say("is no plan of the answer"), number, allowed))
    return result.plans[number - 1].strategy


def _searched(problem: Problem, target: str | None) -> Result:
    """The answer among the plans that the target runs; among all where the spec names a launcher, or it runs none."""
    import cpsolver
    from cpsolver.doors.export.judge import for_target
    from cpsolver.doors.report.progress import Terminal, Watcher
    from cpsolver.search.search import search

    there = None if target is None else for_target(problem, target)
    if there is not None:
        with Watcher() as watcher:
            result = search(there, watcher)
        if result.plans:
            note = say("note: of the plans that {target} runs, since the spec names no launcher", target=target)
            click.echo(note, err=True)
            return result
    return cpsolver.solve(problem, display=Terminal())


def _refuse(problem: Problem, strategy: Strategy, target: str, reasons: tuple[str, ...], as_json: bool) -> None:
    from cpsolver.doors.export.judge import nearest_plan
    from cpsolver.doors.export.report import refusal_document, refusal_text
    from cpsolver.doors.report.document import dumps
    from cpsolver.doors.report.progress import Waiting
    from cpsolver.search.search import search

    with Waiting(say("{target} cannot run this plan; looking for the nearest that it can", target=target)):
        near = nearest_plan(problem, strategy, target, search)
    click.echo(
        dumps(refusal_document(target, strategy, reasons, near)) if as_json else refusal_text(target, reasons, near)
    )


def _say_what_to_start(launch: Launch, folder: str, started: str | None) -> None:
    from cpsolver.inputs.errors import one_line

    files = ", ".join(launch.files)
    told = say("{folder}: {files}; start {main}", folder=folder, files=files, main=started)
    click.echo(told if launch.main else folder)
    for note in launch.notes:
        click.echo(f"- {one_line(note)}")
