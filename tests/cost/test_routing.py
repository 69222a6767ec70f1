"""Experts' communication: their own grid of devices, and what a layer of each kind sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpsolver.cost.comm import end_comm, layer_comm
from cpsolver.cost.kinds import LayerKind, kind_shares, layer_kinds
from cpsolver.cost.routing import expert_tensor_seconds, hidden_seconds, reordered_rows, routing_seconds
from cpsolver.cost.shard import Shard
from models_zoo import Architecture
from tests.support.problems import ideal, model_spec

HIDDEN = 2 * 1024 * 1024
"""Bytes of the hidden states of one sequence."""
NONE = np.zeros(1)
DENSE, EXPERTS = LayerKind(False, True), LayerKind(True, True)
INSIDE, OUTSIDE = 100e9, 12.5e9
LONG = np.array([1e3])
"""Seconds of a pass under which anything travels."""


def experts(**moe: Any) -> Architecture:
    made_of = {"experts": 8, "top_k": 2, "expert_ffn": 512, **moe}
    return Architecture.model_validate({"name": "experts", **model_spec(), "moe": made_of})


def shard(tp: int = 1, ep: int = 1, etp: int = 1, sequence: bool = True) -> Shard:
    return Shard.of(tp, 1, sequence, True, ep=ep, etp=etp)


@pytest.mark.parametrize("sequence", [True, False])
@pytest.mark.parametrize(("tp", "ep"), [(1, 4), (2, 4), (4, 2), (4, 1)])
def test_the_mean_over_kinds_is_one_exchange_a_visit_and_two_all_to_alls(tp: int, ep: int, sequence: bool) -> None:
    """With experts cut as the rest of the layer is; latencies and small payloads included."""
    slow = {"collective_latency_us": 20.0, "network_latency_us": 5.0, "collective_half_payload_mib": 1.0}
    stack = {"tensor_overlap": 0.1, "tensor_overlap_backward": 0.4, "routing_overlap": 0.2}
    problem, chip = ideal(slow, experts(first_dense=1), stack, gpus=8, node=4)
    given = shard(tp, ep, etp=tp, sequence=sequence)
    each = [layer_comm(problem, chip, given, NONE, kind, LONG) for kind in layer_kinds(problem.model)]
    shares = kind_shares(problem.model)
    tensor = (1 + 0.25 + 0.75 * 2) * end_comm(problem, chip, given)
    routed = 0.75 * routing_seconds(problem, chip, given)
    forward = sum(share * one.forward for share, one in zip(shares, each, strict=True))
    backward = sum(share * one.backward for share, one in zip(shares, each, strict=True))
    assert forward == pytest.approx(0.9 * tensor + routed)
    assert backward == pytest.approx((0.6 if sequence else 0.2) * tensor + routed)


def test_a_dense_layer_exchanges_twice_and_routes_nothing() -> None:
    problem, chip = ideal(model=experts())
    found = layer_comm(problem, chip, shard(tp=2, ep=2), NONE, DENSE, LONG)
    assert found.forward == found.backward == 2 * end_comm(problem, chip, shard(tp=2))


def test_whole_experts_have_no_tensor_exchange_of_their_own() -> None:
    problem, chip = ideal(model=experts())
    given = shard(tp=4, ep=4)
    assert expert_tensor_seconds(problem, chip, given) == 0
    found = layer_comm(problem, chip, given, NONE, EXPERTS, LONG)
    assert found.forward == end_comm(problem, chip, given) + routing_seconds(problem, chip, given)


def test_a_pair_that_shares_an_expert_gathers_what_two_devices_received() -> None:
    """Of tp 4 each rank routes a quarter of the tokens to two experts each: two quarters, twice, gathered and
    scattered."""
    problem, chip = ideal(model=experts())
    found = expert_tensor_seconds(problem, chip, shard(tp=4, ep=2, etp=2))
    assert found == pytest.approx(2 * (2 * HIDDEN / 4 * 2) / 2 / INSIDE)


def test_shared_experts_are_cut_by_tensor_parallelism_whatever_the_routed_ones_are() -> None:
    problem, chip = ideal(model=experts(shared_experts=1))
    assert expert_tensor_seconds(problem, chip, shard(tp=4)) == end_comm(problem, chip, shard(tp=4))


def test_a_device_routes_the_tokens_it_holds() -> None:
    problem, chip = ideal(model=experts())
    found = routing_seconds(problem, chip, shard(tp=2, ep=4))
    assert found == pytest.approx(2 * 2 * HIDDEN / 2 * 3 / 4 / INSIDE)


@pytest.mark.parametrize(
    ("tp", "ep", "etp", "held"), [(1, 4, 1, 1.0), (4, 4, 1, 0.25), (4, 1, 4, 0.25), (2, 2, 2, 0.5)]
)
def test_gathered_tokens_go_to_all_ranks_of_experts_and_back(tp: int, ep: int, etp: int, held: float) -> None:
    """Of so much of a sequence that each device holds; whatever a token's experts and their imbalance."""
    training = {"moe_dispatcher": "allgather", "expert_imbalance": 1.5}
    problem, chip = ideal(model=experts(), training=training)
    found = routing_seconds(problem, chip, shard(tp, ep, etp))
    assert found == pytest.approx(2 * held * HIDDEN * (ep * etp - 1) / INSIDE)
    assert expert_tensor_seconds(problem, chip, shard(tp, ep, etp)) == 0


