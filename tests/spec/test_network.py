"""Networks in specs: what they may say, and every contradiction named with its numbers, all at once."""

from __future__ import annotations

from typing import Any

import pytest

from cpsolver.inputs.errors import InputError
from cpsolver.problem.load import make_problem
from cpsolver.spec.spec import parse_spec
from hw_specs import load_network

RACK = {"name": "r", "nodes": 4}
TRAINING = {"global_batch_size": 64, "sequence_length": 1024}


def spec(network: Any, chips: Any = "a100", gpus: int = 64) -> dict[str, Any]:
    return {
        "model": "llama2-7b",
        "cluster": {"num_gpus": gpus, "chips": chips, "network": network},
        "training": TRAINING,
    }


def troubles(network: Any, chips: Any = "a100", gpus: int = 64) -> list[str]:
    with pytest.raises(InputError) as caught:
        make_problem(spec(network, chips, gpus), {}, {})
    assert caught.value.exit_code == 2
    return [str(trouble) for trouble in caught.value.troubles]


def test_a_preset_by_its_name_alone_and_its_fields_replaced() -> None:
    found = parse_spec(spec("superpod-h100")).cluster.network
    assert found is not None
    assert found.figures().model_dump(exclude_unset=True) == load_network("superpod-h100").figures()
    own = parse_spec(spec({"preset": "superpod-h100", "nics_per_node": 4, "nic_gbit_s": 200})).cluster.network
    assert own is not None
    figures = own.figures()
    assert (figures.gbit_s, figures.nics_per_node, len(figures.levels)) == (None, 4, 2)


@pytest.mark.parametrize(
    "network", ["hdr-8x200", {"gbit_s": 200, "levels": [{"name": "a", "nodes": 4}, {"name": "b"}]}]
)
def test_what_is_written_out_is_read_the_same(network: Any) -> None:
    found = parse_spec(spec(network))
    assert parse_spec(found.model_dump(mode="json")) == found


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("superpd-h100", "'superpd-h100': unknown network (allowed: a name that `apss-cp networks` lists"),
        ("superpd-h100", "did you mean 'superpod-h100'"),
        ({"gbit_s": 200, "nics_per_node": 4, "nic_gbit_s": 100}, "has gbit_s 200 and nics_per_node 4 and nic_gbit_s"),
        ({"nics_per_node": 4}, "has nics_per_node 4 without nic_gbit_s"),
        ({"oversubscription": 0.5}, "oversubscription = 0.5: must be at least 1"),
        ({"efficiency": 1.5}, "efficiency = 1.5: must be at most 1"),
        ({"gbit_s": 0}, "gbit_s = 0: must be at least 1e-06"),
        ({"oversubscription": 1e17}, "oversubscription = 1e+17: leaves a device 2e-15 Gbit/s (allowed: 1e-06"),
        ({"levels": [{**RACK, "oversubscription": 1e5}, {"name": "t", "oversubscription": 1e5}]},
         "levels[1].oversubscription = 100000.0: leaves a device 2e-08 Gbit/s"),
        ({"gbit_s": 1e-300}, "gbit_s = 1e-300: must be at least 1e-06"),
        ({"latency_us": 1e24}, "latency_us = 1e+24: must be at most 1e+07"),
        ({"domain": {"devices": 12}}, "12 devices, and a node has 8: neither divides the other"),
        ({"levels": [{"name": "rack", "devices": 12}]}, "rack has 12 devices, no multiple of what is inside: a node"),
        ({"levels": [RACK, {"name": "p", "nodes": 4}, {"name": "t"}]}, "p has 32 devices and is no larger"),
        ({"levels": [RACK, {"name": "p", "nodes": 6}, {"name": "t"}]}, "p has 48 devices, no multiple"),
        ({"levels": [{"name": "all"}, {"name": "p", "nodes": 8}]}, "all has no size, which makes it the whole cluster"),
        ({"levels": [{"name": "r", "nodes": 4, "devices": 32}]}, "r has devices 32 and nodes 4: each says its size"),
        ({"levels": [RACK]}, "r, the last of the levels, has 32 devices, and the cluster has 64"),
        ({"levels": [{"name": "r", "gbit_s": 100, "oversubscription": 2}]}, "has gbit_s 100 and oversubscription"),
        ({"levels": [{"name": "r", "latency_us": 1, "extra_latency_us": 2}]}, "has latency_us 1 and extra_latency_us"),
        ({"levels": [{"name": "r", "gbit_s": 400}]}, "r gives a device 400 Gbit/s, and a node inside it 200"),
        ({"levels": [{"name": "r", "latency_us": 1}]}, "a hop in r takes 1 us, and in a node inside it 10 us"),
        ({"gbit_s": 3200}, "of a100 gives a device 300 GB/s (2400 Gbit/s), and the network 3200 Gbit/s"),
        ({"links": [{"between": ["a100", "h10"], "gbit_s": 1}]}, "links a chip that is not one of cluster.chips"),
        ({"links": [{"between": ["a100", "a100"], "gbit_s": 1}]}, "joins a100 with itself"),
        ({"links": [{"between": ["a100", "h100"]}]}, "has neither of gbit_s (of each device) and total_gbit_s"),
        ({"speed": 3}, "speed = 3: is not a known field"),
        (7, "network = 7: must be a mapping of fields, not a number"),
    ],
)  # fmt: skip
def test_a_contradiction_is_named_with_its_numbers(network: Any, words: str) -> None:
    found = troubles(network, {"a100": 64, "h100": 64})
    assert any(words in line for line in found), found


