"""What public scripts of research groups showed when they were read for the first time, each by a script of our own."""

from __future__ import annotations

import pytest

from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.doors.importing.shell import read_script
from cpsolver.inputs.errors import InputError
from tests.support.command import in_tmp, write  # noqa: F401
from tests.support.scripts import GPT, LLAMA, MOE, STEP, imported, plan, torchrun


def shown(text: str) -> str:
    """The words behind `show`, with `?` for what is not known."""
    script = read_script(text, None, {})
    words = [word for run in script.commands if run.words[0] == "show" for word in run.words[1:]]
    return " ".join("?" if script.variables.unclear_in(word) else word for word in words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=($(sort -u hosts))\nshow ${#A[@]}", "?"),
        ('A=("$(sort -u hosts)")\nshow ${#A[@]}', "1"),
        ("A=(x $(cat hosts) y)\nshow ${A[0]} ${A[1]} ${A[2]} ${#A[@]} ${!A[@]}", "x ? ? ? ?"),
        ("A=(x y $(cat hosts))\nshow ${A[1]} ${A[@]:0:2} ${A[-1]}", "y x y ?"),
        ('A=($HOSTS)\nB=("${A[@]}")\nshow ${#B[@]}', "?"),
        ("set -- $(cat hosts)\nshow $#", "?"),
        ("mapfile -t A < hosts\nshow ${#A[@]}", "?"),
        ('IFS=, read -ra A <<< "$(cat hosts)"\nshow ${#A[@]}', "?"),
        ("A=(x y z)\nshow ${#A[@]} ${A[@]:1}", "3 y z"),
        ("A=abc\nshow ${#A[@]}", "1"),
    ],
)
def test_an_output_that_is_not_known_may_be_several_words(text: str, words: str) -> None:
    """nemowon/apecs-megatron-apptainer 7b1f139: the nodes are as many as a file has lines."""
    assert shown(text) == words


def test_devices_by_the_lines_of_a_file_are_asked_for() -> None:
    script = "NODES=($(sort -u $PBS_NODEFILE))\n" + torchrun(LLAMA + STEP).replace(
        "--nnodes=1", "--nnodes ${#NODES[@]}"
    )
    with pytest.raises(InputError, match=r"sort -u \$PBS_NODEFILE"):
        imported(script)


@pytest.mark.parametrize(
    ("arguments", "flash"),
    [
        ("--transformer-impl local --attention-backend auto", False),
        ("--transformer-impl local --attention-backend fused", False),
        ("--transformer-impl local --use-flash-attn", True),
        ("--attention-head-type multiquery", False),
        ("--layernorm-epsilon 1e-5", False),
        ("--norm-epsilon 1e-5", True),
        ("--attention-head-type multiquery --use-flash-attn", True),
        ("--attention-backend fused", True),
    ],
)
def test_layers_of_megatron_itself_have_no_flash_kernel(arguments: str, flash: bool) -> None:
    """KLi447/Megatron-LM fcf8939, OpenSQZ/MegatronApp 99c64da; BigCode's fork in mayank31398's copy 809857c."""
    assert plan(torchrun(f"{GPT} --global-batch-size 64 {arguments}")).flash_attention == flash


@pytest.mark.parametrize(
    ("arguments", "shared"),
    [
        ("--bf16 --zero-stage 0 --deepspeed", True),
        ("--bf16 --deepspeed", True),
        ("--bf16 --zero-stage 0 --deepspeed --no-pipeline-parallel", False),
        ("--bf16 --zero-stage 0", False),
        ("--fp16 --zero-stage 0 --deepspeed", False),
        ("--fp16 --zero-stage 1 --deepspeed", True),
    ],
)
def test_deepspeeds_optimizer_for_bf16_shares_out_its_states(arguments: str, shared: bool) -> None:
    """DeepSpeed 0.19, runtime/bf16_optimizer.py, which BLOOM trained with; an fp16 pipeline has them whole."""
    found = imported(torchrun(f"{LLAMA} {STEP.replace('--bf16', '')} {arguments}"))
    assert found.strategy is not None
    assert found.strategy.distributed_optimizer == shared
    assert any("for bf16" in note for note in found.notes) == (shared and "fp16" not in arguments)


