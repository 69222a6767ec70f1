"""Replicas of different kinds: the step waits for the slowest pipeline, then for the slowest sum of gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.evaluation import PARTS, Evaluation
from cpsolver.evaluation.replicas import ReplicasEvaluation, evaluate_replicas
from cpsolver.evaluation.timeline import simulated_step_s
from cpsolver.plans.replicas import MixedReplicas, ReplicaKind
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of

CHIPS = {"x": chip_spec(), "y": chip_spec(tflops=50, out=200)}
PROBLEM = problem_of(CHIPS, model=model_spec(), gpus=8, node=4, batch=32)
X, Y = strategy_of("x:4", dp=8), strategy_of("y:4", dp=8)


def test_one_kind_is_the_plan_itself() -> None:
    alone = evaluate(PROBLEM, X)
    found = evaluate_replicas(PROBLEM, MixedReplicas((ReplicaKind(X, 8),)))
    assert found.step_time_s == pytest.approx(alone.step_time_s, rel=1e-12)
    assert found.breakdown_s == pytest.approx(dict(alone.breakdown_s))
    assert found.kinds == (alone,)


def test_the_slowest_pipeline_and_the_slowest_sum_of_gradients_may_be_of_different_kinds() -> None:
    """y computes half as fast; x has half the network, over which its ring of eight replicas goes."""
    x, y = evaluate(PROBLEM, X), evaluate(PROBLEM, Y)
    assert x.breakdown_s["data_parallel"] > 1.5 * y.breakdown_s["data_parallel"]
    found = evaluate_replicas(PROBLEM, MixedReplicas((ReplicaKind(X, 4), ReplicaKind(Y, 4))))
    assert found.slowest == 1
    assert tuple(found.breakdown_s) == PARTS
    assert found.breakdown_s["compute"] == y.breakdown_s["compute"] > x.breakdown_s["compute"]
    assert found.breakdown_s["data_parallel"] == x.breakdown_s["data_parallel"]
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s)


def test_a_smaller_share_of_the_batch_is_done_sooner() -> None:
    """24 of 32 sequences for four replicas of x, six each, and eight for those of y, two each."""
    even = MixedReplicas((ReplicaKind(X, 4), ReplicaKind(Y, 4)))
    uneven = MixedReplicas((ReplicaKind(X, 4, 6), ReplicaKind(Y, 4, 2)))
    before, after = evaluate_replicas(PROBLEM, even), evaluate_replicas(PROBLEM, uneven)
    assert after.slowest == 0
    assert after.breakdown_s["compute"] == pytest.approx(6 / 4 * before.kinds[0].breakdown_s["compute"])
    assert after.kinds[1].breakdown_s["compute"] == pytest.approx(2 / 4 * before.kinds[1].breakdown_s["compute"])
    assert after.step_time_s < before.step_time_s


BOTH = replace(strategy_of("x:2 y:2", dp=4), mbs=1)


def _both(network: float = 50) -> tuple[ReplicasEvaluation, Evaluation, float | None]:
    """A pipeline of both chips as replicas, as a plan, and as the plan's schedule run event by event."""
    chips = {"x": chip_spec(out=network), "y": chip_spec(tflops=50, out=network)}
    problem = problem_of(chips, model=model_spec(), gpus=8, node=4, batch=32)
    alone = evaluate(problem, BOTH)
    events = simulated_step_s(BOTH, alone, BOTH.microbatches(problem.batch))
    return evaluate_replicas(problem, MixedReplicas((ReplicaKind(BOTH, 4),))), alone, events


def test_stages_of_several_chips_in_a_replica() -> None:
    found, alone, events = _both()
    assert found.step_time_s == pytest.approx(events)
    assert tuple(found.breakdown_s) == PARTS
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s)
    assert found.breakdown_s["compute"] == pytest.approx(alone.breakdown_s["compute"])


def test_a_stage_that_waits_for_a_slower_one_hides_its_transfers() -> None:
    """y computes half as fast. What a thousandth of the network adds is less than each stage is charged with."""
    (fast, *_), (slow, alone, _) = _both(), _both(0.05)
    assert slow.breakdown_s["bubble"] == pytest.approx(fast.breakdown_s["bubble"])
    assert 0 < slow.breakdown_s["pipeline_p2p"] < alone.breakdown_s["pipeline_p2p"]
    assert fast.breakdown_s["pipeline_p2p"] < 0.1 * slow.breakdown_s["pipeline_p2p"]