def test_levels_hold_whole_fast_domains() -> None:
    (found,) = troubles("superpod-h100", "gb200", 576)
    assert "scalable unit has 256 devices, no multiple of the fast domain of gb200: 72" in found


def test_whoever_says_so_may_be_slower_inside() -> None:
    for network in ({"gbit_s": 3200}, {"levels": [{"name": "r", "gbit_s": 400, "latency_us": 1}]}):
        assert make_problem(spec({**network, "allow_slower_inside": True}), {}, {}).network is not None


def test_a_link_is_as_slow_as_links_are() -> None:
    """Beyond that times overflow: found by an attack."""
    link = {"between": ["a100", "h100"], "gbit_s": 100}
    for change in ({"latency_us": 1e24}, {"gbit_s": 1e-300}, {"efficiency": 1e-300}):
        found = troubles({"links": [{**link, **change}]}, ["a100", "h100"])
        (name,) = change
        assert any(f"links[0].{name} = " in line for line in found), found


def test_two_links_between_the_same_chips() -> None:
    link = {"between": ["a100", "h100"], "gbit_s": 100}
    found = troubles({"links": [link, {**link, "between": ["h100", "a100"]}]}, ["a100", "h100"])
    assert any("h100 and a100 have a link already, links[0]" in line for line in found)


def test_all_that_is_wrong_is_told_at_once() -> None:
    network = {
        "preset": "superpd-h100",
        "oversubscription": 0.5,
        "nics_per_node": 4,
        "levels": [{"name": "rack", "devices": 12}, {"name": "pod", "gbit_s": 1, "oversubscription": 2}],
        "links": [{"between": ["a100", "h10"], "gbit_s": 1}],
    }
    given = spec(network)
    given["model"] = "llama2-70"
    with pytest.raises(InputError) as caught:
        make_problem(given, {}, {})
    places = [trouble.where for trouble in caught.value.troubles]
    assert sorted(places) == [
        "cluster.network",
        "cluster.network.levels[0].devices",
        "cluster.network.levels[1]",
        "cluster.network.links[0].between[1]",
        "cluster.network.oversubscription",
        "cluster.network.preset",
        "model",
    ]


@pytest.mark.parametrize(
    ("chip", "words"),
    [
        ({"nvlink": "slow"}, "a bandwidth (allowed: none (PCIe only), or 1e-06 to 1e+09 GB/s of a device, one way)"),
        ({"nvlink": 1e-300}, "must be none or a bandwidth"),
        ({"network_gbit_s": -1}, "network_gbit_s = -1: must be at least 1e-06"),
        ({"memory_gb_s": 1e-300}, "memory_gb_s = 1e-300: must be at least 1e-06"),
        ({"network_gbit": 100}, "did you mean 'network_gbit_s'"),
        ({"memory_gib": 40, "file": "x.yaml"}, "of the catalogue (memory_gib) and has its own fields in file"),
    ],
)  # fmt: skip
def test_a_changed_chip_that_cannot_be(chip: dict[str, Any], words: str) -> None:
    found = troubles(None, {"a100": {"max": 64, **chip}})
    assert any(words in line for line in found), found


def test_no_nvlink_where_the_catalogue_knows_no_other_link() -> None:
    (found,) = troubles(None, {"tpu_v5p": {"nvlink": "none"}})
    assert "cluster.chips.tpu_v5p.nvlink = 'none': the catalogue knows no PCIe link of tpu_v5p" in found
