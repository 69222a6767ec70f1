"""Whether a target can run a plan, and the nearest plan that it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cpsolver.doors.export.base import CannotExpress, Launch
from cpsolver.doors.export.targets import exporter
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve_like
from cpsolver.profiles.launcher import load_launcher
from cpsolver.rules import violations
from cpsolver.rules.launching import launcher
from cpsolver.rules.pipeline import schedule
from cpsolver.spec.decisions import Decisions

_DEGREES = ("tp", "cp", "pp", "dp", "mbs", "ep", "etp")
_FLAGS = (
    "sequence_parallel",
    "distributed_optimizer",
    "flash_attention",
    "cp_gather",
    "ulysses",
    "sharded",
    "sharding_group",
)
_STAGES = ("stage_chips", "layers", "recompute", "recompute_layers", "recompute_modules")
RELAXED = ("recomputation and layers", "vpp", "flags and chips of stages", "degrees")
"""What is let go, one after the other, to find the nearest plan."""


@dataclass(frozen=True)
class Nearest:
    """A plan that the target runs. `let_go`: what was free; `changed`: decision -> (refused, this one)."""

    strategy: Strategy
    launch: Launch
    step_time_s: float
    refused_step_time_s: float
    let_go: tuple[str, ...]
    changed: dict[str, tuple[Any, Any]]

    @property
    def slower(self) -> float:
        """How much longer a step takes than with the refused plan, as a share; negative: shorter."""
        return self.step_time_s / self.refused_step_time_s - 1


def reasons_against(problem: Problem, s: Strategy, target: str) -> tuple[str, ...]:
    """Why the target's launcher cannot run the plan, by its profile; none where it can."""
    there = with_launcher(problem, target)
    found = [*launcher(there, s), *schedule(there, s)]
    return tuple(dict.fromkeys(found))


def with_launcher(problem: Problem, target: str) -> Problem:
    """The problem with the target for its launcher; what the stack runs is left as it is."""
    spec = problem.spec.model_copy(update={"launcher": target})
    return replace(problem, spec=spec, launcher=load_launcher(target))


def for_target(problem: Problem, target: str) -> Problem | None:
    """The problem as if its spec had the target for `launcher`; None where it names one, or contradicts the target."""
    if problem.spec.launcher is not None:
        return None
    try:
        return resolve_like(problem, problem.spec.model_copy(update={"launcher": target}))
    except InputError:
        return None


def launch_of(problem: Problem, s: Strategy, target: str) -> Launch:
    """What the target needs to run the plan. Raises CannotExpress with every reason that is known."""
    reasons = reasons_against(problem, s, target)
    if reasons:
        raise CannotExpress(reasons)
    return exporter(target)(problem, s)


def with_warnings(problem: Problem, s: Strategy, launch: Launch) -> Launch:
    """The launch with a note for each rule that the plan breaks: it starts, and runs out of memory, say."""
    broken = tuple(f"this plan breaks a rule of the spec: {found}" for found in violations(problem, s))
    return replace(launch, notes=broken + launch.notes)


def nearest_plan(problem: Problem, s: Strategy, target: str, search: Callable[[Problem], Any]) -> Nearest | None:
    """The fastest plan that the target runs and that keeps as much of the plan as can be kept.

    `search`: a problem in, its result out. First all but recomputation and layers by stage is kept, then vpp is let
    go too, then flags and which chip serves which stage, then degrees (what the spec itself pins stays). None: there
    is no such plan at all.
    """
    before = evaluate(problem, s).step_time_s
    for count in range(1, len(RELAXED) + 1):
        found = _solved(problem, s, target, count, search)
        if found is not None:
            plan, launch, seconds = found
            return Nearest(plan, launch, seconds, before, RELAXED[:count], differences(s, plan))
    return None


def _solved(
    problem: Problem, s: Strategy, target: str, count: int, search: Callable[[Problem], Any]
) -> tuple[Strategy, Launch, float] | None:
    try:
        there = resolve_like(problem, _pinned(problem, s, target, count))
    except InputError:
        return None  # what is kept contradicts the spec itself
    result = search(there)
    for plan in result.plans:
        try:
            return plan.strategy, exporter(target)(there, plan.strategy), plan.evaluation.step_time_s
        except CannotExpress:
            continue
    return None


def _pinned(problem: Problem, s: Strategy, target: str, count: int) -> Any:
    """The spec with the target for its launcher, and all pinned but the first `count` of RELAXED."""
    kept: dict[str, Any] = {}
    if count < 4:
        kept |= {name: (getattr(s, name),) for name in _DEGREES}
    if count < 3:
        kept |= {name: (getattr(s, name),) for name in _FLAGS}
        kept["stage_chips"] = s.stage_chips
    if count < 2:
        kept["vpp"] = (s.vpp,)
    own = {name: value for name, value in problem.spec.search.pin if value is not None}
    pins = Decisions(**{**own, **kept})
    search = problem.spec.search.model_copy(update={"pin": pins, "top": 3})
    return problem.spec.model_copy(update={"launcher": target, "search": search})


def differences(before: Strategy, after: Strategy) -> dict[str, tuple[Any, Any]]:
    """Decision -> its value in both, for those that differ."""
    names = (*_DEGREES, "vpp", *_FLAGS, "schedule", *_STAGES)
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def in_words(changed: dict[str, tuple[Any, Any]]) -> Iterator[str]:
    """One line a difference: `layers 7, 9 -> 8, 8`."""
    for name, (old, new) in changed.items():
        yield f"{name} {_said(old)} -> {_said(new)}"


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Sequence) and not isinstance(value, str):
        from cpsolver.doors.report.text import runs

        return runs([_said(item) if not isinstance(item, str) else item for item in value]) or "none"
    return str(value)
