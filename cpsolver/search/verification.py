"""A second opinion on an answer: the degrees, chips, layers and recomputation of all that is close in one CP-SAT model.

The search solves plans one by one, best bound first, and keeps what it learns on the way. Here every plan that its
bounds do not put beyond the K-th best by a margin is made anew and goes into one model whose variables are all the
decisions, solved without a bound or hint of the search. Candidates are drawn from all there are, half of them
beside the answer, and solved too. The bounds had cut most of them: one that is none shows in a plan that is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from cpsolver.cost.schedules import searches_sizes
from cpsolver.cost.shard import Bools, Ints
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.plans.dimensions import DIMENSIONS, family, names
from cpsolver.plans.folding import folded
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules import violations
from cpsolver.search.agenda import KEY, Agenda, key_of
from cpsolver.search.arrangements import arrangements, mixes
from cpsolver.search.bounds.bounds import plan_bound
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.quick import quick_bound
from cpsolver.search.filters import may_mix
from cpsolver.search.found import balanced, found_by_s
from cpsolver.search.frontier import INFINITE, Branch, Limits, Node
from cpsolver.search.objective import objective_of
from cpsolver.search.opening import opened
from cpsolver.search.pace import OutOfTime, Pace
from cpsolver.search.result import Plan, Result, Verdict, Verification
from cpsolver.search.space import Space, Spaces, enumerate_rows

if TYPE_CHECKING:  # OR-tools is loaded when a model is made
    from cpsolver.search.compile.data import PlanData, Scale
    from cpsolver.search.compile.model import Solved

TIME_LIMIT_S = 60.0
"""How long a second opinion may take, unless somebody says otherwise."""
MARGIN = 0.01
"""Plans with bounds up to this share beyond the K-th best go into the model."""
_MOST_PLANS = 256
"""No more of them, those with the lowest bounds: models grow with their plans, and solve in minutes rather than
seconds."""
_SAMPLE = 48
"""Candidates that are drawn from all and solved."""
_CLOSE = 1e-6
"""Two ways to one plan's seconds differ by no more: the model's times are integers."""
_NO_SLOWER = 1e-4
"""The model is asked for plans no slower than the answer's first: it finds that one again, or a better one."""
_OF_MODEL = 0.45
"""Share of the time that is left that one of the two models may take."""
_OF_ONE_S = 2.0
"""Seconds that a sampled candidate may take: what is not settled by then is told. A model of several plans may take so
long at least."""
_OF_EACH_S = 0.1
"""So long for each of its plans: where it takes longer they are solved one by one."""
_SETTLED = ("optimal", "infeasible")
_ABOVE_BOUND = 1.25
"""A sampled candidate is solved for plans of up to so many times its bound."""
_ANY = 1000.0
"""A candidate that the bounds say fits nowhere is solved for plans of any time: up to so many times its quick bound."""
_AT_ONCE = 4096
"""Rows and mixes that are opened in one go."""


@dataclass
class _Opinion:
    """What is known so far."""

    problem: Problem
    plans: Sequence[Plan]
    pace: Pace
    margin: float = 0.0
    joint: int = 0
    variables: int = 0
    constraints: int = 0
    models: int = 0
    sampled: int = 0
    solved: int = 0
    unsettled: int = 0
    unfinished: bool = False
    findings: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def slowest(self) -> float:
        """Seconds of the slowest plan of the answer, as it is found."""
        found = (found_by_s(self.problem, plan.strategy, plan.evaluation) for plan in self.plans)
        return max(found, default=INFINITE)

    @property
    def left_s(self) -> float:
        """Seconds that are left; raises OutOfTime where none are."""
        self.pace.check()
        return self.pace.left_s or 0.0


def verify(problem: Problem, result: Result, time_limit_s: float = TIME_LIMIT_S, seed: int = 0) -> Verification:
    """Whether an answer stands up to another way of finding it, and over how much that was looked at.

    Args:
        result: what `search` returned for the problem.
        time_limit_s: seconds; what is not looked at by then is told.
        seed: of the sample.
    """
    why_not = _not_verified(problem, result)
    if why_not:
        return Verification("not verified", left_out=(why_not,))
    plans = [plan for plan in result.plans if not (plan.added or plan.strategy.unequal)]
    opinion = _Opinion(problem, plans, Pace(time_limit_s))
    try:
        if opinion.plans:
            _solve_together(opinion)
        _solve_sample(opinion, np.random.default_rng(seed))
    except (OutOfTime, KeyboardInterrupt):
        opinion.unfinished = True
    if opinion.unsettled:
        opinion.left_out.append(f"{opinion.unsettled} of the candidates drawn, which took too long to be settled")
    if objective_of(problem).runs_events and len(opinion.plans) > 1:
        opinion.left_out.append("the order after the first plan, which is of the answer's plans alone")
    if problem.degrees_by_chip:
        opinion.left_out.append("plans whose chip types have degrees of their own")
    if searches_sizes(problem):
        opinion.left_out.append("plans whose microbatches differ in size")
    verdict: Verdict = "unfinished" if opinion.unfinished else "confirmed"
    return Verification(
        verdict="contradicted" if opinion.findings else verdict,
        margin=opinion.margin,
        plans=opinion.joint,
        variables=opinion.variables,
        constraints=opinion.constraints,
        models=opinion.models,
        sampled=opinion.sampled,
        solved=opinion.solved,
        seconds=opinion.pace.seconds,
        findings=tuple(opinion.findings),
        left_out=tuple(opinion.left_out),
    )


