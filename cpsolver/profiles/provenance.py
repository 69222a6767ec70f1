"""Where a constant that a prediction rests on comes from: runs, a catalogue, the user, or nobody's measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cpsolver.profiles.constants import CHIP_FACTORS, Overlay, load_calibration
from cpsolver.profiles.stack import Stack
from hw_specs import Chip

Basis = Literal["assumed", "catalogue", "given", "measured", "fitted", "learnt"]
"""assumed: no measurement bears on it. catalogue: somebody published it. given: the spec says so. measured: by
`apss-cp profile`. fitted: to published runs of the chip's architecture (of a stack: of any). learnt: from the user's
own runs."""
BASES: tuple[Basis, ...] = ("assumed", "catalogue", "given", "measured", "fitted", "learnt")
"""The weakest first."""
_GIVEN = "given by the user"


@dataclass(frozen=True)
class Provenance:
    """A constant of a chip or of a stack (`of` names it), and how sure its value is.

    `runs`: how many runs it was fitted to or learnt from.
    """

    constant: str
    of: str
    value: float
    basis: Basis
    source: str
    runs: int | None = None


def of_chip(chip: Chip, name: str, overlay: Overlay | None) -> Provenance:
    """One of the chip's efficiencies. What all chips share in the fit is no measurement of this one."""
    entry = chip.efficiency[name]
    applying = [
        (group, fitted.rows)
        for group, factor, fitted in load_calibration().fitted_factors(chip)
        if name in CHIP_FACTORS[factor]
    ]
    own = chip.architecture is not None and any(group == chip.architecture for group, _ in applying)
    learnt = {} if overlay is None else overlay.chips.get(chip.name, {})
    runs = max((each.rows for factor, each in learnt.items() if name in CHIP_FACTORS[factor]), default=0)
    if runs:
        return Provenance(name, chip.name, entry.value, "learnt", "learnt from your runs", runs)
    if own and entry.origin != "spec":
        runs = min(rows for _, rows in applying)
        return Provenance(name, chip.name, entry.value, "fitted", f"fitted to {runs} published runs", runs)
    basis: dict[str, Basis] = {"assumed": "given" if entry.source == _GIVEN else "assumed", "measured": "measured"}
    return Provenance(name, chip.name, entry.value, basis.get(entry.confidence, "catalogue"), entry.source)


def of_stack(stack: Stack, name: str, overlay: Overlay | None) -> Provenance:
    """One of the stack's constants."""
    constant = getattr(stack.constants, name)
    if constant.confidence == "fitted":
        learnt = None if overlay is None else overlay.stacks.get(stack.name, {}).get(name)
        if learnt is not None and learnt.position:
            return Provenance(name, stack.name, constant.value, "learnt", constant.source, learnt.rows)
        fitted = load_calibration().fitted_constants(stack).get(name)
        runs = None if fitted is None else fitted.rows
        return Provenance(name, stack.name, constant.value, "fitted", constant.source, runs)
    basis: Basis = "assumed" if constant.confidence == "assumed" else "catalogue"
    return Provenance(name, stack.name, constant.value, basis, constant.source)
