"""From which year a framework is, by the name that a measured run gives it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from cpsolver.inputs.data import package_data

_RULES = Path(__file__).parent / "framework_years.yaml"


def framework_year(name: str) -> str:
    """The year as text; "unknown" for a framework that framework_years.yaml does not know."""
    for pattern, year in _rules():
        if found := pattern.match(name):
            groups = found.groupdict()
            return year or groups.get("year") or f"20{groups['yy']}"
    return "unknown"


@cache
def _rules() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Pattern and year of each rule, in order; an empty year stands in the name itself."""
    rules = package_data(_RULES)["rules"]
    return tuple((re.compile(rule["pattern"]), str(rule.get("year", ""))) for rule in rules)