def neox(tmp_path_file: str, stages: int) -> Imported:
    """A configuration of GPT-NeoX in bf16 without ZeRO, with so many stages; 0: no pipeline."""
    text = (
        f"pipe_parallel_size: {stages}\nmodel_parallel_size: 1\nnum_layers: 12\nhidden_size: 768\nseq_length: 2048\n"
        "num_attention_heads: 12\nmax_position_embeddings: 2048\nposition_embedding: rotary\n"
        "train_micro_batch_size_per_gpu: 4\nbf16: {enabled: true}\nzero_optimization: {stage: 0}\n"
    )
    path = write(tmp_path_file, text)
    return import_source(str(path), ImportOptions(chip="h100", num_gpus=8, gpus_per_node=8, vocab_size=50304))


@pytest.mark.parametrize(("stages", "shared"), [(0, False), (1, True), (2, True)])
def test_a_pipeline_of_gpt_neox_may_have_one_stage(stages: int, shared: bool) -> None:
    """gpt-neox ea7aefd, is_pipe_parallel: from one stage on; without, its engine is no pipeline's."""
    found = neox("neox.yml", stages).strategy
    assert found is not None
    assert found.distributed_optimizer == shared


def test_a_gate_of_two_matrices_is_as_wide_as_given() -> None:
    """OpenGPTX/Megatron-LM f8d245d, T5SwiGLU of megatron/model/transformer.py; 4 x 2048 where nothing is given."""
    sizes = "--num-layers 4 --hidden-size 2048 --num-attention-heads 16 --vocab-size 50304 "
    model = imported(torchrun(f"{sizes} --max-position-embeddings 4096 {STEP} --t5-swiglu")).model
    assert (model.gated_mlp, model.activation, model.ffn) == (True, "swiglu", 8192)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--mask-only", "weights that are not trained"),
        ("--hetero-mode dp --hetero-micro-batch-sizes 8 1 2 2", "devices of several types"),
        ("--use-dpp --workload 1048576", "whose order is found when it runs"),
        ("--forward-backward-disaggregating", "on devices of their own"),
    ],
)
def test_plans_without_words_say_what_they_are(arguments: str, reason: str) -> None:
    found = imported(torchrun(f"{LLAMA} {STEP} {arguments}"))
    assert found.strategy is None
    assert reason in " ".join(found.refusals)


@pytest.mark.parametrize(
    "arguments", ["--moe-expert-pool-mode hyper", "--use-engram", "--gengram-enabled", "--engram-dna-enabled"]
)
def test_models_without_words_are_refused(arguments: str) -> None:
    with pytest.raises(InputError, match="no architecture here says that"):
        imported(torchrun(f"{LLAMA} {STEP} {arguments}"))
    assert imported(torchrun(f"{LLAMA} {STEP} --moe-expert-pool-mode none")).strategy is not None


def test_a_mode_of_pai_may_be_no_training_of_one_decoder() -> None:
    """IDEA-Emdoor-Lab/LPO d8f8cfa: pairs of answers by --train-mode xpo."""
    with pytest.raises(OutOfScopeError, match="--train-mode xpo"):
        imported(torchrun(f"{LLAMA} {STEP} --train-mode xpo"))
    assert imported(torchrun(f"{LLAMA} {STEP} --train-mode finetune")).strategy is not None


@pytest.mark.parametrize(
    "program",
    ["mg_embedding_new.py", "train_fl_audio.py", "train_speech.py", "inf_gpt.py", "run_check_of_hf.py", "tasks/run.py"],
)
def test_programs_that_train_no_decoder(program: str) -> None:
    with pytest.raises(OutOfScopeError):
        imported(torchrun(LLAMA + STEP).replace("pretrain_gpt.py", program))


