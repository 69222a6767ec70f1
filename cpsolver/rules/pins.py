"""Rules on what the spec itself fixes: decisions, the launcher, the stack (what these run: profiles/facts.py)."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from cpsolver.inputs.language import later, say
from cpsolver.plans.dimensions import DIMENSIONS, ROW, SIZES
from cpsolver.plans.strategy import Strategy, chip_blocks
from cpsolver.problem.problem import Problem, encoder_family
from cpsolver.profiles.framework import Framework, load_launcher
from cpsolver.profiles.judging import in_short, refusals
from cpsolver.rules.base import chosen, listed, rule
from cpsolver.spec.search import forbidden_for, pinned_for

_BY_CHIP = tuple(dim for dim in DIMENSIONS.values() if dim.kind == "by_chip" and not dim.pin_only)


@rule("what the user pinned is so, and what was forbidden is not")
def pin(problem: Problem, s: Strategy) -> Iterator[str]:
    pins, bans = problem.spec.search.pin, problem.spec.search.forbid
    for name in ROW:
        wanted, banned = getattr(pins, name), getattr(bans, name)
        for row_value in _values(s, name):
            if wanted is not None and row_value not in wanted:
                yield later("{name} is {value}, pinned to {wanted}", name=name, value=row_value, wanted=listed(wanted))
            if banned is not None and row_value in banned:
                yield later("{name} {value} is forbidden", name=name, value=row_value)
    blocks = tuple(chip for chip, _ in chip_blocks(s.stage_chips))
    whole = {"chip_order": blocks, "stage_chips": s.stage_chips, "layers": s.layers}
    for name, value in whole.items():
        wanted, banned = getattr(pins, name), getattr(bans, name)
        if name == "chip_order" and wanted is not None:
            wanted = tuple(chip for chip in wanted if chip in blocks)
        if wanted is not None and value != wanted:
            yield later("{name} is {value}, pinned to {wanted}", name=name, value=listed(value), wanted=listed(wanted))
        if banned is not None and value == banned:
            yield later("{name} {value} is forbidden", name=name, value=listed(value))
    yield from _pinned_by_chip(problem, s)


def _values(s: Strategy, name: str) -> tuple[Any, ...]:
    """A decision's value; of a size all that its meshes have."""
    plans = [s.of(mesh) for mesh, _ in s.meshes] if name in SIZES else [s]
    return tuple(dict.fromkeys(getattr(plan, name) for plan in plans))


def _pinned_by_chip(problem: Problem, s: Strategy) -> Iterator[str]:
    pins, bans = problem.spec.search.pin, problem.spec.search.forbid
    for chip in problem.chip_names:
        stages = [index for index, name in enumerate(s.stage_chips) if name == chip]
        decided: dict[str, set[object]] = {"stages": {len(stages)}}
        decided |= {dim.name: {getattr(s, dim.attribute)[stage] for stage in stages} for dim in _BY_CHIP}
        for name, values in decided.items():
            wanted = pinned_for(getattr(pins, name), chip)
            banned = forbidden_for(getattr(bans, name), chip)
            for value in sorted(values, key=repr):
                if wanted is not None and value not in wanted:
                    yield later(
                        "{name} of {chip} is {value}, pinned to {wanted}",
                        name=name,
                        chip=chip,
                        value=value,
                        wanted=listed(wanted),
                    )
                if value in banned:
                    yield later("{name} {value} of {chip} is forbidden", name=name, value=value, chip=chip)


def _in_short(what: str, framework: Framework | None, asked: Set[str]) -> str:
    if framework is None:
        return ""
    facts = chosen(in_short(framework), asked)
    return say("{what} {name} {facts}", what=say(what), name=framework.name, facts=facts)


def _refused(framework: Framework | None, problem: Problem, s: Strategy) -> Iterator[str]:
    """What of the plan, and of each mesh's degrees, the framework does not run."""
    if framework is not None:
        plans = [s, *(s.of(mesh) for mesh, _ in s.meshes if s.unequal)]
        found = (text for plan in plans for text in refusals(framework, problem.model, plan, problem.batch))
        yield from (later("{name} {text}", name=framework.name, text=text) for text in dict.fromkeys(found))


@rule(
    "the launcher of the spec can run the plan",
    briefly=lambda p, asked: _in_short(later("launcher"), p.named_launcher, asked),
)
def launcher(problem: Problem, s: Strategy) -> Iterator[str]:
    """None given: any launcher. Schedules beside 1F1B are for the rule `schedule`, which has a word on stacks too."""
    launcher = problem.named_launcher
    family = encoder_family(problem.spec, problem.model)
    if launcher is None or family is None or not launcher.encoders.get(family):
        return _refused(launcher, problem, s)
    anyway = set(_refused(load_launcher(launcher.name), problem, s))
    return (
        text if text in anyway else later("{text} (beside an encoder of {family})", text=text, family=family)
        for text in _refused(launcher, problem, s)
    )


@rule(
    "the framework of the stack runs the plan", briefly=lambda p, asked: _in_short(later("stack"), p.stack.runs, asked)
)
def stack(problem: Problem, s: Strategy) -> Iterator[str]:
    """A stack that states no `runs`: what the launcher runs."""
    return _refused(problem.stack.runs, problem, s)
