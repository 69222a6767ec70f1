"""NeMo 1's YAML: what its fields mean, what Hydra's defaults and interpolations give, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cpsolver.doors.importing.hydra import Interpolations, UndecidedError, composed
from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.doors.importing.output import import_report
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.errors import InputError
from models_zoo import total_parameters

LLAMA = """
run:
  name: llama2_70b
  results_dir: ${base_results_dir}/${.name}
trainer:
  num_nodes: 8
  devices: 8
  accelerator: gpu
  precision: bf16
  accumulate_grad_batches: 1
exp_manager:
  name: ${training.run.name}
model:
  mcore_gpt: true
  micro_batch_size: 1
  global_batch_size: 128
  rampup_batch_size: null
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 5
  context_parallel_size: 1
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 80
  hidden_size: 8192
  ffn_hidden_size: 28672
  num_attention_heads: 64
  num_query_groups: 8
  hidden_dropout: 0.0
  attention_dropout: 0.0
  kv_channels: null
  normalization: rmsnorm
  bias: false
  activation: fast-swiglu
  transformer_block_type: pre_ln
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  overlap_p2p_comm: true
  batch_p2p_comm: false
  tokenizer:
    library: sentencepiece
    type: null
    model: ${data_dir}/llama/llama_tokenizer.model
  megatron_amp_O2: true
  activations_checkpoint_granularity: null
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 0
  sequence_parallel: true
  transformer_engine: true
  fp8: false
  fp8_hybrid: true
  ub_tp_comm_overlap: true
  use_flash_attention: true
  optim:
    name: distributed_fused_adam
    bucket_cap_mb: 125
    overlap_grad_sync: true
    overlap_param_sync: true
    lr: 1.0e-4
  data:
    seq_length: ${training.model.encoder_seq_length}
    data_prefix: [0.5, "${data_dir}/my-llama_00_text_document"]
"""
GPT = """
trainer: {num_nodes: 1, devices: 8, precision: 16}
exp_manager: {}
model:
  micro_batch_size: 4
  global_batch_size: 256
  encoder_seq_length: 2048
  max_position_embeddings: 2048
  num_layers: 12
  hidden_size: 768
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 12
  tokenizer: {library: megatron, type: GPT2BPETokenizer}
  optim: {name: fused_adam}
