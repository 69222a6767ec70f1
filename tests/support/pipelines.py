"""What a pipeline schedule holds and how fast it can be at best, worked out from its order of events alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from cpsolver.cost.pipeline_events import FloatArray, check_sizes

Pass = tuple[str, int, int]
"""Kind "F" or "B", microbatch, chunk."""


def stage_order(pp: int, stage: int, vpp: int, microbatches: int, group: int | None = None) -> list[Pass]:
    """What one stage runs, in order, straight from pipeline_events' words."""
    return [event for step in stage_steps(pp, stage, vpp, microbatches, group, 0) for event in step]


def stage_steps(pp: int, stage: int, vpp: int, microbatches: int, group: int | None, more: int) -> list[list[Pass]]:
    """The same in steps, single passes or a forward and a backward; `more` forwards before the first two."""
    check_sizes(pp, vpp, microbatches, group)
    size, behind = group or pp, pp - 1 - stage
    groups = (range(first, min(first + size, microbatches)) for first in range(0, microbatches, size))
    units = [(b, c) for members in groups for c in range(vpp) for b in members]
    forward = [("F", b, c) for b, c in units]
    backward = [("B", b, vpp - 1 - c) for b, c in units]
    warmup = min(len(units), more + (behind if vpp == 1 else 2 * behind + (vpp - 1) * size))
    pairs = [list(pair) for pair in zip(forward[warmup:], backward, strict=False)]
    return [*([one] for one in forward[:warmup]), *pairs, *([one] for one in backward[len(units) - warmup :])]


def peak_live(chunk_weight: ArrayLike, microbatches: int, group: int | None = None) -> FloatArray:
    """The most that each stage holds at once when chunk c of stage s weighs chunk_weight[s, c], shape (pp,).

    `chunk_weight`, (pp, vpp): what one microbatch's forward leaves of each chunk. The order is replayed.
    """
    weight = np.asarray(chunk_weight, dtype=np.float64)
    pp, vpp = weight.shape
    peaks = np.zeros(pp)
    for stage in range(pp):
        held = 0.0
        for kind, _, chunk in stage_order(pp, stage, vpp, microbatches, group):
            held += weight[stage, chunk] if kind == "F" else -weight[stage, chunk]
            peaks[stage] = max(peaks[stage], held)
    return peaks


def lower_bound_s(forward_s: ArrayLike, backward_s: ArrayLike, microbatches: int, group: int | None = None) -> float:
    """Seconds that no order of the events can beat; arguments as in `simulate`, (pp, vpp) each, sending free.

    Stage s runs m microbatches one after the other, after the first reached it through the first chunks of
    the stages before it and before the last has gone back through them; and one microbatch passes all chunks:
    max(max_s (m * t_s + sum_{i<s} t_i,0), sum_s t_s). Every term is linear in the stage times.
    """
    both = np.asarray(forward_s, dtype=np.float64) + np.asarray(backward_s, dtype=np.float64)
    pp, vpp = both.shape
    check_sizes(pp, vpp, microbatches, group)
    stage_s = both.sum(axis=1)
    before_s = np.cumsum(both[:, 0]) - both[:, 0]
    return float(max((microbatches * stage_s + before_s).max(), stage_s.sum()))