def test_a_program_called_main_may_be_a_training() -> None:
    """LLM360/k2-train 869fbb9; Megatron's own evaluations are in a folder named tasks."""
    script = torchrun(LLAMA + STEP)
    assert imported(script.replace("pretrain_gpt.py", "k2_training/main.py")).strategy is not None
    with pytest.raises(OutOfScopeError):
        imported(script.replace("pretrain_gpt.py", "tasks/main.py"))


@pytest.mark.parametrize(
    "arguments", ["--inference", "--decoder-seq-length 32", "--evidence-data-path wiki", "--teacher-load there"]
)
def test_arguments_of_what_trains_no_decoder_alone(arguments: str) -> None:
    """Rick-of-crows/morty-sft 9132e69, DevSinghSachan/emdr2 edb8cf6, 7u5/knowledgelearnLLM 186153e."""
    with pytest.raises(OutOfScopeError, match="only the training of a decoder"):
        imported(torchrun(f"{LLAMA} {STEP} {arguments}"))


def test_attention_of_a_model_by_diffusion_is_told() -> None:
    """JinjieNi/MegaDLMs bdf7545: every token attends to all."""
    told = "--attention-mask-type no_mask is not in the plan"
    assert any(told in note for note in imported(torchrun(f"{LLAMA} {STEP} --attention-mask-type no_mask")).notes)
    assert not any(told in note for note in imported(torchrun(f"{LLAMA} {STEP} --attention-mask-type causal")).notes)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--moe-expert-capacity-factor 0.5", "experts take 0.5 of their even share"),
        (
            "--context-parallel-size 2 --context-parallel-algo megatron_cp_algo --cp-attention-mask-type general",
            "square",
        ),
    ],
)
def test_what_experts_and_rings_do_otherwise_is_told(arguments: str, told: str) -> None:
    """Eutenacity/AGoQ 006fa0f, of MindSpeed in 2024: a capacity below 1, and an older name of a mask."""
    assert told in " ".join(imported(torchrun(f"{MOE} {STEP} {arguments}")).notes)


def test_what_nothing_says_is_something_else_may_change_the_plan() -> None:
    aside = "--wandb-run-tag x --log-some-thing --keep-last 3 --my-dataset y --rank 0 --some-lr-thing 2 "
    found = imported(torchrun(f"{LLAMA} {STEP} {aside} --gumbel 2 --use-fancy-blocks"))
    warned = [note for note in found.notes if "may change the plan" in note]
    assert [note.split(":")[0] for note in warned] == ["--gumbel --use-fancy-blocks"]


def test_latent_attention_without_a_flag() -> None:
    """A-Dying-Pig/Megatron-LM c232d7f, examples/deepseek_v2: its program has no other attention."""
    ranks = "--kv-lora-rank 512 --qk-nope-head-dim 128 --qk-rope-head-dim 64 --v-head-dim 128"
    attention = imported(torchrun(f"{LLAMA} {STEP} {ranks}")).spec["model"]["attention"]
    assert attention == {"kind": "mla", "kv_lora": 512, "qk_nope": 128, "qk_rope": 64, "v_head": 128}


def test_gaudis_collectives_have_the_name_of_ascends() -> None:
    """HabanaAI/Megatron-LM 13c28de; without Gaudi's words the arguments are MindSpeed's."""
    script = "export HCCL_OVER_TCP=1\n" + torchrun(f"{LLAMA} {STEP} --use-fused-rmsnorm 1")
    guesses = [imported(text).framework for text in (script, "export PT_HPU_LAZY_MODE=1\n" + script)]
    assert [guess and guess.stack for guess in guesses] == ["mindspeed", "megatron-core-plain"]


