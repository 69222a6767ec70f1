"""Finds chips by name and completes them. One chip by its canonical name: its file and the defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hw_specs.schema import Chip

_DATA = Path(__file__).parent / "data"
_DEFAULTS = _DATA / "_defaults.yaml"
_SAFE_NAME = re.compile(r"[a-z0-9][a-z0-9._]{0,99}")
_GIVEN = {"confidence": "assumed", "source": "given by the user"}


class UnknownChipError(KeyError):
    """No chip of that name or alias; `nearest` holds the closest names, best first."""

    def __init__(self, name: str, nearest: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name = name
        self.nearest = nearest

    def __str__(self) -> str:
        hint = f" Nearest: {', '.join(self.nearest)}." if self.nearest else ""
        return f"no chip named {self.name!r} in the catalogue.{hint}"


def load_chip(name: str) -> Chip:
    """The chip of that canonical name or alias, completed; case does not matter and "-" reads as "_".

    Raises:
        UnknownChipError: with the nearest names.
    """
    wanted = _normalise(name)
    if _SAFE_NAME.fullmatch(wanted):
        path = _DATA / f"{wanted}.yaml"
        if path.is_file():
            return _load_file(path)
        for path in _files():
            if wanted in _normalise(path.read_text(encoding="utf-8")):
                chip = _load_file(path)
                if wanted in map(_normalise, chip.aliases):
                    return chip
    raise UnknownChipError(name, _nearest(wanted))


def list_chips() -> list[Chip]:
    """Every chip of the catalogue, completed, sorted by name. Reads every file."""
    return [_load_file(path) for path in _files()]


def chip_names() -> tuple[str, ...]:
    """The canonical names, sorted. Reads no file."""
    return tuple(path.stem for path in _files())


def complete_chip(raw: Mapping[str, Any]) -> Chip:
    """A chip from its fields as in a catalogue file.

    Missing efficiencies come from the vendor's or the general defaults; one may be a bare number.
    The least a plan needs: name, peak_tflops.bf16, memory.capacity_gb,
    memory.bandwidth_gb_s, scale_up.bandwidth_gb_s and scale_out.bandwidth_gbit_s.

    Raises:
        pydantic.ValidationError: with every problem found, each naming its field.
    """
    given = raw.get("efficiency")
    if given is not None and not isinstance(given, Mapping):
        return Chip.model_validate(dict(raw))
    efficiency = _default_efficiencies(str(raw.get("vendor", "other")))
    for name, entry in (given or {}).items():
        efficiency[name] = {"value": entry, **_GIVEN} if isinstance(entry, int | float) else entry
    return Chip.model_validate({**raw, "efficiency": efficiency})


def _default_efficiencies(vendor: str) -> dict[str, Any]:
    defaults = _read(_DEFAULTS)
    merged = {name: {**entry, "origin": "default"} for name, entry in defaults["default"].items()}
    for name, entry in defaults.get(vendor, {}).items():
        merged[name] = {**entry, "origin": "vendor default"}
    return merged


def _files() -> list[Path]:
    entries = (path for path in _DATA.glob("*.yaml") if not path.name.startswith("_"))
    return sorted(entries, key=lambda path: path.stem)


def _normalise(text: str) -> str:
    return text.strip().lower().replace("-", "_")


@cache
def _load_file(path: Path) -> Chip:
    return complete_chip(_read(path))


@cache
def _read(path: Path) -> dict[str, Any]:
    from ruamel.yaml import YAML

    loaded: dict[str, Any] = YAML(typ="safe").load(path)
    return loaded


def _nearest(wanted: str) -> tuple[str, ...]:
    import difflib

    owner = {_normalise(alias): chip.name for chip in list_chips() for alias in (chip.name, *chip.aliases)}
    close = difflib.get_close_matches(wanted, owner, n=5, cutoff=0.5)
    return tuple(dict.fromkeys(owner[match] for match in close))[:3]
