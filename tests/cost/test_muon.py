"""Muon's matrices, their seconds and where they lie: by hand, by the models' counts, by Megatron-LM's way to deal."""

from __future__ import annotations

from heapq import heapify, heapreplace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from cpsolver.cost import memory, states, whole_matrices
from cpsolver.cost.kinds import examples, kind_of_layers, layer_kinds
from cpsolver.cost.matrix_steps import Matrix, layer_matrices, orthogonalizing_seconds
from cpsolver.cost.shard import Candidates, Shard
from cpsolver.cost.tables import memory_table, time_table
from cpsolver.evaluation.evaluate import stage_memory
from cpsolver.problem.problem import Problem
from cpsolver.profiles.techniques import techniques
from models_zoo import architecture_names, load_architecture
from models_zoo.params import layer_parameters
from tests.support.problems import chip_spec, ideal, model_spec, problem_of, strategy_of

WHOLE = Shard.of(1, 1, False, True)


def of(model: Any = None, **training: Any) -> Problem:
    """On an ideal chip: 100 TFLOP/s whatever the depth of a product, 1 TB/s, no latency."""
    return ideal(model=model, stack={"gemm_half_depth": 0.0}, training={"optimizer": "muon", **training})[0]


def shapes(problem: Problem, shard: Shard = WHOLE, kind: int = 0) -> list[tuple[float, float, float, bool]]:
    found = layer_matrices(problem, shard, layer_kinds(problem.model)[kind])
    return [(each.rows.item(), each.columns.item(), each.count.item(), each.routed) for each in found]


def square(side: float, ranks: int = 1, **more: Any) -> Matrix:
    """A matrix of that side, its rows split over some ranks."""
    whole = np.array([side])
    return Matrix(whole / ranks, whole, whole, whole, np.ones(1), **more)


def test_every_weight_of_two_dimensions_is_a_matrix_of_its_own() -> None:
    problem = of(model_spec(kv_heads=2))
    assert shapes(problem) == [
        (1024 + 2 * 256, 1024, 1, False),  # queries, keys and values in one
        (1024, 1024, 1, False),
        (2 * 2816, 1024, 1, False),  # gate and up in one
        (1024, 2816, 1, False),
    ]
    assert shapes(problem, Shard.of(2, 1, False, True))[2:] == [(2816, 1024, 1, False), (1024, 1408, 1, False)]


def test_each_expert_of_a_device_is_two_matrices_and_the_router_one() -> None:
    moe = {"experts": 8, "top_k": 2, "expert_ffn": 512}
    found = shapes(of(model_spec(moe=moe)), Shard.of(2, 1, True, True, ep=4, etp=2))
    assert found[2:] == [(8, 1024, 1, False), (2 * 256, 1024, 2, True), (1024, 256, 2, True)]


@pytest.mark.parametrize("name", architecture_names())
def test_matrices_are_nearly_all_of_a_layer_and_never_more(name: str) -> None:
    """What is left: norms, biases, convolutions, constants of heads."""
    problem = problem_of({"x": chip_spec()}, name, 1, 1, training={"optimizer": "muon"})
    for kind, index in enumerate(examples(problem.model)):
        counted = sum(rows * columns * count for rows, columns, count, _ in shapes(problem, kind=kind))
        assert 0.995 < counted / layer_parameters(problem.model, index).total <= 1


def test_iterations_take_three_products_each() -> None:
    """2048 by 8192: 5 x (4 x 2048^2 x 8192 + 2 x 2048^3) = 7.73e11 FLOP at 100 TFLOP/s; 82 bytes an element."""
    problem = of()
    chip, side = problem.supplies[0].chip, np.array([2048.0])
    matrix = Matrix(side, 4 * side, side, 4 * side, np.ones(1))
    products, traffic = 5 * (4 * 2048**2 * 8192 + 2 * 2048**3) / 1e14, 82 * 2048 * 8192 / 1e12
    found = orthogonalizing_seconds(problem, chip, WHOLE, matrix).item()
    assert found == pytest.approx(products + traffic, rel=1e-3)
    assert orthogonalizing_seconds(problem, chip, WHOLE, square(128)).item() == 270e-6  # the host's launches


