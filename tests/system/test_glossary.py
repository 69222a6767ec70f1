"""docs/glossary.md: what it names is there, and the words that it retired are gone from names."""

from __future__ import annotations

import ast
import importlib
import re
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from cpsolver.doors.report.legend import legend_words
from tests.support.checkout import ROOT

PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ADDRESSES = sorted(set(re.findall(r"`((?:cpsolver|hw_specs|models_zoo)\.[\w.]+)`", PAGE)))
RETIRED = (
    *("share_out", "shared_out", "run_again", "again", "twice", "repeat", "repeated", "product", "products"),
    *("told", "untold", "seen", "lesson", "lessons", "learnt", "felt", "belief", "today", "portfolio", "portfolios"),
    *("walk", "kept", "runnable", "uncertainty"),
)
OTHERWISE_MEANT = {"product_version", "product"}
"""A software product's; of numbers."""


def named(address: str) -> Any:
    """What a dotted address names: a module, a thing in one, or a field of a class."""
    parts = address.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            known = {field.name: field for field in fields(thing)} if is_dataclass(thing) else {}
            thing = known[part] if part in known else getattr(thing, part)
        return thing
    raise ModuleNotFoundError(address)


@pytest.mark.parametrize("address", ADDRESSES)
def test_what_the_glossary_names_is_there(address: str) -> None:
    assert named(address) is not None


def test_there_are_some_sixty_words_each_with_an_address() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| (?!word)[^-|]", line)]
    assert 50 <= len(rows) <= 70
    assert [line for line in rows if "`" not in line.split("|")[3]] == []


@pytest.mark.parametrize("meaning", sorted(set(legend_words().values())))
def test_the_legend_of_the_first_screen_says_what_the_glossary_says(meaning: str) -> None:
    assert f"| {meaning} |" in PAGE


def words(name: str) -> str:
    """A name as words between underscores: "PlanData" -> "_plan_data_"."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return f"_{'_'.join(parts).lower()}_"


def test_retired_words_stand_in_no_name() -> None:
    offenders: dict[str, list[str]] = {}
    for folder in ("cpsolver", "hw_specs", "models_zoo"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            names = [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
            found = [name for name in (file.stem, *names) if any(f"_{word}_" in words(name) for word in RETIRED)]
            wrong = sorted(set(found) - OTHERWISE_MEANT)
            if wrong:
                offenders[str(file.relative_to(ROOT))] = wrong
    assert not offenders
