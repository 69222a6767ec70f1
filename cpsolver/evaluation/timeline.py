"""A plan's pipeline run through the exact schedule: its trace, and a check of the closed form that ranks plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpsolver.cost import repeating
from cpsolver.cost.critical_paths import PERIOD, SETTLED
from cpsolver.cost.pass_graph import steps_s
from cpsolver.cost.pipeline_events import MOST_EVENTS, Timeline, detour_s, simulate
from cpsolver.cost.schedules import SCHEDULES
from cpsolver.cost.shard import Floats
from cpsolver.cost.split_backward import V_MICROBATCHES
from cpsolver.cost.split_events import Pass, run, split_schedule, turns
from cpsolver.cost.step_form import PipelineSizes
from cpsolver.evaluation.evaluation import Evaluation, StageEvaluation
from cpsolver.plans.strategy import ONE_GROUP, Strategy


def plan_timeline(strategy: Strategy, stages: Sequence[StageEvaluation], microbatches: int) -> Timeline:
    """The schedule of that many microbatches, event by event; transfers are delays between the stages.

    Some schedules are shown as another (`PipelineSchedule.drawn_as`), and Fold3D's order of a breadth-first pipeline as
    Megatron-Core's.
    """
    if SCHEDULES[strategy.schedule].splits_backward and not strategy.dynamic:
        return _split_timeline(strategy, stages, microbatches)
    vpp = strategy.vpp
    by_size = [stage.sized[:microbatches] or (stage,) * microbatches for stage in stages]
    forward, backward, sent = (
        np.array([[getattr(of_one, name) for of_one in row] for row in by_size])
        for name in ("forward_s", "backward_s", "to_next_s")
    )
    delays = np.array([link_delays_s(seconds, vpp) for seconds in sent.T.tolist()]).T
    group = microbatches if strategy.schedule in ONE_GROUP else None
    chunks = np.ones((1, vpp, 1))
    forward, backward = forward[:, None] / vpp * chunks, backward[:, None] / vpp * chunks
    return simulate(forward, backward, microbatches, delays, group, strategy.expert_overlap)


def _split_timeline(strategy: Strategy, stages: Sequence[StageEvaluation], microbatches: int) -> Timeline:
    """The same with split backward passes."""
    both_ways = strategy.both_ways
    passes = 1 if both_ways else strategy.vpp  # of either direction a microbatch is whole
    forward, backward, weights = _split_passes(strategy, stages)
    delays = link_delays_s([stage.to_next_s for stage in stages], passes)
    order = turns(split_schedule(strategy.schedule), strategy.pp, microbatches)
    done = run(order, forward, backward - weights, weights, delays, both_ways=both_ways)
    events = [(stage, *each) for stage, passes in enumerate(done.passes) for each in passes]
    start_s, end_s = (np.array([event[place] for event in events]) for place in (2, 3))
    stage, microbatch, chunk = (np.array(column) for column in zip(*map(_place, events), strict=True))
    if both_ways:  # those that come from the last stage are counted on
        from_last = (chunk == 1) != (stage >= strategy.pp // 2)
        microbatch, chunk = microbatch + from_last * (microbatches // 2), np.zeros_like(chunk)
    return Timeline(
        stage=stage,
        kind=np.array([event[1][0] for event in events]),
        microbatch=microbatch,
        chunk=chunk,
        start_s=start_s,
        end_s=end_s,
        makespan_s=done.makespan_s,
        idle_s=done.makespan_s - microbatches / (2 if both_ways else 1) * (forward + backward).sum(axis=1),
    )


def _split_passes(strategy: Strategy, stages: Sequence[StageEvaluation]) -> tuple[Floats, Floats, Floats]:
    """Seconds of forward, whole backward and W of every stage's chunks, (pp, chunks)."""
    chunks = 2 if strategy.both_ways else strategy.vpp
    share, side = (1.0 if strategy.both_ways else 1.0 / chunks), np.array([0.0] if chunks == 1 else [-1.0, 1.0])

    def passes(of_all: str, later: str) -> Floats:
        whole, more = (np.array([[getattr(stage, name)] for stage in stages]) for name in (of_all, later))
        return np.asarray(share * (whole + side * more))

    forward = passes("forward_s", "later_forward_s")
    weights = passes("weight_gradients_s", "later_weight_gradients_s")
    return forward, passes("work_s", "later_s") - forward, weights


def _place(event: tuple[int, Pass, float, float]) -> tuple[int, int, int]:
    """Stage, microbatch and chunk."""
    return event[0], event[1][2], event[1][1]


