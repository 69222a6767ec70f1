"""verl's overrides, PaddleFormers' and MindFormers' files: a plan's decisions under the names that these have."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from cpsolver.doors.export.judge import launch_of, reasons_against
from cpsolver.doors.export.launch import CannotExpress, Launch
from cpsolver.doors.export.mindformers import config as mindformers_config
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of, with_stack

ACTOR = "actor_rollout_ref.actor"
EXPERTS = {"experts": 8, "top_k": 2, "expert_ffn": 512}


def exported(target: str, groups: str, model: dict[str, Any] | None = None, **more: Any) -> Launch:
    plan = strategy_of(groups, **more)
    problem = problem_of(model=model or model_spec(layers=12, heads=8, kv_heads=8), gpus=plan.devices, batch=64)
    return launch_of(problem, plan, target)


def overrides(*args: Any, **more: Any) -> dict[str, str]:
    return dict(token.split("=", 1) for token in exported("verl", *args, **more).arguments)


def test_verls_engine_has_degrees_and_the_provider_the_rest() -> None:
    told = overrides("x:2,3,4,3", tp=2, dp=2, flags="sfz", recompute="block", amount=1)
    assert told[f"{ACTOR}.megatron.tensor_model_parallel_size"] == "2"
    assert told[f"{ACTOR}.megatron.pipeline_model_parallel_size"] == "4"
    assert told[f"{ACTOR}.megatron.sequence_parallel"] == "true"
    assert told[f"{ACTOR}.ppo_micro_batch_size_per_gpu"] == "1"
    assert told[f"{ACTOR}.ppo_mini_batch_size"] == "64"
    provider = f"++{ACTOR}.megatron.override_transformer_config"
    assert told[f"{provider}.pipeline_model_parallel_layout"] == "'Et*2|t*3|t*4|t*3L'"
    assert told[f"{provider}.recompute_method"] == "block"
    assert int(told["trainer.nnodes"]) * int(told["trainer.n_gpus_per_node"]) == 16


def test_verl_keeps_its_own_dispatcher_where_no_experts_are_apart() -> None:
    """It tells Megatron-Core variable lengths, which refuses allgather; alltoall is its own choice."""
    model = model_spec(layers=12, heads=8, kv_heads=8, moe=EXPERTS)
    alone, apart = overrides("x:12", model, dp=8, flags="fz"), overrides("x:12", model, dp=8, ep=8, flags="fz")
    dispatcher = f"++{ACTOR}.megatron.override_transformer_config.moe_token_dispatcher_type"
    assert dispatcher not in alone
    assert apart[dispatcher] == "alltoall"


def test_verl_gathers_parameters_at_once() -> None:
    told = overrides("x:12", dp=8, flags="fz")
    assert told[f"++{ACTOR}.megatron.override_ddp_config.overlap_grad_reduce"] == "true"
    assert not any("overlap_param_gather" in name for name in told)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"dp": 8, "sharded": "parameters"}, "does not share out parameters"),
        ({"dp": 8, "sharding_group": 4}, "shares out optimizer over all replicas"),
        ({"cp": 4, "ulysses": 2}, "has no context parallelism of kind a2a+p2p"),
    ],
)
def test_what_verl_does_not_tell_megatron_is_refused(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(CannotExpress, match=re.escape(reason)):
        exported("verl", "x:12", flags="fz", **more)


def plan_json(*args: Any, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(exported("paddleformers", *args, **more).files["plan.json"])
    return found


def test_paddleformers_file() -> None:
    told = plan_json("x:3,3,3,3", tp=2, dp=2, vpp=3, flags="sfz", recompute="uniform", amount=1)
    assert (told["tensor_model_parallel_size"], told["pipeline_model_parallel_size"]) == (2, 4)
    assert (told["virtual_pipeline_model_parallel_size"], told["hybrid_parallel_topo_order"]) == (3, "pp_first")
    assert (told["sharding"], told["sharding_parallel_size"]) == ("stage1", 2)
    assert (told["per_device_train_batch_size"], told["gradient_accumulation_steps"]) == (1, 32)
    assert (told["recompute_granularity"], told["recompute_num_layers"]) == ("full", 1)
    assert "expert_model_parallel_size" not in told


def test_paddleformers_overlaps_gradients_where_it_can() -> None:
    """Under a pipeline with gradients in fp32 alone; without one by the sharding's own."""
    pipeline, alone = strategy_of("x:6,6", dp=4, flags="fz"), strategy_of("x:12", dp=8, flags="fz")
    problem = problem_of(model=model_spec(layers=12, heads=8, kv_heads=8), gpus=8, batch=64)
    for width, plan, key, there in (
        (4, pipeline, "pp_sharding_comm_overlap", True),
        (4, alone, "stage1_overlap", True),
    ):
        told = with_stack(problem, gradient_bytes=width, gradient_overlap=0.9)
        assert json.loads(launch_of(told, plan, "paddleformers").files["plan.json"])[key] is there
    narrow = launch_of(with_stack(problem, gradient_bytes=2, gradient_overlap=0.9), pipeline, "paddleformers")
    assert json.loads(narrow.files["plan.json"])["pp_sharding_comm_overlap"] is False
    assert any("only in fp32" in note for note in narrow.notes)


