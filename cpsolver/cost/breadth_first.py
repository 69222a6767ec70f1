"""Breadth-first pipelining: all microbatches pass a chunk before the next chunk's turn, and gradients travel meanwhile.

Lamy-Poirier, arXiv:2211.05953; Li et al., Fold3D, TPDS 2023 (doi:10.1109/tpds.2023.3247883), "all in, all out". Two
frameworks run it, by different orders:

- AscendSpeed (--foldx-mode aiao; --fold-mode in its README): every forward, then every backward. Before a chunk's first
  backward it starts the reduction of the chunk that is complete, and waits for all of them at the end of the step:
  core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_foldx_aiao.
- Megatron-Core from 0.10: interleaving in groups of all m microbatches (--microbatch-group-size-per-virtual-pipeline-
  stage m), so the last chunk runs 1F1B. A chunk's gradients travel from its last backward on, and its weights come
  under the forwards of the chunk before, where --overlap-grad-reduce and --overlap-param-gather are on:
  core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving.

Equal stages have the bubble of interleaving in either order.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cpsolver.cost.pipeline_events import peak_live_total
from cpsolver.cost.shard import Candidates, Floats, Ints
from cpsolver.cost.stage import Pipelines
from cpsolver.cost.tables import step_traffic
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

FOLD3D_STACK = "ascendspeed"
"""The stack profile whose framework has Fold3D, and micro batches of different sizes."""


def runs_fold3d(problem: Problem) -> bool:
    """The schedule is AscendSpeed's own; otherwise Megatron-Core's."""
    return problem.launcher is None and problem.stack.name == FOLD3D_STACK


def live_chunks(problem: Problem, pp: int, vpp: int, m: int) -> Ints:
    """Chunks' forward passes that each stage holds at its peak, with `m` microbatches in a step."""
    if runs_fold3d(problem):
        return np.full(pp, m * vpp)
    return np.asarray(peak_live_total(pp, vpp, m, m))


def data_parallel_s(problem: Problem, strategy: Strategy, stages: Pipelines) -> Floats:
    """Seconds of data-parallel communication once a step that a stage's passes do not hide, with vpp > 1: (1, pp).

    Backwards take the last chunk first. Its gradients, the head's among them, travel under the m backwards of the chunk
    that is next, and so on, one chunk's behind the other's; weights are gathered under the m forwards of the chunk
    before. What is left over, and all of the first chunk and the embedding, is exposed as with any other schedule
    (`TimeTable.sync_layer`). How much of the passes hides anything say the stack's overlaps, which are 0 where
    gradients or weights are communicated at the step's end; Fold3D starts its reductions itself, beside all compute.
    """
    m, vpp, stack, time = strategy.microbatches(problem.batch), strategy.vpp, problem.stack, stages.tables.time
    shares = 1.0 if runs_fold3d(problem) else stack.gradient_overlap, stack.parameter_overlap
    row, seconds = Candidates.one(strategy, problem.batch), np.zeros((1, strategy.pp))
    for index, (chip, layers) in enumerate(zip(strategy.stage_chips, strategy.layers, strict=True)):
        first, last = index == 0, index == strategy.pp - 1
        traffic, at, chunk = step_traffic(problem, problem.supply(chip), row), stages.chips[0, index], layers / vpp
        exposed = chunk * time.sync_layer[at, 0] + time.sync_stage[at, 0]
        exposed = exposed + first * time.sync_first[at, 0] + last * traffic.tied[0]
        for transfer, more, hiding, share in (
            (traffic.reduce, traffic.reduce_last, traffic.backward, shares[0]),
            (traffic.gather, traffic.gather_last, traffic.forward, shares[1]),
        ):
            transfers = [float(chunk * transfer[0])] * (vpp - 1)
            transfers[0] += float(last * more[0])
            exposed += left_over_s(transfers, float(share * m * chunk * hiding[0]))
        seconds[0, index] = exposed
    return seconds


def left_over_s(transfers: Iterable[float], hiding_s: float) -> float:
    """Seconds that transfers, one behind the other, outlast passes that hide `hiding_s` of each.

    Transfer k starts with the k-th pass, or when the one before is done. Weights must be there when a pass ends: seen
    backwards, with the last first, that is the same.
    """
    left = 0.0
    for transfer in transfers:
        left = max(0.0, left + transfer - hiding_s)
    return left
