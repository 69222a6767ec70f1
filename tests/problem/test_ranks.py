"""Rank maps against Megatron's documented orders, worked out by hand, and the command."""

from __future__ import annotations

import json

import pytest

from cpsolver.doors.export.report import members
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.ranks import RankMap, node_blocks, rank_map
from tests.support.command import in_tmp as in_tmp
from tests.support.command import run, write
from tests.support.problems import chip_spec, problem_of, strategy_of

EIGHT_STAGES = "x:" + ",".join(["1"] * 8)
FOUR_STAGES = "x:1,1,1,1"


def ranks(strategy: Strategy, experts: bool = False) -> dict[str, list[list[int]]]:
    found = RankMap(strategy, 8, experts, tied=True).groups
    return {kind: groups.tolist() for kind, groups in found.items()}


def test_the_sixteen_ranks_of_megatrons_own_example() -> None:
    found = ranks(strategy_of(FOUR_STAGES, tp=2, dp=2))
    assert found["tp"] == [[2 * i, 2 * i + 1] for i in range(8)]
    assert found["dp"] == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert found["pp"] == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    assert found["embedding"] == [[0, 12], [1, 13], [2, 14], [3, 15]]
    assert found["model"] == [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]


def test_experts_have_a_grid_of_their_own() -> None:
    found = ranks(strategy_of("x:2,2", tp=2, dp=2, cp=2, ep=4), experts=True)
    assert found["cp"][:2] == [[0, 2], [1, 3]]
    assert found["dp"][:2] == [[0, 4], [1, 5]]
    assert found["dp_cp"][0] == [0, 2, 4, 6]
    assert found["ep"][:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert found["edp"][:2] == [[0, 4], [1, 5]]
    assert found["etp"][:2] == [[0], [1]]


def test_a_dense_model_has_no_expert_groups() -> None:
    assert not {"ep", "etp", "edp"} & set(ranks(strategy_of(FOUR_STAGES, tp=2, dp=2)))


def test_neighbours_exchange_heads_and_the_ring_goes_around_them() -> None:
    found = ranks(strategy_of("x:4", tp=2, dp=1, cp=4, ulysses=2))
    assert found["cp"] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert found["cp_a2a"] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert found["cp_p2p"] == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_a_sharding_group_is_of_neighbouring_replicas() -> None:
    found = ranks(strategy_of("x:4", tp=2, dp=4, sharding_group=2))
    assert found["instance"] == [[0, 2], [1, 3], [4, 6], [5, 7]]


def seed_groups(world: int, tp: int, pp: int) -> dict[str, list[list[int]]]:
    """Groups by the arithmetic of strides: tp neighbours; dp every tp-th of a stage; pp every (world / pp)-th."""
    stage = world // pp
    return {
        "tp": [list(range(first, first + tp)) for first in range(0, world, tp)],
        "dp": [list(range(s * stage + i, (s + 1) * stage, tp)) for s in range(pp) for i in range(tp)],
        "pp": [list(range(first, world, stage)) for first in range(stage)],
    }


@pytest.mark.parametrize(("world", "pp"), [(64, 8), (96, 4), (128, 8), (160, 4), (192, 8), (224, 4)])
def test_worlds_of_64_to_224(world: int, pp: int) -> None:
    strategy = strategy_of(FOUR_STAGES if pp == 4 else EIGHT_STAGES, tp=8, dp=world // 8 // pp)
    found = ranks(strategy)
    expected = seed_groups(world, 8, pp)
    assert {kind: found[kind] for kind in expected} == expected


def test_every_rank_is_once_in_each_kind_of_group() -> None:
    strategy = strategy_of("x:2,2", tp=2, dp=4, cp=2, ep=4, etp=2)
    for kind, groups in ranks(strategy, experts=True).items():
        if kind != "embedding":
            assert sorted(rank for group in groups for rank in group) == list(range(32)), kind


def test_places_agree_with_groups() -> None:
    found = RankMap(strategy_of("x:2,2", tp=2, dp=4, cp=2, ep=4, etp=2), 8, experts=True, tied=False)
    for kind in ("tp", "cp", "dp", "pp", "ep", "etp", "edp"):
        for group in found.groups[kind].tolist():
            assert [getattr(found.place(rank), kind) for rank in group] == list(range(len(group))), kind


def test_mixed_chips_stand_in_the_order_of_the_stages() -> None:
    problem = problem_of({"a": chip_spec(), "b": chip_spec()}, gpus=16, node=4)
    strategy = strategy_of("a:1 b:2,1", tp=2, dp=2)
    blocks = node_blocks(problem, strategy)
    assert [(block.chip, list(block.nodes)) for block in blocks] == [("a", [0]), ("b", [1]), ("b", [2])]
    found = rank_map(problem, strategy)
    assert (found.place(3).chip, found.place(4).chip) == ("a", "b")
    assert (found.place(6).node, found.place(6).device) == (1, 2)


def test_small_stages_share_a_node() -> None:
    problem = problem_of(gpus=8, node=4)
    (first, second) = node_blocks(problem, strategy_of("x:1,1,1,1", tp=2, dp=1))
    assert (list(first.stages), list(second.stages)) == ([0, 1], [2, 3])


SPEC = """
model: llama2-7b
cluster: {num_gpus: 16, chips: h100}
training: {global_batch_size: 32, sequence_length: 4096}
"""
PLAN = """
tp: 2
dp: 2
mbs: 1
stages: [{chip: h100, layers: [8, 8, 8, 8]}]
"""


def test_the_command_shows_groups_and_nodes() -> None:
    result = run("ranks", write("spec.yaml", SPEC), "--plan", write("plan.yaml", PLAN))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert any(line.split()[:3] == ["pp", "4", "4"] and "[0 4 8 12]" in line for line in lines)
    assert any(line.split() == ["1", "h100", "2-3", "8", "×2", "8-15"] for line in lines)
    assert max(map(len, lines)) <= 80


def test_json_has_every_rank() -> None:
    result = run("ranks", write("spec.yaml", SPEC), "--plan", write("plan.yaml", PLAN), "--json")
    document = json.loads(result.stdout)
    assert document["world_size"] == 16
    assert document["groups"]["dp"][1] == [1, 3]
    assert document["ranks"][5] == {
        "rank": 5,
        "node": 0,
        "device": 5,
        "chip": "h100",
        "pp": 1,
        "dp": 0,
        "cp": 0,
        "tp": 1,
        "edp": 1,
        "ep": 0,
        "etp": 0,
    }


def test_without_a_plan_the_spec_is_solved() -> None:
    pinned = SPEC + "search: {pin: {tp: 4, pp: 2, dp: 2, cp: 1}}\n"
    document = json.loads(run("ranks", write("spec.yaml", pinned), "--json").stdout)
    assert document["groups"]["tp"][0] == [0, 1, 2, 3]
    assert document["groups"]["pp"][0] == [0, 8]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        (list(range(8)), "0-7"),
        (list(range(0, 64, 8)), "0-56 by 8"),
        ([0, 4, 8, 12], "0 4 8 12"),
        ([0, 1, 2, 3, 8, 9, 10, 11], "0-3 8-11"),
        ([0, 1, 4, 5, 8, 9, 12, 13, 16, 17], "0 1 4 5 ... 16 17"),
        ([5], "5"),
    ],
)
def test_groups_are_written_short(ranks: list[int], text: str) -> None:
    assert members(ranks) == text
