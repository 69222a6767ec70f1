"""What a spec says of the cluster itself: its network, level by level, and chips with other cards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from cpsolver.inputs.errors import number
from cpsolver.inputs.language import later, say
from cpsolver.problem.chip_changes import ChipChanges, chip_changes
from cpsolver.problem.network import Tier
from cpsolver.problem.problem import Problem, Supply
from hw_specs.network import MOST_DEVICES

_GBIT_S, _US = 8e-9, 1e6
_FACTORS = {
    "gemm": later("GEMMs"),
    "gemm_fp8": later("GEMMs in fp8"),
    "gemm_fp4": later("GEMMs in fp4"),
    "attention": later("attention"),
    "memory": later("memory bandwidth"),
    "fabric": later("fast fabric"),
    "network": later("network"),
}


def network_lines(problem: Problem) -> Iterator[Text]:
    """The network in words, with each chip type's way out; nothing where the spec names none."""
    if problem.network is not None:
        for line in problem.network.words(supply.chip for supply in problem.supplies):
            yield Text(line, style="dim" if line.startswith(" ") else "")


def changed_mark(problem: Problem, supply: Supply) -> str:
    """A mark behind a chip's name where the spec changes it: ` (nvlink none, network_gbit_s 100)`."""
    written = dict(zip(problem.chip_names, problem.spec.cluster.chips, strict=True))
    changes = problem.spec.cluster.chips[written[supply.name]].changes
    told = (f"{name} {value if isinstance(value, str) else number(value)}" for name, value in changes.items())
    return f" ({', '.join(told)})" if changes else ""


def changes_lines(problem: Problem) -> Iterator[Text]:
    """What the spec changes of the catalogue's chips, and which factors fitted to published runs still hold."""
    for each in chip_changes(problem.spec.cluster.chips):
        told = say("{chip} is not the catalogue's: {fields}.", chip=each.chip, fields=", ".join(each.fields))
        yield Text(f"{told} {_factors(each)}")


def _factors(changes: ChipChanges) -> str:
    kept, dropped = (
        ", ".join(say(_FACTORS.get(name, name)) for name in names) for names in (changes.kept, changes.dropped)
    )
    words = say("Fitted factors that still hold: {kept}.", kept=kept or "none")
    return (
        say("{words} No longer: {dropped} (measured on PCIe cards instead).", words=words, dropped=dropped)
        if dropped
        else words
    )


def cluster_document(problem: Problem) -> dict[str, Any]:
    """The same in plain values; empty where the spec names no network and changes no chip."""
    found: dict[str, Any] = {}
    if problem.network is not None:
        found["network"] = {
            "name": problem.network.name,
            "in_network_reduction": problem.network.figures.in_network_reduction,
            "levels": {
                supply.name: [_plain(tier) for tier in problem.network.tiers(supply.chip)]
                for supply in problem.supplies
            },
        }
    if changes := chip_changes(problem.spec.cluster.chips):
        found["changed_chips"] = {
            each.chip: {"fields": list(each.fields), "fitted": list(each.kept), "not_fitted": list(each.dropped)}
            for each in changes
        }
    return found


def _plain(tier: Tier) -> dict[str, Any]:
    return {
        "name": tier.name,
        "between_units_of": tier.unit,
        "devices": None if tier.devices >= MOST_DEVICES else tier.devices,
        "reached_gbit_s": tier.bandwidth_bytes_s * _GBIT_S,
        "latency_us": tier.latency_s * _US,
    }
