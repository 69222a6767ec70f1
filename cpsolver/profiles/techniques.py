"""The names of a spec's training switches, and what each saves and costs: numbers with sources, in techniques.yaml."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Confidence = Literal["verified", "secondary", "assumed"]
Precision = Literal["bf16", "fp16", "fp8"]
OptimizerName = Literal[
    "adam",
    "precision_aware",
    "precision_aware_bf16",
    "precision_aware_bf16_grads",
    "precision_aware_fp8",
    "quantized_states",
    "cadam",
    "ema_adamw",
    "lion",
]
OffloadModule = Literal[
    "attention", "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"
]
"""A module whose input goes to the host; attention: all that it keeps but for its norm's input."""
Switch = Literal[
    "release_fp32_gradients",
    "reuse_fp32_parameters",
    "optimizer_offload",
    "swap_optimizer",
    "triangle_attention",
    "fused_gate_up",
    "fp8_parameter_gather",
    "fp8_activations",
]
"""A field of the spec's training section that only some frameworks can have another value for than its default."""

_FILE = Path(__file__).parent / "techniques.yaml"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Optimizer(_Frozen):
    """An optimizer's states in bytes of a parameter, before sharding.

    `gradient_bytes`: the most that a gradient takes, in its buffer and on its way; None: as the stack has it.
    `sharded`: it needs the distributed optimizer.
    """

    master_bytes: float
    moment_bytes: float
    gradient_bytes: float | None
    sharded: bool
    source: str
    confidence: Confidence

    @property
    def state_bytes(self) -> float:
        """Master weight and moments."""
        return self.master_bytes + self.moment_bytes


class Figure(_Frozen):
    """One number with its provenance, in the unit that its name says."""

    value: float
    source: str
    confidence: Confidence


class Figures(_Frozen):
    """Every number but for the optimizers'; techniques.yaml says what each means."""

    remainder_bytes: Figure
    remainder_traffic_bytes: Figure
    offload_gradient_bytes: Figure
    offload_weight_bytes: Figure
    host_update_ns: Figure
    host_update_ranks: Figure
    swap_slices: Figure
    fp8_gather_bytes: Figure
    fp8_kept_bytes: Figure
    offload_layers_held: Figure
    triangle_block: Figure


class Techniques(_Frozen):
    """The whole file."""

    optimizers: dict[str, Optimizer]
    constants: Figures

    def __getattr__(self, item: str) -> Any:
        """The value of a constant: ``techniques().swap_slices``."""
        if item in Figures.model_fields:
            return getattr(self.constants, item).value
        raise AttributeError(item)


@lru_cache
def techniques() -> Techniques:
    """The numbers that come with the package."""
    from ruamel.yaml import YAML

    return Techniques.model_validate(YAML(typ="safe").load(_FILE.read_text(encoding="utf-8")))
