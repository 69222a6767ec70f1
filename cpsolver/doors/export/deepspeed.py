"""A plan as a DeepSpeed configuration: the JSON file, the host file and the launch line.

Read in DeepSpeed edaa7221 (2026-08) and run with 0.19.8 of the Python index: runtime/config.py (the batch's three
numbers), runtime/zero/config.py, runtime/pipe/engine.py, runtime/engine.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cpsolver.doors.export.launch import Launch, refuse
from cpsolver.doors.export.parallel_args import shares_checkpoints
from cpsolver.doors.export.shared import hostfile, hosts, mixture_note, unset_switches
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

CONFIG = "ds_config.json"
_OPTIMIZERS = {"adam": "AdamW", "lion": "Lion"}
"""The spec's optimizers that DeepSpeed has, by its own names."""
_SAID: tuple[str, ...] = ("optimizer", "optimizer_offload", "parameter_offload", "expandable_segments")
_SAID += ("distribute_saved_activations", "cpu_checkpointing")
"""Switches of the spec that its file says."""
_TYPE = {2: {"bf16": "bf16", "fp16": "fp16"}, 4: {"bf16": "fp32", "fp16": "fp32"}}
"""DeepSpeed's name for a type of so many bytes, by precision."""


def export(problem: Problem, strategy: Strategy) -> Launch:
    """What DeepSpeed needs to run the plan; raises CannotExpress with every reason why it cannot."""
    refuse(refused(problem, strategy))
    files = {
        CONFIG: json.dumps(ds_config(problem, strategy), indent=2) + "\n",
        "hostfile": hostfile(hosts(problem, strategy)),
        "launch.sh": _LAUNCH.format(config=CONFIG),
    }
    arguments = ("--deepspeed", "--deepspeed_config", CONFIG)
    return Launch("deepspeed", arguments, {}, files, "launch.sh", tuple(_notes(problem, strategy)))


_LAUNCH = """#!/bin/bash
# On the first host: its ranks start on all hosts of the file, in the file's order. train.py is your training script.
deepspeed --hostfile hostfile "${{TRAIN:-train.py}}" --deepspeed --deepspeed_config {config} "$@"
"""


def refused(problem: Problem, s: Strategy) -> Iterator[str]:
    """Settings of the spec that DeepSpeed's JSON does not say; what of the plan it does not, the facts refuse."""
    training = problem.spec.training
    yield from unset_switches(problem, "DeepSpeed", _SAID)
    if training.precision not in ("bf16", "fp16"):
        yield say(
            "DeepSpeed's JSON has no {precision}: training.precision may be bf16 or fp16", precision=training.precision
        )
    if training.optimizer not in _OPTIMIZERS:
        yield say(
            "DeepSpeed has no optimizer {optimizer}: {optimizers}",
            optimizer=training.optimizer,
            optimizers=", ".join(_OPTIMIZERS),
        )
    share = training.optimizer_offload
    if 0 < share < 1 and s.zero_stage != 3:
        yield say(
            "DeepSpeed offloads a part ({share}) of the optimizer with ZeRO-3 only (sharded: parameters): 0 or 1",
            share=share,
        )


