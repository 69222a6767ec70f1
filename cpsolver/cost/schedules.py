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
from cpsolver.cost.shard import Bools, Floats, Ints
from cpsolver.cost.split_backward import (
    DUALPIPEV_SHARE,
    ZBV_SHARE,
    StepForm,
    dualpipev_form,
    v_bound,
    zbv_form,
    zero_bubble_bound,
    zero_bubble_form,
)
from cpsolver.cost.v_forms import v_half_bound, v_half_form, v_min_bound, v_min_form
from cpsolver.plans.dimensions import DIMENSIONS
from cpsolver.plans.strategy import ON_REQUEST, SEARCHED_SCHEDULES, Schedule
from cpsolver.problem.problem import Problem


@dataclass(frozen=True)
class PipelineSchedule:
    """A schedule of forward and backward passes.

    Attributes:
        label: its kind, in words of reports.
        drawn_as: the schedule whose order of events a timeline shows for it.
        interleaves: whether it needs several chunks a stage (True), one (False), or runs either (None).
        stacks: the stack profiles whose frameworks have it; None: all. A launcher says for itself what it has.
        live_chunks: chunks' forward passes that each stage holds at its peak, (pp,), from the problem, pp, vpp and the
            microbatches of a step.
        bubble_left: share of 1F1B's bubble that is left, from pp and a stage's seconds of forward and of backward.
        form: where backward is split, what a step takes, from pp and the microbatches (split_backward.py).
        bound: and what bounds take of that, from pp and microbatches of many rows: (first, second) of
            `split_backward.zero_bubble_bound`.
        joins: all ranks wait for each other between steps.
        bidirectional: microbatches come from both ends, half from each: the devices of stage s hold stage pp - 1 - s
            too. All-to-alls of one direction travel under the other's compute.
    """

    label: str
    drawn_as: Schedule
    interleaves: bool | None
    stacks: tuple[str, ...] | None
    live_chunks: Callable[[Problem, int, int, int], Ints]
    bubble_left: Callable[[int, float, float], float]
    form: Callable[[int, int], StepForm] | None = None
    bound: Callable[[Ints, Ints], tuple[Floats, Floats]] | None = None
    joins: bool = True
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
    return PipelineSchedule(
        label="zero-bubble",
        drawn_as=name,
        interleaves=False,
        stacks=("zero-bubble",),
        live_chunks=partial(_live_until_weights, times),
        bubble_left=_all_of_it,
        form=partial(zero_bubble_form, times),
        bound=partial(zero_bubble_bound, times),
        joins=False,
    )


def _live_zbv(_problem: Problem, pp: int, _vpp: int, microbatches: int) -> Ints:
    """Both chunks of pp microbatches: what 1F1B's first stage holds (arXiv:2401.10241, section 6)."""
    return np.full(pp, 2 * min(pp, microbatches))


def _live_dualpipev(_problem: Problem, pp: int, _vpp: int, microbatches: int) -> Ints:
    """Both chunks of pp microbatches and one more: PP + 1 with PP = 2 pp stages (deepseek-ai/DualPipe)."""
    return np.full(pp, min(2 * pp + 1, 2 * microbatches))