"""


def read(tmp_path: Path, text: str, name: str = "config.yaml", **options: Any) -> Imported:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return import_source(str(tmp_path / name), ImportOptions(**{"chip": "h100", **options}))


def troubles(tmp_path: Path, text: str, **options: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, **options)
    return [f"{trouble.where} {trouble.message}".strip() for trouble in caught.value.troubles]


def test_the_launchers_file_of_llama2_70b_is_the_model_and_the_plan_that_it_trains(tmp_path: Path) -> None:
    found = read(tmp_path, LLAMA)
    assert found.spec["model"] == "llama2-70b"
    assert found.spec["cluster"] == {"num_gpus": 64, "gpus_per_node": 8, "chips": "h100"}
    plan, training = found.strategy, found.spec["training"]
    assert plan is not None
    assert (plan.tp, plan.pp, plan.vpp, plan.cp, plan.dp, plan.mbs) == (4, 4, 5, 1, 4, 1)
    assert plan.sequence_parallel
    assert plan.flash_attention
    assert plan.distributed_optimizer
    assert plan.recompute == ("none",) * 4  # a method alone turns nothing on
    assert (training["global_batch_size"], training["sequence_length"]) == (128, 4096)
    assert training["precision"] == "bf16"
    assert training["optimizer"] == "precision_aware"  # Apex keeps what bf16 weights leave out of master weights
    assert "dropout" not in training
    assert found.framework is not None
    assert (found.framework.stack, found.framework.launcher) == ("megatron-core-2024", None)
    assert found.unused == found.unknown == ()
    assert "configuration of NeMo" in import_report(found, None, None)


def test_what_a_file_leaves_out_is_nemos_default(tmp_path: Path) -> None:
    found = read(tmp_path, GPT)
    model, plan = found.model, found.strategy
    assert plan is not None
    assert round(total_parameters(model) / 1e6) == 125
    assert (model.ffn, model.kv_heads, model.vocab, model.norm, model.position) == (
        3072,
        12,
        50257,
        "layernorm",
        "learned",
    )
    assert (model.bias_mlp, model.bias_qkv, model.tied_embeddings, model.gated_mlp) == (True, True, True, False)
    assert (plan.dp, plan.distributed_optimizer, plan.flash_attention) == (8, False, False)
    assert found.spec["training"]["precision"] == "fp16"
    assert found.spec["training"]["dropout"]
    assert found.framework is not None
    assert found.framework.stack == "megatron-core-plain"
    assert any("weights are in fp32" in note for note in found.notes)


@pytest.mark.parametrize(
    ("more", "field", "value"),
    [
        ("activation: geglu", "activation", "geglu"),
        ("activation: squared-relu", "activation", "relu2"),
        ("normalization: LayerNorm", "norm", "layernorm"),
        ("normalization: layernorm1p", "norm", "layernorm"),
        ("qkv_bias: true\n  bias: false", "bias_qkv", True),
        ("kv_channels: 128", "head_dim", 128),
        ("override_vocab_size: 65024", "vocab", 65024),
        ("position_embedding_type: alibi", "position", "alibi"),
        ("mcore_gpt: true\n  max_position_embeddings: 9000", "max_positions", 2048),
        ("num_query_groups: 4", "kv_heads", 4),
    ],
)
def test_fields_of_the_model(tmp_path: Path, more: str, field: str, value: object) -> None:
    text = GPT.replace("  max_position_embeddings: 2048\n", "") if "max_position" in more else GPT
    assert getattr(read(tmp_path, text + f"  {more}\n").model, field) == value


def test_experts_are_those_of_mixtral(tmp_path: Path) -> None:
    sizes = {"num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32}
    text = LLAMA
    for name, size in {**sizes, "tensor_model_parallel_size": 1, "virtual_pipeline_model_parallel_size": 8}.items():
        text = re.sub(rf"  {name}: \d+", f"  {name}: {size}", text)
    text = text.replace("type: null", "type: mistralai/Mixtral-8x7B-v0.1").replace(
        "distributed_fused", "mcore_distributed"
    )
    text = text.replace("mcore_distributed_adam", "mcore_distributed_optim\n    grad_sync_dtype: bf16")
    experts = "num_moe_experts: 8\n  expert_model_parallel_size: 8\n  moe_expert_capacity_factor: 1.0"
    found = read(tmp_path, text.replace("model:\n  mcore", f"model:\n  {experts}\n  mcore"))
    assert found.spec["model"] == "mixtral-8x7b"
    assert found.strategy is not None
    assert (found.strategy.ep, found.strategy.dp) == (8, 16)
    assert found.spec["training"]["expert_capacity_factor"] == 1.0
    assert found.spec["training"]["moe_grouped_gemm"] is False
    assert found.framework is not None
    assert found.framework.stack == "nemo"
    assert "optimizer" not in found.spec["training"]


@pytest.mark.parametrize(
    ("granularity", "method", "number", "core", "kind", "layers"),
    [
        ("full", "uniform", 1, True, "uniform", 1),
        ("full", "block", 3, True, "block", 3),
        ("full", "block", "null", False, "block", 1),  # NeMo's own layers take it for 1
        ("selective", "uniform", "null", True, "selective", 0),
        ("selective", "block", 2, False, "selective", 0),  # all, whatever the number
    ],
)
def test_what_is_recomputed(
    tmp_path: Path, granularity: str, method: str, number: object, core: bool, kind: str, layers: int
) -> None:
    lines = [("granularity", granularity), ("method", method), ("num_layers", number)]
    text = GPT + "".join(f"  activations_checkpoint_{name}: {value}\n" for name, value in lines)
    plan = read(tmp_path, text + f"  mcore_gpt: {str(core).lower()}\n  transformer_engine: true\n").strategy
    assert plan is not None
    assert (plan.recompute[0], plan.recompute_layers[0]) == (kind, layers)


def test_recomputation_that_differs_by_microbatch_leaves_no_plan_of_nemos_own_layers(tmp_path: Path) -> None:
    text = GPT + "  activations_checkpoint_granularity: full\n  activations_checkpoint_method: block\n"
    text += "  activations_checkpoint_num_layers: 2\n  num_micro_batches_with_partial_activation_checkpoints: 2\n"
    found = read(tmp_path, text)
    assert found.strategy is None
    assert any("differs by microbatch" in reason for reason in found.refusals)
    assert read(tmp_path, text + "  mcore_gpt: true\n").strategy is not None  # which does not ask for it


@pytest.mark.parametrize(
    ("optimizer", "stack", "of_training"),
    [
        ("name: distributed_fused_adam", "megatron-core-2024", "precision_aware"),
        ("name: distributed_fused_adam\n    overlap_grad_sync: false", "megatron-core-plain", "precision_aware"),
        ("name: distributed_fused_adam\n    grad_sync_dtype: bf16", "nemo-2024", "precision_aware"),
        ("name: distributed_fused_adam\n    dtype: bf16", "nemo-2024", "precision_aware_bf16_grads"),
        ("name: distributed_fused_adam\n    store_params: true", "megatron-core-2024", None),
        ("name: mcore_distributed_optim\n    overlap_grad_sync: true", "megatron-core-2024", None),
        ("name: mcore_distributed_optim", "megatron-core-plain", None),
        ("name: mcore_distributed_optim\n    grad_sync_dtype: bf16\n    dtype: bf16", "nemo", None),
        ("name: adamw", "megatron-core-plain", None),
    ],
)
def test_the_stack_and_the_states_are_by_the_optimizer(
    tmp_path: Path, optimizer: str, stack: str, of_training: str | None
) -> None:
    text = LLAMA.replace("    overlap_grad_sync: true\n    overlap_param_sync: true\n", "")
    found = read(tmp_path, text.replace("name: distributed_fused_adam", optimizer))
    assert found.framework is not None
    assert found.framework.stack == stack
    assert found.spec["training"].get("optimizer") == of_training


def test_fp8_and_what_the_stack_counts_on(tmp_path: Path) -> None:
    text = LLAMA.replace("fp8: false", "fp8: true\n  fp8_params: true\n  fp8_dot_product_attention: true")
    text = text.replace("ub_tp_comm_overlap: true", "deterministic_mode: false").replace(
        "overlap_p2p_comm: true", "fp8_wgrad: true"
    )
    found = read(tmp_path, text.replace("bucket_cap_mb: 125", "grad_sync_dtype: bf16"))
    training = found.spec["training"]
    assert (training["precision"], training["fp8_recipe"], training["fp8_parameter_gather"]) == ("fp8", "delayed", True)
    assert "optimizer" not in training  # 8-bit weights have master weights beside them
    assert found.framework is not None
    assert found.framework.stack == "nemo"  # by deterministic_mode, which is of 24.09
    told = " ".join(found.notes)
    for words in ("tensor parallelism's exchanges", "transfers between stages", "attention in 8 bits"):
        assert words in told


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("precision: bf16", "precision: 32", "trainer.precision is not planned for"),
        ("accelerator: gpu", "accelerator: tpu", "trainer.accelerator is not planned for"),
        ("num_layers: 80", "num_layers: 82", "model.num_layers 82 layers are not a multiple of 4 stages"),
        ("  ffn_hidden_size: 28672\n", "", "model.ffn_hidden_size is not given"),
        ("hidden_size: 8192", "hidden_size: ???", "model.hidden_size is not given: the file leaves it open"),
        ("name: distributed_fused_adam", "name: adafactor", "model.optim.name is not planned for"),
        (
            "seq_length: ${training.model.encoder_seq_length}",
            "seq_length: 2048",
            "model.data.seq_length is not model.enc",
        ),
        ("accumulate_grad_batches: 1", "accumulate_grad_batches: 4", "trainer.accumulate_grad_batches must be 1"),
        ("bias: false", "headscale: true", "model.headscale scales of attention's heads"),
        ("bias: false", "name: megatron_gemma2", "model.name is not planned for"),
        ("global_batch_size: 128", "global_batch_size: ${oc.env:GBS}", "model.global_batch_size needs GBS"),
        ("fp8: false\n  fp8_hybrid: true", "fp8: true", "model.fp8 needs fp8_e4m3 or fp8_hybrid"),
        ("transformer_block_type: pre_ln", "transformer_block_type: normformer", "model.transformer_block_type is not"),
    ],
)
def test_what_no_plan_holds_is_an_error(tmp_path: Path, before: str, after: str, told: str) -> None:
    assert before in LLAMA
    assert any(trouble.startswith(told) for trouble in troubles(tmp_path, LLAMA.replace(before, after, 1)))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("fsdp: true", "PyTorch's FSDP"),
        ("cpu_offloading: true\n  cpu_offloading_num_layers: 2", "weights on the host"),
        ("optim.distribute_within_nodes", "within each node"),
    ],
)
def test_what_no_plan_says_leaves_the_spec(tmp_path: Path, more: str, reason: str) -> None:
    text = LLAMA.replace("bucket_cap_mb: 125", f"{more[6:]}: true") if "optim." in more else f"{LLAMA}  {more}\n"
    found = read(tmp_path, text)
    assert found.strategy is None
    assert any(reason in refusal for refusal in found.refusals)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("model:\n  encoder: {num_layers: 12}\n  decoder: {num_layers: 12}\n", "(T5)"),
        ("model:\n  num_layers: 12\n  bert_binary_head: true\n", "(BERT)"),
        ("model:\n  num_layers: 12\n  retro: {retro_project_dir: null}\n", "(Retro)"),
        ("model:\n  num_layers: 40\n  mm_cfg: {llm: {freeze: true}}\n", "a multimodal model"),
        ("model:\n  num_layers: 12\n  img_h: 224\n", "a vision model"),
        ("model:\n  num_layers: 56\n  hybrid_override_pattern: null\n", "state-space"),
        ("model:\n  dpo: {ref_policy_kl_penalty: 0.2}\n", "preferences"),
        ("model:\n  virtual_prompt_style: p-tuning\n", "prompts that are trained alone"),
        ("model:\n  preprocessor: {_target_: x}\n", "a model of speech"),
        ("model:\n  nemo_model: x.nemo\n", "an evaluation"),
        ("model:\n  restore_from_path: x.nemo\n", "an evaluation"),
        ("run: {nemo_file_name: x.nemo}\nmodel:\n  num_layers: 32\n", "a conversion"),
        ("inference: {greedy: false}\ntensor_model_parallel_size: 1\n", "inference, not a training"),
        ("quantization: {algorithm: fp8}\nmodel: {tensor_model_parallel_size: 1}\n", "a quantization or an export"),
        ("use_smp_model: true\nmodel: {num_layers: 2}\n", "HyperPod"),
        ("model: {optim: {name: adam}}\n", "no training of a GPT"),
    ],
)
def test_files_of_something_else_say_what_they_are(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(OutOfScopeError) as caught:
        read(tmp_path, f"trainer: {{devices: 8, num_nodes: 1}}\nexp_manager: {{}}\n{text}")
    assert what in caught.value.troubles[0].message


def test_a_tuning_needs_the_model_of_its_checkpoint(tmp_path: Path) -> None:
    text = "trainer: {devices: 8}\nexp_manager: {}\nmodel:\n  restore_from_path: llama.nemo\n"
    text += "  optim: {name: fused_adam}\n"
    assert any("tunes a checkpoint" in trouble for trouble in troubles(tmp_path, text))
    lora = "  peft: {peft_scheme: lora, lora_tuning: {adapter_dim: 16, target_modules: [attention_qkv, mlp]}}\n"
    found = read(tmp_path, LLAMA + lora)
    assert found.spec["training"]["lora"] == {"rank": 16, "targets": ["linear_qkv", "mlp"]}
    assert any(
        "is not planned for" in trouble for trouble in troubles(tmp_path, LLAMA + lora.replace(": lora,", ": ia3,"))
    )


def test_a_tuning_has_the_model_of_the_checkpoint_beside_it(tmp_path: Path) -> None:
    model = "\n".join(line.removeprefix("  ") for line in LLAMA.split("model:\n")[1].splitlines())
    (tmp_path / "model_config.yaml").write_text(model.replace("${training.model.", "${") + "\nprecision: bf16\n")
    text = (
        "trainer: {devices: 8, num_nodes: 2, precision: bf16}\nexp_manager: {}\nmodel:\n  restore_from_path: a.nemo\n"
    )
    text += "  pipeline_model_parallel_size: 4\n  data: {train_ds: {max_seq_length: 2048, file_names: [a]}}\n"
    found = read(tmp_path, text)
    assert found.spec["model"] == "llama2-70b"
    assert found.spec["training"]["sequence_length"] == 2048
    assert any("as long as their data" in note for note in found.notes)


def test_overrides_are_those_of_the_command_line(tmp_path: Path) -> None:
    words = (
        "training.model.micro_batch_size=2",
        "trainer.num_nodes=16",
        "+model.fp8_params=true",
        "~model.kv_channels",
    )
    found = read(tmp_path, LLAMA, arguments=words)
    assert found.strategy is not None
    assert (found.strategy.mbs, found.spec["cluster"]["num_gpus"]) == (2, 128)
    for word in ("model.micro_batch=2", "fp8", "training=gpt3/5b"):
        assert troubles(tmp_path, LLAMA, arguments=(word,))[0].startswith("--args is no")


@pytest.mark.parametrize(
    ("file", "start", "sets"),
    [
        ("conf/llama.yaml", "torchrun $NEMO/x/megatron_gpt_pretraining.py --config-path=conf --config-name llama", ""),
        ("nlp/conf/llama.yaml", "python $NEMO/nlp/megatron_gpt_pretraining.py -cn llama", ""),
        (
            "launcher_scripts/conf/training/llama/a.yaml",
            "python $L/launcher_scripts/main.py training=llama/a",
            "training.",
        ),
    ],
)
def test_a_script_is_the_file_that_it_starts_with_its_overrides(
    tmp_path: Path, file: str, start: str, sets: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(LLAMA)
    (tmp_path / "scripts").mkdir()
    text = f"N=${{N:-16}}\n{start} stages=[training] {sets}trainer.num_nodes=$N {sets}model.global_batch_size=$BATCH\n"
    (tmp_path / "scripts" / "run.sh").write_text(text)
    found = import_source(str(tmp_path / "scripts" / "run.sh"), ImportOptions("h100", given={"BATCH": "256"}))
    assert (found.spec["cluster"]["num_gpus"], found.spec["training"]["global_batch_size"]) == (128, 256)
    assert any("N=16" in note for note in found.notes)
    with pytest.raises(InputError, match="needs BATCH"):
        import_source(str(tmp_path / "scripts" / "run.sh"), ImportOptions("h100"))
    (tmp_path / file).unlink()
    with pytest.raises(InputError, match="is not in the script's folder"):
        import_source(str(tmp_path / "scripts" / "run.sh"), ImportOptions("h100", given={"BATCH": "256"}))


def test_the_launchers_own_file_names_what_to_give(tmp_path: Path) -> None:
    text = "defaults:\n  - training: gpt3/5b\nstages: [training]\nlauncher_scripts_path: ???\n"
    assert any("names others" in trouble for trouble in troubles(tmp_path, text))


def test_defaults_are_looked_for_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(LLAMA.replace("num_layers: 80", "num_layers: 40"))
    (tmp_path / "optim").mkdir()
    (tmp_path / "optim" / "mcore.yaml").write_text("name: mcore_distributed_optim\n")
    text = "defaults:\n  - base\n  - optional tp_overlap@model.ub_tp_comm_overlap_cfg: absent\n"
    text += "  - optim@model.optim: mcore\n"
    text += "  - data_prefix@model.data.data_prefix: absent\n  - override hydra/job_logging: stdout\n  - _self_\n"
    text += "trainer:\n  num_nodes: ${oc.decode:${oc.env:NODES,2}}\nexp_manager: {}\n"
    text += "model:\n  micro_batch_size: ${oc.decode:${oc.env:MBS,${if:${eq:${.num_layers},40},2,1}}}\n"
    found = read(tmp_path, text, vocab_size=32000)
    assert found.strategy is not None
    assert (found.model.layers, found.strategy.mbs, found.spec["cluster"]["num_gpus"]) == (40, 2, 16)
    assert "optimizer" not in found.spec["training"]
    assert any("NODES=2" in note and "MBS=2" in note for note in found.notes)
    given = read(tmp_path, text, vocab_size=32000, given={"MBS": "1", "NODES": "4"})
    assert given.strategy is not None
    assert (given.strategy.mbs, given.spec["cluster"]["num_gpus"]) == (1, 32)
    (tmp_path / "base.yaml").unlink()
    assert any("needs base.yaml" in trouble for trouble in troubles(tmp_path, text))


@pytest.mark.parametrize("text", ["training:\n" + LLAMA.replace("\n", "\n  "), LLAMA.split("model:\n")[1]])
def test_files_whose_fields_stand_elsewhere_are_read_too(tmp_path: Path, text: str) -> None:
    """The whole configuration of the launcher, and the fields of a checkpoint's model_config.yaml."""
    if not text.startswith("training"):
        text = (
            "\n".join(line.removeprefix("  ") for line in text.splitlines()).replace("${training.model.", "${")
            + "\nprecision: bf16\n"
        )
    found = read(tmp_path, text, num_gpus=64, gpus_per_node=8)
    assert found.spec["model"] == "llama2-70b"
    assert found.strategy is not None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${.b}", 3),
        ("${..c}", "x"),
        ("${a.b}-${a.d.e}", "3-7"),
        ("${inside.a.b}", 3),
        ("${multiply:${.b}, 4}", 12),
        ("${sum:${.b},-1}", 2),
        ("${divide_ceil:7, 2}", 4),
        ("${floor_div:7,2}", 3),
        ("${oc.decode:'${.b}'}", 3),
        ("${if:${or:${eq:1,2},${lt:1,2}},yes,no}", "yes"),
        ("${oc.env:NAME,${.b}}", "3"),
        ("${oc.decode:${oc.env:NAME,null}}", None),
        ("{input} ${.b}", "{input} 3"),
    ],
)
def test_interpolations_are_those_of_omegaconf(text: str, value: object) -> None:
    data = {"a": {"b": 3, "d": {"e": "${sum:3,4}"}}, "c": "x"}
    assert Interpolations(data).decided(text, ("a",)) == value


