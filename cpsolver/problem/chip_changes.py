"""A chip of the catalogue with other cards: what a spec changes of it, and which fitted factors still hold.

Factors fitted to published runs are shares of a chip's peaks, so that they hold for another bandwidth of the same kind
of link or memory. Without NVLink the fabric is another kind of link, of which they say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpsolver.inputs.errors import Path as KeyPath
from cpsolver.inputs.errors import Trouble, dotted, number
from cpsolver.inputs.language import later
from cpsolver.problem.network import COLLECTIVES
from cpsolver.profiles.constants import load_calibration
from cpsolver.spec.cluster import ChipRequest
from hw_specs import Chip, Efficiency, UnknownChipError, load_chip
from hw_specs.units import bytes_to_gib

_PCIE = "l40s"
"""The chip of the catalogue whose fabric is PCIe alone, and measured."""
_UNITS = {"network_gbit_s": "Gbit/s", "memory_gib": "GiB", "memory_gb_s": "GB/s", "nvlink": "GB/s"}


@dataclass(frozen=True)
class ChipChanges:
    """What a spec changes of a chip: fields as `name: old -> new unit`, and the fitted factors by whether they hold."""

    chip: str
    fields: tuple[str, ...]
    kept: tuple[str, ...]
    dropped: tuple[str, ...]


def changed_chip(chip: Chip, changes: Mapping[str, Any]) -> Chip:
    """The chip, its fitted factors applied, with a request's changes."""
    update: dict[str, Any] = {}
    if (rate := changes.get("network_gbit_s")) is not None:
        update["scale_out"] = chip.scale_out.model_copy(
            update={"bandwidth_gbit_s": rate, "detail": "given in the spec"}
        )
    memory = {"usable_gib": changes.get("memory_gib"), "bandwidth_gb_s": changes.get("memory_gb_s")}
    memory = {name: value for name, value in memory.items() if value is not None}
    if memory:
        update["memory"] = chip.memory.model_copy(update=memory)
    link = changes.get("nvlink")
    if link == "none":
        update |= _on_pcie(chip)
    elif link is not None:
        fabric = {"bandwidth_gb_s": link, "peer_bandwidth_gb_s": _peer(chip, link)}
        update["scale_up"] = chip.scale_up.model_copy(update=fabric)
    return chip.model_copy(update=update)


def _peer(chip: Chip, link: float) -> float | None:
    """One pair's share of the new bandwidth: all of it, or as much of it as before."""
    pair, whole = chip.scale_up.peer_bandwidth_gb_s, chip.scale_up.bandwidth_gb_s
    return None if pair is None or whole is None else link * pair / whole


def _on_pcie(chip: Chip) -> dict[str, Any]:
    """Fields of the chip where PCIe is all its fabric: its link to the host, shared as measured on a PCIe card."""
    measured, link = load_chip(_PCIE), chip.host_link
    assert link is not None
    fabric = {
        "kind": f"PCIe{link.pcie_generation} (no NVLink)",
        "bandwidth_gb_s": link.bandwidth_gb_s,
        "peer_bandwidth_gb_s": link.bandwidth_gb_s,
        "domain_size": measured.scale_up.domain_size,
        "topology": measured.scale_up.topology,
        "spans_nodes": False,
        "detail": "given in the spec",
    }
    names = (*COLLECTIVES, "collective_half_payload_mib", "collective_latency_us")
    taken = {name: _as_measured(measured.efficiency[name]) for name in names}
    scale_up = chip.scale_up.model_copy(update=fabric)
    return {"scale_up": scale_up, "efficiency": chip.efficiency | taken}


def _as_measured(entry: Efficiency) -> Efficiency:
    source = f"without NVLink, as {_PCIE}: {entry.source}"
    return entry.model_copy(update={"confidence": "assumed", "source": source, "origin": "spec"})


def change_troubles(path: KeyPath, chip: Chip, changes: Mapping[str, Any]) -> list[Trouble]:
    """What of a request's changes cannot be: NVLink taken from a chip whose PCIe link is not known."""
    if changes.get("nvlink") != "none" or chip.host_link is not None:
        return []
    where = (*path, "nvlink")
    message = later("the catalogue knows no PCIe link of {name} that could take NVLink's place", name=chip.name)
    return [Trouble(dotted(where), message, "none", later("GB/s of a device, one way"), path=where)]


def chip_changes(requests: Mapping[str, ChipRequest]) -> tuple[ChipChanges, ...]:
    """What a spec changes of the catalogue's chips, chip by chip; chips without changes are left out."""
    found = []
    for written, request in requests.items():
        if not request.changes or request.spec is not None or request.file is not None:
            continue
        try:
            chip = load_chip(written)
        except UnknownChipError:
            continue
        new = changed_chip(chip, request.changes)
        told = tuple(_in_words(name, chip, new) for name in request.changes)
        factors = dict.fromkeys(name for _, name, _ in load_calibration().fitted_factors(chip))
        gone = ["fabric"] if request.changes.get("nvlink") == "none" else []
        kept = tuple(name for name in factors if name not in gone)
        found.append(ChipChanges(chip.name, told, kept, tuple(name for name in factors if name in gone)))
    return tuple(found)


def drops_fabric(request: ChipRequest) -> bool:
    """Whether what was fitted or learnt of the chip's fabric says nothing of the chip as changed."""
    return request.nvlink == "none"


def _in_words(name: str, old: Chip, new: Chip) -> str:
    """One change in words: `network_gbit_s 200 -> 100 Gbit/s`."""
    before, after = _figure(name, old), _figure(name, new)
    if name == "nvlink" and new.scale_up.kind != old.scale_up.kind:
        return f"nvlink {before} -> none, {new.scale_up.kind} {after} {_UNITS[name]}"
    return f"{name} {before} -> {after} {_UNITS[name]}"


def _figure(name: str, chip: Chip) -> str:
    memory = chip.memory
    value = {
        "network_gbit_s": chip.scale_out.bandwidth_gbit_s,
        "memory_gib": bytes_to_gib(chip.memory_capacity_bytes),
        "memory_gb_s": memory.bandwidth_gb_s,
        "nvlink": chip.scale_up.bandwidth_gb_s,
    }[name]
    return "not known" if value is None else number(round(value, 2))
