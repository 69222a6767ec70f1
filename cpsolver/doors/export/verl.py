"""verl's Megatron actor: a plan of its update, as Hydra's overrides of actor_rollout_ref.actor and a script for Ray.

Read and run with 0.9.1 of the Python index: workers/config/engine.py (degrees), utils/megatron/optimizer.py,
workers/engine/megatron/transformer_impl.py (what overrides reach), utils/megatron_utils.py (multi-token prediction).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from cpsolver.doors.export import parallel_args, training_args
from cpsolver.doors.export.bridge import fields, hydra_value
from cpsolver.doors.export.dialect import MEGATRON_LM, Flag
from cpsolver.doors.export.launch import Launch
from cpsolver.inputs.errors import one_line
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

DIALECT = replace(
    MEGATRON_LM,
    name="verl",
    source="verl 0.9.1",
    switches=(),
    activation_offload=False,
    quick_geglu=False,
    matrices=False,
)
_ACTOR = "actor_rollout_ref.actor"
_ENGINE = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel"),
)
"""Fields of McoreEngineConfig of its own, by Megatron-Core's names."""
_PARTS = {
    "train.micro_batch_size": f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    "train.global_batch_size": f"{_ACTOR}.ppo_mini_batch_size",
    "ddp.use_distributed_optimizer": f"{_ACTOR}.megatron.use_distributed_optimizer",
}
"""Fields that have a key of their own elsewhere."""
_OPTIMIZER = ("optimizer", "use_precision_aware_optimizer", "exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype")
_LEFT_OUT = ("ddp.overlap_param_gather",)
"""Parameters are read between two updates, for the rollouts: they have to be gathered by then."""
_TYPES = {"torch.bfloat16": "bf16"}


def export(problem: Problem, strategy: Strategy) -> Launch:
    """What verl's Megatron actor needs to run the plan in its update; raises CannotExpress."""
    training_args.check_switches(problem.spec.training, DIALECT.name, DIALECT.switches)
    overrides = dict(_overrides(problem, strategy))
    arguments = tuple(f"{name}={hydra_value(value)}" for name, value in overrides.items())
    files = {"train.sh": _script(problem, strategy, arguments)}
    return Launch(DIALECT.name, arguments, {}, files, "train.sh", tuple(_notes(problem, strategy)))


def _flags(problem: Problem, s: Strategy) -> Iterator[Flag]:
    """Megatron-LM's options of the plan alone: the model comes from its checkpoint."""
    yield from parallel_args.degree_flags(problem, s)
    yield from parallel_args.context_flags(s)
    yield from parallel_args.schedule_flags(problem, s)
    yield from parallel_args.sharding_flags(s, DIALECT)
    yield from training_args.gradient_flags(problem, s)
    yield from training_args.overlap_flags(problem, s)
    yield from parallel_args.batch_flags(problem, s)
    yield from training_args.kernel_flags(problem, s)
    yield from training_args.optimizer_flags(problem.spec.training, DIALECT)
    yield from parallel_args.recompute_flags(problem, s)
    yield from parallel_args.layer_flags(problem, s, DIALECT)


def _overrides(problem: Problem, s: Strategy) -> Iterator[tuple[str, Any]]:
    """Hydra's overrides, "++" before keys that its YAML need not have."""
    yield f"{_ACTOR}.use_dynamic_bsz", False
    yield f"{_ACTOR}.megatron.use_distributed_optimizer", s.distributed_optimizer
    yield f"{_ACTOR}.megatron.sequence_parallel", s.sequence_parallel
    for name, value in fields(_flags(problem, s)):
        if name not in _LEFT_OUT and (name, value) != ("model.moe_token_dispatcher_type", "allgather"):
            yield _place(name), _TYPES.get(str(value), value)
    backend = training_args.attention_backend(problem, s)
    yield f"++{_ACTOR}.megatron.override_transformer_config.attention_backend", backend
    in_fp32 = problem.stack.gradient_reduce_bytes != 2
    yield f"++{_ACTOR}.megatron.override_ddp_config.grad_reduce_in_fp32", in_fp32
    if problem.model.mtp_layers:
        yield "actor_rollout_ref.model.mtp.enable", True
        yield "actor_rollout_ref.model.mtp.enable_train", True
    node = min(problem.node, s.devices)
    yield "trainer.nnodes", s.devices // node
    yield "trainer.n_gpus_per_node", node


def _place(name: str) -> str:
    """The key of one of Megatron-Bridge's fields."""
    part, own = name.split(".", 1)
    if name in _PARTS:
        return _PARTS[name]
    if part == "model" and own in _ENGINE:
        return f"{_ACTOR}.megatron.{own}"
    if part == "optimizer" and own in _OPTIMIZER:
        return f"{_ACTOR}.optim.{own}"
    owner = {"model": "megatron.override_transformer_config", "ddp": "megatron.override_ddp_config"}
    return f"++{_ACTOR}.{owner.get(part, 'optim.override_optimizer_config')}.{own}"


def _script(problem: Problem, s: Strategy, arguments: Iterable[str]) -> str:
    title = f"{one_line(problem.model.name)} on {s.devices} devices"
    plan = "\n".join(f"  {shlex.quote(argument)}" for argument in arguments)
    return _SCRIPT.format(title=title, plan=plan, batch=problem.batch, sequence=problem.sequence, mbs=s.mbs)


_SCRIPT = """#!/usr/bin/env bash
# {title}, written by apss-cp export. Run it once, on the head of a Ray cluster of all nodes:
# MODEL_PATH=... TRAIN_FILES=... VAL_FILES=... ./train.sh
set -euo pipefail
PLAN_ARGS=(
{plan}
)
# The model, data, rollouts and the algorithm are yours. An update takes ppo_mini_batch_size x rollout.n sequences.
SEQUENCE={sequence}
PROMPT_LENGTH=${{PROMPT_LENGTH:-$((SEQUENCE / 2))}}
DATA_ARGS=(
  actor_rollout_ref.model.path="${{MODEL_PATH:?a Hugging Face checkpoint}}"
  data.train_files="${{TRAIN_FILES:?}}"
  data.val_files="${{VAL_FILES:?}}"
  data.train_batch_size={batch}
  data.max_prompt_length="$PROMPT_LENGTH"
  data.max_response_length="$((SEQUENCE - PROMPT_LENGTH))"
  algorithm.adv_estimator=grpo
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.n=1
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={mbs}
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={mbs}
)
exec python3 -m verl.trainer.main_ppo model_engine=megatron "${{PLAN_ARGS[@]}}" "${{DATA_ARGS[@]}}" "$@"
"""


def _notes(problem: Problem, s: Strategy) -> Iterator[str]:
    yield say(
        "the plan is of the actor's update alone: rollouts, log probabilities, a critic take time and memory besides"
    )
    yield say(
        "an update takes ppo_mini_batch_size x rollout.n sequences: with n rollouts divide ppo_mini_batch_size by n"
    )
    yield say("the plan counts sequences of full length: shorter ones are packed (use_remove_padding), and take less")
    yield say("train.sh's DATA_ARGS (algorithm, rollouts, lengths of prompt and response) are a start: they are yours")
    if s.distributed_optimizer and problem.stack.parameter_overlap > 0:
        yield say(
            "stack {name} gathers parameters under the forward pass; here that is left off", name=problem.stack.name
        )
    if problem.stack.tensor_overlap > 0 and s.sequence_parallel:
        yield say(
            "stack {name} hides tensor parallelism's communication; verl sets up no buffers for that",
            name=problem.stack.name,
        )
    yield from training_args.overlap_notes(problem, s)
