"""How long a plan's step takes with each value of the switches that a spec leaves open: a few evaluations of one plan.

Graphs, dispatcher and overlap decide as much as layouts do where a model has experts. A spec need not give them, and a
prediction then takes what the stack does, or for the overlap what the search found best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.inputs.language import later
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import Framework, launcher_names, load_launcher
from cpsolver.profiles.switches import GRAPH_SCOPES, SENT_ONCE
from cpsolver.profiles.techniques import techniques
from cpsolver.spec.training_conflicts import contradictions

_MATTERS = 0.01  # a switch whose values differ by a smaller share of a step does not matter
_OVERLAP = "search.pin.expert_overlap"


@dataclass(frozen=True)
class OpenSwitch:
    """A switch that the spec does not give. `field`: where a spec says it; `name`: in a few words; `taken`: the value
    that the prediction assumes; `steps_s`: seconds of a step by value, that of `taken` first."""

    field: str
    name: str
    taken: str
    steps_s: Mapping[str, float]

    @property
    def width(self) -> float:
        """How far its values are apart, as a share of the step with the fastest."""
        return max(self.steps_s.values()) / min(self.steps_s.values()) - 1


@dataclass(frozen=True)
class NaturalRouting:
    """Steps where routers choose freely: seconds by the load of the busiest device's experts against the mean, and
    whether every device's memory still holds what it gets."""

    steps_s: Mapping[float, float]
    fits: Mapping[float, bool]


@dataclass(frozen=True)
class OpenSwitches:
    """All of a plan's, those that matter. `low_s`, `high_s`: each at its fastest value, each at its slowest.

    `routing`: None where the spec says how experts are loaded, or nothing depends on it.
    """

    switches: tuple[OpenSwitch, ...]
    low_s: float
    high_s: float
    routing: NaturalRouting | None

    @property
    def width(self) -> float:
        """How far the two ends are apart, as a share of the lower."""
        return self.high_s / self.low_s - 1


@dataclass(frozen=True)
class _Change:
    """A value: fields of the spec's training, or of the plan."""

    training: Mapping[str, Any]
    plan: Mapping[str, Any]

    def step_s(self, problem: Problem, plan: Strategy, own: Evaluation) -> float:
        """Seconds of a step with it. None of these switches moves memory, which stays the plan's own."""
        memory = [stage.memory for stage in own.stages]
        return evaluate(_with(problem, self.training), replace(plan, **self.plan), memory).step_time_s

    def __or__(self, other: _Change) -> _Change:
        return _Change({**self.training, **other.training}, {**self.plan, **other.plan})


@dataclass(frozen=True)
class _Asked:
    """A switch, the value taken, and the problem and the plan with each of its other values."""

    field: str
    name: str
    taken: str
    others: Mapping[str, _Change]


_NOTHING = _Change({}, {})


def open_switches(problem: Problem, plan: Strategy, own: Evaluation, searched: bool) -> OpenSwitches | None:
    """What the spec leaves open for a plan, whose evaluation `own` is; None where nothing of it matters.

    `searched`: the plan is of a search, which chose whether experts' all-to-alls overlap unless the spec pinned it.
    Where it chose that they do, the step without is told; where not, the overlap was slower or not to be had.
    """
    found: list[OpenSwitch] = []
    slowest = fastest = _NOTHING
    for asked in _asked(problem, plan, searched):
        steps = {name: change.step_s(problem, plan, own) for name, change in asked.others.items()}
        switch = OpenSwitch(asked.field, asked.name, asked.taken, {asked.taken: own.step_time_s, **steps})
        if switch.width < _MATTERS or not _has(problem, asked):
            continue
        found.append(switch)
        changes = {asked.taken: _NOTHING, **asked.others}
        slowest |= changes[max(switch.steps_s, key=lambda name: switch.steps_s[name])]
        fastest |= changes[min(switch.steps_s, key=lambda name: switch.steps_s[name])]
    routing = _natural_routing(problem, plan)
    if not found and routing is None:
        return None
    alone = [step for switch in found for step in switch.steps_s.values()] or [own.step_time_s]
    together = [change.step_s(problem, plan, own) for change in (slowest, fastest)] if len(found) > 1 else []
    return OpenSwitches(tuple(found), min(alone + together), max(alone + together), routing)