def test_queries_keys_and_values_are_orthogonalized_apart() -> None:
    """Three of 1024 by 4096 take less than one of 3072 by 4096."""
    problem = of()
    chip, long = problem.supplies[0].chip, np.array([4096.0])
    rows, one = np.array([3072.0]), np.ones(1)
    whole, thirds = (
        orthogonalizing_seconds(problem, chip, WHOLE, Matrix(rows, long, rows, long, one, pieces=pieces)).item()
        for pieces in ((1.0,), (1 / 3,) * 3)
    )
    flops = [4 * side**2 * 4096 + 2 * side**3 for side in (3072, 1024)]
    assert whole - thirds == pytest.approx(5 * (flops[0] - 3 * flops[1]) / 1e14, rel=1e-3)


def test_the_ways_of_a_split_matrix() -> None:
    """4096 squared over 4 neighbours at 100 GB/s: 5 x 6 x 4096^3 FLOP whole, a share alone 5 x (4 x 1024^2 x 4096 +
    2 x 1024^3), together 5 x (4 x 4096^2 x 1024 + 2 x 4096^3)."""
    shard, matrix = Shard.of(4, 1, True, True), square(4096, 4)
    own, whole = 1024 * 4096, 4096**2
    found = {}
    for mode in ("blockwise", "duplicated", "distributed"):
        problem = of(muon_tp_mode=mode)
        found[mode] = orthogonalizing_seconds(problem, problem.supplies[0].chip, shard, matrix).item()
    alone = 5 * (4 * 1024**2 * 4096 + 2 * 1024**3) / 1e14 + 82 * own / 1e12
    gathered = 30 * 4096**3 / 1e14 + (58 * own + 32 * whole) / 1e12 + 3 / 4 * 4 * whole / 1e11
    summed = 2 * 3 / 4 * 2 * whole / 1e11  # all-reduce of a Gram matrix in bf16
    together = 5 * ((4 * 4096**2 * 1024 + 2 * 4096**3) / 1e14 + summed) + 82 * own / 1e12
    assert found == pytest.approx({"blockwise": alone, "duplicated": gathered, "distributed": together}, rel=1e-3)


def test_a_matrix_that_no_rank_shares_is_the_same_in_all_ways() -> None:
    shard = Shard.of(4, 1, True, True)
    modes = ("blockwise", "duplicated", "distributed")
    found = {orthogonalizing_seconds(p, p.supplies[0].chip, shard, square(2048)).item() for p in map(_of_mode, modes)}
    assert len(found) == 1


def _of_mode(mode: str) -> Problem:
    return of(muon_tp_mode=mode)


# Over replicas.


def rows_of(**degrees: Any) -> Candidates:
    return Candidates.one(strategy_of(**degrees), 64)


FOUR = model_spec(layers=4, hidden=1024, ffn=4096, gated_mlp=False, activation="gelu")
"""A layer: 3 x 1, 1 x 1, 4 x 1 and 1 x 4 Mi elements, 12 in all."""
MI = 1024**2


