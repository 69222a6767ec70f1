"""MindFormers: models of its Megatron-like core, and what is sliced, swapped or shared out beside the degrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.inputs.errors import InputError

LLAMA = """
run_mode: train
runner_config: {batch_size: 1}
optimizer: {type: AdamW}
parallel_config: {data_parallel: 4, model_parallel: 2, pipeline_stage: 1}
parallel: {enable_parallel_optimizer: true}
recompute_config: {recompute: true}
model:
  model_config: {type: LlamaConfig, seq_length: 4096, hidden_size: 4096, num_layers: 32, num_heads: 32, vocab_size: 99}
"""
EXPERTS = """
run_mode: 'train'
use_legacy: False
runner_config: {epochs: 1, batch_size: 1, gradient_accumulation_steps: 1}
optimizer: {type: AdamW, swap: True}
train_dataset: {data_loader: {config: {seq_length: 2048}}}
parallel_config:
  data_parallel: 1
  model_parallel: 4
  pipeline_stage: 4
  micro_batch_num: 16
  expert_parallel: 4
  use_seq_parallel: True
parallel: {parallel_mode: 1, enable_parallel_optimizer: False}
recompute_config: {recompute: True, select_recompute: False}
model:
  model_config:
    model_type: "qwen3_moe"
    num_hidden_layers: 48
    num_heads: 32
    max_position_embeddings: 40960
    params_dtype: "float32"
    compute_dtype: "bfloat16"
