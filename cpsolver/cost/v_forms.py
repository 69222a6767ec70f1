"""V-Half and V-Min (arXiv:2405.15362): what a step takes, as the longest of sums over its stages.

Both repeat blocks of passes (v_blocks.py) in which neighbouring stages wait for each other within every microbatch.
Such a round of waiting takes, in seconds of whole stages, each microbatch again:

- V-Half: B of two stages j, j + 1 and half of W of the latter; j has the parity of pp;
- V-Min: B of three stages j, j + 1, j + 2, or F of all three; j leaves the same remainder by 3 as pp. Or B of the
  middle one and of one beside it, with half of the middle one's F and W; and that with F and B exchanged.

Where F, B and W are alike none of them is longer than what a stage works, so that the published bubbles are left.
Beside its rounds a step takes what fills and drains the pipeline. Sums are counted in halves: a stage runs two passes
of each kind a microbatch. They were read off the critical paths of the events (split_events.py), as which they are
exact where stages are equal, but for stages whose F is longer than their B: there what fills and drains is near it.
V-Half has beside them a way through its order on which the last stage is the one that works (v_ways.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from cpsolver.cost.shard import Floats, Ints
from cpsolver.cost.split_backward import StepForm, everywhere, with_stage
from cpsolver.cost.v_ways import v_half_way

Counts = tuple[int, int, int]
"""Of F, B and W."""

_SIXTHS, _HALF = 6, 3
"""What coefficients are multiples of, and how many a half is."""
_SLACK_OF_HALF, _SLACK_OF_MIN = 7, 6
"""Sixths of what stages differ in, off the bubble of the one that works longest: stages that work less fill less.

V-Half's follows from no argument: it was chosen so that 500 random plans are within 2 % of their events
(tests/cost/test_split_events.py). Of 1,200 others 4 are not, by up to 2.4 %.
"""
_ROUND_OF_HALF, _ROUND_OF_MIN = 2, 3
"""Stages that wait for each other."""


@cache
def v_half_form(pp: int, microbatches: int) -> StepForm:
    """V-Half: all work of the longest stage and the bubble, or the longest of its rounds."""
    beside = (4, -2, 0) if pp == _ROUND_OF_HALF else (2 * pp, 2 * pp - (4 if pp % 2 else 6), -max(2, pp // 2))
    starts = range(pp % _ROUND_OF_HALF, pp - 1, _ROUND_OF_HALF)
    rounds = [_round(pp, microbatches, {at: (0, 2, 0), at + 1: (0, 2, 1)}, beside) for at in starts]
    bubbles = [tuple(_HALF * each for each in bubble) for bubble in _half_bubbles(pp)]
    return _form(pp, microbatches, bubbles, [*rounds, v_half_way(pp, microbatches)], _SLACK_OF_HALF)


@cache
def v_min_form(pp: int, microbatches: int) -> StepForm:
    """V-Min, likewise."""
    rounds = [_round(pp, microbatches, own, beside) for own, beside in _rounds_of_min(pp)]
    return _form(pp, microbatches, [(int(_min_bubble(pp)),) * 3], rounds, _SLACK_OF_MIN)


def v_half_bound(pp: Ints, microbatches: Ints) -> tuple[Floats, Floats]:
    """As `split_backward.zero_bubble_bound`: the bubble is least where F, B and W are alike. For half of the sum of the
    two bubbles is as much there, and no less for F alone or B alone, of which with all alike stages are made."""
    pp = np.asarray(pp)
    alike = np.where(pp == _ROUND_OF_HALF, 1, 3 * pp - np.where(pp % 2, 4, 7))
    return _bound(pp, microbatches, alike, _SLACK_OF_HALF)


def v_min_bound(pp: Ints, microbatches: Ints) -> tuple[Floats, Floats]:
    """The same of V-Min, whose bubble is a multiple of what a stage works."""
    return _bound(np.asarray(pp), microbatches, _min_bubble(pp), _SLACK_OF_MIN)


def _bound(pp: Ints, microbatches: Ints, bubble: Ints, slack: int) -> tuple[Floats, Floats]:
    """From sixths of the bubble and the slack."""
    return np.asarray(microbatches + (bubble - slack * pp) / _SIXTHS), np.full(np.shape(pp), slack / _SIXTHS)


def _half_bubbles(pp: int) -> list[Counts]:
    """V-Half's bubble is the longer of these, in halves; the first where B is longer than F."""
    if pp == _ROUND_OF_HALF:
        return [(-1, 3, -1), (4, -2, -1)]
    if pp % 2:
        return [(pp - 1, 3 * (pp - 1), -pp), (3 * pp - 2, pp - 2, -pp)]
    return [(pp - 3, 3 * (pp - 1), -pp - 1), (3 * pp - 1, pp - 5, -pp - 1)]


