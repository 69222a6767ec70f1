"""Which catalogue entry a device's file would replace: named by the user, or guessed from the device's name."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from cpsolver.inputs.data import package_data
from cpsolver.inputs.errors import InputError, Trouble, nearest_names
from hw_specs import Chip, UnknownChipError, chip_names, load_chip

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


def like(device_name: str) -> tuple[str, ...]:
    """Names of the catalogue that are most like a part of the device's name, best first."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", device_name) if re.search(r"\d", word) and len(word) > 2]
    found = [name for word in words for name in nearest_names(word, chip_names())]
    return tuple(dict.fromkeys(found))[:3]


@lru_cache
def _patterns() -> tuple[tuple[str, str | None], ...]:
    return tuple((entry["pattern"], entry["chip"]) for entry in package_data(_FILE)["names"])
