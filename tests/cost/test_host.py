"""What the host takes to launch a pass, by CUDA graphs and dispatcher, and what a pass then takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpsolver.cost.compute import layer_seconds, whole_pass
from cpsolver.cost.kinds import LayerKind, layer_kinds
from cpsolver.cost.routing import routing_seconds
from cpsolver.cost.shard import Candidates, Shard
from cpsolver.cost.tables import time_table
from cpsolver.problem.problem import Problem
from tests.support.problems import ideal, model_spec, strategy_of

MOE = {"experts": 8, "top_k": 4, "expert_ffn": 512, "first_dense": 1}
US = {"host_layer_us": 300, "host_expert_layer_us": 3500, "host_expert_layer_te_us": 900, "host_all_to_all_us": 3000}


def of(stack: dict[str, float] | None = None, **training: Any) -> Problem:
    given = {**US, **(stack or {})}
    return ideal(model=model_spec(layers=4, moe=MOE), gpus=8, node=4, stack=given, training=training)[0]


def host_us(problem: Problem, ep: int) -> list[int]:
    """Of a layer of each kind, dense first."""
    shard, chip = Shard.of(1, 1, False, True, ep=ep), problem.supplies[0].chip
    kinds = sorted(layer_kinds(problem.model), key=lambda kind: kind.experts)
    return [round(1e6 * layer_seconds(problem, chip, shard, kind).host.item()) for kind in kinds]


@pytest.mark.parametrize(
    ("training", "stack", "ep", "expected"),
    [
        ({}, {}, 1, [300, 3500]),
        ({}, {}, 8, [300, 6500]),
        ({"cuda_graph": "te"}, {}, 1, [300, 900]),
        ({"cuda_graph": "te"}, {}, 8, [300, 6500]),  # the host waits in every layer, whatever graphs replay
        ({"cuda_graph": "full"}, {}, 8, [0, 0]),
        ({"moe_dispatcher": "hybridep"}, {}, 8, [300, 3500]),
        ({"moe_dispatcher": "deepep", "cuda_graph": "te"}, {}, 8, [300, 900]),
        ({}, {"copies_once_per_node": 1}, 8, [300, 3500]),
        ({"moe_dispatcher": "alltoall"}, {"copies_once_per_node": 1}, 8, [300, 6500]),
        ({}, {"cuda_graph_scope": 1}, 1, [300, 900]),
        ({"cuda_graph": "none"}, {"cuda_graph_scope": 2}, 1, [300, 3500]),
        ({"moe_grouped_gemm": False}, {}, 2, [300, 6500 + 3 * 150]),  # four experts, one after another
        ({"moe_grouped_gemm": False}, {}, 8, [300, 6500]),
        ({"moe_grouped_gemm": False, "cuda_graph": "full"}, {}, 2, [0, 0]),
    ],
)
def test_host_time_of_a_pass(training: dict[str, Any], stack: dict[str, float], ep: int, expected: list[int]) -> None:
    assert host_us(of(stack, **training), ep) == expected


@pytest.mark.parametrize(("overlap", "expected"), [(0.0, 6500), (0.5, 3500)])
def test_the_host_waits_for_an_exchange_that_nothing_runs_beside(overlap: float, expected: int) -> None:
    """The search tries overlap only where the stack has it: a plan that says so elsewhere is no faster for it."""
    problem = of({"routing_overlap": overlap})
    shard = Shard.of(1, 1, False, True, ep=8, expert_overlap=True)
    (kind,) = [kind for kind in layer_kinds(problem.model) if kind.experts]
    assert round(1e6 * layer_seconds(problem, problem.supplies[0].chip, shard, kind).host.item()) == expected


def test_a_dense_pass_takes_the_longer_and_one_with_experts_feels_both() -> None:
    device, host = np.array([1.0, 2.0, 0.0]), np.array([2.0, 1.0, 3.0])
    assert whole_pass(LayerKind(experts=False, full_attention=True), device, host).tolist() == [2, 2, 3]
    felt = whole_pass(LayerKind(experts=True, full_attention=True), device, host)
    assert felt == pytest.approx([17**0.25, 17**0.25, 3.0])


def test_a_pass_is_never_shorter_than_device_or_host() -> None:
    eager, full = (of({"host_expert_layer_us": 3500}, cuda_graph=scope) for scope in ("none", "full"))
    row = Candidates.one(strategy_of("x:4", dp=8, ep=8), eager.batch)
    slow, fast = (time_table(each, each.supplies[0], row) for each in (eager, full))
    mean_host = 2 * (0.75 * 6500e-6 + 0.25 * 300e-6)  # three layers of four have experts
    assert slow.layer.item() > max(fast.layer.item(), 0.99 * mean_host)
    assert slow.layer.item() < fast.layer.item() + mean_host


@pytest.mark.parametrize(
    ("ep", "dispatcher", "copies"),
    [
        (4, "alltoall", 4.0),
        (4, "hybridep", 4 * (1 - 0.75**4)),  # one to each rank that has an expert of it
        (8, "alltoall", 4.0),
        (8, "deepep", 2 * (1 - 0.5**4)),  # one to each of two nodes
    ],
)
def test_copies_of_a_token_by_dispatcher(ep: int, dispatcher: str, copies: float) -> None:
    shard = Shard.of(1, 1, False, True, ep=ep)
    one, other = of(moe_dispatcher=dispatcher), of(moe_dispatcher="alltoall")
    seconds, usual = (routing_seconds(each, each.supplies[0].chip, shard).item() for each in (one, other))
    assert seconds / usual == pytest.approx(copies / 4, rel=1e-3)
