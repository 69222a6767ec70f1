"""Arguments that a parser knows and no plan holds: those that change time or memory are told or refused by name."""

from __future__ import annotations

import pytest

from cpsolver.doors.importing.imported import ImportOptions, import_source
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.errors import InputError
from tests.support.command import in_tmp, write  # noqa: F401
from tests.support.scripts import LLAMA, STEP, imported, torchrun


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--compress-activation 0", "--compress-activation 0 is not in the plan: activations packed"),
        ("--compress-activation 1,3-5", "--compress-activation is not in the plan: activations packed"),
        ("--compress-dense level0", "a dense layer's inputs packed"),
        ("--compress-dense disable", None),
        ("--virtual-optimizer all", "on the host as far as they do not fit"),
        ("--use-deter-comp", "the same bits each time"),
        ("--no-bias-swiglu-fusion --use-fused-swiglu", None),
        ("--enable-high-availability --use-distributed-optimizer", "two halves of the replicas"),
        ("--enable-high-availability --use-distributed-optimizer --distributed-optimizer-no-replica", None),
        ("--num-query-groups 8", "groups count beside --group-query-attention alone"),
        ("--num-query-groups 8 --group-query-attention", None),
        ("--num-query-groups 1", None),
        ("--split-bw", "backward passes of weights apart"),
        ("--context-parallel-size 2 --context-parallel-algo adaptive_cp_algo", "adaptive CP"),
    ],
)
def test_what_no_plan_holds_is_told(arguments: str, told: str | None) -> None:
    found = imported(torchrun(f"{LLAMA}{STEP}{arguments}"))
    notes = [note for note in found.notes if "is not in the plan" in note]
    assert (not notes) if told is None else any(told in note for note in notes)


def test_gradients_in_fp32_beside_fp16_are_told() -> None:
    """Megatron-LM's default of fp16 is gradients in fp16, which the stacks have; DeepSpeed's engine has its own."""
    half = torchrun(f"{LLAMA}{STEP}--accumulate-allreduce-grads-in-fp32").replace("--bf16", "--fp16")
    assert any("gradients summed in fp32 beside fp16" in note for note in imported(half).notes)
    for other in ("--bf16", "--fp16 --deepspeed"):
        assert not any("beside fp16" in note for note in imported(half.replace("--fp16", other)).notes)


@pytest.mark.parametrize(
    "argument", ["automated-pipeline", "automated-pipeline-perf", "enable-zero3", "use-nd-matmul", "dist-train"]
)
def test_what_no_plan_is_near_leaves_a_spec_alone(argument: str) -> None:
    found = imported(torchrun(f"{LLAMA}{STEP}--{argument}"))
    assert found.strategy is None
    assert any(f"--{argument}: " in reason for reason in found.refusals)


def test_distillation_by_a_teacher_of_quantization_is_named() -> None:
    with pytest.raises(OutOfScopeError, match="distillation"):
        imported(torchrun(f"{LLAMA}{STEP}--qad-enable --qad-teacher-load teacher"))


def test_positions_that_start_anew_are_documents_apart_in_mindspeed_llm_until_2025() -> None:
    """ModelLink f364fa2a, pretrain_gpt.py: --reset-position-ids has the kernel told where documents end."""
    text = "export HCCL_TIMEOUT=1\n" + torchrun(f"{LLAMA}{STEP}--reset-position-ids")
    assert any("until 2025 documents attend" in note for note in imported(text, chip="ascend_910b").notes)
    assert not any(
        "documents attend" in note for note in imported(torchrun(f"{LLAMA}{STEP}--reset-position-ids")).notes
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("algorithm:\n  adv_estimator: grpo\nactor_rollout_ref:\n  model: {path: a}\n", "reinforcement"),
        ("megatron_training:\n  stage: ray_grpo\nactor_config:\n  micro_batch_size: 4\n", "reinforcement"),
        ("model_name_or_path: a\nstage: sft\nfinetuning_type: full\n", "a configuration of LLaMA-Factory"),
        ("base_model: a\nsequence_len: 4096\nmicro_batch_size: 2\n", "a configuration of Axolotl"),
        ("max_seq_len: 2048\nmodel:\n  name: mpt_causal_lm\nfsdp_config:\n  a: b\n", "a configuration of LLM Foundry"),
    ],
)
def test_files_of_other_trainers_are_named(text: str, said: str) -> None:
    write("file.yaml", text)
    with pytest.raises(InputError, match=said):
        import_source("file.yaml", ImportOptions("h100"))


