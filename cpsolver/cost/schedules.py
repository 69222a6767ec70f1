"""The pipeline schedules: what tells one from the others, each in a row of one table.

Evaluations, timelines, rules and reports read it. What else a schedule needs is in docs/adding-a-schedule.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from cpsolver.cost import breadth_first
from cpsolver.cost.pipeline_events import peak_live_total
from cpsolver.cost.shard import Floats, Ints
from cpsolver.cost.stage import Pipelines
from cpsolver.plans.dimensions import DIMENSIONS
from cpsolver.plans.strategy import SEARCHED_SCHEDULES, Schedule, Strategy
from cpsolver.problem.problem import Problem


@dataclass(frozen=True)
class PipelineSchedule:
    """A schedule of forward and backward passes.

    Attributes:
        label: its kind, in words of reports.
        drawn_as: the schedule whose order of events a timeline shows for it.
        interleaves: whether it needs several chunks a stage (True), one (False), or runs either (None).
        stacks: the stack profiles whose frameworks have it; None: all. A launcher says for itself what it has.
        one_group: all microbatches of a step pass a chunk before the next chunk's turn, not pp of them.
        live_chunks: chunks' forward passes that each stage holds at its peak, (pp,), from the problem, pp, vpp and the
            microbatches of a step.
        bubble_left: share of 1F1B's bubble that is left, from pp and a stage's seconds of forward and of backward.
        weight_passes: how many times the other stages' number of W passes fill a stage's bubble (split_backward.py);
            0: backward is not split.
        data_parallel_s: exposed data-parallel seconds of a step, (1, pp), where interleaved passes hide more of it than
            `TimeTable.sync_*` says.
        bidirectional: microbatches come from both ends, half from each: the devices of stage s hold stage pp - 1 - s
            too. All-to-alls of one direction travel under the other's compute.
    """

    label: str
    drawn_as: Schedule
    interleaves: bool | None
    stacks: tuple[str, ...] | None
    live_chunks: Callable[[Problem, int, int, int], Ints]
    bubble_left: Callable[[int, float, float], float]
    weight_passes: int = 0
    one_group: bool = False
    data_parallel_s: Callable[[Problem, Strategy, Pipelines], Floats] | None = None
    bidirectional: bool = False


def _live(_problem: Problem, pp: int, vpp: int, microbatches: int) -> Ints:
    """What 1F1B holds, interleaved or not."""
    return peak_live_total(pp, vpp, microbatches)


def _live_until_weights(times: int, _problem: Problem, pp: int, _vpp: int, microbatches: int) -> Ints:
    """The same on all stages: what the first has more before backward, the last keeps until W (split_backward.py).

    Everything is taken to stay until W is done, though the inputs of GEMMs and gradients alone have to.
    """
    return np.full(pp, min(times * pp - (times - 1), microbatches))


def _all_of_it(_pp: int, _forward_s: float, _backward_s: float) -> float:
    """Nothing of the bubble is filled."""
    return 1.0


def _zero_bubble(name: Schedule, times: int) -> PipelineSchedule:
    """ZB-H1, with the memory of 1F1B, or ZB-H2, with twice that, and as many W passes in the bubble."""
    live = partial(_live_until_weights, times)
    return PipelineSchedule("zero-bubble", name, False, ("zero-bubble",), live, _all_of_it, times)


def _dualpipe_left(pp: int, forward_s: float, backward_s: float) -> float:
    """DualPipe's bubble, (pp/2 - 1) (F&B + B - 3 W), against 1F1B's, (pp - 1) (F + B): arXiv:2412.19437, table 2.

    Both passes at once, F&B, take as long as one after the other: what they hide is off either already. Backward B
    split evenly in two, half of it is W. Run pass by pass the published order has just this bubble where B is 2 F.
    """
    both = forward_s + backward_s
    return (pp / 2 - 1) * (both - backward_s / 2) / ((pp - 1) * both)


SCHEDULES: dict[Schedule, PipelineSchedule] = {
    "1f1b": PipelineSchedule("1F1B", "1f1b", None, None, _live, _all_of_it),
    "zb1p": _zero_bubble("zb1p", 1),
    "zb2p": _zero_bubble("zb2p", 2),
    "breadth_first": PipelineSchedule(
        label="breadth-first",
        drawn_as="breadth_first",
        interleaves=True,
        stacks=(breadth_first.FOLD3D_STACK, "megatron-core", "megatron-core-plain", "megatron-bridge"),
        live_chunks=breadth_first.live_chunks,
        bubble_left=_all_of_it,
        one_group=True,
        data_parallel_s=breadth_first.data_parallel_s,
    ),
    "dualpipe": PipelineSchedule(
        # Of each of its two stages a device holds what 1F1B does, pp - s and s + 1 microbatches: the published pp + 1
        # (deepseek-ai/DualPipe bb214e8, dualpipe.py: steps 1 to 4).
        label="DualPipe",
        drawn_as="1f1b",
        interleaves=False,
        stacks=("deepseek",),
        live_chunks=_live,
        bubble_left=_dualpipe_left,
        bidirectional=True,
    ),
}

WEIGHT_PASSES: Ints = np.array([0, *(SCHEDULES[name].weight_passes for name in DIMENSIONS["schedule"].values)])
"""`PipelineSchedule.weight_passes` by the code of a schedule in rows."""


def schedules_to_search(problem: Problem) -> tuple[Schedule, ...]:
    """The schedules that plans may have: those pinned or asked for, or those that the frameworks have.

    Of SEARCHED_SCHEDULES what the launcher runs; without one what the stack's framework runs.
    """
    search = problem.spec.search
    asked = search.pin.schedule or search.schedules
    if asked is not None:
        return tuple(name for name in SEARCHED_SCHEDULES if name in asked)
    return tuple(name for name in SEARCHED_SCHEDULES if has_schedule(problem, name))


def has_schedule(problem: Problem, name: Schedule) -> bool:
    """Whether the launcher has a schedule, or without one the stack's framework."""
    if problem.launcher is not None:
        return name in problem.launcher.schedules
    stacks = SCHEDULES[name].stacks
    return stacks is None or problem.stack.name in stacks
