"""Megatron-Bridge's own configuration of exported plans, from stdin (JSON: {plan, overrides, environment, world} each).

Run as a script in an interpreter that has torch, transformers, megatron.training and megatron.bridge on its path, on a
machine without accelerators; prints a JSON list of what Megatron-Bridge made of each before it would train, or the
error. Packages that its modules import and no configuration needs are empty where they are not installed.
"""

from __future__ import annotations

import os
import runpy
import sys
import types
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

ABSENT = ("transformer_engine", "modelopt", "nvidia_resiliency_ext", "megatron.energon", "qwen_vl_utils", "diffusers")
"""Kernels, and packages of other work (quantization, restarts, pictures)."""
READ = {
    "model": (
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "sequence_parallel"),
        *("virtual_pipeline_model_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"),
        *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules", "cp_comm_type"),
        "distribute_saved_activations",
        *("hierarchical_context_parallel_sizes", "num_layers", "hidden_size", "num_moe_experts", "vocab_size"),
        *("seq_length", "mtp_num_layers", "add_bias_linear", "share_embeddings_and_output_weights", "bf16", "fp16"),
        *("microbatch_group_size_per_vp_stage", "overlap_moe_expert_parallel_comm", "fp8", "fp8_recipe", "fp4"),
        *("gated_linear_unit", "num_query_groups", "attention_backend", "cuda_graph_impl"),
    ),
    "ddp": (
        *("use_distributed_optimizer", "num_distributed_optimizer_instances", "overlap_grad_reduce"),
        *("overlap_param_gather", "use_megatron_fsdp", "data_parallel_sharding_strategy", "grad_reduce_in_fp32"),
        "fp8_param_gather",
    ),
    "optimizer": ("optimizer", "use_distributed_optimizer", "use_precision_aware_optimizer", "optimizer_cpu_offload"),
    "train": ("micro_batch_size", "global_batch_size"),
}


def captured(path: Path) -> Any:
    """The configuration that the file, run as a script, would train with."""
    given: list[Any] = []
    stop = types.ModuleType("stop")
    stop.pretrain = stop.finetune = lambda config, forward_step_func: given.append(config)  # type: ignore[attr-defined]
    stop.forward_step = None  # type: ignore[attr-defined]
    names = ("pretrain", "finetune", "gpt_step")
    with mock.patch.dict(sys.modules, {f"megatron.bridge.training.{name}": stop for name in names}):
        runpy.run_path(str(path), run_name="__main__")
    return given[0]


def overridden(script: Any, overrides: list[str]) -> Any:
    """The usual recipe with the plan's overrides, as Megatron-Bridge's own command line sets them."""
    from megatron.bridge.recipes.common import _pretrain_common
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    config = _pretrain_common()
    config.model = type(script["model"]())(num_layers=1, hidden_size=64, num_attention_heads=1)
    return process_config_with_overrides(config, cli_overrides=overrides)


def read(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What Megatron-Bridge makes of one plan, as its pretrain() would before it starts."""
    from megatron.bridge.training.config import runtime_config_update

    path = folder / "plan.py"
    path.write_text(case["plan"], encoding="utf-8")
    there = {**case["environment"], "WORLD_SIZE": str(case["world"]), "RANK": "0"}
    devices = mock.patch("torch.distributed.get_world_size", return_value=case["world"])
    with devices, mock.patch.dict(os.environ, there):
        configurations = [captured(path)]
        if case["overrides"]:
            configurations.append(overridden(runpy.run_path(str(path)), case["overrides"]))
        for config in configurations:
            runtime_config_update(config)
    first, *others = map(values_of, configurations)
    return {**first, "overridden": others}


def values_of(config: Any) -> dict[str, Any]:
    """The parts of READ, and layers of every chunk by Megatron-Core's code."""
    from megatron_parse import chunks

    found = {
        part: {name: getattr(getattr(config, part), name) for name in names if hasattr(getattr(config, part), name)}
        for part, names in READ.items()
    }
    replicas = config.data_parallel_size
    microbatches = config.train.global_batch_size // (config.train.micro_batch_size * replicas)
    return {**found, "data_parallel_size": replicas, "microbatches": microbatches, "chunks": chunks(config.model)}


def main() -> None:
    """Answer stdin's cases."""
    sys.path.insert(0, str(Path(__file__).parent))
    from absent import lend
    from answering import answer

    lend("megatron.bridge", ABSENT)
    from megatron_parse import without_accelerators

    with TemporaryDirectory() as folder:
        answer(without_accelerators, lambda case: read(case, Path(folder)))


if __name__ == "__main__":
    main()
