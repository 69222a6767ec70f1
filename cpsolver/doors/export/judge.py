"""The plan that is exported, whether its target can run it, and the nearest plan that it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cpsolver.doors.export.launch import (
    EXPORTERS,
    CannotExpress,
    Launch,
    check_directory,
    check_folder,
    check_target,
    exporter,
    refuse,
    write_files,
)
from cpsolver.doors.export.shared import allocator_variables
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.inputs.document import load_yaml
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import later, say
from cpsolver.plans.dimensions import Group, differences, pins
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.against_model import lacks_encoder
from cpsolver.problem.problem import Problem, encoder_family
from cpsolver.problem.resolve import adapters_asked, resolve_like
from cpsolver.problem.strategy_file import strategy_from
from cpsolver.profiles.default_stack import NAMED, foreign_vendors
from cpsolver.profiles.framework import load_launcher
from cpsolver.profiles.stack import load_stack
from cpsolver.rules import structure_violations, violations
from cpsolver.rules.pins import launcher
from cpsolver.rules.pipeline import schedule
from cpsolver.spec.search import Decisions

_LET_GO: dict[str, tuple[Group, ...]] = {
    later("recomputation and layers"): ("recomputation", "layers"),
    "vpp": ("chunks",),
    later("flags and chips of stages"): ("flags", "exchange", "sharding", "chips"),
    later("degrees"): ("sizes", "micro batch"),
}
RELAXED = tuple(_LET_GO)
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
    retargeted = with_launcher(problem, target)
    layers = [
        say("{target} does not train {what}", target=target, what=say(what))
        for what in load_launcher(target).untrained(problem.model)
    ]
    training = problem.spec.training
    lacking = load_launcher(target).lacks(adapters_asked(training, problem.model), training.packs)
    layers += [
        say("{target} does not have training.{name}: may be {allowed}", target=target, name=name, allowed=allowed)
        for name, allowed in lacking.items()
    ]
    encoder = None if problem.encoder is None else lacks_encoder(load_launcher(target), problem.model)
    layers += [] if encoder is None else [encoder]
    return tuple(dict.fromkeys([*layers, *launcher(retargeted, s), *schedule(retargeted, s)]))


def with_launcher(problem: Problem, target: str) -> Problem:
    """The problem with the target for its launcher; what the stack runs is left as it is."""
    spec = problem.spec.model_copy(update={"launcher": target})
    own = load_launcher(target).beside(encoder_family(spec, problem.model))
    return replace(problem, spec=spec, launcher=own)


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
    refuse(reasons_against(problem, s, target))
    return _exported(problem, s, target)


def _exported(problem: Problem, s: Strategy, target: str) -> Launch:
    """The same of a plan that the target runs; what its files do not say of the allocator is a note."""
    launch, variables = exporter(target)(problem, s), allocator_variables(problem)
    if variables.keys() <= launch.environment.keys():
        return launch
    told = " ".join(f"{name}={value}" for name, value in variables.items())
    return replace(
        launch, notes=(*launch.notes, say("the plan's memory counts on {told} in the environment: set it", told=told))
    )


def usual_target(problem: Problem, s: Strategy) -> str | None:
    """The launcher that the spec names; else the first that runs the plan, those first that the stack is of."""
    if problem.named_launcher is not None:
        return problem.named_launcher.name
    targets = sorted(EXPORTERS, key=lambda name: load_launcher(name).stack != problem.stack.name)
    return next((target for target in targets if not _refused(problem, s, target)), None)


def usual_launch(problem: Problem, s: Strategy) -> Launch | None:
    """The launch for that target; None where nothing runs the plan, or the one that the spec names does not."""
    target = usual_target(problem, s)
    return None if target is None or _refused(problem, s, target) else launch_of(problem, s, target)


def _refused(problem: Problem, s: Strategy, target: str) -> bool:
    try:
        launch_of(problem, s, target)
    except CannotExpress:
        return True
    return False


def with_warnings(problem: Problem, s: Strategy, launch: Launch) -> Launch:
    """The launch with a note for each rule that the plan breaks: it starts, and runs out of memory, say."""
    warnings = tuple(
        say("this plan breaks a rule of the spec: {broken}", broken=broken) for broken in violations(problem, s)
    )
    stacks = (*_other_stack(problem, launch.target), *_other_chips(problem, launch.target))
    return replace(launch, notes=(*warnings, *stacks, *launch.notes))


def exported(
    problem: Problem, s: Strategy, target: str, folder: str | None = None, force: bool = False, job: str | None = None
) -> Launch:
    """The launch, with its job where one is named, and its files written where a folder is.

    Raises InputError, CannotExpress among them, before anything is written.
    """
    check_target(target)
    if folder is not None:
        check_directory(folder)
    launch = with_warnings(problem, s, launch_of(problem, s, target))
    if job is not None:
        from cpsolver.doors.export.jobs import with_job

        launch = with_job(problem, s, launch, job)
    if folder is not None:
        check_folder(folder, launch, force)
        write_files(folder, launch)
    return launch


def _other_stack(problem: Problem, target: str) -> Iterator[str]:
    """That the target has another stack than the one that the plan was timed with, where the spec names none."""
    own = load_launcher(target).stack
    if own not in (None, problem.stack.name) and problem.stack_why != NAMED:
        yield say(
            "the plan was timed with stack {stack}, and the launcher's own is {own}: `launcher: {target}` in the spec, "
            "or `stack: {own}`, plans with that",
            stack=problem.stack.name,
            own=own,
            target=target,
        )


def _other_chips(problem: Problem, target: str) -> Iterator[str]:
    """That the target's own software is written for another vendor's chips than the plan's."""
    own = load_launcher(target).stack
    written_for = None if own is None else load_stack(own).kernels
    others = foreign_vendors(written_for, (supply.chip for supply in problem.supplies)) if written_for else ()
    if others:
        yield say(
            "{target} is written for {kernels} chips: on {vendors} chips it starts in a port of its own at most",
            target=target,
            kernels=written_for,
            vendors=say(" and ").join(others),
        )


