"""A chip file of the catalogue's schema: what was measured, and from the entry that it replaces what was not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

from cpsolver.doors.profile.efficiencies import GivenPeaks, KnownPeaks, MeasuredEfficiency
from cpsolver.inputs.data import package_data
from cpsolver.inputs.errors import InputError, Trouble, nearest_names, one_line
from hw_specs import Chip, UnknownChipError, chip_names, complete_chip, load_chip, unusable_reasons

_FILE = Path(__file__).parent / "device_names.yaml"


def named_entry(name: str) -> Chip:
    """The entry of that name; raises InputError with the nearest names."""
    try:
        return load_chip(name)
    except UnknownChipError as error:
        trouble = Trouble("--replaces", "unknown chip", name, "a name that `apss-cp chips` lists", error.nearest)
        raise InputError(trouble) from None


def guessed_entry(device_name: str) -> Chip | None:
    """The entry of the device that a driver calls so; None where it has none."""
    for pattern, chip in _patterns():
        if re.search(pattern, device_name, re.IGNORECASE):
            return None if chip is None else load_chip(chip)
    return None


def similar_entries(device_name: str) -> tuple[str, ...]:
    """Names of the catalogue that are most like a part of the device's name, best first."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", device_name) if re.search(r"\d", word) and len(word) > 2]
    found = [name for word in words for name in nearest_names(word, chip_names())]
    return tuple(dict.fromkeys(found))[:3]


@lru_cache
def _patterns() -> tuple[tuple[str, str | None], ...]:
    return tuple((entry["pattern"], entry["chip"]) for entry in package_data(_FILE)["names"])


@dataclass(frozen=True)
class DeviceFacts:
    """What the device itself tells: memory in bytes, compute units, devices on this machine; and what measured it."""

    kind: str
    memory_bytes: float
    compute_units: int | None
    devices: int
    measured_on: str
    """Date, device, driver and PyTorch's version, in words."""


def chip_fields(
    name: str,
    entry: Chip | None,
    found: Sequence[MeasuredEfficiency],
    known: KnownPeaks,
    given: GivenPeaks,
    facts: DeviceFacts,
) -> dict[str, Any]:
    """The file's fields. Figures that nobody measured or knows are not in it: the loader has defaults for some."""
    fields = _of_entry(entry) if entry is not None else _of_device(known, facts)
    fields["name"] = name
    fields["sources"] = _sources(entry, facts)
    for precision, value in given.tflops.items():
        fields["peak_tflops"][precision] = value
    if given.memory_gb_s is not None:
        fields["memory"]["bandwidth_gb_s"] = given.memory_gb_s
    if given.fabric_gb_s is not None:
        pair = fields["scale_up"].get("peer_bandwidth_gb_s", given.fabric_gb_s)
        fabric = {"bandwidth_gb_s": given.fabric_gb_s, "peer_bandwidth_gb_s": min(pair, given.fabric_gb_s)}
        fields["scale_up"] = {**fields["scale_up"], **fabric}
    if given.network_gbit_s is not None:
        fields["scale_out"] = {"bandwidth_gbit_s": given.network_gbit_s, "detail": "given by the user"}
    fields["efficiency"] = _efficiencies(entry, found, facts)
    return fields


def _of_entry(entry: Chip) -> dict[str, Any]:
    """The entry's own, without its aliases: they would be taken for it."""
    fields = entry.model_dump(mode="json", exclude_none=True, exclude={"efficiency", "aliases"})
    fields["confidence"] = entry.confidence
    return fields


def _of_device(known: KnownPeaks, facts: DeviceFacts) -> dict[str, Any]:
    """What the device tells and what was seen of it."""
    fields: dict[str, Any] = {
        "name": "",
        "vendor": {"cuda": "nvidia", "npu": "huawei"}.get(facts.kind, facts.kind),
        "confidence": "measured",
        "peak_tflops": {name: peak.value / 1e12 for name, peak in known.flops.items()},
        "memory": {"capacity_gb": facts.memory_bytes / 1e9, "usable_gib": facts.memory_bytes / 2**30},
        "scale_up": {"domain_size": facts.devices},
        "scale_out": {},
    }
    if facts.compute_units is not None:
        fields["compute_units"] = facts.compute_units
    if known.memory is not None:
        fields["memory"]["bandwidth_gb_s"] = known.memory.value / 1e9
    if known.fabric is not None:
        fields["scale_up"]["bandwidth_gb_s"] = known.fabric.value / 1e9
    return fields


def _sources(entry: Chip | None, facts: DeviceFacts) -> str:
    measured = f"efficiencies of confidence measured: apss-cp profile, {facts.measured_on}"
    if entry is None:
        return f"{measured}; peaks without a published figure are the best rates seen"
    return f"{measured}; all else is the catalogue's {entry.name}: {entry.sources}".strip()


def _efficiencies(entry: Chip | None, found: Sequence[MeasuredEfficiency], facts: DeviceFacts) -> dict[str, Any]:
    measured = {
        each.name: {
            "value": float(f"{each.value:.5g}"),
            "confidence": "measured",
            "source": f"{facts.measured_on}: {each.source}; quartiles of the repeats {each.spread:.1%} apart",
        }
        for each in found
    }
    if entry is None:
        return measured
    kept = {
        name: {
            "value": each.value,
            "confidence": each.confidence,
            "source": f"not measured here; the catalogue's {entry.name}: {each.source}",
        }
        for name, each in entry.efficiency.items()
    }
    return {name: measured.get(name, entry_) for name, entry_ in kept.items()}


def chip_text(fields: dict[str, Any], facts: DeviceFacts) -> str:
    """The file's text, with how to use it on top."""
    from ruamel.yaml import YAML

    yaml, text = YAML(), StringIO()
    yaml.width = 110
    yaml.default_flow_style = False
    yaml.dump(fields, text)
    name = one_line(fields["name"])
    head = (
        f"# Written by `apss-cp profile`: {one_line(facts.measured_on)}.\n"
        f"# In a spec: cluster: {{chips: {{{name}: {{file: THIS FILE}}}}}}. Planning takes it at its word.\n"
    )
    return head + text.getvalue()


def missing(fields: dict[str, Any]) -> tuple[str, ...]:
    """Why no plan can be made with the file as it is; empty when one can."""
    return unusable_reasons(complete_chip(fields))
