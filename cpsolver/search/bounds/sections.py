"""Where in an interval of bottleneck times they begin to be enough, for many rows at once: it is cut in two, or in more
parts where rows are few, as a question then costs much the same however many it is asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cpsolver.cost.shard import Bools, Floats, Ints

Enough = Callable[[Ints, Floats], Bools]
"""Whether times are enough for the rows at some places, (m,) both."""

_AT_ONCE = 1024
"""Questions that are asked together, at most: from about so many on each costs its own time."""
_MOST_BITS = 3
"""An interval is cut in no more than two to that many parts."""


def bisected(enough: Callable[[Floats], Bools], low: Floats, high: Floats, rounds: int) -> Floats:
    """The largest time known not to be enough after halving the interval so often; `high` is enough."""
    for _ in range(rounds):
        middle = 0.5 * (low + high)
        good = enough(middle)
        high, low = np.where(good, middle, high), np.where(good, low, middle)
    return low


def sectioned(enough: Enough, low: Floats, high: Floats, rounds: int) -> Floats:
    """As `bisected`, or closer, with several points of each interval at once where there are few."""
    bits = _bits(len(low))
    shares = np.arange(1, 1 << bits) / (1 << bits)
    for _ in range(-(-rounds // bits)):
        low, high = _narrowed(enough, low, high, low[:, None] + (high - low)[:, None] * shares)
    return low


def stretched(enough: Enough, low: Floats, high: Floats, factors: Sequence[float]) -> tuple[Floats, Floats]:
    """The largest multiple of `low` known not to be enough, of growing factors, and the next; `high` is enough."""
    at_once, start, left = (1 << _bits(len(low))) - 1, low, np.arange(len(low))
    low, high = low.copy(), high.copy()
    for first in range(0, len(factors), at_once):
        points = np.minimum(start[left, None] * factors[first : first + at_once], high[left, None])
        low[left], high[left] = _narrowed(_part(enough, left), low[left], high[left], points)
        left = left[low[left] == points[:, -1]]
        if not len(left):
            break
    return low, high


def _part(enough: Enough, part: Ints) -> Enough:
    """The same question about some of the rows."""
    return lambda at, time: enough(part[at], time)


def _bits(intervals: int) -> int:
    """The parts of each of so many intervals, as a power of two."""
    return min(_MOST_BITS, max(1, (_AT_ONCE // max(1, intervals) + 1).bit_length() - 1))


def _narrowed(enough: Enough, low: Floats, high: Floats, points: Floats) -> tuple[Floats, Floats]:
    """Of low, the points between, (n, k), growing, and high: the last that is not enough, and the next."""
    count = points.shape[1]
    good = enough(np.repeat(np.arange(len(low)), count), points.ravel()).reshape(points.shape)
    rows, first = np.arange(len(low)), np.where(good.any(axis=1), good.argmax(axis=1), count)
    edges = np.concatenate([low[:, None], points, high[:, None]], axis=1)
    return edges[rows, first], edges[rows, first + 1]
