"""Backward split in two: B, the inputs' gradients, which other stages wait for, and W, the weights', which none does.

Zero-bubble pipelining (Qi et al., arXiv:2401.10241) puts W passes off into what would be waiting. What a step takes by
formula is the longest of the chains of passes that hold up the published orders (critical_paths.py):

- ZB-H1 and ZB-H2: what the busiest stage spends between its first pass and its last. The next step begins on stages
  that are done, for whether gradients were sound is asked afterwards. Where stages are equal it has the published
  bubbles, (pp - 1) (F + B - W) and (pp - 1) (F + B - 2 W), while microbatches are no fewer than the passes that fill
  them.
- Stages placed as a V (ZB-V, V-Half, V-Min, DualPipeV), with 2 pp microbatches at least: what lies between the first
  pass of all and the last, for frameworks that run these join all ranks before they update.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from cpsolver.cost.critical_paths import critical_path, critical_paths
from cpsolver.cost.shard import Floats, Ints
from cpsolver.cost.split_events import SplitSchedule, chunks_of
from cpsolver.cost.step_form import StepForm, by_parts, seconds_of

MOST_OF_A_STAGE = 1.0 / 3.0
"""W takes no more of forward and backward: half of the backward pass at most, and no longer than forward."""
_LONG = 12
"""Stages of a pipeline that is long: see `zero_bubble_form`."""
V_MICROBATCHES = 2
"""Times pp: the fewest microbatches for stages placed as a V."""


def weight_share(forward_share: Floats) -> Floats:
    """Of forward and backward, what W takes, where forward takes that share.

    Backward is split evenly in two, as the authors take it, but for parts that have no weights (attention's core, with
    a backward pass of more than twice its forward): the weights' gradients are as many GEMMs as forward has.
    """
    return np.asarray(np.minimum((1.0 - forward_share) / 2.0, forward_share))


def split_form(schedule: SplitSchedule, joins: bool, pp: int, microbatches: int) -> StepForm:
    """What a step of a schedule takes; `joins`: see `PipelineSchedule`."""
    chains = by_parts(critical_paths(schedule, pp, microbatches, joins))
    return StepForm(microbatches, 2, chains, partial(_further, schedule, joins, microbatches))


def _further(schedule: SplitSchedule, joins: bool, microbatches: int, parts: Floats) -> Ints | None:
    """`StepForm.further`: by running the schedule."""
    passes = critical_path(schedule, microbatches, joins, seconds_of(parts, chunks_of(schedule)))
    return None if passes is None else by_parts(passes)


def zero_bubble_form(times: int, schedule: SplitSchedule, pp: int, microbatches: int) -> StepForm:
    """ZB-H1 (`times` 1) and ZB-H2 (2), with the chains that `zero_bubble_bound` takes.

    Others are not looked for of ZB-H1, nor of long pipelines with microbatches enough: of 1,000 random plans as
    tests/cost/test_split_events.py draws them none made a step longer by more than 0.7 % (ZB-H1) and 1.6 %.
    """
    chains = by_parts(_through_all(times, pp, microbatches))
    if times == 1 or (pp >= _LONG and microbatches >= 2 * pp):
        return StepForm(microbatches, 2, chains)
    form = split_form(schedule, False, pp, microbatches)
    new = [each for each in chains if not (form.chains == each).all(axis=(1, 2)).any()]
    return replace(form, chains=np.array([*form.chains, *new]), further=None)


def _through_all(times: int, pp: int, microbatches: int) -> Ints:
    """For each stage a chain: the first microbatch passes all stages forward and those behind this one back, which then
    works until its last B, that goes back to the first stage: (stages, pp, 1, 3).

    Of its work are left out the forwards that it runs while it waits for the first B, and the W that it has put off.
    """
    passes = np.zeros((pp, pp, 1, 3), dtype=np.int64)
    passes[..., :2] = 1
    for stage in range(pp):
        ahead = min(microbatches, times * (pp - stage) - (times - 1))
        passes[stage, stage] = microbatches - ahead + 1, microbatches, max(0, microbatches - 1 - times * stage)
    passes[:, 0, 0, 2] += 1
    return passes


def zero_bubble_bound(times: int, pp: Ints, microbatches: Ints) -> tuple[Floats, Floats]:
    """Step time is at least first * slowest stage + second * sum of stages; and no less than all that the slowest does.

    By `_through_all`, with no W longer than MOST_OF_A_STAGE and no F longer than half: no more is left out of a stage's
    work than of the first one's, or than all W and half of all F.
    """
    others, longest = 1.0 - MOST_OF_A_STAGE, MOST_OF_A_STAGE
    of_first, of_all = times * (pp - 1) / 2.0 + longest, (microbatches - 1) / 2.0 + longest * microbatches
    first = microbatches - others - np.minimum(of_first, of_all)
    return np.asarray(first), np.full(first.shape, others)
