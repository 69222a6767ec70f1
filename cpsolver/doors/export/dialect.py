"""What the versions of Megatron-LM, and the frameworks built on it, say differently."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cpsolver.profiles.switches import FP8_RECIPES, Fp8Recipe

Flag = tuple[str, ...]
"""One option with its values: ("--hidden-size", "4096"), ("--swiglu",)."""


@dataclass(frozen=True)
class Dialect:
    """Flags that one version has or lacks; read from `megatron/training/arguments.py` of the tag in `source`.

    `layers_per_chunk`: equal chunks are told by their layers, not by their number. `fsdp`: the flag of its FSDP of
    sharded weights and gradients; `fsdp_checkpoint`: the checkpoint format that this FSDP asks for, if any.
    `fp8_recipes`: what --fp8-recipe takes, by our names; `mx_weights`: MXFP8 weights can be held so only, their gathers
    overlapped. `bf16_moments`: --exp-avg-dtype takes bf16. `switches`: those of training that it has flags for and
    others lack. The others name what a flag is there for: sliding windows, attention sinks, gpt-oss's activation,
    layers without rotary embedding, a gate on attention's output, a gate on shared experts, activations sent to the
    host, biases in experts, the optimizer Lion, and those of matrices, Muon and SOAP.
    """

    name: str
    source: str
    layers_per_chunk: bool = False
    fsdp: str = "--use-megatron-fsdp"
    fsdp_checkpoint: str = "fsdp_dtensor"
    fp8_recipes: tuple[Fp8Recipe, ...] = FP8_RECIPES
    mx_weights: bool = True
    bf16_moments: bool = True
    windows: bool = True
    sinks: bool = True
    quick_geglu: bool = True
    no_rope_freq: bool = True
    output_gate: bool = True
    shared_gate: bool = True
    activation_offload: bool = True
    switches: tuple[str, ...] = (
        "offload_layers",
        "cuda_graph",
        "moe_dispatcher",
        "gradient_accumulation_fusion",
        "distribute_saved_activations",
        "moe_grouped_gemm",
    )
    expert_bias: bool = True
    lion: bool = False
    matrices: bool = False


MEGATRON_LM = Dialect("megatron-lm", "core_v0.16.1 and main of 2026-08", matrices=True)
CORE_0_13 = replace(
    MEGATRON_LM,
    name="megatron-core-0.13",
    source="core_v0.13.0",
    mx_weights=False,
    fsdp="--use-custom-fsdp",
    fsdp_checkpoint="",
    windows=False,
    sinks=False,
    quick_geglu=False,
    output_gate=False,
    shared_gate=False,
    activation_offload=False,
    switches=("moe_dispatcher", "gradient_accumulation_fusion", "distribute_saved_activations", "moe_grouped_gemm"),
    expert_bias=False,
    matrices=False,
)
CORE_0_12 = replace(
    CORE_0_13,
    name="megatron-core-0.12",
    source="core_v0.12.1",
    fp8_recipes=("delayed", "current", "mx"),
    no_rope_freq=False,
    bf16_moments=False,
)
CORE_0_15 = replace(
    MEGATRON_LM,
    name="loongforge",
    source="core_v0.15.0",
    quick_geglu=False,
    switches=("moe_dispatcher", "gradient_accumulation_fusion", "distribute_saved_activations", "moe_grouped_gemm"),
    output_gate=False,
    shared_gate=False,
    activation_offload=False,
    matrices=False,
)


def flattened(flags: Iterable[Flag]) -> tuple[str, ...]:
    """The options as the tokens of a command line."""
    return tuple(token for flag in flags for token in flag)
