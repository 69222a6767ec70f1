"""Networks of several levels: collectives, hops and links between chip types, worked out by hand.

Chips reach 100 GB/s in nodes of 4 and 12.5 GB/s (100 Gbit/s) out of them, without latency unless a test says so.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from cpsolver.cost.collectives import Collective, collective_seconds, tiers
from cpsolver.cost.hops import FarHops
from cpsolver.cost.shard import Candidates
from cpsolver.cost.stage import ChipTimes, Pipelines
from cpsolver.cost.tables import TimeTable, time_table
from cpsolver.problem.problem import Problem
from hw_specs import Chip
from tests.support.networks import on_network
from tests.support.problems import IDEAL, chip_spec, ideal, problem_of, strategy_of

PAYLOAD = 1e9
RACKS = [{"name": "rack", "devices": 16}, {"name": "pod", "oversubscription": 8}]


def around(network: dict[str, Any], efficiency: dict[str, float] | None = None) -> tuple[Problem, Chip]:
    problem, _ = ideal(efficiency, gpus=64, node=4)
    found = on_network(problem, network)
    return found, found.supplies[0].chip


def seconds(network: dict[str, Any], kind: Collective, size: int, stride: int, **latencies: float) -> float:
    problem, chip = around(network, latencies)
    payload = np.array([PAYLOAD])
    return float(collective_seconds(problem, chip, kind, payload, np.array([size]), np.array([stride]))[0])


@pytest.mark.parametrize(
    ("size", "stride", "bandwidth"),
    [
        (4, 1, 100e9),  # inside a node
        (16, 1, 50e9),  # four adapters out of each node
        (32, 1, 25e9),  # 16 ranks share a rack's uplinks, an eighth of 12.5 GB/s each
        (4, 4, 12.5e9),  # one rank in a node, all in a rack
        (8, 4, 6.25e9),  # four ranks in a rack
        (4, 16, 12.5e9 / 8),  # one rank in a rack
    ],
)
def test_a_ring_has_the_bandwidth_of_the_narrowest_border_it_crosses(size: int, stride: int, bandwidth: float) -> None:
    expected = (size - 1) / size * PAYLOAD / bandwidth
    assert seconds({"levels": RACKS}, "all_gather", size, stride) == pytest.approx(expected)
    assert seconds({"levels": RACKS}, "all_reduce", size, stride) == pytest.approx(2 * expected)


def test_in_an_all_to_all_each_rank_sends_over_its_own_share_of_every_border() -> None:
    # 32 ranks: of the payload 28/32 leaves the node over 12.5 GB/s, 16/32 the rack over an eighth of that.
    expected = max(28 / 32 / 12.5e9, 16 / 32 / (12.5e9 / 8)) * PAYLOAD
    assert seconds({"levels": RACKS}, "all_to_all", 32, 1) == pytest.approx(expected)
    assert seconds({"levels": RACKS[:1]}, "all_to_all", 32, 1) == pytest.approx(28 / 32 / 12.5e9 * PAYLOAD)


def test_latency_is_that_of_each_level_for_the_hops_through_it() -> None:
    levels = [{"name": "rack", "devices": 16}, {"name": "pod", "extra_latency_us": 5.0}]
    # 64 ranks in 16 nodes: 4 hops, the first 2 of them between the four racks.
    slow = seconds({"levels": levels}, "all_gather", 64, 1, network_latency_us=10.0)
    fast = seconds({"levels": levels}, "all_gather", 64, 1)
    assert slow - fast == pytest.approx(4 * 10e-6, rel=1e-3)  # of which nothing depends on the extra latency
    assert fast - seconds({}, "all_gather", 64, 1) == pytest.approx(2 * 5e-6, rel=1e-3)


def test_switches_that_sum_send_each_byte_once() -> None:
    plain: dict[str, Any] = {}
    summed = {"in_network_reduction": True}
    assert seconds(plain, "all_reduce", 8, 4) == pytest.approx(2 * 7 / 8 * PAYLOAD / 12.5e9)
    assert seconds(summed, "all_reduce", 8, 4) == pytest.approx(PAYLOAD / 12.5e9)
    assert seconds(summed, "all_reduce", 4, 1) == seconds(plain, "all_reduce", 4, 1)  # inside a node: no such switch
    assert seconds(summed, "all_gather", 8, 4) == seconds(plain, "all_gather", 8, 4)


def test_what_is_given_of_adapters_and_domain_is_in_the_chip() -> None:
    _, chip = around({"nics_per_node": 2, "nic_gbit_s": 400, "oversubscription": 2, "efficiency": 0.5})
    assert chip.scale_out.bandwidth_gbit_s == 100.0  # two of 400 for four devices, halved
    assert chip.efficiency_value("network") == 0.5
    problem, chip = around({"domain": {"devices": 16, "gb_s": 900, "efficiency": 0.7, "latency_us": 3}})
    assert (chip.scale_up_bandwidth_bytes_s, chip.peer_bandwidth_bytes_s) == (900e9, 900e9)
    assert (chip.fast_domain(4), chip.efficiency_value("all_to_all")) == (16, 0.7)
    assert chip.collective_latency_s == pytest.approx(3e-6)
    assert [(tier.unit, tier.devices) for tier in tiers(problem, chip)] == [(16, 2**30)]


def test_levels_within_a_fast_domain_cost_nothing_and_their_oversubscription_counts_further_out() -> None:
    levels = [{"name": "half", "devices": 8, "oversubscription": 2}, {"name": "all"}]
    problem, chip = around({"levels": levels, "domain": {"devices": 16}})
    (only,) = tiers(problem, chip)
    assert (only.name, only.unit, only.bandwidth_bytes_s) == ("all", 16, 6.25e9)


def columns(problem: Problem) -> dict[str, Any]:
    rows = Candidates.one(strategy_of("x:1,1,1,1", tp=2, dp=8), problem.batch)
    table = time_table(problem, problem.supplies[0], rows)
    return {field.name: getattr(table, field.name) for field in fields(TimeTable)}


@pytest.mark.parametrize("network", [{}, {"levels": [{"name": "rack", "devices": 16}, {"name": "pod"}]}])
def test_a_network_that_says_nothing_new_changes_no_number(network: dict[str, Any]) -> None:
    problem, _ = ideal({"network_latency_us": 10.0, "collective_latency_us": 20.0}, gpus=64, node=4)
    plain, around_it = columns(problem), columns(on_network(problem, network))
    assert all((plain[name] == around_it[name]).all() for name in plain)
    assert FarHops.of(problem, list(problem.supplies), Candidates.one(strategy_of(), problem.batch)) is None


def transfers(problem: Problem, groups: str, tp: int, dp: int, vpp: int = 1) -> tuple[list[float], float]:
    """Seconds of a transfer to each next stage, and from the last back to the first."""
    strategy = strategy_of(groups, tp=tp, dp=dp, vpp=vpp)
    row, used = Candidates.one(strategy, problem.batch), list(dict.fromkeys(strategy.stage_chips))
    supplies = [problem.supply(name) for name in used]
    tables = ChipTimes.of(problem, supplies, row, [time_table(problem, supply, row) for supply in supplies])
    pipelines = Pipelines(tables, np.array([0]), np.array([[used.index(name) for name in strategy.stage_chips]]))
    onward, back = pipelines._links(pipelines.at(tables.time.hop_near), pipelines.at(tables.time.hop_far))
    return onward[0].tolist(), float(back[0, 0])


def test_a_stage_at_a_racks_border_has_the_uplinks_to_itself() -> None:
    problem, _ = around({"levels": RACKS})
    payload = 1024 * 1024 * 2  # a sequence of hidden states, which one device sends whole
    onward, back = transfers(problem, "x:" + ",".join(["1"] * 8), tp=1, dp=8)
    # 8 devices a stage: two stages a rack; the 16 of a rack have 12.5/8 each, of which these 8 have twice as much.
    assert [payload / each for each in onward] == pytest.approx([12.5e9, 2 * 12.5e9 / 8] * 3 + [12.5e9])
    assert payload / back == pytest.approx(2 * 12.5e9 / 8)
    onward, _ = transfers(problem, "x:1,1", tp=1, dp=32)
    assert payload / onward[0] == pytest.approx(12.5e9 / 8)


def island(out: float, latency: float) -> dict[str, Any]:
    return chip_spec(out=out, efficiency={**IDEAL, "network_latency_us": latency})


@pytest.mark.parametrize(
    ("links", "bandwidth", "latency"),
    [
        ([], 25.0, 30.0),  # the slower of both networks
        ([{"between": ["x", "y"], "gbit_s": 80.0, "latency_us": 50.0}], 10.0, 50.0),
        (
            [{"between": ["y", "x"], "total_gbit_s": 80.0, "efficiency": 0.5}],
            80 / 8 / 2 / 4,
            30.0,
        ),  # 4 devices share it
        ([{"between": ["x", "y"], "gbit_s": 8000.0}], 25.0, 30.0),  # no faster than the islands' own adapters
    ],
)
def test_chip_types_meet_over_their_link(links: list[Any], bandwidth: float, latency: float) -> None:
    chips = {"x": island(400, 10.0), "y": island(200, 30.0)}
    problem = problem_of(chips, gpus=8, node=4, network={"levels": [], "links": links})
    onward, back = transfers(problem, "x:2 y:2", tp=4, dp=1)
    payload = 1024 * 1024 * 2 / (4 if problem.stack.pipeline_scatter else 1)
    expected = payload / (bandwidth * 1e9) + latency * 1e-6
    assert [*onward, back] == pytest.approx([expected, expected], rel=1e-3)


def test_a_tied_table_is_summed_over_the_link() -> None:
    chips = {"x": island(400, 1e-9), "y": island(400, 1e-9)}
    links = [{"between": ["x", "y"], "total_gbit_s": 8.0}]
    model = {"layers": 4, "hidden": 1024, "ffn": 2816, "heads": 8, "vocab": 4000, "tied_embeddings": True}
    problem = problem_of(chips, model, gpus=8, node=4, network={"links": links})
    both = [
        replace(problem, model=problem.model.model_copy(update={"tied_embeddings": tied})) for tied in (True, False)
    ]
    found = []
    for each in both:
        row = Candidates.one(strategy_of("x:2 y:2", tp=4, dp=1), each.batch)
        far = FarHops.of(each, list(each.supplies), row)
        assert far is not None
        found.append(far.tied[0, 1, 0])
    table = 4096 / 4 * 1024 * float(problem.stack.gradient_bytes)  # the vocabulary is padded
    own, shared = 50e9, 1e9 / 4  # bytes a second of an adapter, and of the link for each of four devices
    assert found[0] == pytest.approx(table / shared - table / own, rel=1e-2)
    assert found[1] == 0
