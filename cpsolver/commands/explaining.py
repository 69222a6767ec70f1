"""check and explain: what a plan breaks, why there is none, and why not another one."""

from __future__ import annotations

import click

from cpsolver.commands.common import (
    EXIT_BAD_INPUT,
    EXIT_INFEASIBLE,
    calibration_option,
    json_option,
    output_option,
    rank_option,
    spec_argument,
)

_HOW = "YAML, JSON or an APSS line."


@click.command()
@spec_argument
@click.option("--strategy", "-s", required=True, metavar="FILE", help=f"The plan: {_HOW}")
@rank_option
@json_option
@calibration_option
@output_option
def check(spec: str, strategy: str, plan_rank: int, as_json: bool, calibration: str | None, output: str | None) -> None:
    """Hold one plan for SPEC against every rule, and say which it breaks, with numbers.

    \b
    Example:
      apss-cp check examples/seed-published.yaml --strategy examples/seed-published-strategy.yaml

    Exit codes: 0 legal; 2 bad input, or sizes that do not add up; 3 a rule is broken.
    """
    from cpsolver import rules
    from cpsolver.doors.report.document import dumps
    from cpsolver.doors.report.explanations import check_document, check_report
    from cpsolver.evaluation.evaluate import evaluate
    from cpsolver.inputs.output import check_writable, deliver, deliver_report
    from cpsolver.problem.load import load_problem
    from cpsolver.problem.strategy_file import load_strategy

    problem = load_problem(spec, calibration)
    plan = load_strategy(strategy, problem, plan_rank)
    check_writable(output, spec, strategy)
    broken = rules.violations(problem, plan)
    sound = not rules.structure_violations(problem, plan)
    if as_json:
        deliver(dumps(check_document(plan, broken)), output)
    else:
        deliver_report(check_report(plan, broken, evaluate(problem, plan) if sound else None), output)
    click.get_current_context().exit((EXIT_INFEASIBLE if sound else EXIT_BAD_INPUT) if broken else 0)


@click.command()
@spec_argument
@click.option("--strategy", "-s", metavar="FILE", help=f"Why not this plan? {_HOW}")
@rank_option
@json_option
@calibration_option
@output_option
def explain(
    spec: str, strategy: str | None, plan_rank: int, as_json: bool, calibration: str | None, output: str | None
) -> None:
    """Say why SPEC has no plan and what would give it one, what its wishes cost, or why a plan is not the best.

    \b
    Example:
      apss-cp explain examples/seed-published.yaml --strategy examples/seed-published-strategy.yaml

    Without --strategy: for a spec that has no plan the requirements that exclude each other and the smallest single
    changes that help, each solved; for one that has plans what each pin, ban and setting costs. With --strategy:
    the rules that the plan breaks, or the time that it loses against the best, and which of its decisions, freed
    alone, help most. Exit codes: 0 there is a plan, and yours is legal; 2 bad input; 3 there is none, or yours is not
    legal.
    """
    from cpsolver.commands.explain_run import explain_plan, explain_spec
    from cpsolver.inputs.output import check_writable
    from cpsolver.problem.load import load_problem
    from cpsolver.problem.strategy_file import load_strategy

    problem = load_problem(spec, calibration)
    plan = None if strategy is None else load_strategy(strategy, problem, plan_rank)
    check_writable(output, spec, *filter(None, [strategy]))
    sound = explain_spec(problem, as_json, output) if plan is None else explain_plan(problem, plan, as_json, output)
    click.get_current_context().exit(0 if sound else EXIT_INFEASIBLE)
