"""Exported files read by accelerate 1.15 itself: its launcher, its FSDP plugin, its ParallelismConfig."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.export import accelerate
from tests.support.framework_plans import CASES, plan, written

pytest.importorskip("torch")


def accelerate_env(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The arguments that `accelerate launch` makes of the file, with the environment of its processes set."""
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    started: list[Any] = []
    for starter in ("deepspeed_launcher", "multi_gpu_launcher"):
        monkeypatch.setattr(launch, starter, started.append)
    file = written(accelerate.export(*plan("accelerate", name)), tmp_path)
    monkeypatch.chdir(tmp_path)
    line = ["--config_file", str(file), "--machine_rank", "0", "--main_process_ip", "host0", "train.py"]
    launch.launch_command(launch.launch_command_parser().parse_args(line))
    (arguments,) = started
    deep = arguments.use_deepspeed
    environment = prepare_deepspeed_cmd_env(arguments)[1] if deep else prepare_multi_gpu_env(arguments)
    for key, value in environment.items():
        monkeypatch.setenv(key, str(value))
    return arguments


@pytest.mark.parametrize("name", list(CASES["accelerate"]))
def test_accelerate_reads_its_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate")
    from accelerate import ParallelismConfig
    from accelerate.utils.dataclasses import FullyShardedDataParallelPlugin

    problem, s = plan("accelerate", name)
    arguments = accelerate_env(name, tmp_path, monkeypatch)
    assert (arguments.num_processes, arguments.num_machines) == (s.devices, s.devices // problem.node)
    assert arguments.use_deepspeed == (s.ulysses > 1)
    assert arguments.mixed_precision == ("no" if arguments.use_deepspeed else "bf16")
    assert arguments.use_fsdp == (not arguments.use_deepspeed and s.distributed_optimizer)
    if arguments.use_fsdp:
        plugin = FullyShardedDataParallelPlugin()
        assert plugin.fsdp_version == 2
        assert plugin.reshard_after_forward == (s.sharded == "parameters")
        assert plugin.activation_checkpointing == ("uniform" in s.recompute)
    if not arguments.use_parallelism_config:
        assert s.tp == s.cp == 1
        return
    if s.tp > 1 and importlib.util.find_spec("transformers") is None:
        monkeypatch.setattr("accelerate.parallelism_config.TorchTensorParallelConfig", lambda: None)
    found = ParallelismConfig()  # from the environment, as Accelerator makes it
    assert found.total_size == s.devices
    assert (found.tp_size, found.cp_size, found.sp_size) == (s.tp, s.cp // s.ulysses, s.ulysses)
    assert found.data_parallel_size == s.dp
    assert found.dp_replicate_size == (s.dp * s.cp // s.sharding_group if s.sharding_group else 1)
    if found.cp_enabled:
        assert found.cp_handler.cp_comm_strategy == ("allgather" if s.cp_gather else "alltoall")


def test_accelerate_hands_ulysses_to_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    from accelerate.utils import DeepSpeedPlugin

    problem, s = plan("accelerate", "ulysses")
    accelerate_env("ulysses", tmp_path, monkeypatch)
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO3_INIT", "false")  # that needs transformers
    plugin = DeepSpeedPlugin()
    assert plugin.zero_stage == s.zero_stage
    assert plugin.gradient_accumulation_steps == s.microbatches(problem.batch)
    assert plugin.deepspeed_config["sequence_parallel_size"] == s.ulysses
    monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", "deepspeed_config_file,mixed_precision")
    with pytest.raises(ValueError, match="When using `deepspeed_config_file`"):
        DeepSpeedPlugin()
