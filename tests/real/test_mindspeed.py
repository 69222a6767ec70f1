"""MindSpeed-LLM's own parser and checks take what is exported, and read the plan out of it.

Needs torch and regex, and checkouts in folders named by MINDSPEED, with path separators between them: Megatron-LM
core_v0.12.1, MindSpeed-LLM c77308a1 and MindSpeed 028de58. None is in the Python index: without them this is skipped.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from cpsolver.doors.export.judge import launch_of, reasons_against
from cpsolver.doors.export.launch import CannotExpress
from tests.real.megatron_cases import CASES, Case
from tests.real.readers import read
from tests.support.problems import model_spec, problem_of, strategy_of
from tests.support.special_models import compressed, selected, shortcut

READER = Path(__file__).parent / "mindspeed_read.py"
TARGET = "mindspeed-llm"


def line_of(case: Case) -> dict[str, Any] | None:
    """The exported command line; None where the target refuses the plan."""
    try:
        if reasons_against(case.problem(), case.strategy(), TARGET):
            return None
        launch = launch_of(case.problem(), case.strategy(), TARGET)
    except CannotExpress:
        return None
    there, world = dict(launch.environment), case.strategy().devices
    return {"arguments": launch.arguments, "environment": there, "world": world}


EXPERTS = model_spec(layers=8, moe={"experts": 8, "top_k": 2, "expert_ffn": 512})
OF_ITS_OWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "zero memory": (
        {"model": EXPERTS, "training": {"moe_zero_memory": "level1"}},
        {"moe_zero_memory": "level1", "moe_alltoall_overlap_comm": True, "expert_model_parallel_size": 4},
    ),
    "sums of experts' gradients": (
        {"model": EXPERTS, "training": {"gradient_accumulation_fusion": "experts", "moe_dispatcher": "allgather"}},
        {
            "gradient_accumulation_fusion": False,
            "gemm_gradient_accumulation_fusion": True,
            "moe_token_dispatcher_type": "allgather",
            "expert_model_parallel_size": 4,
        },
    ),
    "adapters": (
        {"training": {"lora": {"rank": 16, "targets": "attention"}}},
        {"lora_r": 16, "lora_alpha": 32, "lora_target_modules": ["linear_qkv", "linear_proj"]},
    ),
    "shortcuts": (
        {"model": model_spec(layers=8, **shortcut(), name="shortcuts")},
        {
            "spec": ["mindspeed_llm.tasks.models.spec.longcat_spec", "layer_spec"],
            "num_zero_experts": 2,
            "enable_mla_scale_q_lora": True,
            "expert_model_parallel_size": 4,
        },
    ),
    "compressed keys": (
        {"model": model_spec(layers=4, **compressed((0, 4, 64, 4)), name="compressed")},
        {
            "spec": ["mindspeed_llm.tasks.models.spec.deepseek4_spec", "layer_spec"],
            "position_embedding_type": "deepseek4",
            "compress_ratios": [0, 4, 64, 4],
            "hc_mult": 2,
            "o_groups": 4,
            "enable_dsa_indexer": True,
        },
    ),
    "selected keys": (
        {"model": model_spec(layers=4, **selected(64), name="selected")},
        {"enable_dsa_indexer": True, "index_topk": 64, "enable_mla_absorb": True},
    ),
}
"""What it alone has: a problem, and what it makes of that."""
LINES = {case.name: line for case in CASES if not case.training and (line := line_of(case)) is not None}
TAKEN = [case for case in CASES if case.name in LINES]


@cache
def answers() -> dict[str, dict[str, Any]]:
    """Case -> what MindSpeed-LLM makes of it."""
    return dict(zip(LINES, read(READER, ("MINDSPEED",), list(LINES.values())), strict=True))


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: case.name)
def test_mindspeed_llm_reads_the_plan(case: Case) -> None:
    found, s, model = answers()[case.name], case.strategy(), case.problem().model
    assert "error" not in found, found["error"]
    kind, whole = s.recompute[0], s.recompute[0] in ("block", "uniform")
    wanted = {
        "tensor_model_parallel_size": s.tp,
        "pipeline_model_parallel_size": s.pp,
        "context_parallel_size": s.cp,
        "data_parallel_size": s.dp,
        "sequence_parallel": s.sequence_parallel,
        "micro_batch_size": s.mbs,
        "global_batch_size": case.batch,
        "use_distributed_optimizer": s.distributed_optimizer,
        "num_layers": model.layers,
        "recompute_granularity": "full" if whole else None if kind == "none" else "selective",
        "recompute_method": kind if whole else None,
        "recompute_num_layers": s.recompute_layers[0] if whole else None,
        "use_flash_attn": s.flash_attention,
        **({"expert_model_parallel_size": s.ep} if model.moe else {}),
    }
    assert {name: found[name] for name in wanted} == wanted
    if "--num-layer-list" in LINES[case.name]["arguments"]:
        listed = found["num_layer_list"]
        assert tuple(map(int, listed.split(",") if isinstance(listed, str) else listed)) == s.layers


@pytest.mark.parametrize("name", OF_ITS_OWN)
def test_mindspeed_llm_takes_what_it_alone_has(name: str) -> None:
    given, wanted = OF_ITS_OWN[name]
    problem, plan = problem_of(**given), strategy_of(dp=4, ep=wanted.get("expert_model_parallel_size", 1))
    launch = launch_of(problem, plan, TARGET)
    line = {"arguments": launch.arguments, "environment": dict(launch.environment), "world": plan.devices}
    (found,) = read(READER, ("MINDSPEED",), [line])
    assert "error" not in found, found["error"]
    assert {field: found[field] for field in wanted} == wanted


def test_enough_plans_of_every_kind() -> None:
    plans = [case.strategy() for case in TAKEN]
    assert len(plans) >= 35
    assert any("--num-layer-list" in line["arguments"] for line in LINES.values())
    assert {s.cp_comm_type for s in plans if s.cp > 1} == {"p2p", "allgather", "a2a", "a2a+p2p"}
