"""Plans that a search has found: their order, which of them differ, and the most even of equal splits of layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from cpsolver.cost.memory import StageBytes
from cpsolver.cost.schedules import found_by_events, runs_events
from cpsolver.cost.stage import ChipTimes
from cpsolver.evaluation.evaluate import chip_times, evaluate, step_by_formula_s
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.evaluation.timeline import least_step_s
from cpsolver.inputs.errors import InternalError
from cpsolver.plans.dimensions import ROW, family
from cpsolver.plans.folding import folded, unfolded
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import structure_violations, violations
from cpsolver.search.objective import Objective
from cpsolver.search.recent import Recent
from cpsolver.search.result import EventsRun

if TYPE_CHECKING:
    from cpsolver.search.compile.model import Solved

Ask: TypeAlias = "Callable[[float | None], Solved]"
_PLANS = 4
"""So many plans' memory is kept."""


@dataclass(frozen=True)
class Found:
    """A solved plan; `score` by formula, `true` with the schedule run event by event. `ask`: as `compile.model.Solved`,
    None where CP-SAT was asked."""

    score: float
    true: float
    strategy: Strategy
    evaluation: Evaluation
    ask: Ask | None = None

    @cached_property
    def key(self) -> tuple[object, ...]:
        """What tells it apart from others, as `Strategy.key`; sizes of microbatches are its own best."""
        return (*replace(self.strategy, micro_batches=()).key(), self.strategy.dynamic)

    @cached_property
    def family(self) -> tuple[object, ...]:
        """Its layout family."""
        return family(self.strategy)

    @cached_property
    def place(self) -> tuple[object, ...]:
        """Among equally fast plans: those with equal degrees come first, then by what tells plans apart."""
        return self.evaluation.formula_s, self.strategy.unequal, self.key


class Predictions:
    """What plans of one problem give: times of chip types are made once for all plans of the same degrees on the same
    types, and a plan's memory once for as long as few others come between."""

    def __init__(self) -> None:
        self._times: dict[tuple[object, ...], ChipTimes] = {}
        self._memory: Recent[Strategy, list[StageBytes]] = Recent(_PLANS)

    def of(self, problem: Problem, strategy: Strategy, by_formula: bool = False) -> Evaluation:
        """As `evaluate.evaluate`."""
        known = self._memory.get(strategy)
        told = evaluate(problem, strategy, known, by_formula, self._times_of(problem, strategy))
        self._memory[strategy] = [stage.memory for stage in told.stages]
        return told

    def formula_s(self, problem: Problem, strategy: Strategy) -> float:
        """`Evaluation.formula_s` alone."""
        if strategy.dynamic:
            return self.of(problem, strategy, by_formula=True).formula_s
        return step_by_formula_s(problem, strategy, self._times_of(problem, strategy))

    def _times_of(self, problem: Problem, strategy: Strategy) -> ChipTimes:
        apart = [dict.fromkeys(of_stages) for of_stages in (strategy.stage_meshes, strategy.stage_chips)]
        key = (strategy.devices, folded(strategy).slots, *(getattr(strategy, name) for name in ROW), *map(tuple, apart))
        if key not in self._times:
            self._times[key] = chip_times(problem, strategy)
        return self._times[key]


def in_order(found: Found) -> tuple[object, ...]:
    """The best score comes first."""
    return found.score, *found.place


def by_events(found: Found) -> tuple[object, ...]:
    """The same by the score with the schedule run event by event."""
    return found.true, *in_order(found)


def first_of_each(
    plans: Iterable[Found], order: Callable[[Found], tuple[object, ...]], diverse: bool, top: int
) -> list[Found]:
    """The first so many in some order that differ in what tells plans apart: where they are to be `diverse` their
    families."""
    first: dict[tuple[object, ...], Found] = {}
    for plan in sorted(plans, key=order):
        first.setdefault(plan.family if diverse else plan.key, plan)
    return list(first.values())[:top]


def last_by_events(plans: Iterable[Found], own: tuple[object, ...] | None, top: int) -> float:
    """What a plan has to beat event by event to be one of so many: the last of these, or with families (`own`) also the
    best of its own; infinite while there are fewer."""
    ranked = first_of_each(plans, by_events, own is not None, top)
    known = [plan.true for plan in ranked[top - 1 :]]
    return min([*known, *(plan.true for plan in ranked if plan.family == own)], default=float("inf"))


def least_seconds(problem: Problem, strategy: Strategy, told: Predictions) -> tuple[float, float]:
    """A plan's step time by formula, and what it takes at least event by event, without a run."""
    by_formula = told.of(problem, strategy, by_formula=True)
    return by_formula.formula_s, least_step_s(strategy, by_formula, strategy.microbatches(problem.batch))


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


def balanced(problem: Problem, strategy: Strategy, told: Predictions | None = None) -> Strategy:
    """The same plan with its layers as even as they go without losing time, or else in ascending order by group.

    Optimal splits come in crowds of equals; this picks the one that people expect, and always the same. `told`: what
    plans give, as far as it is known.
    """
    if problem.spec.search.pin.layers is not None or problem.spec.search.forbid.layers is not None:
        return strategy
    told, own_s = told or Predictions(), None
    by_events = found_by_events(problem, strategy.schedule) and runs_events(problem, strategy.schedule)
    for arrange in (_even, sorted):
        other = _rearranged(strategy, arrange)
        if other == strategy:
            return other
        if structure_violations(problem, other):
            continue
        if own_s is None:
            own_s = told.of(problem, strategy).step_time_s if by_events else told.formula_s(problem, strategy)
        if told.formula_s(problem, other) > own_s or violations(problem, other, told.of(problem, other, True)):
            continue
        # No events take less than the chains of passes: few need be run.
        if not by_events or told.of(problem, other).step_time_s <= own_s:
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
