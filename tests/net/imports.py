"""Scripts and model configurations that are imported."""

from __future__ import annotations

import json
from typing import Any

from tests.net.case import Case, example
from tests.support.scripts import GPT, LLAMA, MOE, STEP

OLD_LLAMA = " ".join(
    word for word in LLAMA.split() if word not in ("--swiglu", "--disable-bias-linear", "--normalization", "RMSNorm")
)
"""As for AscendSpeed, which has none of these arguments."""
RUN = f"torchrun --nproc_per_node 8 --nnodes=1 pretrain_gpt.py {LLAMA} {STEP}"
SCRIPTS: dict[str, str] = {
    "arrays": f"N=2\nA=({LLAMA})\nB=({STEP} --tensor-model-parallel-size 4 --sequence-parallel)\n"
    "B+=(--use-distributed-optimizer)\n"
    'torchrun --nproc-per-node=8 --nnodes $N pretrain_gpt.py "${A[@]}" ${B[@]} --context-parallel-size 2\n',
    "chunks": f"{RUN} --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2\n",
    "a layout, modules": f"{RUN} --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout "
    "'Et*7|t*9|(t*9|)*1t*7L' --recompute-granularity selective --recompute-modules core_attn mlp\n",
    "experts under Slurm": "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n"
    f'ARGS="{MOE} {STEP} --expert-model-parallel-size 8 --tensor-model-parallel-size 2 --sequence-parallel"\n'
    'srun -l bash -c "python -u pretrain_gpt.py ${ARGS} --expert-tensor-parallel-size 1"\n',
    "FSDP2": f"{RUN} --use-torch-fsdp2 --recompute-granularity full --recompute-method uniform "
    "--recompute-num-layers 1\n",
    "MindSpeed-LLM": "NPUS_PER_NODE=8\nNNODES=2\nWORLD=$(($NPUS_PER_NODE*$NNODES))\nCP=$((WORLD / 4))\n"
    "python -m torch.distributed.launch --nproc_per_node $NPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py "
    f"{LLAMA} {STEP} --use-fused-rmsnorm --use-flash-attn --pipeline-model-parallel-size 4 --num-layer-list 7,9,9,7 "
    "--context-parallel-size $CP --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2 "
    "--recompute-granularity full --recompute-method block --recompute-num-layers 3\n",
    "AscendSpeed": f"torchrun --nproc_per_node 4 pretrain_llama.py --DDP-impl local {OLD_LLAMA} "
    "--fp16 --seq-length 2048 --micro-batch-size 2 --global-batch-size 8 --pipeline-model-parallel-size 4 "
    "--optimized-pipeline --manual-mbs 1,2,3,2 --release-fp32-grad\n",
    "Megatron-DeepSpeed": f"export A=1\ndeepspeed --num_nodes 2 --num_gpus 4 pretrain_gpt.py {GPT} "
    "--global-batch-size 32 --deepspeed --zero-stage 1 --deepspeed_config ds.json\n",
    "LoongForge": f"{RUN} --pipeline-model-parallel-size 4 --custom-pipeline-layers 8,8,9,7 "
    "--recompute-granularity full --recompute-method block --custom-pipeline-recompute-layers 4,3,2,1\n",
    "a list of arguments": f"{LLAMA.strip()} \\\n{STEP}\n--nproc-per-node 8 --nnodes 1\n--tensor-model-parallel 2\n",
    "switches": f"{RUN} --optimizer-cpu-offload --optimizer-offload-fraction 0.5 --use-precision-aware-optimizer "
    "--use-distributed-optimizer --frobnicate 3\n",
    "fp8": f"{RUN} --fp8-format hybrid --fp8-param-gather --use-distributed-optimizer\n",
    "breadth first": f"{RUN} --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4 "
    "--global-batch-size 32 --microbatch-group-size-per-virtual-pipeline-stage 8\n",
    "no plan for it": f"{RUN} --optimizer lion --schedules-method seqpipe --pipeline-model-parallel-size 2\n",
    "contradictions": f"\n\n{RUN} --tensor-model-parallel-size 3 --fp16 --global-batch-size x\n",
    "a variable that is not set": f"{RUN} --tensor-model-parallel-size $TP --micro-batch-size $(cat size)\n",
    "misspelt": f"{RUN} --tensor-model-paralel-size 2 --recompute-m block\n",
    "conditionals": "if [ -z $A ]; then TP=2; fi\nfor i in 1 2; do X=$i; done\nsource env.sh\n"
    f"{RUN} --seed ${{SEED:-1}}\n",
    "no command": "echo nothing\n",
}


def _config(layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        **more,
    }


CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_config(32, 4096, 11008, 32, 32, 32000, tie_word_embeddings=False)},
    "mixtral": {
        "model_type": "mixtral",
        **_config(32, 4096, 14336, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2),
    },
    "a small qwen3": {"model_type": "qwen3", **_config(6, 64, 160, 8, 2, 1000, head_dim=8)},
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        **_config(61, 7168, 18432, 128, 128, 129280, n_routed_experts=256, num_experts_per_tok=8, n_shared_experts=1),
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "q_lora_rank": 1536,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1,
        "topk_method": "noaux_tc",
    },
    "gemma3, text in a part": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            **_config(62, 5376, 21504, 32, 16, 262208, head_dim=128, sliding_window=1024),
        },
    },
    "an unknown family": {"model_type": "mamba", **_config(6, 64, 160, 8, 2, 1000)},
}
TOLD = ("--num-gpus", "16", "--gpus-per-node", "8", "--global-batch-size", "64", "--sequence-length", "4096")


def cases() -> list[Case]:
    """Every script and configuration; some written into files and then used."""
    sources: dict[str, tuple[str, str, tuple[str, ...]]] = {
        "the example": ("train.sh", example("mindspeed-llama-7b.sh"), ("--chip", "ascend_910b")),
        "the example, no chip": ("train.sh", example("mindspeed-llama-7b.sh"), ()),
        "a variable given": (
            "train.sh",
            f"{RUN} --tensor-model-parallel-size $TP\n",
            ("--chip", "h100", "--set", "TP=4"),
        ),
        "options": ("train.sh", SCRIPTS["chunks"], ("--num-gpus", "32", "--stack", "nemo", "--launcher", "any")),
    }
    sources |= {name: ("train.sh", text, ("--chip", "h100")) for name, text in SCRIPTS.items()}
    sources |= {
        f"configuration of {name}": ("config.json", json.dumps(fields), ("--chip", "h100", *TOLD))
        for name, fields in CONFIGS.items()
    }
    found = []
    for name, (file, text, options) in sources.items():
        words, files = ("import", file, *options), {file: text}
        written = ("-o", "spec.yaml", "--strategy-output", "plan.yaml")
        found.append(Case("import", name, (*words, "--json"), files, True))
        found.append(
            Case(
                "import",
                f"{name}, into files",
                (*words, *(written if file == "train.sh" else written[:2])),
                files,
                True,
            )
        )
    return found
