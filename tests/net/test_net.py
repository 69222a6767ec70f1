"""The command line answers as it did when its answers were frozen."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.net.answers import ask, differences, load
from tests.net.case import Case
from tests.net.cases import cases

EVERY = cases()
_frozen = cache(load)
LONG = "published runs, predicted"
"""A question over the whole table of runs, whose figures tests/evidence asks for as well."""


def _named(sample: bool) -> list[Any]:
    return [
        pytest.param(case, id=f"{case.kind}: {case.name}", marks=[pytest.mark.night] * case.name.startswith(LONG))
        for case in EVERY
        if case.sample is sample
    ]


def _hold(case: Case) -> None:
    found = list(differences(_frozen(case.kind)[case.name], ask(case)))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("case", _named(sample=True))
def test_a_sample_of_the_answers_is_as_it_was(case: Case) -> None:
    _hold(case)


@pytest.mark.full
@pytest.mark.parametrize("case", _named(sample=False))
def test_the_other_answers_are_as_they_were(case: Case) -> None:
    _hold(case)


def test_every_frozen_answer_has_its_question() -> None:
    for kind in {case.kind for case in EVERY}:
        assert _frozen(kind).keys() == {case.name for case in EVERY if case.kind == kind}
