"""torchtitan's configurations as Python functions: what their text says, never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.inputs.errors import InputError

REGISTRY = """
from torchtitan.components.optimizer import OptimizersContainer, default_adamw
from torchtitan.config import ActivationCheckpointConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.protocols.model_converter import ModelConvertersContainer
from torchtitan.trainer import Trainer
from . import model_registry


def llama3_70b() -> Trainer.Config:
    spec = model_registry("70B")
    return Trainer.Config(
        model_spec=spec,
        optimizer=default_adamw(lr=1.5e-4),
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=4 * 8192,
            max_context_length=8192,
            steps=1000,
        ),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
        activation_checkpoint=FullAC.Config(),
    )


def llama3_8b() -> Trainer.Config:
    config = llama3_70b()
    config.model_spec = model_registry("8B")
    config.parallelism.tensor_parallel_degree = 1
    config.activation_checkpoint = SelectiveAC.Config()
    return config


def llama3_8b_float8() -> Trainer.Config:
    config = llama3_8b()
    config.model_spec = model_registry("8B", converters=[Float8LinearConverter.Config()])
    return config


def llama3_8b_former() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        optimizer=OptimizersContainer.Config(lr=3e-4),
        training=TrainingConfig(local_batch_size=2, seq_len=8192),
        activation_checkpoint=ActivationCheckpointConfig(mode="selective", selective_ac_option="op"),
    )


def llama3_8b_former_float8() -> Trainer.Config:
    config = llama3_8b_former()
    config.model_converters = ModelConvertersContainer.Config(converters=[Float8LinearConverter.Config()])
    return config


def llama3_8b_former_whole() -> Trainer.Config:
    config = llama3_8b_former()
    config.activation_checkpoint = ActivationCheckpointConfig(mode="full")
    return config


def llama3_8b_former_default() -> Trainer.Config:
    config = llama3_8b_former()
    config.activation_checkpoint = ActivationCheckpointConfig()
    return config


def llama3_8b_former_unclear() -> Trainer.Config:
    config = llama3_8b_former()
    config.activation_checkpoint = ActivationCheckpointConfig(mode=how())
    return config


def llama3_8b_former_unsaid() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        optimizer=OptimizersContainer.Config(lr=3e-4),
        training=TrainingConfig(local_batch_size=2, seq_len=8192),
    )


def llama3_8b_former_muon() -> Trainer.Config:
    config = llama3_8b_former()
    config.optimizer = OptimizersContainer.Config(name="Muon", lr=3e-4)
    return config


def llama3_8b_former_narrow() -> Trainer.Config:
    config = llama3_8b_former()
    config.optimizer = OptimizersContainer.Config(lr=3e-4, implementation="fused_opt_states_bf16")
    return config


def llama3_8b_former_other() -> Trainer.Config:
    config = llama3_8b_former()
    config.optimizer = OptimizersContainer.Config(name=which(), lr=3e-4)
    return config


def unclear() -> Trainer.Config:
    config = llama3_8b()
    config.training.max_context_length = longest()
    return config
"""


def read(tmp_path: Path, *words: str) -> Imported:
    folder = tmp_path / "models" / "llama3"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config_registry.py").write_text(REGISTRY, encoding="utf-8")
    return import_source(str(folder / "config_registry.py"), ImportOptions("h100", 32, 8, arguments=words))


def troubles(tmp_path: Path, *words: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(tmp_path, *words)
    return [trouble.where for trouble in caught.value.troubles]


def test_a_configuration_is_a_function_of_the_registry(tmp_path: Path) -> None:
    """Four sequences of 8,192 tokens a replica, on replicas of eight devices."""
    found = read(tmp_path, "llama3_70b")
    assert (found.model.name, found.spec["launcher"]) == ("llama3.1-70b", "torchtitan")
    assert found.spec["stack"] == "torchtitan-2026"
    assert found.spec["training"]["sequence_length"] == 8192
    assert found.spec["training"]["global_batch_size"] == 16
    plan = found.strategy
    assert plan is not None
    assert (plan.tp, plan.dp, plan.mbs, plan.sharded, plan.recompute) == (8, 4, 4, "parameters", ("uniform",))
    assert plan.sequence_parallel
    assert found.unused == ()


def test_one_is_made_of_another_and_takes_overrides(tmp_path: Path) -> None:
    found = read(tmp_path, "llama3_8b", "--parallelism.pipeline_parallel_degree=2", "parallelism.num_pp_microbatches=8")
    assert found.model.name == "llama3.1-8b"
    assert found.strategy is not None
    assert (found.strategy.tp, found.strategy.pp, found.strategy.dp, found.strategy.mbs) == (1, 2, 16, 4)
    assert found.spec["training"]["global_batch_size"] == 4 * 8 * 16
    assert found.strategy.groups[0].modules == ("operators",)
    alone = read(tmp_path, "llama3_8b", "training.num_tokens_per_train_step=8388608")
    assert alone.spec["training"]["global_batch_size"] == 1024


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ((), "--args"),
        (("other",), "--args"),
        (("llama3_8b", "steps=3"), "--args"),
        (("llama3_8b_float8",), "model.converters"),
        (("llama3_8b_former_float8",), "model.converters"),
        (("llama3_8b_former_unclear",), "activation_checkpoint"),
        (("llama3_8b_former_muon",), "optimizer.name"),
        (("llama3_8b_former_narrow",), "optimizer.name"),
        (("llama3_8b_former_other",), "optimizer.name"),
        (("unclear",), "training.max_context_length"),
        (("llama3_8b", "training.steps.x=3"), "--args"),
        (("llama3_8b", "training.max_context_length=x"), "training.max_context_length"),
        (("llama3_8b", "parallelism.pipeline_parallel_degree=0"), "parallelism.pipeline_parallel_degree"),
    ],
)
def test_what_is_not_clear_or_not_planned_for_is_an_error(tmp_path: Path, words: tuple[str, ...], where: str) -> None:
    assert where in troubles(tmp_path, *words)


@pytest.mark.parametrize(
    ("name", "recomputed", "modules"),
    [
        ("llama3_8b_former", "selective", ("operators",)),
        ("llama3_8b_former_whole", "uniform", ()),
        ("llama3_8b_former_default", None, None),
        ("llama3_8b_former_unsaid", None, None),
    ],
)
def test_before_0_3_what_is_recomputed_is_named_as_in_a_toml(
    tmp_path: Path, name: str, recomputed: str | None, modules: tuple[str, ...] | None
) -> None:
    """felipemello1/torchtitan fa8e6ccc; the default is not the same in all of these."""
    found = read(tmp_path, name)
    assert found.spec["training"]["global_batch_size"] == 64
    if recomputed is None:
        assert found.strategy is None
        assert found.refusals == ("activation_checkpoint: selective 2 or op: no plan says what is recomputed",)
    else:
        assert found.strategy is not None
        assert (found.strategy.groups[0].recompute, found.strategy.groups[0].modules) == (recomputed, modules)
