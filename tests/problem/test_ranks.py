"""Rank maps against Megatron's documented orders, worked out by hand, and the command."""

from __future__ import annotations

import json

import pytest

from cpsolver.doors.export.report import members
from cpsolver.plans.strategy import Mesh, Strategy
from cpsolver.problem.ranks import MeshMap, RankMap, node_blocks, rank_map
from tests.support.command import in_tmp as in_tmp
from tests.support.command import run, write
from tests.support.problems import chip_spec, problem_of, strategy_of, with_meshes

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


# Degrees by chip type

TWO_CHIPS = {"x": chip_spec(), "y": chip_spec()}
WIDER = with_meshes(strategy_of("x:2 y:1,1", dp=4, mbs=2, flags="szf"), y=Mesh(tp=2, cp=1, dp=2))
"""Ranks 0-3 on x, then two stages of 4 on y, the first pair of ranks and then the second one replica each."""


def mesh_map(s: Strategy, experts: bool = False) -> MeshMap:
    return MeshMap(s, 4, experts, tied=True)


def test_meshes_stand_one_after_the_other() -> None:
    x, y = mesh_map(WIDER).meshes
    assert (x.ranks, y.ranks, x.stages, y.stages) == (range(4), range(4, 12), range(1), range(1, 3))
    assert x.groups["dp"].tolist() == [[0, 1, 2, 3]]
    assert y.groups["tp"].tolist() == [[4, 5], [6, 7], [8, 9], [10, 11]]
    assert y.groups["dp"].tolist() == [[4, 6], [5, 7], [8, 10], [9, 11]]
    assert not {"pp", "model", "embedding"} & set(y.groups)


def test_ranks_send_to_whom_their_piece_overlaps() -> None:
    found = mesh_map(WIDER)
    (border,) = found.borders
    assert (border.before, border.after) == (0, 1)
    # x's replicas 0 and 1 are y's first, and each of y's two ranks there takes half of the sequence
    assert border.pairs.tolist() == [[0, 4], [0, 5], [1, 4], [1, 5], [2, 6], [2, 7], [3, 6], [3, 7]]
    assert found.groups["pp"].tolist()[:3] == [[0, 4, 8], [0, 5, 9], [1, 4, 8]]
    assert len(found.groups["pp"]) == 8
    assert found.groups["model"].tolist()[2] == [2, 6, 7, 10, 11]
    assert found.groups["embedding"].tolist()[:3] == [[0, 8], [0, 9], [1, 8]]


def test_the_border_starts_at_the_last_stage() -> None:
    turned = mesh_map(with_meshes(strategy_of("x:1,1 y:2", tp=2, dp=2, flags="szf"), y=Mesh(tp=1, cp=1, dp=4)))
    (border,) = mesh_map(
        with_meshes(strategy_of("x:1,1 y:2", tp=2, dp=2, mbs=2, flags="szf"), y=Mesh(tp=1, cp=1, dp=4))
    ).borders
    assert border.pairs.tolist() == [[4, 8], [4, 9], [5, 8], [5, 9], [6, 10], [6, 11], [7, 10], [7, 11]]
    assert turned.groups["pp"][0].tolist() == [0, 4, 8]


def test_dp_that_do_not_divide_each_other_overlap_in_part() -> None:
    s = with_meshes(strategy_of("x:2 y:2", dp=3, mbs=2), y=Mesh(tp=1, cp=1, dp=2))
    assert mesh_map(s).borders[0].pairs.tolist() == [[0, 3], [1, 3], [1, 4], [2, 4]]


def test_context_parallel_ranks_are_pieces_of_the_sequence_too() -> None:
    s = with_meshes(strategy_of("x:2 y:2", tp=1, cp=2, dp=1, mbs=2, flags="sf"), y=Mesh(tp=4, cp=1, dp=1))
    found = mesh_map(s)
    assert found.borders[0].pairs.tolist() == [[0, 2], [0, 3], [1, 4], [1, 5]]
    assert found.groups["model"].tolist() == [[0, 2, 3, 4, 5], [1, 2, 3, 4, 5]]


def test_three_meshes_make_every_way_a_group() -> None:
    s = with_meshes(
        strategy_of("x:2 y:1 z:1", tp=1, dp=2, flags="szf"), y=Mesh(tp=2, cp=1, dp=1), z=Mesh(tp=1, cp=1, dp=2)
    )
    found = mesh_map(s)
    assert [border.pairs.tolist() for border in found.borders] == [
        [[0, 2], [0, 3], [1, 2], [1, 3]],
        [[2, 4], [2, 5], [3, 4], [3, 5]],
    ]
    assert found.groups["pp"].tolist() == [[a, b, c] for a in (0, 1) for b in (2, 3) for c in (4, 5)]
    assert found.groups["embedding"].tolist() == [[0, 4], [0, 5], [1, 4], [1, 5]]


