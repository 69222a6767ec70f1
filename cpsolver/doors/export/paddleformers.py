"""PaddleFormers: a plan as the JSON file that `paddleformers-cli train` takes, and a script for every node.

Read and run with 1.2.0 of the Python index on PaddlePaddle 3.3.1: trainer/training_args.py (degrees, order of ranks),
cli/hparams (names), cli/cli.py (how nodes start), transformers/configuration_utils.py (LlmMetaConfig).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cpsolver.doors.export.launch import Launch, refuse
from cpsolver.doors.export.script import node_notes, nodes_file
from cpsolver.doors.export.shared import unset_switches
from cpsolver.inputs.errors import one_line
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Sharded, Strategy
from cpsolver.problem.problem import Problem

CONFIG = "plan.json"
_STAGES: dict[Sharded, str] = {"optimizer": "stage1", "gradients": "stage2", "parameters": "stage3"}


def export(problem: Problem, strategy: Strategy) -> Launch:
    """What PaddleFormers needs to run the plan; raises CannotExpress with every reason why it cannot."""
    refuse(unset_switches(problem, "PaddleFormers", ("optimizer",)))
    files = {
        CONFIG: json.dumps(config(problem, strategy), indent=2) + "\n",
        "train.sh": _script(problem, strategy),
        "nodes.txt": nodes_file(problem, strategy),
    }
    notes = tuple(_notes(problem, strategy))
    return Launch("paddleformers", ("train", CONFIG), {}, files, "train.sh", notes, "train.sh")


def config(problem: Problem, s: Strategy) -> dict[str, Any]:
    """The plan's arguments; what is not among them follows PaddleFormers' defaults."""
    return {
        "stage": "PT",
        "fine_tuning": "full",
        "do_train": True,
        "max_seq_len": problem.sequence,
        "per_device_train_batch_size": s.mbs,
        "gradient_accumulation_steps": s.microbatches(problem.batch),
        "tensor_model_parallel_size": s.tp,
        "sequence_parallel": s.sequence_parallel,
        "pipeline_model_parallel_size": s.pp,
        "virtual_pipeline_model_parallel_size": s.vpp,
        # dp, pp, sharding, tp from the slowest to the fastest: all replicas of a sharded plan are in sharding
        "hybrid_parallel_topo_order": "pp_first",
        **_sharding(problem, s),
        **_experts(problem, s),
        **_precision(problem),
        **_overlaps(problem, s),
        **_recomputation(s),
        "_attn_implementation": "flashmask" if s.flash_attention else "eager",
        "use_attn_mask_startend_row_indices": s.flash_attention,
        "num_nextn_predict_layers": problem.model.mtp_layers,
    }


def _sharding(problem: Problem, s: Strategy) -> dict[str, Any]:
    if not s.distributed_optimizer:
        return {"sharding": "", "sharding_parallel_size": 1}
    # split_param, on by default, is of stage1 with gradients in fp32
    pieces = s.sharded == "optimizer" and problem.stack.gradient_bytes == 4
    return {"sharding": _STAGES[s.sharded], "sharding_parallel_size": s.dp, "split_param": pieces}


def _experts(problem: Problem, s: Strategy) -> dict[str, Any]:
    if problem.model.moe is None:
        return {}
    return {"use_expert_parallel": s.ep > 1, "expert_model_parallel_size": s.ep}


def _precision(problem: Problem) -> dict[str, Any]:
    """O2: weights and gradients in 16 bits, or gradients in fp32 with amp_master_grad."""
    training = problem.spec.training
    dropout = 0.1 if training.dropout else 0.0
    return {
        "compute_type": training.precision,
        "fp16_opt_level": "O2",
        "amp_master_grad": problem.stack.gradient_bytes == 4,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }


def _overlaps(problem: Problem, s: Strategy) -> dict[str, Any]:
    """What the stack counts on: gradients under the backward pass, of a pipeline only where they are in fp32."""
    hidden = problem.stack.gradient_overlap > 0 and s.distributed_optimizer and s.dp > 1 and s.sharded == "optimizer"
    in_fp32 = problem.stack.gradient_bytes == 4
    return {
        "pp_sharding_comm_overlap": hidden and s.pp > 1 and in_fp32,
        "stage1_overlap": hidden and s.pp == 1,
        "overlap_p2p_comm": s.vpp > 1 and problem.stack.pipeline_overlap_interleaved > 0,
    }


def _recomputation(s: Strategy) -> dict[str, Any]:
    if s.recompute[0] == "none":
        return {}
    return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def _script(problem: Problem, s: Strategy) -> str:
    node = min(problem.node, s.devices)
    several = s.devices > node
    return _SCRIPT.format(
        title=f"{one_line(problem.model.name)} on {s.devices} devices",
        nodes=s.devices // node,
        rank="${NODE_RANK:?the number of this node, from 0 (nodes.txt)}" if several else "0",
        address="${MASTER_ADDR:?address of node 0}" if several else "127.0.0.1",
        config=CONFIG,
    )


_SCRIPT = """#!/usr/bin/env bash
# {title}, written by apss-cp export. Run it on every node with the
# NODE_RANK that nodes.txt gives it, and with the address of node 0 as MASTER_ADDR.
set -euo pipefail
cd "$(dirname "$0")"
export NNODES=${{NNODES:-{nodes}}}
export RANK={rank}
export MASTER_ADDR={address}
export MASTER_PORT=${{MASTER_PORT:-8080}}
# The model, data, learning rate and checkpoints are yours; more key=value may follow the script's name.
DATA_ARGS=(
  model_name_or_path="${{MODEL_PATH:?a folder with the config.json of the model}}"
  dataset_type=pretrain
  input_dir="${{DATA_PATH:?weight and prefix of preprocessed data}}"
  output_dir="${{CHECKPOINT_PATH:-./checkpoints}}"
  max_steps=10
  logging_steps=1
)
exec paddleformers-cli train {config} "${{DATA_ARGS[@]}}" "$@"
"""


def _notes(problem: Problem, s: Strategy) -> Iterator[str]:
    yield say(
        "the model is that of MODEL_PATH: its config.json decides which layers are built, and how they are recomputed"
    )
    yield say("data, learning rate and checkpoints are not the plan's: see DATA_ARGS in train.sh")
    if problem.stack.gradient_overlap > 0 and s.pp > 1 and problem.stack.gradient_bytes != 4:
        yield say("PaddleFormers overlaps gradients of a pipeline only in fp32 (amp_master_grad): here it does not")
    yield from node_notes(problem, s)