def _not_verified(problem: Problem, result: Result) -> str:
    """Why nothing can be said of a result; empty where something can."""
    if not result.proof.complete:
        return "the search was stopped: nothing is proven yet"
    if problem.may_idle:
        return "devices may idle: plans on several numbers of devices are not in one model"
    if problem.mixed and problem.spec.search.objective != "throughput":
        return "the objective over several chip types is not in the model: only step time is"
    if result.plans and all(plan.strategy.unequal for plan in result.plans):
        return "chip types have degrees of their own in every plan, which are not in the model"
    return ""


# One model of all that is close


def _solve_together(opinion: _Opinion) -> None:
    """One model of all plans that are close, then one without those that are found."""
    limit = opinion.slowest * (1 + MARGIN)
    nodes = sorted(_plans_within(opinion, limit), key=lambda node: node.bound)
    opinion.margin = MARGIN
    if len(nodes) > _MOST_PLANS:
        opinion.margin = max(0.0, nodes[_MOST_PLANS].bound / opinion.slowest - 1)
        opinion.unfinished = nodes[_MOST_PLANS].bound < opinion.slowest
        opinion.left_out.append(f"{len(nodes) - _MOST_PLANS:,} plans with bounds up to {MARGIN:.0%} beyond the answer")
        nodes = nodes[:_MOST_PLANS]
    opinion.joint = len(nodes)
    within = min(_quickest(opinion), opinion.slowest) * (1 + _NO_SLOWER)
    settled, best = _best_of(opinion, nodes, within, first=True)
    if settled:
        _compare_with_first(opinion, best)
    found = _found(opinion)
    _, other = _best_of(opinion, [node for node in nodes if not found(node)], opinion.slowest)
    if other is not None and _better(opinion, other):
        opinion.findings.append(
            f"better than plan {len(opinion.plans)} and not in the answer: {_in_words(opinion, other)}"
        )


def _plans_within(opinion: _Opinion, limit: float) -> Iterator[Node]:
    """Every plan (a row and a chip for every stage) with a bound below a limit in seconds."""
    problem, agenda = opinion.problem, Agenda()
    objective = replace(objective_of(problem), prices=None)
    limits = Limits(min(limit, objective.deadline_s), {})
    branch = Branch(problem, objective, 0.0)
    branch.open(opinion.pace, Spaces())
    while branch.unbounded:
        opinion.pace.check()
        branch.bound_others(limits)
    while branch.lowest < limits.limit:
        opinion.pace.check()
        if branch.next_frame <= branch.lowest:
            branch.open_frames(limits, opinion.pace)
            continue
        for rows in branch.bound_rows(limits, opinion.pace)[1]:
            for row, pp, bound, seconds in zip(rows.rows, rows.depth, rows.scores, rows.seconds, strict=True):
                plan = () if problem.mixed else ((pp,), (0,) * pp)
                agenda.add(agenda.node(bound, seconds, branch, rows.block, row, *plan))
    while agenda.mix < INFINITE:
        opinion.pace.check()
        for child in opened(agenda.take_mixes(_AT_ONCE, INFINITE), limits).children:
            at = child.node
            agenda.add(agenda.node(child.bound, child.seconds, at.branch, at.block, at.row, child.mix, child.chips))
    return iter(agenda)


