"""check and explain: what a plan breaks, why there is none, and why not another one."""

from __future__ import annotations

import click

from cpsolver.commands.common import (
    EXIT_BAD_INPUT,
    EXIT_INFEASIBLE,
    calibration_option,
    json_option,
    known_as,
    output_option,
    rank_option,
    set_option,
    spec_argument,
    write_answer,
)
from cpsolver.commands.help import SpokenCommand
from cpsolver.commands.planning import check_rank, chosen_plan, sound_evaluation

_HOW = "YAML, JSON or an APSS line."


@click.command(cls=SpokenCommand)
@spec_argument
@click.option("--strategy", "-s", metavar="FILE", help=f"The plan: {_HOW}")
@known_as("strategy", "--plan", "-p")
@set_option
@rank_option
@json_option
@calibration_option
@output_option
def check(
    spec: str,
    strategy: str | None,
    settings: tuple[str, ...],
    plan_rank: int,
    as_json: bool,
    calibration: str | None,
    output: str | None,
) -> None:
    """Hold one plan for SPEC against every rule, and say which it breaks, with numbers.

    \b
    Example:
      apss-cp check examples/seed-published.yaml --strategy examples/seed-published-strategy.yaml

    --set tp=8 --set pp=8 in place of --strategy: the rest is filled in as `evaluate` does.
    Exit codes: 0 legal; 2 bad input, or sizes that do not add up; 3 a rule is broken.
    """
    import cpsolver
    from cpsolver.doors.report.explanations import check_document, check_report
    from cpsolver.inputs.output import check_writable

    problem = cpsolver.load_problem(spec, calibration=calibration)
    plan, _ = chosen_plan(problem, strategy, settings, plan_rank)
    check_writable(output, spec, *filter(None, [strategy]))
    broken, evaluation = cpsolver.check(problem, plan), sound_evaluation(problem, plan)
    write_answer(as_json, output, lambda: check_document(plan, broken), lambda: check_report(plan, broken, evaluation))
    click.get_current_context().exit((EXIT_BAD_INPUT if evaluation is None else EXIT_INFEASIBLE) if broken else 0)


@click.command(cls=SpokenCommand)
@spec_argument
@click.option("--strategy", "-s", metavar="FILE", help=f"Why not this plan? {_HOW}")
@known_as("strategy", "--plan", "-p")
@set_option
@rank_option
@json_option
@calibration_option
@output_option
def explain(
    spec: str,
    strategy: str | None,
    settings: tuple[str, ...],
    plan_rank: int,
    as_json: bool,
    calibration: str | None,
    output: str | None,
) -> None:
    """Say why SPEC has no plan and what would give it one, what would make it better, or why a plan is not the best.

    \b
    Example:
      apss-cp explain examples/seed-published.yaml --strategy examples/seed-published-strategy.yaml

    Without --strategy or --set: for a spec that has no plan the requirements that exclude each other and the smallest
    single changes that help, each solved; for one that has plans what each pin, ban and setting costs, and what
    another batch, number of devices, stack, launcher, memory margin or length of sequences nearby gains, alone and in
    pairs, each solved (Ctrl-C: what is known so far). With a plan: the rules that the plan breaks, or the time that
    it loses against the best, and which of its decisions, freed alone, help most. Exit codes: 0 there is a plan, and
    yours is legal; 2 bad input; 3 there is none, or yours is not legal.
    """
    import cpsolver
    from cpsolver.doors.report import explanations
    from cpsolver.doors.report.progress import Terminal
    from cpsolver.inputs.output import check_writable

    problem = cpsolver.load_problem(spec, calibration=calibration)
    check_rank(strategy)
    asked = strategy is not None or bool(settings)
    plan = chosen_plan(problem, strategy, settings, plan_rank)[0] if asked else None
    check_writable(output, spec, *filter(None, [strategy]))
    if plan is None:
        account = cpsolver.explain(problem, display=Terminal())
        sound, document = bool(account.result.plans), explanations.account_document(account)
        report = explanations.account_report(account)
    else:
        verdict = cpsolver.explain(problem, plan, display=Terminal())
        sound, document = not verdict.broken, explanations.favourite_document(problem, verdict)
        report = explanations.favourite_report(problem, verdict)
    write_answer(as_json, output, lambda: explanations.of_problem(problem, document), lambda: report)
    click.get_current_context().exit(0 if sound else EXIT_INFEASIBLE)
