"""`apss-cp profile` with PyTorch on the CPU: tiny shapes, the whole way, stopped in the middle, and a real layer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cpsolver.cost.kinds import layer_kinds
from cpsolver.doors.profile import layer
from cpsolver.doors.profile import settings as where
from cpsolver.doors.profile.compare import byte_comparisons
from cpsolver.doors.profile.device import TorchDevice
from cpsolver.doors.profile.measure import Bench
from cpsolver.doors.profile.settings import settings
from cpsolver.doors.profile.shapes import RECOMPUTED, gemm_task
from cpsolver.doors.profile.task import Measurement, Size
from hw_specs import complete_chip
from tests.support.checkout import ROOT
from tests.support.command import in_tmp, run, write
from tests.support.profiled import measured, problem

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full

__all__ = ["in_tmp"]

TINY = "name: tiny\nlayers: 2\nhidden: 128\nffn: 256\nheads: 4\nkv_heads: 4\nvocab: 512\n"
ASK = ("profile", "--device", "cpu", "--model", "tiny.yaml", "--seq", "32", "--tp", "1", "--quick", "-o", "ours.yaml")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers, squares and payloads for a test, not for figures."""
    told = YAML(typ="safe").load(where._FILE.read_text(encoding="utf-8"))
    told |= {"flush_bytes": 1 << 20, "stream_bytes": dict.fromkeys(told["stream_bytes"], 1 << 20)}
    told |= {"quick_squares": [64, 128], "layer_tokens": [16]}
    told["payload_bytes"]["cpu"] = [1024, 1 << 20, 1 << 22, 1 << 23]  # the bandwidth stands out of the noise
    YAML().dump(told, tmp_path / "settings.yaml")
    monkeypatch.setattr(where, "_FILE", tmp_path / "settings.yaml")


def tiny(kv_heads: int = 4) -> Any:
    return problem(model=write("tiny.yaml", TINY.replace("kv_heads: 4", f"kv_heads: {kv_heads}")), seq=32, tp="1")


@pytest.mark.usefixtures("small")
def test_a_run_writes_a_file_that_a_spec_takes_and_the_next_run_takes_it_up() -> None:
    write("tiny.yaml", TINY)
    for _ in range(3):  # on busy cores a collective's bandwidth may drown in its start
        first = run(*ASK, "--devices", "2", "--time-budget", "300", "--network-gbit-s", "10", "--json")
        assert first.exit_code == 0, first.stderr
        told = json.loads(first.stdout)
        if not told["missing"]:
            break
        for file in Path().glob("ours.yaml*"):
            file.unlink()
    kinds = {each["kind"] for each in told["measurements"]}
    assert {"gemm", "attention_forward", "attention_backward", "memory", "launch", "collective"} <= kinds
    assert {"layer_bytes", "layer_time"} <= kinds
    assert not told["missing"]
    chip = complete_chip(told["chip"])
    names = {name for name, each in chip.efficiency.items() if each.confidence == "measured"}
    assert {"gemm_bf16", "attention_forward", "memory", "all_reduce", "collective_latency_us"} <= names
    assert all(each["predicted"] > 0 and each["measured"] > 0 for each in told["layer_time"] + told["products"])
    write("spec.yaml", "model: tiny.yaml\ncluster: {num_gpus: 2, gpus_per_node: 2, chips: {ours: {file: ours.yaml}}}\n"
          "training: {global_batch_size: 8, sequence_length: 32}\nsearch: {top: 1}\n")  # fmt: skip
    assert run("solve", "spec.yaml", "--json").exit_code == 0

    again = run(*ASK, "--devices", "2", "--time-budget", "0.001")
    assert again.exit_code == 0
    assert f"{len(told['measurements'])} measurements" in again.stdout
    assert f"{len(told['measurements'])} of them taken up" in again.stdout
    assert "No plan can be made with it yet" in again.stdout

    journal = Path("ours.yaml.journal.jsonl")
    head, *lines = journal.read_text().splitlines()
    journal.write_text("\n".join([json.dumps({**json.loads(head), "device": "another"}), *lines]) + "\n")
    refused = run(*ASK)
    assert refused.exit_code == 2
    assert "was taken with device another" in refused.stderr


