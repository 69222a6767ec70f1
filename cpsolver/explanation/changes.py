"""A spec changed in single places, and the best plan that the changed spec has."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cpsolver.inputs.errors import InputError
from cpsolver.inputs.language import say
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.search.frontier import INFINITE
from cpsolver.search.objective import rank
from cpsolver.search.result import Plan
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from cpsolver.spec.spec import Spec, parse_spec
from cpsolver.spec.training import MOST

Changes = Mapping[tuple[str, ...], Any]
"""New values by path in the spec: {("cluster", "num_gpus"): 128}."""
SHORTEST = 512
"""Tokens: nobody trains on shorter sequences for want of memory or time."""
_EACH_S = 4.0  # most seconds for one changed spec
_GAIN = 1e-6  # relative: a smaller one is rounding


class Budget:
    """Seconds that are left of a budget. `cut_short`: they were too few to settle something."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.cut_short = False

    @property
    def left(self) -> float:
        """Seconds left, 0 when the budget is spent."""
        return max(0.0, self._end - time.monotonic())

    def part(self, seconds: float) -> Budget:
        """A budget of its own within this one."""
        return Budget(min(seconds, self.left))


@dataclass(frozen=True)
class Remedy:
    """A change that was solved: what to do, the spec so changed, a plan that it has, and how large the change is.

    `size` is relative: 0 for the user's own wishes, 1 for twice the devices.
    """

    text: str
    spec: Spec
    plan: Plan
    size: float

    def __str__(self) -> str:
        step = seconds_words(self.plan.evaluation.step_time_s)
        return say(
            "{text} a plan exists: {step} a step{proven}",
            text=self.text,
            step=step,
            proven="" if self.plan.proven else say(" or less"),
        )


class Changer:
    """Solves variations of one problem within a budget of seconds.

    `memory`: memory is what is short, so a change is tried first on the plans that need least.
    """

    def __init__(self, problem: Problem, budget: Budget, memory: bool = False) -> None:
        self.problem, self.budget, self._memory = problem, budget, memory

    def changed(self, changes: Changes) -> Problem | None:
        """The problem of the changed spec; None where that is not a sound spec."""
        data = self.problem.spec.model_dump(mode="json")
        for path, value in changes.items():
            place = data
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
        try:
            return resolve(parse_spec(data), self.problem.overlay)
        except InputError:
            return None

    def remedy(self, changes: Changes, text: str, size: float) -> Remedy | None:
        """The change as a remedy, if it makes a plan possible."""
        other = self.changed(changes)
        plan = None if other is None else self._plan(other)
        return None if other is None or plan is None else Remedy(text, other.spec, plan, size)

    def _plan(self, problem: Problem) -> Plan | None:
        if not self._memory:
            return best_plan(problem, self.budget)
        small = best_plan(leanest(problem), self.budget)
        return small and (best_plan(problem, self.budget) or replace(small, gap=1.0))


def leanest(problem: Problem) -> Problem:
    """The problem with the choices that need least memory made, where the user left them free."""
    space = enumerate_rows(problem)
    if not len(space):
        return problem
    search, frames = problem.spec.search, space.frames
    flash = bool(space.variants.flash_attention.max())
    lean = {"mbs": int(frames.mbs.min()), "vpp": int(frames.unfolded("vpp").min()), "flash_attention": flash}
    free = {name: (value,) for name, value in lean.items() if getattr(search.pin, name) is None}
    return problem.with_(search={"pin": search.pin.model_copy(update=free)})


def grown(problem: Problem, num_gpus: int) -> Changes:
    """The changes to another cluster size, chip limits in proportion, rounded up to whole nodes."""
    cluster = problem.spec.cluster
    changes: dict[tuple[str, ...], Any] = {("cluster", "num_gpus"): num_gpus}
    for name, request in cluster.chips.items():
        if request.max is not None and num_gpus > cluster.num_gpus:
            nodes = -(-request.max * num_gpus // (cluster.num_gpus * cluster.gpus_per_node))
            changes["cluster", "chips", name, "max"] = min(MOST, nodes * cluster.gpus_per_node)
    return changes


def best_plan(problem: Problem, budget: Budget, most: float | None = None, below: float = INFINITE) -> Plan | None:
    """A problem's fastest plan, or the best that so many seconds give; None: none has a score `below`."""
    if budget.left <= 0 or wrong_layer_sum(problem) or not len(enumerate_rows(problem)):
        return None
    limit, began = max(0.05, min(_EACH_S if most is None else most, budget.left)), time.monotonic()
    result = search(problem.with_(search={"top": 1, "time_limit_s": limit}), below=below)
    if result.proof.stop == "interrupted" and time.monotonic() - began < 0.9 * limit:
        raise KeyboardInterrupt  # not merely a solver that stopped a little before its time
    budget.cut_short = budget.cut_short or result.status == "unknown"
    return result.plans[0] if result.plans else None


def rank_of(problem: Problem, plan: Plan) -> tuple[int, float]:
    """What the plan is ordered by in the problem's objective (`cpsolver.search.objective.rank`)."""
    return rank(problem, plan.strategy, plan.evaluation.step_time_s)


def is_better(rank: tuple[int, float], other: tuple[int, float]) -> bool:
    """Whether a rank is before another by more than rounding."""
    return rank[0] < other[0] or (rank[0] == other[0] and rank[1] < other[1] * (1 - _GAIN))


def wrong_layer_sum(problem: Problem) -> bool:
    """Whether the pinned layers are not the model's, whatever else is decided."""
    layers = problem.spec.search.pin.layers
    return layers is not None and sum(layers) != problem.model.layers


def seconds_words(value: float) -> str:
    """Seconds for people: three significant digits, whole above 100."""
    return f"{value:,.0f} s" if value >= 100 else f"{value:.3g} s"
