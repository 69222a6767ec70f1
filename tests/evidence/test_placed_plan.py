"""From a row of the table to a problem and a plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from cpsolver.evidence.runs.plan import Unpredictable, architecture, framework, placed_plan
from cpsolver.evidence.runs.run import MeasuredRun, Prediction
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from cpsolver.evidence.runs.validation import predict, validate
from cpsolver.profiles.constants import load_calibration


@cache
def published() -> dict[str, MeasuredRun]:
    return {run.id: run for run in read_runs(PUBLISHED).runs}


@pytest.mark.parametrize(
    ("name", "stack"),
    [
        ("", "megatron-core"),
        ("MindSpeed", "mindspeed"),
        ("nemo 24.12", "nemo"),
        ("NeMo AutoModel (PyTorch FSDP2)", "fsdp-torchtitan"),
        ("Megatron-Core 0.12", "megatron-core"),
        ("Megatron-DeepSpeed (BigScience)", "megatron-deepspeed-bloom"),
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


def test_layers_that_pp_does_not_divide_leave_room_for_embedding_and_head() -> None:
    assert placed_plan(published()["zb_1F1B_1.5B_32"]).strategy.layers == (2, 3, 3, 3, 3, 3, 3, 2)
    assert placed_plan(replace(published()["zb_1F1B_1.5B_32"], layers=25)).strategy.layers == (4, 3, 3, 3, 3, 3, 3, 3)


def test_fsdp_under_a_pipeline_shares_out_the_optimizer_only() -> None:
    assert placed_plan(published()["titan_405b_4d_cp1"]).strategy.sharded == "optimizer"
    assert placed_plan(published()["titan_8b_cp1"]).strategy.sharded == "parameters"


def test_torchtitans_selective_recomputation_is_half_of_every_stage() -> None:
    plan = placed_plan(published()["titan_8b_8g_f8"]).strategy
    assert (plan.recompute[0], plan.recompute_layers[0]) == ("block", 16)


@pytest.mark.parametrize(
    ("change", "field"), [({"ep": 3}, "ep"), ({"vpp": 2}, "vpp"), ({"precision": "nvfp4"}, "precision")]
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
    assert all(group.low < 0 < group.high for group in load_calibration().residuals.values())
