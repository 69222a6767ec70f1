"""MindFormers: a plan as the YAML file that run_mindformer.py takes, and a script that starts it on every node.

Read and run with 2.1.0 of the Python index on MindSpore 2.10.0: modules/transformer/transformer.py (parallel_config),
parallel_core/training_graph/transformer/utils.py (layers and recomputation by stage), trainer/base_trainer.py (batch).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cpsolver.doors.export.launch import Launch, refuse
from cpsolver.doors.export.parallel_args import is_even, stage_chunks
from cpsolver.doors.export.script import nodes_file
from cpsolver.doors.export.shared import unset_switches, yaml_text
from cpsolver.inputs.errors import one_line
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

CONFIG = "plan.yaml"
_COLUMNS = 4
"""Columns of the data set: tokens, labels, mask of the loss, positions."""
_TYPES = {"bf16": "bfloat16", "fp16": "float16"}


def export(problem: Problem, strategy: Strategy) -> Launch:
    """What MindFormers needs to run the plan; raises CannotExpress with every reason why it cannot."""
    refuse(unset_switches(problem, "MindFormers", ("optimizer",)))
    name = one_line(problem.model.name)
    header = f"{name} on {strategy.devices} devices, written by apss-cp export. Fill in the folders."
    files = {
        CONFIG: yaml_text(header, config(problem, strategy)),
        "train.sh": _script(problem, strategy),
        "nodes.txt": nodes_file(problem, strategy),
    }
    arguments = ("--config", CONFIG, "--run_mode", "train")
    return Launch("mindformers", arguments, {}, files, "train.sh", tuple(_notes(problem)), "train.sh")


def config(problem: Problem, s: Strategy) -> dict[str, Any]:
    """The plan, and around it what a pretraining in graph mode has; the model's shape is in `pretrained_model_dir`."""
    count = s.microbatches(problem.batch)
    return {
        "run_mode": "train",
        "use_parallel": True,
        "use_legacy": False,
        "pretrained_model_dir": "/path/to/model",
        "output_dir": "./output",
        "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": "plan"},
        "runner_config": {
            "epochs": 1,
            "batch_size": s.mbs,
            "sink_mode": True,
            "sink_size": 1,
            "gradient_accumulation_steps": count if s.pp == 1 else 1,
        },
        "micro_batch_interleave_num": 1,
        "parallel_config": parallel_config(problem, s),
        "parallel": _parallel(problem, s),
        "recompute_config": {"recompute": recomputed(s), "select_recompute": False},
        "model": {"model_config": _model(problem, s)},
        "context": {"mode": 0, "device_target": "Ascend", "jit_config": {"jit_level": "O0"}},
        **_data(problem),
        **_OPTIMIZER,
    }


def parallel_config(problem: Problem, s: Strategy) -> dict[str, Any]:
    """Degrees: fields of TransformerOpParallelConfig."""
    context = {"context_parallel_algo": "ulysses_cp"} if s.cp > 1 else {}
    return {
        "data_parallel": s.dp,
        "model_parallel": s.tp,
        "pipeline_stage": s.pp,
        "context_parallel": s.cp,
        **context,
        **({"expert_parallel": s.ep} if problem.model.moe else {}),
        "micro_batch_num": s.microbatches(problem.batch) if s.pp > 1 else 1,
        "use_seq_parallel": s.sequence_parallel,
        "vocab_emb_dp": False,
    }


