"""Configuration files of frameworks: what each says in the terms of a spec and a plan, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cpsolver import make_problem
from cpsolver.doors.export.judge import launch_of
from cpsolver.doors.export.launch import write_files
from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.document import parse_yaml
from cpsolver.inputs.errors import InputError
from models_zoo import total_parameters
from tests.support.command import in_tmp, run, write  # noqa: F401
from tests.support.problems import problem_of, strategy_of

NEOX_20B = """# the settings of GPT-NeoX-20B
{
  "vocab_file": "./20B_tokenizer.json",
  "pipe_parallel_size": 4,
  "model_parallel_size": 2,
  "num_layers": 44,
  "hidden_size": 6144,
  "num_attention_heads": 64,
  "seq_length": 2048,
  "max_position_embeddings": 2048,
  "norm": "layernorm",
  "pos_emb": "rotary",
  "rotary-pct": 0.25,
  "no_weight_tying": true,
  "gpt_j_residual": true,
  "optimizer": {"type": "Adam", "params": {"lr": 0.97e-4}},
  "zero_optimization": {"stage": 1, "overlap_comm": True},
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 32,
  "checkpoint_activations": true,
  "checkpoint_num_layers": 1,
  "hidden_dropout": 0,
  "attention_dropout": 0,
  "fp16": {"enabled": true, "loss_scale": 0},
}
"""
TRAIN = """
system:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  sequence_parallel: true
  use_distributed_optimizer: true
  disable_bias_linear: true
  num_workers: ${experiment.workers}
  precision: {bf16: true}
model:
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  seq_length: 2048
  max_position_embeddings: 2048
  swiglu: true
  multiple_of: 256
  normalization: RMSNorm
  position_embedding_type: rope
  untie_embeddings_and_output_weights: true
  attention_dropout: 0.0
  hidden_dropout: 0.0
  micro_batch_size: 1
  global_batch_size: 64
  optimizer: {lr_scheduler: {lr: 2.0e-5}}
data:
  split: 1
  tokenizer: {vocab_size: 32000}
"""
EXPERIMENT = """
defaults:
  - _self_
  - train: 7b
experiment:
  workers: 2
  task: {type: train, backend: megatron, entrypoint: ./flagscale/train/train_gpt.py}
  runner: {nnodes: 2, nproc_per_node: 8}
"""
MEGATRON = """
language_model:
  num_layers: 24
  hidden_size: 1024
  num_attention_heads: 16
  num_query_groups: 4
  ffn_hidden_size: null
  hidden_dropout: 0.0
  attention_dropout: 0.0
  add_bias_linear: False
  activation_func: swiglu
  normalization: RMSNorm
  recompute_granularity: full
  recompute_method: block
  recompute_num_layers: 2
  num_moe_experts: null
model_parallel:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  sequence_parallel: True
  bf16: True
  fp16: False