def _min_bubble(pp: ArrayLike) -> Ints:
    """Sixths of what a stage works that V-Min waits where F, B and W are alike."""
    return np.asarray(4 * np.asarray(pp) - np.where(np.asarray(pp) % _ROUND_OF_MIN, 5, 7))


def _rounds_of_min(pp: int) -> Iterator[tuple[dict[int, Counts], Counts]]:
    """Halves that V-Min's rounds take of each stage every microbatch, and of all stages once."""
    left = pp % _ROUND_OF_MIN
    backward = (2 * pp + (left == 2), 2 * pp - 8 + 2 * (left == 1), 1 + (left == 2))
    of_b = (8 * pp + (7 * left or 6)) // 3
    forward = (sum(backward) - of_b - 2, of_b, 2)
    if pp == 2:
        backward, forward = (3, 0, 0), (-1, 5, -1)
    for plain, middle, beside in (((0, 2, 0), (1, 2, 1), backward), ((2, 0, 0), (2, 1, 1), forward)):
        for at in range(left - _ROUND_OF_MIN, pp, _ROUND_OF_MIN):
            stages = {at: plain, at + 1: middle, at + 2: plain}
            for own in ({**stages, at + 1: plain}, *(_without(stages, end) for end in (at, at + 2))):
                if all(0 <= stage < pp for stage in own):
                    yield own, beside


def _without(stages: dict[int, Counts], stage: int) -> dict[int, Counts]:
    return {each: counts for each, counts in stages.items() if each != stage}


def _round(pp: int, microbatches: int, own: dict[int, Counts], beside: Counts) -> Ints:
    """Halves of F, B and W that a step takes of every stage, (pp, 3), where a round holds it up.

    The round's stages go round with every microbatch but one; what is left is spread evenly over the other stages.
    """
    counts, others = np.zeros((pp, 3), dtype=np.int64), [stage for stage in range(pp) if stage not in own]
    for stage, each in own.items():
        counts[stage] = np.array(each) * (microbatches - 1)
    left = np.sum(list(own.values()), axis=0) + beside
    spread = others or list(own)
    for place, stage in enumerate(spread):
        counts[stage] += (left * (place + 1)) // len(spread) - (left * place) // len(spread)
    return counts


def _form(pp: int, microbatches: int, bubbles: Sequence[tuple[int, ...]], halves: list[Ints], slack: int) -> StepForm:
    """From bubbles and slack in sixths, and from halves of F, B and W that stages take together."""
    leading = [with_stage(_SIXTHS * microbatches - slack * pp, bubble) for bubble in bubbles]
    together = [[with_stage(0, tuple(stage)) for stage in (_HALF * each).tolist()] for each in halves]
    return StepForm(
        _SIXTHS,
        everywhere([(_SIXTHS * microbatches, 0, 0)], pp),
        everywhere(leading, pp),
        np.array([slack, 0, 0]),
        np.array(together, dtype=np.int64).reshape(-1, pp, 3),
    )
