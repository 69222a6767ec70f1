"""Experiments of Primus on presets of a checkout: what they extend and override, and settings of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.doors.importing.output import import_report
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.errors import InputError

TRAINER = """
extends: [base.yaml]
seq_length: 1024
use_distributed_optimizer: true
"""
BASE = """
bf16: true
overlap_grad_reduce: false
use_precision_aware_optimizer: false
main_grads_dtype: fp32
recompute_granularity: null
recompute_method: null
fp8: null
fp8_recipe: delayed
img_h: 224
enable_zero_bubble: true
patch_zero_bubble: false
zero_bubble_v_schedule: false
zero_bubble_v_schedule_mem_setup: half
patch_primus_pipeline: false
pp_algorithm: 1f1b
tensor_model_parallel_size: 1
"""
MODEL = """
extends: [family.yaml]
num_layers: 32
hidden_size: 4096
ffn_hidden_size: 11008
num_attention_heads: 32
vocab_size: 32000
"""
FAMILY = """
model_type: gpt
swiglu: true
add_bias_linear: false
normalization: RMSNorm
position_embedding_type: rope
untie_embeddings_and_output_weights: true
hidden_dropout: 0.0
attention_dropout: 0.0
max_position_embeddings: 4096
num_experts: null
moe_router_topk: 2
moe_token_dispatcher_type: allgather
"""
EXPERIMENT = """
work_group: ${PRIMUS_TEAM:amd}
modules:
  pre_trainer:
    framework: megatron
    config: trainer.yaml
    model: ${PRIMUS_MODEL:llama}.yaml
    overrides:
      micro_batch_size: 1
      global_batch_size: 64
      seq_length: ${PRIMUS_SEQ_LENGTH:4096}
      overlap_grad_reduce: true
