"""What a spec leaves open of a plan's step time: a line for the first screen, a section, plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.explanation.open_switches import NaturalRouting, OpenSwitch, OpenSwitches, open_switches
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import about, unit
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.search.result import Result

TITLE = later("Switches that the spec leaves open")
HEADS = ("", later("taken"), later("otherwise"))
"""Of the columns of `switch_rows`."""
_WIDE = 0.03  # a range that is narrower, or a switch's, is not told on the first screen


def open_of_result(problem: Problem, result: Result) -> OpenSwitches | None:
    """What the spec leaves open of the best plan's step time; None without a plan."""
    if not result.plans:
        return None
    best = result.plans[0]
    return open_switches(problem, best.strategy, best.evaluation, searched=True)


def open_of_plan(problem: Problem, plan: Strategy, evaluation: Evaluation | None) -> OpenSwitches | None:
    """The same of a plan that was given; None where it could not be evaluated."""
    return None if evaluation is None else open_switches(problem, plan, evaluation, searched=False)


def open_words(found: OpenSwitches | None) -> str:
    """Which switches move the step time by more than a few percent, and between what; empty where none does."""
    if found is None or found.width < _WIDE or not found.switches:
        return ""
    most = max(switch.width for switch in found.switches)
    named = say(", ").join(say(switch.name) for switch in found.switches if switch.width >= min(_WIDE, most))
    return say("{name}: {reason}", name=named, reason=_span(found.low_s, found.high_s))


def open_line(found: OpenSwitches | None) -> Iterator[Text]:
    """The same as a line of a report."""
    if words := open_words(found):
        yield Text(say("Not given: {words}.", words=words), style="yellow")


def switches_table(found: OpenSwitches) -> Iterator[RenderableType]:
    """Each switch with the value taken and the others, what all of them together give, and the experts' load."""
    if found.switches:
        table = Table.grid(Column(style="dim", no_wrap=True), Column(no_wrap=True), Column(), padding=(0, 2, 0, 0))
        table.add_row(*(head and say(head) for head in HEADS), style="dim")
        for cells in switch_rows(found):
            table.add_row(*cells)
        yield table
    yield from (Text(line, style="dim") for line in switches_lines(found))


def switch_rows(found: OpenSwitches) -> Iterator[tuple[str, str, str]]:
    """A switch's field, the value taken, and the seconds of a step with each of the others."""
    for switch in found.switches:
        others = _by_step({name: step for name, step in switch.steps_s.items() if name != switch.taken})
        yield switch.field, switch.taken, say(", ").join(others)


def _by_step(steps: Mapping[str, float]) -> Iterator[str]:
    """Values that take as long as each other in one: `deepep or hybridep 12.1 s`."""
    told: dict[str, list[str]] = {}
    for name, step in steps.items():
        told.setdefault(_seconds(step), []).append(name)
    yield from (f"{say(' or ').join(names)} {step}" for step, names in told.items())


def switches_lines(found: OpenSwitches) -> Iterator[str]:
    """What all switches give together, and what natural routing would."""
    if len(found.switches) > 1:
        fastest, slowest = _seconds(found.low_s), _seconds(found.high_s)
        yield say(
            "All at their fastest {fastest}, all at their slowest {slowest}; a spec that gives them is planned so.",
            fastest=fastest,
            slowest=slowest,
        )
    elif found.switches:
        yield say("A spec that gives it is planned so.")
    if found.routing is not None:
        yield routing_sentence(found.routing)


def routing_sentence(routing: NaturalRouting) -> str:
    """That experts are taken to be evenly loaded, and what a step takes where they are not."""
    loads, steps = list(routing.steps_s), list(routing.steps_s.values())
    times = say("{loads:g} to {loads2:g}", loads=loads[0], loads2=loads[-1]) if len(loads) > 1 else f"{loads[0]:g}"
    full = next((load for load, fits in routing.fits.items() if not fits), None)
    memory = "" if full is None else say("; at {full:g} it does not fit in memory", full=full)
    return say(
        "Experts are taken to be evenly loaded, as benchmarks force them to be. Routed naturally, "
        "the busiest device has {times} times its share (training.expert_imbalance): "
        "{span}{memory}.",
        times=times,
        span=_span(steps[0], steps[-1]),
        memory=memory,
    )


def _span(low: float, high: float) -> str:
    ends = about(low, high), about(high, high)
    span = _seconds(high)
    if ends[0] != ends[1]:
        span = say("{low_s} to {high_s} {unit}", low_s=ends[0], high_s=ends[1], unit=unit(high))
    return say("{span} a step", span=span)


def _seconds(value: float) -> str:
    return f"{about(value)} {unit(value)}"


def open_document(found: OpenSwitches | None) -> dict[str, Any] | None:
    """The same for machines; None where nothing is open that matters."""
    if found is None:
        return None
    routing = found.routing
    return {
        "low_s": found.low_s,
        "high_s": found.high_s,
        "switches": [_switch(each) for each in found.switches],
        "natural_routing": routing
        and [
            {"expert_imbalance": load, "step_time_s": step, "fits": routing.fits[load]}
            for load, step in routing.steps_s.items()
        ],
    }


def _switch(switch: OpenSwitch) -> dict[str, Any]:
    return {"field": switch.field, "taken": switch.taken, "step_time_s": dict(switch.steps_s)}
