"""Recipes of Megatron-Bridge mean what reading their text says: its own functions run, field by field."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.importing.recipe_text import Recipes
from cpsolver.doors.importing.recipe_values import UNCLEAR, Configured
from tests.real.readers import BRIDGE, read

READER = Path(__file__).with_name("bridge_recipes_read.py")


def recipes_of(package: Path) -> Iterator[tuple[Path, str]]:
    """Files of Megatron-Bridge with the recipes that each defines."""
    for file in sorted(path for folder in ("recipes", "perf_recipes") for path in (package / folder).rglob("*.py")):
        for line in file.read_text().splitlines():
            if line.startswith("def ") and line.endswith("-> ConfigContainer:") and not line.startswith("def _"):
                yield file, line.removeprefix("def ").partition("(")[0]


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    """Fields of a section of which the text says another value; those that either side has no plain value of count
    as equal."""
    for name, value in ours.items():
        plain = not isinstance(value, Configured | dict) and value is not UNCLEAR
        if plain and name in theirs and theirs[name] != [None]:
            same = theirs[name] == (list(value) if isinstance(value, tuple) else value)
            if not same:
                yield f"{name}: {value!r} is {theirs[name]!r}"


def test_what_recipes_set_is_what_their_text_says() -> None:
    root = Path(os.environ.get("MEGATRON_BRIDGE", ""))
    if not os.environ.get("MEGATRON_BRIDGE"):
        pytest.skip("name a folder to import from by MEGATRON_BRIDGE")
    found = list(recipes_of(root / "megatron" / "bridge"))[::4]
    assert len(found) > 100
    cases = [{"module": ".".join(file.relative_to(root).with_suffix("").parts), "name": name} for file, name in found]
    compared = 0
    for (file, name), theirs in zip(found, read(READER, BRIDGE, cases), strict=True):
        recipes = Recipes(root)
        ours = recipes.called(recipes.read(file), name)
        if "error" in theirs or not isinstance(ours, Configured):  # what it does needs the model's own configuration
            continue
        for section, fields in theirs.items():
            held = ours.fields.get(section)
            if isinstance(held, Configured):
                assert not list(differences(held.plain(), fields)), (name, section)
                compared += len(held.plain().keys() & fields.keys())
    assert compared > 5000
