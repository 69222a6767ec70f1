"""Exported files read by the frameworks themselves: DeepSpeed 0.19, torchtitan 0.3, Hydra for FlagScale's two files.

Needs their packages (deepspeed; torchtitan and triton; hydra-core) and torch, no accelerator.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.export import deepspeed, flagscale, torchtitan
from cpsolver.doors.export.shared import replicate_and_shard
from cpsolver.problem.resolve import resolve
from cpsolver.spec.spec import parse_spec
from models_zoo import load_architecture
from tests.support.framework_plans import CASES, plan, written
from tests.support.problems import strategy_of

torch = pytest.importorskip("torch")


@pytest.fixture
def world() -> Iterator[Any]:
    """Starts process groups of any size that send nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def start(size: int, rank: int = 0) -> None:
        torch.distributed.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())

    yield start
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


# DeepSpeed


class ModelsGrid:
    """What a model with its own tensor parallelism or pipeline tells DeepSpeed (an mpu)."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas

    def get_data_parallel_world_size(self) -> int:
        """Replicas."""
        return self.replicas


@pytest.mark.parametrize("name", list(CASES["deepspeed"]))
def test_deepspeed_reads_its_json(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime import config as reader

    problem, s = plan("deepspeed", name)
    data = json.loads(written(deepspeed.export(problem, s), tmp_path).with_name(deepspeed.CONFIG).read_text())
    automatic = "tensor_parallel" in data
    monkeypatch.setattr(reader.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(reader.dist, "get_world_size", lambda group=None: s.devices)
    own = s.pp > 1 or (s.tp > 1 and not automatic)
    found = reader.DeepSpeedConfig(data, ModelsGrid(s.dp) if own else None)
    assert found.train_micro_batch_size_per_gpu == s.mbs
    assert found.gradient_accumulation_steps == s.microbatches(problem.batch)
    assert found.train_batch_size == problem.batch * (s.tp if automatic else 1)
    assert found.zero_optimization_stage == s.zero_stage
    assert found.zero_enabled == (s.zero_stage > 0)
    assert found.bfloat16_config.enabled
    assert found.tensor_parallel_config.autotp_size == (s.tp if automatic else 0)
    offload = found.zero_config.offload_optimizer
    assert (offload.ratio if offload else 0) == problem.spec.training.optimizer_offload
    assert found.pipeline["activation_checkpoint_interval"] == (max(s.recompute_layers) if s.pp > 1 else 0)


def test_deepspeed_refuses_what_the_exporter_refuses() -> None:
    """The reasons are DeepSpeed's own: a part of the optimizer on the host below ZeRO-3; sharding in groups."""
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    grouped = {"train_batch_size": 1, "zero_optimization": {"stage": 3, "mics_shard_size": 2}}
    with pytest.raises(Exception, match="MiCS ZeRO-3 sharding has been removed"):
        DeepSpeedConfig(grouped)

    part = {"device": "cpu", "ratio": 0.5}
    assert DeepSpeedZeroConfig(stage=3, offload_optimizer=part).offload_optimizer.ratio == 0.5
    with pytest.raises(ValueError, match="Partial offloading"):
        DeepSpeedZeroConfig(stage=1, offload_optimizer=part)


def test_deepspeed_has_no_ranks_of_ours_out_of_order() -> None:
    """Its axes pipe, data, model are the plan's numbering: stages slowest, tensor-parallel ranks fastest."""
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    _, s = plan("deepspeed", "no sharding")
    topology = PipeModelDataParallelTopology(num_pp=s.pp, num_mp=s.tp, num_dp=s.dp)
    for rank in range(s.devices):
        place = topology.get_coord(rank)
        assert rank == (place.pipe * s.dp + place.data) * s.tp + place.model


