"""Backward split in two: B, the inputs' gradients, which other stages wait for, and W, the weights', which none does.

Zero-bubble pipelining (Qi et al., arXiv:2401.10241) puts W passes off into what would be waiting. What the closed form
here says of ZB-H1 and ZB-H2 is what their published orders take, run event by event (split_events.py): exactly where
stages are equal, for any number of microbatches, and the published bubbles, (pp - 1) (F + B - W) and
(pp - 1) (F + B - 2 W), where microbatches are no fewer than the passes that fill them. A step is what the busiest stage
spends between its first pass and its last: the next step begins on stages that are done, for whether gradients were
sound is asked afterwards.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from cpsolver.cost.shard import Floats, Ints

MOST_OF_A_STAGE = 1.0 / 3.0
"""W takes no more of forward and backward: half of the backward pass at most, and no longer than forward."""


def weight_share(forward_share: Floats) -> Floats:
    """Of forward and backward, what W takes, where forward takes that share.

    Backward is split evenly in two, as the authors take it, but for parts that have no weights (attention's core, with
    a backward pass of more than twice its forward): the weights' gradients are as many GEMMs as forward has.
    """
    return np.asarray(np.minimum((1.0 - forward_share) / 2.0, forward_share))


def filling_passes(times: ArrayLike, pp: ArrayLike, microbatches: ArrayLike) -> Ints:
    """W passes with which a stage fills its bubble: so many times the stages beside it, all but one at most.

    Args:
        times: 1 with the memory of 1F1B (ZB-H1), 2 with twice that (ZB-H2); 0: W is not put off.
        pp: stages.
        microbatches: of a step.
    """
    return np.asarray(np.minimum(np.asarray(times) * (np.asarray(pp) - 1), np.asarray(microbatches) - 1))


def filled_s(stage_s: Floats, weight_s: Floats, microbatches: int, passes: int) -> Floats:
    """Seconds of a step as each stage spends them, (pp,); the longest is the step's.

    A stage works on all microbatches, and waits for one of them to pass all other stages forward and backward. W passes
    fill that: those of the others are not waited for, and `passes` of its own are done meanwhile.

    Args:
        stage_s: forward and backward of a microbatch, (pp,).
        weight_s: what of that is W, (pp,).
        microbatches: of a step.
        passes: see `filling_passes`.
    """
    waited = stage_s - weight_s
    bubble = waited.sum() - waited - passes * weight_s
    return np.asarray(microbatches * stage_s + np.maximum(0.0, bubble))


def bound_weights(passes: Ints, microbatches: Ints) -> tuple[Floats, Floats]:
    """Step time is at least first * slowest stage + second * sum of stages; and no less than all that the slowest does.

    As `filled_s`, with no W longer than MOST_OF_A_STAGE.
    """
    first = microbatches - 1.0 - MOST_OF_A_STAGE * np.maximum(0, passes - 1)
    return np.asarray(first), np.full(first.shape, 1.0 - MOST_OF_A_STAGE)
