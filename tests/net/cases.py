"""All questions."""

from __future__ import annotations

from tests.net import imports, plans, solves, words
from tests.net.case import Case


def cases() -> list[Case]:
    """Every question; names are unique within a kind."""
    found = [*solves.cases(), *plans.cases(), *imports.cases(), *words.cases()]
    assert len({(case.kind, case.name) for case in found}) == len(found)
    return found