def test_a_file_of_the_users_own_is_not_overwritten() -> None:
    write("tiny.yaml", TINY)
    write("ours.yaml", "name: mine\n")
    refused = run(*ASK)
    assert refused.exit_code == 2
    assert Path("ours.yaml").read_text() == "name: mine\n"


def test_a_kind_of_device_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert "PyTorch finds none here" in run("profile", "--device", "cuda").stderr


def test_ctrl_c_writes_what_there_is() -> None:
    write("tiny.yaml", TINY)
    command = [sys.executable, "-m", "cli", *ASK, "--devices", "2", "--time-budget", "60"]
    going = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    journal, until = Path("ours.yaml.journal.jsonl"), time.monotonic() + 60
    while time.monotonic() < until and (not journal.exists() or journal.read_bytes().count(b"\n") < 3):
        time.sleep(0.05)
    going.send_signal(signal.SIGINT)
    out, err = going.communicate(timeout=60)
    assert going.returncode == 130, err
    assert "Interrupted" in out
    assert "Traceback" not in err
    assert Path("ours.yaml").read_text().startswith("# Written by `apss-cp profile`")


@pytest.mark.parametrize(("attention", "recompute"), RECOMPUTED)
def test_a_real_layer_keeps_what_the_memory_model_says(attention: str, recompute: str) -> None:
    one, device = tiny(), TorchDevice("cpu")
    kept, allocated = layer.saved_bytes(device, one.model, 32, attention, recompute)
    size: Size = {"tokens": 32, "attention": attention, "recompute": recompute}
    (pair,) = byte_comparisons(one, measured(Measurement("layer_bytes", size, bytes=float(kept))))
    assert pair.measured == pair.predicted
    assert allocated is None


def test_grouped_attention_without_a_fused_kernel_keeps_its_keys_and_values_repeated() -> None:
    one, device = tiny(kv_heads=2), TorchDevice("cpu")
    kept, _ = layer.saved_bytes(device, one.model, 32, "unfused", "none")
    size: Size = {"tokens": 32, "attention": "unfused", "recompute": "none"}
    (pair,) = byte_comparisons(one, measured(Measurement("layer_bytes", size, bytes=float(kept))))
    assert pair.measured == pair.predicted
    fewer, _ = layer.saved_bytes(device, one.model, 32, "flash", "none")
    assert kept - fewer > 2 * 2 * 32 * (4 - 2) * one.model.head_dim


def test_keeping_less_and_recomputing_change_no_gradient() -> None:
    model, device, found = tiny().model, TorchDevice("cpu"), []
    for attention, recompute, lean in (
        ("flash", "none", False),
        ("unfused", "selective", True),
        ("flash", "full", True),
    ):
        torch.manual_seed(1)
        one = layer.Layer(device, model, 32, attention, recompute, lean=lean)
        x = torch.randn(1, 32, model.hidden, dtype=torch.bfloat16, requires_grad=True)
        found.append(torch.autograd.grad(one.run(x), [x, *one.weights.values()], torch.ones_like(x)))
    for other in found[1:]:
        for first, second in zip(found[0], other, strict=True):
            scale = float(first.float().abs().max())
            assert float((first.float() - second.float()).abs().max()) < 0.05 * scale


def test_what_the_device_cannot_do_is_told() -> None:
    bench = Bench(TorchDevice("cpu"), tiny().model, settings().quick_timing)
    batched = bench(gemm_task(16, 16, 16, 4, "fp8", "forward", "experts", 0))
    assert batched == "not supported here: PyTorch has no batched fp8 product"
    huge = bench(gemm_task(1 << 22, 1 << 22, 1 << 12, 1, "bf16", "forward", "huge", 0))
    assert isinstance(huge, str)
    assert huge.startswith("needs 32")


def test_a_model_that_the_real_layer_is_not_like_is_told() -> None:
    assert "mla" in layer.unsuitable(problem(model="deepseek-v2-lite").model)
    assert "experts" in layer.unsuitable(problem(model="mixtral-8x7b").model)
    assert not layer.unsuitable(tiny().model)
    assert not layer_kinds(tiny().model)[0].experts
