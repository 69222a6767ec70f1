"""Megatron-LM's own parser takes what is exported and reads the plan out of it; its groups are our rank maps.

The parser: `megatron.training` of this interpreter, or a checkout named by MEGATRON_LM (main, core 0.16.1 or later),
MEGATRON_LM_0_13 and MEGATRON_LM_0_12; what is not there is skipped. The groups: megatron-core on torch's fake backend.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from cpsolver.doors.export.judge import launch_of
from cpsolver.doors.export.parallel_args import stage_chunks
from cpsolver.problem.ranks import rank_map
from models_zoo import Architecture
from tests.real.megatron_cases import CASES, LAUNCHES, MODELS, Case

HERE = Path(__file__).parent
SOURCES = {
    "megatron-lm": "MEGATRON_LM",
    "megatron-core-0.13": "MEGATRON_LM_0_13",
    "megatron-core-0.12": "MEGATRON_LM_0_12",
}
ALL = (*CASES, *MODELS)
PAIRS = [(target, case) for target in LAUNCHES for case in ALL if target in case.targets]


def line_of(target: str, case: Case) -> dict[str, Any]:
    launch = launch_of(case.problem(), case.strategy(), target)
    there = dict(launch.environment)
    return {"arguments": launch.arguments, "environment": there, "world": case.strategy().devices}


@cache
def answers(target: str) -> dict[str, dict[str, Any]]:
    """Case -> what the target's parser makes of it."""
    source = os.environ.get(SOURCES[target])
    if source is None and (target != "megatron-lm" or find_spec("megatron.training") is None):
        pytest.skip(f"no megatron.training of that version: name a checkout by {SOURCES[target]}")
    cases = [case for case in ALL if target in case.targets]
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(HERE / "megatron_parse.py")],
        input=json.dumps([line_of(target, case) for case in cases]),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip([case.name for case in cases], json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("target", "case"), PAIRS, ids=[f"{target}: {case.name}" for target, case in PAIRS])
def test_the_parser_reads_the_plan(target: str, case: Case) -> None:
    read = answers(target)[case.name]
    assert "error" not in read, read["error"]
    s, model = case.strategy(), case.problem().model
    assert read["chunks"] == [list(chunks) for chunks in stage_chunks(s)]
    assert read["microbatches"] == s.microbatches(case.batch)
    wanted = {
        "tensor_model_parallel_size": s.tp,
        "pipeline_model_parallel_size": s.pp,
        "context_parallel_size": s.cp,
        "data_parallel_size": s.dp,
        "virtual_pipeline_model_parallel_size": s.vpp if s.vpp > 1 else None,
        "sequence_parallel": s.sequence_parallel,
        "micro_batch_size": s.mbs,
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        **_gate(model, target),
        "add_bias_linear": model.bias_mlp and (model.moe is None or target == "megatron-lm"),
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        "mtp_num_layers": model.mtp_layers or None,
        **({"expert_model_parallel_size": s.ep, "expert_tensor_parallel_size": s.etp} if model.moe else {}),
        **({"cp_comm_type": [s.cp_comm_type]} if s.cp > 1 else {}),
        **_recomputation(case),
        **_sharding(case),
        **_optimizer(case, target),
    }
    assert {name: read[name] for name in wanted} == wanted


def _gate(model: Architecture, target: str) -> dict[str, Any]:
    if model.activation != "quick_geglu" or target != "megatron-lm":
        return {"swiglu": model.gated_mlp}
    values = {"glu_linear_offset": model.gate_offset, "activation_func_clamp_value": model.activation_clamp}
    return {"swiglu": False, "quick_geglu": True, **values}


def _recomputation(case: Case) -> dict[str, Any]:
    s = case.strategy()
    kind, whole = s.recompute[0], s.recompute[0] in ("block", "uniform")
    return {
        "recompute_granularity": "full" if whole else None if kind == "none" else "selective",
        "recompute_method": kind if whole else None,
        "recompute_num_layers": s.recompute_layers[0] if whole else None,
        "distribute_saved_activations": whole and case.training.get("distribute_saved_activations", False),
        **({"recompute_modules": list(s.recompute_modules[0])} if kind == "selective" else {}),
    }


def _sharding(case: Case) -> dict[str, Any]:
    s = case.strategy()
    told = {"gradients": "optim_grads", "parameters": "optim_grads_params"}
    instances = s.dp * s.cp // s.sharding_group if s.sharding_group else 1
    strategy = {"data_parallel_sharding_strategy": told[s.sharded]} if s.sharded in told else {}
    return {"num_distributed_optimizer_instances": instances, **strategy}


def _optimizer(case: Case, target: str) -> dict[str, Any]:
    """One of whole matrices has a distributed optimizer of its own, which the parser turns the usual one into."""
    training, sharded = case.problem().spec.training, case.strategy().distributed_optimizer
    if not training.whole_matrices:
        return {"use_distributed_optimizer": sharded, "optimizer": "adam"}
    told: dict[str, Any] = {"optimizer": training.optimizer}
    if training.optimizer == "muon":
        told |= {"muon_tp_mode": training.muon_tp_mode, "muon_num_ns_steps": 5}
    return {**told, "use_distributed_optimizer": False, "use_layer_wise_distributed_optimizer": sharded}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_groups_are_megatrons(case: Case) -> None:
    from tests.real.megatron_groups import groups_of

    s = case.strategy()
    if s.devices > 64:
        pytest.skip("a process group for each of many ranks takes minutes")
    ours = {kind: groups.tolist() for kind, groups in rank_map(case.problem(), s).groups.items()}
    theirs = groups_of(s)
    assert set(theirs) <= set(ours) | {"ep", "etp", "edp", "expert_instance"}
    assert {kind: ours[kind] for kind in theirs if kind in ours} == {
        kind: theirs[kind] for kind in theirs if kind in ours
    }


def test_enough_plans_of_every_kind() -> None:
    plans = [case.strategy() for case in CASES]
    assert len(CASES) >= 20
    assert sum(s.devices <= 64 for s in plans) >= 20
    assert any(s.vpp > 1 for s in plans)
    assert any(case.problem().model.moe is not None and case.strategy().vpp > 1 for case in CASES)
    assert {s.cp_comm_type for s in plans if s.cp > 1} == {"p2p", "allgather", "a2a", "a2a+p2p"}