@pytest.mark.parametrize(
    ("degrees", "longest"),
    [
        ({"dp": 2}, 24),  # all 48 Mi cut evenly
        ({"dp": 8}, 6),  # the mean; one of each of the eight largest is 4 Mi
        ({"dp": 16}, 4),  # the mean is 3 Mi, and a matrix 4
        ({"groups": "x:2,2", "dp": 4}, 6),  # 24 Mi a stage
        ({"groups": "x:2,2", "dp": 4, "vpp": 2}, 8),  # two chunks of 12 Mi, each with a matrix of 4
        ({"dp": 16, "flags": "f"}, 48),  # held whole, without padding
    ],
    ids=str,
)
def test_the_longest_part_of_the_buffers(degrees: dict[str, Any], longest: float) -> None:
    problem, rows = of(FOUR), rows_of(**degrees)
    parts = memory.stage_parameters(problem, rows)
    found = whole_matrices.buffers(problem, rows, parts)
    assert found.matrices is not None
    pp = rows.pp.item()
    assert (found.matrices.layer * 4 / pp / rows.shards).item() == pytest.approx(longest * MI)
    beside = parts.layer - 12 * MI
    assert (found.held.layer - found.matrices.layer).item() == pytest.approx(beside.item())
    table = memory_table(problem, rows)
    # 6 bytes and 8 of the optimizer's over the ranks; 12 of those of norms and biases.
    states_of = found.matrices.layer * (6 + 8 / rows.shards) + beside * (6 + 12 / rows.shards)
    assert table.layer_states.item() == pytest.approx(states_of.item())


def test_experts_lie_on_the_ranks_that_share_them() -> None:
    """Four experts a device of 1 Mi and 2 Mi elements, of two replicas: 6 Mi each; the rest is split over eight."""
    model = model_spec(layers=1, moe={"experts": 16, "top_k": 1, "expert_ffn": 1024}, gated_mlp=True)
    problem, rows = of(model), rows_of(groups="x:1", dp=8, ep=4)
    found = whole_matrices.buffers(problem, rows, memory.stage_parameters(problem, rows))
    assert found.matrices is not None
    assert found.matrices.experts.item() == 4 * 3 * MI
    assert found.matrices.layer.item() == 8 * 3 * MI  # of 3, 1 and 1/64 Mi, each whole on a rank


def test_a_step_takes_what_the_fullest_rank_has() -> None:
    problem, rows = of(FOUR), rows_of(dp=16)
    chip, table = problem.supplies[0].chip, time_table(problem, problem.supplies[0], rows)
    each = {
        shape[:2]: orthogonalizing_seconds(problem, chip, WHOLE, matrix).item()
        for shape, matrix in zip(
            shapes(problem), layer_matrices(problem, WHOLE, layer_kinds(problem.model)[0]), strict=True
        )
    }
    longest = max(each.values())  # 16 matrices for 16 ranks
    adam = states.optimizer_seconds(problem, chip, memory.stage_parameters(problem, rows).layer - 12 * MI) / 16
    assert 4 * table.update_layer.item() == pytest.approx(longest + 4 * adam.item())
    plain = time_table(problem, problem.supplies[0], rows_of(dp=16, flags="f"))
    assert plain.update_layer.item() == pytest.approx(sum(each.values()) + 16 * adam.item())


def test_modules_that_predict_more_tokens_are_orthogonalized_too() -> None:
    problem = of({**FOUR, "mtp_layers": 1})
    rows = rows_of(groups="x:2,2", dp=1)
    chip, found = problem.supplies[0].chip, time_table(problem, problem.supplies[0], rows)
    rows_of_it, columns = np.array([1024.0]), np.array([2048.0])
    joined = Matrix(rows_of_it, columns, rows_of_it, columns, np.ones(1))
    step = orthogonalizing_seconds(problem, chip, WHOLE, joined).item()
    module = memory.stage_parameters(problem, rows).last - memory.stage_parameters(of(FOUR), rows).last
    table = 4096 * 1024  # padded rows of the embedding that the module looks up
    vectors = module.item() - 12 * MI - 2 * MI - table
    without = time_table(of(FOUR), of(FOUR).supplies[0], rows)
    more = (found.update_last - without.update_last).item()
    layer_vectors = memory.stage_parameters(problem, rows).layer.item() - 12 * MI
    adam = states.optimizer_seconds(problem, chip, np.array([table + vectors - layer_vectors])).item()
    assert more == pytest.approx(found.update_layer.item() + step + adam, rel=1e-6)


