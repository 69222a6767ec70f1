"""The rules on what frameworks can run: the launcher's, and the stack's. Their facts say it (profiles/facts.py)."""

from __future__ import annotations

from collections.abc import Iterator, Set

from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import Framework
from cpsolver.profiles.judging import in_short, refusals
from cpsolver.rules.base import chosen, rule


def _in_short(what: str, framework: Framework | None, asked: Set[str]) -> str:
    return "" if framework is None else f"{what} {framework.name} {chosen(in_short(framework), asked)}"


def _refused(framework: Framework | None, problem: Problem, s: Strategy) -> Iterator[str]:
    if framework is not None:
        for message in refusals(framework, problem.model, s, problem.batch):
            yield f"{framework.name} {message}"


@rule(briefly=lambda p, asked: _in_short("launcher", p.named_launcher, asked))
def launcher(problem: Problem, s: Strategy) -> Iterator[str]:
    """The launcher of the spec can run the plan.

    None given: any launcher. Its schedules beside 1F1B are for the rule `schedule`, which has a word on stacks too.
    """
    return _refused(problem.named_launcher, problem, s)


@rule(briefly=lambda p, asked: _in_short("stack", p.stack.runs, asked))
def stack(problem: Problem, s: Strategy) -> Iterator[str]:
    """The framework of the stack runs the plan.

    A stack that states no `runs`: what the launcher runs.
    """
    return _refused(problem.stack.runs, problem, s)
