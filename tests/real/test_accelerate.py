"""Exported files read by accelerate 1.15 itself: its launcher, its FSDP plugin, its ParallelismConfig."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.memory import layer_bytes
from cpsolver.cost.shard import Shard
from cpsolver.doors.export import accelerate
from cpsolver.profiles.stack import load_stack
from tests.support.framework_plans import CASES, plan, written
from tests.support.problems import model_spec, problem_of, with_stack

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


@pytest.mark.parametrize("autocast", [False, True])
def test_a_layer_of_transformers_keeps_what_the_stack_counts(autocast: bool) -> None:
    """Two layers less one, by what autograd saves; parameters and what all layers share are not of them."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    hidden, ffn, heads, kv_heads, tokens = 256, 896, 8, 2, 64

    def saved(layers: int) -> int:
        sizes = {"hidden_size": hidden, "intermediate_size": ffn, "vocab_size": 100, "num_hidden_layers": layers}
        of_heads = {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
        config = transformers.LlamaConfig(**sizes, **of_heads, attn_implementation="sdpa", use_cache=False)
        model = transformers.LlamaModel(config).to(torch.bfloat16).train()
        own = {each.untyped_storage().data_ptr() for each in model.parameters()}
        found: dict[int, Any] = {}

        def keep(tensor: Any) -> Any:
            found[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no other takes its address
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with hooks, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model(torch.zeros((1, tokens), dtype=torch.long))
        return sum(each.untyped_storage().nbytes() for at, each in found.items() if at not in own)

    llama = model_spec(hidden=hidden, ffn=ffn, heads=heads, kv_heads=kv_heads, norm="rmsnorm", gated_mlp=True)
    problem = problem_of(gpus=1, node=1, model=llama, sequence=tokens)
    problem = with_stack(problem, eager_layers=load_stack("accelerate").eager_layers)
    counted = layer_bytes(problem, Shard.of(1, 1, False, True), layer_kinds(problem.model)[0]).full.item()
    statistics = 2 * 4 * tokens  # a number a token of each norm, which the count leaves out
    assert saved(2) - saved(1) - statistics == pytest.approx(counted)