def test_the_evaluation_has_the_bytes_of_the_table() -> None:
    problem, plan = of(FOUR), strategy_of(dp=8)
    rows = Candidates.one(plan, problem.batch)
    table, (stage,) = memory_table(problem, rows), stage_memory(problem, plan)
    wanted = 4 * table.layer_states + table.first_states + table.last_states
    assert stage.weights + stage.gradients + stage.optimizer == pytest.approx(wanted.item(), rel=1e-12)


# Against Megatron-LM's own way.


def longest_first(sizes: list[float], ranks: int) -> float:
    """The fullest rank where each matrix, the largest first, goes to the rank that has least."""
    loads = [0.0] * ranks
    heapify(loads)
    for size in sorted(sizes, reverse=True):
        heapreplace(loads, loads[0] + size)
    return max(loads)


LAYOUTS = [
    ("llama2-7b", {"dp": 8}),
    ("llama2-7b", {"dp": 64}),
    ("llama2-7b", {"dp": 256}),
    ("llama2-70b", {"tp": 4, "pp": 4, "dp": 8}),
    ("llama2-70b", {"tp": 4, "pp": 4, "dp": 64}),
    ("qwen3-30b-a3b", {"dp": 16, "ep": 8}),
    ("qwen3-30b-a3b", {"pp": 4, "dp": 16, "ep": 8}),
    ("qwen3-next-80b-a3b", {"pp": 4, "dp": 32, "ep": 8}),
    ("glm4.5-355b-a32b", {"pp": 8, "dp": 64, "ep": 16}),
]


@pytest.mark.parametrize(("name", "degrees"), LAYOUTS, ids=str)
@pytest.mark.parametrize("routed", [False, True], ids=["dense", "routed"])
def test_the_fullest_rank_is_that_of_the_largest_first(name: str, degrees: dict[str, int], routed: bool) -> None:
    """Never fuller by formula than as Megatron-LM deals matrices out, and less full by an eighth at most."""
    model = load_architecture(name)
    if routed and model.moe is None:
        pytest.skip("no experts")
    pp = degrees.get("pp", 1)
    ends = [round(model.layers * stage / pp) for stage in range(pp + 1)]
    groups = "x:" + ",".join(str(end - begin) for begin, end in pairwise(ends))
    sizes: dict[str, Any] = {name: size for name, size in degrees.items() if name != "pp"}
    plan = strategy_of(groups, **sizes)
    problem = problem_of({"x": chip_spec()}, name, plan.devices, 8, 1024, training={"optimizer": "muon"})
    rows = Candidates.one(plan, 1024)
    shard, ranks = rows.shard, (rows.expert_shards if routed else rows.shards).item()
    loads = []
    for begin, end in pairwise(ends):
        held = [size for index in range(begin, end) for size in _sizes(problem, shard, index, routed)]
        loads.append(longest_first(held, ranks) / (end - begin))
    found = whole_matrices.buffers(problem, rows, memory.stage_parameters(problem, rows)).matrices
    assert found is not None
    by_formula = ((found.experts if routed else found.layer) / ranks).item()
    assert 1 - 1e-9 <= float(np.median(loads)) / by_formula <= 1.13


def _sizes(problem: Problem, shard: Shard, index: int, routed: bool) -> list[float]:
    kind = layer_kinds(problem.model)[kind_of_layers(problem.model)[index]]
    found = [each for each in layer_matrices(problem, shard, kind) if each.routed == routed]
    return [size for each in found for size in [each.elements.item()] * round(each.count.item())]


def test_fewer_bytes_than_adams_where_nothing_is_padded() -> None:
    """One momentum instead of two: 4 bytes a matrix's element over the ranks (arXiv:2502.16982: half of Adam's)."""
    adam, of_muon = ideal(model=FOUR)[0], of(FOUR)
    rows = rows_of(dp=2)
    less = (memory_table(adam, rows).layer_states - memory_table(of_muon, rows).layer_states).item()
    assert less == pytest.approx(12 * MI * 4 / 2)
    assert techniques().optimizers["muon"].moment_bytes == techniques().optimizers["adam"].moment_bytes / 2


