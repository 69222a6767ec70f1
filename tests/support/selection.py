"""Which cases of a test `make test` runs: the first ones of each kind; the others are left to `make test-all`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def full(*case: Any) -> ParameterSet:
    """A case for `make test-all` alone."""
    return pytest.param(*case, marks=pytest.mark.full)


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """Cases of one parameter each, of which all but the first so many are for `make test-all` alone."""
    return [case if at < count else full(case) for at, case in enumerate(cases)]


def only(quick: Callable[..., bool], cases: Iterable[tuple[Any, ...]]) -> list[ParameterSet]:
    """Cases of several parameters, of which those that `quick` does not choose are for `make test-all` alone."""
    return [pytest.param(*case) if quick(*case) else full(*case) for case in cases]
