"""What a search proposes for a launcher, that launcher's export can say: none of the best plans is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from cpsolver.doors.export.judge import launch_of
from cpsolver.doors.export.launch import CannotExpress, exporter
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import launcher_names, load_launcher
from cpsolver.search.search import search
from tests.support.problems import chip_spec, model_spec, problem_of
from tests.support.selection import full, only

DENSE = model_spec(layers=6, heads=8, kv_heads=4)
EXPERTS = {"experts": 4, "top_k": 2, "expert_ffn": 512}
MIXED = {"a": {"max": 4, "spec": chip_spec(gb=5)}, "b": {"max": 4, "spec": chip_spec(tflops=50, gb=4.3)}}
WHOLE: dict[str, Any] = {"flash_attention": True, "recompute": "none"}
SPECS: dict[str, dict[str, Any]] = {
    "dense": {"model": model_spec(layers=6)},
    "grouped queries, few microbatches": {"model": DENSE, "batch": 4, "pin": {"flash_attention": [False, True]}},
    "experts": {"model": {**DENSE, "moe": EXPERTS}, "pin": {"mbs": 1, "recompute": "none"}},
    "long": {"model": DENSE, "sequence": 16_384, "batch": 4, "pin": {"cp": [2, 4, 8], **WHOLE}},
    "uneven": {"model": {**DENSE, "layers": 7}, "pin": {"pp": [1, 2, 4], "sharding_group": [0, 2, 4], **WHOLE}},
    "prediction": {"model": {**DENSE, "mtp_layers": 1}, "pin": {"cp": [1, 2], **WHOLE}},
    "tight": {"chips": {"x": chip_spec(gb=4.4)}, "sequence": 4096, "recompute_scope": "stage"},
    "mixed": {"chips": MIXED, "model": DENSE, "sequence": 2048, "pin": {"mbs": [1, 2], "cp": [1, 2]}},
}
"""8 devices in nodes of 4, where a spec says no other."""
NONE = (
    *(("mixed", "accelerate"), ("mixed", "verl"), ("mixed", "mindformers"), ("long", "paddleformers")),
    *((name, "megatron-deepspeed") for name in ("long", "uneven", "prediction")),
)
"""Launchers that mix no chips, or have no context parallelism, stages of other sizes or multi-token prediction."""


def problem(launcher: str, given: dict[str, Any]) -> Problem:
    told = {"model": DENSE, "gpus": 8, "node": 4, "batch": 16, **given}
    return problem_of(told.pop("chips", None), launcher=launcher, **{"top": 6, **told})


def _quick(name: str, launcher: str) -> bool:
    """Every spec and every launcher, in turn."""
    return (list(SPECS).index(name) - launcher_names().index(launcher)) % len(SPECS) == 0


@pytest.mark.parametrize(("name", "launcher"), only(_quick, product(SPECS, launcher_names())))
def test_the_launchers_export_can_say_every_plan(launcher: str, name: str) -> None:
    asked = problem(launcher, SPECS[name])
    found = search(asked)
    assert found.status == "optimal" or (name, launcher) in NONE, found.reasons
    for plan in found.plans:
        exporter(launcher)(asked, plan.strategy)


STAGES = {"pp": 2, "tp": 1, "mbs": 1, "flash_attention": True, "recompute": ["none", "block"]}
BY_STAGE: dict[str, Any] = {"chips": {"x": chip_spec(gb=4.6)}, "recompute_scope": "stage", "sequence": 4096}
LESS = {"x": chip_spec(gb=4.0)}
UNEVEN = {"pp": 4, "tp": 1, "layers": [1, 3, 2, 1], **WHOLE}
FACTS: list[Any] = [
    ("deepspeed", "sharding_groups", ("parameters",), {"pin": {"sharding_group": 2, "sharded": "parameters"}}),
    ("deepspeed", "context_pipeline", True, {"pin": {"cp": 2, "pp": 2}}),
    ("torchtitan", "flash_attention", (False, True), {"stack": "megatron-core", "pin": {"flash_attention": False}}),
    (
        "torchtitan",
        "few_microbatches",
        True,
        {"stack": "megatron-core", "batch": 4, "pin": {"pp": [2, 4], "vpp": 1, "mbs": 4}},
    ),
    ("torchtitan", "plain_context", True, {"stack": "megatron-core", "pin": {"cp": 2, "distributed_optimizer": False}}),
    (
        "torchtitan",
        "mtp_parallel",
        True,
        {"stack": "megatron-core", "model": {**DENSE, "mtp_layers": 1}, "pin": {"pp": 2}},
    ),
    (
        "torchtitan",
        "mtp_parallel",
        True,
        {"stack": "megatron-core", "model": {**DENSE, "mtp_layers": 1}, "pin": {"cp": 2}},
    ),
    (
        "accelerate",
        "plain_context",
        True,
        {"stack": "megatron-core", "pin": {"cp": 4, "tp": 2, "ulysses": 1, "distributed_optimizer": False}},
    ),
    (
        "accelerate",
        "context_groups",
        True,
        {"stack": "megatron-core", "pin": {"cp": 2, "ulysses": 1, "sharding_group": 2}},
    ),
    ("accelerate", "ulysses_tensor", True, {"stack": "megatron-core", "pin": {"cp": 2, "ulysses": 2, "tp": 2}}),
    (
        "accelerate",
        "ulysses_groups",
        True,
        {"stack": "megatron-core", "pin": {"cp": 2, "ulysses": 2, "sharding_group": 4}},
    ),
    full(
        "flagscale",
        "uneven_groups",
        "any",
        {"model": {**DENSE, "layers": 7}, "pin": {**UNEVEN, "sharding_group": 2}, "gpus": 16},
    ),
    full(
        "flagscale",
        "recompute_by_stage_context",
        True,
        {**BY_STAGE, "chips": LESS, "pin": {**STAGES, "cp": 2, "vpp": 1}},
    ),
    full("flagscale", "recompute_by_stage_interleaving", True, {**BY_STAGE, "pin": {**STAGES, "cp": 1, "vpp": 3}}),
    full(
        "flagscale", "recompute_by_stage_groups", True, {**BY_STAGE, "pin": {**STAGES, "vpp": 1, "sharding_group": 2}}
    ),
    ("loongforge", "recompute_by_stage_interleaving", True, {**BY_STAGE, "pin": {**STAGES, "cp": 1, "vpp": 3}}),
    full("megatron-core-0.13", "uneven_mtp", "any", {"model": {**DENSE, "layers": 7, "mtp_layers": 1}, "pin": UNEVEN}),
]
"""Launcher, fact, what it would be if nobody had looked, and a spec whose best plans it keeps away."""


@pytest.mark.parametrize(("launcher", "fact", "unsaid", "given"), FACTS)
def test_each_fact_keeps_away_what_cannot_be_said(launcher: str, fact: str, unsaid: Any, given: dict[str, Any]) -> None:
    asked = problem(launcher, given)
    without = replace(asked, launcher=load_launcher(launcher).model_copy(update={fact: unsaid}))
    refused = 0
    for plan in search(without).plans:
        try:
            launch_of(asked, plan.strategy, launcher)
        except CannotExpress:
            refused += 1
    assert refused
    for plan in search(asked).plans:
        exporter(launcher)(asked, plan.strategy)
