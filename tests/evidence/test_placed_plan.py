"""From a row of the table to a problem and a plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cpsolver.evaluation.evaluate import stage_parameters
from cpsolver.evidence.intervals import UNSEEN
from cpsolver.evidence.runs.plan import Unpredictable, architecture, framework, placed_plan
from cpsolver.evidence.runs.run import MeasuredRun, Prediction
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from cpsolver.evidence.runs.validation import predict, validate
from cpsolver.profiles.constants import load_calibration
from tests.support.measured import runs


@cache
def published() -> dict[str, MeasuredRun]:
    return {run.id: run for run in read_runs(PUBLISHED).runs}


@pytest.mark.parametrize(
    ("name", "stack"),
    [
        ("", "megatron-core"),
        ("MindSpeed", "mindspeed"),
        ("nemo 24.12", "nemo"),
        ("NeMo 24.03.01", "nemo-2024"),
        ("NeMo AutoModel (PyTorch FSDP2)", "fsdp-torchtitan"),
        ("Megatron-Core 0.12", "megatron-core-0.12"),
        ("Megatron-Core", "megatron-core"),
        ("Megatron-DeepSpeed (BigScience)", "megatron-deepspeed-bloom"),
        ("Megatron-Core 0.17 (dev branch, MoE recipes)", "megatron-lm-moe"),
        ("MindFormers 1.5.0 (MindSpore)", "mindformers"),
        ("Megatron-Core (AMD Primus)", "primus"),
        ("HAI-LLM (DeepSeek)", "deepseek"),
    ],
)
def test_a_framework_is_known_by_its_longest_prefix_or_a_stacks_name(name: str, stack: str) -> None:
    assert framework(name)["stack"] == stack


def test_a_framework_that_is_called_like_its_stack_keeps_what_is_known_of_it() -> None:
    assert framework("Megatron-DeepSpeed")["dropout"] is True


def test_an_unknown_framework_is_told_with_the_nearest_names() -> None:
    with pytest.raises(Unpredictable, match=r"'nemmo'.*nearest: nemo") as caught:
        framework("nemmo")
    assert caught.value.field == "framework"


def test_bf16_runs_of_the_bloom_fork_have_a_profile_of_their_own() -> None:
    assert placed_plan(published()["bigsci_L908"]).problem.stack.name == "megatron-deepspeed-bloom-bf16"


@pytest.mark.parametrize(
    ("row", "stack"),
    [
        ("mf_v150_llama2_7b_4k_30", "mindformers-half"),
        ("mf_v132_qwen_14b_8k_24", "mindformers-half"),
        ("mf_v132_qwen_7b_8k_22", "mindformers"),
        ("titan_h200_8b_4n", "torchtitan-2025"),
        ("titan_8b_8g_f8", "fsdp-torchtitan"),
        ("nemo2407_05", "nemo-2024"),
        ("nemo2407_03", "nemo"),
    ],
)
def test_a_framework_s_models_and_reports_may_have_profiles_of_their_own(row: str, stack: str) -> None:
    assert placed_plan(published()[row]).problem.stack.name == stack


def test_the_recipe_that_a_row_names_says_what_the_row_leaves_out() -> None:
    """Layers of each stage, and how many microbatches a pipeline of torchtitan's had at the end of 2024."""
    run = published()["ascend_llama31_70b_8k"]
    assert placed_plan(run).strategy.layers == (17, 20, 22, 21)
    told = replace(run, layers_per_stage=(20, 20, 20, 20))
    assert placed_plan(told).strategy.layers == (20, 20, 20, 20)
    assert placed_plan(replace(run, layers=40)).strategy.layers == (10, 10, 10, 10)
    run = published()["titan_405b_512g_1f1b"]
    case = placed_plan(run)
    assert case.strategy.microbatches(case.problem.batch) == run.pp


def test_layers_that_pp_does_not_divide_leave_room_for_embedding_and_head() -> None:
    assert placed_plan(published()["zb_1F1B_1.5B_32"]).strategy.layers == (2, 3, 3, 3, 3, 3, 3, 2)
    assert placed_plan(replace(published()["zb_1F1B_1.5B_32"], layers=25)).strategy.layers == (4, 3, 3, 3, 3, 3, 3, 3)


# Rows of the recipes of 2025 and 2026, as they ran.

