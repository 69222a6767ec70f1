"""A chip of the catalogue with other cards: its figures, and which fitted factors still hold."""

from __future__ import annotations

from typing import Any

import pytest

from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.chip_changes import chip_changes
from cpsolver.problem.load import make_problem
from cpsolver.problem.problem import Problem
from cpsolver.problem.ranks import levels_crossed, rank_map
from cpsolver.profiles.constants import CHIP_FACTORS
from cpsolver.profiles.provenance import of_chip
from hw_specs import load_chip
from tests.support.problems import strategy_of


def made(chip: dict[str, Any], network: Any = None, gpus: int = 16) -> Problem:
    cluster = {"num_gpus": gpus, "chips": {"a100": {"max": gpus, **chip}}, "network": network}
    training = {"global_batch_size": 64, "sequence_length": 1024}
    return make_problem({"model": "llama2-7b", "cluster": cluster, "training": training}, {}, {})


def test_figures_are_changed_in_place_and_fitted_factors_stay() -> None:
    plain, changed = made({}), made({"network_gbit_s": 100, "memory_gib": 40, "memory_gb_s": 1000, "nvlink": 150})
    old, new = plain.supplies[0].chip, changed.supplies[0].chip
    assert new.efficiency == old.efficiency
    assert (new.name, new.architecture) == (old.name, old.architecture)
    assert new.scale_out_bandwidth_bytes_s == 12.5e9
    assert new.memory_capacity_bytes == 40 * 2**30
    assert new.memory_bandwidth_bytes_s == 1e12
    assert (new.scale_up_bandwidth_bytes_s, new.peer_bandwidth_bytes_s) == (150e9, 150e9)
    assert new.scale_up.domain_size == old.scale_up.domain_size
    (told,) = chip_changes(changed.spec.cluster.chips)
    assert told.fields[0] == "network_gbit_s 200 -> 100 Gbit/s"
    assert set(told.kept) == {"gemm", "gemm_fp8", "attention", "memory", "fabric", "network"}
    assert told.dropped == ()


def test_without_nvlink_the_fabric_is_pcie_as_measured_on_cards_that_have_no_other() -> None:
    chip, card = made({"nvlink": "none"}).supplies[0].chip, load_chip("l40s")
    assert chip.scale_up_bandwidth_bytes_s == 32e9  # PCIe 4, 16 lanes
    fabric = [chip.efficiency_value(name) for name in CHIP_FACTORS["fabric"]]
    assert fabric == [card.efficiency_value(name) for name in CHIP_FACTORS["fabric"]]
    assert chip.efficiency_value("network") == made({}).supplies[0].chip.efficiency_value("network")
    (told,) = chip_changes(made({"nvlink": "none"}).spec.cluster.chips)
    assert told.dropped == ("fabric",)
    assert "fabric" not in told.kept
    assert of_chip(chip, "all_reduce", None).basis == "assumed"
    assert of_chip(made({}).supplies[0].chip, "all_reduce", None).basis == "fitted"


def test_a_chips_own_adapter_stands_before_the_networks() -> None:
    assert made({}, {"gbit_s": 400}).supplies[0].chip.scale_out.bandwidth_gbit_s == 400
    assert made({"network_gbit_s": 100}, {"gbit_s": 400}).supplies[0].chip.scale_out.bandwidth_gbit_s == 100


def test_what_the_network_says_of_its_efficiency_is_given_not_fitted() -> None:
    chip = made({}, {"efficiency": 0.6}).supplies[0].chip
    assert (chip.efficiency_value("network"), of_chip(chip, "network", None).basis) == (0.6, "given")


def test_changes_are_kept_where_the_problem_shrinks() -> None:
    problem = made({"network_gbit_s": 100}, {"levels": [{"name": "rack", "nodes": 1}, {"name": "row"}]})
    smaller = problem.of_size(8)
    assert smaller.supplies[0].chip.scale_out.bandwidth_gbit_s == 100
    assert smaller.network == problem.network


def test_an_unknown_chip_with_changes_is_told_as_unknown() -> None:
    cluster = {"num_gpus": 8, "chips": {"a101": {"nvlink": "none"}}}
    with pytest.raises(InputError, match="unknown chip"):
        make_problem(
            {"model": "llama2-7b", "cluster": cluster, "training": {"global_batch_size": 8, "sequence_length": 8}},
            {},
            {},
        )


def crossed(problem: Problem, s: Strategy) -> dict[str, dict[str, int]]:
    """Levels that the plan's groups cross, by kind."""
    return levels_crossed(problem, s, rank_map(problem, s).groups)


def test_groups_go_through_the_levels_that_they_cross() -> None:
    network = {"levels": [{"name": "rack", "nodes": 2}, {"name": "row", "nodes": 4}, {"name": "all"}]}
    problem = made({}, network, gpus=64)
    # tp 8 fills nodes; 4 replicas of a stage are 4 nodes, a row; the two stages lie in both rows.
    found = crossed(problem, strategy_of("a100:16,16", tp=8, dp=4))
    assert found["tp"] == {"fast domain": 8}
    assert found["dp"] == {"row": 16}
    assert found["pp"] == {"all": 32}
    # tp 4: two replicas share a node, so that two of a group of 2 do; half of the groups of 4 are in a rack.
    found = crossed(problem, strategy_of("a100:8,8,8,8", tp=4, dp=4))
    assert (found["dp"], found["pp"]) == ({"rack": 16}, {"all": 16})
    assert crossed(made({}), strategy_of("a100:32", tp=8, dp=2)) == {}