def ds_config(problem: Problem, s: Strategy) -> dict[str, Any]:
    """The plan as DeepSpeed's JSON; what is left out follows DeepSpeed's defaults."""
    precision, stack = problem.spec.training.precision, problem.stack
    config: dict[str, Any] = {}
    if not _automatic_tensor(s):
        config["train_batch_size"] = problem.batch
    config["train_micro_batch_size_per_gpu"] = s.mbs
    config["gradient_accumulation_steps"] = s.microbatches(problem.batch)
    config[precision] = {"enabled": True}
    config["communication_data_type"] = _type(stack.gradient_reduce_bytes, precision)
    if s.zero_stage:
        config["data_types"] = {"grad_accum_dtype": _type(stack.gradient_bytes, precision)}
    config["zero_optimization"] = _zero(problem, s)
    if s.cp > 1:
        config["sequence_parallel_size"] = s.cp
        if s.tp == 1:
            config["data_parallel_size"] = s.dp
    if _automatic_tensor(s):
        config["tensor_parallel"] = {"autotp_size": s.tp}
    interval = s.recompute_layers[0] if s.recompute[0] == "uniform" else 0
    if interval:
        config["activation_checkpointing"] = {
            "partition_activations": shares_checkpoints(problem, s),
            "cpu_checkpointing": problem.spec.training.cpu_checkpointing,
            "number_checkpoints": -(-s.layers[0] // interval),
        }
    if s.pp > 1:
        config["pipeline"] = {"activation_checkpoint_interval": interval}
    return config


def _type(count: float, precision: str) -> str:
    """DeepSpeed's name for the type of a gradient of so many bytes: 16 bits where it has not fp32's four."""
    return _TYPE[4 if count >= 4 else 2][precision]


def _automatic_tensor(s: Strategy) -> bool:
    """Tensor parallelism is DeepSpeed's own: with a pipeline or Ulysses it is the model's."""
    return s.tp > 1 and s.pp == 1 and s.cp == 1


def _zero(problem: Problem, s: Strategy) -> dict[str, Any]:
    stack, share = problem.stack, problem.spec.training.optimizer_offload
    hidden = stack.sharding_overlap if s.zero_stage == 3 else stack.gradient_overlap
    config: dict[str, Any] = {"stage": s.zero_stage}
    if s.zero_stage:
        config |= {"overlap_comm": hidden > 0, "contiguous_gradients": True, "reduce_scatter": True}
    if share > 0:
        part = {"ratio": share} if share < 1 else {}
        config["offload_optimizer"] = {"device": "cpu", "pin_memory": True, **part}
    if problem.spec.training.parameter_offload:
        config["offload_param"] = {"device": "cpu", "pin_memory": True}
    return config


def _notes(problem: Problem, s: Strategy) -> Iterator[str]:
    training, stack = problem.spec.training, problem.stack
    yield say(
        "your script gives the model, data and optimizer ({optimizers}); TRAIN names it",
        optimizers=_OPTIMIZERS[training.optimizer],
    )
    if s.pp > 1:
        yield say(
            "build PipelineModule(num_stages={pp}, partition_method='type:<class of a layer>'), "
            "which gives each stage its {layers} layers; the JSON cannot say it, and the default "
            "balances parameters",
            pp=s.pp,
            layers=s.layers[0],
        )
    if _automatic_tensor(s):
        yield say(
            "tensor parallelism is AutoTP's; train_batch_size is left out, as DeepSpeed counts all "
            "ranks there and will name {batch} for the {all} sequences of a step",
            batch=problem.batch * s.tp,
            all=problem.batch,
        )
        if s.zero_stage == 3:
            # deepspeed/runtime/engine.py, _configure_tensor_parallel_states: an assertion until 2026-08-03 (eec237ee8)
            yield say("AutoTP with ZeRO-3 needs DeepSpeed 0.19.4 or later: those before end with an assertion")
    elif s.tp > 1:
        yield say(
            "tensor parallelism ({tp}) is the model's own, by an mpu whose data-parallel size is {dp}", tp=s.tp, dp=s.dp
        )
    if s.cp > 1:
        yield say("the model's attention is wrapped in DistributedAttention (Ulysses, {cp} ranks)", cp=s.cp)
    if s.recompute[0] == "uniform" and s.pp == 1:
        yield say(
            "the model checkpoints its layers itself, {layers} at a time (deepspeed.checkpointing.checkpoint)",
            layers=s.recompute_layers[0],
        )
    if s.zero_stage in (1, 2) and stack.parameter_overlap > 0:
        yield say(
            "stack {name} hides the gathering of weights under the forward pass, which ZeRO-1 and 2 do not",
            name=stack.name,
        )
    if not s.zero_stage and stack.gradient_bytes >= 4:
        yield say(
            "without ZeRO DeepSpeed keeps gradients in the model's type; the plan's memory counts four bytes each"
        )
    yield say("flash attention is the model's, and must be {state}", state=say("on" if s.flash_attention else "off"))
    yield from mixture_note(s)
