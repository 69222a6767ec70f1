"""ms-swift's `megatron sft` and `megatron pt`, read as the arguments of Megatron-LM that mean the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpsolver.doors.importing.imported import Imported
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.errors import InputError
from tests.support.command import in_tmp, run, write  # noqa: F401
from tests.support.scripts import imported

HEAD = "PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' NPROC_PER_NODE=8 NNODES=2 \\\n"
FULL = HEAD + "megatron sft --model Qwen/Qwen3-30B-A3B-Base --packing true --max_length 8192 --output_dir out"
DENSE = HEAD.replace("NNODES=2 ", "") + "megatron sft --model Qwen/Qwen2.5-7B-Instruct --max_length 2048 --tuner_type"


def read(command: str) -> Imported:
    """The import of a script with one command."""
    return imported(f"#!/bin/bash\n{command}\n", chip="h100")


def wrong(command: str) -> str:
    """What is wrong with it, in words."""
    with pytest.raises(InputError) as error:
        read(command)
    return "; ".join(map(str, error.value.troubles))


def test_degrees_and_defaults_are_those_of_ms_swift() -> None:
    found = read(f"{FULL} --pipeline_model_parallel_size 2 --expert_model_parallel_size 8 --moe_aux_loss_coeff 1e-3")
    assert found.spec["model"] == "qwen3-30b-a3b"
    assert found.spec["cluster"] == {"num_gpus": 16, "gpus_per_node": 8, "chips": "h100"}
    training = found.spec["training"]
    assert (training["global_batch_size"], training["sequence_length"], training["precision"]) == (16, 8192, "bf16")
    assert training["moe_dispatcher"] == "alltoall"
    assert training["expandable_segments"] is True
    plan = found.strategy
    assert plan is not None
    assert (plan.tp, plan.pp, plan.dp, plan.ep, plan.etp, plan.mbs) == (1, 2, 8, 8, 1, 1)
    assert (plan.recompute[0], plan.recompute_modules[0]) == ("selective", ("core_attn",))
    assert (plan.distributed_optimizer, plan.flash_attention, plan.sequence_parallel) == (True, True, False)
    assert (found.spec["stack"], found.spec.get("launcher")) == ("megatron-core-plain", None)
    assert not found.unknown
    assert not found.unused
    assert not any("as long as their data" in note for note in found.notes)


def test_what_is_given_is_read() -> None:
    found = read(
        f"{FULL} --tensor_model_parallel_size 4 --sequence_parallel true --recompute_granularity none "
        "--overlap_grad_reduce true --micro_batch_size 2 --global_batch_size=64 --packing false "
        "--use_distributed_optimizer false --moe_enable_deepep true --moe_token_dispatcher_type flex "
        "--optimizer_cpu_offload true"
    )
    plan = found.strategy
    assert plan is not None
    assert (plan.tp, plan.dp, plan.mbs, plan.recompute[0]) == (4, 4, 2, "none")
    assert (plan.sequence_parallel, plan.distributed_optimizer) == (True, False)
    assert found.spec["stack"] == "megatron-core"
    assert found.spec["training"]["optimizer_offload"] == 1.0
    assert any("without --packing: sequences as long as their data" in note for note in found.notes)


def test_adapters_beside_a_dense_decoder() -> None:
    found = read(f"{DENSE} lora --lora_rank 16 --target_modules all-linear --lora_alpha 32 --merge_lora false")
    targets = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
    assert found.spec["training"]["lora"] == {"rank": 16, "targets": targets}
    assert found.strategy is not None
    some = read(f"{DENSE} lora --target_modules linear_qkv linear_proj").spec["training"]["lora"]
    assert some == {"rank": 8, "targets": targets[:2]}


@pytest.mark.parametrize("more", ["lora --target_modules q_proj", "lora_llm"])
def test_adapters_without_words_here_leave_no_plan(more: str) -> None:
    found = read(f"{DENSE} {more}")
    assert found.strategy is None
    assert "no plan says what is trained" in found.refusals[0]


def test_each_expert_has_adapters_of_its_own() -> None:
    found = read(f"{FULL} --tuner_type lora --target_modules all-linear --expert_model_parallel_size 4")
    targets = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
    assert found.spec["training"]["lora"] == {"rank": 8, "targets": targets, "share_expert_adapters": False}
    assert found.strategy is not None
    assert (found.strategy.ep, found.strategy.etp) == (4, 1)


def test_adapters_of_latent_attention() -> None:
    command = f"{FULL.replace('Qwen/Qwen3-30B-A3B-Base', 'deepseek-ai/DeepSeek-V3')} --tuner_type lora"
    found = read(command)
    beside = ["linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj", "linear_proj"]
    assert found.spec["training"]["lora"]["targets"] == [*beside, "linear_fc1", "linear_fc2"]
    assert found.model.mtp_layers == 0
    more = read(f"{command} --mtp_num_layers 1")
    assert (more.model.mtp_layers, more.model.mtp_repeated) == (1, False)
    again = read(f"{command} --mtp_num_layers 2 --mtp_shared_weights true").model
    assert (again.mtp_layers, again.mtp_weights) == (2, 1)
    assert "adapters beside multi-token prediction are not counted" in more.refusals[0]


def test_adapters_beside_layers_of_other_kinds_leave_no_plan() -> None:
    found = read(f"{FULL.replace('Qwen3-30B-A3B-Base', 'Qwen3-Next-80B-A3B-Instruct')} --tuner_type lora")
    assert found.strategy is None
    assert "are not counted" in found.refusals[0]
    assert "lora" not in found.spec["training"]
    assert not found.unused


def test_ascend_has_its_own_stack() -> None:
    found = read(f"export ASCEND_RT_VISIBLE_DEVICES=0,1\n{FULL}")
    assert (found.spec["stack"], found.spec.get("launcher")) == ("mindspeed", None)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (FULL.replace("megatron sft", "megatron rlhf --rlhf_type dpo"), "reinforcement, preferences or distillation"),
        (FULL.replace("megatron sft", "megatron export"), "a conversion of checkpoints"),
        (f"{FULL} --task_type seq_cls", "the training of seq_cls"),
        (FULL.replace("Qwen3-30B-A3B-Base", "Qwen3-VL-30B-A3B-Instruct"), "a multimodal model"),
        (FULL.replace("Qwen3-30B-A3B-Base", "Qwen2.5-Omni-7B"), "a multimodal model"),
    ],
)
def test_what_trains_no_decoder_is_refused_for_what_it_is(command: str, said: str) -> None:
    with pytest.raises(OutOfScopeError, match=said):
        read(command)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (FULL.replace("Qwen3-30B-A3B-Base", "Qwen3-30B-A9B"), "is not a model of the catalogue"),
        (FULL.replace("--model Qwen/Qwen3-30B-A3B-Base", ""), "--model: is not given"),
        (FULL.replace("--max_length 8192", ""), "--seq-length: is not given"),
        (f"{FULL} --freeze_llm true", "freeze_llm: a decoder that is not trained"),
        (FULL.replace("NPROC_PER_NODE=8 NNODES=2", "NNODES=$WORLD_SIZE"), "does not: NPROC_PER_NODE, NNODES"),
        (FULL.replace("--max_length 8192", "--max_length many"), "must be a whole number"),
    ],
)
def test_what_is_missing_or_wrong_is_told(command: str, said: str) -> None:
    assert said in wrong(command)


@pytest.mark.parametrize("name", ["openai-mirror/gpt-oss-20b", "gpt-oss-20b-BF16", "openai/gpt-oss-20b-Instruct-FP8"])
def test_a_mirror_and_a_variant_are_the_model(name: str) -> None:
    assert read(FULL.replace("Qwen/Qwen3-30B-A3B-Base", name)).spec["model"] == "gpt-oss-20b"


def test_one_process_without_a_launcher_and_what_is_exported_counts() -> None:
    assert read(FULL.replace("NPROC_PER_NODE=8 NNODES=2 \\\n", "")).spec["cluster"]["num_gpus"] == 1
    exported = "export NPROC_PER_NODE=4\n" + FULL.replace("NPROC_PER_NODE=8 NNODES=2 \\\n", "")
    assert read(exported).spec["cluster"] == {"num_gpus": 4, "gpus_per_node": 4, "chips": "h100"}


def test_a_file_of_fields_stands_in_the_first_place() -> None:
    fields = "model: Qwen/Qwen2.5-7B\nmax_length: 4096\npacking: true\ntensor_model_parallel_size: 2\nENV: {A: 1}\n"
    Path("conf").mkdir()
    write("conf/sft.yaml", fields)
    script = write("conf/sft.sh", "NPROC_PER_NODE=4 megatron sft conf/sft.yaml --tensor_model_parallel_size 4\n")
    done = run("import", str(script), "--chip", "h100", "--json")
    assert '"tp": 4' in done.stdout
    assert '"sequence_length": 4096' in done.stdout
    Path("conf/sft.yaml").unlink()
    assert "is not in the script's folder or above it" in run("import", str(script), "--chip", "h100").stderr


def test_what_ms_swift_3_calls_otherwise() -> None:
    """479fb102: adapters by --train_type, a converted checkpoint in the model's place, chunks by their numbers."""
    folder = "/data/Qwen2.5-7B-Instruct-mcore"
    found = read(
        DENSE.replace("--model Qwen/Qwen2.5-7B-Instruct", f"--load {folder}").replace("tuner", "train") + " lora"
    )
    assert found.spec["model"] == "qwen2.5-7b"
    assert found.spec["training"]["lora"]["rank"] == 8
    assert any("no --model" in note and "Qwen2.5-7B-Instruct" in note for note in found.notes)
    chunks = "--pipeline_model_parallel_size 2 --num_virtual_stages_per_pipeline_rank 2 --global_batch_size 32"
    plan = read(f"{DENSE} full {chunks}").strategy
    assert plan is not None
    assert (plan.pp, plan.vpp) == (2, 2)
    unnamed = DENSE.replace("--model Qwen/Qwen2.5-7B-Instruct", "--load out")
    assert "--model: is not given" in wrong(f"{unnamed} full")


def test_packed_sequences_are_as_long_as_the_pack() -> None:
    packed = f"{DENSE} full --packing_length 16384"
    assert read(f"{packed} --packing true").spec["training"]["sequence_length"] == 16384
    assert read(packed).spec["training"]["sequence_length"] == 2048
    assert read(f"{DENSE} full --seq_length 4096").spec["training"]["sequence_length"] == 4096


def test_another_shape_than_the_named_model_s_is_refused() -> None:
    assert "num_layers" in wrong(f"{DENSE} full --num_layers 4")


def test_an_encoder_beside_the_decoder_is_told() -> None:
    """PraMamba/ms-swift cd18f085, examples/models/llama4: images among its data, and a name that does not say so."""
    command = FULL.replace("Qwen/Qwen3-30B-A3B-Base", "LLM-Research/Llama-4-Scout-17B-16E-Instruct")
    told = "--freeze_vit --vit_gradient_checkpointing: the model has an encoder of images"
    beside = " --freeze_vit true --vit_gradient_checkpointing false"
    assert any(told in note for note in read(command + beside).notes)
    for alone in (command, f"{command}{beside} --language_model_only true"):
        assert not any("encoder" in note for note in read(alone).notes)
