"""What the software-stack profiles hold: a list of them, and one with every constant and where it comes from."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from cpsolver.doors.report.layout import Prose
from cpsolver.doors.report.text import CONFIDENCE
from cpsolver.inputs.language import say
from cpsolver.inputs.text import plural
from cpsolver.profiles.constants import Calibration, Fitted, load_calibration
from cpsolver.profiles.stack import Constants, Stack, load_stack, stack_names

_WIDTH = max(map(len, Constants.model_fields)) + 2
_SHARE = "_overlap"
"""Constants with this in their name are shares: their standard error is one on the logit scale."""


def stacks_report(name: str | None = None) -> RenderableType:
    """All profiles, or one; raises InputError for an unknown name."""
    if name is not None:
        return _detail(load_stack(name), load_calibration())
    note = say(
        "measured runs: published ones that the intervals of this stack's plans rest on, by chip architecture; a "
        "few do not count. A spec names one of these: `stack: megatron-core`. Constants and sources: "
        "apss-cp stacks NAME"
    )
    parts: list[RenderableType] = [Text(say("{count} software stacks", count=len(stack_names())), style="bold")]
    for stack in map(load_stack, stack_names()):
        measured = load_calibration().measured_on(stack.name)
        runs = ", ".join(say("{count} on {chip}", count=count, chip=chip) for chip, count in measured.items())
        told = say("  measured runs: {runs}", runs=runs) if runs else ""
        parts.append(Text.assemble((stack.name, "bold"), (told, "dim")))
        parts.append(Padding(Prose(say(stack.title)), (0, 0, 0, 2)))
    return Group(*parts, "", Prose(note, style="dim"))


def stacks_document(name: str | None = None) -> Any:
    """The same in plain values: a list, or one object."""
    calibration = load_calibration()
    if name is not None:
        stack = load_stack(name)
        constants = {each: _constant_fields(stack, calibration, each) for each in Constants.model_fields}
        return {**_fields(stack, calibration), "runs": _facts(stack), "constants": constants}
    return [_fields(load_stack(each), calibration) for each in stack_names()]


def standard_error(constant: str, fitted: Fitted) -> float | None:
    """One standard error in the constant's own unit; None where the fit gives none."""
    slope = fitted.value * (1.0 - fitted.value) if _SHARE in constant else fitted.value
    return fitted.error * slope if fitted.error else None


def _fields(stack: Stack, calibration: Calibration) -> dict[str, Any]:
    return {"name": stack.name, "title": stack.title, "measured_runs": calibration.measured_on(stack.name)}


def _constant_fields(stack: Stack, calibration: Calibration, name: str) -> dict[str, Any]:
    documented = getattr(stack.constants, name)
    used = getattr(calibration.stack(stack).constants, name)
    fitted = calibration.fitted_constants(stack).get(name)
    return {
        **used.model_dump(),
        "fitted": fitted and {"runs": fitted.rows, "standard_error": standard_error(name, fitted)},
        "replaces": fitted and documented.model_dump(),
    }


def _detail(stack: Stack, calibration: Calibration) -> RenderableType:
    found = calibration.fitted_constants(stack)
    used = calibration.stack(stack)
    parts: list[RenderableType] = []
    for name in Constants.model_fields:
        constant = getattr(used.constants, name)
        parts.append(Text(f"{name:<{_WIDTH}}{constant.value:>10.4g}  {say(CONFIDENCE[constant.confidence])}"))
        fitted = found.get(name)
        source = _fitted_source(name, fitted, stack) if fitted else constant.source
        parts.append(Padding(Prose(source, style="dim"), (0, 0, 0, 4)))
    head = say(
        "{count} constants, {fitted} of them fitted to published runs",
        count=len(Constants.model_fields),
        fitted=len(found),
    )
    top = (Text(stack.name, style="bold"), Padding(Prose(say(stack.title)), (0, 0, 0, 1)))
    return Group(*top, *_what_it_runs(stack), "", Text(head, style="bold"), *parts)


def _what_it_runs(stack: Stack) -> list[RenderableType]:
    facts = _facts(stack)
    if facts is None:
        return []
    parts: list[RenderableType] = ["", Text(say("what it runs: the rule stack keeps plans to it"), style="bold")]
    for name, fact in facts.items():
        value = fact["value"]
        told = ", ".join(map(_word, value)) or say("none") if isinstance(value, tuple) else _word(value)
        parts += [Text(f"{name:<{_WIDTH}}{told}"), Padding(Text(fact["source"], style="dim"), (0, 0, 0, 4))]
    return parts


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _facts(stack: Stack) -> dict[str, Any] | None:
    """The facts that the profile states, by name; None where it states none."""
    if stack.runs is None:
        return None
    return {name: {"value": getattr(stack.runs, name), "source": source} for name, source in stack.runs.sources.items()}


def _fitted_source(name: str, fitted: Fitted, stack: Stack) -> str:
    documented = getattr(stack.constants, name)
    error = standard_error(name, fitted)
    sure = "" if error is None else say(", standard error {error:.2g}", error=error)
    return say(
        "fitted to {runs}{sure}; replaces {value:.4g} ({confidence}: {source})",
        runs=plural(fitted.rows, "published run"),
        sure=sure,
        value=documented.value,
        confidence=say(CONFIDENCE[documented.confidence]),
        source=documented.source,
    )