"""


def read(tmp_path: Path, text: str, **options: Any) -> Imported:
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    return import_source(str(tmp_path / "config.yaml"), ImportOptions("ascend_910b", **options))


def troubles(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    return [trouble.where for trouble in caught.value.troubles]


def test_the_core_names_a_model_and_leaves_its_sizes_to_defaults(tmp_path: Path) -> None:
    """Of 16 devices 4 share the experts out, each whole: over the ranks of tp too."""
    found = read(tmp_path, EXPERTS)
    assert (found.model.name, found.spec["stack"]) == ("qwen3-30b-a3b", "mindformers")
    assert found.spec["cluster"]["num_gpus"] == 16
    training = found.spec["training"]
    assert (training["sequence_length"], training["global_batch_size"], training["swap_optimizer"]) == (2048, 16, True)
    assert found.strategy is not None
    assert (found.strategy.tp, found.strategy.pp, found.strategy.ep, found.strategy.etp) == (4, 4, 4, 1)
    assert found.unused == ()


def test_latent_attention_and_unequal_chunks_of_the_core(tmp_path: Path) -> None:
    """DeepSeek-V3 in two chunks a stage, the last of them shorter: a spec with the right devices, and no plan."""
    text = EXPERTS.replace("qwen3_moe", "deepseek_v3").replace("num_hidden_layers: 48", "num_hidden_layers: 61")
    text = text.replace("num_heads: 32", "offset: [[0, 0, 0, 0], [1, 1, 2, 1]]\n    pp_interleave_num: 2")
    found = read(tmp_path, text.replace("40960", "4096"))
    assert (found.model.attention.kind, found.model.vocab, found.model.mtp_layers) == ("mla", 129280, 1)
    assert found.model.moe is not None
    assert (found.model.moe.experts, found.model.moe.first_dense, found.model.moe.shared_experts) == (256, 3, 1)
    assert found.strategy is None
    assert found.refusals == ("offset of several chunks: chunks of different lengths",)


def test_each_chunk_recomputes_so_many_layers(tmp_path: Path) -> None:
    text = EXPERTS.replace("recompute: True,", "recompute: [[5, 5, 5, 5], [5, 5, 5, 5]],")
    found = read(tmp_path, text.replace("num_heads: 32", "pp_interleave_num: 2"))
    assert found.strategy is not None
    assert (found.strategy.vpp, found.strategy.recompute, found.strategy.recompute_layers) == (
        2,
        ("block",) * 4,
        (5,) * 4,
    )
    uneven = EXPERTS.replace("recompute: True,", "recompute: [[5, 5, 5, 4], [5, 5, 5, 5]],")
    found = read(tmp_path, uneven.replace("num_heads: 32", "pp_interleave_num: 2"))
    assert found.refusals == ("recompute_config.recompute: unequal numbers of layers in a stage's chunks",)


@pytest.mark.parametrize("wrong", ["[[{}, {}, {}, {}], [1, 1, 1, 1]]", "[[a, b, c, d]]", "[[1, 2]]"])
def test_numbers_by_chunk_are_whole_numbers(tmp_path: Path, wrong: str) -> None:
    """Of layers that are recomputed, and of those that a chunk has more: no traceback, and no plan."""
    again = read(tmp_path, EXPERTS.replace("recompute: True,", f"recompute: {wrong},"))
    assert again.refusals == ("recompute_config.recompute: not one number of layers for each stage",)
    text = EXPERTS.replace("num_heads: 32", f"pp_interleave_num: 2\n    offset: {wrong}")
    assert read(tmp_path, text).refusals == ("offset of several chunks: chunks of different lengths",)


@pytest.mark.parametrize(
    ("replaced", "where"),
    [
        (("num_heads: 32", "hidden_act: gelu"), "model.model_config.hidden_act"),
        (("num_heads: 32", "gated_linear_unit: False"), "model.model_config.gated_linear_unit"),
        (("num_heads: 32", "multi_latent_attention: True"), "model.model_config.multi_latent_attention"),
        (("num_heads: 32", "index_topk: 2048"), "index_topk"),
        (("qwen3_moe", "other"), "model.model_config.model_type"),
        (("AdamW", "PmaAdamW"), "optimizer.type"),
        (("num_heads: 32", "num_experts: a"), ""),
        (("num_heads: 32", "num_experts: -3"), "model.moe.experts"),
    ],
)
def test_what_no_model_of_the_core_has_is_an_error(tmp_path: Path, replaced: tuple[str, str], where: str) -> None:
    assert troubles(tmp_path, EXPERTS.replace(*replaced)) == [where]


def test_a_model_by_its_folder_is_not_changed(tmp_path: Path) -> None:
    named = EXPERTS.replace('model_type: "qwen3_moe"', "use_cache: True").replace("    num_hidden_layers: 48\n", "")
    named = 'pretrained_model_dir: "/path/to/Qwen3-30B-A3B"\n' + named
    assert troubles(tmp_path, named) == ["model.model_config"]
    named = named.replace("    num_heads: 32\n", "").replace("    max_position_embeddings: 40960\n", "")
    assert read(tmp_path, named).model.name == "qwen3-30b-a3b"


def test_what_recomputation_keeps_is_sliced_over_the_ranks(tmp_path: Path) -> None:
    """Not beside sequence parallelism, which has it so already, and not without recomputation."""
    asked = LLAMA.replace("{recompute: true}", "{recompute: true, recompute_slice_activation: true}")
    assert read(tmp_path, asked).spec["training"]["distribute_saved_activations"] is True
    for without in (
        LLAMA,
        asked.replace("recompute: true,", "recompute: false,"),
        asked.replace("model_parallel: 2", "model_parallel: 2, use_seq_parallel: true"),
    ):
        assert "distribute_saved_activations" not in read(tmp_path, without).spec["training"]


def test_states_are_swapped_and_shared_out_by_groups(tmp_path: Path) -> None:
    text = LLAMA.replace("AdamW", "AdamW, swap: true")
    text = text.replace(
        "optimizer: true", "optimizer: true, parallel_optimizer_config: {optimizer_weight_shard_size: 2}"
    )
    found = read(tmp_path, text)
    assert found.spec["training"]["swap_optimizer"] is True
    assert found.strategy is not None
    assert (found.strategy.dp, found.strategy.sharding_group) == (4, 2)
    other = LLAMA.replace("pipeline_stage: 1", "pipeline_stage: 2, micro_batch_num: 4")
    other = other.replace("optimizer: true", "optimizer: true, pipeline_config: {pipeline_scheduler: gpipe}")
    assert read(tmp_path, other).refusals == ("pipeline_config.pipeline_scheduler gpipe: no plan has its order",)


def test_the_model_s_own_batch_is_for_predictions(tmp_path: Path) -> None:
    """Liu-Yuanqiu/mindformers de3300ab, configs/llama2: `batch_size: 1 # add for increase predict`."""
    text = LLAMA.replace("batch_size: 1", "batch_size: 6").replace(
        "type: LlamaConfig", "type: LlamaConfig, batch_size: 1"
    )
    found = read(tmp_path, text)
    assert found.strategy is not None
    assert (found.strategy.mbs, found.spec["training"]["global_batch_size"]) == (6, 24)


def test_ends_that_tensor_parallelism_leaves_whole_are_told(tmp_path: Path) -> None:
    """mindspore-ai/mindformers 167a50de: vocab_emb_dp, true by default, and false wherever there is a pipeline."""
    off = LLAMA.replace("model_parallel: 2", "model_parallel: 2, vocab_emb_dp: false")
    staged = LLAMA.replace("pipeline_stage: 1", "pipeline_stage: 2")
    told = [any("vocab_emb_dp" in note for note in read(tmp_path, text).notes) for text in (LLAMA, off, staged)]
    assert told == [True, False, False]
