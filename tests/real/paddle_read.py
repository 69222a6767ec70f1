"""PaddleFormers' own arguments and PaddlePaddle's order of ranks on exported files, from stdin (JSON: {config, world}).

Run as a script in an interpreter that has paddle and paddleformers on its path, on a machine without accelerators;
prints a JSON list of what they made of each, or the error. Packages that its modules import and no argument needs are
empty where they are not installed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

ABSENT = (
    "paddlefleet",
    "visualdl",
    "aistudio_sdk",
    "librosa",
    "paddlecodec",
    "fast_dataindex",
    "modelscope",
    "sklearn",
)
READ = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("sharding_parallel_size", "data_parallel_size", "expert_model_parallel_size", "sequence_parallel"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "per_device_train_batch_size"),
    *("gradient_accumulation_steps", "global_batch_size", "bf16", "fp16", "amp_master_grad", "fp16_opt_level"),
    *("num_nextn_predict_layers", "use_expert_parallel", "pp_sharding_comm_overlap", "stage1_overlap"),
)
USERS = {"model_name_or_path": "model", "dataset_type": "pretrain", "input_dir": "1.0 data", "output_dir": "out"}
GROUPS = {"tp": "model", "dp": "sharding", "pp": "pipe"}
"""Our names of groups -> those of PaddlePaddle's axes."""
AXES = {"dp": "data", "pp": "pipe", "sharding": "sharding", "sep": "sep", "mp": "model"}
"""Names in an order of axes -> those in the topology (fleet/fleet.py, _init_hybrid_parallel_env)."""


def groups_of(strategy: Any) -> dict[str, list[list[int]]]:
    """The groups of ranks that PaddlePaddle makes of the strategy."""
    from paddle.distributed.fleet.base.topology import CommunicateTopology

    told = strategy.hybrid_configs
    axes = [name for name in strategy.hybrid_parallel_order if name in AXES]
    topology = CommunicateTopology([AXES[name] for name in axes], [max(told[f"{name}_degree"], 1) for name in axes])
    return {kind: topology.get_comm_list(axis) for kind, axis in GROUPS.items()}


def read(case: dict[str, Any]) -> dict[str, Any]:
    """What PaddleFormers makes of one file."""
    from paddle.distributed import fleet
    from paddleformers.cli.hparams import get_train_args

    started: list[Any] = []

    def start(is_collective: bool, strategy: Any) -> None:
        started.append(strategy)
        fleet.fleet._user_defined_strategy = strategy

    size = mock.patch("paddle.distributed.get_world_size", return_value=case["world"])
    with size, mock.patch("paddle.distributed.fleet.init", start):
        model, data, *_, training = get_train_args({**USERS, **case["config"]})
    found = {name: getattr(training, name) for name in READ}
    found["sharding"] = [str(option.value) for option in training.sharding]
    found |= {"max_seq_len": data.max_seq_len, "attention": model._attn_implementation, "stage": model.stage}
    return found | ({"groups": groups_of(started[0])} if started else {})


def main() -> None:
    """Answer stdin's cases."""
    sys.path.insert(0, str(Path(__file__).parent))
    from absent import lend
    from answering import answer

    with mock.patch.dict(os.environ, {"PADDLE_RANK_IN_NODE": "0"}):
        answer(lambda: lend("paddleformers", ABSENT), read)


if __name__ == "__main__":
    main()
