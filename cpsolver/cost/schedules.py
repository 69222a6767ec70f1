"""The pipeline schedules: what tells one from the others, each in a row of one table.

Evaluations, timelines, rules and reports read it. What else a schedule needs is in docs/adding-a-schedule.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from cpsolver.cost import alternating, breadth_first
from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.pipeline_events import most_excess, peak_live_total
from cpsolver.cost.shard import Bools, Floats, Ints
from cpsolver.cost.split_backward import split_form, zero_bubble_bound, zero_bubble_form
from cpsolver.cost.step_form import PipelineSizes, StepForm
from cpsolver.inputs.language import say
from cpsolver.plans.dimensions import DIMENSIONS
from cpsolver.plans.strategy import ON_REQUEST, ONE_GROUP, SEARCHED_SCHEDULES, Schedule
from cpsolver.problem.problem import Problem
from cpsolver.profiles.stack import FOLD3D_STACK
from models_zoo import Architecture


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
        form: what a step takes on one chip type; over several that of 1F1B is its formula (`form_of`).
        bound: what bounds take of that over several chip types too, from pp and microbatches of many rows: (first,
            second) of `split_backward.zero_bubble_bound`; None: 1F1B's formula.
        joins: all ranks wait for each other between steps.
        by_events: plans are run event by event, for the form's first chains are less than a step where stages or
            their chunks differ.
        splits_backward: into passes for the inputs' gradients and for the weights'.
    """

    label: str
    drawn_as: Schedule
    interleaves: bool | None
    stacks: tuple[str, ...] | None
    live_chunks: Callable[[Problem, int, int, int], Ints]
    form: Callable[[Problem, PipelineSizes], StepForm]
    bound: Callable[[Ints, Ints], tuple[Floats, Floats]] | None = None
    joins: bool = True
    by_events: bool = False
    splits_backward: bool = False


def _live(_problem: Problem, pp: int, vpp: int, microbatches: int) -> Ints:
    """What 1F1B holds, interleaved or not."""
    return peak_live_total(pp, vpp, microbatches)


def _live_until_weights(times: int, _problem: Problem, pp: int, _vpp: int, microbatches: int) -> Ints:
    """The same on all stages: what the first has more before backward, the last keeps until W (split_backward.py).

    Everything is taken to stay until W is done, though the inputs of GEMMs and gradients alone have to.
    """
    return np.full(pp, min(times * pp - (times - 1), microbatches))


def _zero_bubble(name: Literal["zb1p", "zb2p"], times: int) -> PipelineSchedule:
    """ZB-H1, with the memory of 1F1B, or ZB-H2, with twice that, and as many W passes in the bubble."""
    return PipelineSchedule(
        label="zero-bubble",
        drawn_as=name,
        interleaves=False,
        stacks=("zero-bubble",),
        live_chunks=partial(_live_until_weights, times),
        form=lambda _problem, sizes: zero_bubble_form(times, name, sizes.pp, sizes.microbatches),
        bound=partial(zero_bubble_bound, times),
        joins=False,
        splits_backward=True,
    )


def _works(_pp: Ints, microbatches: Ints) -> tuple[Floats, Floats]:
    """As `zero_bubble_bound`: what the slowest stage works."""
    return np.asarray(microbatches, dtype=np.float64), np.zeros(np.shape(microbatches))


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


def _joining(
    name: Literal["zbv", "v_half", "v_min", "dualpipev", "dualpipe"],
    label: str,
    stacks: tuple[str, ...],
    live_chunks: Callable[[Problem, int, int, int], Ints],
    interleaves: bool = True,
) -> PipelineSchedule:
    """Those with two chunks a device, after which all ranks join."""
    return PipelineSchedule(
        label=label,
        drawn_as=name,
        interleaves=interleaves,
        stacks=stacks,
        live_chunks=live_chunks,
        form=lambda _problem, sizes: split_form(name, True, sizes.pp, sizes.microbatches),
        bound=_works,
        by_events=True,
        splits_backward=True,
    )


_TORCHTITAN = ("fsdp-torchtitan", "torchtitan-2025", "torchtitan-2026")

SCHEDULES: dict[Schedule, PipelineSchedule] = {
    "1f1b": PipelineSchedule(
        label="1F1B",
        drawn_as="1f1b",
        interleaves=None,
        stacks=None,
        live_chunks=_live,
        form=lambda _problem, sizes: alternating.step_form(sizes),
        by_events=True,
    ),
    "zb1p": _zero_bubble("zb1p", 1),
    "zb2p": _zero_bubble("zb2p", 2),
    "breadth_first": PipelineSchedule(
        label="breadth-first",
        drawn_as="breadth_first",
        interleaves=True,
        stacks=(FOLD3D_STACK, "megatron-core", "megatron-core-plain", "megatron-bridge", *_TORCHTITAN),
        live_chunks=breadth_first.live_chunks,
        form=breadth_first.step_form,
        bound=_works,
        by_events=True,
    ),
    # All of it as of its folded plan, which is DualPipeV's (plans/folding.py): the published bubble,
    # (PP / 2 - 1) (F&B + B - 3 W), and of both stages that a device holds PP + 1 microbatches.
    "dualpipe": _joining("dualpipe", "DualPipe", ("deepseek",), _live_dualpipev, interleaves=False),
    "zbv": _joining("zbv", "ZB-V", ("zero-bubble", "primus", *_TORCHTITAN), _live_zbv),
    "dualpipev": _joining("dualpipev", "DualPipeV", ("deepseek",), _live_dualpipev),
    # --zero-bubble-v-schedule-mem-setup half, min (sail-sg/zero-bubble-pipeline-parallelism 39f2c18, zbv_greedy.py);
    # pp_algorithm v-half, v-min with the same blocks (AMD-AGI/Primus, schedule_table_factory.py 1ac6ea0)
    "v_half": _joining("v_half", "V-Half", ("zero-bubble", "primus"), _live_v_half),
    "v_min": _joining("v_min", "V-Min", ("zero-bubble", "primus"), _live_v_min),
}

