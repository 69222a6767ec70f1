"""The imported spec as other commands take it: what is wrong with it, and what of the guess has to go.

A stack and a launcher are guessed. A script proves what runs: where the guessed launcher's profile refuses the spec or
the plan that the script runs, the launcher is left out, with a note that says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpsolver.inputs.errors import InputError
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.profiles.framework import load_launcher
from cpsolver.profiles.stack import load_stack
from cpsolver.profiles.switches import SENT_ONCE
from cpsolver.rules import RULES, structure_violations
from cpsolver.spec.spec import parse_spec


def accepted(
    spec: dict[str, Any], strategy: Strategy | None, guessed: bool, placeholders: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """The spec, checked, and notes; `guessed`: its launcher is a guess.

    Raises InputError for a spec that other commands would refuse.
    """
    spec = _without_usual(spec)
    without = {key: value for key, value in spec.items() if key != "launcher"}
    try:
        problem = _checked(spec, placeholders)
    except InputError as error:
        if not guessed or "launcher" not in spec:
            raise
        try:
            _checked(without, placeholders)
        except InputError:
            raise error from None
        return without, [_left_out([f"{trouble.where}: {say(trouble.message)}" for trouble in error.troubles])]
    if guessed and "launcher" in spec and (reasons := _refusals(problem, strategy)):
        return without, [_left_out(reasons)]
    return spec, []


def _left_out(reasons: list[str]) -> str:
    return say("no launcher is written: {reasons}, and the script runs it", reasons=say("; ").join(reasons))


def _checked(spec: dict[str, Any], placeholders: Mapping[str, str]) -> Problem | None:
    """The problem; None where a chip is still to be filled in, which is not looked up."""
    parsed = parse_spec(spec)
    if "cluster.chips" not in placeholders:
        return resolve(parsed)
    if parsed.stack is not None:
        load_stack(parsed.stack)
    if parsed.launcher is not None:
        load_launcher(parsed.launcher)
    return None


def _refusals(problem: Problem | None, strategy: Strategy | None) -> list[str]:
    """Why the launcher's profile says that the plan does not run."""
    if problem is None or strategy is None or structure_violations(problem, strategy):
        return []
    return list(RULES["launcher"](problem, strategy))


def _without_usual(spec: dict[str, Any]) -> dict[str, Any]:
    """Without what the stack does anyway: the experts' all-to-all where the launcher has no other choice, and what it
    tells the allocator."""
    training, launcher = dict(spec["training"]), spec.get("launcher")
    if "stack" not in spec:
        return spec
    stack = load_stack(spec["stack"])
    if training.get("expandable_segments") == bool(stack.expandable_segments):
        del training["expandable_segments"]
    chosen = launcher is None or not set(SENT_ONCE).isdisjoint(load_launcher(launcher).moe_dispatchers)
    if training.get("moe_dispatcher") == "alltoall" and not chosen and not stack.copies_once_per_node:
        del training["moe_dispatcher"]
    return {**spec, "training": training}
