"""PaddleNLP's, PaddleFormers' and ERNIEKit's trainers: what their fields say, of two generations of names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.errors import InputError

TRAINER = {
    "model_name_or_path": "llama",
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 16,
    "tensor_parallel_degree": 2,
    "sharding": "stage1",
    "max_seq_length": 2048,
    "bf16": True,
    "fp16_opt_level": "O2",
}
SIZES = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8, "num_hidden_layers": 8}
CONFIG = {"model_type": "llama", "vocab_size": 32000, "max_position_embeddings": 2048, **SIZES}
NEWER = """
model_name_or_path: Qwen/Qwen3-30B-A3B-Base
output_dir: ./checkpoints
stage: PT
fine_tuning: full
max_seq_len: 8192
per_device_train_batch_size: 1
gradient_accumulation_steps: 4
tensor_model_parallel_size: 2
pipeline_model_parallel_size: 2
sequence_parallel: true
recompute_granularity: full
recompute_method: uniform
recompute_num_layers: 1
use_expert_parallel: true
expert_model_parallel_size: 4
fp16_opt_level: O2
"""


def read(tmp_path: Path, more: dict[str, Any], config: dict[str, Any] | None = None) -> Imported:
    (tmp_path / "llama").mkdir(exist_ok=True)
    (tmp_path / "llama" / "config.json").write_text(json.dumps(config or CONFIG), encoding="utf-8")
    (tmp_path / "pretrain.json").write_text(json.dumps({**TRAINER, **more}), encoding="utf-8")
    return import_source(str(tmp_path / "pretrain.json"), ImportOptions("a100", 8, 8))


def newer(tmp_path: Path, text: str) -> Imported:
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    return import_source(str(tmp_path / "config.yaml"), ImportOptions("a100", 16, 8))


def test_a_model_in_a_folder_has_its_own_defaults(tmp_path: Path) -> None:
    """What a config.json leaves to its family is not what Megatron-LM's arguments leave out."""
    found = read(tmp_path, {}).model
    assert (found.gated_mlp, found.activation, found.norm) == (True, "swiglu", "rmsnorm")
    assert (found.position, found.tied_embeddings, found.ffn, found.layers) == ("rope", False, 2816, 8)
    assert read(tmp_path, {"num_hidden_layers": 2}).model.layers == 2


def test_a_model_that_there_cannot_be_is_an_error_of_its_file(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, {}, {**CONFIG, "num_key_value_heads": 3})
    assert [trouble.where for trouble in caught.value.troubles] == ["model.kv_heads"]
    assert str(caught.value.troubles[0].file).endswith("config.json")


def test_yaml_of_paddleformers_1_has_other_names_and_defaults(tmp_path: Path) -> None:
    """Its sharding is stage1, its attention a flash kernel, its gradients in fp32; granularity alone recomputes."""
    found = newer(tmp_path, NEWER)
    assert found.spec["training"]["precision"] == "bf16"
    plan = found.strategy
    assert plan is not None
    assert (plan.tp, plan.pp, plan.dp, plan.ep, plan.etp) == (2, 2, 4, 4, 1)
    assert (plan.sharded, plan.distributed_optimizer, plan.flash_attention) == ("optimizer", True, True)
    assert plan.recompute == ("uniform", "uniform")
    assert [note.split(":")[0] for note in found.notes] == ["amp_master_grad"]
    assert found.unused == ()


def test_devices_are_those_that_share_the_optimizer_out(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(NEWER + "sharding_parallel_size: 8\n", encoding="utf-8")
    found = import_source(str(tmp_path / "config.yaml"), ImportOptions("a100", gpus_per_node=8))
    assert found.spec["cluster"]["num_gpus"] == 32
    assert found.notes[0].startswith("devices by the degrees: 32;")


def test_multi_token_prediction_is_asked_for(tmp_path: Path) -> None:
    text = NEWER.replace("Qwen/Qwen3-30B-A3B-Base", "zai-org/GLM-4.5-Air").replace(
        "pipeline_model_parallel_size: 2\n", ""
    )
    assert newer(tmp_path, text).model.mtp_layers == 0
    assert newer(tmp_path, text + "num_nextn_predict_layers: 1\n").model.mtp_layers == 1


def test_sequences_are_packed_or_as_long_as_their_data(tmp_path: Path) -> None:
    tuned = NEWER.replace("stage: PT", "stage: SFT")
    assert next(note.split(":")[0] for note in newer(tmp_path, tuned + "packing: true\n").notes) == "packing"
    assert next(note.split(":")[0] for note in newer(tmp_path, tuned).notes) == "stage SFT"
    older = {"max_seq_length": None, "max_length": 1024, "dataset_name_or_path": "./data", "zero_padding": True}
    found = read(tmp_path, older)
    assert found.spec["training"]["sequence_length"] == 1024
    assert found.notes[0].startswith("zero_padding: several sequences")


def test_what_waits_on_the_host_and_what_heads_are_exchanged(tmp_path: Path) -> None:
    found = read(tmp_path, {"tensorwise_offload_optimizer": True, "sep_parallel_degree": 2, "virtual_pp_degree": 1})
    assert found.spec["training"]["swap_optimizer"] is True
    assert found.strategy is not None
    assert (found.strategy.cp, found.strategy.ulysses) == (2, 2)


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        (
            {"pipeline_parallel_config": "use_dualpipev"},
            "use_dualpipev: DualPipeV (PaddlePaddle), which no plan here has",
        ),
        ({"moe_group": "mp"}, "moe_group mp: no plan has the experts there"),
        (
            {"recompute": True, "refined_recompute": "flash_attn:-1"},
            "refined_recompute: no plan says what is recomputed",
        ),
    ],
)
def test_what_no_plan_has_is_told(tmp_path: Path, more: dict[str, Any], refusal: str) -> None:
    found = read(tmp_path, more)
    assert found.strategy is None
    assert found.refusals == (refusal,)


@pytest.mark.parametrize(
    "more", [{"max_prompt_len": 1024}, {"normalizer_type": "x"}, {"do_ptq": True}, {"stage": "DPO"}]
)
def test_other_trainers_are_out_of_scope(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(OutOfScopeError):
        read(tmp_path, more)


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"fine_tuning": "LoRA"}, "fine_tuning"),
        ({"vera": True}, "vera"),
        ({"optim": "adafactor"}, "optim"),
        ({"ernie_model_config": {"use_fp8_mlp": True}}, "use_fp8_mlp"),
        ({"compute_type": "wint8", "bf16": False}, "compute_type"),
        ({"bf16": "yes"}, "bf16"),
    ],
)
def test_what_is_not_planned_for_is_an_error(tmp_path: Path, more: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, more)
    assert where in [trouble.where for trouble in caught.value.troubles]
