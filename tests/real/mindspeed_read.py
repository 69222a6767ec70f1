"""MindSpeed-LLM's own parser and checks on exported options, from stdin (JSON: {arguments, environment, world} each).

Run as a script in an interpreter that has torch, Megatron-LM core_v0.12.1, MindSpeed and MindSpeed-LLM on its path, on
a machine without accelerators; prints a JSON list of the values that it read, or the error. Importing MindSpeed-LLM
patches Megatron-LM's parser, as it does in training. Kernels, and packages that no argument needs, are empty.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

ABSENT = (
    *("torch_npu", "torchair", "tensordict", "transformer_engine", "bs4", "apex", "flash_attn", "ml_dtypes", "fla"),
    *("mindspeed_ops", "ray", "vllm", "nltk", "acl", "codetiming", "pydantic", "hydra"),
)
HIDDEN = ("mindspeed.op_builder", "mindspeed.ops", "transformers", "peft", "datasets")
USERS = ["--train-iters", "1", "--lr", "1e-4", "--data-path", "x", "--tokenizer-type", "PretrainedFromHF"]
USERS += ["--tokenizer-name-or-path", "."]
READ = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "data_parallel_size"),
    *("num_layers_per_virtual_pipeline_stage", "expert_model_parallel_size", "sequence_parallel", "num_layer_list"),
    *("micro_batch_size", "global_batch_size", "use_distributed_optimizer", "num_layers", "context_parallel_algo"),
    *("ulysses_degree_in_cp", "recompute_granularity", "recompute_method", "recompute_num_layers", "spec"),
    *("use_flash_attn", "first_k_dense_replace", "n_shared_experts", "pipeline_model_parallel_layout"),
    *("num_distributed_optimizer_instances", "decoder_first_pipeline_num_layers", "bf16", "padded_vocab_size"),
    *(
        "position_embedding_type",
        "num_zero_experts",
        "enable_mla_scale_q_lora",
        "compress_ratios",
        "hc_mult",
        "o_groups",
    ),
    *("gradient_accumulation_fusion", "gemm_gradient_accumulation_fusion", "moe_token_dispatcher_type"),
    *("enable_dsa_indexer", "enable_mla_absorb", "index_topk", "n_hash_layers", "mtp_num_layers"),
    *("moe_zero_memory", "moe_alltoall_overlap_comm", "moe_fb_overlap", "lora_r", "lora_alpha", "lora_target_modules"),
)


def read(case: dict[str, Any]) -> dict[str, Any]:
    """What MindSpeed-LLM makes of one command line."""
    from megatron.training import arguments

    there = {**case["environment"], "WORLD_SIZE": str(case["world"]), "RANK": "0"}
    line = ["pretrain_gpt.py", *case["arguments"], *USERS]
    with mock.patch.dict(os.environ, there), mock.patch.object(sys, "argv", line):
        args = arguments.parse_args()
        args = arguments.validate_args(args, {})
    return {name: getattr(args, name, None) for name in READ}


def patched() -> None:
    """Import MindSpeed-LLM without its devices."""
    import torch
    from absent import Empty, lend
    from megatron_parse import without_accelerators

    lend("mindspeed", ABSENT, HIDDEN)
    without_accelerators()
    from megatron.training import arguments

    torch.npu = Empty("npu")
    versions: Any = Empty("torch_npu.utils.collect_env")
    versions.get_cann_version = lambda *_: "8.5.0"
    sys.modules["torch_npu.utils.collect_env"] = versions
    import mindspeed_llm.training.arguments

    assert hasattr(arguments.parse_args, "__wrapped__"), mindspeed_llm.training.arguments


def main() -> None:
    """Answer stdin's cases."""
    sys.path.insert(0, str(Path(__file__).parent))
    from answering import answer

    answer(patched, read)


if __name__ == "__main__":
    main()
