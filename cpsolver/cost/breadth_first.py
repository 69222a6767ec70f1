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

from functools import partial

import numpy as np

from cpsolver.cost import alternating
from cpsolver.cost.pipeline_events import peak_live_total
from cpsolver.cost.shard import Floats, Ints
from cpsolver.cost.step_form import PipelineSizes, StepForm
from cpsolver.problem.problem import Problem
from cpsolver.profiles.stack import FOLD3D_STACK


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
    """What a step takes: chains, and more of them as they are asked for."""
    if not forwards_first(problem):
        return alternating.step_form(sizes, sizes.microbatches)
    chains = alternating.by_passes(np.maximum(alternating.busy_at(sizes), 1))  # a chunk's F and B of every other stage
    return StepForm(sizes.microbatches, sizes.vpp, chains, partial(_longest_forwards_first, sizes))


def _longest_forwards_first(sizes: PipelineSizes, parts: Floats) -> Ints:
    """`StepForm.further` where forwards come first: the stage slowest at them holds them up, and so of backwards.

    Microbatches are no fewer than stages, so that each finds its next chunk's first stage at work.
    """
    whole, forward = parts[:2]
    chain = np.ones((sizes.pp, 2), dtype=np.int64)
    for kind, seconds in enumerate((forward, whole - forward)):
        chain[seconds.argmax(), kind] = sizes.microbatches * sizes.vpp
    return alternating.by_passes(chain)


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