@pytest.mark.parametrize(
    ("more", "gated", "norm", "position"),
    [
        ("--use-mcore-models", False, "layernorm", "learned"),
        ("--transformer-impl local --normalization RMSNorm", False, "rmsnorm", "learned"),
        ("--disable-bias-linear --swiglu --use-rotary-position-embeddings", True, "layernorm", "rope"),
        ("", True, "rmsnorm", "rope"),
    ],
)
def test_a_program_named_after_llama_has_the_model_of_its_arguments(
    more: str, gated: bool, norm: str, position: str
) -> None:
    """fwyc0573/Megatron-LM 47e34b4b, pretrain_llama.py; AscendSpeed's has none of these arguments, and one model."""
    model = imported(torchrun(f"{GPT} --global-batch-size 64 {more}").replace("pretrain_gpt", "pretrain_llama")).model
    assert (model.gated_mlp, model.norm, model.position) == (gated, norm, position)


def test_of_several_types_of_tokenizers_the_last_has_the_vocabulary() -> None:
    """OpenEuroLLM/oellm-autoexp c6d0cc01, templates/debug.slurm."""
    words = LLAMA.replace("--vocab-size 32000", "").replace("11008", "11264") + STEP + "--tokenizer-type "
    assert imported(torchrun(words + "GPT2BPETokenizer")).model.vocab == 50257
    with pytest.raises(InputError, match="the tokenizer has it"):
        imported(torchrun(words + "GPT2BPETokenizer --tokenizer-type HuggingFaceTokenizer --tokenizer-model a/b"))
    other = "GPT2BPETokenizer --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B"
    assert imported(torchrun(words + other)).model.vocab == 128256
    assert imported(torchrun(f"{words}$KIND") + "# or\nTYPE=GPT2BPETokenizer\n").model.vocab == 50257


@pytest.mark.parametrize(
    ("program", "more", "said"),
    [
        ("deepseek_v3_hf_to_mg.py", "", "conversion"),
        ("megatron_to_hf.py", "", "conversion"),
        ("tool.py", "--target-tensor-model-parallel-size 2", "conversion"),
        ("train_rl.py", "--perform-rl-step", "reinforcement"),
    ],
)
def test_conversions_and_reinforcement_by_their_names(program: str, more: str, said: str) -> None:
    """yanring/Megatron-MoE-ModelZoo e8650517; configurations of ssb233/Megatron-LM f3e5a3a6, gpt_grpo_…."""
    with pytest.raises(OutOfScopeError, match=said) as caught:
        imported("HERE=$(pwd)\n" + torchrun(f"{LLAMA} {STEP} {more}").replace("pretrain_gpt.py", f"$HERE/{program}"))
    assert program in str(caught.value)
    assert not any("\ue000" <= letter <= "\uf8ff" for letter in str(caught.value))


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ("--fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16", "time is predicted too short"),
        ("--overlap-p2p-communication-warmup-flush", "time is predicted too long"),
    ],
)
def test_layers_left_in_bf16_and_transfers_beside_more_passes_are_told(argument: str, error: str) -> None:
    """Configurations of ssb233/Megatron-LM f3e5a3a6."""
    found = imported(torchrun(f"{LLAMA} {STEP} {argument}"))
    assert any(argument.split()[-1] in note and error in note for note in found.notes)
    assert not set(argument.split()) & set(found.unused)


ASCEND = "--context-parallel-algo ulysses_cp_algo "
ON_ASCEND = f"{ASCEND} --use-fused-rmsnorm "
APART, GROUPED = "--no-gradient-accumulation-fusion ", "--gemm-gradient-accumulation-fusion "


