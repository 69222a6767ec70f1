"""Small problems for the exporters, solved with the launcher's facts in force; their exports, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cpsolver.doors.export import accelerate, deepspeed, flagscale, torchtitan
from cpsolver.doors.export.judge import launch_of
from cpsolver.doors.export.launch import CannotExpress, Launch
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.search.search import search
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of

MODEL = model_spec(layers=8, heads=16, kv_heads=8)
EXPERTS = model_spec(layers=8, heads=16, kv_heads=8, moe={"experts": 8, "top_k": 2, "expert_ffn": 512})
MIXED = {"a": {"max": 8, "spec": chip_spec(gb=60)}, "b": {"max": 8, "spec": chip_spec(tflops=50, gb=30)}}
TIGHT = {"x": chip_spec(gb=4.1)}
ANY_SHARDING = "megatron-core"
"""A stack that counts what its launcher's own does not."""
UNEVEN = {"pp": 4, "layers": [1, 3, 3, 1], "recompute": "none"}
BY_STAGE: dict[str, Any] = {
    "recompute_scope": "stage",
    "pin": {"pp": 4, "vpp": 1, "tp": 1, "cp": 1, "recompute": ["none", "block"]},
}
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "flagscale": {
        "one chip": {"pin": {"pp": 2, "tp": 2}},
        "mixed": {"chips": MIXED, "pin": {"pp": 4, "tp": 2, "stages": {"a": 2, "b": 2}}},
        "mixed, uneven": {"chips": MIXED, "pin": {"pp": 4, "layers": [3, 3, 1, 1], "chip_order": ["a", "b"]}},
        "any layers": {"pin": {"pp": 4, "layers": [1, 3, 2, 2]}},
        "first and last": {"pin": {"pp": 4, "layers": [1, 3, 3, 1], "cp": 2}},
        "interleaved": {"pin": {"pp": 2, "vpp": 2}, "batch": 16},
        "experts": {"model": EXPERTS, "chips": MIXED, "pin": {"pp": 2, "tp": 2, "ep": 4, "etp": 1}},
        "by stage": {"chips": TIGHT, **BY_STAGE, "batch": 64, "sequence": 4096},
        "whole layers": {"pin": {"recompute": "uniform", "recompute_num_layers": 2, "pp": 2}},
        "chosen modules": {"pin": {"recompute": "selective", "recompute_modules": [["core_attn", "mlp"]], "pp": 1}},
    },
    "deepspeed": {
        "zero 3": {"pin": {"sharded": "parameters", "pp": 1, "tp": 1, "distributed_optimizer": True}},
        "zero 2": {"pin": {"sharded": "gradients", "pp": 1, "tp": 1, "distributed_optimizer": True}},
        "zero 1 and a pipeline": {"pin": {"pp": 4, "recompute": "uniform", "recompute_num_layers": 1, "dp": 4}},
        "no sharding": {"pin": {"distributed_optimizer": False, "tp": 2, "pp": 2}},
        "automatic tensor": {"pin": {"tp": 4, "pp": 1, "sharded": "optimizer", "cp": 1}},
        "ulysses": {"pin": {"cp": 4, "ulysses": 4, "tp": 1, "pp": 1, "sharded": "parameters"}},
        "offload": {
            "pin": {"sharded": "parameters", "pp": 1, "tp": 1},
            "training": {"optimizer_offload": 0.5},
            "chips": {"x": chip_spec(host_link={"pcie_generation": 5, "bandwidth_gb_s": 50})},
        },
        "mixed": {"chips": MIXED, "pin": {"pp": 2, "stages": {"a": 1, "b": 1}}},
    },
    "torchtitan": {
        "parameters": {"pin": {"sharded": "parameters", "pp": 1, "tp": 1}},
        "gradients": {"pin": {"sharded": "gradients", "pp": 1, "tp": 2, "sequence_parallel": True}},
        "uneven": {"pin": UNEVEN, "batch": 32},
        "interleaved": {"pin": {"pp": 2, "vpp": 2, "sequence_parallel": True, "tp": 2}, "batch": 32},
        "a layer's place": {
            "model": {**MODEL, "layers": 7},
            "pin": {"pp": 2, "vpp": 2, "schedule": "1f1b"},
            "batch": 32,
        },
        "context": {"pin": {"cp": 2, "cp_gather": True, "pp": 1, "sharded": "parameters"}},
        "experts": {"model": EXPERTS, "pin": {"ep": 4, "etp": 1, "pp": 1, "sharded": "parameters"}},
        "groups": {"pin": {"sharding_group": 8, "sharded": "parameters", "pp": 1, "tp": 1, "cp": 1}},
        "plain tensor": {"pin": {"tp": 2, "sequence_parallel": False, "pp": 2, "recompute": "uniform"}, "batch": 32},
        "mixed": {"chips": MIXED, "pin": {"pp": 2, "stages": {"a": 1, "b": 1}}, "batch": 32},
        "whole replicas": {"pin": {"distributed_optimizer": False, "tp": 2, "pp": 2}, "batch": 32},
    },
    "accelerate": {
        "parameters": {"pin": {"sharded": "parameters", "tp": 1}},
        "gradients": {
            "stack": ANY_SHARDING,
            "pin": {"sharded": "gradients", "tp": 2, "recompute": "uniform", "recompute_num_layers": 1},
        },
        "ring": {"pin": {"cp": 2, "ulysses": 1, "cp_gather": False, "sharded": "parameters"}},
        "gather": {"pin": {"cp": 4, "cp_gather": True, "sharded": "parameters", "tp": 2}},
        "ulysses": {"pin": {"cp": 2, "ulysses": 2, "sharded": "parameters", "tp": 1}},
        "groups": {"pin": {"sharding_group": 4, "sharded": "parameters", "tp": 2, "cp": 1}},
        "replicas": {"stack": ANY_SHARDING, "pin": {"distributed_optimizer": False, "tp": 1, "cp": 1}},
        "tensor only": {
            "gpus": 4,
            "node": 4,
            "stack": ANY_SHARDING,
            "pin": {"tp": 4, "distributed_optimizer": False, "cp": 1},
        },
    },
}


