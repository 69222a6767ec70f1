"""Where intervals begin to be enough, however many of them are asked about at once."""

from __future__ import annotations

import numpy as np
import pytest

from cpsolver.cost.shard import Bools, Floats, Ints
from cpsolver.search.bounds.sections import bisected, sectioned, stretched

FACTORS = (1.5, 2.0, 3.0, 5.0, 9.0)


class Thresholds:
    """Intervals from 1 to 10 that are enough from a time of their own on; the last from their end."""

    def __init__(self, count: int) -> None:
        self.least = np.linspace(1.01, 10.0, count)
        self.low, self.high = np.ones(count), np.full(count, 10.0)
        self.asked = 0

    def enough(self, at: Ints, time: Floats) -> Bools:
        self.asked += 1
        return np.asarray(time >= self.least[at])


@pytest.mark.parametrize("count", [1, 2, 100, 200, 2000])
def test_sections_are_no_wider_than_halves_and_begin_below(count: int) -> None:
    """A row alone is cut in eight three times, two thousand of them in two nine times."""
    asked = Thresholds(count)
    low = sectioned(asked.enough, asked.low, asked.high, 9)
    halves = bisected(lambda time: np.asarray(time >= asked.least), asked.low, asked.high, 9)
    assert (low < asked.least).all()
    assert (low >= halves - 1e-9).all()
    assert asked.asked == {1: 3, 2: 3, 100: 3, 200: 5, 2000: 9}[count]


@pytest.mark.parametrize("count", [1, 100, 2000])
def test_multiples_of_the_least_time_are_tried_until_one_is_enough(count: int) -> None:
    asked = Thresholds(count)
    low, high = stretched(asked.enough, asked.low, asked.high, FACTORS)
    edges = np.array([1.0, *FACTORS, 10.0])
    place = np.searchsorted(edges, asked.least)
    assert (low == edges[place - 1]).all()
    assert (high == edges[place]).all()
    assert (asked.low == 1.0).all()
