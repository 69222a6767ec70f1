"""What import takes for a training, what it refuses by name, and models of unusual layers from their arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpsolver.doors.export.dialect import MEGATRON_LM
from cpsolver.doors.export.model_args import expert_flags, model_flags, special_flags
from cpsolver.doors.importing.arguments import Arguments
from cpsolver.doors.importing.layer_kinds import pattern_fields
from cpsolver.doors.importing.model import model_fields
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.doors.importing.shell import read_script
from cpsolver.doors.importing.variables import ShellVariables
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.inputs.errors import InputError
from cpsolver.problem.resolve import resolve
from cpsolver.rules import violations
from cpsolver.spec.spec import parse_spec
from models_zoo import Architecture, load_architecture
from tests.support.command import in_tmp, run, write  # noqa: F401
from tests.support.scripts import GPT, LLAMA, MOE, STEP, imported, plan, torchrun

BATCH = """#!/bin/bash
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
GPUS_PER_NODE=8
NNODES=$SLURM_NNODES
LAUNCHER="python -u -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
CMD="pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 12 --num-layers 70 \\
 --hidden-size 14336 --num-attention-heads 112 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 250880 \\
 --micro-batch-size 2 --global-batch-size 2048 --bf16 --embed-layernorm --position-embedding-type alibi \\
 --pp-partition-method 'type:transformer|embedding' --checkpoint-activations --zero-stage 1 --deepspeed"
echo $CMD
printf '%s' "$CMD"
srun --jobid $SLURM_JOBID bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID $CMD" 2>&1 | tee -a log
"""


def test_a_printed_command_trains_nothing_and_a_batch_script_has_its_cluster() -> None:
    """BLOOM-176B's way of starting: 72 parts over 12 stages, of which the embedding and the head are one each."""
    text = BATCH.replace("--nodes=16", "--nodes=48")
    found = imported(text, chip="a100")
    assert found.spec["cluster"] == {"num_gpus": 384, "gpus_per_node": 8, "chips": "a100"}
    strategy = plan(text, chip="a100")
    assert (strategy.tp, strategy.pp, strategy.dp) == (4, 12, 8)
    assert strategy.layers == (5, *(6,) * 10, 5)
    assert not any("training commands in lines" in note for note in found.notes)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("pretrain_t5.py", "T5"),
        ("pretrain_bert.py", "BERT"),
        ("pretrain_vlm.py", "multimodal"),
        ("pretrain_retro.py", "Retro"),
        ("tools/dist_checkpoint/checkpoint/hf_roundtrip_test.py", "conversion"),
        ("/workspace/LoongForge/loongforge/embodied/train.py", "robots' actions"),
        ("pretrain_mamba.py", "state-space layers whose places no pattern"),
        ("run_text_generation_server.py", "inference"),
        ("evaluation.py", "an evaluation"),
        ("tools/report_memory_estimate.py", "an estimate of memory"),
        ("convert_ckpt.py", "a conversion of checkpoints"),
        ("pretrain_vision_classify.py", "vision"),
    ],
)
def test_a_program_that_trains_no_decoder_is_refused_for_what_it_is(program: str, said: str) -> None:
    with pytest.raises(OutOfScopeError, match=said):
        imported(torchrun(LLAMA + STEP).replace("pretrain_gpt.py", program))


def test_arguments_of_inference_and_preferences_are_no_training_of_a_decoder() -> None:
    with pytest.raises(OutOfScopeError, match="inference"):
        imported(torchrun(LLAMA + STEP + "--max-new-tokens 256"))
    with pytest.raises(OutOfScopeError, match=r"reinforcement.*--rollout-batch-size"):
        imported(torchrun(LLAMA + STEP + "--rollout-batch-size 32").replace("pretrain_gpt", "train"))
    with pytest.raises(OutOfScopeError, match="DPO"):
        imported(torchrun(LLAMA + STEP + "--stage dpo").replace("pretrain_gpt", "posttrain_gpt"))
    assert imported(torchrun(LLAMA + STEP + "--stage sft").replace("pretrain_gpt", "posttrain_gpt")).strategy


def test_a_training_beside_a_conversion_is_the_one_that_is_planned() -> None:
    text = torchrun(GPT).replace("pretrain_gpt", "convert_ckpt") + torchrun(LLAMA + STEP)
    assert imported(text).model.layers == 32


