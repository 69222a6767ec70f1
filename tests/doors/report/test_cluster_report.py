"""What reports, ranks and commands say of the network and of chips with other cards."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.command import in_tmp as in_tmp
from tests.support.command import run, write

NETWORK = {
    "gbit_s": 200,
    "in_network_reduction": True,
    "levels": [{"name": "rack", "nodes": 1}, {"name": "row", "oversubscription": 2, "extra_latency_us": 5}],
    "links": [{"between": ["a100", "h100"], "total_gbit_s": 800}],
}
CHIPS = {"a100": {"max": 16, "nvlink": "none", "memory_gib": 40}, "h100": 16}


def spec(network: Any = NETWORK, chips: Any = CHIPS) -> dict[str, Any]:
    return {
        "model": "llama2-7b",
        "cluster": {"num_gpus": 16, "chips": chips, "network": network},
        "training": {"global_batch_size": 64, "sequence_length": 2048},
        "search": {"pin": {"tp": [1, 2], "pp": [1, 2]}},
    }


@pytest.mark.full
def test_evidence_names_the_network_and_what_was_changed_of_chips() -> None:
    write("spec.yaml", json.dumps(spec()))
    text = " ".join(run("solve", "spec.yaml", "--evidence").output.split())
    assert (
        "a100 is not the catalogue's: memory_gib 79.25 -> 40 GiB, nvlink 300 -> none, PCIe4 (no NVLink) 32 GB/s."
        in text
    )
    assert "that still hold: GEMMs, GEMMs in fp8, attention, memory bandwidth, network." in text
    assert "No longer: fast fabric (measured on PCIe cards instead)." in text
    assert "Network: own figures, all-reduces summed in its switches." in text
    assert "a100: fast domain of 8 32 GB/s; row" in text
    assert "between a100 and h100: 800 Gbit/s in all" in text
    full = " ".join(run("solve", "spec.yaml", "--full").output.split())
    assert "a100 (memory_gib 40, nvlink none), h100, network own figures" in full


@pytest.mark.full
def test_documents_have_the_same_in_plain_values() -> None:
    write("spec.yaml", json.dumps(spec()))
    problem = json.loads(run("solve", "spec.yaml", "--json").stdout)["problem"]
    (level,) = problem["network"]["levels"]["h100"]
    assert (level["name"], level["between_units_of"], level["devices"]) == ("row", 8, None)
    assert level["latency_us"] == pytest.approx(15.0)
    assert problem["changed_chips"]["a100"]["not_fitted"] == ["fabric"]
    write("plain.yaml", json.dumps(spec(None, {"h100": 16})))
    plain = json.loads(run("solve", "plain.yaml", "--json").stdout)["problem"]
    assert not {"network", "changed_chips"} & set(plain)


def test_ranks_say_which_level_each_kind_of_group_goes_through() -> None:
    write("spec.yaml", json.dumps(spec({"levels": [{"name": "row"}]}, "h100")))
    write("plan.yaml", json.dumps(plan()))
    text = run("ranks", "spec.yaml", "--plan", "plan.yaml").output
    assert "goes through" in text
    lines = {line.split()[0]: line.split()[-1] for line in text.splitlines() if line[:3] in ("tp ", "dp ", "pp ")}
    assert lines == {"tp": "domain", "dp": "domain", "pp": "row"}
    told = json.loads(run("ranks", "spec.yaml", "--plan", "plan.yaml", "--json").stdout)
    assert told["levels_crossed"]["pp"] == {"row": 8}


def plan() -> dict[str, Any]:
    stages = [{"chip": "h100", "layers": [16, 16]}]
    flags = {"sequence_parallel": True, "distributed_optimizer": True, "flash_attention": True}
    return {"strategy": {"tp": 2, "pp": 2, "dp": 4, "mbs": 1, "vpp": 1, **flags, "stages": stages}}


def test_plan_takes_a_preset_and_keeps_it_in_the_spec_that_it_writes() -> None:
    line = ["plan", "llama2-7b", "--on", "h100:16", "--batch", "64", "--seq", "2048", "--top", "1"]
    done = run(*line, "--network", "superpod-h100", "--write-spec", "kept.yaml", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["problem"]["network"]["name"] == "superpod-h100"
    again = json.loads(run("solve", "kept.yaml", "--json", "--top", "1").stdout)
    assert again["problem"]["network"] == json.loads(done.stdout)["problem"]["network"]
    wrong = run(*line, "--network", "superpod-h10")
    assert wrong.exit_code == 2
    assert "--network = 'superpod-h10': unknown network (allowed: a name that `apss-cp networks` lists)" in wrong.output


def test_networks_are_listed_and_told_one_by_one() -> None:
    listed = run("networks").output
    assert "meta-roce-24k" in listed
    assert "rack 16, pod 3,072, cluster 1:7" in listed
    one = json.loads(run("networks", "superpod-gb200", "--json").stdout)
    assert one["domain"]["devices"] == 72
    assert run("networks", "superpod-gb200").output.startswith("superpod-gb200")
    assert len(json.loads(run("networks", "--json").stdout)) > 10
    wrong = run("networks", "superpod-gb20")
    assert wrong.exit_code == 2
    assert "did you mean 'superpod-gb200'" in wrong.output


def test_a_network_that_contradicts_itself_ends_with_exit_code_2_and_places() -> None:
    write("spec.yaml", json.dumps(spec({"gbit_s": 100, "nics_per_node": 4, "levels": [{"name": "r", "devices": 12}]})))
    done = run("solve", "spec.yaml")
    assert done.exit_code == 2
    assert "spec.yaml:1:" in done.output
    assert done.output.count("cluster.network") >= 2
