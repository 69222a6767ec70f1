"""Configuration files of older releases and of forks: names that changed, and models that only look like others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.inputs.errors import InputError

TITAN = """
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
norm_type = "rmsnorm"
[optimizer]
name = "AdamW"
[training]
batch_size = 21
seq_len = 8192
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 32
tensor_parallel_degree = 8
[experimental]
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "full"
[float8]
enable_float8_linear = false
"""
NEWER = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
pipeline_parallel_degree = 4
[activation_checkpoint]
mode = "none"
"""
NEOX = """
"pipe-parallel-size": 0
"model-parallel-size": 2
"num-layers": 40
"hidden-size": 5120
"num-attention-heads": 32
"seq-length": 4096
"max-position-embeddings": 4096
"norm": layernorm
"pos-emb": rotary
"no-weight-tying": true
"train_micro_batch_size_per_gpu": 1
"optimizer": {"type": "Adam"}
"""
HALF = '"fp16": {"enabled": true}\n'
STABLE = """
"attention_head_type": groupedquery
"num_kv_heads": 8
"qk_norm": true
"mlp_type": gated
"mlp_multiple_of": 256
"activation": silu
"""
MINDFORMERS = """
run_mode: train
runner_config: {batch_size: 1}
parallel_config: {data_parallel: 8, model_parallel: 1, pipeline_stage: 1}
parallel: {enable_parallel_optimizer: true}
model:
  model_config:
    type: LlamaConfig
    seq_length: 4096
    hidden_size: 5120
    num_layers: 40
    num_heads: 40
    vocab_size: 125696
    multiple_of: 128
  arch:
    type: LlamaForCausalLM
"""


def read(tmp_path: Path, text: str, name: str = "config.yaml", **options: Any) -> Imported:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return import_source(str(tmp_path / name), ImportOptions(**{"chip": "h100", **options}))


def troubles(tmp_path: Path, text: str, name: str = "config.yaml", **options: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, name, **options)
    return [trouble.where for trouble in caught.value.troubles]


def test_torchtitan_before_0_1_has_its_degrees_among_training(tmp_path: Path) -> None:
    """As for Frontier (eminorhan/frontier-torchtitan 50284af): 2 x 32 replicas of 8, of 21 sequences each: 1,344."""
    found = read(tmp_path, TITAN, "a.toml")
    assert found.strategy is not None
    assert (found.strategy.tp, found.strategy.dp, found.strategy.mbs) == (8, 64, 21)
    assert (found.strategy.sharded, found.strategy.sharding_group) == ("parameters", 32)
    assert found.spec["training"]["global_batch_size"] == 1344
    assert found.spec["cluster"]["num_gpus"] == 512
    assert found.unused == ()


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        ("linear = false", "linear = true", "float8.enable_float8_linear"),
        ('"rmsnorm"', '"layernorm"', "model.norm_type"),
        ("[experimental]", "[experimental]\nenable_async_tensor_parallel = true", "enable_async_tensor_parallel"),
        ("seq_len", 'mixed_precision_param = "float32"\nseq_len', "training.mixed_precision_param"),
        ("seq_len", 'dtype = "bfloat16"\nseq_len', "training.dtype"),
        ('"AdamW"', '"AdamW"\nearly_step_in_backward = true', "optimizer.early_step_in_backward"),
    ],
)
def test_what_changes_torchtitans_precision_or_states_is_refused(
    tmp_path: Path, before: str, after: str, where: str
) -> None:
    assert [
        name.removeprefix("parallelism.") for name in troubles(tmp_path, TITAN.replace(before, after), "a.toml")
    ] == [where]


def test_torchtitan_before_0_1_says_how_many_microbatches(tmp_path: Path) -> None:
    """`n_microbatches` is that of the stages where it is not given (parallelisms/pipelining_utils.py)."""
    text = TITAN.replace("parallel_degree = 1\n", "parallel_degree = 2\n").replace("size = 21", "size = 16")
    found = read(tmp_path, text, "a.toml")
    assert found.strategy is not None
    assert (found.strategy.pp, found.strategy.mbs) == (2, 8)
    assert found.spec["training"]["global_batch_size"] == 16 * 64
    more = text.replace("[experimental]", "[experimental]\npipeline_parallel_microbatches = 8")
    again = read(tmp_path, more, "a.toml").strategy
    assert again is not None
    assert again.mbs == 2
    odd = text.replace("size = 16", "size = 21")
    assert troubles(tmp_path, odd, "a.toml") == ["experimental.pipeline_parallel_microbatches"]


