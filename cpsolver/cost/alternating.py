"""What a step of Megatron-Core's schedules takes: 1F1B, interleaved in groups of microbatches, breadth-first.

Stages run forwards and backwards in turn once the warm-up is over (pipeline_events.py). What a step of unequal ones
takes is the longest of chains of passes of which each waits for the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product

import numpy as np

from cpsolver.cost.pipeline_events import warmups
from cpsolver.cost.repeating import longest_chain
from cpsolver.cost.shard import Floats, Ints
from cpsolver.cost.step_form import PASS_PARTS, PipelineSizes, StepForm


def step_form(sizes: PipelineSizes, group: int | None = None) -> StepForm:
    """What a step takes: for each stage a chain that is busy there, and more of them as they are asked for.

    `group`: microbatches that pass a chunk before the next chunk's turn; None: one for every stage.
    """
    group = group or sizes.pp
    further = partial(_longest, sizes, group)
    return StepForm(sizes.microbatches, sizes.vpp, by_passes(_chains(sizes, group)), further)


def by_passes(passes: Ints) -> Ints:
    """Chains as coefficients, times vpp, of PASS_PARTS, from how many chunks' F and B they have of each stage.

    `passes`: (.., pp, 2). B is T less F.
    """
    chains = np.zeros((*passes.shape[:-1], PASS_PARTS), dtype=np.int64)
    chains[..., 0], chains[..., 1] = passes[..., 1], passes[..., 0] - passes[..., 1]
    return chains


def busy_at(sizes: PipelineSizes) -> Ints:
    """For each stage all of its work, and a chunk's F and B of each stage before it: (pp, pp, 2)."""
    stages = np.arange(sizes.pp)
    chains = np.zeros((sizes.pp, sizes.pp, 2), dtype=np.int64)
    chains[stages[:, None] > stages] = 1
    chains[stages, stages] = sizes.microbatches * sizes.vpp
    return chains


@lru_cache(maxsize=256)
def _chains(sizes: PipelineSizes, group: int) -> Ints:
    """The same, and with ways through the stages behind: (chains, pp, 2).

    The first forward of a stage's last chunk passes these and comes back as its first backward, in place of the
    forwards that the stage runs meanwhile; so does the last forward, in place of backwards; or both.
    """
    pp, m, vpp = sizes.pp, sizes.microbatches, sizes.vpp
    units, warm, stages = m * vpp, _warmups(sizes, group), np.arange(pp)
    of_first, of_last = min(group, m), m % group or min(group, m)
    behind = (stages[:, None] < stages)[..., None] * 1
    first, last = np.zeros((2, pp, pp, 2), dtype=np.int64)
    after_warm = np.maximum(0, units - 1 - warm)
    first[stages, stages, 0] = (vpp - 1) * of_first + 1 + after_warm - units
    last[stages, stages, 1] = (vpp - 1) * of_last + 1 + after_warm - units
    busy, first, last = busy_at(sizes), first + behind, last + behind
    both = (busy + first + last)[warm < units - 1]  # of others the first backward comes after all forwards
    if vpp > 1 and group < m:
        found = [*busy, *(busy + first), *_by_way_of_last(sizes, busy[0])]
    else:
        found = [*busy, *(busy + first), *(busy + last), *both, *(_by_way_of_another(sizes) if vpp > 1 else ())]
    return np.unique(found, axis=0)


def _by_way_of_last(sizes: PipelineSizes, busy: Ints) -> list[Ints]:
    """The first stage's work, of which the last does some in groups of pp: (pp, 2) each.

    The first forward of the last chunk passes the stages to the last, which goes on with forwards and backwards in turn
    until the next group's first forward; that comes back as the first stage's for the next chunk. So does the end of a
    step, the other way round; or both.
    """
    pp, vpp, units, warm = sizes.pp, sizes.vpp, sizes.microbatches * sizes.vpp, _warmups(sizes, sizes.pp)
    back = (vpp + 1) * pp  # the forward that comes back
    if back >= units or sizes.beside:  # beside backwards forwards leave late
        return []
    ahead = np.zeros((pp, 2), dtype=np.int64)
    ahead[1:, 0], ahead[-1] = 1, (pp + 1, vpp * pp - warm[-1])
    ahead[0] = 1 - 2 * pp, min(0, warm[0] - back)
    behind = ahead[:, ::-1]
    both = [busy + ahead + behind] if 2 * back < units + warm[0] else []
    return [busy + ahead, busy + behind, *both]


def _by_way_of_another(sizes: PipelineSizes) -> Iterator[Ints]:
    """Of one group of all microbatches a stage's work until some forward of its last chunk, one of the last two stages'
    from there until some backward, and again the first one's: (pp, 2) each.

    The other stage is entered with that chunk's first forward or the last one before its first backward, and left with
    the chunk's last backward or the last one that a forward precedes.
    """
    pp, m = sizes.pp, sizes.microbatches
    units, warm = m * sizes.vpp, _warmups(sizes, m)
    for stage, other in product(range(pp), {pp - 2, pp - 1}):
        ahead = min(m - 1, int(warm[other]) - (units - m))
        for skipped, left in product({0, ahead}, {m - 1, m - 1 - ahead}):
            entered = units - m + skipped
            first = max(0, entered - int(warm[other]))
            if stage < other and first <= left:
                chain = np.zeros((pp, 2), dtype=np.int64)
                chain[:other] = 1
                chain[stage] = entered + 1, units - left
                chain[other] = min(left + int(warm[other]), units - 1) - entered + 1, left - first + 1
                yield chain


def _warmups(sizes: PipelineSizes, group: int) -> Ints:
    return np.asarray(warmups(sizes.pp, sizes.vpp, sizes.microbatches, group, sizes.beside))


def _longest(sizes: PipelineSizes, group: int, parts: Floats) -> Ints | None:
    """`StepForm.further`: the schedule is run."""
    whole, forward = parts[:2] / sizes.vpp
    chain = longest_chain(sizes, group, forward, whole - forward)
    return None if chain is None else by_passes(chain)
