"""`apss-cp replicas`."""

from __future__ import annotations

import json

import pytest

from tests.support.command import in_tmp, run, write  # noqa: F401

SPEC = """
model: phi3.5-mini
cluster: {num_gpus: 4, gpus_per_node: 2, chips: {a100: 2, h100: 2}}
training: {global_batch_size: 8, sequence_length: 2048}
search: {pin: {tp: 1, distributed_optimizer: true}}
"""


def test_the_plan_says_shares_and_the_options_that_start_it() -> None:
    name = write("spec.yaml", SPEC)
    told = json.loads(run("replicas", name, "--json").stdout)
    kinds = told["kinds"]
    assert [kind["chip"] for kind in kinds] == ["a100", "h100"]
    assert sum(kind["replicas"] * kind["sequences"] for kind in kinds) == 8
    assert sum(told["breakdown_s"].values()) == pytest.approx(told["step_time_s"])
    assert told["step_time_s_low"] < told["step_time_s"] < told["step_time_s_high"]
    sizes = " ".join(f"2 {kind['micro_batch']}" for kind in kinds)
    numbers = " ".join(f"2 {kind['microbatches']}" for kind in kinds)
    assert told["options"] == [
        f"--use-tp-pp-dp-mapping --micro-batch-size-per-dp {sizes}",
        f"--num-micro-batches-per-dp {numbers}",
    ]
    text = run("replicas", name, "--counts", "common").stdout
    assert "Run by FlagScale 0.3" in text
    assert "--hetero-mode dp --hetero-device-types a100 h100" in text
    assert max(map(len, text.splitlines())) <= 80


def test_deep_sharding_has_no_launcher() -> None:
    pinned = SPEC.replace("distributed_optimizer: true", "sharded: parameters, distributed_optimizer: true")
    told = json.loads(run("replicas", write("spec.yaml", pinned), "--json").stdout)
    assert told["options"] == []
    assert told["run_by"].startswith("no launcher")


def test_exit_codes() -> None:
    assert run("replicas", write("one.yaml", SPEC.replace("a100: 2, ", ""))).exit_code == 2
    huge = SPEC.replace("phi3.5-mini", "llama3.1-405b")
    result = run("replicas", write("huge.yaml", huge))
    assert result.exit_code == 3
    assert "no plan" in result.stderr
