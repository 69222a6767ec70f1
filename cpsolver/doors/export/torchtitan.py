"""A plan as a configuration of torchtitan: a Python module for release 0.3, a TOML file for 0.2.

Release 0.3 has no files of its own: it is started with the name of a Python function that makes the configuration, and
`plan` of the module written here is one. Read and run with 0.3.0 and 0.2.2 of the Python index: config/configs.py,
config/manager.py, trainer.py (batch, CUDA graphs), distributed/fsdp.py, distributed/pipeline_parallel.py;
PyTorch 2.13, distributed/pipelining/schedules.py (microbatches).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cpsolver.doors.export.launch import Launch, refuse
from cpsolver.doors.export.shared import hosts, layers_by_part, mixture_note, replicate_and_shard, unset_switches
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

MODULE = "apss_plan"
TOML = "torchtitan-0.2.toml"
RELEASE = "0.3"
KNOWN: Mapping[str, tuple[str, str, str]] = {
    "llama3.1-8b": ("llama3", "llama3_8b", "8B"),
    "llama3.1-70b": ("llama3", "llama3_70b", "70B"),
    "llama3.1-405b": ("llama3", "", "405B"),
    "qwen3-14b": ("qwen3", "qwen3_14b", "14B"),
    "qwen3-32b": ("qwen3", "qwen3_32b", "32B"),
    "qwen3-30b-a3b": ("qwen3", "qwen3_30b_a3b", "30B-A3B"),
    "deepseek-v3-671b": ("deepseek_v3", "deepseek_v3_671b", "671B"),
    "gpt-oss-20b": ("gpt_oss", "gpt_oss_20b", "20b"),
    "gpt-oss-120b": ("gpt_oss", "gpt_oss_120b", "120b"),
}
"""Catalogue's name -> torchtitan's model, its configuration's function in 0.3.0 and its flavor in 0.2.2.

llama3_405b of 0.3.0 makes its linear layers float8 ones, which a plan in bf16 does not mean.
"""


def export(problem: Problem, strategy: Strategy) -> Launch:
    """What torchtitan needs to run the plan; raises CannotExpress with every reason why it cannot."""
    refuse(_refused(problem, strategy))
    listed = hosts(problem, strategy)
    files = {f"{MODULE}.py": _module(problem, strategy)}
    older = _why_no_toml(strategy)
    if older is None:
        files[TOML] = toml(problem, strategy)
    files["launch.sh"] = _LAUNCH.format(nodes=len(listed), slots=listed[0].slots, module=MODULE)
    arguments = ("--module", MODULE, "--config", "plan")
    notes = tuple(_notes(problem, strategy, older))
    return Launch("torchtitan", arguments, {}, files, f"{MODULE}.py", notes, "launch.sh")


_LAUNCH = """#!/bin/bash
# On every host, with its place in the plan's order: NODE_RANK=0 MASTER_ADDR=host0 bash launch.sh
: "${{NODE_RANK:?place of this host, from 0}}" "${{MASTER_ADDR:?name of the first host}}"
export PYTHONPATH="$(cd "$(dirname "$0")" && pwd):$PYTHONPATH"
torchrun --nnodes {nodes} --nproc_per_node {slots} --node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR" \\
  --master_port "${{MASTER_PORT:-29500}}" -m torchtitan.train --module {module} --config plan "$@"
"""


_1F1B = ("1F1B", "Interleaved1F1B")
_SCHEDULES = {"zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV", "breadth_first": "LoopedBFS"}


def _refused(problem: Problem, s: Strategy) -> Iterator[str]:
    """What neither the launcher's facts nor a rule refuses: settings of the spec, and the rounds of the schedule."""
    training = problem.spec.training
    yield from unset_switches(problem, "torchtitan", ("optimizer", "expandable_segments"))
    if training.precision != "bf16":
        why = (
            say("no fp16") if training.precision == "fp16" else say("its converters are the model's, and not exported")
        )
        yield say(
            "torchtitan trains in bf16 here ({why}): training.precision is {precision}",
            why=why,
            precision=training.precision,
        )
    if training.optimizer != "adam":
        yield say(
            "torchtitan's configurations have AdamW: training.optimizer is {optimizer}, and must be adam",
            optimizer=training.optimizer,
        )
    count = s.microbatches(problem.batch)
    rounds = max(1, count // s.pp)
    if s.vpp > 1 and s.schedule == "1f1b" and count % rounds:
        yield say(
            "PyTorch's Interleaved1F1B needs equal rounds: {count} microbatches are no multiple of {rounds}",
            count=count,
            rounds=rounds,
        )


def parallelism(s: Strategy, head: str = "lm_head") -> dict[str, Any]:
    """The section parallelism; `head`: the release's name of the output layer."""
    replicate, shard = replicate_and_shard(s)
    always = s.distributed_optimizer and s.sharded == "parameters"
    section: dict[str, Any] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if always else "never",
        "tensor_parallel_degree": s.tp,
        "context_parallel_degree": s.cp,
        "expert_parallel_degree": s.ep,
        "pipeline_parallel_degree": s.pp,
    }
    if s.pp > 1:
        section["pipeline_parallel_schedule"] = _SCHEDULES.get(s.schedule) or _1F1B[s.vpp > 1]
        section["pipeline_parallel_microbatch_size"] = s.mbs
        section["module_fqns_per_model_part"] = model_parts(s, head)
    return section