def _asked(problem: Problem, plan: Strategy, searched: bool) -> Iterator[_Asked]:
    training = problem.spec.training
    if training.cuda_graph is None:
        yield _of_training(problem, "cuda_graph", later("graphs"), problem.cuda_graph, GRAPH_SCOPES)
    if training.moe_dispatcher is None and plan.ep > 1:
        launcher = problem.named_launcher  # nothing gathers that is not told to
        values = [each for each in ("alltoall", *SENT_ONCE) if launcher is None or each in launcher.moe_dispatchers]
        yield _of_training(problem, "moe_dispatcher", later("dispatcher"), problem.dispatcher, values)
    scaled = problem.recipe not in (None, "blockwise")
    if training.fp8_attention is None and scaled and plan.flash_attention:
        yield _of_training(problem, "fp8_attention", later("fp8 attention"), problem.fp8_attention, (False, True))
    if searched and plan.expert_overlap and problem.spec.search.pin.expert_overlap is None:
        yield _Asked(_OVERLAP, later("overlap"), "true", {"false": _Change({}, {"expert_overlap": False})})


def _of_training(problem: Problem, name: str, words: str, taken: Any, values: Iterable[Any]) -> _Asked:
    """A field of the spec's training; values that contradict its others are left out."""
    changes = {_said(value): _Change({name: value}, {}) for value in values if value != taken}
    others = {
        value: change
        for value, change in changes.items()
        if not any(contradictions(_with(problem, change.training).spec.training))
    }
    return _Asked(f"training.{name}", words, _said(taken), others)


def _said(value: Any) -> str:
    """As a spec has it."""
    return str(value).lower()


def _with(problem: Problem, fields: Mapping[str, Any]) -> Problem:
    """The problem with fields of its spec's training replaced."""
    training = problem.spec.training.model_copy(update=dict(fields))
    return replace(problem, spec=problem.spec.model_copy(update={"training": training}))


def _has(problem: Problem, asked: _Asked) -> bool:
    """Whether the launcher has the switch; without one, some launcher whose stack it is, or is fitted with.

    A plan's own choice is within what its framework has. Asked last: reading the profiles takes longer than judging.
    """
    section, name = asked.field.split(".", 1)
    if section != "training":
        return True
    if problem.named_launcher is not None:
        return _sets(problem.named_launcher, name)
    stacks = {problem.stack.name, *problem.stack.fitted_with}
    return any(_sets(each, name) for each in map(load_launcher, launcher_names()) if each.stack in stacks)


def _sets(launcher: Framework, name: str) -> bool:
    """Whether a launcher can be told that field of training, and has something else than is usual."""
    if name == "moe_dispatcher":
        return not set(SENT_ONCE).isdisjoint(launcher.moe_dispatchers)
    return name in launcher.switches


def _natural_routing(problem: Problem, plan: Strategy) -> NaturalRouting | None:
    """Where experts are taken to be evenly loaded and stand on more than one device."""
    training = problem.spec.training
    if problem.model.moe is None or plan.ep == 1 or training.expert_imbalance != 1:
        return None
    most = training.expert_capacity_factor or float("inf")
    loads = dict.fromkeys(min(load, most) for load in (techniques().natural_load_least, techniques().natural_load_most))
    found = {load: evaluate(_with(problem, {"expert_imbalance": load}), plan) for load in loads if load > 1}
    if not found:
        return None
    fits = {load: all(s.memory.total <= s.capacity_bytes for s in each.stages) for load, each in found.items()}
    return NaturalRouting({load: each.step_time_s for load, each in found.items()}, fits)