def makespan_s(strategy: Strategy, stages: Sequence[StageEvaluation], microbatches: int) -> float | None:
    """Seconds of a pipeline of unequal stages, event by event, each stage charged with its transfers as by formula.

    So it is the closed form's number where stages are equal, and beside it knows what a stage's work hides behind a
    slower one's. None where the closed form is all there is: with other schedules than Megatron's 1F1B and those that
    say `by_events`, with too many passes.
    """
    schedule = SCHEDULES[strategy.schedule]
    if schedule.by_events and schedule.splits_backward:
        return _makespan_of_a_v(strategy, stages, microbatches)
    sizes = PipelineSizes(strategy.pp, strategy.vpp, microbatches, strategy.expert_overlap)
    group = microbatches if strategy.schedule in ONE_GROUP else strategy.pp
    if schedule.splits_backward:
        return None
    waits = np.array([stage.pipeline_p2p_s for stage in stages]) / 2
    forward, backward = (
        (np.array([getattr(stage, name) for stage in stages]) + waits) / strategy.vpp
        for name in ("forward_s", "backward_s")
    )
    return repeating.makespan_s(sizes, group, forward, backward)


def makespan_by_size_s(stages: Sequence[StageEvaluation]) -> float:
    """The same of 1F1B whose microbatches differ in size (`StageEvaluation.sized`): with equal ones, that number."""
    waits, forward, backward = (
        np.array([[getattr(of_one, name) for of_one in stage.sized] for stage in stages])
        for name in ("pipeline_p2p_s", "forward_s", "backward_s")
    )
    forward, backward = forward + waits / 2, backward + waits / 2
    return simulate(forward[:, None], backward[:, None], forward.shape[1]).makespan_s


def _makespan_of_a_v(strategy: Strategy, stages: Sequence[StageEvaluation], microbatches: int) -> float | None:
    """The same of stages placed as a V, each chunk with its own seconds. Where microbatches are many, the schedule is
    run for fewer of them, after which all take as long as the last ones did."""
    pp = strategy.pp
    if pp == 1 or microbatches < V_MICROBATCHES * pp:  # which rules refuse
        return None
    repeated = max(0, microbatches - SETTLED * pp) // PERIOD
    fewer = microbatches - PERIOD * max(0, repeated - 1)
    if 6 * pp * fewer > MOST_EVENTS:
        return None
    waits = np.array([[stage.pipeline_p2p_s] for stage in stages]) / 4
    forward, backward, weights = _split_passes(strategy, stages)
    name = split_schedule(strategy.schedule)
    seconds = np.stack([forward + waits, backward - weights + waits, weights], axis=-1)[None]
    last = float(steps_s(name, fewer, seconds, joins=True)[0])
    if fewer == microbatches:
        return last
    before = float(steps_s(name, fewer - PERIOD, seconds, joins=True)[0])
    return last + (last - before) * (microbatches - fewer) / PERIOD


def least_step_s(strategy: Strategy, evaluation: Evaluation, microbatches: int) -> float:
    """No more than the step time with `makespan_s`, without a run; 0 for all but 1F1B of more than pp microbatches."""
    alternates = strategy.schedule == "1f1b" and strategy.vpp == 1 and not strategy.expert_overlap
    if not alternates or microbatches <= strategy.pp or strategy.dynamic:
        return 0.0
    after = evaluation.breakdown_s["data_parallel"] + evaluation.breakdown_s["optimizer"]
    seconds = np.array([stage.microbatch_s for stage in evaluation.stages])
    until = np.cumsum(seconds)
    pipeline = until - seconds + microbatches * seconds + detour_s(seconds, until[-1] - until)
    return after + float(pipeline.max())


def simulated_step_s(strategy: Strategy, evaluation: Evaluation, microbatches: int) -> float | None:
    """Step time with the pipeline simulated instead of by formula; None for a step of too many passes.

    What follows the pipeline is the evaluation's. Transfers only delay what waits for them here, while the evaluation
    charges a stage with what runs have shown that they cost. With split backward passes the pipeline is what its
    busiest stage takes from its first pass to its last (split_backward.py), where ranks do not wait for each other.
    """
    if 2 * strategy.pp * strategy.vpp * microbatches > MOST_EVENTS:
        return None
    after = evaluation.breakdown_s["data_parallel"] + evaluation.breakdown_s["optimizer"]
    timeline = plan_timeline(strategy, evaluation.stages, microbatches)
    return (timeline.makespan_s if SCHEDULES[strategy.schedule].joins else timeline.longest_span_s) + after


def link_delays_s(to_next_s: Sequence[float], vpp: int) -> list[float]:
    """Seconds of one transfer from each stage to the next, and of the last one around to the first: of each stage is
    given how long a microbatch's activations travel to the next, once for every chunk, from the last once fewer."""
    around = to_next_s[-1] / (vpp - 1) if vpp > 1 else 0.0
    return [*(seconds / vpp for seconds in to_next_s[:-1]), around]