BF16 = {"gated_mlp": 1, "seq_len": 4096, "gbs": 2048, "dp": "", "peak_mem_kind": "allocated", "precision": "bf16"}
QWEN3 = (
    BF16
    | {"model": "qwen3-235b-a22b", "layers": 94, "hidden": 4096, "ffn": 12288, "heads": 64, "kv_heads": 4}
    | {"vocab": 151936, "moe_experts": 128, "moe_topk": 8, "moe_ffn": 1536, "framework": "Megatron-Bridge 26.04"}
    | {"chip": "h100", "num_gpus": 256, "tp": 2, "pp": 8, "vpp": 4, "ep": 32, "etp": 1, "step_time_s": 40.0}
)
DEEPSEEK = (
    BF16
    | {"model": "deepseek-v3-671b", "layers": 61, "hidden": 7168, "ffn": 18432, "heads": 128, "kv_heads": 128}
    | {"vocab": 129280, "moe_experts": 256, "moe_topk": 8, "moe_ffn": 2048, "shared_expert_ffn": 2048}
    | {"chip": "b200", "num_gpus": 256, "tp": 1, "pp": 16, "ep": 8, "etp": 1, "framework": "Megatron-Bridge 26.02"}
    | {"layers_per_stage": "4 " * 15 + "1", "mtp_layers": 1, "recompute": "selective", "step_time_s": 24.0}
    | {"recompute_modules": "mla_up_proj"}
)
FOUR_CHUNKS = {"pp": 4, "vpp": 4, "ep": 64, "layers_per_stage": "16 16 16 13"}


def of(tmp_path: Path, row: dict[str, Any], **changes: Any) -> MeasuredRun:
    (run,) = runs(tmp_path, {**row, **changes})
    return run


def parameters(run: MeasuredRun) -> list[float]:
    case = placed_plan(run)
    return stage_parameters(case.problem, case.strategy)


def test_a_folded_grid_of_experts_spans_tensor_parallel_ranks(tmp_path: Path) -> None:
    """dp is 256 / (2 * 8) = 16, and a stage has 32 devices: 4 of the 128 experts on each, with ep 16 twice as many."""
    run = of(tmp_path, QWEN3)
    plan = placed_plan(run).strategy
    assert (plan.tp, plan.dp, plan.ep, plan.etp) == (2, 16, 32, 1)
    assert plan.layers == (11, 12, 12, 12, 12, 12, 12, 11)  # embedding and head count as a layer each
    more = [half - whole for half, whole in zip(parameters(replace(run, ep=16)), parameters(run), strict=True)]
    assert more == pytest.approx([layers * 4 * 3 * 4096 * 1536 for layers in plan.layers])
    assert set(predict(run).rules_broken) <= {"memory"}


def test_without_its_grid_a_row_has_experts_split_as_its_layers(tmp_path: Path) -> None:
    with pytest.raises(Unpredictable, match=r"ep 32 does not divide cp \* dp = 16; .*etp says so") as caught:
        placed_plan(of(tmp_path, QWEN3, etp=""))
    assert caught.value.field == "ep"
    assert placed_plan(of(tmp_path, QWEN3, etp="", ep=16)).strategy.etp == 2
    with pytest.raises(Unpredictable, match="etp 4 does not divide tp 2"):
        placed_plan(of(tmp_path, QWEN3, etp=4, ep=8))


def test_a_module_of_multi_token_prediction_is_on_the_last_stage(tmp_path: Path) -> None:
    """A layer, a projection of two hidden states to one, three norms, and the embedding, which that stage lacks."""
    run = of(tmp_path, DEEPSEEK)
    assert placed_plan(run).strategy.layers == (*[4] * 15, 1)
    with_it, without = parameters(run), parameters(replace(run, mtp_layers=None))
    layer = with_it[-2] / 4
    assert with_it[:-1] == without[:-1]
    assert with_it[-1] - without[-1] == pytest.approx(layer + 2 * 7168**2 + 3 * 7168 + 129280 * 7168)
    assert without[-1] == pytest.approx(layer + 7168 + 129280 * 7168)


def test_layers_of_the_ranks_are_as_the_row_says(tmp_path: Path) -> None:
    """Taken as even the last stage would have three layers, and be among the fast ones."""
    assert placed_plan(of(tmp_path, DEEPSEEK, layers_per_stage="")).strategy.layers == (*[4] * 13, *[3] * 3)
    run = of(tmp_path, DEEPSEEK)
    taken = predict(replace(run, layers_per_stage=None, mtp_layers=None)).step_time_s
    assert predict(run).step_time_s < predict(replace(run, layers_per_stage=None)).step_time_s
    assert predict(run).step_time_s != pytest.approx(taken)


