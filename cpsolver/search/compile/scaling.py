"""Seconds as integers for the solver, and how far the rounding can take a step time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpsolver.cost.shard import Floats, Ints

_RESOLUTION = 2.0**27  # integer steps in the slowest stage's time


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
        times at most `longest`, and a constant; so has what follows the pipeline. Kinds of layers add the difference of
        two table entries, sharding one more constant.
        """
        stage = 0.5 * (2 * longest + 4)
        return self.unit_s * (stage * (first + second * pp) + stage + 1.0)


def scale_for(step_time_s: float, weight: float = 8.0) -> Scale:
    """A scale for step times up to that, in which the slowest stage counts `weight` times.

    Fine enough that rounding stays near 1e-7 of a step, and no finer: huge integers are where solvers go wrong.
    """
    return Scale(step_time_s / (weight * _RESOLUTION))