@pytest.mark.parametrize(
    "argument", ["--cla-share-factor 2", "--share-kvstates", "--is-hybrid-model", "--moe-use-upcycling"]
)
def test_what_no_architecture_says_is_refused_by_name(argument: str) -> None:
    with pytest.raises(InputError, match=f"{argument.split()[0]}.*no architecture"):
        imported(torchrun(MOE + STEP + argument))


def test_what_a_plan_does_not_hold_is_said_with_the_error_it_makes() -> None:
    found = imported(torchrun(LLAMA + STEP + "--recompute-norm --output-layer-slice-num 4"))
    assert any("--recompute-norm is not in the plan" in note for note in found.notes)
    assert any("memory is predicted too high" in note for note in found.notes)
    assert not {"--recompute-norm", "--output-layer-slice-num"} & set(found.unused)


@pytest.mark.parametrize(
    "argument",
    [
        "--ampipe-degree 2",
        "--bitfit",
        "--ds-sequence-parallel-fpdt",
        "--pipeline-model-parallel-size 2 --schedule-method seq1f1b",
    ],
)
def test_what_no_plan_knows_is_refused_by_name(argument: str) -> None:
    refused = imported(torchrun(LLAMA + STEP + argument))
    assert refused.strategy is None
    name = argument.removeprefix("--pipeline-model-parallel-size 2 ").split()[0]
    assert name in refused.refusals[0]
    assert name not in {*refused.unused, *refused.unknown}


def test_deepspeed_s_sequence_parallelism_stands_alone() -> None:
    with pytest.raises(InputError, match=r"--ds-sequence-parallel-size = 2: goes with neither tensor.* 4 ranks"):
        imported(torchrun(LLAMA + STEP + "--ds-sequence-parallel-size 2 --tensor-model-parallel-size 4"))


def test_what_one_is_told_of_is_not_called_unknown() -> None:
    found = imported(torchrun(LLAMA + STEP + "--offload-optimizer auto --never-heard-of 1"))
    assert any("--offload-optimizer is not in the plan" in note for note in found.notes)
    assert found.unknown == ("--never-heard-of",)


def test_gradients_in_16_bits_and_overlaps_of_the_stack() -> None:
    found = imported(torchrun(LLAMA + STEP + "--overlap-grad-reduce --grad-reduce-in-bf16"))
    assert found.spec["stack"] == "megatron-bridge"
    aware = "--use-distributed-optimizer --use-precision-aware-optimizer --main-grads-dtype bf16"
    narrow = imported(torchrun(LLAMA + STEP + f"--overlap-grad-reduce {aware}"))
    assert (narrow.spec["stack"], narrow.spec["training"]["optimizer"]) == ("megatron-bridge", "precision_aware")
    of_optimizer = imported(torchrun(LLAMA + STEP + f"--overlap-grad-reduce {aware} --exp-avg-dtype bf16"))
    assert of_optimizer.spec["stack"] == "megatron-core"
    ascend = imported(torchrun(LLAMA + STEP + "--tensor-model-parallel-size 2 --use-fused-rmsnorm"), chip="ascend_910b")
    assert any("MC2" in note for note in ascend.notes)


def test_latent_attention_by_its_former_names() -> None:
    """MindSpeed-LLM still takes them: --qk-rope-head-dim is --qk-pos-emb-head-dim, --qk-nope-head-dim --qk-head-dim."""
    text = "--multi-head-latent-attention --qk-rope-head-dim 32 --qk-nope-head-dim 96 --kv-lora-rank 512"
    attention = imported(torchrun(LLAMA + STEP + text)).model.attention
    assert (attention.kind, attention.qk_rope, attention.qk_nope, attention.kv_lora) == ("mla", 32, 96, 512)


def test_experts_of_megatron_deepspeed() -> None:
    """Its defaults: one expert a token, every second layer; --num-experts 1 is a dense model."""
    text = torchrun(GPT + "--deepspeed --num-experts 64 --moe-expert-parallel-size 8")
    capacity = "--moe-train-capacity-factor 1.25"
    drops, keeps = (imported(text.strip() + f" {capacity} {more}") for more in ("", "--disable-moe-token-dropping"))
    assert drops.spec["training"]["expert_capacity_factor"] == 1.25
    assert "expert_capacity_factor" not in keeps.spec["training"]
    dense = imported(torchrun(GPT + f"--deepspeed --num-experts 1 {capacity}"))
    assert "expert_capacity_factor" not in dense.spec["training"]
    assert not {"--moe-train-capacity-factor", "--disable-moe-token-dropping"} & {*drops.unused, *keeps.unused}
    model = imported(text).model
    assert model.moe is not None
    assert (model.moe.top_k, [model.has_experts(layer) for layer in range(4)]) == (1, [False, True, False, True])
    assert plan(text).ep == 8
    assert imported(torchrun(GPT + "--deepspeed --num-experts 1")).model.moe is None