@pytest.mark.parametrize(
    ("arguments", "fusion"),
    [
        (LLAMA + APART, "none"),
        (LLAMA, None),
        (MOE + APART, "none"),
        (LLAMA + ON_ASCEND + APART, None),  # as its stack
        (LLAMA + ON_ASCEND, "all"),
        (MOE + ON_ASCEND + APART, None),
        (MOE + ON_ASCEND + APART + GROUPED, "experts"),
        (MOE + ON_ASCEND + GROUPED, "all"),
        (MOE + ON_ASCEND, "dense"),
    ],
)
def test_which_products_add_gradients_up(arguments: str, fusion: str | None) -> None:
    """Scripts of MindSpeed-LLM c77308a1 have all of these."""
    chip = "ascend_910b" if ON_ASCEND in arguments else "h100"
    found = imported(torchrun(f"{arguments} {STEP}"), chip=chip)
    assert found.spec["training"].get("gradient_accumulation_fusion") == fusion
    assert not {"--no-gradient-accumulation-fusion", "--gemm-gradient-accumulation-fusion"} & set(found.unused)


def test_in_fp16_nothing_is_added_up_by_products_on_ascend() -> None:
    step = STEP.replace("--bf16", "--fp16")
    found = imported(torchrun(f"{MOE} {ON_ASCEND} {GROUPED} {step}"), chip="ascend_910b")
    assert "gradient_accumulation_fusion" not in found.spec["training"]


FUSED = "--use-fused-swiglu --use-fused-rotary-pos-emb --use-fused-rmsnorm "
LEFT = "--no-bias-swiglu-fusion --no-bias-dropout-fusion "


@pytest.mark.parametrize(
    ("arguments", "fused", "told"),
    [
        (LLAMA, None, None),
        (LLAMA + LEFT, None, "--no-bias-swiglu-fusion, --no-bias-dropout-fusion"),
        (LLAMA + LEFT + "--no-rope-fusion", False, None),
        (LLAMA + ASCEND, False, None),
        (LLAMA + ASCEND + FUSED, None, None),
        (LLAMA + ASCEND + "--use-fused-swiglu --use-fused-rotary-pos-emb", None, "--use-fused-rmsnorm"),
        (LLAMA + ASCEND + FUSED.replace("rms", "no") + "--transformer-impl transformer_engine", None, None),
    ],
)
def test_kernels_that_are_not_fused(arguments: str, fused: bool | None, told: str | None) -> None:
    """A fifth of MindSpeed-LLM's scripts (c77308a1) leave some or all of them apart."""
    found = imported(torchrun(f"{arguments} {STEP}"), chip="ascend_910b" if ASCEND in arguments else "h100")
    assert found.spec["training"].get("fused_kernels") == fused
    notes = [note for note in found.notes if note.startswith("not fused in the script")]
    assert [told in note for note in notes if told] == [True] * bool(told)
    assert bool(notes) == bool(told)
    apart = fused is False or "swiglu" in (told or "")
    assert any(note.startswith("gates without a kernel") for note in found.notes) == apart


@pytest.mark.parametrize(
    ("more", "dispatcher"),
    [
        ("--expert-model-parallel-size 4", "allgather"),
        ("--tensor-model-parallel-size 4 --sequence-parallel", "allgather"),
        ("--expert-model-parallel-size 4 --moe-token-dispatcher-type allgather", "allgather"),
        ("--expert-model-parallel-size 4 --moe-token-dispatcher-type alltoall", "alltoall"),
        ("--expert-model-parallel-size 4 --moe-model-type deepspeed_moe", None),
        ("--expert-model-parallel-size 4 --moe-token-dispatcher-type flex --moe-enable-deepep", "deepep"),
        ("", None),
        ("--moe-token-dispatcher-type allgather", None),
    ],
)
def test_tokens_are_gathered_on_all_ranks_of_experts_by_default(more: str, dispatcher: str | None) -> None:
    """Megatron's; zihugithub/FlagScale 821a0566, examples/mixtral, is one of many that leave it."""
    found = imported(torchrun(f"{MOE} {STEP} {more}"))
    assert found.spec["training"].get("moe_dispatcher") == dispatcher
    told = "every token goes to all ranks of experts" in " ".join(found.notes)
    assert told == (dispatcher == "allgather")
