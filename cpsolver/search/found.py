"""Plans that a search has found: their order, which of them differ, and the most even of equal splits of layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from cpsolver.cost.schedules import found_by_events, runs_events
from cpsolver.cost.stage import ChipTimes
from cpsolver.evaluation.evaluate import chip_times, evaluate
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.evaluation.timeline import least_step_s
from cpsolver.inputs.errors import InternalError
from cpsolver.plans.dimensions import ROW, family
from cpsolver.plans.folding import folded, unfolded
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import violations
from cpsolver.search.objective import Objective
from cpsolver.search.result import EventsRun


@dataclass(frozen=True)
class Found:
    """A solved plan; `score` by formula, `true` with the schedule run event by event."""

    score: float
    true: float
    strategy: Strategy
    evaluation: Evaluation


class PlanTimes:
    """Times of the chip types of plans, made once for all plans of the same degrees on the same types."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], ChipTimes] = {}

    def of(self, problem: Problem, strategy: Strategy) -> ChipTimes:
        """As `evaluate.chip_times`."""
        apart = [dict.fromkeys(of_stages) for of_stages in (strategy.stage_meshes, strategy.stage_chips)]
        key = (strategy.devices, folded(strategy).slots, *(getattr(strategy, name) for name in ROW), *map(tuple, apart))
        if key not in self._known:
            self._known[key] = chip_times(problem, strategy)
        return self._known[key]


def in_order(found: Found) -> tuple[object, ...]:
    """Of equally fast plans those with equal degrees come first, then by what tells plans apart."""
    return found.score, found.evaluation.formula_s, found.strategy.unequal, found.strategy.key()


def by_events(found: Found) -> tuple[object, ...]:
    """The same by the score with the schedule run event by event."""
    return found.true, *in_order(found)


def first_of_each(
    plans: Iterable[Found], order: Callable[[Found], tuple[object, ...]], diverse: bool, top: int
) -> list[Found]:
    """The first so many in some order that differ in what tells plans apart: where they are to be `diverse` their
    families."""
    apart = family if diverse else Strategy.key
    first: dict[tuple[object, ...], Found] = {}
    for plan in sorted(plans, key=order):
        first.setdefault(apart(plan.strategy), plan)
    return list(first.values())[:top]


def last_by_events(plans: Iterable[Found], own: tuple[object, ...] | None, top: int) -> float:
    """What a plan has to beat event by event to be one of so many: the last of these, or with families (`own`) also the
    best of its own; infinite while there are fewer."""
    ranked = first_of_each(plans, by_events, own is not None, top)
    known = [plan.true for plan in ranked[top - 1 :]]
    return min([*known, *(plan.true for plan in ranked if family(plan.strategy) == own)], default=float("inf"))


def least_seconds(problem: Problem, strategy: Strategy, times: ChipTimes) -> tuple[float, float]:
    """A plan's step time by formula, and what it takes at least event by event, without a run."""
    told = evaluate(problem, strategy, by_formula=True, times=times)
    return told.formula_s, least_step_s(strategy, told, strategy.microbatches(problem.batch))


def events_run(objective: Objective, plans: Collection[Found], closest: float) -> EventsRun | None:
    """How many plans were run event by event, and how far beyond the best none was left out; None where
    formulas have the last word. `closest`: the least bound on those that were."""
    if not (objective.runs_events and plans):
        return None
    best = min(plan.true for plan in plans)
    return EventsRun(len(plans), min(objective.excess, max(0.0, closest / best - 1)))


def check_legal(problem: Problem, strategy: Strategy, evaluation: Evaluation | None = None) -> None:
    """Raises InternalError for a plan that the rules refuse: they know nothing of the solver, and are the last gate."""
    if broken := violations(problem, strategy, evaluation):
        rules = "; ".join(map(str, broken))
        raise InternalError(f"the solver returned a plan that the rules refuse: {rules}. The plan: {strategy}")


def found_by_s(problem: Problem, strategy: Strategy, evaluation: Evaluation) -> float:
    """Seconds by which a plan is found: by formula, or event by event where all chains of passes are looked at."""
    by_events = found_by_events(problem, strategy.schedule)
    return evaluation.step_time_s if by_events else evaluation.formula_s


def balanced(problem: Problem, strategy: Strategy, times: ChipTimes | None = None) -> Strategy:
    """The same plan with its layers as even as they go without losing time, or else in ascending order by group.

    Optimal splits come in crowds of equals; this picks the one that people expect, and always the same. `times`: see
    `evaluate.chip_times`.
    """
    if problem.spec.search.pin.layers is not None or problem.spec.search.forbid.layers is not None:
        return strategy
    times, own_s = times or chip_times(problem, strategy), None
    by_events = found_by_events(problem, strategy.schedule) and runs_events(problem, strategy.schedule)

    def step_s(plan: Strategy, by_formula: bool) -> float:
        return evaluate(problem, plan, by_formula=by_formula, times=times).step_time_s

    for arrange in (_even, sorted):
        other = _rearranged(strategy, arrange)
        if other == strategy:
            return other
        if violations(problem, other):
            continue
        own_s = step_s(strategy, not by_events) if own_s is None else own_s
        # No events take less than the chains of passes: few need be run.
        if step_s(other, True) <= own_s and (not by_events or step_s(other, False) <= own_s):
            return other
    return strategy


def _rearranged(strategy: Strategy, arrange: Callable[[list[int]], list[int]]) -> Strategy:
    """The same plan with the chunks of each group rearranged, embedding and head in layers' places as before."""
    if strategy.both_ways:
        half = folded(strategy)
        return unfolded(_rearranged(half, arrange), half.slots[1])
    chunks = iter(strategy.chunks)
    by_group = ([next(chunks) for _ in group.layers] for group in strategy.groups)
    counts = [strategy.vpp * chunk for group in by_group for chunk in arrange(group)]
    counts[0] -= strategy.slots[0]
    counts[strategy.head_stage] -= strategy.slots[1]
    left = iter(counts)
    groups = (replace(group, layers=tuple(next(left) for _ in group.layers)) for group in strategy.groups)
    return replace(strategy, groups=tuple(groups))


def _even(chunks: list[int]) -> list[int]:
    short, longer = divmod(sum(chunks), len(chunks))
    return [short + (place >= len(chunks) - longer) for place in range(len(chunks))]
