"""Plans with replicas of different kinds: which pipelines there are, and the devices of every stage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpsolver.plans.replicas import StageDevices, mixed_replicas
from cpsolver.plans.strategy import StageGroup
from tests.support.problems import strategy_of

PLAN = replace(strategy_of("x:4", dp=4, mbs=2), pp=2, groups=(StageGroup("x", (2,)), StageGroup("x", (2,))))
X, Y = StageDevices("x", 2), StageDevices("y", 1)


def test_replicas_with_the_same_devices_are_one_kind() -> None:
    plan = mixed_replicas(PLAN, [[X, X, Y, Y], [X, X, X, Y]])
    assert [(kind.strategy.stage_chips, kind.replicas) for kind in plan.kinds] == [
        (("x", "x"), 2),
        (("y", "x"), 1),
        (("y", "y"), 1),
    ]
    assert plan.replicas == 4
    assert plan.chips == ("x", "y")
    tps = [[mesh.tp for mesh in kind.strategy.stage_meshes] for kind in plan.kinds]
    assert tps == [[2, 2], [1, 2], [1, 1]]
    assert {kind.strategy.round for kind in plan.kinds} == {8}


def test_a_stage_with_fewer_replicas_takes_several_pipelines_together() -> None:
    """Two of four pipelines go through each replica of the second stage, in micro batches of twice the size."""
    plan = mixed_replicas(PLAN, [[X, X, X, X], [X, Y]])
    assert [kind.strategy.stage_chips for kind in plan.kinds] == [("x", "x"), ("x", "y")]
    assert [kind.replicas for kind in plan.kinds] == [2, 2]
    for kind in plan.kinds:
        assert [mesh.dp for mesh in kind.strategy.stage_meshes] == [4, 2]
        assert [kind.strategy.on(stage).mbs for stage in (0, 1)] == [2, 4]


@pytest.mark.parametrize("second", [[], [X, X, X]])
def test_numbers_of_replicas_that_do_not_divide_are_refused(second: list[StageDevices]) -> None:
    with pytest.raises(ValueError, match=f"stage 1 has {len(second)} replicas, which do not divide 4"):
        mixed_replicas(PLAN, [[X] * 4, second])
