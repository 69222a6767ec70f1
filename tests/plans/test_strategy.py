"""What follows from a plan's decisions alone: places of embedding and head, and what makes two plans different."""

from __future__ import annotations

from typing import Any

import pytest

from cpsolver.plans.strategy import Mesh
from tests.support.problems import strategy_of, with_meshes


@pytest.mark.parametrize(
    ("groups", "vpp", "slots", "chunks"),
    [
        ("x:4,4", 2, (0, 0), (2, 2)),  # 2 chunks of 2 layers each
        ("x:3,4", 2, (1, 0), (2, 2)),  # 3 layers and the embedding fill 2 chunks of 2
        ("x:4,3", 2, (0, 1), (2, 2)),  # 3 layers and the head
        ("x:5,6,6,5", 3, (1, 1), (2, 2, 2, 2)),  # 5 + 1 = 3 chunks of 2
        ("x:4,6", 3, (0, 0), (2, 2)),  # two short of 6 is no slot: it does not add up
        ("x:6,4", 3, (0, 2), (2, 2)),  # but on the last stage, whose last chunk has the head alone
        ("x:16,16,16,13", 4, (0, 3), (4, 4, 4, 4)),  # chunks of 4, the last of one layer, modules and the head
        ("x:31,29", 8, (1, 3), (4, 4)),
        ("x:3,4", 1, (0, 0), (3, 4)),  # without interleaving nothing stands in a layer's place
    ],
)
def test_slots_are_where_layers_are_missing_to_fill_the_chunks(
    groups: str, vpp: int, slots: tuple[int, int], chunks: tuple[int, ...]
) -> None:
    plan = strategy_of(groups, vpp=vpp)
    assert plan.slots == slots
    assert plan.chunks == chunks


DIFFERENT: tuple[dict[str, Any], ...] = (
    {"tp": 2}, {"dp": 2}, {"mbs": 2}, {"vpp": 2}, {"flags": "f"}, {"flags": "z"}, {"flags": "fzs"}, {"cp": 8},
    {"ulysses": 2}, {"cp_gather": True}, {"ep": 2}, {"etp": 2}, {"sharded": "parameters"}, {"schedule": "zb1p"},
    {"groups": "x:4 y:4"}, {"groups": "x:8"}, {"micro_batches": (1, 2)},
)  # fmt: skip
SAME: tuple[dict[str, Any], ...] = ({"groups": "x:5,3"}, {"recompute": "uniform", "amount": 1}, {"sharding_group": 2})


def test_plans_differ_by_degrees_flags_and_chips_and_not_by_layers_or_recomputation() -> None:
    plain: dict[str, Any] = {"groups": "x:4,4", "cp": 4}
    keys = [strategy_of(**{**plain, **more}).key() for more in ({}, *DIFFERENT)]
    assert len(set(keys)) == 1 + len(DIFFERENT)
    assert {strategy_of(**{**plain, **more}).key() for more in SAME} == {keys[0]}


WIDE = Mesh(tp=2, cp=1, dp=2)


def test_stages_may_have_degrees_of_their_own() -> None:
    plan = with_meshes(strategy_of("x:2 y:1,1", dp=4, mbs=1), y=WIDE)
    assert plan.unequal
    assert plan.widths == (4, 4, 4)
    assert plan.devices == 12
    assert plan.on(1) == strategy_of("x:2 y:1,1", tp=2, dp=2, mbs=2)
    assert plan.on(0) == strategy_of("x:2 y:1,1", dp=4)
    assert [(mesh, len(groups)) for mesh, groups in plan.meshes] == [(Mesh(1, 1, 4), 1), (WIDE, 1)]
    assert plan.meshes_in_words == "tp 1 dp 4 on x, tp 2 dp 2 on y"
    assert plan.key() != strategy_of("x:2 y:1,1", dp=4).key()


def test_equal_degrees_are_the_plans_own() -> None:
    same = with_meshes(strategy_of("x:2 y:2", dp=4), y=Mesh(1, 1, 4))
    assert same == strategy_of("x:2 y:2", dp=4)
    assert not same.unequal
    turned = with_meshes(strategy_of("x:2 y:2", dp=4), x=WIDE)
    assert (turned.tp, turned.dp, turned.mbs) == (2, 2, 2)
    assert turned.groups[1].mesh == Mesh(1, 1, 4)


def test_flags_that_a_mesh_has_no_use_for_are_off_on_it() -> None:
    plan = with_meshes(strategy_of("x:2 y:2", tp=2, dp=2, flags="szf"), y=Mesh(tp=1, cp=1, dp=1))
    alone = plan.on(1)
    assert not alone.sequence_parallel
    assert not alone.distributed_optimizer
    assert alone.mbs == 2
    assert plan.on(0).sequence_parallel
    assert plan.on(0).distributed_optimizer
