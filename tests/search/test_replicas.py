"""Shares by chip type: the plan found is the best of all, and its numbers are those of its evaluation."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.replicas import evaluate_replicas
from cpsolver.inputs.errors import InputError
from cpsolver.plans.replicas import MixedReplicas, ReplicaKind
from cpsolver.plans.strategy import RecomputeKind, StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.search.replicas import plan_replicas
from tests.support.problems import chip_spec, model_spec, problem_of
from tests.support.selection import full

FAST, SLOW = chip_spec(gb=20), chip_spec(tflops=30, gb=12, out=50)


def unequal(fast: int, slow: int, batch: int, **given: object) -> Problem:
    chips = {"x": {"max": fast, "spec": FAST}, "y": {"max": slow, "spec": SLOW}}
    return problem_of(chips, model=model_spec(heads=4), gpus=fast + slow, node=2, batch=batch, **given)


def strategy(problem: Problem, chip: str, tp: int, mbs: int, sharded: bool, recompute: bool, sp: bool) -> Strategy:
    kind: RecomputeKind = "uniform" if recompute else "none"
    return Strategy(
        tp=tp,
        pp=1,
        dp=problem.num_gpus // tp,
        mbs=mbs,
        vpp=1,
        sequence_parallel=sp,
        distributed_optimizer=sharded,
        flash_attention=True,
        groups=(StageGroup(chip, (problem.model.layers,), kind, (int(recompute),)),),
    )


def brute(problem: Problem, common: bool) -> float:
    """The least seconds of all degrees, flags, micro batches and numbers of microbatches that fit and sum up."""
    best = float("inf")
    counts, batch = [supply.limit for supply in problem.supplies], problem.batch
    flags = (False, True)
    for tp, sharded, recompute, sp in product((1, 2), flags, flags, flags):
        if sp and tp == 1:
            continue
        replicas = [count // tp for count in counts]
        shares = [[(m, n) for m in range(1, batch + 1) for n in range(1, batch // m + 1)] for _ in counts]
        for chosen in product(*shares):
            if sum(r * m * n for r, (m, n) in zip(replicas, chosen, strict=True)) != batch:
                continue
            if common and len({n for _, n in chosen}) > 1:
                continue
            parts = zip(problem.supplies, replicas, chosen, strict=True)
            kinds = tuple(
                ReplicaKind(strategy(problem, supply.name, tp, m, sharded, recompute, sp), size, m * n)
                for supply, size, (m, n) in parts
            )
            found = evaluate_replicas(problem, MixedReplicas(kinds))
            if all(kind.stages[0].memory.total <= kind.stages[0].capacity_bytes for kind in found.kinds):
                best = min(best, found.step_time_s)
    return best


@pytest.mark.parametrize("common", [full(False), True])
@pytest.mark.parametrize(("fast", "slow", "batch"), [(2, 2, 6), full(4, 2, 8)])
def test_nothing_is_faster(fast: int, slow: int, batch: int, common: bool) -> None:
    problem = unequal(fast, slow, batch)
    found = plan_replicas(problem, "common" if common else "own")
    assert found is not None
    assert found.evaluation.step_time_s == pytest.approx(brute(problem, common), rel=1e-9)
    kinds = found.plan.kinds
    assert sum(kind.replicas * (kind.sequences or 0) for kind in kinds) == batch
    assert all((kind.sequences or 0) % kind.strategy.mbs == 0 for kind in kinds)


@pytest.mark.full
def test_shares_follow_speed_and_gain_on_equal_ones() -> None:
    found = plan_replicas(unequal(2, 2, 16))
    assert found is not None
    fast, slow = found.plan.kinds
    assert (fast.sequences or 0) / fast.strategy.tp > (slow.sequences or 0) / slow.strategy.tp
    assert found.even_s is not None
    assert found.even_s > found.evaluation.step_time_s


@pytest.mark.full
def test_equal_chips_share_equally() -> None:
    chips = {name: {"max": 2, "spec": FAST} for name in ("x", "y")}
    problem = problem_of(chips, model=model_spec(), gpus=4, node=2, batch=8)
    found = plan_replicas(problem)
    assert found is not None
    assert [kind.sequences for kind in found.plan.kinds] == [found.plan.kinds[0].sequences] * 2
    plain = evaluate(problem, replace(found.plan.kinds[0].strategy))
    assert found.evaluation.step_time_s == pytest.approx(plain.step_time_s)


@pytest.mark.full
def test_pins_are_kept() -> None:
    found = plan_replicas(unequal(2, 2, 8, pin={"tp": 2, "sharded": "parameters", "distributed_optimizer": True}))
    assert found is not None
    for kind in found.plan.kinds:
        assert (kind.strategy.tp, kind.strategy.zero_stage) == (2, 3)
    sized = plan_replicas(unequal(2, 2, 8, pin={"mbs": 2}))
    assert sized is not None
    assert {kind.strategy.mbs for kind in sized.plan.kinds} == {2}


def test_nothing_fits_or_sums_up() -> None:
    small = {name: {"max": 2, "spec": chip_spec(gb=3.5)} for name in ("x", "y")}
    assert plan_replicas(problem_of(small, model=model_spec(layers=40), gpus=4, node=2, batch=8)) is None
    assert plan_replicas(unequal(2, 2, 1)) is None


def test_what_cannot_be_asked_is_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        plan_replicas(problem_of(gpus=4, launcher="megatron-lm"))
    assert [trouble.where for trouble in caught.value.troubles] == ["launcher", "cluster.chips"]
    with pytest.raises(InputError, match="each with how many there are"):
        plan_replicas(problem_of({"x": FAST, "y": SLOW}, gpus=4))
