"""verl's own configuration, engine and optimizer take exported overrides, and read the plan out of them.

Needs torch, transformers, tensordict, Ray, Hydra, a Megatron-LM with megatron.training (MEGATRON_LM), Megatron-Bridge's
code (MEGATRON_BRIDGE) and verl's, named by VERL: release 0.9.1 unpacked.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.export import model_args
from cpsolver.doors.export.bridge import fields
from cpsolver.doors.export.judge import launch_of, reasons_against
from cpsolver.doors.export.parallel_args import stage_chunks
from cpsolver.doors.export.verl import DIALECT
from tests.real.megatron_cases import CASES, Case
from tests.real.readers import BRIDGE, read

READER = Path(__file__).parent / "verl_read.py"
VERL = [
    case
    for case in CASES
    if case.training.get("precision", "bf16") == "bf16"
    and not case.training.keys() & {"cuda_graph", "moe_dispatcher", "distribute_saved_activations", "dropout"}
    and case.training.get("optimizer") not in ("muon", "soap")
    and not reasons_against(case.problem(), case.strategy(), "verl")
]


def line_of(case: Case) -> dict[str, Any]:
    problem, model = case.problem(), case.problem().model
    flags = (*model_args.model_flags(model, case.sequence, DIALECT), *model_args.expert_flags(model, DIALECT))
    shape = {name.removeprefix("model."): value for name, value in fields(flags)}
    if model.moe is not None:
        shape["moe_layer_freq"] = [int(model.has_experts(layer)) for layer in range(model.layers)]
    latent = model.attention.kind == "mla"
    return {"overrides": launch_of(problem, case.strategy(), "verl").arguments, "shape": shape, "latent": latent}


@cache
def answers() -> dict[str, dict[str, Any]]:
    """Case -> what verl makes of it."""
    for package in ("transformers", "tensordict", "ray", "hydra"):
        pytest.importorskip(package)
    found = read(READER, (*BRIDGE, "VERL"), map(line_of, VERL))
    return dict(zip([case.name for case in VERL], found, strict=True))


@pytest.mark.parametrize("case", VERL, ids=lambda case: case.name)
def test_verl_reads_the_plan(case: Case) -> None:
    found, s, model = answers()[case.name], case.strategy(), case.problem().model
    assert "error" not in found, found["error"]
    assert found["chunks"] == [list(chunks) for chunks in stage_chunks(s)]
    sizes = (s.devices, s.dp, s.microbatches(case.batch))
    assert (found["devices"], found["replicas"], found["microbatches"]) == sizes
    assert not found["dynamic"]
    wanted = _model(case)
    assert {name: found["model"][name] for name in wanted} == wanted
    assert found["mtp_num_layers"] == (model.mtp_layers or None)
    assert found["ddp"]["use_distributed_optimizer"] == s.distributed_optimizer
    assert found["ddp"]["overlap_param_gather"] is False
    assert found["ddp"]["overlap_grad_reduce"] == (s.dp * s.cp > 1 and case.stack.get("gradient_overlap", 1) > 0)
    told = found["optimizer"]
    assert (told["optimizer"], told["use_distributed_optimizer"]) == ("adam", str(s.distributed_optimizer))
    offloaded = case.training.get("optimizer_offload", 0) > 0
    assert told["optimizer_cpu_offload"] == told["use_precision_aware_optimizer"] == str(offloaded)


def _model(case: Case) -> dict[str, Any]:
    s = case.strategy()
    kind, whole = s.recompute[0], s.recompute[0] in ("block", "uniform")
    latent, moe = case.problem().model.attention.kind == "mla", case.problem().model.moe
    backend = "unfused" if not s.flash_attention else "auto" if latent else "flash"
    experts = {"expert_model_parallel_size": s.ep, "expert_tensor_parallel_size": s.etp} if moe else {}
    return {
        "tensor_model_parallel_size": s.tp,
        "pipeline_model_parallel_size": s.pp,
        "virtual_pipeline_model_parallel_size": s.vpp if s.vpp > 1 else None,
        "context_parallel_size": s.cp,
        "sequence_parallel": s.sequence_parallel,
        "recompute_granularity": "full" if whole else None if kind == "none" else "selective",
        "recompute_method": kind if whole else None,
        "recompute_num_layers": s.recompute_layers[0] if whole else None,
        "attention_backend": f"AttnBackend.{backend}",
        **({"cp_comm_type": s.cp_comm_type} if s.cp > 1 else {}),
        **experts,
    }


def test_enough_plans_of_every_kind() -> None:
    plans = [case.strategy() for case in VERL]
    assert len(plans) >= 25
    assert any(s.vpp > 1 for s in plans)
    assert any(len(set(s.layers)) > 2 for s in plans)
    assert any(s.ep > 1 for s in plans)
    assert {s.cp_comm_type for s in plans if s.cp > 1} == {"p2p", "allgather", "a2a"}