PADDLES: list[tuple[dict[str, Any], str]] = [
    ({"groups": "x:6,6", "vpp": 3}, "interleaves with pp > 2 only: pp is 2"),
    ({"groups": "x:3,3,3,3", "vpp": 3, "dp": 8, "mbs": 2}, "4 microbatches are fewer than 2 x pp 4"),
    ({"groups": "x:6,6", "dp": 2, "flags": "f"}, "needs sharded replicas with pp 2, ep 1, dp 2"),
    ({"groups": "x:12", "tp": 4, "dp": 4, "ep": 2, "flags": "sfz"}, "ep 2 is no multiple of tp 4"),
    ({"groups": "x:5,7", "dp": 2}, "needs equal stages"),
    ({"groups": "x:12", "cp": 2}, "has no context parallelism"),
    ({"groups": "x:6,6", "recompute": "uniform", "amount": 2}, "recomputes layer by layer"),
]


@pytest.mark.parametrize(("more", "reason"), PADDLES, ids=[reason for _, reason in PADDLES])
def test_what_paddle_does_not_run_is_refused(more: dict[str, Any], reason: str) -> None:
    plan = strategy_of(**{"flags": "fz", **more})
    model = model_spec(layers=12, heads=8, kv_heads=8, moe=EXPERTS)
    problem = problem_of(model=model, gpus=plan.devices, batch=64)
    assert [told for told in reasons_against(problem, plan, "paddleformers") if reason in told]


def plan_yaml(groups: str, model: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    plan = strategy_of(groups, **more)
    problem = problem_of(model=model or model_spec(layers=14, heads=8, kv_heads=8), gpus=plan.devices, batch=64)
    launch_of(problem, plan, "mindformers")  # refuses what it cannot say
    return mindformers_config(problem, plan)


OFFSETS: list[tuple[dict[str, Any], Any]] = [
    ({"groups": "x:7,7"}, 0),
    ({"groups": "x:3,4,4,3"}, [0, 1, 1, 0]),  # 14 // 4 is 3, and 2 layers are left
    ({"groups": "x:2,6,4,2", "vpp": 2}, [[0, 2, 1, 0]] * 2),  # 14 // 8 is 1
]


@pytest.mark.parametrize(("more", "wanted"), OFFSETS)
def test_mindformers_has_layers_beyond_an_even_share(more: dict[str, Any], wanted: Any) -> None:
    told = plan_yaml(**{"dp": 2, "flags": "fz", **more})["model"]["model_config"]
    assert told["offset"] == wanted
    assert told["pp_interleave_num"] == more.get("vpp", 1)


def test_mindformers_recomputes_by_stage() -> None:
    plan = strategy_of("x:4,3,3,4", dp=2, flags="fz")
    groups = [replace(plan.groups[0], recompute="block", recompute_layers=(2, 0, 1, 3))]
    plan = replace(plan, groups=tuple(groups))
    problem = problem_of(model=model_spec(layers=14, heads=8, kv_heads=8), gpus=8, batch=64)
    assert "recompute: [2, 0, 1, 3]" in launch_of(problem, plan, "mindformers").files["plan.yaml"]


def test_mindformers_counts_microbatches_as_accumulation_without_a_pipeline() -> None:
    alone, piped = plan_yaml("x:14", dp=4, flags="fz"), plan_yaml("x:7,7", dp=2, flags="fz")
    assert (alone["runner_config"]["gradient_accumulation_steps"], alone["parallel_config"]["micro_batch_num"]) == (
        16,
        1,
    )
    assert (piped["runner_config"]["gradient_accumulation_steps"], piped["parallel_config"]["micro_batch_num"]) == (
        1,
        32,
    )


def test_mindformers_is_for_one_chip_type() -> None:
    with pytest.raises(CannotExpress, match="does not mix chip types"):
        launch_of(
            problem_of({"x": chip_spec(), "y": chip_spec(50)}, model_spec(layers=14), gpus=8, node=4, batch=64),
            strategy_of("x:7 y:7", dp=4, flags="fz"),
            "mindformers",
        )