@pytest.mark.parametrize(
    "text",
    [
        *("${absent}", "${....b}", "${oc.env:NAME}", "${gpu_name:}", "${multiply:x,1000000}", "${div:1,0}", "???"),
        *("${.circle}", "${", "${multiply:1e300,1e300}", "${a b}", "${.much}"),
    ],
)
def test_what_the_text_does_not_decide_stays_open(text: str) -> None:
    data = {
        "a": {"circle": "${.circle}", "much": "${.m0}", **{f"m{n}": f"${{.m{n + 1}}}" * 4 for n in range(40)}, "m40": 1}
    }
    with pytest.raises(UndecidedError):
        Interpolations(data).decided(text, ("a",))


def test_any_text_is_decided_or_stays_open() -> None:
    random, letters = Random(7), "${}:,.'\"ab1 multiplysm"
    for _ in range(3000):
        text = "${" + "".join(random.choice(letters) for _ in range(random.randrange(12)))
        try:
            Interpolations({"a": {"b": text}, "b": 2}).decided(text, ("a",))
        except UndecidedError:
            continue


def test_files_above_the_first_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("model: {}\n")
    (tmp_path / "conf").mkdir()
    with pytest.raises(InputError):
        composed(str(tmp_path / "conf" / "a.yaml"), {"defaults": ["../secret"]}, ())