def test_adapters_are_planned_where_layers_take_them() -> None:
    adapters = "--lora-r 8 --lora-target-modules linear_qkv linear_proj"
    found = imported(torchrun(LLAMA + STEP + adapters))
    assert found.spec["training"]["lora"] == {"rank": 8, "targets": ["linear_qkv", "linear_proj"]}
    assert found.strategy is not None
    assert imported(torchrun(MOE + STEP + adapters)).strategy is None


@pytest.mark.parametrize(
    "name",
    [
        "qwen3-next-80b-a3b",
        "nemotron3-nano-30b-a3b",
        "nemotron3-super-120b-a12b",
        "deepseek-v3.2-671b",
    ],
)
def test_models_of_unusual_layers_are_those_that_export_writes(name: str) -> None:
    """The options that `export` writes for a model of the catalogue give that model back."""
    model = load_architecture(name)
    dialect = MEGATRON_LM
    flags = [*model_flags(model, 4096, dialect), *expert_flags(model, dialect), *special_flags(model)]
    if model.layer_pattern is not None:
        flags.append(("--hybrid-layer-pattern", model.layer_pattern + model.mtp_layers * f"/{model.mtp_pattern}"))
    arguments = Arguments([word for flag in flags for word in flag], ShellVariables())
    fields = model_fields(arguments, "pretrain_hybrid.py")
    assert not arguments.troubles
    read = Architecture.model_validate({"name": "read", "vocab": model.vocab, **fields})
    assert read.layer_pattern == model.layer_pattern
    modules = ("mtp_layers", "mtp_pattern", "mtp_repeated")
    assert [getattr(read, name) for name in modules] == [getattr(model, name) for name in modules]
    assert read.mamba == model.mamba
    assert read.linear_attention == model.linear_attention
    assert read.full_attention_interval == model.full_attention_interval
    assert read.attention.indexer == model.attention.indexer


@pytest.mark.parametrize(
    ("more", "pattern", "modules"),
    [
        ("/*E/*E", "M*E-", (2, "*E")),
        ("/", "M*E-", (0, None)),
        (" --mtp-hybrid-override-pattern *E --mtp-num-layers 2", "M*E-", (2, "*E")),
        ("/*E/M", None, (0, None)),
        ("/x", None, (0, None)),
    ],
)
def test_modules_of_multi_token_prediction_of_hybrids(
    more: str, pattern: str | None, modules: tuple[int, str | None]
) -> None:
    """As Megatron-LM's parse_hybrid_pattern and validate_args have them; modules that differ are refused there too."""
    arguments = Arguments(f"--hybrid-layer-pattern M*E-{more} --hidden-size 64".split(), ShellVariables())
    fields = pattern_fields(arguments)
    assert fields.get("layer_pattern") == pattern
    assert (fields.get("mtp_layers", 0), fields.get("mtp_pattern")) == modules
    assert bool(arguments.troubles) is (pattern is None)


def test_modules_that_no_spec_sends_to_the_host_leave_a_spec_without_a_plan() -> None:
    sent = "--fine-grained-activation-offloading --offload-modules fused_group_mlp moe_act"
    found = imported(torchrun(MOE + STEP + sent))
    assert found.strategy is None
    assert any(reason.startswith("--offload-modules fused_group_mlp: ") for reason in found.refusals)
    assert found.spec["training"]["activation_offload"] == ["moe_act"]


def test_a_file_beside_the_script_is_read_and_another_one_is_named() -> None:
    write("sizes.sh", "LAYERS=12\n. ./missing.sh\n")
    text = 'source "$(dirname "$0")/sizes.sh"\n' + torchrun(GPT.replace("--num-layers 24", "--num-layers $LAYERS"))
    found = imported(text)
    assert found.model.layers == 12
    assert any("missing.sh is not read" in note for note in found.notes)


def test_the_script_s_own_arguments() -> None:
    text = "SIZE=$1\nif [ $SIZE = small ]; then L=12; else L=24; fi\nshift\n" + torchrun(
        GPT.replace("--num-layers 24", "--num-layers $L") + '"$@"'
    )
    assert imported(text, arguments=("small", "--init-method-std", "0.1")).model.layers == 12
    result = run("import", write("train.sh", text), "--chip", "h100", "--args", "large --bias 'x y'", "--json")
    assert result.exit_code == 0, result.output
    assert '"layers": 24' in result.stdout
    assert "is no command line" in run("import", "train.sh", "--args", "'x").output
    with pytest.raises(InputError, match="L, which is set in a conditional"):
        imported(text)


