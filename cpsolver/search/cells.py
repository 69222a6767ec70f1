"""Rows counted by tp and pp as a search goes on, for the picture of its proof (proof_map.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from cpsolver.cost.shard import Bools, Candidates, Floats, Ints
from cpsolver.search.result import Cell
from cpsolver.search.space import Space

_SHIFT = 32  # bits of pp in a cell's code


def count_cells(tp: Ints, pp: Ints, counts: Ints | None = None) -> Counter[Cell]:
    """How many rows with these tp and pp, (n,) each, a cell has; with `counts` every row stands for so many."""
    codes, place = np.unique((tp.astype(np.int64) << _SHIFT) | pp, return_inverse=True)
    sums = np.bincount(place.ravel(), weights=counts, minlength=len(codes))
    cells = ((code >> _SHIFT, code & ((1 << _SHIFT) - 1)) for code in codes.tolist())
    return Counter({cell: round(number) for cell, number in zip(cells, sums.tolist(), strict=True) if number})


class LayoutTally:
    """Of a space's layouts: the least bound of their frames, and how many of their rows do not fit in memory.

    Kept by layout, which costs next to nothing while the search runs; told by cell when it is done.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        layouts = int(space.frame_layout.max(initial=-1)) + 1
        self._least = np.full(layouts, np.inf)
        self._unfit = np.zeros(layouts)
        self._rows: Counter[Cell] = Counter()

    def add_frames(self, frames: Ints, bounds: Floats, fits: Bools) -> None:
        """Frames that were bounded, and whether any of their rows may fit."""
        layouts = self._space.frame_layout[frames]
        np.minimum.at(self._least, layouts, bounds)
        counts = self._space.rows_of[frames[~fits]]
        self._unfit += np.bincount(layouts[~fits], weights=counts, minlength=len(self._unfit))

    def add_unfit(self, rows: Candidates, counts: Ints | None = None) -> None:
        """Rows that do not fit, each of which stands for so many, or for itself."""
        if len(rows):
            self._rows += count_cells(rows.tp, rows.unfolded("pp"), counts)

    @property
    def unfit(self) -> Counter[Cell]:
        """Rows that do not fit."""
        found = Counter(self._rows)
        for cell, number in zip(self._cells(), self._unfit.tolist(), strict=True):
            found[cell] += round(number)
        return +found

    @property
    def least(self) -> dict[Cell, float]:
        """The least bound on the score of each cell's frames that may fit."""
        found: dict[Cell, float] = {}
        for cell, bound in zip(self._cells(), self._least.tolist(), strict=True):
            found[cell] = min(bound, found.get(cell, np.inf))
        return found

    def _cells(self) -> list[Cell]:
        """Every layout's; a layout that has no frame is of none, and has counted nothing."""
        frames, of_frame = self._space.frames, self._space.frame_layout
        first = np.searchsorted(of_frame, np.arange(len(self._least)))
        return list(zip(frames.tp[first].tolist(), frames.unfolded("pp")[first].tolist(), strict=True))


def merged_least(parts: list[Mapping[Cell, float]]) -> dict[Cell, float]:
    """The least of several spaces."""
    return {cell: min(part.get(cell, np.inf) for part in parts) for cell in dict.fromkeys(c for p in parts for c in p)}