"""


def experiment(folder: Path, more: str = "", text: str = EXPERIMENT, model: str = MODEL) -> Path:
    """An experiment in a checkout; `more`: settings of its own, each in a line, without blanks before."""
    presets = folder / "primus" / "configs"
    files = {
        "modules/megatron/trainer.yaml": TRAINER,
        "modules/megatron/base.yaml": BASE,
        "models/megatron/llama.yaml": model,
        "models/megatron/family.yaml": FAMILY,
    }
    for name, content in files.items():
        (presets / name).parent.mkdir(parents=True, exist_ok=True)
        (presets / name).write_text(content)
    path = folder / "examples" / "run.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "".join(f"      {line}\n" for line in more.splitlines()))
    return path


def read(folder: Path, more: str = "", **given: Any) -> Imported:
    return import_source(str(experiment(folder, more, **given)), ImportOptions("mi300x", 16))


def test_an_experiment_is_its_presets_with_its_overrides(tmp_path: Path) -> None:
    found = read(tmp_path, "tensor_model_parallel_size: ${PRIMUS_TP:2}\nuse_turbo_attention: true")
    assert found.strategy is not None
    assert (found.strategy.tp, found.strategy.dp, found.strategy.schedule) == (2, 8, "1f1b")
    assert found.strategy.distributed_optimizer
    assert (found.model.layers, found.model.ffn, found.model.bias_mlp, found.model.norm) == (
        32,
        11008,
        False,
        "rmsnorm",
    )
    assert found.spec["training"]["sequence_length"] == 4096
    assert found.spec["cluster"]["gpus_per_node"] == 8
    assert found.unused == found.unknown == ()
    given = ImportOptions("mi300x", 16, given={"PRIMUS_TP": "4"})
    other = import_source(str(tmp_path / "examples" / "run.yaml"), given)
    assert other.strategy is not None
    assert other.strategy.tp == 4
    assert not any("PRIMUS_TP" in note for note in other.notes)
    said = "PRIMUS_MODEL=llama, PRIMUS_SEQ_LENGTH=4096, PRIMUS_TP=2"
    assert any(note.endswith(said) for note in found.notes)


@pytest.mark.parametrize(
    ("more", "values"),
    [
        ("pipeline_model_parallel_size: 4\nnum_virtual_stages_per_pipeline_rank: 2", {"vpp": 2}),
        ("pipeline_model_parallel_size: 4\nvirtual_pipeline_model_parallel_size: 2", {"vpp": 1}),
        ("pipeline_model_parallel_size: 4\npatch_zero_bubble: true", {"schedule": "zb1p"}),
        (
            "pipeline_model_parallel_size: 4\npatch_zero_bubble: true\nzero_bubble_v_schedule: true",
            {"schedule": "v_half"},
        ),
        (
            "pipeline_model_parallel_size: 4\npatch_primus_pipeline: true\npp_algorithm: zbv-formatted",
            {"schedule": "zbv"},
        ),
        ("pipeline_model_parallel_size: 4\npatch_primus_pipeline: true\npp_algorithm: v-min", {"schedule": "v_min"}),
        (
            "pipeline_model_parallel_size: 4\npipeline_model_parallel_layout: Et*4|(t*4|)*6t*4,L\n"
            "num_virtual_stages_per_pipeline_rank: 2",
            {"vpp": 2, "layers": (8, 8, 8, 8)},
        ),
        ("use_torch_fsdp2: true", {"sharded": "parameters"}),
        ("recompute_granularity: full\nrecompute_method: block\nrecompute_num_layers: 8", {"recompute_layers": (8,)}),
    ],
)
def test_settings_of_the_plan(tmp_path: Path, more: str, values: dict[str, Any]) -> None:
    found = read(tmp_path, more)
    assert found.strategy is not None, found.refusals
    assert {name: getattr(found.strategy, name) for name in values} == values


@pytest.mark.parametrize(
    ("more", "stack"),
    [
        ("", "megatron-core"),
        ("grad_reduce_in_bf16: true", "primus"),
        ("use_precision_aware_optimizer: true\nmain_grads_dtype: bf16", "primus"),
        ("use_precision_aware_optimizer: true", "megatron-core"),
    ],
)
def test_the_stack_is_by_what_gradients_are_summed_in(tmp_path: Path, more: str, stack: str) -> None:
    found = read(tmp_path, more)
    assert (found.spec["stack"], found.spec.get("launcher")) == (stack, None)


def test_experts_windows_and_adapters(tmp_path: Path) -> None:
    experts = "num_experts: 8\nmoe_ffn_hidden_size: 1024\nuse_turbo_deepep: true\nexpert_model_parallel_size: 4"
    found = read(tmp_path, experts)
    assert found.model.moe is not None
    assert found.strategy is not None
    assert (found.strategy.ep, found.spec["training"]["moe_dispatcher"]) == (4, "deepep")
    windows = read(tmp_path, "window_size: [127, 0]\nwindow_attn_skip_freq: [1, 1, 1, 0, 1, 1, 1, 0]\n")
    assert (windows.model.attention.sliding_window, windows.model.attention.full_every) == (128, 4)
    sinks = read(tmp_path, "use_sink_attention: true\nsink_sliding_window: 64")
    attention = sinks.model.attention
    assert (attention.sinks, attention.sliding_window, attention.full_every) == (True, 64, 2)
    lora = "lora:\n  enabled: {}\n  dim: 8\n  target_modules: [linear_qkv, linear_proj]"
    assert read(tmp_path, lora.format("true")).spec["training"]["lora"]["rank"] == 8
    assert "lora" not in read(tmp_path, lora.format("false")).spec["training"]


def test_what_is_not_planned_is_told_by_name(tmp_path: Path) -> None:
    refused = read(tmp_path, "recompute_granularity: full\nrecompute_layer_ids: [0, 1]")
    assert refused.strategy is None
    assert "recompute_layer_ids" in refused.refusals[0]
    assert any("enable_packed_sequences" in note for note in read(tmp_path, "enable_packed_sequences: true").notes)
    assert read(tmp_path, "never_heard_of: 1").unused == ("never_heard_of",)
    with pytest.raises(InputError, match="capped scores of attention"):
        read(tmp_path, "attn_logit_softcapping: 30.0")
    with pytest.raises(InputError, match="no regular order"):
        read(tmp_path, "window_size: [127, 0]\nwindow_attn_skip_freq: [0, 1, 1]")


@pytest.mark.parametrize(
    "more",
    [
        "lora: true",
        'turbo_sync_free_moe_stage: "2"',
        "normalization: {a: b}",
        "vocab_size: {}",
        "window_size: [a, b]",
        "window_size: [127, 0]\nwindow_attn_skip_freq: []",
        'patch_zero_bubble: "yes"',
        "patch_primus_pipeline: true\npp_algorithm: 3",
    ],
)
def test_settings_of_a_wrong_kind_are_errors(tmp_path: Path, more: str) -> None:
    with pytest.raises(InputError, match=r"must (be|hold)|no regular order"):
        read(tmp_path, more)


def test_no_window_is_no_window(tmp_path: Path) -> None:
    assert read(tmp_path, "window_size: []").model.attention.sliding_window is None


def test_other_frameworks_and_models_are_out_of_scope(tmp_path: Path) -> None:
    with pytest.raises(OutOfScopeError, match="none trains by Megatron-LM"):
        read(tmp_path, text=EXPERIMENT.replace("framework: megatron", "framework: torchtitan"))
    with pytest.raises(OutOfScopeError, match="a model of type mamba"):
        read(tmp_path, "model_type: mamba")


def test_presets_that_are_missing_are_named(tmp_path: Path) -> None:
    alone = tmp_path / "alone.yaml"
    alone.write_text(EXPERIMENT)
    with pytest.raises(InputError, match=r"needs the presets in primus/configs"):
        import_source(str(alone), ImportOptions("mi300x", 16))
    with pytest.raises(InputError, match=r"nothing\.yaml: is no preset"):
        read(tmp_path, text=EXPERIMENT.replace("${PRIMUS_MODEL:llama}", "nothing"))
    (tmp_path / "primus").mkdir(exist_ok=True)
    (tmp_path / "primus" / "outside.yaml").write_text(FAMILY)
    for extended in ("llama.yaml", "../../../outside.yaml"):
        with pytest.raises(InputError, match="is no preset"):
            read(tmp_path, model=f"extends: [{extended}]\n")
    with pytest.raises(InputError, match="must be a text"):
        read(tmp_path, text=EXPERIMENT.replace("config: trainer.yaml", "config: 3"))
    with pytest.raises(InputError, match="must hold fields"):
        read(tmp_path, text=EXPERIMENT.partition("    overrides:")[0] + "    overrides: 3\n")


def test_presets_extend_each_other_in_any_shape_but_a_loop(tmp_path: Path) -> None:
    path = experiment(tmp_path)
    folder = tmp_path / "primus" / "configs" / "models" / "megatron"
    top = "below.yaml"
    for number in range(30):  # 2^30 ways down
        (folder / top).write_text(f"extends: [{number}.yaml, {number}.yaml]\n")
        top = f"{number}.yaml"
    (folder / top).write_text(FAMILY)
    (folder / "llama.yaml").write_text(MODEL.replace("family.yaml", "below.yaml"))
    assert import_source(str(path), ImportOptions("mi300x", 16)).model.ffn == 11008
    (folder / top).write_text("extends: llama.yaml\n")
    with pytest.raises(InputError, match="is no preset"):
        import_source(str(path), ImportOptions("mi300x", 16))


def test_sections_are_merged_and_modules_overrule_models(tmp_path: Path) -> None:
    lora = MODEL + "lora:\n  enabled: true\n  dim: 8\n  target_modules: [linear_qkv]\n"
    assert read(tmp_path, "lora:\n  dim: 4", model=lora).spec["training"]["lora"]["rank"] == 4
    settings = "use_distributed_optimizer: false\nuse_precision_aware_optimizer: true\nmain_grads_dtype: bf16\n"
    found = read(tmp_path, model=MODEL + settings)
    assert found.strategy is not None
    assert found.strategy.distributed_optimizer
    assert found.spec["stack"] == "megatron-core"


@pytest.mark.parametrize(("given", "on"), [("false", False), ("off", False), ("True", True)])
def test_switches_are_given_as_texts(tmp_path: Path, given: str, on: bool) -> None:
    path = experiment(tmp_path, 'tensor_model_parallel_size: 2\nsequence_parallel: "${SP:maybe}"')
    options = ImportOptions("mi300x", 16, given={"SP": given})
    found = import_source(str(path), options)
    assert found.strategy is not None
    assert found.strategy.sequence_parallel is on
    with pytest.raises(InputError, match="must be true or false"):
        import_source(str(path), ImportOptions("mi300x", 16))


def test_a_name_that_no_file_can_have_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no preset"):
        read(tmp_path, text=EXPERIMENT.replace("config: trainer.yaml", r'config: "a\0b"'))


def test_values_that_are_not_known_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has characters of private use"):  # marks of what is not known in scripts
        read(tmp_path, r'normalization: "\ue0000\ue001"')
    with pytest.raises(InputError, match="is not planned for"):
        read(tmp_path, "patch_primus_pipeline: true\npp_algorithm: dualpipe")


def test_the_report_says_why_there_is_no_plan(tmp_path: Path) -> None:
    path = experiment(tmp_path, "recompute_layer_ids: [0, 1]")
    text = import_report(import_source(str(path), ImportOptions("mi300x", 16)), None, None)
    assert "none that can be written down: recompute_layer_ids" in text


def test_presets_of_2025_name_others_by_bases_and_includes(tmp_path: Path) -> None:
    """Of several includes the first counts (AMD-AIG-AIMA/Primus 2d42400: primus/core/utils/yaml_utils.py)."""
    path = experiment(tmp_path, model=MODEL.replace("extends", "bases"))
    folder = tmp_path / "primus" / "configs" / "modules" / "megatron"
    (folder / "other.yaml").write_text("tensor_model_parallel_size: 4\nmanual_gc: true\n")
    (folder / "trainer.yaml").write_text(TRAINER.replace("extends: [base.yaml]", "includes: [base.yaml, other.yaml]"))
    found = import_source(str(path), ImportOptions("mi300x", 16))
    assert found.strategy is not None
    assert (found.model.norm, found.strategy.tp, found.strategy.distributed_optimizer) == ("rmsnorm", 1, True)