def test_the_spec_is_written_though_the_plan_has_no_words() -> None:
    text = torchrun(LLAMA + STEP + "--tp-2d")
    given = ("--chip", "h100", "-o", "spec.yaml", "--strategy-output", "plan.yaml")
    result = run("import", write("train.sh", text), *given)
    assert result.exit_code == 2
    assert "--tp-2d" in result.output
    assert Path("spec.yaml").is_file()
    assert not Path("plan.yaml").exists()
    assert run("check", "spec.yaml").exit_code in (0, 2)


def test_what_the_environment_is_taken_not_to_have_is_told() -> None:
    text = 'L=24\nif [ -n "$LAYERS" ]; then L=$LAYERS; fi\n' + torchrun(
        GPT.replace("--num-layers 24", "--num-layers $L")
    )
    found = imported(text)
    assert found.model.layers == 24
    assert any("taken as not set in the environment" in note and "LAYERS" in note for note in found.notes)
    assert imported(text, given={"LAYERS": "12"}).model.layers == 12


def test_a_script_that_asks_for_its_environment_and_ends_without_is_read_on() -> None:
    script = read_script('if [ -z "$DATA" ]; then echo none; exit 1; fi\nshow it', None, {})
    assert script.commands[-1].words == ("show", "it")
    assert read_script("exit 0\nshow it", None, {}).ended == 1


@pytest.mark.parametrize(("number", "modules"), [("8", ("mlp",)), ("7", ())])
def test_feed_forwards_are_recomputed_beside_swapped_attention(number: str, modules: tuple[str, ...]) -> None:
    """MindSpeed: the first so many of a stage's layers, which a plan says where these are all."""
    more = (
        f"--pipeline-model-parallel-size 4 --swap-attention --recompute-method block --recompute-num-layers {number} "
    )
    more += "--use-fused-swiglu"
    text = torchrun(f"{LLAMA} {STEP} {more}")
    found = imported(text, chip="ascend_910b")
    strategy = plan(text, chip="ascend_910b")
    assert strategy.groups[0].modules == modules
    assert any("memory is predicted too low" in note for note in found.notes) == (not modules)


@pytest.mark.parametrize(
    ("sizes", "degrees", "gpus", "measured"),
    [
        ("32 4096 14336 32", "1 2 1", 8, 13_812),
        ("80 8192 28672 64", "4 1 8 --num-virtual-stages-per-pipeline-rank 5", 64, 1_621),
    ],
)
def test_nvidias_published_runs_of_llama_3_are_legal_and_near(
    sizes: str, degrees: str, gpus: int, measured: int
) -> None:
    """8 bits on H100, tokens a second and device: Megatron-LM d98e8a6, examples/llama/README.md and its script."""
    names = ("--num-layers", "--hidden-size", "--ffn-hidden-size", "--num-attention-heads")
    split = ("--tensor-model-parallel-size", "--context-parallel-size", "--pipeline-model-parallel-size")
    parts = (*zip(names, sizes.split(), strict=True), *zip(split, degrees.split()[:3], strict=True))
    more = " ".join(f"{name} {value}" for name, value in parts) + " " + " ".join(degrees.split()[3:])
    text = f"torchrun --nproc_per_node 8 --nnodes {gpus // 8} pretrain_gpt.py {more} --group-query-attention "
    text += (
        "--num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope --swiglu "
    )
    text += "--normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear --vocab-size 128256 "
    text += "--attention-dropout 0 --hidden-dropout 0 --micro-batch-size 1 --global-batch-size 128 --bf16 "
    text += (
        "--grad-reduce-in-bf16 --fp8-format hybrid --fp8-param-gather --sequence-parallel --attention-backend fused "
    )
    found = imported(text + "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather\n", chip="h100")
    problem = resolve(parse_spec(found.spec))
    assert found.strategy is not None
    assert not violations(problem, found.strategy)
    predicted = 128 * 8192 / evaluate(problem, found.strategy).step_time_s / gpus
    assert predicted == pytest.approx(measured, rel=0.12)