@cache
def plan(target: str, name: str) -> tuple[Problem, Strategy]:
    """The best plan that the target's launcher runs for that case: 16 devices in nodes of 4 where it says no other."""
    case = {"model": MODEL, "gpus": 16, "node": 4, "batch": 32, "sequence": 2048, **CASES[target][name]}
    problem = problem_of(case.pop("chips", None), launcher=target, top=1, **case)
    result = search(problem)
    assert result.plans, f"{target}, {name}: {result.reasons}"
    return problem, result.plans[0].strategy


EXPORT: dict[str, Callable[[Problem, Strategy], Launch]] = {
    "flagscale": flagscale.export,
    "deepspeed": deepspeed.export,
    "torchtitan": torchtitan.export,
    "accelerate": accelerate.export,
}

WITH_HOST = {"x": chip_spec(host_link={"pcie_generation": 5, "bandwidth_gb_s": 50})}


def launch(target: str, name: str) -> tuple[Launch, Problem, Strategy]:
    """The target's export of the best plan of that case."""
    problem, strategy = plan(target, name)
    return EXPORT[target](problem, strategy), problem, strategy


def refused(target: str, text: str, problem: Problem | None = None, **plan_fields: Any) -> None:
    """The target refuses the plan for that reason alone."""
    strategy = strategy_of(**{"flags": "f", **plan_fields})
    with pytest.raises(CannotExpress) as caught:
        launch_of(problem or problem_of(gpus=strategy.devices, node=1), strategy, target)
    assert [reason for reason in caught.value.reasons if text not in reason] == []


def in_precision(precision: str) -> Problem:
    """The usual problem in another precision, which its chip has."""
    return problem_of({"x": chip_spec(peak_tflops={precision: 100})}, training={"precision": precision})


def yaml_of(made: Launch, name: str) -> Any:
    """A file of the launch, read."""
    return YAML(typ="safe").load(made.files[name])


def written(made: Launch, folder: Path) -> Path:
    """The launch's files in a folder; returns the main one."""
    for name, text in made.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    assert made.main is not None
    return folder / made.main
