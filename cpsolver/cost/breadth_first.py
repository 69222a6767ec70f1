"""Breadth-first pipelining: all microbatches pass a chunk before the next chunk's turn, and gradients travel meanwhile.

Lamy-Poirier, arXiv:2211.05953; Li et al., Fold3D, TPDS 2023 (doi:10.1109/tpds.2023.3247883), "all in, all out". Two
orders of it are run:

- Every forward, then every backward. AscendSpeed (--foldx-mode aiao; --fold-mode in its README) starts the reduction
  of a chunk that is complete before the next chunk's first backward, and waits for all of them at the step's end:
  core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_foldx_aiao. PyTorch's ScheduleLoopedBFS, which
  torchtitan takes by its name (distributed/pipelining/schedules.py, 2.13; _calculate_single_rank_operations).
- Megatron-Core from 0.10: interleaving in groups of all m microbatches (--microbatch-group-size-per-virtual-pipeline-
  stage m), so the last chunk runs 1F1B. A chunk's gradients travel from its last backward on, and its weights come
  under the forwards of the chunk before, where --overlap-grad-reduce and --overlap-param-gather are on:
  core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving.

Equal stages have the bubble of interleaving in either order; what a step of others takes is the longest of chains of
passes of which each waits for the one before (`step_form`). Data-parallel communication is that of interleaving too,
but m microbatches of another chunk hide a chunk's, where pp do with 1F1B (`tables.TimeTable`, `sync_*`). The head's
gradients travel with those of the last chunk, under the m backward passes of the next: of at least one layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product

import numpy as np

from cpsolver.cost.pipeline_events import MOST_EVENTS, longest_chain, peak_live_total, warmups
from cpsolver.cost.shard import Floats, Ints
from cpsolver.cost.step_form import PASS_PARTS, PipelineSizes, StepForm
from cpsolver.problem.problem import Problem

FOLD3D_STACK = "ascendspeed"
"""The stack profile whose framework has Fold3D, and micro batches of different sizes."""


def runs_fold3d(problem: Problem) -> bool:
    """The schedule is AscendSpeed's own."""
    return problem.launcher is None and problem.stack.name == FOLD3D_STACK


def forwards_first(problem: Problem) -> bool:
    """Every forward comes before the first backward; otherwise the order is Megatron-Core's."""
    if problem.launcher is not None:
        return not problem.launcher.one_group_in_turn
    return runs_fold3d(problem)


def live_chunks(problem: Problem, pp: int, vpp: int, m: int) -> Ints:
    """Chunks' forward passes that each stage holds at its peak, with `m` microbatches in a step."""
    if forwards_first(problem):
        return np.full(pp, m * vpp)
    return np.asarray(peak_live_total(pp, vpp, m, m))


def step_form(problem: Problem, sizes: PipelineSizes) -> StepForm:
    """What a step takes: for each stage a chain that is busy there, and more of them as they are asked for."""
    in_turn = not forwards_first(problem)
    chains = (_in_turn if in_turn else _forwards_first)(sizes)
    further = _longest_in_turn if in_turn else _longest_forwards_first
    return StepForm(sizes.microbatches, sizes.vpp, _by_parts(chains), partial(further, sizes))


def _by_parts(passes: Ints) -> Ints:
    """Chains as coefficients, times vpp, of PASS_PARTS, from how many chunks' F and B they have of each stage.

    `passes`: (.., pp, 2). B is T less F.
    """
    chains = np.zeros((*passes.shape[:-1], PASS_PARTS), dtype=np.int64)
    chains[..., 0], chains[..., 1] = passes[..., 1], passes[..., 0] - passes[..., 1]
    return chains


def _busy_at(sizes: PipelineSizes) -> Ints:
    """For each stage all of its work, and a chunk's F and B of each stage before it: (pp, pp, 2)."""
    stages = np.arange(sizes.pp)
    chains = np.zeros((sizes.pp, sizes.pp, 2), dtype=np.int64)
    chains[stages[:, None] > stages] = 1
    chains[stages, stages] = sizes.microbatches * sizes.vpp
    return chains


