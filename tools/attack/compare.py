"""The planner's answer to a random spec against every plan of the problem."""

from __future__ import annotations

import io
from math import ceil, inf, isclose
from typing import Any

from ruamel.yaml import YAML

import cpsolver
from cpsolver import InputError, Problem, Strategy
from cpsolver.search.search import search
from tools.attack.findings import Finding, Report, smallest
from tools.attack.plans import Enumerator, Judged, TooManyPlans
from tools.attack.specs import Fields, random_spec

MOST_PLANS = 60
"""A problem with more plans is passed over: judging one takes milliseconds."""
ADVISED = 20
"""Every so manieth seed asks for reasons and for what to recommend too, which takes ten times as long."""
CLOSE = 1e-6
"""The solver counts time in whole steps: its optimum may be this share above the true one."""
EXACT = 1e-9
DAY_S = 86_400.0


def compared(seed: int) -> Report:
    """One random spec; a disagreement comes with the smallest spec that still has it."""
    spec = random_spec(seed)
    report = Report()
    try:
        wrong = disagreement(spec, report, advised := seed % ADVISED == 0)
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        least = smallest(spec, lambda shorter: same_trouble(shorter, wrong, advised))
        report.findings.append(Finding("every plan", wrong, str(seed), as_yaml(least)))
    return report


def same_trouble(spec: Fields, wrong: str, advised: bool = False) -> bool:
    """Whether a spec has a disagreement of the same kind; what is no spec has none."""
    try:
        found = disagreement(spec, Report(), advised)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    return found is not None and found.split(":")[0] == wrong.split(":")[0]


def as_yaml(spec: Fields) -> str:
    """A spec as a file of it would be."""
    out, yaml = io.StringIO(), YAML(typ="safe", pure=True)
    yaml.default_flow_style = None
    yaml.dump(spec, out)
    return out.getvalue()


def disagreement(spec: Fields, report: Report, advised: bool = False) -> str | None:
    """What the answer says otherwise than all plans together; None: nothing, or the spec is refused or too large.

    `advised`: the answer is asked for with reasons and with what to recommend, which are no part of the comparison.
    """
    try:
        problem = cpsolver.make_problem(spec)
    except InputError:
        report.counts["every plan: specs refused"] += 1
        return None
    try:
        plans = list(Enumerator(problem, MOST_PLANS).judged())
    except TooManyPlans:
        report.counts["every plan: too many plans"] += 1
        return None
    result = cpsolver.solve(problem) if advised else search(problem)
    report.counts["every plan: problems compared"] += 1
    report.counts["every plan: of these without a plan"] += not plans
    report.counts["every plan: plans judged"] += len(plans)
    return _contradiction(problem, plans, result)


def _contradiction(problem: Problem, plans: list[Judged], result: cpsolver.Result) -> str | None:
    objective = Score(problem)
    scores = [objective.of(plan.strategy, plan.step_s) for plan in plans]
    fewest = min((devices for devices, _ in scores), default=inf)  # where the fewest are asked for, all have so many
    in_time = [plan for plan, score in zip(plans, scores, strict=True) if score[0] == fewest < inf]
    answer = [plan for plan in result.plans if not plan.added]
    for told in result.plans:
        if cpsolver.check(problem, told.strategy):
            return f"an illegal plan: {cpsolver.check(problem, told.strategy)[0]}"
        again = cpsolver.evaluate(problem, told.strategy).step_time_s
        if not isclose(again, told.evaluation.step_time_s, rel_tol=EXACT):
            return f"other numbers than the judge's: {told.evaluation.step_time_s} and {again}"
    by_events = len(problem.chip_names) > 1 or result.proof.by_events is not None
    late = [plan for plan in plans if plan not in in_time]
    if result.status != ("optimal" if in_time else "infeasible") and not (by_events and late):
        return f"status {result.status} with {len(in_time)} legal plans"
    if not in_time:
        return None
    key = family if problem.spec.search.diverse else Strategy.key
    if len({key(told.strategy) for told in answer}) < len(answer):
        return "two plans of one kind in the answer"
    if by_events:
        return _first_by_events(problem, in_time, result, objective)
    best: dict[Any, tuple[float, float]] = {}
    for plan in in_time:
        score = objective.of(plan.strategy, plan.step_s)
        best[key(plan.strategy)] = min(score, best.get(key(plan.strategy), score))
    wanted = sorted(best.values())[: problem.spec.search.top]
    found = [objective.of(told.strategy, told.evaluation.step_time_s) for told in answer]
    if len(found) != len(wanted) or not all(_close(one, other) for one, other in zip(found, wanted, strict=True)):
        return f"other values than all plans have: {found}, not {wanted}"
    return None


def _first_by_events(problem: Problem, plans: list[Judged], result: cpsolver.Result, objective: Score) -> str | None:
    """Over several chip types, and of schedules run event by event, the first plan is the best by events of those whose
    formula is near (docs/reports.md), of the layers that are each plan's best by formula."""
    answer = [plan for plan in result.plans if not plan.added]
    if not answer or result.proof.by_events is None:
        return "an answer without plans, or without events"
    of_each: dict[Any, list[Judged]] = {}
    for plan in plans:
        of_each.setdefault(plan.strategy.key(), []).append(plan)
    first = objective.of(answer[0].strategy, answer[0].evaluation.step_time_s)
    for several in of_each.values():
        least = min(plan.formula_s for plan in several)
        ties = [plan for plan in several if plan.formula_s <= least * (1 + CLOSE)]
        worst = max(objective.of(plan.strategy, plan.step_s) for plan in ties)
        formula = objective.of(ties[0].strategy, least / (1 + result.proof.by_events.within))
        if formula < first and worst < first and not _close(worst, first):
            return f"a better first plan by events: {worst}, not {first}"
    if problem.spec.search.objective == "throughput" and len(answer) < min(problem.spec.search.top, len(of_each)):
        kinds = {family(several[0].strategy) for several in of_each.values()}
        if not problem.spec.search.diverse or len(answer) < min(problem.spec.search.top, len(kinds)):
            return f"too few plans: {len(answer)}"
    return None


def _close(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] == other[0] and isclose(one[1], other[1], rel_tol=CLOSE)


def family(s: Strategy) -> tuple[Any, ...]:
    """What plans of a diverse answer differ in: sizes, and whether parameters are sharded."""
    return s.tp, s.cp, s.pp, s.dp, s.ep, s.distributed_optimizer and s.sharded == "parameters"


class Score:
    """What the spec's objective makes of a plan, the smaller the better: devices where these count, then a number."""

    def __init__(self, problem: Problem) -> None:
        spec, search = problem.spec, problem.spec.search
        self._objective, self._prices = search.objective, spec.cluster.prices or {}
        self._tokens = problem.batch * problem.sequence
        self._longest_s = inf
        if search.deadline is not None and search.objective != "throughput":
            steps = ceil((search.deadline.tokens or 0) / self._tokens)
            self._longest_s = search.deadline.days * DAY_S / steps

    def of(self, strategy: Strategy, step_s: float) -> tuple[float, float]:
        """(0, seconds), (0, dollars a token) or (devices, seconds); infinite where the deadline is missed."""
        if step_s > self._longest_s:
            return inf, inf
        if self._objective == "cost":
            width = strategy.tp * strategy.cp * strategy.dp
            return 0.0, step_s * sum(self._prices[chip] for chip in strategy.stage_chips) * width / self._tokens
        return float(strategy.devices if self._objective == "fewest_chips" else 0), step_s