def test_a_tokenizer_has_its_vocabulary_by_name() -> None:
    odd = LLAMA.replace("--vocab-size 32000 ", "").replace("11008", "11264")  # no model of the catalogue
    found = imported(
        torchrun(f"{odd} {STEP} --tokenizer-type PretrainedFromHF --tokenizer-name-or-path /m/llama-3-8b-hf/")
    )
    assert found.model.vocab == 128_256
    assert "no --vocab-size: taken as that of the tokenizer /m/llama-3-8b-hf/, 128,256" in found.notes
    with pytest.raises(InputError, match="--vocab-size: is not given"):
        imported(torchrun(f"{odd} {STEP} --tokenizer-type PretrainedFromHF --tokenizer-name-or-path /llama-3-8b/mine"))
    other = torchrun(f"{odd} {STEP} --tokenizer-type PretrainedFromHF --tokenizer-name-or-path google/mt5-base")
    assert imported(other).model.vocab == 250_100


def test_an_evaluation_a_split_of_checkpoints_and_a_filter_before_attention() -> None:
    with pytest.raises(OutOfScopeError, match="an evaluation"):
        imported(torchrun(LLAMA + STEP + "--eval-only True"))
    with pytest.raises(OutOfScopeError, match="a conversion of checkpoints"):
        imported(torchrun(LLAMA + STEP).replace("pretrain_gpt", "tools/split_tp_partitions"))
    with pytest.raises(InputError, match=r"--use-lf-gate.*no architecture"):
        imported(torchrun(LLAMA + STEP + "--use-lf-gate --lf-conv2d-group 1"))


def test_sequences_as_long_as_their_data_by_the_two_arguments_that_said_so() -> None:
    one = imported(torchrun(LLAMA + STEP + "--stage sft --variable-seq-lengths"))
    both = imported(torchrun(LLAMA + STEP + "--stage sft --is-instruction-dataset --variable-seq-lengths"))
    assert not any("as long as their data" in note for note in one.notes)
    told = [note for note in both.notes if "as long as their data" in note]
    assert len(told) == 1
    assert told[0].startswith("--is-instruction-dataset and --variable-seq-lengths is not in the plan: until 2025")


def test_adapters_by_the_names_of_legacy_layers() -> None:
    """megatron/legacy/model/transformer.py: query_key_value is linear_qkv since, dense linear_proj."""
    adapted = "--lora-r 16 --lora-target-modules query_key_value dense dense_h_to_4h dense_4h_to_h"
    section = imported(torchrun(LLAMA + STEP + adapted)).spec["training"]["lora"]
    assert section == {"rank": 16, "targets": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]}


def test_the_module_of_several_tokens_computed_again_is_told() -> None:
    found = imported(torchrun(LLAMA + STEP + "--mtp-num-layers 1 --recompute-mtp-layer"))
    assert any(note.startswith("--recompute-mtp-layer") and "too high" in note for note in found.notes)


@pytest.mark.parametrize("kind", ["muon", "zetas", "sophia"])
def test_another_optimizer_in_the_place_of_adam_is_an_error(kind: str) -> None:
    """KevinC259/MindSpeed-LLM 4e626e76: forks add to MindSpeed's choices, all of which are kinds of Adam."""
    text = GPT + " --optimizer-selection "
    with pytest.raises(InputError) as caught:
        imported(torchrun(text + kind))
    assert [trouble.where for trouble in caught.value.troubles] == ["--optimizer-selection"]
    assert "optimizer" not in imported(torchrun(text + "fused_torch_adamw")).spec["training"]


@pytest.mark.parametrize(
    ("program", "more"), [("train_rwkv.py", ""), ("train_fsdp2.py", " --init-from-hf-path ./hf --model-id qwen3")]
)
def test_a_model_that_the_arguments_do_not_shape_is_out_of_scope(program: str, more: str) -> None:
    """FlagScale's RWKV, and MindSpeed-LLM's trainer of transformers' own models, which has Megatron's arguments too."""
    with pytest.raises(OutOfScopeError):
        imported(torchrun(GPT + more).replace("pretrain_gpt.py", program))


@pytest.mark.parametrize("more", ["--train-iters 0 --eval-iters 4", "--train-samples=0", "--skip-train"])
def test_what_trains_for_no_step_is_told(more: str) -> None:
    """eval_loss_llama_7b_en.sh of genggui001/Megatron-DeepSpeed-Llama 52c8495e. Others compute the number."""
    told = "is not in the plan: no step is trained, which is an evaluation"
    assert [note for note in imported(torchrun(f"{GPT} {more}")).notes if note.endswith(told)]
    steps = imported(torchrun(f"{GPT} --train-iters 10 --skip-train-iteration-range 3-4"))
    assert not [note for note in steps.notes if note.endswith(told)]
