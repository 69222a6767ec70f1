"""PaddleFormers' own arguments take exported files; PaddlePaddle's groups of ranks are our rank map.

Needs PaddlePaddle, PaddleFormers' code (release 1.2.0 unpacked) and what it imports, in folders named by PADDLE, with
path separators between them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.export.judge import launch_of
from cpsolver.problem.ranks import rank_map
from cpsolver.rules import violations
from tests.real.megatron_cases import Case
from tests.real.readers import read

READER = Path(__file__).parent / "paddle_read.py"
TARGET = "paddleformers"


def _case(name: str, model: str, groups: str, flags: str = "sfz", **more: Any) -> Case:
    own = {key: more.pop(key) for key in ("batch", "training", "stack") if key in more}
    return Case(name, model, groups, more={"flags": flags, **more}, **own)


CASES = (
    _case("one stage", "llama3.1-8b", "x:32", tp=4, dp=2),
    _case("pipeline", "llama3.1-8b", "x:8,8,8,8", tp=2, dp=2),
    _case("interleaved", "llama3.1-8b", "x:8,8,8,8", tp=2, dp=2, vpp=4),
    _case("recomputed", "llama3.1-8b", "x:8,8,8,8", tp=2, dp=4, recompute="uniform", amount=1),
    _case("unfused", "llama3.1-8b", "x:16,16", flags="z", tp=1, dp=4),
    _case("ZeRO-2", "llama3.1-8b", "x:32", tp=2, dp=4, sharded="gradients"),
    _case("ZeRO-3", "llama3.1-8b", "x:32", flags="fz", tp=1, dp=8, sharded="parameters"),
    _case("replicas alone", "llama3.1-8b", "x:32", flags="f", tp=1, dp=8),
    _case("one replica", "llama3.1-8b", "x:8,8,8,8", flags="sf", tp=2, dp=1),
    _case("experts", "qwen3-30b-a3b", "x:12,12,12,12", tp=2, dp=8, ep=8),
    _case("experts, all ranks", "qwen3-30b-a3b", "x:48", flags="fz", tp=1, dp=8, ep=8),
    _case("fp16", "llama3.1-8b", "x:16,16", tp=2, dp=2, training={"precision": "fp16", "dropout": True}),
    _case("16-bit gradients", "llama3.1-8b", "x:16,16", tp=2, dp=2, stack={"gradient_bytes": 2}),
    _case("nothing hidden", "llama3.1-8b", "x:16,16", tp=2, dp=2, stack={"gradient_overlap": 0}),
)


def config_of(case: Case) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(launch_of(case.problem(), case.strategy(), TARGET).files["plan.json"])
    return found


@cache
def answers() -> dict[str, dict[str, Any]]:
    """Case -> what PaddleFormers makes of it."""
    cases = ({"config": config_of(case), "world": case.strategy().devices} for case in CASES)
    return dict(zip([case.name for case in CASES], read(READER, ("PADDLE",), cases), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_paddleformers_reads_the_plan(case: Case) -> None:
    found, s, problem = answers()[case.name], case.strategy(), case.problem()
    assert "error" not in found, found["error"]
    wanted = {
        "virtual_pipeline_model_parallel_size": s.vpp,
        "sequence_parallel": s.sequence_parallel,
        "per_device_train_batch_size": s.mbs,
        "gradient_accumulation_steps": s.microbatches(problem.batch),
        "global_batch_size": problem.batch,
        "max_seq_len": problem.sequence,
        "fp16": case.training.get("precision") == "fp16",
        "bf16": case.training.get("precision") != "fp16",
        "fp16_opt_level": "O2",
        "amp_master_grad": case.stack.get("gradient_bytes", 4) == 4,
        "attention": "flashmask" if s.flash_attention else "eager",
        **_recomputation(case),
        **(_degrees(case) if s.distributed_optimizer or s.tp * s.pp > 1 else {"data_parallel_size": s.dp}),
    }
    assert {name: found[name] for name in wanted} == wanted


def _recomputation(case: Case) -> dict[str, Any]:
    whole = case.strategy().recompute[0] == "uniform"
    return {
        "recompute_granularity": "full" if whole else None,
        "recompute_method": "uniform" if whole else None,
        "recompute_num_layers": 1 if whole else None,
    }


def _degrees(case: Case) -> dict[str, Any]:
    s = case.strategy()
    stage = {"optimizer": "stage1", "gradients": "stage2", "parameters": "stage3"}[s.sharded]
    return {
        "tensor_model_parallel_size": s.tp,
        "pipeline_model_parallel_size": s.pp,
        "expert_model_parallel_size": s.ep,
        "sharding": [stage] if s.distributed_optimizer else [],
        "sharding_parallel_size": s.dp if s.distributed_optimizer else 1,
        "data_parallel_size": 1,
    }


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "replicas alone"], ids=lambda case: case.name)
def test_the_groups_are_paddles(case: Case) -> None:
    theirs, ours = answers()[case.name]["groups"], rank_map(case.problem(), case.strategy()).groups
    assert {kind: sorted(groups) for kind, groups in theirs.items()} == {
        kind: sorted(ours[kind].tolist()) for kind in theirs
    }


def test_the_plans_are_legal() -> None:
    assert not [(case.name, broken) for case in CASES for broken in violations(case.problem(), case.strategy())]
