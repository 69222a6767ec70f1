"""Software-stack profiles: what a training framework keeps, sends, hides and launches."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cpsolver.inputs.data import package_data
from cpsolver.inputs.errors import InputError, Trouble, nearest_names
from cpsolver.inputs.language import later
from cpsolver.profiles.framework import Framework, stack_framework

FOLD3D_STACK = "ascendspeed"
"""The stack profile whose framework has Fold3D, and microbatches of different sizes."""
_FOLDER = Path(__file__).parent / "stacks"


class Constant(BaseModel):
    """One number with its provenance. fitted: from published runs, see calibration.py."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    source: str
    confidence: Literal["verified", "secondary", "assumed", "fitted"]


class Constants(BaseModel):
    """Every constant of a profile; stacks/megatron-core.yaml says what each means."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parameter_bytes: Constant
    gradient_bytes: Constant
    fp16_gradient_bytes: Constant
    optimizer_bytes: Constant
    gradient_reduce_bytes: Constant
    parameter_gather_bytes: Constant
    optimizer_step_bytes: Constant
    sharded_all_reduce: Constant
    shard_broadcast_ms: Constant
    single_adapter: Constant
    routing_overlap: Constant
    copies_once_per_node: Constant
    fused_experts: Constant
    dispatch_bytes: Constant
    cuda_graph_scope: Constant
    bucket_parameters: Constant
    bucket_rank_parameters: Constant
    ring_step_us: Constant
    ring_border_us: Constant
    gradient_overlap: Constant
    parameter_overlap: Constant
    sharding_overlap: Constant
    grouped_gemm_speed: Constant
    uneven_grouped_gemm_speed: Constant
    tensor_overlap: Constant
    tensor_overlap_backward: Constant
    context_overlap: Constant
    pipeline_overlap_interleaved: Constant
    pipeline_scatter: Constant
    pipeline_transfers: Constant
    pipeline_buffer_mib: Constant
    pipeline_sends_first: Constant
    pipeline_mask_bytes: Constant
    attention_speed: Constant
    hopper_attention_speed: Constant
    fp8_attention: Constant
    fp8_attention_speed: Constant
    mx_attention_speed: Constant
    fp8_latent_attention_speed: Constant
    scan_speed: Constant
    scan_backward_flops_factor: Constant
    sparse_attention_speed: Constant
    score_traffic: Constant
    elementwise_traffic: Constant
    norm_traffic: Constant
    elementwise_backward_factor: Constant
    unfused_traffic_factor: Constant
    gradient_sum_bytes: Constant
    attention_backward_flops_factor: Constant
    causal_fraction: Constant
    masked_keys: Constant
    gemm_tile_rows: Constant
    gemm_tile_columns: Constant
    gemm_half_depth: Constant
    misaligned_gemm_speed: Constant
    host_layer_us: Constant
    host_expert_layer_us: Constant
    host_expert_layer_te_us: Constant
    host_all_to_all_us: Constant
    host_expert_chunk_us: Constant
    microbatch_overhead_us: Constant
    step_overhead_ms: Constant
    straggling: Constant
    logits_bytes: Constant
    waiting_logits_bytes: Constant
    logits_traffic_bytes: Constant
    pipeline_logits_bytes: Constant
    parallel_loss: Constant
    backward_buffer_share: Constant
    kept_expert_outputs: Constant
    kept_weighted_activations: Constant
    eager_layers: Constant
    zero_experts_sent: Constant
    host_gradients: Constant
    gathered_layers: Constant
    fp8_weight_bytes: Constant
    fp8_cast_bytes: Constant
    fp8_frozen_cast_share: Constant
    fp8_activations: Constant
    fp8_activation_inputs: Constant
    fp8_parameter_gather: Constant
    fp8_recipe: Constant
    fp8_recipe_of_blocks: Constant
    current_gemm_speed: Constant
    blockwise_gemm_speed: Constant
    mx_gemm_speed: Constant
    pipeline_buffers: Constant
    framework_bytes: Constant
    activation_overhead: Constant
    allocator_overhead: Constant
    expandable_overhead: Constant
    expandable_segments: Constant
    cached_share: Constant
    cached_bytes: Constant
    memory_margin: Constant


_CONSTANTS = frozenset(Constants.model_fields)


class Stack(BaseModel):
    """A software-stack profile.

    `fitted_with`: profiles whose fitted constants are this one's too, unless it has its own; the nearest comes last.
    `kernels`: the vendor whose chips its kernels are written for.
    `runs`: the layouts that its framework runs, for the rule `stack`; None: whatever the launcher runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    kernels: str
    fitted_with: tuple[str, ...] = ()
    runs: Framework | None = None
    constants: Constants

    def __getattr__(self, item: str) -> Any:
        """The value of a constant: ``stack.gradient_bytes``."""
        if item in _CONSTANTS:
            return getattr(self.constants, item).value
        raise AttributeError(item)


def stack_names() -> tuple[str, ...]:
    """Names of all profiles that come with the package."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@lru_cache
def load_stack(name: str) -> Stack:
    """The profile of that name; raises InputError naming the nearest one."""
    if name not in stack_names():
        raise InputError(
            (
                Trouble(
                    where="stack",
                    value=name,
                    message=later("unknown software stack"),
                    allowed=", ".join(stack_names()),
                    nearest=nearest_names(name, stack_names()),
                    path=("stack",),
                ),
            )
        )
    fields = dict(_read(name))
    facts = fields.pop("runs", None)
    runs = facts and stack_framework(fields["name"], fields["title"], facts)
    return Stack.model_validate({**fields, "runs": runs})


@lru_cache
def _read(name: str) -> dict[str, Any]:
    """A profile's fields; one that extends another has its constants and facts where it states none of its own."""
    fields: dict[str, Any] = dict(package_data(_FOLDER / f"{name}.yaml"))
    base = fields.pop("extends", None)
    if base is not None:
        fields.setdefault("kernels", _read(base)["kernels"])
        for part in ("constants", "runs"):
            inherited = _read(base).get(part)
            if inherited is not None:
                fields[part] = {**inherited, **(fields.get(part) or {})}
    return fields