def test_deepspeed_reads_its_host_file(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.launcher.runner import fetch_hostfile

    _, s = plan("deepspeed", "mixed")
    written(deepspeed.export(*plan("deepspeed", "mixed")), tmp_path)
    found = fetch_hostfile(str(tmp_path / "hostfile"))
    assert list(found) == [f"host{place}" for place in range(4)]
    assert sum(found.values()) == s.devices


@pytest.mark.parametrize("name", ["zero 1 and a pipeline", "no sharding", "mixed"])
def test_deepspeeds_pipeline_by_class_gives_equal_stages(
    name: str, monkeypatch: pytest.MonkeyPatch, world: Any
) -> None:
    """partition_method type:<class>, as the notes say; by parameters the embedding and the head get their own."""
    pytest.importorskip("deepspeed")
    from deepspeed import comm
    from deepspeed.pipe import LayerSpec, PipelineModule

    backend = importlib.import_module("deepspeed.comm.torch")
    monkeypatch.setattr(backend, "build_shm_op", lambda: None)  # compiles a kernel, for a minute

    class Layer(torch.nn.Linear):  # type: ignore[misc,name-defined]
        """A layer of the model."""

    problem, s = plan("deepspeed", name)
    world(s.devices)
    comm.init_distributed("fake", dist_init_required=False)
    for key, value in {"LOCAL_RANK": 0, "RANK": 0, "WORLD_SIZE": s.devices}.items():
        monkeypatch.setenv(key, str(value))
    layers = [LayerSpec(Layer, 8, 8) for _ in range(problem.model.layers)]
    layers = [LayerSpec(torch.nn.Embedding, 4000, 8), *layers, LayerSpec(torch.nn.Linear, 8, 4000)]
    parts = PipelineModule(layers=layers, num_stages=s.pp, partition_method="type:Layer").parts
    held = [range(max(first, 1), min(end, len(layers) - 1)) for first, end in pairwise(parts)]
    assert tuple(map(len, held)) == s.layers


# torchtitan


def parsed(folder: Path, monkeypatch: pytest.MonkeyPatch, base: str) -> Any:
    """The module in the folder as torchtitan's own command line reads it, with that base configuration."""
    from torchtitan.config import ConfigManager

    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, "apss_plan", raising=False)
    module = importlib.import_module("apss_plan")
    monkeypatch.setattr(module, "BASE", f"{__name__}:{base}")
    return ConfigManager().parse_args(["--module", "apss_plan", "--config", "plan"])


def eight_layers() -> Any:
    """torchtitan's own debug configuration with two layers more."""
    return _debug(8)


def seven_layers() -> Any:
    """The same with one more."""
    return _debug(7)


def _debug(layers: int) -> Any:
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = llama3_debugmodel()
    model = config.model_spec.model
    model.layers = (list(model.layers) * 2)[:layers]
    return config


@pytest.mark.parametrize("name", list(CASES["torchtitan"]))
def test_torchtitan_reads_its_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: Any) -> None:
    pytest.importorskip("torchtitan")
    pytest.importorskip("triton")
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.activation_checkpoint import FullAC

    problem, s = plan("torchtitan", name)
    written(torchtitan.export(problem, s), tmp_path)
    config = parsed(tmp_path, monkeypatch, "seven_layers" if problem.model.layers == 7 else "eight_layers")
    dims = ParallelDims.from_config(config.parallelism, world_size=s.devices)
    replicate, shard = replicate_and_shard(s)
    assert (dims.dp_replicate, dims.dp_shard) == (replicate, shard)
    assert (dims.tp, dims.pp, dims.cp, dims.ep) == (s.tp, s.pp, s.cp, s.ep)
    assert config.training.global_batch_size == problem.batch
    assert isinstance(config.activation_checkpoint, FullAC.Config) == ("uniform" in s.recompute)
    assert s.tp == 1 or config.parallelism.enable_sequence_parallel == s.sequence_parallel
    world(s.devices, rank=s.devices - 1)
    dims.build_mesh()
    assert dims.get_mesh("loss").size() == s.dp * s.cp
    last = dims.get_optional_mesh("pp")
    assert (last.mesh.tolist() if last else [0]) == [
        stage * s.stage_devices + (s.stage_devices - 1) * (s.pp > 1) for stage in range(s.pp)
    ]


@pytest.mark.parametrize("name", ["uneven", "interleaved", "a layer's place", "mixed"])
def test_torchtitan_splits_the_model_as_the_plan_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: Any
) -> None:
    pytest.importorskip("torchtitan")
    pytest.importorskip("triton")
    from torchtitan.distributed import ParallelDims, pipeline_parallel

    problem, s = plan("torchtitan", name)
    written(torchtitan.export(problem, s), tmp_path)
    config = parsed(tmp_path, monkeypatch, "seven_layers" if problem.model.layers == 7 else "eight_layers")
    told = config.parallelism
    for stage, count in enumerate(s.layers):
        world(s.devices, rank=stage * s.stage_devices)
        dims = ParallelDims.from_config(told, world_size=s.devices)
        dims.build_mesh()
        with torch.device("meta"):
            model = config.model_spec.model.build()
        split = pipeline_parallel._pipeline_module_split
        arguments = (told.pipeline_parallel_schedule, torch.device("cpu"), told.module_fqns_per_model_part)
        stages, parts = split(model, dims.get_mesh("pp"), *arguments)
        assert sum(len(part.layers) for part in parts) == count
        assert len(parts) == s.vpp
        pipeline_parallel._build_pipeline_schedule(
            parallelism=told, local_batch_size=config.training.local_batch_size, stages=stages, loss_fn=lambda: None
        )
        torch.distributed.destroy_process_group()


