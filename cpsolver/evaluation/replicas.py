"""What a plan with replicas of different kinds gives: the slowest pipeline, then the slowest way to sum gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.evaluation import PARTS, Evaluation
from cpsolver.plans.replicas import MixedReplicas, ReplicaKind
from cpsolver.problem.problem import Problem

_PIPELINE, _AFTER = PARTS[:6], PARTS[6:]


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
    """
    kinds = tuple(evaluate(_of_share(problem, kind), kind.strategy) for kind in plan.kinds)
    slowest = max(range(len(kinds)), key=lambda index: sum(kinds[index].breakdown_s[part] for part in _PIPELINE))
    last = max((stage for kind in kinds for stage in kind.stages), key=lambda stage: stage.after_s)
    breakdown = {part: kinds[slowest].breakdown_s[part] for part in _PIPELINE}
    breakdown |= {part: getattr(last, f"{part}_s") for part in _AFTER}
    return ReplicasEvaluation(sum(breakdown.values()), breakdown, kinds, slowest)


def _of_share(problem: Problem, kind: ReplicaKind) -> Problem:
    """The problem whose batch gives every replica what one of this kind takes."""
    if kind.sequences is None:
        return problem
    training = problem.spec.training.model_copy(update={"global_batch_size": kind.sequences * kind.strategy.dp})
    return problem.with_(spec=problem.spec.model_copy(update={"training": training}))