def test_chunks_of_unequal_length_are_predicted_and_the_rule_that_refuses_them_is_told(tmp_path: Path) -> None:
    """The last of all may be short; another stage's may not."""
    assert "even_chunks" not in predict(of(tmp_path, DEEPSEEK, **FOUR_CHUNKS)).rules_broken
    found = predict(of(tmp_path, DEEPSEEK, **{**FOUR_CHUNKS, "layers_per_stage": "16 16 13 16"}))
    assert found.step_time_s > 0
    assert found.rules_broken["even_chunks"] == ("stage 2 has 13 layers, not a multiple of vpp 4",)


def test_memory_is_judged_beside_a_broken_structure(tmp_path: Path) -> None:
    found = predict(of(tmp_path, DEEPSEEK, **{**FOUR_CHUNKS, "layers_per_stage": "16 16 13 16"}, chip="a100_40g"))
    assert list(found.rules_broken) == ["even_chunks", "memory"]
    assert [told.split(" needs")[0] for told in found.rules_broken["memory"]] == [
        f"stage {stage} on a100_40g" for stage in range(4)
    ]


def test_modules_are_recomputed_as_the_row_says(tmp_path: Path) -> None:
    run = of(tmp_path, DEEPSEEK, recompute_modules="mlp mla_up_proj")
    assert placed_plan(run).strategy.groups[0].modules == ("mla_up_proj", "mlp")
    assert placed_plan(replace(run, recompute_modules=None)).strategy.groups[0].modules == ("core_attn",)
    nothing = predict(replace(run, recompute="none", recompute_modules=None))
    one, both = predict(replace(run, recompute_modules=("mla_up_proj",))), predict(run)
    assert nothing.step_time_s < one.step_time_s < both.step_time_s
    assert nothing.memory_gib > one.memory_gib >= both.memory_gib  # mlp is of the three dense layers alone


def test_what_the_cost_model_has_no_mechanism_for_moves_no_prediction(tmp_path: Path) -> None:
    run = of(tmp_path, QWEN3)
    assert predict(replace(run, routing="natural")) == predict(run)


def test_what_a_run_had_switched_on_shortens_its_step_in_turn(tmp_path: Path) -> None:
    """As in the matched series of one layout: the dispatcher's stall, the overlap, graphs of parts, a whole graph."""
    run = replace(of(tmp_path, QWEN3), dispatcher="alltoall", cuda_graph="none", a2a_overlap=False)
    run = replace(run, pp=1, vpp=1, layers_per_stage=None, dp=(run.num_gpus or 0) // (run.tp or 1))
    assert placed_plan(run).strategy.expert_overlap is False
    steps = [run]
    for change in ({"dispatcher": "hybridep"}, {"a2a_overlap": True}, {"cuda_graph": "te"}, {"cuda_graph": "full"}):
        steps.append(replace(steps[-1], **change))
    assert placed_plan(steps[-1]).strategy.expert_overlap is True
    seconds = [predict(step).step_time_s for step in steps]
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) == len(seconds)


def test_switches_of_a_release_s_recipes_stand_where_a_row_gives_no_other(tmp_path: Path) -> None:
    empty: dict[str, Any] = {
        "cuda_graph": None,
        "dispatcher": None,
        "a2a_overlap": None,
        "routing": "forced",
        "fp8_recipe": "mx",
    }
    run = replace(of(tmp_path, QWEN3), framework="Megatron-Bridge (2026-07/08, model cards)", precision="fp8", **empty)
    taken = placed_plan(run)
    assert (taken.problem.cuda_graph, taken.strategy.expert_overlap) == ("full", True)
    for change in ({"cuda_graph": "te"}, {"routing": "natural"}, {"framework": "Megatron-Bridge 26.04"}):
        left = placed_plan(replace(run, **change))  # type: ignore[arg-type]
        assert not left.strategy.expert_overlap, change


@pytest.mark.parametrize(
    ("change", "on"),
    [
        ({}, True),
        ({"cuda_graph": "te"}, False),
        ({"fp8_recipe": "current"}, False),
        ({"framework": "Megatron-Core 0.17"}, False),
        ({"model": "deepseek-v3"}, False),
        ({"model": "deepseek-v3", "chip": "gb300"}, True),
        ({"model": "kimi-k2"}, False),
    ],
    ids=str,
)
def test_recipes_of_whole_graphs_in_mxfp8_have_attention_in_8_bits(
    tmp_path: Path, change: dict[str, Any], on: bool
) -> None:
    """Of Qwen3 and gpt-oss; of DeepSeek-V3 on GB300 and B300 alone."""
    given = {"chip": "gb200", "framework": "Megatron-Bridge 26.06", "precision": "fp8", "fp8_recipe": "mx"}
    given |= {"cuda_graph": "full"}
    run = replace(of(tmp_path, QWEN3), **{**given, **change})
    assert placed_plan(run).problem.fp8_attention == on