micro_batch_size: 2
global_batch_size: 128
position_embedding_type: rope
untie_embeddings_and_output_weights: True
use_distributed_optimizer: True
max_position_embeddings: 4096
seq_length: 4096
vocab_size: 32000
swiglu: False
"""


def read(tmp_path: Path, text: str, name: str = "config.yaml", **options: Any) -> Imported:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return import_source(str(tmp_path / name), ImportOptions(**{"chip": "a100", **options}))


def troubles(tmp_path: Path, text: str, **options: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, **options)
    return [f"{trouble.where} {trouble.message}".strip() for trouble in caught.value.troubles]


def test_gpt_neox_20b_is_the_model_and_the_plan_that_its_paper_has(tmp_path: Path) -> None:
    """20.6 B parameters on 96 GPUs, tp 2 and pp 4, 1,538 sequences a step (arXiv:2204.06745; 4 x 32 x 12 here)."""
    found = read(tmp_path, NEOX_20B, num_gpus=96, gpus_per_node=8, vocab_size=50432)
    assert round(total_parameters(found.model) / 1e9, 2) == 20.55
    assert found.strategy is not None
    assert (found.strategy.tp, found.strategy.pp, found.strategy.dp, found.strategy.mbs) == (2, 4, 12, 4)
    assert found.strategy.sharded == "optimizer"
    assert found.strategy.recompute == ("uniform",) * 4
    assert found.spec["training"]["global_batch_size"] == 1536
    assert found.spec["training"]["precision"] == "fp16"
    assert found.unused == ()


@pytest.mark.parametrize("whole", [True, False])
def test_neox_shares_out_what_recomputed_layers_keep(tmp_path: Path, whole: bool) -> None:
    """It says so of layers that it recomputes alone, and that their inputs wait on the host."""
    more = f'"partition_activations": true, "checkpoint_in_cpu": true, "checkpoint_activations": {str(whole).lower()}'
    found = read(tmp_path, NEOX_20B.replace('"checkpoint_activations": true', more), num_gpus=96, vocab_size=50432)
    assert found.spec["training"].get("distribute_saved_activations", False) == whole
    assert found.spec["training"].get("cpu_checkpointing", False) == whole


def test_the_width_of_a_gate_is_that_of_neox(tmp_path: Path) -> None:
    """LLaMA 7B: 32,768 given, two thirds of it in two halves, in whole 256s: 11,008."""
    text = NEOX_20B.replace(
        '"norm"', '"activation": "swiglu", "intermediate_size": 32768, "mlp_multiple_of": 256, "norm"'
    )
    found = read(tmp_path, text, num_gpus=96, vocab_size=32000)
    assert (found.model.ffn, found.model.gated_mlp) == (11008, True)


def test_what_neox_has_and_no_plan_is_refused_at_once(tmp_path: Path) -> None:
    text = NEOX_20B.replace('"norm"', '"moe_num_experts": 8, "attention_config": [[["local"], 44]], "norm"')
    said = troubles(tmp_path, text.replace('"seq_length": 2048', '"seq_length": [1]'), num_gpus=96)
    assert said[0] == "moe_num_experts experts of GPT-NeoX: that is not planned for"
    assert "attention_config is not planned for" in said


def test_flagscale_finds_its_train_section_beside_the_experiment(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "7b.yaml").write_text(TRAIN, encoding="utf-8")
    found = read(tmp_path, EXPERIMENT)
    assert found.spec["cluster"] == {"num_gpus": 16, "gpus_per_node": 8, "chips": "a100"}
    assert found.model.name == "llama-7b"  # int(8 x 4096 / 3) in whole 256s: 11,008
    assert found.spec["launcher"] == "flagscale"
    assert found.strategy is not None
    assert (found.strategy.tp, found.strategy.pp, found.strategy.dp) == (2, 2, 4)
    assert found.unused == ()
    (tmp_path / "train" / "7b.yaml").unlink()
    assert troubles(tmp_path, EXPERIMENT) == ["defaults train/7b.yaml is not beside the file"]


def test_flagscales_other_trainings_are_out_of_scope(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("train_gpt.py", "train_llava_onevision.py") + "train:" + TRAIN.replace("\n", "\n  ")
    with pytest.raises(OutOfScopeError):
        read(tmp_path, text)


def test_what_is_exported_for_flagscale_is_imported_again(tmp_path: Path) -> None:
    problem = problem_of(gpus=8, node=8)
    strategy = strategy_of("x:2,2", tp=2, dp=2, flags="szf")
    write_files(str(tmp_path), launch_of(problem, strategy, "flagscale"))
    found = import_source(str(tmp_path / "plan.yaml"), ImportOptions("a100"))
    assert found.spec["cluster"]["num_gpus"] == 8
    assert found.strategy is not None
    assert (found.strategy.tp, found.strategy.dp, found.strategy.layers) == (2, 2, (2, 2))
    assert found.model.hidden == problem.model.hidden


def test_megatrons_yaml_says_what_its_arguments_say(tmp_path: Path) -> None:
    found = read(tmp_path, MEGATRON, num_gpus=8)
    model = found.model
    assert (model.kv_heads, model.gated_mlp, model.bias_mlp, model.ffn) == (4, True, False, 2688)  # 8 x 1024 / 3 / 64
    assert found.strategy is not None
    assert (found.strategy.tp, found.strategy.pp, found.strategy.dp, found.strategy.mbs) == (2, 2, 2, 2)
    assert found.strategy.recompute_layers == (2, 2)
    assert found.spec["stack"] == "megatron-core-plain"
    script = "torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --yaml-cfg ./config.yaml\n"
    assert read(tmp_path, script, "train.sh").strategy == found.strategy
    wrong = MEGATRON.replace("language_model:\n  num_layers: 24", "language_model: 3\nrest:\n  num_layers: 24")
    assert troubles(tmp_path, wrong) == ["language_model must hold fields"]


def test_a_configuration_of_megatrons_tests_is_its_arguments(tmp_path: Path) -> None:
    arguments = "--num-layers: 12, --hidden-size: 512, --num-attention-heads: 8, --micro-batch-size: 4"
    more = "--global-batch-size: 32, --seq-length: 1024, --max-position-embeddings: 1024, --bf16: true, --swiglu: false"
    text = f"TEST_TYPE: regular\nMODEL_ARGS: {{{arguments}, {more}, --vocab-size: 50304}}\n"
    found = read(tmp_path, text, num_gpus=8)
    assert (found.model.layers, found.model.gated_mlp) == (12, False)
    assert found.strategy is not None
    assert found.strategy.dp == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: gpt\ncluster: {}\ntraining: {}\n", "is a spec already"),
        ('{"train_batch_size": 8, "zero_optimization": {"stage": 2}}', "is DeepSpeed's configuration"),
        ("_target_: loongforge.models.foundation.LLaMAConfig\nnum_layers: 3\n", "is a model of LoongForge"),
        ("MODEL_ARGS: 3\n", "must hold arguments"),
        ("experiment: 3\ndefaults: 7\n", "name no train section"),
        ("experiment: {}\ndefaults: [{train: ../../../etc/passwd}]\n", "is not beside the file"),
        ("system: [1]\nmodel: 3\ndata: {}\n", "is not given"),
        ("pipe_parallel_size: {}\nmodel_parallel_size: {a: 1}\n", "must be a plain value"),
        ("pipe_parallel_size: &a [*a]\n", "is nested too deeply, or in itself"),
        ("pipe_parallel_size: 1\nnum_layers: 1e999\nhidden_size: 7\n", "must be a whole number"),
    ],
    ids=lambda text: text[:20],
)
def test_hostile_and_misplaced_files_are_told_apart(tmp_path: Path, text: str, said: str) -> None:
    assert any(said in one for one in troubles(tmp_path, text))


def test_the_command_reads_a_configuration(in_tmp: Path) -> None:  # noqa: F811
    write("neox.yml", NEOX_20B)
    result = run("import", "neox.yml", "--chip", "a100", "--num-gpus", "96", "--vocab-size", "50432")
    assert result.exit_code == 0
    assert "configuration of GPT-NeoX" in result.output


MINDFORMERS = """
run_mode: train
runner_config: {epochs: 3, batch_size: 1, gradient_accumulation_steps: 4}
micro_batch_interleave_num: 1
parallel: {parallel_mode: 1, enable_parallel_optimizer: True}
parallel_config:
  data_parallel: 2
  model_parallel: 4
  pipeline_stage: 8
  use_seq_parallel: True
  micro_batch_num: 256
