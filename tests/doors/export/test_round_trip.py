"""What is exported is read back as the same plan: exporters and the import agree on what the options mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.export.judge import launch_of
from cpsolver.doors.importing.imported import ImportOptions, import_source
from cpsolver.profiles.framework import load_launcher
from models_zoo import load_architecture
from tests.support.problems import problem_of, strategy_of

TARGETS = ("megatron-lm", "megatron-core-0.13", "megatron-core-0.12", "mindspeed-llm", "loongforge")
PLANS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "chunks": ("llama2-70b", "h100:20,20,20,20", {"tp": 8, "dp": 2, "vpp": 5, "flags": "sfz"}),
    "block, a number of each chunk": (
        "llama2-7b",
        "h100:16,16",
        {"dp": 2, "vpp": 4, "recompute": "block", "amount": 3},
    ),
    "uniform": ("llama2-7b", "h100:16,16", {"tp": 2, "dp": 2, "recompute": "uniform", "amount": 4, "flags": "f"}),
    "first and last": ("llama2-7b", "h100:7,9,9,7", {"dp": 2, "flags": "fz"}),
    "head as a layer": ("llama3.1-405b", "h100:16,16,16,16,16,16,16,14", {"tp": 8, "vpp": 1, "flags": "sf"}),
    "embedding and head in layers' places": ("llama3.1-405b", "h100:31,32,32,31", {"tp": 8, "dp": 2, "vpp": 4}),
    "head in three layers' places": ("kimi-k2-1t", "h100:16,16,16,13", {"dp": 16, "vpp": 4, "ep": 16}),
    "ring of all-to-alls": ("llama2-70b", "h100:80", {"tp": 2, "cp": 8, "ulysses": 4, "dp": 2, "flags": "sfz"}),
    "sharding groups": ("llama2-7b", "h100:32", {"dp": 8, "flags": "fz", "sharding_group": 4}),
    "experts": ("mixtral-8x7b", "h100:16,16", {"tp": 4, "dp": 4, "ep": 8, "etp": 1, "flags": "sfz"}),
    "experts overlapped": ("mixtral-8x7b", "h100:16,16", {"dp": 8, "vpp": 2, "ep": 8, "expert_overlap": True}),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_comes_back(name: str, target: str, tmp_path: Path) -> None:
    model, groups, more = PLANS[name]
    wanted = strategy_of(groups, **more)
    if any(wanted.slots) and load_launcher(target).uneven_interleaved != "any":
        pytest.skip("its launcher profile has no chunks with the embedding or the head in a layer's place")
    if wanted.expert_overlap and not load_launcher(target).expert_overlap:
        pytest.skip("its launcher profile does not overlap experts' all-to-alls")
    problem = problem_of(model=model, gpus=wanted.devices, batch=64, sequence=4096)
    script = tmp_path / "train.sh"
    script.write_text(launch_of(problem, wanted, target).files["train.sh"], encoding="utf-8")
    vocabulary = load_architecture(model).vocab
    options = ImportOptions("h100", wanted.devices, min(8, wanted.devices), vocabulary, launcher="any")
    found = import_source(str(script), options)
    assert found.strategy == wanted, found.refusals
    assert found.spec["model"] == model
    assert found.spec["training"]["global_batch_size"] == 64