def model_parts(s: Strategy, head: str = "lm_head") -> list[list[str]]:
    """The modules of every part of the model, in the order in which a microbatch passes them."""
    parts = [[f"layers.{layer}" for layer in layers] for layers in layers_by_part(s)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", head]
    return parts


def training(problem: Problem, s: Strategy) -> dict[str, Any]:
    """The section training: a pipeline takes all microbatches of a step at once, otherwise gradients accumulate."""
    at_once = s.microbatches(problem.batch) if s.pp > 1 else 1
    return {
        "local_batch_size": s.mbs * at_once,
        "global_batch_size": problem.batch,
        "seq_len": problem.sequence,
        "dtype": "float32",
        "mixed_precision_param": "bfloat16",
        "mixed_precision_reduce": "float32",
        "enable_cpu_offload": False,
    }


_MODULE = '''"""A plan of apss-cp for torchtitan {release}: --module {module} --config plan."""

import importlib

from torchtitan.distributed.activation_checkpoint import {policy}

# module:function that makes the configuration of your model
BASE = "{base}"
LAYERS = {layers}
RECOMPUTE = {recompute}
PARALLELISM = {parallelism}
TRAINING = {training}


def plan():
    """The configuration that BASE makes, with the plan's numbers."""
    if not BASE:
        raise ValueError("set BASE to module:function of your model's configuration, a model of {layers} layers")
    module, name = BASE.split(":")
    config = getattr(importlib.import_module(module), name)()
    found = len(config.model_spec.model.layers)
    if found != LAYERS:
        raise ValueError(f"{{BASE}} has {{found}} layers, and the plan is for {{LAYERS}}")
    for section, values in ((config.parallelism, PARALLELISM), (config.training, TRAINING)):
        for key, value in values.items():
            setattr(section, key, value)
    config.activation_checkpoint = {policy}.Config() if RECOMPUTE else None
    return config
'''


def _module(problem: Problem, s: Strategy) -> str:
    # CUDA graphs are on by default in 0.3, and refuse a pipeline and the usual exchange of tokens with experts.
    graphs = {"disable_cuda_graphs": True} if s.pp > 1 or problem.model.moe else {}
    sequence = {"enable_sequence_parallel": s.sequence_parallel} if s.tp > 1 else {}
    return _MODULE.format(
        release=RELEASE,
        module=MODULE,
        base=base(problem),
        layers=problem.model.layers,
        recompute=s.recompute[0] != "none",
        policy="SelectiveAC" if s.recompute[0] == "selective" else "FullAC",
        parallelism=_literal(parallelism(s) | sequence),
        training=_literal(training(problem, s) | graphs),
    )


def base(problem: Problem) -> str:
    """Where torchtitan 0.3 makes the model's configuration, module:function; empty where it has none for it."""
    model, function, _ = KNOWN.get(problem.model.name, ("", "", ""))
    return f"torchtitan.models.{model}.config_registry:{function}" if function else ""


def _literal(data: Mapping[str, Any]) -> str:
    """Plain data as Python, a key or a part of the model a line."""
    lines = ["{"]
    for key, value in data.items():
        parts = [f"        {part!r}," for part in value] if isinstance(value, list) else []
        lines += [f"    {key!r}: [", *parts, "    ],"] if parts else [f"    {key!r}: {value!r},"]
    return "\n".join([*lines, "}"]).replace("'", '"')


def _checkpointing(s: Strategy) -> dict[str, str]:
    """The section activation_checkpoint of release 0.2."""
    modes = {"uniform": "full", "selective": "selective"}
    mode = {"mode": modes.get(s.recompute[0], "none")}
    return mode | ({"selective_ac_option": "op"} if "selective" in mode.values() else {})


def _why_no_toml(s: Strategy) -> str | None:
    """Why release 0.2 cannot run the plan; None: it can."""
    if s.tp > 1 and not s.sequence_parallel:
        return say("release 0.2 has tensor parallelism with sequence parallelism only")
    if not s.distributed_optimizer and s.dp > 1 and s.devices > s.dp:
        return say("release 0.2 has replicas without shards only where there is no other parallelism")
    return None


def toml(problem: Problem, s: Strategy) -> str:
    """The plan as release 0.2 reads it (JobConfig)."""
    known = KNOWN.get(problem.model.name)
    more: dict[str, Any] = {"context_parallel_rotate_method": "allgather"} if s.cp > 1 else {}
    sections: dict[str, dict[str, Any]] = {
        "model": {"name": known[0] if known else "set-me", "flavor": known[2] if known else "set-me"},
        "training": training(problem, s),
        "parallelism": parallelism(s, "output") | more | {"expert_tensor_parallel_degree": 1},
        "activation_checkpoint": _checkpointing(s),
    }
    lines = ["# A plan of apss-cp for torchtitan 0.2 (--job.config_file); release 0.3 takes the Python module instead."]
    for name, values in sections.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _notes(problem: Problem, s: Strategy, older: str | None) -> Iterator[str]:
    yield say(
        "{module}.py is for release {release} of the Python index, which reads no TOML; main has other names",
        module=MODULE,
        release=RELEASE,
    )
    if older is None:
        yield say("{toml} is for release 0.2: -m torchtitan.train --job.config_file {toml}", toml=TOML)
    else:
        yield say("no TOML file: {older}", older=older)
    if not base(problem):
        yield say(
            "torchtitan has no bf16 configuration of {name}: set BASE in {module}.py to your own",
            name=problem.model.name,
            module=MODULE,
        )
    if not s.distributed_optimizer and s.devices > 1:
        yield say("FSDP without shards keeps weights in fp32 and gathers nothing; the plan's stack may count otherwise")
    if s.v_shaped:
        yield say("a schedule that splits backward passes runs without torch.compile: leave compile off")
    if s.cp > 1:
        yield say("context parallelism needs the model's flex attention, and balances causal work front with back")
    if problem.model.mtp_layers:
        yield say(
            "the plan counts multi-token prediction, which torchtitan's usual configuration of the model leaves out"
        )
    yield say("tokenizer, data set, learning rate and checkpoints are those of the base configuration")
    yield from mixture_note(s)
