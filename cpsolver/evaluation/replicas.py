"""What a plan with replicas of different kinds gives: the slowest pipeline, then the slowest way to sum gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cpsolver.cost.pipeline_events import MOST_EVENTS
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.evaluation import PARTS, Evaluation
from cpsolver.evaluation.timeline import plan_timeline
from cpsolver.plans.replicas import MixedReplicas, ReplicaKind
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

_WORK, _PIPELINE, _AFTER = PARTS[:4], PARTS[:6], PARTS[6:]


@dataclass(frozen=True)
class ReplicasEvaluation:
    """Numbers of a plan with replicas of different kinds. `breakdown_s` has the names of PARTS and sums to the step.

    `kinds`: the evaluation of each kind, as if all replicas were like it; `slowest`: whose pipeline the step waits for.
    """

    step_time_s: float
    breakdown_s: Mapping[str, float]
    kinds: tuple[Evaluation, ...]
    slowest: int


def evaluate_replicas(problem: Problem, plan: MixedReplicas) -> ReplicasEvaluation:
    """Predict a plan whose replicas differ.

    Every replica runs its share of the batch through its own pipeline, and all wait for the slowest. What follows, the
    sum of gradients over all replicas and the optimizer's step, takes as long as on the slowest kind and stage: a ring
    over chips of different kinds goes at the pace of the slowest of them.

    A pipeline is its schedule run event by event, in which transfers delay what waits for them and hold up no stage.
    `evaluate` charges both ends with them, so that stages can be bounded one by one: too much where a fast stage waits
    for a slow one anyway. Where each transfer is an operation of its own between a stage's passes, as with DeepSpeed's
    engine, that is what the schedule takes (`Pipelines.p2p`), and counts here too.
    """
    problems = [_of_share(problem, kind) for kind in plan.kinds]
    kinds = tuple(evaluate(own, kind.strategy) for own, kind in zip(problems, plan.kinds, strict=True))
    pipelines = [
        _pipeline_parts(own, kind.strategy, found) for own, kind, found in zip(problems, plan.kinds, kinds, strict=True)
    ]
    slowest = max(range(len(kinds)), key=lambda index: sum(pipelines[index].values()))
    last = max((stage for kind in kinds for stage in kind.stages), key=lambda stage: stage.after_s)
    breakdown = {**pipelines[slowest], **{part: getattr(last, f"{part}_s") for part in _AFTER}}
    return ReplicasEvaluation(sum(breakdown.values()), breakdown, kinds, slowest)


def _pipeline_parts(problem: Problem, strategy: Strategy, found: Evaluation) -> dict[str, float]:
    """Seconds of a pipeline by part, as its busiest stage spends them: transfers are what they add to the schedule."""
    microbatches = strategy.microbatches(problem.batch)
    one_by_one = problem.stack.pipeline_buffer_mib > 0
    if one_by_one or strategy.pp == 1 or 2 * strategy.pp * strategy.vpp * microbatches > MOST_EVENTS:
        return {part: found.breakdown_s[part] for part in _PIPELINE}
    at_once = [replace(stage, pipeline_p2p_s=0.0, to_next_s=0.0) for stage in found.stages]
    busiest = max(at_once, key=lambda stage: stage.microbatch_s)
    parts = {part: microbatches * getattr(busiest, f"{part}_s") for part in _WORK}
    sent, free = (plan_timeline(strategy, stages, microbatches).makespan_s for stages in (found.stages, at_once))
    return {**parts, "pipeline_p2p": sent - free, "bubble": max(0.0, free - sum(parts.values()))}


def _of_share(problem: Problem, kind: ReplicaKind) -> Problem:
    """The problem whose batch gives every replica what one of this kind takes."""
    if kind.sequences is None:
        return problem
    training = problem.spec.training.model_copy(update={"global_batch_size": kind.sequences * kind.strategy.dp})
    return problem.with_(spec=problem.spec.model_copy(update={"training": training}))