recompute_config: {recompute: [3, 2, 1, 1, 1, 1, 1, 1], select_recompute: False}
trainer: {type: CausalLanguageModelingTrainer}
model:
  model_config:
    type: LlamaConfig
    batch_size: 1
    seq_length: 4096
    hidden_size: 8192
    num_layers: 80
    num_heads: 64
    vocab_size: 32000
    multiple_of: 256
    n_kv_heads: 8
    ffn_dim_multiplier: 1.3
    compute_dtype: bfloat16
    param_init_type: bfloat16
    use_flash_attention: True
    offset: [0, 1, 0, 0, 0, 0, 0, -1]
"""
PADDLE = """{
  "model_name_or_path": "meta-llama/Llama-2-7b",
  "per_device_train_batch_size": 1, "gradient_accumulation_steps": 16,
  "tensor_parallel_degree": 2, "pipeline_parallel_degree": 2, "virtual_pp_degree": 2,
  "sharding": "stage1", "sequence_parallel": 1, "use_flash_attention": true,
  "max_seq_length": 4096, "bf16": true, "recompute": true, "recompute_granularity": "full"
}"""


def test_mindformers_has_its_devices_and_layers_by_stage(tmp_path: Path) -> None:
    """LLaMA-2 70B: 4 x 8192 x 1.31 x 2 / 3 in whole 256s is 28,672; 2 x 4 x 8 devices, 1 x 2 x 256 sequences."""
    found = read(tmp_path, MINDFORMERS)
    assert found.model.name == "llama2-70b"
    assert (found.spec["cluster"]["num_gpus"], found.spec["stack"]) == (64, "mindformers-half")
    assert found.spec["training"]["global_batch_size"] == 512
    assert found.strategy is not None
    assert found.strategy.layers == (10, 11, 10, 10, 10, 10, 10, 9)
    assert found.strategy.recompute_layers == (3, 2, 1, 1, 1, 1, 1, 1)
    plain = MINDFORMERS.replace("pipeline_stage: 8", "pipeline_stage: 1")
    plain = plain.replace("[3, 2, 1, 1, 1, 1, 1, 1]", "False").replace("[0, 1, 0, 0, 0, 0, 0, -1]", "0")
    alone = read(tmp_path, plain)
    assert alone.spec["training"]["global_batch_size"] == 8  # without a pipeline gradients are accumulated instead


def test_what_mindformers_recomputes_by_operators_is_no_plan(tmp_path: Path) -> None:
    found = read(tmp_path, MINDFORMERS.replace("select_recompute: False", "select_recompute: True"))
    assert found.strategy is None
    assert found.refusals[0].startswith("recompute_config.select_recompute")
    with pytest.raises(OutOfScopeError):
        read(tmp_path, MINDFORMERS.replace("run_mode: train", "run_mode: predict"))
    said = troubles(tmp_path, MINDFORMERS.replace("type: LlamaConfig", "type: [DeepseekV3Config]"))
    assert "type must be a text" in said
    experts = MINDFORMERS + "moe_config: {expert_num: 8}\n"
    assert troubles(tmp_path, experts) == ["moe_config.expert_num experts of MindFormers are not read"]


def test_paddle_names_its_model(tmp_path: Path) -> None:
    found = read(tmp_path, PADDLE, "pretrain.json", num_gpus=16)
    assert found.model.name == "llama2-7b"
    assert found.spec["training"]["global_batch_size"] == 64  # 1 x 16 x 4 replicas
    strategy = found.strategy
    assert strategy is not None
    assert (strategy.tp, strategy.pp, strategy.vpp, strategy.dp, strategy.sharded) == (2, 2, 2, 4, "optimizer")
    assert strategy.recompute == ("uniform", "uniform")
    assert found.unused == ()
    unknown = PADDLE.replace("Llama-2-7b", "Nothing-1b")
    assert troubles(tmp_path, unknown, num_gpus=16) == ["model_name_or_path is not a model of the catalogue"]


def test_loongforge_reads_the_model_that_its_script_names(tmp_path: Path) -> None:
    models = tmp_path / "configs" / "models" / "llama2"
    models.mkdir(parents=True)
    fields = "num_layers: 32\nhidden_size: 4096\nffn_hidden_size: 11008\nnum_attention_heads: 32\nswiglu: true\n"
    more = "normalization: RMSNorm\nposition_embedding_type: rope\nadd_bias_linear: false\nhidden_dropout: 0\n"
    text = f"_target_: loongforge.models.foundation.LLaMAConfig\n{fields}{more}attention_dropout: 0\n"
    (models / "llama2_7b.yaml").write_text(text + "untie_embeddings_and_output_weights: true\n", encoding="utf-8")
    script = "torchrun --nproc_per_node 8 --nnodes 1 $LOONGFORGE_PATH/loongforge/train.py --model-name llama2-7b"
    script += " --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 --max-position-embeddings 4096"
    found = read(tmp_path, script + "\n", "train.sh")
    assert found.model.name == "llama2-7b"
    assert found.spec["launcher"] == "loongforge"
    tuned = script + " --training-phase sft"
    lengths = "--training-phase sft is not in the plan: sequences as long as their data"
    for more, note in (
        ("", lengths),
        (" --packing-sft-data", "several sequences in a window"),
        (" --use-fixed-seq-lengths", None),
    ):
        notes = [text for text in read(tmp_path, tuned + more + "\n", "train.sh").notes if "is not in the plan" in text]
        assert len(notes) == (note is not None), notes
        assert note is None or note in notes[0]
    assert "adapters" in read(tmp_path, tuned + " --lora-dim 8\n", "train.sh").refusals[0]
    file = "--config-file $LOONGFORGE_PATH/configs/models/llama2/llama2_7b.yaml"
    named = script.replace("--model-name llama2-7b", file)
    assert read(tmp_path, named + "\n", "train.sh").model.name == "llama2-7b"
    (models / "minimax.yaml").write_text(
        text.replace("LLaMAConfig", "MinimaxConfig") + "qk_layernorm: true\nvocab_size_in_config_file: 32000\n"
    )
    normed = read(tmp_path, script.replace("llama2-7b", "minimax") + "\n", "train.sh").model.attention.qk_norm
    assert normed == "layer"
    missing = troubles(tmp_path, "#!/bin/bash\n" + script.replace("llama2-7b", "llama9") + "\n")
    assert missing == ["--model-name configs/models/*/llama9.yaml is not in the script's folder or above it"]
    table = tmp_path / "loongforge" / "utils" / "config_map.py"  # names that are no file's: the table says which
    table.parent.mkdir(parents=True)
    entry = '"llama9": {"config_path": "configs/models/llama2", "config_name": "llama2_7b"}'
    table.write_text(f"import os\nROOT = os.sep\nraise SystemExit\nREGISTRY: dict = {{{entry}}}\n", encoding="utf-8")
    assert read(tmp_path, script.replace("llama2-7b", "LLaMA9") + "\n", "train.sh").model.name == "llama2-7b"
    for other in ("REGISTRY = {**other}", f"N = {'-' * 20_000}1", "{", 'REGISTRY = {"llama2-7b": 1}', "REGISTRY = [[]"):
        table.write_text(f"{other}\n", encoding="utf-8")
        assert read(tmp_path, script + "\n", "train.sh").model.name == "llama2-7b"


def test_deepspeeds_file_and_hosts_stand_beside_the_script(tmp_path: Path) -> None:
    sizes = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --vocab-size 50304"
    more = "--max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 64 --fp16 --deepspeed"
    script = f"deepspeed --hostfile=hosts pretrain_gpt.py {sizes} {more} --deepspeed_config ds.json\n"
    (tmp_path / "hosts").write_text("# two\na slots=8\nb slots=8\n", encoding="utf-8")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "train_batch_size": 64}', encoding="utf-8")
    found = read(tmp_path, script, "train.sh")
    assert found.spec["cluster"]["num_gpus"] == 16
    assert found.strategy is not None
    assert found.strategy.sharded == "gradients"
    assert "ds.json: ZeRO stage 2" in found.notes
    for text, said in (("{", "is not JSON"), ('{"zero_optimization": {"stage": [3]}}', "not one of the choices")):
        (tmp_path / "ds.json").write_text(text, encoding="utf-8")
        with pytest.raises(InputError) as caught:
            import_source(str(tmp_path / "train.sh"), ImportOptions("a100"))
        assert said in str(caught.value)
    (tmp_path / "ds.json").unlink()
    (tmp_path / "ds.json").symlink_to("/dev/zero")
    again = import_source(str(tmp_path / "train.sh"), ImportOptions("a100"))
    assert "DeepSpeed's own file is not read: its ZeRO stage is taken as 0" in again.notes


TORCHTITAN = """
[job]
description = "Llama 3 70B training"
[model]
name = "llama3"
flavor = "70B"
# converters = ["float8"]
[optimizer]
name = "AdamW"
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
"""


def test_torchtitan_shards_over_all_replicas(tmp_path: Path) -> None:
    """Its preset of LLaMA 3 70B for 64 GPUs: 8 replicas of 8 ranks, 8 sequences each."""
    found = read(tmp_path, TORCHTITAN, "llama3_70b.toml", num_gpus=64)
    assert (found.model.name, found.spec["launcher"]) == ("llama3.1-70b", "torchtitan")
    strategy = found.strategy
    assert strategy is not None
    assert (strategy.tp, strategy.dp, strategy.mbs, strategy.sharded) == (8, 8, 8, "parameters")
    assert (strategy.recompute, strategy.sequence_parallel) == (("uniform",), True)
    assert found.spec["training"]["global_batch_size"] == 64
    assert found.unused == ()
    said = troubles(tmp_path, TORCHTITAN.replace("# converters", "converters"), num_gpus=64)
    assert said == ["model.converters layers that are converted to another precision: that is not planned for"]
    assert troubles(tmp_path, TORCHTITAN + "[training\n")[0].startswith("is not TOML")
    pipeline = 'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "DualPipeV"\ntensor_parallel_degree = 8'
    again = read(tmp_path, TORCHTITAN.replace("tensor_parallel_degree = 8", pipeline), num_gpus=64)
    assert again.refusals == ("parallelism.pipeline_parallel_schedule DualPipeV: its parts are not read",)


def test_what_is_exported_for_torchtitan_is_imported_again(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "model": "llama3.1-8b",
        "num_gpus": 8,
        "chips": "h100",
        "global_batch_size": 64,
        "sequence_length": 8192,
    }
    problem = make_problem(**fields, launcher="torchtitan")
    imported = read(tmp_path, TORCHTITAN.replace('"70B"', '"8B"').replace("= 8\nseq", "= 1\nseq"), num_gpus=8)
    assert imported.strategy is not None
    write_files(str(tmp_path), launch_of(problem, imported.strategy, "torchtitan"))
    again = import_source(str(tmp_path / "torchtitan-0.2.toml"), ImportOptions("h100", 8))
    assert again.strategy == replace(imported.strategy, groups=(replace(imported.strategy.groups[0], chip="h100"),))


WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    7.5,
    float("inf"),
    10**30,
    "",
    "x",
    "${a.b}",
    [],
    [1],
    [[1, 2], [3]],
    {},
    {"a": 1},
)
SAMPLES = (NEOX_20B, TRAIN, EXPERIMENT + "train:" + TRAIN.replace("\n", "\n  "), MEGATRON, MINDFORMERS, PADDLE)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from _places(inner, (*path, key))


@pytest.mark.parametrize("seed", range(len(SAMPLES)))
def test_wrong_values_anywhere_are_errors_of_the_input(tmp_path: Path, seed: int) -> None:
    """Any value in any place of a file, several at once: it is read, or refused in words; nothing else is raised."""
    random, refused = Random(seed), list[str]()
    data = parse_yaml(SAMPLES[seed]).data
    for _ in range(12):
        changed = deepcopy(data)
        for path in random.sample(list(_places(data)), 2):
            inside: Any = changed
            with suppress(TypeError, KeyError, IndexError):
                for key in path[:-1]:
                    inside = inside[key]
                inside[path[-1]] = random.choice(WRONG)
        text = json.dumps(changed, indent=0).replace("Infinity", ".inf")
        try:
            read(tmp_path, text, "c.json", num_gpus=96, vocab_size=50304)
        except InputError as error:
            refused += [trouble.message for trouble in error.troubles]
    assert refused
    assert all(refused)
    assert not any("has no model_type" in message for message in refused)  # the format was known
