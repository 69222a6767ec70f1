"""Seconds as integers for the solver, and how far the rounding can take a step time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpsolver.cost.shard import Floats, Ints

_RESOLUTION = 2.0**36  # integer steps in the largest step time of interest


@dataclass(frozen=True)
class Scale:
    """One integer step is `unit_s` seconds of step time."""

    unit_s: float

    def integers(self, seconds: Floats) -> Ints:
        """Rounded to the nearest step."""
        return np.asarray(np.rint(np.asarray(seconds) / self.unit_s), dtype=np.int64)

    def error_s(self, first: float, second: float, pp: int, longest: int) -> float:
        """The most by which a decoded objective and the true step time differ.

        A stage's time has a coefficient for layers and one for recomputed layers, each rounded by half a step and
        times at most `longest`, and a constant; so has what follows the pipeline.
        """
        stage = 0.5 * (2 * longest + 1)
        return self.unit_s * (stage * (first + second * pp) + stage + 1.0)


def scale_for(step_time_s: float) -> Scale:
    """A scale fine enough for step times up to that."""
    return Scale(step_time_s / _RESOLUTION)