@lru_cache(maxsize=256)
def _in_turn(sizes: PipelineSizes) -> Ints:
    """The same, and with ways through the stages behind: (chains, pp, 2).

    The first forward of a stage's last chunk passes these and comes back as its first backward, in place of the
    forwards that the stage runs meanwhile; so does the last forward, in place of backwards; or both.
    """
    pp, m = sizes.pp, sizes.microbatches
    units, warm, stages = m * sizes.vpp, _warmups(sizes), np.arange(pp)
    behind = (stages[:, None] < stages)[..., None] * 1
    first, last = np.zeros((2, pp, pp, 2), dtype=np.int64)
    first[stages, stages, 0] = 1 - m + np.maximum(0, units - 1 - warm)
    last[stages, stages, 1] = 1 - m + np.maximum(0, units - 1 - warm)
    busy, first, last = _busy_at(sizes), first + behind, last + behind
    both = (busy + first + last)[warm < units - 1]  # of others the first backward comes after all forwards
    found = [*busy, *(busy + first), *(busy + last), *both, *_by_way_of_another(sizes)]
    return np.unique(found, axis=0)


def _by_way_of_another(sizes: PipelineSizes) -> Iterator[Ints]:
    """A stage's work until some forward of its last chunk, one of the last two stages' from there until some backward,
    and again the first one's: (pp, 2) each.

    The other stage is entered with that chunk's first forward or the last one before its first backward, and left with
    the chunk's last backward or the last one that a forward precedes.
    """
    pp, m = sizes.pp, sizes.microbatches
    units, warm = m * sizes.vpp, _warmups(sizes)
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


def _warmups(sizes: PipelineSizes) -> Ints:
    return np.asarray(warmups(sizes.pp, sizes.vpp, sizes.microbatches, sizes.microbatches, sizes.beside))


def _forwards_first(sizes: PipelineSizes) -> Ints:
    """For each stage all of its work, and a chunk's F and B of every other: (pp, pp, 2)."""
    return np.maximum(_busy_at(sizes), 1)


def _longest_in_turn(sizes: PipelineSizes, parts: Floats) -> Ints | None:
    """`StepForm.further` of Megatron-Core's order: the schedule is run, where that is done at all."""
    whole, forward = parts[:2] / sizes.vpp
    m = sizes.microbatches
    if 2 * sizes.pp * sizes.vpp * m > MOST_EVENTS:
        return None
    return _by_parts(longest_chain(forward, whole - forward, m, sizes.vpp, m, sizes.beside))


def _longest_forwards_first(sizes: PipelineSizes, parts: Floats) -> Ints:
    """The same where forwards come first: they are held up by the stage that is slowest at them, and so are backwards.

    Microbatches are no fewer than stages, so that each finds its next chunk's first stage at work.
    """
    whole, forward = parts[:2]
    chain = np.ones((sizes.pp, 2), dtype=np.int64)
    for kind, seconds in enumerate((forward, whole - forward)):
        chain[seconds.argmax(), kind] = sizes.microbatches * sizes.vpp
    return _by_parts(chain)


def hiding_shares(problem: Problem) -> tuple[float, float]:
    """Of the passes of another chunk the shares under which a chunk's gradients, and its weights, travel.

    The stack's overlaps, which are 0 where gradients or weights are communicated at the step's end; Fold3D starts its
    reductions itself, beside all compute.
    """
    gradients = 1.0 if runs_fold3d(problem) else problem.stack.gradient_overlap
    return gradients, problem.stack.parameter_overlap


def left_of_last(layer_s: Floats, last_s: Floats, hidden_s: Floats) -> Floats:
    """Seconds of what the last stage has to communicate beyond its layers that another chunk's passes do not hide.

    It travels with the last chunk's layers under the passes of a chunk of at least one layer; longer chunks hide more,
    which a step linear in layers does not know. `layer_s`: a layer's transfer, of which passes of a layer hide
    `hidden_s`; `last_s`: the head's.
    """
    left = layer_s - hidden_s
    return np.asarray(np.maximum(0.0, left + last_s) - np.maximum(0.0, left))