def _parallel(problem: Problem, s: Strategy) -> dict[str, Any]:
    pipeline = {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"}
    return {
        "parallel_mode": 1,
        "gradients_mean": False,
        "enable_alltoall": problem.model.moe is not None,
        "full_batch": False,
        "dataset_strategy": [[s.dp, 1]] * _COLUMNS,
        "enable_parallel_optimizer": s.distributed_optimizer,
        **({"pipeline_config": pipeline} if s.vpp > 1 else {}),
    }


def offset(s: Strategy) -> int | list[Any]:
    """Layers of every stage beyond an even share: of every chunk a list of the stages, where there are several."""
    if is_even(s):
        return 0
    share = sum(s.layers) // (s.pp * s.vpp)
    chunks = [[layers - share for layers in chunk] for chunk in zip(*stage_chunks(s), strict=True)]
    return chunks if s.vpp > 1 else chunks[0]


def recomputed(s: Strategy) -> bool | list[Any]:
    """All layers or none, or how many of the first of every stage, or of each of its chunks."""
    kinds = set(s.recompute)
    if kinds <= {"none"} or kinds == {"uniform"}:
        return kinds == {"uniform"}
    amounts = [n if kind == "block" else 0 for kind, n in zip(s.recompute, s.recompute_layers, strict=True)]
    return amounts if s.vpp == 1 else [amounts] * s.vpp


def _model(problem: Problem, s: Strategy) -> dict[str, Any]:
    training, model = problem.spec.training, problem.model
    dropout = 0.1 if training.dropout else 0.0
    narrow = _TYPES[training.precision]
    return {
        "offset": offset(s),
        "pp_interleave_num": s.vpp,
        "seq_length": problem.sequence,
        "use_flash_attention": s.flash_attention,
        "compute_dtype": narrow,
        # gradients are added up in clones of the weights, and so have their type
        "params_dtype": "float32" if problem.stack.gradient_bytes == 4 else narrow,
        "hidden_dropout": dropout,
        "attention_dropout": dropout,
        **({"num_nextn_predict_layers": model.mtp_layers} if model.mtp_layers else {}),
        **({"moe_grouped_gemm": True} if model.moe else {}),
    }


def _data(problem: Problem) -> dict[str, Any]:
    """A data set of Megatron's format, whose path is the user's."""
    columns = ["input_ids", "labels", "loss_mask", "position_ids"]
    corpus = {
        "seed": 1234,
        "split": "1, 0, 0",
        "seq_length": problem.sequence,
        "create_attention_mask": False,
        "eod": 1,
        "pad": -1,
        "data_path": ["1", "/path/to/data"],
    }
    loader = {
        "type": "BlendedMegatronDatasetDataLoader",
        "datasets_type": "GPTDataset",
        "sizes": [problem.batch * 10, 0, 0],
        "config": corpus,
    }
    dataset = {"data_loader": loader, "input_columns": columns, "construct_args_key": columns, "drop_remainder": True}
    task = {"type": "CausalLanguageModelDataset", "dataset_config": dataset}
    return {"train_dataset": dataset, "train_dataset_task": task}


_OPTIMIZER: dict[str, Any] = {
    "optimizer": {"type": "AdamW"},
    "lr_schedule": {"type": "ConstantWarmUpLR", "learning_rate": 0.0001, "warmup_steps": 0, "total_steps": -1},
    "callbacks": [{"type": "MFLossMonitor"}],
    "runner_wrapper": {"type": "MFTrainOneStepCell", "scale_sense": 1.0, "use_clip_grad": True},
}


def _script(problem: Problem, s: Strategy) -> str:
    node = min(problem.node, s.devices)
    several = s.devices > node
    return _SCRIPT.format(
        title=f"{one_line(problem.model.name)} on {s.devices} devices",
        devices=s.devices,
        node=node,
        rank="${NODE_RANK:?the number of this node, from 0 (nodes.txt)}" if several else "0",
        address="${MASTER_ADDR:?address of node 0}" if several else "127.0.0.1",
        config=CONFIG,
    )


_SCRIPT = """#!/usr/bin/env bash
# {title}, written by apss-cp export. Run it on every node with the
# NODE_RANK that nodes.txt gives it, and with the address of node 0 as MASTER_ADDR.
set -euo pipefail
CONFIG="$(cd "$(dirname "$0")" && pwd)/{config}"
exec msrun --worker_num={devices} --local_worker_num={node} --node_rank="{rank}" \\
  --master_addr="{address}" --master_port="${{MASTER_PORT:-8118}}" --log_dir="${{LOG_DIR:-msrun_log}}" --join=True \\
  "${{SCRIPT:-run_mindformer.py}}" --config "$CONFIG" --run_mode train "$@"
"""


def _notes(problem: Problem) -> Iterator[str]:
    yield say(
        "plan.yaml's pretrained_model_dir and data_path are folders of yours; the model is that of its config.json"
    )
    yield say(
        "tokenizer, learning rate, checkpoints and the device's memory (context: max_device_memory) are yours too"
    )
    if problem.stack.name not in ("mindformers", "mindformers-half"):
        yield say(
            "MindFormers holds weights and gradients in one type, which stack {name} may not count",
            name=problem.stack.name,
        )
