"""Backward split in two: B, the inputs' gradients, which other stages wait for, and W, the weights', which none does.

Zero-bubble pipelining (Qi et al., arXiv:2401.10241) puts W passes off into what would be waiting. What the closed forms
here say is held to the published orders, run event by event (split_events.py).

ZB-H1 and ZB-H2: exactly where stages are equal, for any number of microbatches, and the published bubbles,
(pp - 1) (F + B - W) and (pp - 1) (F + B - 2 W), where microbatches are no fewer than the passes that fill them. A step
is what the busiest stage spends between its first pass and its last: the next step begins on stages that are done, for
whether gradients were sound is asked afterwards.

Stages placed as a V (ZB-V, DualPipeV), with 2 pp microbatches at least: a step is what lies between the first pass of
all and the last, for frameworks that run these join all ranks before they update. Where stages are equal it is exact
(ZB-V: while F takes no longer than B). Where they are not, a stage waits the less the longer it works than the others:
by twice what they differ in all, but for a share of the bubble that grows with how late the stage starts, and for what
the ways through the order of passes have of every stage's own (v_ways.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cpsolver.cost.shard import Floats, Ints
from cpsolver.cost.v_ways import dualpipev_ways, zbv_ways

MOST_OF_A_STAGE = 1.0 / 3.0
"""W takes no more of forward and backward: half of the backward pass at most, and no longer than forward."""
V_MICROBATCHES = 2
"""Times pp: the fewest microbatches for stages placed as a V."""
_SLACK = 2
"""Of what stages differ in, what is off a V's bubble: as much of the fewest microbatches."""


@dataclass(frozen=True)
class StepForm:
    """Seconds of a step as the longest of sums over the stages' seconds of a microbatch: T in all, of that F and W.

    Attributes:
        multiple: what coefficients are multiples of: times 1 / multiple.
        alone: of a stage's own T, F and W, (forms, pp, 3): each of these a step takes at least.
        leading: the same, with the sum of all stages' `summed` beside it.
        summed: of T, F and W of every stage, (3,).
        together: of T, F and W of all stages, each its own, (forms, pp, 3); none: no other sum is longer.
    """

    multiple: int
    alone: Ints
    leading: Ints
    summed: Ints
    together: Ints

    def stage_s(self, stage_s: Floats, forward_s: Floats, weight_s: Floats) -> Floats:
        """A step as each stage spends it, (pp,); the longest is the step's. Arguments: T, F and W, (pp,).

        Where several stages hold it up together, it is the one of them all that would be the longest.
        """
        parts = np.stack([stage_s, forward_s, weight_s], axis=1)
        alone, leading = ((forms * parts).sum(axis=2).max(axis=0) for forms in (self.alone, self.leading))
        stages = np.maximum(alone, leading + (self.summed * parts).sum())
        longest = int(stages.argmax())
        stages[longest] = max(stages[longest], (self.together * parts).sum(axis=(1, 2)).max(initial=0.0))
        return np.asarray(stages / self.multiple)


def weight_share(forward_share: Floats) -> Floats:
    """Of forward and backward, what W takes, where forward takes that share.

    Backward is split evenly in two, as the authors take it, but for parts that have no weights (attention's core, with
    a backward pass of more than twice its forward): the weights' gradients are as many GEMMs as forward has.
    """
    return np.asarray(np.minimum((1.0 - forward_share) / 2.0, forward_share))


def filling_passes(times: ArrayLike, pp: ArrayLike, microbatches: ArrayLike) -> Ints:
    """W passes with which a stage fills its bubble: so many times the stages beside it, all but one at most.

    Args:
        times: 1 with the memory of 1F1B (ZB-H1), 2 with twice that (ZB-H2).
        pp: stages.
        microbatches: of a step.
    """
    return np.asarray(np.minimum(np.asarray(times) * (np.asarray(pp) - 1), np.asarray(microbatches) - 1))


def zero_bubble_form(times: int, pp: int, microbatches: int) -> StepForm:
    """ZB-H1 and ZB-H2: a stage works on all microbatches, and waits for one to pass all other stages forward and back.

    W passes fill that: those of the others are not waited for, and `filling_passes` of its own are done meanwhile.
    """
    passes = int(filling_passes(times, pp, microbatches))
    alone, leading = (microbatches, 0, 0), (microbatches - 1, 0, 1 - passes)
    return StepForm(1, everywhere([alone], pp), everywhere([leading], pp), np.array([1, 0, -1]), _none(pp))


