"""Which architectures the cost model can express."""

from __future__ import annotations

from models_zoo.schema import Architecture


def unsupported_reasons(arch: Architecture) -> tuple[str, ...]:
    """What the cost model cannot express of this model; empty when it can express all of it.

    Extra norms (in a layer, of queries and keys) are fine: they only add parameters and memory traffic.
    """
    attention, moe = arch.attention, arch.moe
    own_width = attention.global_head_dim or attention.global_kv_heads or attention.global_shared_kv
    found = {
        "compressed sparse attention": attention.kind == "csa",
        "sparse attention with an indexer": attention.indexer is not None,
        "heads of another width in layers that attend fully": bool(own_width),
        "linear-attention layers": arch.linear_attention is not None,
        "state-space (mamba) layers": arch.mamba is not None,
        "layers with one mixer each (layer_pattern)": arch.layer_pattern is not None,
        "experts that work in a width of their own (latent)": moe is not None and moe.latent is not None,
        "parallel attention and MLP block (one norm a layer)": arch.norms_per_layer == 1,
    }
    return tuple(reason for reason, present in found.items() if present)
