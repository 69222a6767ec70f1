"""Scripts of ten dialects: the plan that each runs, the stack and the launcher that it names."""

from __future__ import annotations

from typing import Any

import pytest

from cpsolver.problem.resolve import resolve
from cpsolver.rules import violations
from cpsolver.spec.spec import parse_spec
from tests.support.command import in_tmp  # noqa: F401
from tests.support.scripts import GPT, LLAMA, MOE, STEP, imported, plan, torchrun

DIALECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "megatron with arrays": (
        f"N=2\nA=({LLAMA})\nB=({STEP} --tensor-model-parallel-size 4 --sequence-parallel)\n"
        "B+=(--use-distributed-optimizer)\n"
        'torchrun --nproc-per-node=8 --nnodes $N pretrain_gpt.py "${A[@]}" ${B[@]} --context-parallel-size 2\n',
        {"tp": 4, "cp": 2, "pp": 1, "dp": 2, "sequence_parallel": True, "distributed_optimizer": True, "ulysses": 1},
    ),
    "megatron with layers of a virtual stage": (
        torchrun(f"{LLAMA} {STEP} --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2"),
        {"pp": 4, "dp": 2, "vpp": 4, "layers": (8, 8, 8, 8), "distributed_optimizer": False, "flash_attention": True},
    ),
    "megatron core 0.16: layout string, modules, FSDP left out": (
        torchrun(
            f"{LLAMA} {STEP} --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*7|t*9|(t*9|)*1t*7L' "
            "--recompute-granularity selective --recompute-modules core_attn mlp --attention-backend unfused"
        ),
        {"layers": (7, 9, 9, 7), "vpp": 1, "flash_attention": False, "recompute": ("selective",) * 4},
    ),
    "megatron with first and last stage, and chunks by count": (
        torchrun(
            f"{LLAMA} {STEP} --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 6 "
            "--decoder-last-pipeline-num-layers=6 --num-virtual-stages-per-pipeline-rank 2"
        ),
        {"layers": (6, 10, 10, 6), "vpp": 2},
    ),
    "mixture of experts under Slurm": (
        "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n"
        f'ARGS="{MOE} {STEP} --expert-model-parallel-size 8 --tensor-model-parallel-size 2 --sequence-parallel"\n'
        'srun -l bash -c "python -u pretrain_gpt.py ${ARGS} --expert-tensor-parallel-size 1"\n',
        {"tp": 2, "dp": 16, "ep": 8, "etp": 1, "sequence_parallel": True},
    ),
    "torch FSDP2": (
        torchrun(
            f"{LLAMA} {STEP} --use-torch-fsdp2 --recompute-granularity full --recompute-method uniform "
            "--recompute-num-layers 1"
        ),
        {"dp": 8, "sharded": "parameters", "distributed_optimizer": True, "recompute": ("uniform",)},
    ),
    "MindSpeed-LLM: layer list, hybrid context, block recomputation": (
        f"NPUS_PER_NODE=8\nNNODES=2\nWORLD=$(($NPUS_PER_NODE*$NNODES))\nCP=$((WORLD / 4))\n"
        "python -m torch.distributed.launch --nproc_per_node $NPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py "
        f"{LLAMA} {STEP} "
        "--use-fused-rmsnorm --use-flash-attn --pipeline-model-parallel-size 4 --num-layer-list 7,9,9,7 "
        "--context-parallel-size $CP --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2 "
        "--recompute-granularity full --recompute-method block --recompute-num-layers 3\n",
        {"cp": 4, "ulysses": 2, "layers": (7, 9, 9, 7), "recompute_layers": (3, 3, 3, 3), "dp": 1},
    ),
    "AscendSpeed: pretrain_llama, microbatches of different sizes": (
        f"torchrun --nproc_per_node 4 pretrain_llama.py --DDP-impl local {LLAMA.replace('--swiglu', '')} --fp16 "
        "--seq-length 2048 --micro-batch-size 2 --global-batch-size 8 --pipeline-model-parallel-size 4 "
        "--optimized-pipeline "
        "--manual-mbs 1,2,3,2 --release-fp32-grad\n",
        {"pp": 4, "mbs": 2, "micro_batches": (1, 2, 3, 2), "flash_attention": False},
    ),
    "AscendSpeed: sizes by the name of an example": (
        f"torchrun --nproc_per_node 4 pretrain_llama.py --DDP-impl local {LLAMA.replace('--swiglu', '')} --fp16 "
        "--seq-length 2048 --micro-batch-size 4 --global-batch-size 64 --pipeline-model-parallel-size 4 "
        "--optimized-pipeline --manual-mbs example-config-1\n",
        {"pp": 4, "micro_batches": (1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5, 5, 5, 4, 3, 2)},
    ),
    "Megatron-DeepSpeed": (
        f"export A=1\ndeepspeed --num_nodes 2 --num_gpus 4 pretrain_gpt.py {GPT} --global-batch-size 32 --deepspeed "
        "--zero-stage 1 --deepspeed_config ds.json\n",
        {"dp": 8, "sharded": "optimizer", "distributed_optimizer": True, "flash_attention": False},
    ),
    "LoongForge: layers and recomputation by stage": (
        torchrun(
            f"{LLAMA} {STEP} --pipeline-model-parallel-size 4 --custom-pipeline-layers 8,8,9,7 "
            "--recompute-granularity full "
            "--recompute-method block --custom-pipeline-recompute-layers 4,3,2,1"
        ),
        {"layers": (8, 8, 9, 7), "recompute_layers": (4, 3, 2, 1)},
    ),
    "a plain list of arguments": (
        f"{LLAMA.strip()} \\\n{STEP}\n--nproc-per-node 8 --nnodes 1\n--tensor-model-parallel 2\n",
        {"tp": 2, "dp": 4},
    ),
}
STACKS = {
    "megatron with arrays": ("megatron-core-plain", "megatron-lm"),
    "MindSpeed-LLM: layer list, hybrid context, block recomputation": ("mindspeed", "mindspeed-llm"),
    "AscendSpeed: pretrain_llama, microbatches of different sizes": ("ascendspeed", None),
    "Megatron-DeepSpeed": ("megatron-deepspeed", "deepspeed"),
    "LoongForge: layers and recomputation by stage": ("megatron-core", "loongforge"),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_dialect(name: str) -> None:
    text, values = DIALECTS[name]
    found = plan(text)
    assert {key: getattr(found, key) for key in values} == values


@pytest.mark.parametrize("flag", ["--swap-optimizer", "--enable-recompute-layers-per-pp-rank", "--n-shared-experts 1"])
def test_an_argument_that_only_mindspeed_has_names_it(flag: str) -> None:
    found = imported(torchrun(f"{LLAMA} {STEP} {flag}"))
    assert (found.spec["stack"], found.spec["launcher"]) == ("mindspeed", "mindspeed-llm")


def test_deepspeed_that_starts_a_fork_on_other_chips_names_it_first() -> None:
    """HabanaAI's Megatron-DeepSpeed has --use-fused-rmsnorm too."""
    arguments = f"{LLAMA} {STEP} --use-fused-rmsnorm --optimizer fusedadamw --deepspeed --zero-stage 1"
    found = imported(torchrun(arguments))
    assert (found.spec["stack"], found.spec["launcher"]) == ("megatron-deepspeed", "deepspeed")
    assert "optimizer" not in found.spec["training"]


def test_a_spec_lets_stages_recompute_as_the_script_does() -> None:
    found = imported(DIALECTS["LoongForge: layers and recomputation by stage"][0])
    assert found.spec["search"] == {"recompute_scope": "stage"}
    assert found.strategy is not None
    assert {broken.rule for broken in violations(resolve(parse_spec(found.spec)), found.strategy)} <= {"memory"}
    assert "search" not in imported(DIALECTS["megatron with arrays"][0]).spec


@pytest.mark.parametrize("name", STACKS)
def test_stack_and_launcher(name: str) -> None:
    found = imported(DIALECTS[name][0])
    assert (found.spec["stack"], found.spec.get("launcher")) == STACKS[name]


@pytest.mark.parametrize(
    ("frequency", "linear"), [("4", 24), ("'([1]*3+[0])*8'", 24), ("[1]*32", 32), ("999", 32), ("'([1]+[0])*16'", 16)]
)
def test_layers_of_linear_attention_by_a_number_or_a_list(frequency: str, linear: int) -> None:
    """Megatron-LM d98e8a6: every n-th layer attends fully, and none where n is more than there are."""
    sizes = "key-heads 16 --linear-key-head-dim 128 --linear-num-value-heads 32 --linear-value-head-dim 128"
    rule = f"--experimental-attention-variant gated_delta_net --linear-num-{sizes} --linear-attention-freq {frequency}"
    model = imported(torchrun(LLAMA + STEP + rule)).model
    assert sum(model.mixer(layer) == "linear" for layer in range(32)) == linear
