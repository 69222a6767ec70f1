"""A plan as a configuration of Hugging Face accelerate: FSDP2 with tensor and context parallelism, or Ulysses.

Read and run with 1.15.0 of the Python index: parallelism_config.py, utils/dataclasses.py (the FSDP plugin),
commands/launch.py (keys of a section are arguments of the launcher by their full name). Ulysses is DeepSpeed's there,
and takes DeepSpeed's JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cpsolver.doors.export import deepspeed
from cpsolver.doors.export.launch import Launch, refuse
from cpsolver.doors.export.shared import hosts, replicate_and_shard, unset_switches, yaml_text
from cpsolver.inputs.language import say
from cpsolver.inputs.text import plural
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

CONFIG = "accelerate.yaml"
_STRATEGY = {False: "alltoall", True: "allgather"}
"""accelerate's names for passing keys and values on, and for gathering them."""
_STEPS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
_DEVICES = {"huawei": "MULTI_NPU", "moorethreads": "MULTI_MUSA", "aws": "MULTI_NEURON"}
"""A chip's vendor -> accelerate's name for many of its devices without FSDP; others are MULTI_GPU."""
_LAUNCH = """#!/bin/bash
# On every host, with its place in the plan's order: NODE_RANK=0 MASTER_ADDR=host0 bash launch.sh
: "${{NODE_RANK:?place of this host, from 0}}" "${{MASTER_ADDR:?name of the first host}}"
export ACCELERATE_GRADIENT_ACCUMULATION_STEPS={steps}
accelerate launch --config_file {config} --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" \\
  --main_process_port "${{MASTER_PORT:-29500}}" "${{TRAIN:-train.py}}" "$@"
"""


def export(problem: Problem, strategy: Strategy) -> Launch:
    """What accelerate needs to run the plan; raises CannotExpress with every reason why it cannot."""
    refuse(_refused(problem, strategy))
    steps = str(strategy.microbatches(problem.batch))
    header = f"A plan of apss-cp for accelerate 1.15; {_STEPS}={steps} goes with it."
    files = {
        CONFIG: yaml_text(header, config(problem, strategy)),
        "launch.sh": _LAUNCH.format(config=CONFIG, steps=steps),
    }
    if _ulysses(strategy):
        files[deepspeed.CONFIG] = json.dumps(deepspeed.ds_config(problem, strategy), indent=2) + "\n"
    notes = tuple(_notes(problem, strategy))
    return Launch("accelerate", ("--config_file", CONFIG), {_STEPS: steps}, files, CONFIG, notes, "launch.sh")


def _ulysses(s: Strategy) -> bool:
    return s.cp > 1 and s.ulysses == s.cp


def _fsdp(s: Strategy) -> bool:
    """States are sharded over more than one rank."""
    return s.distributed_optimizer and replicate_and_shard(s)[1] * s.cp > 1


def _refused(problem: Problem, s: Strategy) -> Iterator[str]:
    """Settings of the spec that its files do not say; what of the plan they do not, the launcher's facts refuse."""
    training = problem.spec.training
    yield from unset_switches(problem, "accelerate", ("optimizer", "expandable_segments"))
    if training.precision not in ("bf16", "fp16"):
        yield say(
            "accelerate's {precision} recipes are not exported: training.precision may be bf16 or fp16",
            precision=training.precision,
        )
    if training.optimizer != "adam":
        yield say(
            "accelerate's files name no optimizer: training.optimizer is {optimizer}, and must be adam",
            optimizer=training.optimizer,
        )
    if _ulysses(s):
        yield from deepspeed.refused(problem, s)


def config(problem: Problem, s: Strategy) -> dict[str, Any]:
    """The plan as the file of `accelerate launch --config_file`."""
    listed = hosts(problem, s)
    plain = _DEVICES.get(problem.supply(listed[0].chip).chip.vendor, "MULTI_GPU") if s.devices > 1 else "NO"
    kind = "FSDP" if _fsdp(s) else plain
    data: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED" if _ulysses(s) else kind,
        "num_machines": len(listed),
        "num_processes": s.devices,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if _ulysses(s):
        # mixed_precision stands in DeepSpeed's file; accelerate refuses it in both.
        data["deepspeed_config"] = {
            "deepspeed_config_file": deepspeed.CONFIG,
            "deepspeed_multinode_launcher": "standard",
            "zero3_init_flag": s.zero_stage == 3,
        }
    else:
        data["mixed_precision"] = problem.spec.training.precision
    if _fsdp(s) and not _ulysses(s):
        data["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": s.sharded == "parameters",
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": s.recompute[0] == "uniform",
            "fsdp_offload_params": False,
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    degrees = _degrees(problem, s)
    if degrees:
        data["parallelism_config"] = {f"parallelism_config_{name}": value for name, value in degrees.items()}
    return data


def _degrees(problem: Problem, s: Strategy) -> dict[str, Any]:
    """ParallelismConfig's fields; none where replicas without sharding are all there is (DDP)."""
    if _ulysses(s):
        return {
            "dp_replicate_size": 1,
            "dp_shard_size": s.dp,
            "tp_size": 1,
            "cp_size": 1,
            "cp_backend": "torch",
            "sp_size": s.cp,
            "sp_backend": "deepspeed",
            "sp_seq_length": problem.sequence,
            "sp_seq_length_is_variable": False,
            "sp_attn_implementation": "flash_attention_2" if s.flash_attention else "sdpa",
        }
    if not _fsdp(s) and s.tp == 1:
        return {}
    replicate, shard = replicate_and_shard(s)
    degrees = {"dp_replicate_size": replicate, "dp_shard_size": shard, "tp_size": s.tp, "cp_size": s.cp}
    strategy = {"cp_comm_strategy": _STRATEGY[s.cp_gather]} if s.cp > 1 else {}
    return {**degrees, "cp_backend": "torch", "sp_size": 1, "sp_backend": "deepspeed", **strategy}


def _notes(problem: Problem, s: Strategy) -> Iterator[str]:
    yield say(
        "your script gives model, data and AdamW, and a batch of {batch} a device; TRAIN names it",
        batch=plural(s.mbs, "sequence"),
    )
    if s.tp > 1:
        yield say(
            "load the model with its tensor parallelism (from_pretrained(..., tp_size={tp}, tp_plan='auto'))", tp=s.tp
        )
    if s.cp > 1 and not _ulysses(s):
        yield say("run forward and loss inside accelerator.maybe_context_parallel, with SDPA attention")
    if _fsdp(s) and not _ulysses(s):
        yield say(
            "layers are wrapped by the model's own _no_split_modules; else add fsdp_transformer_layer_cls_to_wrap"
        )
    if _fsdp(s) and not _ulysses(s) and s.microbatches(problem.batch) > 1:
        yield say(
            "between microbatches accelerate keeps the whole model's gradients on every device, which the plan does "
            "not count: ask for GradientAccumulationPlugin(num_steps={steps}, sync_each_batch=True), or have "
            "transformers' Trainer do so (accelerator_config, gradient_accumulation_kwargs)",
            steps=s.microbatches(problem.batch),
        )
    if s.recompute[0] == "uniform" and (_ulysses(s) or not _fsdp(s)):
        yield say("the script turns on recomputation: model.gradient_checkpointing_enable()")
    kernel = say("flash_attention_2 or sdpa") if s.flash_attention else "eager"
    yield say("the plan's attention is the model's attn_implementation={kernel}", kernel=kernel)
