"""What a script leaves to others: to a checkpoint, a tokenizer, a file beside it, the scheduler that runs it."""

from __future__ import annotations

import pytest

from cpsolver.inputs.errors import InputError
from tests.support.command import in_tmp, write  # noqa: F401
from tests.support.scripts import GPT, LLAMA, STEP, imported, torchrun

SAVED = (
    "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --swiglu --normalization "
    "RMSNorm --use-rotary-position-embeddings --untie-embeddings-and-output-weights --max-position-embeddings 4096 "
    "--tokenizer-type Llama2Tokenizer --use-checkpoint-args --attention-dropout 0 --hidden-dropout 0 "
)
"""Sizes as rioyokotalab's Megatron-Llama2 bba30fe gives them: its checkpoint has groups of heads, and no biases."""


def test_what_a_checkpoint_says_is_the_likeliest_model_s() -> None:
    """load_args_from_checkpoint (Megatron-LM d98e8a6) takes groups and biases from it, whatever the arguments say."""
    found = imported(torchrun(SAVED + "--save llama-2-70b " + STEP + "--tensor-model-parallel-size 8"))
    assert found.spec["model"] == "llama2-70b"
    assert any("--use-checkpoint-args" in note and "llama2-70b" in note for note in found.notes)
    narrower = imported(torchrun(SAVED.replace("28672", "20480") + "--vocab-size 32000 " + STEP))
    assert (narrower.model.kv_heads, narrower.model.bias_mlp) == (64, True)
    assert any("--use-checkpoint-args" in note and "as given" in note for note in narrower.notes)
    assert not any("--use-checkpoint-args" in note for note in imported(torchrun(LLAMA + STEP)).notes)


@pytest.mark.parametrize(
    ("arguments", "graph", "told"),
    [
        ("--external-cuda-graph --te-rng-tracker", "te", False),
        ("--enable-cuda-graph", "te", True),
        ("--cuda-graph-impl local", "te", True),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", "full", False),
        ("--cuda-graph-impl transformer_engine", "te", False),
        ("", None, False),
    ],
)
def test_graphs_by_all_their_names(arguments: str, graph: str | None, told: bool) -> None:
    """core_v0.12.1 names them by flags, which d98e8a6 still takes (training/arguments.py)."""
    found = imported(torchrun(LLAMA + STEP + arguments))
    assert found.spec["training"].get("cuda_graph") == graph
    assert any("layer by layer" in note for note in found.notes) == told
    assert not found.unused


WITHOUT = LLAMA.replace("--vocab-size 32000 ", "") + STEP
"""LLaMA 7B, which has the shape of other makers' models of 7B."""


def test_a_tokenizer_s_name_says_more_than_a_model_s_shape() -> None:
    path = "--tokenizer-type TikTokenizer --tokenizer-model /data/zjllm-llama3-tokenizer"
    found = imported(torchrun(WITHOUT + path))
    assert found.model.vocab == 128256
    assert any("zjllm-llama3-tokenizer, 128,256" in note for note in found.notes)


def test_a_vocabulary_is_that_of_a_model_of_the_same_shape_that_the_script_names() -> None:
    named = imported("# LLaMA 2\n" + torchrun(WITHOUT))
    assert (named.spec["model"], named.model.vocab) == ("llama2-7b", 32000)
    commented = "# --tokenizer-type GPT2BPETokenizer\n"
    others = [torchrun(WITHOUT), "# LLaMA 2\n" + torchrun(WITHOUT + "--tokenizer-model /data/Qwen1.5-MoE-A2.7B")]
    for text in (*others, commented + torchrun(WITHOUT)):
        with pytest.raises(InputError, match=r"--vocab-size: is not given.* models of this shape have"):
            imported(text)


