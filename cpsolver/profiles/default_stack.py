"""Which stack a spec means that names none: the launcher's own, else the one measured on the chips' vendor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpsolver.inputs.data import package_data
from cpsolver.inputs.language import say
from cpsolver.profiles.framework import Framework
from cpsolver.profiles.stack import Stack
from hw_specs import Chip

_FILE = Path(__file__).parent / "default_stacks.yaml"
NAMED = "the spec names it"
"""Why a stack that a spec names is this one."""
_ANY = "*"
_UNKNOWN = "other"  # the vendor of a chip that the spec describes without one


@dataclass(frozen=True)
class StackChoice:
    """The name of a stack, and why it is this one, in words."""

    name: str
    why: str


def usual_stack() -> str:
    """The stack of a spec of which nothing is known."""
    return str(_by_vendor()[_ANY]["stack"])


def choose_stack(named: str | None, launcher: Framework | None, chips: Iterable[Chip]) -> StackChoice:
    """The stack of a spec that names this one, or none."""
    if named is not None:
        return StackChoice(named, NAMED)
    if launcher is not None and launcher.stack is not None:
        return StackChoice(
            launcher.stack, say("the launcher {name}'s own, as the spec names no stack", name=launcher.name)
        )
    vendors = {chip.vendor for chip in chips}
    entry = _by_vendor().get(vendors.pop() if len(vendors) == 1 else _ANY, _by_vendor()[_ANY])
    without = "" if launcher is None else say(" nor has the launcher {name} one of its own", name=launcher.name)
    return StackChoice(
        str(entry["stack"]),
        say("{entry}, as the spec names no stack{without}", entry=say(entry["why"]), without=without),
    )


def foreign_vendors(written_for: str, chips: Iterable[Chip]) -> tuple[str, ...]:
    """The vendors of the chips but the one that software is written for, each once; not of those without a vendor."""
    return tuple(dict.fromkeys(chip.vendor for chip in chips if chip.vendor not in (written_for, _UNKNOWN)))


def foreign_kernels(stack: Stack, chips: Iterable[Chip]) -> str | None:
    """What is wrong with the stack on chips of another vendor than its kernels are for; None: nothing is."""
    vendors = foreign_vendors(stack.kernels, chips)
    if not vendors:
        return None
    return say(
        "Stack {name} has kernels for {kernels} chips; on {vendors} chips its overlaps, its fp8 "
        "and its step times are a guess that no run bears on.",
        name=stack.name,
        kernels=stack.kernels,
        vendors=say(" and ").join(vendors),
    )


def _by_vendor() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = package_data(_FILE)
    return found
