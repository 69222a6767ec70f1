"""Writes a chip file of the catalogue's schema: what was measured, and the rest from the entry that it replaces.

The user names that entry, or it is guessed from the device's name.
"""

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
from cpsolver.inputs.language import say
from hw_specs import Chip, UnknownChipError, chip_names, complete_chip, load_chip, unusable_reasons

_FILE = Path(__file__).parent / "device_names.yaml"


def named_entry(name: str) -> Chip:
    """The catalogue's entry of that name. Raises InputError with the nearest names."""
    try:
        return load_chip(name)
    except UnknownChipError as error:
        trouble = Trouble(
            "--replaces", say("unknown chip"), name, say("a name that `apss-cp chips` lists"), error.nearest
        )
        raise InputError(trouble) from None


def guessed_entry(device_name: str) -> Chip | None:
    """The catalogue's entry for the device that a driver calls by this name; None where there is none."""
    for pattern, chip in _patterns():
        if re.search(pattern, device_name, re.IGNORECASE):
            return None if chip is None else load_chip(chip)
    return None


def similar_entries(device_name: str) -> tuple[str, ...]:
    """Names of the catalogue closest to a part of the device's name, best first."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", device_name) if re.search(r"\d", word) and len(word) > 2]
    names = [name for word in words for name in nearest_names(word, chip_names())]
    return tuple(dict.fromkeys(names))[:3]


@lru_cache
def _patterns() -> tuple[tuple[str, str | None], ...]:
    return tuple((entry["pattern"], entry["chip"]) for entry in package_data(_FILE)["names"])


@dataclass(frozen=True)
class DeviceFacts:
    """Facts that the device itself reports: memory in bytes, compute units, devices on this machine; its provenance."""

    kind: str
    memory_bytes: float
    compute_units: int | None
    devices: int
    measured_on: str
    """Date, device, driver and PyTorch's version, in words."""


def chip_fields(
    name: str,
    entry: Chip | None,
    measured: Sequence[MeasuredEfficiency],
    known_peaks: KnownPeaks,
    given: GivenPeaks,
    facts: DeviceFacts,
) -> dict[str, Any]:
    """The fields of the file. Figures neither measured nor known are left out; the loader has defaults."""
    if entry is None:
        fields = _of_device(known_peaks, facts)
    else:  # without its aliases, under which the file would be taken for the entry
        fields = entry.model_dump(mode="json", exclude_none=True, exclude={"efficiency", "aliases"})
    fields["name"] = name
    fields["sources"] = _sources(entry, facts)
    for precision, value in given.tflops.items():
        fields["peak_tflops"][precision] = value
    if given.memory_gb_s is not None:
        fields["memory"]["bandwidth_gb_s"] = given.memory_gb_s
    if given.fabric_gb_s is not None:
        peer = fields["scale_up"].get("peer_bandwidth_gb_s", given.fabric_gb_s)
        fabric = {"bandwidth_gb_s": given.fabric_gb_s, "peer_bandwidth_gb_s": min(peer, given.fabric_gb_s)}
        fields["scale_up"] = {**fields["scale_up"], **fabric}
    if given.network_gbit_s is not None:
        fields["scale_out"] = {"bandwidth_gbit_s": given.network_gbit_s, "detail": "given by the user"}
    fields["efficiency"] = _efficiencies(entry, measured, facts)
    return fields


def _of_device(known_peaks: KnownPeaks, facts: DeviceFacts) -> dict[str, Any]:
    """Fields from the device itself and from the best rates measured on it."""
    fields: dict[str, Any] = {
        "name": "",
        "vendor": {"cuda": "nvidia", "npu": "huawei"}.get(facts.kind, facts.kind),
        "confidence": "measured",
        "peak_tflops": {name: peak.value / 1e12 for name, peak in known_peaks.flops.items()},
        "memory": {"capacity_gb": facts.memory_bytes / 1e9, "usable_gib": facts.memory_bytes / 2**30},
        "scale_up": {"domain_size": facts.devices},
        "scale_out": {},
    }
    if facts.compute_units is not None:
        fields["compute_units"] = facts.compute_units
    if known_peaks.memory is not None:
        fields["memory"]["bandwidth_gb_s"] = known_peaks.memory.value / 1e9
    if known_peaks.fabric is not None:
        fields["scale_up"]["bandwidth_gb_s"] = known_peaks.fabric.value / 1e9
    return fields


def _sources(entry: Chip | None, facts: DeviceFacts) -> str:
    measured = f"efficiencies of confidence measured: apss-cp profile, {facts.measured_on}"
    if entry is None:
        return f"{measured}; peaks without a published figure are the best rates seen"
    return f"{measured}; all else is the catalogue's {entry.name}: {entry.sources}".strip()


def _efficiencies(entry: Chip | None, figures: Sequence[MeasuredEfficiency], facts: DeviceFacts) -> dict[str, Any]:
    measured = {
        figure.name: {
            "value": float(f"{figure.value:.5g}"),
            "confidence": "measured",
            "source": f"{facts.measured_on}: {figure.source}; quartiles of the repeats {figure.spread:.1%} apart",
        }
        for figure in figures
    }
    if entry is None:
        return measured
    catalogue: dict[str, Any] = {}
    for name, figure in entry.efficiency.items():
        source = f"not measured here; the catalogue's {entry.name}: {figure.source}"
        catalogue[name] = {"value": figure.value, "confidence": figure.confidence, "source": source}
    return {name: measured.get(name, of_entry) for name, of_entry in catalogue.items()}


def chip_text(fields: dict[str, Any], facts: DeviceFacts) -> str:
    """The text of the file, with a comment on its use on top."""
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
    """Why no plan can be made with the file; empty where one can."""
    return unusable_reasons(complete_chip(fields))