@pytest.mark.parametrize(
    ("head", "start", "devices"),
    [
        ("#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8\n", "deepspeed --num_nodes 2", (16, 8)),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:a100:4\n", "deepspeed", (8, 4)),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n", "srun python", (16, 8)),
        ("", "mpiexec -n 16 --ppn 8 python", (16, 8)),
        (
            "#$ -l rt_AF=2\n",
            "[[ $SGE_RESOURCE_TYPE == rt_AF ]] && N=8\nmpirun -np $((NHOSTS * N)) -npernode $N python",
            (16, 8),
        ),
    ],
)
def test_devices_that_the_scheduler_gives(head: str, start: str, devices: tuple[int, int]) -> None:
    """DeepSpeed starts a process for each device of a node, whatever tasks Slurm has there; mpirun as many as told."""
    cluster = imported(f"{head}{start} pretrain_gpt.py {LLAMA}{STEP}\n").spec["cluster"]
    assert (cluster["num_gpus"], cluster["gpus_per_node"]) == devices


def test_a_file_of_deepspeed_that_a_script_writes_counts_where_it_is_the_one_that_is_named() -> None:
    written = 'DS=out/zero3.json\ncat <<EOT > $DS\n{"zero_optimization": {"stage": 3}}\nEOT\n'
    train = torchrun(f"{LLAMA}{STEP}--deepspeed --zero-stage 1 --deepspeed_config ")
    mine, other = (imported(written + train.rstrip() + f" {name}\n") for name in ("$DS", "other.json"))
    assert mine.strategy is not None
    assert other.strategy is not None
    assert (mine.strategy.sharded, other.strategy.sharded) == ("parameters", "optimizer")


def test_a_model_s_name_beside_its_sizes_is_another_framework_s_than_loongforge() -> None:
    found = imported(torchrun(LLAMA + STEP + "--model-name OPT"))
    assert found.model.layers == 32
    with pytest.raises(InputError, match=r"OPT\.yaml is not in the script's folder"):
        imported(torchrun(STEP + "--model-name OPT"))


COUNTED = (
    "GPUS=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)\ntorchrun --nproc_per_node $GPUS --nnodes 2 "
)


def test_the_gpus_of_a_node_that_a_script_counts_are_those_that_it_asks_for_or_that_the_user_gives() -> None:
    train = f"{COUNTED}pretrain_gpt.py {LLAMA}{STEP}\n"
    assert imported(f"#SBATCH --gres=gpu:4\n{train}").spec["cluster"]["num_gpus"] == 8
    assert imported(train, gpus_per_node=8).spec["cluster"]["num_gpus"] == 16
    with pytest.raises(InputError, match=r"nvidia-smi.*which is not run"):
        imported(train)


@pytest.mark.parametrize(("enabled", "precision"), [("true", "fp16"), ('"auto"', "bf16"), ("false", "bf16")])
def test_the_engine_computes_in_the_type_of_its_file(enabled: str, precision: str) -> None:
    """DeepSpeed 0.19.8, runtime/config.py: fp16.enabled, which knows nothing of Megatron's arguments."""
    write("ds.json", f'{{"fp16": {{"enabled": {enabled}}}, "zero_optimization": {{"stage": 1}}}}')
    found = imported(torchrun(f"{LLAMA}{STEP}--deepspeed --deepspeed_config ds.json"))
    assert found.spec["training"]["precision"] == precision
    assert any("whatever --bf16 says" in note for note in found.notes) == (precision == "fp16")


def test_a_command_that_starts_with_what_is_not_known_is_named() -> None:
    text = (
        "ARGS=$(ask_me sizes)\npython preprocess_data.py --input $X\ntorchrun pretrain_gpt.py $ARGS --seq-length 4096\n"
    )
    with pytest.raises(InputError, match=r"in line 3 pretrain_gpt\.py starts with what is not known: .*ask_me sizes"):
        imported(text)