FILE = '{"zero_optimization": {"stage": 1%s}%s}'


@pytest.mark.parametrize(
    ("zero", "other", "told"),
    [
        ("", ', "curriculum_learning": {"enabled": true}', "curriculum_learning is not in the plan: sequences"),
        ("", ', "curriculum_learning": {"enabled": false}', None),
        ("", ', "data_efficiency": {"enabled": true, "data_routing": {"enabled": false}}', "leave tokens out"),
        ("", ', "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}}', "few bits"),
        ("", ', "compression_training": {"layer_reduction": {"enabled": false}}', None),
        (', "zero_hpz_partition_size": 8', "", "a second copy of the weights"),
        (', "zero_hpz_partition_size": 1', "", None),
        (', "mics_shard_size": -1', "", None),
        (', "offload_optimizer": {"device": "nvme"}', "", "on disk"),
        ("", ', "data_types": {"grad_accum_dtype": "fp32"}', "gradients summed in fp32"),
        ("", ', "train_batch_size": 7', "train_batch_size 7, where --global-batch-size says"),
        ("", ', "train_batch_size": "auto"', None),
    ],
)
def test_what_else_deepspeeds_file_says_is_told(zero: str, other: str, told: str | None) -> None:
    write("ds.json", FILE % (zero, other))
    found = imported(torchrun(f"{LLAMA}{STEP}--deepspeed --deepspeed_config ds.json"))
    notes = [note for note in found.notes if note.startswith("ds.json: ") and "ZeRO stage" not in note]
    assert (not notes) if told is None else any(told in note for note in notes)


def test_the_file_that_a_script_writes_counts_before_the_one_that_stands_there() -> None:
    """wangguojim/Megatron-DeepSpeed-patch 1e0f96dc, pretrain_llama2_zero1.sh: another script had left its own."""
    write("ds.json", FILE % ("", ""))
    body = (
        '{"train_batch_size": $GBS, "zero_optimization": {"stage": 3, "cpu_offload": true}, "amp": {"enabled": true}}'
    )
    for stage in (body, body.replace("3,", "$WHICH,")):
        text = f"GBS=7\ncat <<EOT > ds.json\n{stage}\nEOT\n"
        found = imported(text + torchrun(f"{LLAMA}{STEP}--deepspeed --zero-stage 3 --deepspeed_config ds.json"))
        assert found.strategy is not None
        assert found.strategy.sharded == "parameters"
        known = stage == body
        assert found.spec["training"].get("optimizer_offload") == (1.0 if known else None)
        assert any("script writes: amp is not in the plan" in note for note in found.notes) == known
        assert any("train_batch_size 7, where" in note for note in found.notes) == known


@pytest.mark.parametrize(("stage", "sharded"), [('"1"', "optimizer"), ("3", "parameters"), ('"auto"', "gradients")])
def test_the_stage_of_a_file_that_a_script_writes(stage: str, sharded: str) -> None:
    """One that is no number leaves the arguments' own."""
    text = f'cat <<EOT > ds.json\n{{"zero_optimization": {{"stage": {stage}}}}}\nEOT\n'
    found = imported(text + torchrun(f"{LLAMA}{STEP}--deepspeed --zero-stage 2 --deepspeed_config ds.json"))
    assert found.strategy is not None
    assert found.strategy.sharded == sharded


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("train-experts-alone", True),
        ("use-fused-moe-gate", True),
        ("load-lora-from", False),
        ("train-from-scratch", False),
        ("rope-attention-scale", False),
        ("moe-router-fusion", False),
    ],
)
def test_a_name_that_is_not_known_is_told_by_a_word_that_matters_behind_a_harmless_start(
    argument: str, told: bool
) -> None:
    notes = imported(torchrun(f"{LLAMA}{STEP}--{argument}")).notes
    assert any(f"--{argument}: not known here" in note for note in notes) == told