def _best_of(
    opinion: _Opinion, nodes: Sequence[Node], limit: float, first: bool = False
) -> tuple[bool, Strategy | None]:
    """The fastest plan of all below those nodes, within a limit in seconds, None where there is none; and whether that
    is settled."""
    from cpsolver.search.compile.data import plan_data, scale_for

    scale = scale_for(limit, max((_weight(node.block.table, node.row) for node in nodes), default=1.0))
    data = (plan_data(node.block.table, node.row, np.array(node.chips), scale, limit) for node in nodes)
    plans = [plan for plan in data if plan.possible]
    if not plans:
        return True, None
    models = _Models(opinion.problem, scale, Pace(_OF_MODEL * opinion.left_s))
    settled, best, bound = models.solve(plans, limit)
    if first:
        opinion.variables, opinion.constraints, opinion.models = models.variables, models.constraints, models.models
    if not settled:
        opinion.unfinished = True
        whose = "" if first else " without the answer's plans"
        opinion.left_out.append(f"the model{whose} was stopped: it has no plan below {bound:.4f} s")
    return settled, None if best is None else balanced(opinion.problem, best)


class _Models:
    """One model of all plans, or where that takes long one of each.

    A model is asked again with the chains of passes that hold its best plan up, until it has all of these.
    """

    def __init__(self, problem: Problem, scale: Scale, pace: Pace) -> None:
        self._problem, self._scale, self._pace = problem, scale, pace
        self.variables = self.constraints = self.models = 0

    def solve(self, plans: list[PlanData], limit_s: float) -> tuple[bool, Strategy | None, float]:
        """Whether it is settled; the best plan within a limit in seconds, None where there is none; and what none is
        below."""
        left, share = self._pace.left_s or 0.0, max(_OF_ONE_S, _OF_EACH_S * len(plans))
        solved = self._solved(plans, limit_s, Pace(left if len(plans) == 1 else min(left, share)))
        if solved.status in _SETTLED or len(plans) == 1:
            return solved.status in _SETTLED, solved.strategy, solved.bound_s
        best, lowest = None, limit_s
        for plan in plans:
            alone = None if self._pace.late else self._solved([plan], limit_s, self._pace)
            if alone is None or alone.status not in _SETTLED:
                return False, best, solved.bound_s
            if alone.strategy is not None:
                best, lowest = alone.strategy, alone.step_time_s
                limit_s = min(limit_s, lowest)
        return True, best, lowest

    def _solved(self, plans: list[PlanData], limit_s: float, pace: Pace) -> Solved:
        from cpsolver.search.compile.model import CompiledModel, with_chain

        while True:
            model = CompiledModel(self._problem, plans, self._scale, 0.0, limit_s)
            solved = model.solve(pace.left_s)
            which, *split = solved.split or (0,)
            longer = with_chain(plans[which], *split) if solved.status == "optimal" and split else None
            if longer is None:
                break
            plans[which] = longer
        if solved.status in _SETTLED:
            self.models += 1
            self.variables += len(model.model.proto.variables)
            self.constraints += len(model.model.proto.constraints)
        return solved


def _weight(table: Coefficients, row: int) -> float:
    """How often the slowest stage counts in a row's step time: see `scale_for`."""
    return float(sum(part[0] for part in table.weights(np.array([row]))))


def _compare_with_first(opinion: _Opinion, best: Strategy | None) -> None:
    """The fastest plan of the model is the answer's first."""
    first = min(opinion.plans, key=_true)
    quickest = _quickest(opinion)
    if best is None:
        opinion.findings += ["the model has no plan where the answer has some"] * (quickest < INFINITE)
        return
    if _seconds(opinion.problem, best) < _true(first) * (1 - _CLOSE):
        opinion.findings.append(f"better than the first plan: {_in_words(opinion, best)}")
    if _found_s(opinion, best) > quickest * (1 + _CLOSE):
        opinion.findings.append(f"the model's best plan is slower than one of the answer's: {_in_words(opinion, best)}")


def _found(opinion: _Opinion) -> Callable[[Node], bool]:
    """Whether a node's plan is one of the answer's, or of the layout family of one where these are to differ."""
    problem = opinion.problem
    if problem.spec.search.diverse:
        known = Limits(INFINITE, {family(plan.strategy): 0.0 for plan in opinion.plans})
        return lambda node: known.of_row(node.block.table.rows, node.row) == 0.0
    keys = {_key(problem, plan.strategy) for plan in opinion.plans}
    return lambda node: key_of(node) in keys


def _key(problem: Problem, strategy: Strategy) -> tuple[object, ...]:
    """What `key_of` says of a node of that plan."""
    strategy = folded(strategy)
    chips = tuple(problem.chip_names.index(chip) for chip in strategy.stage_chips)
    return *(DIMENSIONS[name].code(getattr(strategy, name)) for name in KEY), chips


# A sample of what was cut


