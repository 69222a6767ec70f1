"""Why not this plan? What a plan of the user's own breaks or loses, and what freeing each of its decisions would give.

All of it is solved: the best plan of the spec, and for each group of decisions the best plan that has all other
decisions as the favourite has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.explanation.changes import Budget, Changer, best_plan, is_better, rank_of
from cpsolver.inputs.language import later
from cpsolver.plans.dimensions import Group, pins
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import Violation, structure_violations, violations
from cpsolver.search.objective import rank
from cpsolver.search.result import Plan

_SECONDS = 60.0  # for all that is solved
_BEST_S = 30.0  # of them for the best plan

FREED: dict[str, tuple[Group, ...]] = {
    later("sizes"): ("sizes", "exchange", "chips", "layers"),
    later("micro batch"): ("micro batch",),
    later("chunks"): ("chunks", "layers"),
    later("layers by stage"): ("layers",),
    later("chips along the pipeline"): ("chips", "layers"),
    later("recomputation"): ("recomputation",),
    later("recomputation and micro batch"): ("micro batch", "recomputation"),
    later("flags"): ("flags",),
    later("sharding"): ("sharding",),
}
"""Groups of decisions that are freed together, by what a user calls them: the layers follow the stages."""


@dataclass(frozen=True)
class Change:
    """A plan with the favourite's decisions but for one group of them.

    `gain`: seconds less a step than the favourite's, negative where it is better in the objective alone; None where
    the favourite is not legal.
    """

    freed: str
    plan: Plan
    gain: float | None


@dataclass
class Favourite:
    """What is to be said of a plan: `best` is None where the spec has none, or none was found in time.

    `evaluation` is None where the plan's sizes do not add up. `changes`: in the order of FREED where the favourite is
    illegal (each is legal), else those that are better in the spec's objective, the best first. `in_time`: all of it is
    proven, that there is nothing better too.
    """

    strategy: Strategy
    broken: list[Violation]
    evaluation: Evaluation | None
    best: Plan | None = None
    changes: list[Change] = field(default_factory=list)
    in_time: bool = True


def favourite(
    problem: Problem, strategy: Strategy, tell: Callable[[int], None] = lambda _: None, seconds: float = _SECONDS
) -> Favourite:
    """Judge the plan, find the spec's best, and free one group of its decisions after the other.

    `tell` hears how many of the 1 + len(FREED) searches are done.
    """
    sound = not structure_violations(problem, strategy)
    evaluation = evaluate(problem, strategy) if sound else None
    found = Favourite(strategy, violations(problem, strategy), evaluation)
    budget = Budget(seconds)
    found.best = best_plan(problem, budget, _BEST_S)
    changer = Changer(problem, budget)
    proven = found.best is None or found.best.proven
    for done, (freed, groups) in enumerate(FREED.items(), 1):
        tell(done)
        plan = _freed(changer, strategy, groups)
        if plan is not None:
            gain = None if found.broken or evaluation is None else evaluation.step_time_s - plan.evaluation.step_time_s
            found.changes.append(Change(freed, plan, gain))
            proven = proven and plan.proven
    if evaluation is not None and not found.broken:
        own = rank(problem, strategy, evaluation.step_time_s)
        better = (change for change in found.changes if is_better(rank_of(problem, change.plan), own))
        found.changes = sorted(better, key=lambda change: rank_of(problem, change.plan))
    first: dict[Strategy, Change] = {}  # a later group with the same plan has gained nothing by freeing more
    for change in found.changes:
        first.setdefault(change.plan.strategy, change)
    found.changes = list(first.values())
    found.in_time = budget.left > 0 and not budget.cut_short and proven
    return found


def _freed(changer: Changer, strategy: Strategy, groups: tuple[Group, ...]) -> Plan | None:
    """The best plan with all decisions of the strategy but those of the groups; None where there is none."""
    pinned = pins(strategy, but=groups, mixed=changer.problem.mixed)
    asked = changer.problem.spec.search.pin.model_dump(mode="json")
    wanted = {name: pinned.get(name, value) for name, value in asked.items()}
    other = changer.changed({("search", "pin"): wanted, ("search", "top"): 1})
    return None if other is None else best_plan(other, changer.budget)