def nearest_plan(problem: Problem, s: Strategy, target: str, search: Callable[[Problem], Any]) -> Nearest | None:
    """The fastest plan that the target runs and that keeps as much of the plan as can be kept.

    `search`: a problem in, its result out. First all but recomputation and layers by stage is kept, then vpp is let
    go too, then flags and which chip serves which stage, then degrees (what the spec itself pins stays). None: there
    is no such plan at all.
    """
    before = evaluate(problem, s).step_time_s
    for count in range(1, len(RELAXED) + 1):
        solved = _solved(problem, s, target, count, search)
        if solved is not None:
            plan, launch, seconds = solved
            return Nearest(plan, launch, seconds, before, RELAXED[:count], differences(s, plan))
    return None


def _solved(
    problem: Problem, s: Strategy, target: str, count: int, search: Callable[[Problem], Any]
) -> tuple[Strategy, Launch, float] | None:
    try:
        pinned = resolve_like(problem, _pinned(problem, s, target, count))
    except InputError:
        return None  # what is kept contradicts the spec itself
    for plan in search(pinned).plans:
        try:
            return plan.strategy, _exported(pinned, plan.strategy, target), plan.evaluation.step_time_s
        except CannotExpress:
            continue
    return None


def _pinned(problem: Problem, s: Strategy, target: str, count: int) -> Any:
    """The spec with the target for its launcher, and all pinned but the first `count` of RELAXED."""
    let_go = {group for groups in tuple(_LET_GO.values())[:count] for group in groups}
    own = {name: value for name, value in problem.spec.search.pin if value is not None}
    pinned = Decisions(**{**own, **pins(s, but=let_go)})
    dynamic = problem.spec.search.dynamic_micro_batches and load_launcher(target).dynamic_micro_batches
    search = problem.spec.search.model_copy(update={"pin": pinned, "top": 3, "dynamic_micro_batches": dynamic})
    return problem.spec.model_copy(update={"launcher": target, "search": search})


def in_words(changed: dict[str, tuple[Any, Any]]) -> Iterator[str]:
    """One line a difference: `layers 7, 9 -> 8, 8`."""
    for name, (old, new) in changed.items():
        yield f"{name} {_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return say("on") if value else say("off")
    if isinstance(value, Sequence) and not isinstance(value, str):
        from cpsolver.inputs.text import runs

        return runs([_shown(item) if not isinstance(item, str) else item for item in value]) or "none"
    return str(value)


# The plan out of a file of `solve --json` or a strategy file, checked against the spec.


def load_plan(path: str, number: int, problem: Problem) -> Strategy:
    """Plan `number`, from 1, of a file of `solve --json`, or the plan of a strategy file.

    Raises InputError for a file that cannot be read, has no such plan, is of another spec, or whose plan does not
    add up (layers, degrees, batch, chips).
    """
    document = load_yaml(path, collect=True)
    plans = document.data.get("plans")
    troubles = list(_spec_troubles(document.data.get("problem"), problem))
    if isinstance(plans, list):
        if number > len(plans):
            allowed = say("1 to {plans}", plans=len(plans)) if plans else say("none: the file has no plan")
            troubles.append(Trouble("--plan-rank", "is no plan of the file", number, allowed))
        if troubles:
            raise InputError([replace(trouble, file=path) for trouble in troubles])
        document = replace(document, data={**document.data, "plans": [plans[number - 1]]})
    elif number > 1:
        allowed = say("1: the file holds one plan")
        raise InputError(Trouble("--plan-rank", "is no plan of the file", number, allowed, file=path))
    plan = strategy_from(document, problem)
    wrong = structure_violations(problem, plan)
    if wrong:
        raise InputError([Trouble("", violation.text, file=path) for violation in wrong])
    return plan


def _spec_troubles(written: Any, problem: Problem) -> Iterator[Trouble]:
    """What the file says of its own problem, where the spec says otherwise."""
    if not isinstance(written, Mapping):
        return
    for name, asked in problem.sizes().items():
        if name != "chips" and name in written and written[name] != asked:
            yield Trouble(
                f"problem.{name}",
                say("is of another spec"),
                written[name],
                say("{asked}, as the spec has it", asked=asked),
            )
    chips = written.get("chips")
    unknown = sorted(set(chips) - set(problem.chip_names)) if isinstance(chips, Mapping) else []
    if unknown:
        yield Trouble("problem.chips", "is of another spec", unknown, ", ".join(problem.chip_names))