def test_experts_have_a_grid_in_every_mesh() -> None:
    s = with_meshes(strategy_of("x:2 y:2", tp=2, dp=4, ep=4, etp=2, flags="szf"), y=Mesh(2, 1, 2, ep=2))
    x, y = mesh_map(s, experts=True).meshes
    assert x.groups["ep"].tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert y.groups["ep"].tolist() == [[8, 9], [10, 11]]
    assert y.groups["edp"].tolist() == [[8, 10], [9, 11]]


@pytest.mark.parametrize("groups", ["x:2 y:2", "x:1,1 y:2", "x:1,1 y:1,1"])
def test_equal_meshes_have_the_groups_of_one_grid(groups: str) -> None:
    s = strategy_of(groups, tp=2, dp=4, cp=2, ep=4, etp=2, flags="szf")
    whole, parts = RankMap(s, 4, True, True).groups, mesh_map(s, experts=True)
    found = {kind: rows.tolist() for kind, rows in parts.groups.items()}
    for kind in whole.keys() - found.keys():
        found[kind] = [group for mesh in parts.meshes for group in mesh.groups[kind].tolist()]
    assert {kind: sorted(rows) for kind, rows in found.items()} == {
        kind: sorted(rows.tolist()) for kind, rows in whole.items()
    }


def test_places_and_nodes_follow_the_widths_of_the_stages() -> None:
    problem = problem_of(TWO_CHIPS, gpus=12, node=4)
    found = rank_map(problem, WIDER)
    assert isinstance(found, MeshMap)
    assert [place.rank for place in found.places()] == list(range(12))
    last = found.place(11)
    assert (last.node, last.device, last.chip, last.pp, last.dp, last.tp) == (2, 3, "y", 2, 1, 1)
    assert [(found.place(rank).pp, found.place(rank).dp) for rank in (0, 3, 4, 6, 8)] == [
        (0, 0),
        (0, 3),
        (1, 0),
        (1, 1),
        (2, 0),
    ]
    blocks = node_blocks(problem, with_meshes(strategy_of("x:2 y:1,1", dp=4, mbs=2), y=Mesh(tp=4, cp=1, dp=4)))
    assert [(block.chip, list(block.nodes), list(block.stages)) for block in blocks] == [
        ("x", [0], [0]),
        ("y", [1, 2, 3, 4], [1]),
        ("y", [5, 6, 7, 8], [2]),
    ]
    narrow = node_blocks(problem, with_meshes(strategy_of("x:2 y:1,1", dp=4, mbs=2), y=Mesh(tp=1, cp=1, dp=2)))
    assert [(block.chip, list(block.stages)) for block in narrow] == [("x", [0]), ("y", [1, 2])]


MIXED_SPEC = """
model: llama2-7b
cluster: {num_gpus: 32, chips: {h100: 16, a100: 16}}
training: {global_batch_size: 32, sequence_length: 4096}
launcher: flagscale
"""
MESHES_PLAN = """
tp: 2
dp: 8
mbs: 1
sequence_parallel: true
stages: [{chip: h100, layers: [20]}, {chip: a100, layers: [12], mesh: {tp: 4, dp: 4}}]
"""


def test_the_command_shows_groups_by_mesh_and_the_border() -> None:
    result = run("ranks", write("spec.yaml", MIXED_SPEC), "--plan", write("plan.yaml", MESHES_PLAN))
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "h100, ranks 0-15, stages 0: tp 2, cp 1, dp 8, pp 1" in lines
    assert any(line.split()[:4] == ["tp", "4", "4", "[16-19]"] for line in lines)
    assert any(line.startswith("h100 -> a100  0 -> 16 17; 1 -> 18 19; 2 -> 16 17") for line in lines)
    assert any(line.split() == ["2-3", "a100", "1", "12", "16-31"] for line in lines)
    assert max(map(len, lines)) <= 80


def test_json_has_the_meshes_and_the_border() -> None:
    result = run("ranks", write("spec.yaml", MIXED_SPEC), "--plan", write("plan.yaml", MESHES_PLAN), "--json")
    document = json.loads(result.stdout)
    assert [mesh["chip"] for mesh in document["meshes"]] == ["h100", "a100"]
    assert document["meshes"][1]["groups"]["tp"][0] == [16, 17, 18, 19]
    assert document["meshes"][1]["ranks"] == list(range(16, 32))
    assert document["borders"][0]["sends"][2] == {"rank": 2, "to": [16, 17]}
    assert set(document["groups"]) == {"pp", "model"}
    assert set(document["meanings"]) == {"pp", "model", "tp", "cp", "dp", "dp_cp"}
    assert document["ranks"][31]["tp"] == 3