def test_a_sharding_group_of_all_replicas_is_none(tmp_path: Path) -> None:
    run = of(tmp_path, {"sharding_group": 4})
    assert placed_plan(run).strategy.sharding_group == 0
    assert placed_plan(replace(run, sharding_group=2)).strategy.sharding_group == 2


def test_one_replica_shares_nothing_out(tmp_path: Path) -> None:
    run = of(tmp_path, {"num_gpus": 4, "dp": 1, "sharding": "zero2"})
    assert placed_plan(run).strategy.sharded == "optimizer"
    assert "sharding" not in predict(run).rules_broken


def test_fsdp_under_a_pipeline_shares_out_the_optimizer_only() -> None:
    assert placed_plan(published()["titan_405b_4d_cp1"]).strategy.sharded == "optimizer"
    assert placed_plan(published()["titan_8b_cp1"]).strategy.sharded == "parameters"


def test_torchtitans_selective_recomputation_is_by_operator() -> None:
    run = published()["titan_8b_8g_f8"]
    assert placed_plan(run).strategy.groups[0].modules == ("operators",)
    assert not predict(run).rules_broken.get("stack")


def test_runs_have_the_optimizer_of_their_recipes(tmp_path: Path) -> None:
    run = replace(of(tmp_path, QWEN3), framework="Megatron-Bridge 26.06", sharding="zero1")
    assert placed_plan(run).problem.spec.training.optimizer == "adam"
    latent = replace(run, model="deepseek-v3-671b")
    assert placed_plan(latent).problem.spec.training.optimizer == "precision_aware_bf16"
    assert placed_plan(replace(latent, sharding="none")).problem.spec.training.optimizer == "adam"


def test_layers_on_the_host_are_the_row_s(tmp_path: Path) -> None:
    run = replace(of(tmp_path, QWEN3), pp=1, vpp=1, layers_per_stage=None, recompute="none", recompute_modules=None)
    run = replace(run, dp=(run.num_gpus or 0) // (run.tp or 1))
    assert predict(replace(run, offload_layers=4)).memory_gib < predict(run).memory_gib


@pytest.mark.parametrize(
    ("change", "field"), [({"ep": 3}, "ep"), ({"vpp": 2}, "vpp"), ({"precision": "int8"}, "precision")]
)
def test_what_the_cost_model_cannot_express_is_told(change: dict[str, object], field: str) -> None:
    with pytest.raises(Unpredictable) as caught:
        placed_plan(replace(published()["titan_8b_8g_f8"], **change))  # type: ignore[arg-type]
    assert caught.value.field == field


def test_the_catalogue_adds_what_a_row_does_not_say() -> None:
    assert architecture(published()["ascend_gemma_2b"]).head_dim == 256
    assert architecture(published()["simumax_deepseekv3_l4_tp1_ep8_pp1_dp8_mbc8_cef"]).attention.kind == "mla"
    assert placed_plan(published()["ascend_mistral_7b"]).problem.model.attention.sliding_window == 4096


def test_memory_is_told_in_the_terms_of_the_measurement() -> None:
    run = published()["bigsci_L607"]
    allocated, reserved, device = (
        predict(replace(run, peak_mem_kind=kind)).memory_gib for kind in ("allocated", "reserved", "device")
    )
    assert allocated < reserved < device


def test_one_run_that_breaks_the_cost_model_does_not_cost_the_others() -> None:
    def broken(run: MeasuredRun) -> Prediction:
        if run.id == "kort22_175B_full":
            raise ZeroDivisionError("nothing to divide by")
        return predict(run)

    chosen = [published()["kort22_175B_full"], published()["kort22_175B_selective"]]
    found = validate(chosen, broken)
    assert [outcome.skipped for outcome in found.outcomes] == ["beyond the cost model: nothing to divide by", None]


def test_every_interval_holds_its_own_prediction() -> None:
    groups = load_calibration().residuals
    assert all(groups[name].low < 0 < groups[name].high for name in UNSEEN.values())


def test_one_microbatch_on_hundreds_of_ranks_waits_for_its_rings() -> None:
    """Llama 3.1 8B on 512 GB200, 256 replicas with one microbatch each: little compute to hide buckets under."""
    run = published()["mlperf51_8b_tyche512"]
    assert predict(run).step_time_s == pytest.approx(run.step_time_s, rel=0.15)