def test_torchtitans_own_configuration_takes_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama 3.1 8B: nothing replaced, to the layouts of the weights that the degrees ask for."""
    pytest.importorskip("torchtitan")
    pytest.importorskip("triton")
    from torchtitan.config import ConfigManager

    cluster = {"num_gpus": 32, "chips": "h100-sxm"}
    training = {"global_batch_size": 64, "sequence_length": 8192}
    problem = resolve(parse_spec({"model": "llama3.1-8b", "cluster": cluster, "training": training}))
    chip = problem.chip_names[0]
    s = strategy_of(f"{chip}:7,9,9,7", tp=2, cp=2, dp=2, flags="fsz", cp_gather=True, sharded="optimizer")
    written(torchtitan.export(problem, s), tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "apss_plan", raising=False)
    config = ConfigManager().parse_args(["--module", "apss_plan", "--config", "plan"])
    config.model_spec.model.update_from_config(config=config)
    assert [len(part) for part in config.parallelism.module_fqns_per_model_part] == [8, 9, 9, 9]
    assert config.training.seq_len == 8192
    assert config.activation_checkpoint is None


@pytest.mark.parametrize("name", list(CASES["torchtitan"]))
def test_the_older_torchtitan_reads_the_toml_file(name: str, tmp_path: Path) -> None:
    """Runs where release 0.2 is installed in place of 0.3."""
    pytest.importorskip("torchtitan.config.job_config")
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed.parallel_dims import ParallelDims

    problem, s = plan("torchtitan", name)
    made = torchtitan.export(problem, s)
    if torchtitan.TOML not in made.files:
        assert any("no TOML file" in note for note in made.notes)
        return
    written(made, tmp_path)
    config = ConfigManager().parse_args(["--job.config_file", str(tmp_path / torchtitan.TOML)])
    told, training = config.parallelism, config.training
    replicate, shard = told.data_parallel_replicate_degree, told.data_parallel_shard_degree
    degrees = {"cp": told.context_parallel_degree, "tp": told.tensor_parallel_degree}
    degrees |= {"ep": told.expert_parallel_degree, "etp": told.expert_tensor_parallel_degree}
    dims = ParallelDims(replicate, shard, pp=told.pipeline_parallel_degree, world_size=s.devices, **degrees)
    assert (dims.tp, dims.pp, dims.cp, dims.ep) == (s.tp, s.pp, s.cp, s.ep)
    assert (training.global_batch_size, training.seq_len) == (problem.batch, problem.sequence)
    assert config.activation_checkpoint.mode == ("full" if "uniform" in s.recompute else "none")
    parts = told.module_fqns_per_model_part or [[f"layers.{layer}" for layer in range(problem.model.layers)]]
    assert sum(module.startswith("layers.") for part in parts for module in part) == problem.model.layers


@pytest.mark.parametrize("name", [name for name, (_, function, _) in torchtitan.KNOWN.items() if function])
def test_torchtitan_has_the_catalogues_models(name: str) -> None:
    pytest.importorskip("torchtitan")
    pytest.importorskip("triton")
    model, function, _ = torchtitan.KNOWN[name]
    registry = importlib.import_module(f"torchtitan.models.{model}.config_registry")
    config = getattr(registry, function)()
    architecture = load_architecture(name)
    assert len(config.model_spec.model.layers) == architecture.layers
    assert config.model_spec.model.dim == architecture.hidden
    assert config.model_spec.model.vocab_size == pytest.approx(architecture.vocab, rel=0.01)


# FlagScale


def test_hydra_puts_flagscales_two_files_together(tmp_path: Path) -> None:
    hydra = pytest.importorskip("hydra")
    problem, s = plan("flagscale", "mixed")
    written(flagscale.export(problem, s), tmp_path)
    with hydra.initialize_config_dir(config_dir=str(tmp_path), version_base=None):
        config = hydra.compose("plan", overrides=["action=run"])
    assert config.train.system.hetero.hetero_pipeline_layer_split == list(s.layers)
    assert config.train.model.global_batch_size == problem.batch
    assert config.experiment.task.backend == "megatron"
