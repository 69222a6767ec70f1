"""What follows from a plan's decisions alone: places of embedding and head, and what makes two plans different."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.problems import strategy_of


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