V_CHUNKS = 2
"""Chunks of a stage of a V."""

_BY_CODE = [SCHEDULES["1f1b"], *(SCHEDULES[name] for name in DIMENSIONS["schedule"].values)]
HAS_FORM: Bools = np.array([schedule.bound is not None for schedule in _BY_CODE])
"""Whether what a step takes is a StepForm over several chip types too, by the code of a schedule in rows."""
ALTERNATES: Bools = np.array([schedule is SCHEDULES["1f1b"] for schedule in _BY_CODE])
"""Whether it is Megatron's 1F1B, by the same."""


def most_above(schedule: Ints, pp: Ints, vpp: Ints, microbatches: Ints) -> Floats:
    """The most by which closed forms of rows are above their events over several chip types, as shares: none is whose
    step is a StepForm. The arguments are columns of rows, or of one."""
    return np.where(HAS_FORM[schedule], 0.0, most_excess(pp, vpp, microbatches))


def most_short(model: Architecture) -> int:
    """The most layers that the last stage of a plan of BOTH_WAYS may have fewer than the first: the head, with its
    loss, in the place of one, and a module of multi-token prediction, with its own, in that of two."""
    return 1 + 2 * model.mtp_layers


def schedules_to_search(problem: Problem) -> tuple[Schedule, ...]:
    """The schedules that plans may have: those pinned or asked for, or those that the frameworks have.

    Of SEARCHED_SCHEDULES what the launcher runs; without one what the stack's framework runs; none of ON_REQUEST.
    """
    search = problem.spec.search
    asked = search.pin.schedule or search.schedules
    if asked is not None:
        return tuple(name for name in SEARCHED_SCHEDULES if name in asked)
    return tuple(name for name in SEARCHED_SCHEDULES if name not in ON_REQUEST and has_schedule(problem, name))


def form_of(problem: Problem, schedule: PipelineSchedule, sizes: PipelineSizes) -> StepForm | None:
    """What a step of a schedule takes; None: 1F1B's formula, by which its plans are found over several chip types."""
    return None if problem.mixed and schedule.bound is None else schedule.form(problem, sizes)


def found_by_events(problem: Problem, name: Schedule) -> bool:
    """Whether plans of a schedule are found by their events, of which all chains of passes are looked at."""
    schedule = SCHEDULES[name]
    return schedule.by_events and not (problem.mixed and schedule.bound is None)


def runs_events(problem: Problem, name: Schedule) -> bool:
    """Whether plans of a schedule are run event by event; where all forwards come first two chains of passes say the
    same (breadth_first.py)."""
    return SCHEDULES[name].by_events and not (name in ONE_GROUP and breadth_first.forwards_first(problem))


def has_schedule(problem: Problem, name: Schedule) -> bool:
    """Whether the launcher has a schedule, or without one the stack's framework."""
    if problem.launcher is not None:
        return name in problem.launcher.schedules
    stacks = SCHEDULES[name].stacks
    return stacks is None or problem.stack.name in stacks


def equal_sizes_why(problem: Problem) -> str:
    """Why no plans are looked for whose microbatches differ in size, though the spec asks for them; empty where they
    are, or where it does not ask."""
    search = problem.spec.search
    if not search.dynamic_micro_batches:
        return ""
    if "1f1b" not in schedules_to_search(problem):
        return say("search.schedules leaves 1f1b out")
    if problem.mixed:
        return say("the cluster is of several chip types")
    if search.objective != "throughput" or problem.may_idle:
        return say("the objective is not throughput on all devices")
    if search.recompute_scope == "stage":
        return say("search.recompute_scope is stage")
    if problem.encoder is not None or len(layer_kinds(problem.model)) > 1:
        return say("the model's layers are of several kinds")
    return ""


def searches_sizes(problem: Problem) -> bool:
    """Whether plans are looked for whose microbatches differ in size."""
    wanted = problem.spec.search.dynamic_micro_batches and problem.has_dynamic_micro_batches
    return wanted and not equal_sizes_why(problem)


def schedule_of(code: int) -> PipelineSchedule:
    """The schedule of a code in rows."""
    return _BY_CODE[code]


def shares_table(problem: Problem) -> bool:
    """Embedding and head are one table, of which stages placed as a V would hold one copy: not modelled."""
    return problem.model.tied_embeddings
