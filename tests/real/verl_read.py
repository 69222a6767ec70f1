"""verl's own configuration and engine on exported overrides, from stdin (JSON: a list of {overrides, shape, latent}).

Run as a script in an interpreter that has torch, Hydra, transformers, tensordict, Ray, megatron.core, megatron.bridge
and verl on its path. Hydra composes verl's configuration with the overrides, verl makes its dataclasses of it, and its
engine puts them onto a provider of Megatron-Bridge that has the model's shape alone. Prints a JSON list of what came
out of each, or the error.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

USERS = ["actor_rollout_ref.model.path=/model", "actor_rollout_ref.rollout.name=vllm"]
MODEL = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules", "cp_comm_type"),
    *("attention_backend", "microbatch_group_size_per_vp_stage", "moe_token_dispatcher_type", "overlap_p2p_comm"),
)


def configured(overrides: list[str]) -> Any:
    """verl's configuration as main_ppo has it."""
    import hydra
    import verl

    folder = str(Path(verl.__file__).parent / "trainer/config")
    with hydra.initialize_config_dir(config_dir=folder, version_base=None):
        return hydra.compose("ppo_trainer", overrides=["model_engine=megatron", *overrides, *USERS])


def provider_of(shape: dict[str, Any], latent: bool) -> Any:
    """A provider with the model's shape and nothing of the plan."""
    from megatron.bridge.models.gpt_provider import GPTModelProvider
    from megatron.bridge.models.mla_provider import MLAModelProvider

    return (MLAModelProvider if latent else GPTModelProvider)(**shape)


def engine_of(actor: Any, shape: dict[str, Any], latent: bool, mtp: bool) -> Any:
    """verl's engine with a transformer configuration of its own making."""
    from verl.workers.engine.megatron import transformer_impl

    engine = transformer_impl.MegatronEngine.__new__(transformer_impl.MegatronEngine)
    engine.engine_config, engine.optimizer_config = actor.megatron, actor.optim
    engine.enable_routing_replay = engine._qat_enabled = False
    hf_config = types.SimpleNamespace(model_type="llama", num_nextn_predict_layers=shape.get("mtp_num_layers") or 0)
    engine.model_config = mock.MagicMock(hf_config=hf_config, model_type="language_model")
    engine.model_config.mtp = types.SimpleNamespace(enable=mtp, mtp_loss_scaling_factor=0.1)
    given = provider_of(shape, latent)
    bridge = mock.MagicMock(to_megatron_provider=lambda load_weights: given)
    rank = mock.patch("torch.distributed.get_rank", return_value=1)
    peft = mock.patch("verl.workers.config.megatron_peft.get_peft_cls")
    loader = mock.patch("verl.models.mcore.bridge.AutoBridge.from_hf_pretrained", return_value=bridge)
    with rank, peft, loader:
        engine._build_tf_config()
    return engine


def read(case: dict[str, Any]) -> dict[str, Any]:
    """What verl makes of one export."""
    from megatron.bridge.training.utils.config_utils import create_ddp_config
    from megatron_parse import chunks
    from verl.utils.config import omega_conf_to_dataclass
    from verl.utils.megatron.optimizer import init_megatron_optim_config

    config = configured(case["overrides"])
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    mtp = config.actor_rollout_ref.model.mtp
    engine = engine_of(actor, case["shape"], case["latent"], bool(mtp.enable and mtp.enable_train))
    optimizer = init_megatron_optim_config(actor.optim, actor.megatron.use_distributed_optimizer)
    ddp = create_ddp_config(
        True, actor.megatron.use_distributed_optimizer, False, engine._resolve_override_ddp_config()
    )
    told = ("use_distributed_optimizer", "grad_reduce_in_fp32", "overlap_grad_reduce", "overlap_param_gather")
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    size = actor.megatron.tensor_model_parallel_size * actor.megatron.pipeline_model_parallel_size
    replicas = devices // (size * actor.megatron.context_parallel_size)
    return {
        "model": {name: getattr(engine.provider, name) for name in MODEL},
        "mtp_num_layers": engine.provider.mtp_num_layers,
        "chunks": chunks(engine.provider),
        "ddp": {name: getattr(ddp, name) for name in told},
        "optimizer": {name: str(value) for name, value in dataclasses.asdict(optimizer).items() if value is not None},
        "devices": devices,
        "replicas": replicas,
        "microbatches": actor.ppo_mini_batch_size // (replicas * actor.ppo_micro_batch_size_per_gpu),
        "dynamic": actor.use_dynamic_bsz,
    }


def main() -> None:
    """Answer stdin's cases."""
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    from absent import lend
    from answering import answer
    from bridge_read import ABSENT

    lend("megatron.bridge", ABSENT)
    from megatron_parse import without_accelerators

    answer(without_accelerators, read)


if __name__ == "__main__":
    main()
