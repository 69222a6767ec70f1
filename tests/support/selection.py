"""When a case of a test runs: the first ones of each kind by `make test`, some more by `make test-all`, and the many
that are alike by `make test-night`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

MORE = 2
"""Cases of a kind that `make test-all` adds to those of `make test`."""
EVERY = 6
"""Of many cases that `make test` leaves out, every so many-th is for `make test-all`."""


def full(*case: Any) -> ParameterSet:
    """A case that `make test` leaves out."""
    return pytest.param(*case, marks=pytest.mark.full)


def night(*case: Any) -> ParameterSet:
    """A case that `make test-all` leaves out too."""
    return pytest.param(*case, marks=pytest.mark.night)


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """Cases of one parameter each: so many for `make test`, MORE for `make test-all`, the others for the night."""
    return [case if at < count else full(case) if at < count + MORE else night(case) for at, case in enumerate(cases)]


def later(cases: Iterable[tuple[Any, ...]]) -> list[ParameterSet]:
    """Cases of several parameters that `make test` leaves out; all but the first are for the night."""
    return [night(*case) if at else full(*case) for at, case in enumerate(cases)]


def only(quick: Callable[..., bool], cases: Iterable[tuple[Any, ...]]) -> list[ParameterSet]:
    """Cases of several parameters: those that `quick` chooses are for `make test`; of the others every EVERY-th is for
    `make test-all` and the rest for the night."""
    chosen, left = list[ParameterSet](), 0
    for case in cases:
        if quick(*case):
            chosen.append(pytest.param(*case))
        else:
            chosen.append(night(*case) if left % EVERY else full(*case))
            left += 1
    return chosen
