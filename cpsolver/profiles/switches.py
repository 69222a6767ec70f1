"""The names of a spec's training switches: what a spec may choose, and what a framework's profile may say it has."""

from __future__ import annotations

from typing import Literal

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
GraphScope = Literal["none", "te", "full"]
"""What CUDA graphs replay: nothing, the parts of a layer that Transformer Engine captures, or the whole iteration."""
GRAPH_SCOPES: tuple[GraphScope, ...] = GraphScope.__args__  # type: ignore[attr-defined]
Dispatcher = Literal["alltoall", "deepep", "hybridep"]
"""How tokens reach their experts: NCCL's all-to-all, a copy for each expert; or kernels that send one to each rank."""
Switch = Literal[
    "release_fp32_gradients",
    "reuse_fp32_parameters",
    "optimizer_offload",
    "swap_optimizer",
    "offload_layers",
    "triangle_attention",
    "fused_gate_up",
    "fp8_parameter_gather",
    "fp8_activations",
    "cuda_graph",
    "moe_dispatcher",
]
"""A field of the spec's training section that only some frameworks can have another value for than its default."""
