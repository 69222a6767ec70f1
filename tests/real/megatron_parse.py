"""Megatron-LM's own parser on command lines from stdin (JSON: a list of {arguments, environment, world}).

Run as a script in an interpreter that has torch, on a machine without accelerators; prints a JSON list of what it made
of each: the parsed values, layers of every stage's chunks by its own code, microbatches; or the error.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import sys
import types
import typing
from typing import Any
from unittest import mock

TRY_OUT = [
    "--train-iters",
    "1",
    "--lr",
    "1e-4",
    "--mock-data",
    "--tokenizer-type",
    "NullTokenizer",
    "--vocab-size",
    "1000",
]
WITHOUT_KERNELS = ["--transformer-impl", "local", "--no-gradient-accumulation-fusion", "--no-rope-fusion"]
WITHOUT_KERNELS += ["--no-persist-layer-norm", "--no-masked-softmax-fusion"]
"""Transformer Engine and Apex are not there on a machine without accelerators."""
READ = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "data_parallel_size"),
    *("virtual_pipeline_model_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"),
    *("sequence_parallel", "micro_batch_size", "global_batch_size", "use_distributed_optimizer", "num_layers"),
    *("cp_comm_type", "hierarchical_context_parallel_sizes", "recompute_granularity", "recompute_method"),
    *("recompute_num_layers", "recompute_modules", "overlap_grad_reduce", "overlap_param_gather", "num_experts"),
    "distribute_saved_activations",
    *("data_parallel_sharding_strategy", "num_distributed_optimizer_instances", "moe_layer_freq", "overlap_p2p_comm"),
    *("hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "swiglu"),
    *("quick_geglu", "glu_linear_offset", "activation_func_clamp_value"),
    *("use_megatron_fsdp", "use_custom_fsdp", "multi_latent_attention", "mtp_num_layers", "seq_length", "bf16"),
    *("add_bias_linear", "untie_embeddings_and_output_weights", "microbatch_group_size_per_vp_stage"),
    *("optimizer", "muon_tp_mode", "muon_num_ns_steps", "use_layer_wise_distributed_optimizer"),
)


def without_accelerators() -> None:
    """Let the parser ask for the device's generation: an answer as of Hopper."""
    import torch

    if not hasattr(typing, "override"):
        typing.override = lambda function: function  # type: ignore[attr-defined]
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=1, store=FakeStore())  # core 0.13 asks who it is
    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
    torch.cuda.get_device_properties = lambda *_, **__: types.SimpleNamespace(major=9, minor=0)


def parsed(case: dict[str, Any]) -> dict[str, Any]:
    """What Megatron-LM makes of one command line."""
    from megatron.core import num_microbatches_calculator as counter
    from megatron.training import arguments

    line = ["pretrain_gpt.py", *case["arguments"], *TRY_OUT, *WITHOUT_KERNELS]
    there = {**case["environment"], "WORLD_SIZE": str(case["world"]), "RANK": "0"}
    with mock.patch.dict(os.environ, there), mock.patch.object(sys, "argv", line):
        args = arguments.parse_args()
        arguments.validate_args(args)
        config = arguments.core_transformer_config_from_args(args)
    counter.unset_num_microbatches_calculator()
    counter.init_num_microbatches_calculator(
        0, None, args.global_batch_size, args.micro_batch_size, args.data_parallel_size
    )
    values = {name: getattr(args, name) for name in READ if hasattr(args, name)}
    pattern = getattr(args, "hybrid_layer_pattern", None)
    layers = chunks(config) if pattern is None else pattern_chunks(config, pattern)
    return {**values, "microbatches": counter.get_num_microbatches(), "chunks": layers}


def chunks(config: Any) -> list[list[int]]:
    """Layers of every chunk of every stage."""
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    pp, vpp = config.pipeline_model_parallel_size, config.virtual_pipeline_model_parallel_size
    known = inspect.signature(get_num_layers_to_build).parameters
    parallel_state.set_pipeline_model_parallel_world_size(pp)
    parallel_state.set_virtual_pipeline_model_parallel_world_size(vpp)
    found: list[list[int]] = []
    for stage in range(pp):
        parallel_state.set_pipeline_model_parallel_rank(stage)
        found.append([])
        for chunk in range(vpp or 1):
            parallel_state.set_virtual_pipeline_model_parallel_rank(chunk if vpp else None)
            told = {"vp_stage": chunk if vpp else None, "pp_rank": stage}
            given = {name: value for name, value in told.items() if name in known}
            found[-1].append(int(get_num_layers_to_build(config, **given)))
    return found


def pattern_chunks(config: Any, pattern: str) -> list[list[int]]:
    """Layers of every chunk of every stage of a model with one block a layer."""
    import torch
    from megatron.core.models.hybrid import hybrid_layer_allocation as allocation

    main_pattern, group = allocation.parse_hybrid_pattern(pattern).main_pattern, mock.Mock()
    pp, vpp = config.pipeline_model_parallel_size, config.virtual_pipeline_model_parallel_size
    found: list[list[int]] = []
    for stage in range(pp):
        rank = mock.patch.object(torch.distributed, "get_rank", return_value=stage)
        size = mock.patch.object(torch.distributed, "get_world_size", return_value=pp)
        with rank, size, mock.patch.object(allocation, "log_on_each_pipeline_stage"):
            chunks_there = [chunk if vpp else None for chunk in range(vpp or 1)]
            found.append(
                [len(allocation.select_pipeline_segment(main_pattern, group, chunk)[0]) for chunk in chunks_there]
            )
    return found


def main() -> None:
    """Answer stdin's cases."""
    cases = json.load(sys.stdin)
    answers = []
    with contextlib.redirect_stdout(io.StringIO()):
        without_accelerators()
        for case in cases:
            try:
                answers.append(parsed(case))
            except (Exception, SystemExit) as error:
                answers.append({"error": f"{type(error).__name__}: {error}"})
    json.dump(answers, sys.stdout, default=str)


if __name__ == "__main__":
    main()