def zero_bubble_bound(times: int, pp: Ints, microbatches: Ints) -> tuple[Floats, Floats]:
    """Step time is at least first * slowest stage + second * sum of stages; and no less than all that the slowest does.

    With no W longer than MOST_OF_A_STAGE.
    """
    passes = filling_passes(times, pp, microbatches)
    first = microbatches - 1.0 - MOST_OF_A_STAGE * np.maximum(0, passes - 1)
    return np.asarray(first), np.full(first.shape, 1.0 - MOST_OF_A_STAGE)


_ZBV = ((0, 2, 0), (0, 4, -4), (4, -2, 0))
"""ZB-V's bubble for each of the other stages: the longest of these, in quarters of F, B and W."""


def zbv_form(pp: int, microbatches: int) -> StepForm:
    """ZB-V: B / 2, B - W or F - B / 2 for each of the other stages, whichever is longest."""
    bubbles = [tuple((pp - 1) * each for each in form) for form in _ZBV]
    return _v_form(pp, microbatches, bubbles, _ZBV, 1, zbv_ways(pp, microbatches))


def dualpipev_form(pp: int, microbatches: int) -> StepForm:
    """DualPipeV: for each of the other stages F + B / 2 - W / 2; or B - W / 2, and F for half of all stages but two."""
    first, second = (4, 2, -2), (0, 4, -2)
    of_second = (2 * (pp - 2), *((pp - 1) * each for each in second[1:]))
    bubbles, ways = [tuple((pp - 1) * each for each in first), of_second], dualpipev_ways(pp, microbatches)
    return _v_form(pp, microbatches, bubbles, (first, second), 2, ways)


def v_bound(share: float, pp: Ints, microbatches: Ints) -> tuple[Floats, Floats]:
    """As `zero_bubble_bound`; `share`: the least of a stage that the bubble is for each of the other stages."""
    return np.asarray(microbatches - _SLACK * pp + share * (pp - 1.0)), np.full(np.shape(pp), float(_SLACK))


ZBV_SHARE = 1.0 / 6.0
"""Of T = F + B + W, W no longer than F or B: the longer of F and B is a third at least, the bubble half of that."""
DUALPIPEV_SHARE = 1.0 / 3.0
"""The same: the longer of F + (B - W) / 2 and B - W / 2, without the F of the latter; a third where all three are."""


def _v_form(
    pp: int,
    microbatches: int,
    bubbles: list[tuple[int, ...]],
    for_each: tuple[tuple[int, int, int], ...],
    part: int,
    ways: Iterable[Ints],
) -> StepForm:
    """From the bubble of equal stages, and from that for each of the other stages, quarters of F, B and W; and from
    ways through the order of passes (v_ways.py).

    The stage that starts last waits for a `part`-th of the bubble at least, others for less as they start earlier.
    """
    quarters = 4
    own = quarters * (microbatches - _SLACK * pp)
    leading = [with_stage(own, bubble) for bubble in bubbles]
    alone = [
        [with_stage(quarters * microbatches, tuple(stage * each // part for each in form)) for stage in range(pp)]
        for form in for_each
    ]
    together = [[with_stage(0, tuple(stage)) for stage in (quarters // 2 * way).tolist()] for way in ways]
    summed = np.array([quarters * _SLACK, 0, 0])
    return StepForm(quarters, np.array(alone), everywhere(leading, pp), summed, np.array(together).reshape(-1, pp, 3))


def with_stage(stage: int, form: tuple[int, ...]) -> tuple[int, int, int]:
    """Coefficients of F, B and W, and of T, as those of T, F and W: B = T - F - W."""
    forward, inputs, weight = form
    return stage + inputs, forward - inputs, weight - inputs


def everywhere(forms: list[tuple[int, int, int]], pp: int) -> Ints:
    """The same forms on all stages: (forms, pp, 3)."""
    return np.repeat(np.array(forms)[:, None], pp, axis=1)


def _none(pp: int) -> Ints:
    """No sums of stages together."""
    return np.zeros((0, pp, 3), dtype=np.int64)