DENSE_FIRST = model_spec(
    layers=8,
    hidden=1024,
    ffn=8192,
    gated_mlp=False,
    activation="gelu",
    moe={"experts": 8, "top_k": 1, "expert_ffn": 1024, "first_dense": 1},
)
"""A layer: 3 and 1 Mi elements of attention; the first 8 and 8 Mi of a dense block, the others a router's 1/128 Mi."""


def test_the_first_stage_has_what_its_dense_layers_take_more() -> None:
    """Stages of two layers over 8 ranks: attention's matrices are of 3 Mi elements at most, and the first stage alone
    has two of 8 Mi, its dense block's: 8 Mi a rank."""
    problem, rows = of(DENSE_FIRST), rows_of(groups="x:2,2,2,2", dp=8)
    parts = memory.stage_parameters(problem, rows)
    found = whole_matrices.buffers(problem, rows, parts)
    assert found.matrices is not None
    kinds = layer_kinds(problem.model)
    dense = next(index for index, kind in enumerate(kinds) if kind.dense)
    counts = np.array([1, 1])
    held = found.matrices.layer * 2 + (found.matrices.kind_layer * counts[:, None]).sum(axis=0)
    assert dense in (0, 1)
    assert (held + found.matrices.encoder).item() == pytest.approx(8 * 8 * MI)
    assert (found.held.encoder - found.matrices.encoder).item() == 0
    table, plain = (time_table(each, each.supplies[0], rows) for each in (problem, of(FOUR)))
    chip = problem.supplies[0].chip
    longest = orthogonalizing_seconds(problem, chip, WHOLE, shapes_of(problem, dense)[2]).item()
    matrices = whole_matrices.LayerMatrices(problem, rows)
    of_experts = matrices.busiest_first(matrices.seconds(chip), True)[0].item()
    step = whole_matrices.matrix_seconds(problem, chip, rows)
    assert (2 * step.layer + step.first).item() == pytest.approx(longest + of_experts)
    assert table.update_first.item() > plain.update_first.item()
    usual, stages = of(FOUR), rows_of(groups="x:2,2", dp=8)
    assert not whole_matrices.buffers(usual, stages, memory.stage_parameters(usual, stages)).held.encoder.any()


def shapes_of(problem: Problem, kind: int) -> list[Matrix]:
    return layer_matrices(problem, WHOLE, layer_kinds(problem.model)[kind])


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("kimi-k2-1t", {"tp": 8, "pp": 16, "dp": 128, "ep": 16}),
        ("kimi-k2-1t", {"pp": 16, "dp": 128, "ep": 32}),
        ("deepseek-v2-lite", {"pp": 4, "dp": 32, "ep": 8}),
        ("glm4.5-355b-a32b", {"pp": 8, "dp": 64, "ep": 16}),
    ],
    ids=str,
)
def test_the_first_stage_is_padded_as_megatron_deals_its_matrices(name: str, degrees: dict[str, int]) -> None:
    """By formula never more, and an eighth less at most, of stages as long as the mean one."""
    model, pp = load_architecture(name), degrees["pp"]
    ends = [round(model.layers * stage / pp) for stage in range(pp + 1)]
    groups = "x:" + ",".join(str(end - begin) for begin, end in pairwise(ends))
    sizes_of: dict[str, Any] = {size: value for size, value in degrees.items() if size != "pp"}
    plan = strategy_of(groups, flags="fzs", **sizes_of)
    problem = problem_of({"x": chip_spec()}, name, plan.devices, 8, 1024, training={"optimizer": "muon"})
    rows = Candidates.one(plan, 1024)
    ranks = rows.shards.item()
    length = model.layers / pp
    sizes = [size for index in range(round(length)) for size in _sizes(problem, rows.shard, index, False)]
    matrices = whole_matrices.LayerMatrices(problem, rows)
    found = matrices.busiest_first(matrices.sizes, False)[0].item()
    assert 0.95 <= longest_first(sizes, ranks) / found <= 1.13
