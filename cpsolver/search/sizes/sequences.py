"""The sequences of sizes that a step's microbatches may have where they are not all equal: a finite, stated space.

Sizes climb from a first one to a peak, stay there, and fall to a last one. Each ramp goes by ones; of either one size
may be left out, or stand twice or three times. The size below the peak stands besides as often as the sum takes, before
the peak or behind it. Either ramp may be missing, not both. AscendSpeed's two examples (e35df80,
ascendspeed/training.py) are such; local search over sequences of any kind finds few that are faster
(docs/techniques.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from cpsolver.cost.shard import Floats, Ints

MOST_MEAN = 4
"""Sequences of a microbatch on average, at most: with more of them there are many more sequences of sizes."""
MOST_BEYOND = 3
"""The peak is at most so much above the mean."""
MOST_ROUNDS = 8
"""Microbatches for each stage up to which sizes are searched: with more the bubble that they shrink is small."""
MOST_MICROBATCHES = 64
"""And of a step in all."""
_TIMES = (0, 2, 3)
"""How often the one size of a ramp stands that does not stand once."""


@lru_cache(maxsize=32)
def sequences(microbatches: int, mean: int) -> Ints:
    """All of them with so many microbatches and that mean: (n, microbatches), in ascending order; n may be 0."""
    found = [np.zeros((0, microbatches), dtype=np.int64)]
    if microbatches > 1:
        for peak in range(mean + 1, mean + MOST_BEYOND + 1):
            found += _with_peak(microbatches, mean, peak)
    return np.unique(np.concatenate(found), axis=0)


def _with_peak(microbatches: int, mean: int, peak: int) -> Iterator[Ints]:
    """Those with one peak, for each pair of ramps."""
    ramps = _ramps(peak)
    below = [sum(peak - size for size in ramp) for ramp in ramps]  # what a ramp lacks to sizes of the peak
    for climb, lacks in zip(ramps, below, strict=True):
        for fall, falls_short in zip(ramps, below, strict=True):
            more = microbatches * (peak - mean) - lacks - falls_short
            at_peak = microbatches - len(climb) - len(fall) - more
            if more < 0 or at_peak < 1 or (more and peak == 1):
                continue
            yield np.array([[*climb, *[peak - 1] * more, *[peak] * at_peak, *fall[::-1]]])
            yield np.array([[*climb, *[peak] * at_peak, *[peak - 1] * more, *fall[::-1]]])


def _ramps(peak: int) -> list[tuple[int, ...]]:
    """The ramps to a peak, which they do not reach: none, and from every first size."""
    found: set[tuple[int, ...]] = {()}
    for first in range(1, peak):
        sizes = range(first, peak)
        found.add(tuple(sizes))
        for other in sizes:
            for times in _TIMES:
                found.add(tuple(size for size in sizes for _ in range(times if size == other else 1)))
    return sorted(found)


@dataclass(frozen=True)
class Sequences:
    """The sequences of rows with so many microbatches and that mean: (n, microbatches). Counts by size are (n,
    `largest` + 1), from size 0."""

    microbatches: int
    mean: int

    @classmethod
    @lru_cache(maxsize=32)
    def of(cls, microbatches: int, mean: int) -> Sequences:
        """The same object for the same numbers."""
        return cls(microbatches, mean)

    @cached_property
    def sizes(self) -> Ints:
        """The sequences."""
        return sequences(self.microbatches, self.mean)

    @property
    def largest(self) -> int:
        """No microbatch is larger in any of them."""
        return self.mean + MOST_BEYOND

    @cached_property
    def counts(self) -> Floats:
        """How many microbatches of each size there are."""
        return self._counts(self.sizes)

    @cached_property
    def peak(self) -> Ints:
        """The largest size of each: (n,)."""
        return np.asarray(self.sizes.max(axis=1, initial=0))

    def first(self, count: int) -> Floats:
        """The same of the first so many."""
        return self._known(("first", count), lambda: self.sizes[:, :count])

    def last(self, count: int) -> Floats:
        """The same of the last so many."""
        return self._known(("last", count), lambda: self.sizes[:, max(0, self.microbatches - count) :])

    def in_flight(self, count: int) -> Floats:
        """The same of so many neighbours that are together the largest: as sizes climb and then fall, the largest of
        all."""
        return self._known(("most", count), lambda: -np.sort(-self.sizes, axis=1)[:, :count])

    def _known(self, key: tuple[str, int], which: Callable[[], Ints]) -> Floats:
        if key not in self._by_part:
            self._by_part[key] = self._counts(which())
        return self._by_part[key]

    @cached_property
    def _by_part(self) -> dict[tuple[str, int], Floats]:
        return {}

    def _counts(self, sizes: Ints) -> Floats:
        return np.stack([(sizes == size).sum(axis=1) for size in range(self.largest + 1)], axis=1).astype(np.float64)