def test_stages_of_deepspeed_share_out_layers_that_their_number_does_not_divide() -> None:
    """partition_balanced of DeepSpeed 0.19.8 gives the first stages one more; those of Megatron-LM have to be even."""
    text = torchrun(LLAMA + STEP + "--pipeline-model-parallel-size 3", devices=3)
    found = imported(text.strip() + " --deepspeed\n")
    assert found.strategy is not None
    assert found.strategy.layers == (11, 11, 10)
    with pytest.raises(InputError, match="32 layers are not a multiple"):
        imported(text)


@pytest.mark.parametrize(
    ("query", "layers"),
    [
        ("yq '.model.layers' sizes.yaml", 32),
        ("yq -e '.model.layers' sizes.yaml", 32),
        ("yq eval .model.layers sizes.yaml", 32),
        ("jq -r .model.layers sizes.yaml", 32),
        ("jq .model.layers sizes.yaml", 32),
        ("yq '.model | .layers' sizes.yaml", None),
        ("yq .model.depth sizes.yaml", None),
        ("yq .model sizes.yaml", None),
        ("yq .model.layers elsewhere.yaml", None),
        ("jq .model.name sizes.yaml", None),
    ],
)
def test_what_yq_and_jq_print_of_a_file_beside_the_script(query: str, layers: int | None) -> None:
    """Of a name that stands twice they take the last."""
    write("sizes.yaml", "model:\n  name: a model\n  layers: 40\n  layers: 32\n")
    text = f"N=$({query})\n" + torchrun(LLAMA.replace("--num-layers 32", "--num-layers $N") + STEP)
    if layers is not None:
        assert imported(text).model.layers == layers
        return
    with pytest.raises(InputError, match="--num-layers"):
        imported(text)


def test_attention_of_documents_and_of_whole_squares_in_mindspeed_is_told() -> None:
    ring = "--use-fused-rmsnorm --context-parallel-size 2 --context-parallel-algo megatron_cp_algo "
    mask = "--attention-mask-type general "
    square, packed = (
        imported(torchrun(LLAMA + STEP + ring + mask + more), chip="ascend_910b")
        for more in ("", "--reset-attention-mask")
    )
    assert any("not its causal half" in note for note in square.notes)
    assert any("documents attend to themselves" in note for note in packed.notes)
    assert not any("causal half" in note for note in packed.notes)
    assert not any(
        "documents attend" in note for note in imported(torchrun(LLAMA + STEP + "--reset-attention-mask")).notes
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            "--use-distributed-optimizer --use-precision-aware-optimizer --main-params-dtype fp16",
            "main weights in 16 bits",
        ),
        ("--random-ltd", "leave tokens out"),
        ("--neat-pack", "each attending to itself"),
        ("--use-packed-seq-params", "each attending to itself"),
        ("--use-pft", "experts' tokens without padding"),
        ("--use-rbd", "sent once for several experts"),
        ("--use-mp-args-from-checkpoint-args", "the degrees are the checkpoint's"),
    ],
)
def test_what_no_plan_says_is_told(arguments: str, told: str) -> None:
    found = imported(torchrun(LLAMA + STEP + arguments))
    assert any(told in note for note in found.notes)
    name = arguments.split()[-1]
    assert name not in (*found.unused, *found.unknown)


def test_what_stands_for_a_value_that_is_not_known_may_be_missing() -> None:
    """Where a condition on the device decides, as in Transformer Engine's test of Megatron-LM."""
    asked = "if [[ $(nvidia-smi --query-gpu=compute_cap) -ge 89 ]]; then\n  FP8=1\nfi\n"
    found = imported(asked + torchrun(GPT + "${FP8:+--fp8-format hybrid}"))
    assert found.spec["training"]["precision"] == "fp16"
    assert [note for note in found.notes if "arguments may be missing: $FP8" in note]
    given = imported(asked + torchrun(GPT + "${FP8:+--fp8-format hybrid}"), given={"FP8": "1"})
    assert given.spec["training"]["precision"] == "fp8"
    known = imported("FP8=x$(date)\n" + torchrun(GPT + "${FP8:+--fp8-format hybrid}"))
    assert known.spec["training"]["precision"] == "fp8"
