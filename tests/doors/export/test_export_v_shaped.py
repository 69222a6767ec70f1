"""Stages placed as a V, as frameworks are told of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpsolver.doors.export.launch import CannotExpress
from cpsolver.doors.export.shared import layers_by_part
from cpsolver.doors.export.torchtitan import parallelism
from cpsolver.plans.strategy import StageGroup, Strategy
from tests.doors.export.test_export_megatron import exported
from tests.support.problems import model_spec, strategy_of
from tests.support.special_models import LATENT


def v(layers: str, schedule: str, dp: int = 1) -> Strategy:
    plan = strategy_of(f"x:{layers}", dp=dp, vpp=2, flags="f")
    return replace(plan, schedule=schedule)  # type: ignore[arg-type]


def test_torchtitan_is_told_the_schedule_and_the_parts() -> None:
    """Chunks 0 1, 2 3, 4 5 and 6, of which the first and the last are on the first stage."""
    plan = v("3,4", "zbv")
    assert layers_by_part(plan) == ((0, 1), (2, 3), (4, 5), (6,))
    section = parallelism(plan)
    assert section["pipeline_parallel_schedule"] == "ZBVZeroBubble"
    assert section["module_fqns_per_model_part"] == [
        ["tok_embeddings", "layers.0", "layers.1"],
        ["layers.2", "layers.3"],
        ["layers.4", "layers.5"],
        ["layers.6", "norm", "lm_head"],
    ]
    assert parallelism(v("3,4", "dualpipev"))["pipeline_parallel_schedule"] == "DualPipeV"
    looped = parallelism(v("4,4", "breadth_first"))
    assert looped["pipeline_parallel_schedule"] == "LoopedBFS"
    ends = [part[-1] for part in looped["module_fqns_per_model_part"]]
    assert ends == ["layers.1", "layers.3", "layers.5", "lm_head"]


def test_mindspeed_is_told_the_schedule_and_nothing_that_it_refuses() -> None:
    told = exported("mindspeed-llm", v("2,2", "dualpipev", dp=2), stack="megatron-core", batch=16)
    assert told["--schedules-method"] == ("dualpipev",)
    assert "--dualpipev-dw-detach" in told
    assert not {"--overlap-grad-reduce", "--num-layer-list", "--num-layers-per-virtual-pipeline-stage"} & told.keys()
    plain = exported("mindspeed-llm", strategy_of("x:2,2", dp=2), stack="megatron-core", batch=16)
    assert "--overlap-grad-reduce" in plain


def test_mindspeed_fills_shorter_chunks_of_a_v_with_layers_that_do_nothing() -> None:
    """Stage 0 has chunks of 3 and 2 layers, stage 1 of 2 and 2 of 3 places: chunks 0, 1, 2, 3 of 12 places."""
    told = exported(
        "mindspeed-llm", v("5,4", "dualpipev", dp=2), stack="megatron-core", batch=16, model=model_spec(layers=9)
    )
    assert (told["--num-layers"], told["--noop-layers"]) == (("12",), ("5,8,11",))
    even = exported("mindspeed-llm", v("2,2", "dualpipev", dp=2), stack="megatron-core", batch=16)
    assert even["--num-layers"] == ("4",)
    assert "--noop-layers" not in even


def test_layers_of_another_kind_stand_before_those_that_do_nothing() -> None:
    """Chunk 0 has 3 places of 12: where it has 2 layers, the third of 3 dense layers would lose its number."""
    model = model_spec(layers=9, moe={"experts": 4, "expert_ffn": 512, "top_k": 2, "first_dense": 3})
    given: dict[str, Any] = {"stack": "megatron-core", "batch": 16, "model": model}
    told = exported("mindspeed-llm", v("5,4", "dualpipev", dp=2), **given)
    assert told["--first-k-dense-replace"] == ("3",)
    with pytest.raises(CannotExpress, match="layers of several kinds"):
        exported("mindspeed-llm", v("3,6", "dualpipev", dp=2), **given)


@pytest.mark.parametrize(
    ("changed", "there"),
    [
        ({}, True),
        ({"ep": 1}, False),
        ({"recompute": "block"}, True),
        ({"recompute": "uniform"}, True),
        ({"recompute": "uniform", "number": 2}, False),
        ({"recompute": "selective"}, False),
    ],
)
def test_mindspeed_runs_forwards_beside_backwards_where_its_layers_can(changed: dict[str, Any], there: bool) -> None:
    """Four experts on two ranks, cut by nothing else. No plan of 1F1B has it."""
    kind = changed.get("recompute", "none")
    amounts = (changed.get("number", 1),) * 2 if kind in ("block", "uniform") else (0, 0)
    group = StageGroup("x", (4, 4), kind, amounts, ("core_attn",) if kind == "selective" else ())
    plan = replace(v("4,4", "dualpipev", dp=2), ep=changed.get("ep", 2), groups=(group,))
    model = model_spec(layers=8, moe={"experts": 4, "top_k": 1, "expert_ffn": 512})
    given: dict[str, Any] = {"model": model, "stack": "mindspeed", "batch": 16}
    told = exported("mindspeed-llm", plan, **given)
    assert ("--moe-fb-overlap" in told) == there
    assert "--moe-fb-overlap" not in exported("mindspeed-llm", replace(plan, schedule="1f1b", vpp=1), **given)


def test_results_of_attention_s_core_go_to_the_host_beside_passes_that_run_together() -> None:
    plan = replace(v("4,4", "dualpipev", dp=2), ep=2)
    model = model_spec(layers=8, attention=LATENT, moe={"experts": 4, "top_k": 1, "expert_ffn": 512})
    training = {"mla_swap_core_attn_out": True, "recompute_mla_up_proj": True}
    given: dict[str, Any] = {"model": model, "stack": "mindspeed", "batch": 16, "training": training}
    told = exported("mindspeed-llm", plan, **given)
    wanted = {"--mla-swap-core-attn-out", "--moe-fb-overlap", "--recompute-mla-up-proj"}
    assert wanted <= told.keys()
    with pytest.raises(CannotExpress, match=r"training\.mla_swap_core_attn_out"):
        exported("megatron-lm", replace(plan, schedule="1f1b", vpp=1), **given)


@pytest.mark.parametrize(("level", "schedule"), [("level0", "dualpipev"), ("level1", "dualpipev"), ("level0", "1f1b")])
def test_experts_that_keep_little_need_one_of_two_overlaps(level: str, schedule: Any) -> None:
    plan = replace(v("4,4", "dualpipev", dp=2), ep=2)
    plan = plan if schedule == "dualpipev" else replace(plan, schedule=schedule, vpp=1)
    model = model_spec(layers=8, moe={"experts": 4, "top_k": 1, "expert_ffn": 512})
    training = {"moe_zero_memory": level}
    given: dict[str, Any] = {"model": model, "stack": "mindspeed", "batch": 16, "training": training}
    told = exported("mindspeed-llm", plan, **given)
    assert told["--moe-zero-memory"] == (level,)
    beside = schedule == "dualpipev" and level == "level0"
    assert ("--moe-fb-overlap" in told, "--moe-alltoall-overlap-comm" in told) == (beside, not beside)
    with pytest.raises(CannotExpress, match=r"training\.moe_zero_memory"):
        exported("megatron-lm", replace(plan, schedule="1f1b", vpp=1), **given)