def _live_v_half(_problem: Problem, pp: int, _vpp: int, microbatches: int) -> Ints:
    """Both chunks of as many microbatches as arXiv:2405.15362 and its authors' page say."""
    return np.full(pp, 2 * min((pp + 2) // 2, microbatches))


def _live_v_min(_problem: Problem, pp: int, _vpp: int, microbatches: int) -> Ints:
    """The same."""
    return np.full(pp, 2 * min((pp + 4) // 3, microbatches))


def _dualpipe_left(pp: int, forward_s: float, backward_s: float) -> float:
    """DualPipe's bubble, (pp/2 - 1) (F&B + B - 3 W), against 1F1B's, (pp - 1) (F + B): arXiv:2412.19437, table 2.

    Both passes at once, F&B, take as long as one after the other: what they hide is off either already. Backward B
    split evenly in two, half of it is W. Run pass by pass the published order has just this bubble where B is 2 F.
    """
    both = forward_s + backward_s
    return (pp / 2 - 1) * (both - backward_s / 2) / ((pp - 1) * both)


_TORCHTITAN = ("fsdp-torchtitan", "torchtitan-2025", "torchtitan-2026")

SCHEDULES: dict[Schedule, PipelineSchedule] = {
    "1f1b": PipelineSchedule("1F1B", "1f1b", None, None, _live, _all_of_it),
    "zb1p": _zero_bubble("zb1p", 1),
    "zb2p": _zero_bubble("zb2p", 2),
    "breadth_first": PipelineSchedule(
        label="breadth-first",
        drawn_as="breadth_first",
        interleaves=True,
        stacks=(breadth_first.FOLD3D_STACK, "megatron-core", "megatron-core-plain", "megatron-bridge", *_TORCHTITAN),
        live_chunks=breadth_first.live_chunks,
        bubble_left=_all_of_it,
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
    "zbv": PipelineSchedule(
        label="ZB-V",
        drawn_as="zbv",
        interleaves=True,
        stacks=("zero-bubble", "primus", *_TORCHTITAN),
        live_chunks=_live_zbv,
        bubble_left=_all_of_it,
        form=zbv_form,
        bound=partial(v_bound, ZBV_SHARE),
    ),
    "dualpipev": PipelineSchedule(
        label="DualPipeV",
        drawn_as="dualpipev",
        interleaves=True,
        stacks=("deepseek",),
        live_chunks=_live_dualpipev,
        bubble_left=_all_of_it,
        form=dualpipev_form,
        bound=partial(v_bound, DUALPIPEV_SHARE),
    ),
    # --zero-bubble-v-schedule-mem-setup half, min (sail-sg/zero-bubble-pipeline-parallelism 39f2c18, zbv_greedy.py);
    # pp_algorithm v-half, v-min with the same blocks (AMD-AGI/Primus, schedule_table_factory.py 1ac6ea0)
    "v_half": PipelineSchedule(
        label="V-Half",
        drawn_as="v_half",
        interleaves=True,
        stacks=("zero-bubble", "primus"),
        live_chunks=_live_v_half,
        bubble_left=_all_of_it,
        form=v_half_form,
        bound=v_half_bound,
    ),
    "v_min": PipelineSchedule(
        label="V-Min",
        drawn_as="v_min",
        interleaves=True,
        stacks=("zero-bubble", "primus"),
        live_chunks=_live_v_min,
        bubble_left=_all_of_it,
        form=v_min_form,
        bound=v_min_bound,
    ),
}

V_CHUNKS = 2
"""Chunks of a stage of a V."""

_BY_CODE = [SCHEDULES["1f1b"], *(SCHEDULES[name] for name in DIMENSIONS["schedule"].values)]
SPLITS_BACKWARD: Bools = np.array([schedule.form is not None for schedule in _BY_CODE])
"""Whether backward is split, by the code of a schedule in rows."""
ALTERNATES: Bools = np.array([schedule is SCHEDULES["1f1b"] for schedule in _BY_CODE])
"""Whether it is Megatron's 1F1B, by the same."""


def schedules_to_search(problem: Problem) -> tuple[Schedule, ...]:
    """The schedules that plans may have: those pinned or asked for, or those that the frameworks have.

    Of SEARCHED_SCHEDULES what the launcher runs; without one what the stack's framework runs; none of ON_REQUEST.
    """
    search = problem.spec.search
    asked = search.pin.schedule or search.schedules
    if asked is not None:
        return tuple(name for name in SEARCHED_SCHEDULES if name in asked)
    return tuple(name for name in SEARCHED_SCHEDULES if name not in ON_REQUEST and has_schedule(problem, name))


def has_schedule(problem: Problem, name: Schedule) -> bool:
    """Whether the launcher has a schedule, or without one the stack's framework."""
    if problem.launcher is not None:
        return name in problem.launcher.schedules
    stacks = SCHEDULES[name].stacks
    return stacks is None or problem.stack.name in stacks


def schedule_of(code: int) -> PipelineSchedule:
    """The schedule of a code in rows."""
    return _BY_CODE[code]


def shares_table(problem: Problem) -> bool:
    """Embedding and head are one table, of which stages placed as a V would hold one copy: not modelled."""
    return problem.model.tied_embeddings