def test_gathered_tokens_pass_over_all_nodes_of_their_ranks() -> None:
    problem, chip = ideal(model=experts(), gpus=8, node=4, training={"moe_dispatcher": "allgather"})
    found = routing_seconds(problem, chip, shard(ep=8))
    assert found == pytest.approx(2 * 8 * HIDDEN * 7 / 8 / (4 * OUTSIDE))


def test_one_rank_of_experts_gathers_nothing() -> None:
    problem, chip = ideal(model=experts(shared_experts=1), training={"moe_dispatcher": "allgather"})
    assert routing_seconds(problem, chip, shard(tp=4)) == 0
    assert expert_tensor_seconds(problem, chip, shard(tp=4)) == end_comm(problem, chip, shard(tp=4))


def test_groups_of_experts_inside_a_node_are_faster() -> None:
    """Four groups of one device fit into a node of 4; four of two devices do not, nor do eight of one."""
    problem, chip = ideal(model=experts(), gpus=8, node=4)
    near, wide, far = (routing_seconds(problem, chip, shard(2, ep, etp)) for ep, etp in ((4, 1), (4, 2), (8, 1)))
    routed = 2 * 2 * HIDDEN / 2
    assert near == pytest.approx(routed * 3 / 4 / INSIDE)
    assert wide == pytest.approx(routed / 2 / OUTSIDE)  # half of a token's experts are in the other node
    assert far == pytest.approx(routed / 2 / OUTSIDE)


def test_all_wait_for_the_device_whose_experts_are_asked_most() -> None:
    """1.5 times the mean travels to it; where every device holds all experts there is no such device."""
    even, skewed = (ideal(model=experts(), training={"expert_imbalance": load}) for load in (1.0, 1.5))
    for of, given, factor in (
        (routing_seconds, shard(tp=2, ep=4, etp=2), 1.5),
        (expert_tensor_seconds, shard(tp=2, ep=4, etp=2), 1.5),
        (expert_tensor_seconds, shard(tp=2, etp=2), 1.0),
    ):
        assert of(*skewed, given) == pytest.approx(factor * of(*even, given))


def test_a_capacity_factor_bounds_what_a_device_receives() -> None:
    training = {"expert_imbalance": 1.5, "expert_capacity_factor": 1.25}
    found, even = (routing_seconds(*ideal(model=experts(), training=given), shard(ep=4)) for given in (training, {}))
    assert found == pytest.approx(1.25 * even)


def test_an_exchange_hides_under_no_more_than_there_is_to_compute() -> None:
    """The stack's share of 4 s under 10 s of a pass, and of a pass of 1 s all of it."""
    problem, _ = ideal(stack={"routing_overlap": 0.8})
    overlapping = replace(shard(ep=2), expert_overlap=np.array([True]))
    exchange = np.array([4.0])
    assert hidden_seconds(problem, overlapping, exchange, np.array([10.0])) == pytest.approx(3.2)
    assert hidden_seconds(problem, overlapping, exchange, np.array([1.0])) == pytest.approx(1.0)
    assert hidden_seconds(problem, shard(ep=2), exchange, np.array([10.0])) == 0


@pytest.mark.parametrize(
    ("dispatcher", "ep", "etp", "rows"),
    [
        ("alltoall", 4, 1, 2 * (1 + 2) + 4 * 2),  # two experts a device: what arrives is sorted, and sorted back
        ("alltoall", 4, 2, 2 * (1 + 2) + 2 * 4 * 2),  # with the other's share, of which each has all
        ("alltoall", 8, 1, 2 * (1 + 2)),  # one expert a device: nothing to sort
        ("deepep", 8, 1, 2 * (8 * (1 - (7 / 8) ** 2) + 2)),  # read once on every rank that it reaches
        ("hybridep", 1, 1, 2 * (1 + 2)),
        (
            "allgather",
            4,
            1,
            4 * (1 - (3 / 4) ** 2) + 2 * 2 + 4,
        ),  # read where they reach; sums for the tokens of all four
        ("allgather", 2, 2, 2 * (2 * (1 - (1 / 2) ** 2) + 2 * 2 + 2)),
    ],
)
def test_rows_reordered_for_experts_by_dispatcher(dispatcher: str, ep: int, etp: int, rows: float) -> None:
    problem, _ = ideal(model=experts(), gpus=8, training={"moe_dispatcher": dispatcher})
    assert reordered_rows(problem, shard(ep=ep, etp=etp)) == pytest.approx(rows)
