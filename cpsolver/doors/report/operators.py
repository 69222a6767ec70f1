"""Compute of the slowest stage by operator: for people, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from cpsolver.evaluation.matrices import matrix_costs
from cpsolver.evaluation.operators import OperatorSeconds, StageOperators
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import percent, plural, seconds
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.provenance import Provenance
from cpsolver.profiles.techniques import techniques
from hw_specs.units import bytes_to_gib

_SHOWN = 0.001  # operators with a smaller share of compute are told together
_DIFFERS = 0.002  # and differences that are a smaller share of it are not told
_NO_PADDING_GIB = 0.05  # less would be shown as none
_ELSE = later("all else")
HEADS = ("", later("a step"), "", later("of peak"), later("known by"))
"""Of the columns of `operator_rows`."""
_ASSUMED = later("No measurement bears on {share} of it: {names} are assumed.")


def operators_table(found: StageOperators) -> Iterator[RenderableType]:
    """The operators that take the most of it, all others as one, and what of it no measurement bears on."""
    figures = (Column(justify="right", no_wrap=True) for _ in range(3))
    table = Table.grid(Column(style="dim", no_wrap=True), *figures, Column(no_wrap=True), padding=(0, 2, 0, 0))
    table.add_row(*(head and say(head) for head in HEADS), style="dim")
    for cells in operator_rows(found):
        table.add_row(*cells)
    table.add_row(say("compute"), seconds(found.seconds), percent(1.0), "", "", style="bold")
    yield table
    yield Text(unmeasured_text(found), style="dim")


def operator_rows(found: StageOperators) -> Iterator[tuple[str, str, str, str, str]]:
    """An operator's name, seconds, share of compute, share of the peak, and what it rests on."""
    large = [part for part in found.parts if part.seconds >= _SHOWN * found.seconds]
    for part in large:
        close = "" if part.of_peak is None else percent(part.of_peak)
        yield part.name, *_amount(part.seconds, found), close, basis_text(part)
    rest = sum(part.seconds for part in found.parts[len(large) :])
    if rest > 0:
        yield say(_ELSE), *_amount(rest, found), "", ""


def _amount(value: float, found: StageOperators) -> tuple[str, str]:
    return seconds(value, of=found.seconds), percent(value / found.seconds)


def operators_title(found: StageOperators, pp: int) -> str:
    """Whose compute it is."""
    if pp == 1:
        return say("Where compute goes: a step")
    return say("Where compute goes: stage {stage} ({chip}), the slowest", stage=found.stage, chip=found.chip)


def unmeasured_text(found: StageOperators) -> str:
    """What of compute no measurement bears on, in a sentence."""
    names = sorted({each.constant for part in found.parts for each in part.rests_on if each.basis == "assumed"})
    if not names:
        return say("Measurements bear on all of it.")
    one = len(names) == 1
    told = say("No measurement bears on {share} of it: {names} is assumed.") if one else say(_ASSUMED)
    return told.format(share=percent(found.unmeasured), names=", ".join(names))


def basis_text(part: OperatorSeconds) -> str:
    """Where the constant that is known least comes from."""
    found = part.weakest
    if found is None:
        return ""
    runs = plural(found.runs, "run") if found.runs else say("published runs")
    words = {
        "given": say("your spec"),
        "measured": say("your profile"),
        "fitted": say("fit to {runs}", runs=runs),
        "learnt": say("your {runs}", runs=runs),
        "assumed": say("assumed"),
    }
    return words.get(found.basis, found.basis)


def operators_document(found: StageOperators) -> dict[str, Any]:
    """The same for machines; `parts` sum to `compute_s`, and name the `constants` that they rest on."""
    constants = {each.constant: each for part in found.parts for each in part.rests_on}
    return {
        "stage": found.stage,
        "chip": found.chip,
        "compute_s": found.seconds,
        "unmeasured_share": found.unmeasured,
        "parts": [
            {
                "name": part.name,
                "seconds": part.seconds,
                "share": part.seconds / found.seconds,
                "of_peak": part.of_peak,
                "basis": part.basis,
                "rests_on": [each.constant for each in part.rests_on],
            }
            for part in found.parts
        ],
        "constants": {name: _constant(each) for name, each in constants.items()},
    }


def _constant(found: Provenance) -> dict[str, Any]:
    return {name: value for name, value in asdict(found).items() if name != "constant"}


def matrices_notes(problem: Problem, strategy: Strategy) -> Iterator[str]:
    """What the matrices of Muon or SOAP cost in time and memory; nothing with another optimizer."""
    costs = matrix_costs(problem, strategy)
    if costs is None:
        return
    one = say("the fullest rank")
    told = {
        "optimizer": problem.spec.training.optimizer,
        "matrices_s": seconds(costs.matrices_s),
        "where": say("stage {stage}'s fullest rank", stage=costs.stage) if strategy.pp > 1 else one,
    }
    if costs.factors_bytes:
        yield say(
            "{optimizer}'s matrices: {matrices_s} of {where}, which holds {held:.1f} GiB of factors and eigenbases; "
            "no run with it was measured",
            **told,
            held=bytes_to_gib(costs.factors_bytes),
        )
    else:
        yield say(
            "{optimizer}'s matrices: {matrices_s} of {where}, {steps:g} iterations and the momentum; no run with it "
            "was measured",
            **told,
            steps=techniques().muon_steps,
        )
    if (more := bytes_to_gib(costs.padding_bytes)) >= _NO_PADDING_GIB:
        yield say(
            "buffers of dense matrices are {padded:.2f} times as long as these, for ranks take whole ones: {more:.1f} "
            "GiB, reduced and gathered too",
            padded=costs.padded,
            more=more,
        )


def matrices_document(problem: Problem, strategy: Strategy) -> dict[str, Any]:
    """The same for machines, under one key."""
    costs = matrix_costs(problem, strategy)
    if costs is None:
        return {}
    found = asdict(costs)
    gib = {f"{name}_gib": bytes_to_gib(found.pop(f"{name}_bytes")) for name in ("padding", "factors")}
    return {"matrices": {**found, **gib}}


def differing_table(own: StageOperators, other: StageOperators) -> Iterator[RenderableType]:
    """Where the compute of two plans differs, each by its slowest stage; nothing where it does not."""
    size = max(own.seconds, other.seconds)
    mine, its = ({part.name: part.seconds for part in each.parts} for each in (own, other))
    both = [(name, mine.get(name, 0.0), its.get(name, 0.0)) for name in dict.fromkeys((*mine, *its))]
    large = sorted((each for each in both if abs(each[1] - each[2]) > _DIFFERS * size), key=lambda e: -abs(e[1] - e[2]))
    if not large:
        return
    rest = own.seconds - sum(each[1] for each in large), other.seconds - sum(each[2] for each in large)
    large.append((say(_ELSE), *rest))
    yield Text(say("Of compute, by each one's slowest stage:"))
    figures = (Column(justify="right", no_wrap=True) for _ in range(3))
    table = Table.grid(*figures, Column(no_wrap=True), padding=(0, 2, 0, 0))
    for name, one, two in large:
        more = f"{'+' if one > two else '-'}{seconds(abs(one - two), of=size)}"
        table.add_row(seconds(one, of=size), seconds(two, of=size), more, name)
    yield table
