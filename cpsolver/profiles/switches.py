"""The names of a spec's training switches: what a spec may choose, and what a framework's profile may say it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from hw_specs import Dtype

Precision = Literal["bf16", "fp16", "fp8", "nvfp4", "fp32"]
DTYPES: Mapping[Precision, Dtype] = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "nvfp4": "fp4", "fp32": "fp32"}
"""The type of the layers' GEMMs in each precision."""
Fp8Recipe = Literal["delayed", "current", "blockwise", "mx"]
"""How fp8 finds its scales: a tensor's from earlier steps or from this one; one for each block of 128 values, or for
each block of 32, which the matrix units apply themselves (MXFP8)."""
FP8_RECIPES: tuple[Fp8Recipe, ...] = get_args(Fp8Recipe)
Recipe = Literal["delayed", "current", "blockwise", "mx", "nvfp4"]
"""How the layers' GEMMs are scaled where they are not in 16 bits: a recipe of fp8, or that of precision nvfp4."""
OptimizerName = Literal[
    "adam",
    "precision_aware",
    "precision_aware_bf16",
    "precision_aware_bf16_grads",
    "precision_aware_fp8",
    "quantized_states",
    "cadam",
    "ema_adamw",
    "o2_adamw",
    "lion",
    "muon",
    "soap",
]
MuonTpMode = Literal["duplicated", "distributed", "blockwise"]
"""What Muon orthogonalizes where tensor parallelism splits a matrix: the whole, on every rank or by all of them at once
(Gram matrices summed over the ranks), or each rank its own share of it."""
OffloadModule = Literal[
    "attention", "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"
]
"""A module whose input goes to the host; attention: all that it keeps but for its norm's input."""
GraphScope = Literal["none", "te", "full"]
"""What CUDA graphs replay: nothing, the parts of a layer that Transformer Engine captures, or the whole iteration."""
GRAPH_SCOPES: tuple[GraphScope, ...] = GraphScope.__args__  # type: ignore[attr-defined]
Dispatcher = Literal["alltoall", "allgather", "deepep", "hybridep"]
"""How tokens reach their experts: NCCL's all-to-all, a copy for each expert; an all-gather, all of them to all ranks of
experts; or kernels that send one to each rank with experts of a token."""
SENT_ONCE: tuple[Dispatcher, ...] = ("deepep", "hybridep")
"""Dispatchers that send a token once to each rank and node with experts of it."""
GradientFusion = Literal["none", "dense", "experts", "all"]
"""Which products add the gradients of their weights up themselves, in fp32: none, all but those of experts in one
kernel, these alone, or all. After the others the sum is a pass over memory of its own."""
ZeroMemory = Literal["level0", "level1"]
"""What experts do not keep for the backward pass: their inputs and activations; or their first products' results and
all inside shared experts too (MindSpeed's --moe-zero-memory)."""
Switch = Literal[
    "release_fp32_gradients",
    "reuse_fp32_parameters",
    "optimizer_offload",
    "parameter_offload",
    "swap_optimizer",
    "offload_layers",
    "recompute_activation_function",
    "recompute_mla_up_proj",
    "mla_swap_core_attn_out",
    "recompute_mlp_layers",
    "distribute_saved_activations",
    "cpu_checkpointing",
    "moe_zero_memory",
    "triangle_attention",
    "fused_gate_up",
    "moe_grouped_gemm",
    "fp8_parameter_gather",
    "fp8_activations",
    "fp8_recipe",
    "fp8_attention",
    "cuda_graph",
    "expandable_segments",
]
"""A field of the spec's training section that only some frameworks can have another value for than its default."""
