"""`apss-cp export`: plans from files and from a search, folders, refusals with the nearest plan."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.export.launch import EXPORTERS, exporter
from cpsolver.profiles.framework import launcher_names
from tests.support.command import in_tmp as in_tmp
from tests.support.command import run, write

SPEC = """
model: llama2-7b
cluster: {num_gpus: 16, chips: {h100: 16, a800: 16}}
training: {global_batch_size: 32, sequence_length: 4096}
"""
EVEN = """
tp: 2
dp: 2
mbs: 1
vpp: 2
stages: [{chip: h100, layers: [8, 8, 8, 8]}]
"""
UNEVEN = """
tp: 2
dp: 2
mbs: 1
stages: [{chip: h100, layers: [7, 9, 10, 6]}]
"""
MIXED = """
tp: 2
dp: 4
mbs: 1
stages: [{chip: h100, layers: 18}, {chip: a800, layers: 14}]
"""


def export(plan: str, *more: str, target: str = "megatron-lm", spec: str = SPEC) -> Any:
    return run("export", write("spec.yaml", spec), "--to", target, "--plan", write("plan.yaml", plan), *more)


def test_targets_are_launchers_and_have_exporters() -> None:
    assert set(EXPORTERS) <= set(launcher_names())
    for target in EXPORTERS:
        assert callable(exporter(target))
        assert target in run("export", "--help").stdout


def test_the_text_has_arguments_environment_and_nodes() -> None:
    result = export(EVEN)
    assert result.exit_code == 0
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert "--tensor-model-parallel-size 2" in lines
    assert "--num-virtual-stages-per-pipeline-rank 2" in lines
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in lines
    assert "0\th100\tstages 0-1\tranks 0-7" in lines


def test_json() -> None:
    document = json.loads(export(EVEN, "--json").stdout)
    assert document["status"] == "exported"
    assert document["arguments"][document["arguments"].index("--seq-length") + 1] == "4096"
    assert document["environment"] == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert document["nodes"][1] == {"chip": "h100", "nodes": [1], "stages": [2, 3], "ranks": list(range(8, 16))}


def test_a_folder_with_a_script_that_torchrun_gets_the_plan_from() -> None:
    assert export(EVEN, "-o", "launch").exit_code == 0
    fake = Path("bin/torchrun")
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n', encoding="utf-8")
    fake.chmod(0o755)
    there = {"PATH": f"{fake.parent.resolve()}:/usr/bin:/bin", "NODE_RANK": "1", "MASTER_ADDR": "node0"}
    done = subprocess.run(["./launch/train.sh", "--more"], env=there, capture_output=True, text=True, check=True)
    words = done.stdout.split()
    for flag, value in {"--nnodes": "2", "--nproc_per_node": "8", "--node_rank": "1", "--master_addr": "node0"}.items():
        assert words[words.index(flag) + 1] == value
    assert words[words.index("--pipeline-model-parallel-size") + 1] == "4"
    assert words[words.index("--vocab-size") + 1] == "31999"
    assert words[-1] == "--more"


def test_files_are_not_replaced_without_force() -> None:
    export(EVEN, "-o", "launch")
    Path("launch/nodes.txt").write_text("mine", encoding="utf-8")
    refused = export(EVEN, "-o", "launch")
    assert refused.exit_code == 2
    assert "nodes.txt: is there already" in refused.stderr
    assert Path("launch/nodes.txt").read_text(encoding="utf-8") == "mine"
    assert export(EVEN, "-o", "launch", "--force").exit_code == 0
    assert Path("launch/nodes.txt").read_text(encoding="utf-8") != "mine"


def test_a_folder_that_is_a_file() -> None:
    refused = export(EVEN, "-o", write("launch", ""))
    assert (refused.exit_code, "is a file" in refused.stderr) == (2, True)


def test_an_unknown_target_names_the_nearest() -> None:
    refused = export(EVEN, target="megatron_lm")
    assert refused.exit_code == 2
    assert "did you mean 'megatron-lm'" in refused.stderr


def test_chips_that_mix_say_the_order_of_the_nodes() -> None:
    document = json.loads(export(MIXED, "--json").stdout)
    assert [(node["chip"], node["nodes"]) for node in document["nodes"]] == [("h100", [0]), ("a800", [1])]
    assert any("node ranks must follow the chips: 0 h100 (stages 0); 1 a800 (stages 1)" in n for n in document["notes"])


def test_a_plan_of_solve_by_its_rank() -> None:
    spec = write(
        "spec.yaml", SPEC + "search: {top: 2, risk: 1, pin: {tp: [2, 4], pp: 2, cp: 1, stage_chips: [h100, h100]}}\n"
    )
    run("solve", spec, "--json", "-o", "plans.json")
    plans = json.loads(Path("plans.json").read_text(encoding="utf-8"))["plans"]
    for number in (1, 2):
        result = run("export", spec, "--to", "megatron-lm", "-p", "plans.json", "--plan-rank", str(number), "--json")
        assert json.loads(result.stdout)["strategy"] == plans[number - 1]["strategy"]
    refused = run("export", spec, "--to", "megatron-lm", "-p", "plans.json", "--plan-rank", "3")
    assert (refused.exit_code, "--plan-rank = 3: is no plan of the file" in refused.stderr) == (2, True)


def test_without_a_plan_the_spec_is_solved() -> None:
    spec = write("spec.yaml", SPEC + "search: {pin: {tp: 2, pp: 4, dp: 2, stage_chips: [h100, h100, h100, h100]}}\n")
    document = json.loads(run("export", spec, "--to", "megatron-lm", "--json").stdout)
    assert (document["strategy"]["tp"], document["strategy"]["pp"]) == (2, 4)


def test_a_plan_of_another_spec_is_refused() -> None:
    spec = write("spec.yaml", SPEC + "search: {top: 1, pin: {tp: 2, pp: 2}}\n")
    run("solve", spec, "--json", "-o", "plans.json")
    other = write("other.yaml", SPEC.replace("size: 32", "size: 64").replace("llama2-7b", "llama2-13b"))
    refused = run("export", other, "--to", "megatron-lm", "--plan", "plans.json")
    assert refused.exit_code == 2
    assert "problem.model = 'llama2-7b': is of another spec (allowed: llama2-13b" in refused.stderr
    assert "problem.global_batch_size = 32" in refused.stderr


def test_a_plan_that_does_not_add_up() -> None:
    refused = export(EVEN.replace("8, 8, 8, 8", "8, 8, 8, 9"))
    assert (refused.exit_code, "plan.yaml" in refused.stderr, "32" in refused.stderr) == (2, True, True)


def test_a_refusal_has_reasons_and_the_nearest_plan() -> None:
    refused = export(UNEVEN, target="megatron-core-0.12")
    assert refused.exit_code == 3
    assert "needs equal stages between the first and the last" in refused.stdout
    assert "The nearest plan that it runs" in refused.stdout
    assert "layers 7, 9, 10, 6 ->" in refused.stdout
    assert "Left free to find it: recomputation and layers.\n" in refused.stdout


def test_a_refusal_as_json() -> None:
    document = json.loads(export(UNEVEN, "--json", target="megatron-core-0.12").stdout)
    assert document["status"] == "refused"
    near = document["nearest"]
    assert (near["strategy"]["tp"], near["strategy"]["pp"], near["strategy"]["vpp"]) == (2, 4, 1)
    layers = [count for stage in near["strategy"]["stages"] for count in stage["layers"]]
    assert (sum(layers), layers[1]) == (32, layers[2])
    assert near["arguments"]
    assert near["slower"] == pytest.approx(near["step_time_s"] / near["refused_step_time_s"] - 1)


def test_what_must_be_let_go_comes_step_by_step() -> None:
    """Accelerate has no pipeline: layers, chunks and flags are not enough, the degrees change too."""
    if "accelerate" not in EXPORTERS:
        pytest.skip("its exporter is not there")
    document = json.loads(export(EVEN, "--json", target="accelerate").stdout)
    assert document["nearest"]["let_go"] == ["recomputation and layers", "vpp", "flags and chips of stages", "degrees"]
    assert document["nearest"]["strategy"]["pp"] == 1


def test_a_switch_that_the_target_lacks_leaves_no_plan() -> None:
    spec = SPEC.replace("4096}", "4096, swap_optimizer: true}")
    refused = export(EVEN, spec=spec)
    assert refused.exit_code == 3
    assert "training.swap_optimizer is true: megatron-lm has no flag for that" in refused.stdout
    assert "No plan for this spec is one that it runs" in refused.stdout
    assert "--swap-optimizer" in export(EVEN, target="mindspeed-llm", spec=spec).stdout


def test_an_infeasible_spec_has_no_plan_to_export() -> None:
    spec = write("spec.yaml", SPEC + "search: {pin: {tp: 3}}\n")
    assert run("export", spec, "--to", "megatron-lm").exit_code == 3