def _solve_sample(opinion: _Opinion, rng: np.random.Generator) -> None:
    """Plans of candidates are no faster than their bounds, nor better than the answer."""
    space = enumerate_rows(opinion.problem)
    if not len(space):
        return
    has_rows = space.rows_of > 0
    beside = has_rows & _beside(space, opinion.plans)
    for at in range(_SAMPLE):
        among = np.nonzero(beside if at % 2 and beside.any() else has_rows)[0]
        rows = space.expand(rng.choice(among, 1))
        table = Coefficients(opinion.problem, rows.take(rng.choice(len(rows), 1)))
        opinion.sampled += 1
        chips = _any_order(opinion.problem, table, rng)
        if chips is not None:
            _solve_alone(opinion, table, chips)


def _beside(space: Space, plans: Sequence[Plan]) -> Bools:
    """Frames whose sizes are within a factor of 2 of those of a plan."""
    near = np.zeros(len(space.frames), dtype=np.bool_)
    for plan in plans:
        same = np.ones_like(near)
        for name in (*names("layout"), "mbs"):
            size, own = space.frames.unfolded(name), int(getattr(plan.strategy, name))
            same &= (size <= 2 * own) & (own <= 2 * size)
        near |= same
    return near


def _any_order(problem: Problem, table: Coefficients, rng: np.random.Generator) -> Ints | None:
    """Chips by stage of a plan of a table's only row, drawn at random; None where there is none."""
    mixed = bool(may_mix(problem, table.rows)[0])
    found = mixes(problem, int(table.rows.stage_devices[0]), int(table.rows.pp[0]), mixed)
    orders = arrangements(problem, found[rng.integers(len(found))]) if len(found) else found
    return orders[rng.integers(len(orders))] if len(orders) else None


def _solve_alone(opinion: _Opinion, table: Coefficients, chips: Ints) -> None:
    """The best of one plan's splits by CP-SAT alone, held to its bound and to the answer."""
    from cpsolver.search.compile.data import plan_data, scale_for
    from cpsolver.search.compile.model import CompiledModel

    problem = opinion.problem
    bound = float(plan_bound(table, np.array([0]), chips[None, :])[0])
    limit = _ABOVE_BOUND * bound if np.isfinite(bound) else _ANY * float(quick_bound(table)[0])
    scale = scale_for(limit, _weight(table, 0))
    data = plan_data(table, 0, chips, scale, limit)
    if not data.possible:
        return
    solved = CompiledModel(problem, [data], scale, 0.0, limit).solve(min(_OF_ONE_S, opinion.left_s))
    opinion.unsettled += solved.status in ("feasible", "unknown")
    if solved.strategy is None:
        return
    opinion.solved += 1
    plan = balanced(problem, solved.strategy)
    told = _in_words(opinion, plan)
    if _found_s(opinion, plan) < bound * (1 - _CLOSE):
        opinion.findings.append(f"faster than its bound of {bound:.4f} s: {told}")
    if _better(opinion, plan) and not violations(problem, plan):
        opinion.findings.append(f"better than the answer has it: {told}")


def _better(opinion: _Opinion, strategy: Strategy) -> bool:
    """Whether a plan is better than the answer's of its own family, or where it has none than the last.

    Where schedules are run event by event the answer's claim is that none is faster so than the first; and of what is
    faster by formula too, that it would be in the answer.
    """
    problem = opinion.problem
    alike = family if problem.spec.search.diverse else Strategy.key
    own = [plan for plan in opinion.plans if alike(plan.strategy) == alike(strategy)]
    held = max((_true(plan) for plan in own or opinion.plans[-1:]), default=INFINITE)
    seconds = _seconds(problem, strategy)
    if objective_of(problem).runs_events and opinion.plans:
        first = min(map(_true, opinion.plans))
        held = held if _found_s(opinion, strategy) < _quickest(opinion) * (1 - _CLOSE) else first
    return seconds < held * (1 - _CLOSE)


def _quickest(opinion: _Opinion) -> float:
    """Seconds of the answer's fastest plan, as plans are found, of those with equal microbatches, which models have."""
    equal = (plan for plan in opinion.plans if not plan.strategy.dynamic)
    return min((found_by_s(opinion.problem, plan.strategy, plan.evaluation) for plan in equal), default=INFINITE)


def _found_s(opinion: _Opinion, strategy: Strategy) -> float:
    """Seconds by which a plan is found: by formula over several chip types, else event by event."""
    return found_by_s(opinion.problem, strategy, evaluate(opinion.problem, strategy))


def _true(plan: Plan) -> float:
    return plan.evaluation.step_time_s


def _seconds(problem: Problem, strategy: Strategy) -> float:
    return evaluate(problem, strategy).step_time_s


def _in_words(opinion: _Opinion, strategy: Strategy) -> str:
    """A plan with its seconds, for whoever looks into it."""
    return f"{_seconds(opinion.problem, strategy):.4f} s, {strategy}"
