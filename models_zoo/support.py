"""Which architectures a cost model of plain dense transformers can express."""

from __future__ import annotations

from models_zoo.schema import Architecture


def unsupported_reasons(arch: Architecture) -> tuple[str, ...]:
    """What a dense-transformer cost model cannot express of this model; empty when it can express all of it.

    Extra norms (in a layer, of queries and keys) are fine: they only add parameters and memory traffic.
    """
    found = {
        "mixture of experts": arch.moe is not None,
        "multi-head latent attention": arch.attention.kind == "mla",
        "compressed sparse attention": arch.attention.kind == "csa",
        "sparse attention with an indexer": arch.attention.indexer is not None,
        "linear-attention layers": arch.linear_attention is not None,
        "state-space (mamba) layers": arch.mamba is not None,
        "layers with one mixer each (layer_pattern)": arch.layer_pattern is not None,
        "sliding-window attention layers": arch.attention.sliding_window is not None,
        "gated attention output": arch.attention.output_gate,
        "multi-token prediction layers": arch.mtp_layers > 0,
        "parallel attention and MLP block (one norm a layer)": arch.norms_per_layer == 1,
    }
    return tuple(reason for reason, present in found.items() if present)
