"""The networks of the catalogue: sources, names, and that each can be planned with the chips that it was built with."""

from __future__ import annotations

import pytest

from cpsolver.problem.load import make_problem
from hw_specs import UnknownNetworkError, list_networks, load_chip, load_network, network_names

ALL = {network.name: network for network in list_networks()}


@pytest.mark.parametrize("name", network_names())
def test_a_preset_has_a_source_and_is_what_its_file_is_called(name: str) -> None:
    network = ALL[name]
    assert network.name == name
    assert len(network.sources) > 40
    assert network.chips
    assert [load_chip(chip).name for chip in network.chips] == list(network.chips)


@pytest.mark.parametrize(("name", "chip"), [(name, chip) for name, each in ALL.items() for chip in each.chips])
def test_a_preset_can_be_planned_with_its_chips(name: str, chip: str) -> None:
    cluster = {"num_gpus": 1152, "chips": chip, "network": name}
    training = {"global_batch_size": 1152, "sequence_length": 4096}
    problem = make_problem({"model": "llama2-70b", "cluster": cluster, "training": training}, {}, {})
    assert problem.network is not None
    rates = [tier.bandwidth_bytes_s for tier in problem.network.tiers(problem.supplies[0].chip)]
    assert rates == sorted(rates, reverse=True)


def test_names_and_aliases_are_one_network_each() -> None:
    names = [alias for network in ALL.values() for alias in (network.name, *network.aliases)]
    assert len(set(names)) == len(names)
    assert load_network("DGX_H100_SuperPOD") is load_network("superpod-h100")


def test_an_unknown_name_tells_the_nearest() -> None:
    with pytest.raises(UnknownNetworkError) as caught:
        load_network("superpod-h10")
    assert caught.value.nearest[0] == "superpod-h100"


def test_figures_that_are_known_from_elsewhere() -> None:
    llama = load_network("meta-roce-24k")
    assert [(level.devices, level.oversubscription) for level in llama.levels] == [
        (16, None),
        (3072, None),
        (None, 7.0),
    ]
    domain = load_network("superpod-gb200").domain
    assert domain is not None
    assert (domain.devices, domain.gb_s) == (72, 900.0)
