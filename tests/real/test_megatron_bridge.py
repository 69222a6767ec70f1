"""Megatron-Bridge's own recipe, provider and checks take exported files and overrides, and read the plan out of them.

Needs torch, transformers, a Megatron-LM with megatron.training (MEGATRON_LM) and Megatron-Bridge's code, named by
MEGATRON_BRIDGE: release 0.6.2 unpacked. Neither Transformer Engine nor a device is needed: nothing is built or trained.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from cpsolver.doors.export.judge import launch_of
from cpsolver.doors.export.parallel_args import stage_chunks
from cpsolver.profiles.framework import load_launcher
from models_zoo import load_architecture
from tests.real.megatron_cases import CASES, Case
from tests.real.readers import BRIDGE, read

READER = Path(__file__).parent / "bridge_read.py"
PROFILE = load_launcher("megatron-bridge")
BRIDGED = [
    case
    for case in CASES
    if "megatron-lm" in case.targets
    and not PROFILE.untrained(load_architecture(case.model))
    and case.training.get("optimizer", "adam") in PROFILE.optimizers
]
OVERRIDDEN = BRIDGED[::6]
"""Cases whose overrides are tried too."""


def line_of(case: Case) -> dict[str, Any]:
    launch = launch_of(case.problem(), case.strategy(), "megatron-bridge")
    there, world = dict(launch.environment), case.strategy().devices
    overrides = launch.arguments if case in OVERRIDDEN else ()
    return {"plan": launch.files["plan.py"], "overrides": overrides, "environment": there, "world": world}


@cache
def answers() -> dict[str, dict[str, Any]]:
    """Case -> what Megatron-Bridge makes of it."""
    pytest.importorskip("transformers")
    found = read(READER, BRIDGE, map(line_of, BRIDGED))
    return dict(zip([case.name for case in BRIDGED], found, strict=True))


@pytest.mark.parametrize("case", BRIDGED, ids=lambda case: case.name)
def test_megatron_bridge_reads_the_plan(case: Case) -> None:
    found = answers()[case.name]
    assert "error" not in found, found["error"]
    s, problem = case.strategy(), case.problem()
    assert found["chunks"] == [list(chunks) for chunks in stage_chunks(s)]
    assert (found["data_parallel_size"], found["microbatches"]) == (s.dp, s.microbatches(case.batch))
    for part, wanted in (("model", _model(case)), ("ddp", _sharing(case)), ("optimizer", _optimizer(case))):
        assert {name: found[part][name] for name in wanted} == wanted
    assert found["train"] == {"micro_batch_size": s.mbs, "global_batch_size": problem.batch}
    for other in found["overridden"]:  # but for what overrides cannot say, as a note tells
        for part, name in (("model", "attention_backend"), ("ddp", "grad_reduce_in_fp32"), ("ddp", "fp8_param_gather")):
            other[part][name] = found[part][name]
        assert other == {name: value for name, value in found.items() if name != "overridden"}


def _model(case: Case) -> dict[str, Any]:
    s, model, precision = case.strategy(), case.problem().model, case.problem().spec.training.precision
    kind, whole = s.recompute[0], s.recompute[0] in ("block", "uniform")
    backend = "unfused" if not s.flash_attention else "auto" if model.attention.kind == "mla" else "flash"
    experts = {"expert_model_parallel_size": s.ep, "expert_tensor_parallel_size": s.etp} if model.moe else {}
    context = {"cp_comm_type": s.cp_comm_type} if s.cp > 1 else {}
    return {
        "tensor_model_parallel_size": s.tp,
        "pipeline_model_parallel_size": s.pp,
        "context_parallel_size": s.cp,
        "virtual_pipeline_model_parallel_size": s.vpp if s.vpp > 1 else None,
        "sequence_parallel": s.sequence_parallel,
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "num_moe_experts": model.moe.experts if model.moe else None,
        "num_query_groups": model.heads if model.attention.kind == "mla" else model.kv_heads,
        "mtp_num_layers": model.mtp_layers or None,
        "add_bias_linear": model.bias_mlp,
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "gated_linear_unit": model.gated_mlp,
        "recompute_granularity": "full" if whole else None if kind == "none" else "selective",
        "recompute_method": kind if whole else None,
        "recompute_num_layers": s.recompute_layers[0] if whole else None,
        "distribute_saved_activations": whole and case.training.get("distribute_saved_activations", False),
        "fp16": precision == "fp16",
        "bf16": precision != "fp16",
        "attention_backend": f"AttnBackend.{backend}",
        **experts,
        **context,
    }


def _sharing(case: Case) -> dict[str, Any]:
    s = case.strategy()
    instances = s.dp * s.cp // s.sharding_group if s.sharding_group else 1
    told = {"gradients": "optim_grads", "parameters": "optim_grads_params"}
    strategy = {"data_parallel_sharding_strategy": told[s.sharded]} if s.sharded in told else {}
    return {
        "use_distributed_optimizer": s.distributed_optimizer,
        "num_distributed_optimizer_instances": instances,
        "use_megatron_fsdp": s.sharded in told and s.distributed_optimizer,
        "grad_reduce_in_fp32": case.stack.get("gradient_reduce_bytes") != 2,
        **strategy,
    }


def _optimizer(case: Case) -> dict[str, Any]:
    offloaded = case.training.get("optimizer_offload", 0) > 0
    return {
        "optimizer": "adam",
        "use_distributed_optimizer": case.strategy().distributed_optimizer,
        "optimizer_cpu_offload": offloaded,
    }