@pytest.mark.parametrize(
    ("more", "layers"),
    [
        ("", [(8,), (9,), (8,), (7,)]),  # 34 with both ends: 9, 9, 8, 8
        ("pipeline_parallel_last_stage_less_layers = 3\n", [(8,), (9,), (9,), (6,)]),  # 36: 9 each
        ("pipeline_parallel_first_stage_less_layers = 0\npipeline_parallel_last_stage_less_layers = 0\n", [(8,)] * 4),
    ],
)
def test_torchtitan_counts_the_ends_as_layers(tmp_path: Path, more: str, layers: list[tuple[int, ...]]) -> None:
    """generate_llm_fqn_per_model_part of release 0.2 (distributed/pipeline_parallel.py)."""
    found = read(tmp_path, NEWER.replace("[activation", f"{more}[activation"), "a.toml", num_gpus=8)
    assert found.strategy is not None
    assert [group.layers for group in found.strategy.groups] == [tuple(each[0] for each in layers)]
    assert any("as torchtitan 0.2 does" in note for note in found.notes)
    assert troubles(tmp_path, NEWER.replace("degree = 4", "degree = 64"), "a.toml", num_gpus=64)[0] == (
        "parallelism.pipeline_parallel_degree"
    )


def test_stability_ai_names_the_gate_of_gpt_neox(tmp_path: Path) -> None:
    """StableLM 2 12B as published: 13,824 wide with a gate, 8 heads of keys and values with norms."""
    found = read(tmp_path, NEOX + STABLE + HALF, num_gpus=8, vocab_size=100352).model
    assert (found.ffn, found.gated_mlp, found.activation) == (13824, True, "swiglu")
    assert (found.kv_heads, found.attention.qk_norm) == (8, "head")
    one = read(tmp_path, NEOX + '"attention_head_type": multiquery\n' + HALF, num_gpus=8, vocab_size=50304).model
    assert (one.kv_heads, one.ffn, one.gated_mlp) == (1, 20480, False)
    assert troubles(tmp_path, NEOX + '"mlp_type": other\n' + HALF, num_gpus=8) == ["mlp_type"]


def test_gpt_neox_2_has_its_precision_as_the_type_of_fp16(tmp_path: Path) -> None:
    """bf16_125M.yml of at-aaims/forge 82edb69."""
    text = NEOX + '"fp16": {"enabled": true, "type": bfloat16}\n'
    assert read(tmp_path, text, num_gpus=8, vocab_size=50304).spec["training"]["precision"] == "bf16"
    assert troubles(tmp_path, NEOX + HALF + '"use-bnb-optimizer": true\n') == ["use_bnb_optimizer"]


@pytest.mark.parametrize(
    ("kind", "position"),
    [("LlamaForCausalLM", "rope"), ("Baichuan7BV2ForCausalLM", "rope"), ("Baichuan13BV2ForCausalLM", "alibi")],
)
def test_mindformers_has_models_with_llamas_configuration(tmp_path: Path, kind: str, position: str) -> None:
    found = read(tmp_path, MINDFORMERS.replace("LlamaForCausalLM", kind), chip="ascend_910b")
    assert (found.model.position, found.model.ffn) == (position, 13696)
    other = MINDFORMERS.replace("LlamaForCausalLM", "CogVLM2ForCausalLM")
    assert troubles(tmp_path, other, chip="ascend_910b") == ["arch"]


def test_a_field_whose_name_may_change_the_plan_is_told(tmp_path: Path) -> None:
    found = read(tmp_path, TITAN + "[parallelism]\nsome_parallel_degree = 2\n[compile]\nenable = true\n", "a.toml")
    told = "parallelism.some_parallel_degree: not known here, and may change the plan"
    assert [note for note in found.notes if note.startswith(told)]
    assert found.unused == ("parallelism.some_parallel_degree", "compile.enable")


def test_a_field_of_no_section_is_named_and_a_section_holds_fields(tmp_path: Path) -> None:
    assert read(tmp_path, 'title = "x"\n' + TITAN, "a.toml").unused == ("title",)
    assert troubles(tmp_path, "optimizer = 3\n" + NEWER, "a.toml", num_gpus=8) == ["optimizer"]


def test_torchtitans_selective_mode_by_operators_is_a_plan(tmp_path: Path) -> None:
    """Another option, every so many layers, is none."""
    text = NEWER.replace('mode = "none"', 'mode = "selective"\nselective_ac_option = "op"')
    found = read(tmp_path, text, "a.toml", num_gpus=8)
    assert found.strategy is not None
    assert (found.strategy.recompute[0], found.strategy.groups[0].modules) == ("selective", ("operators",))
    every = read(tmp_path, text.replace('"op"', '"2"'), "a.toml", num_gpus=8)
    assert every.refusals == ("activation_checkpoint: selective 2: no plan says what is recomputed",)


def test_torchtitans_deepseek_has_no_multi_token_prediction(tmp_path: Path) -> None:
    text = NEWER.replace("llama3", "deepseek_v3").replace('"8B"', '"671B"').replace("degree = 4", "degree = 1")
    model = read(tmp_path, text, "a.toml", num_gpus=8).model
    assert (model.mtp_layers, model.layers, model.attention.kind) == (0, 61, "mla")
