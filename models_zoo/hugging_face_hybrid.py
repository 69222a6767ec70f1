"""Hugging Face families whose layers are of several sorts: state space, linear attention, selected or compressed keys.

By the configuration and modelling code of transformers 5.23, and for kimi_linear by the code that its checkpoints bring
along. Each function says what differs.
"""

from __future__ import annotations

from collections.abc import Callable

from models_zoo.hugging_face_llama import LLAMA_LIKE, Fields, Reader

_BLOCKS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "moe": "E", "mlp": "-"}
"""Names of a hybrid's blocks -> letters of a layer pattern."""


def _nemotron_h(r: Reader) -> Fields:
    """Each layer one block behind one norm: by a pattern of letters, or by names. No positions."""
    pattern = r.get("hybrid_override_pattern")
    if pattern is None:
        named = r.get("layers_block_type", default=[])
        r.refuse(not named, "neither hybrid_override_pattern nor layers_block_type says which layer is what")
        r.refuse(set(named) - set(_BLOCKS), "layers_block_type: blocks of an unknown name")
        pattern = "".join(_BLOCKS.get(name, "M") for name in named)
    biased = bool(r.get("mlp_bias", default=False))
    attention_bias = bool(r.get("attention_bias", default=False))
    fields = {
        "layers": r.get("num_hidden_layers", default=len(pattern)),
        "hidden": r.size("hidden_size"),
        "ffn": r.size("intermediate_size") if "-" in pattern else 0,
        "heads": r.size("num_attention_heads"),
        "kv_heads": r.size("num_key_value_heads"),
        "head_dim": r.get("head_dim", "attention_head_dim", default=128),
        "vocab": r.size("vocab_size"),
        "max_positions": r.get("max_position_embeddings"),
        "gated_mlp": False,
        "activation": r.get("mlp_hidden_act", default="relu2"),
        "position": "none",
        "tied_embeddings": bool(r.get("tie_word_embeddings", default=False)),
        "bias_qkv": attention_bias,
        "bias_attention_out": attention_bias,
        "bias_mlp": biased,
        "layer_pattern": pattern,
        "mamba": _mamba(r) if "M" in pattern else {},
        "moe": _nemotron_experts(r) if "E" in pattern else {},
        **_nemotron_modules(r),
    }
    r.refuse(r.get("use_bias"), "use_bias: projections of state-space layers with biases")
    return fields


def _nemotron_modules(r: Reader) -> Fields:
    """Modules of multi-token prediction, and the blocks of one: by letters, or by names."""
    count, pattern = r.get("num_nextn_predict_layers", default=0), r.get("mtp_hybrid_override_pattern")
    named = r.get("mtp_layers_block_type", default=[])
    r.refuse(set(named) - set(_BLOCKS), "mtp_layers_block_type: blocks of an unknown name")
    own = pattern or "".join(_BLOCKS.get(name, "M") for name in named)
    return {"mtp_layers": count, "mtp_pattern": own} if count and own else {"mtp_layers": count}


def _mamba(r: Reader) -> Fields:
    return {
        "heads": r.size("mamba_num_heads"),
        "head_dim": r.size("mamba_head_dim"),
        "groups": r.size("n_groups"),
        "state": r.size("ssm_state_size"),
        "conv": r.size("conv_kernel"),
    }


def _nemotron_experts(r: Reader) -> Fields:
    shared = r.get("n_shared_experts", default=0)
    own = {"shared_experts": shared, "shared_ffn": r.size("moe_shared_expert_intermediate_size")} if shared else {}
    latent = r.get("moe_latent_size")
    return {
        "experts": r.size("n_routed_experts"),
        "top_k": r.size("num_experts_per_tok"),
        "expert_ffn": r.size("moe_intermediate_size"),
        "router_bias": True,
        **own,
        **({"latent": latent} if latent else {}),
    }


def _qwen_linear(r: Reader) -> Fields:
    """Qwen3-Next and Qwen3.5: a gated delta rule but in every n-th layer, which attends with a gate on its output."""
    experts = r.get("num_experts") is not None
    dense = r.get("intermediate_size", default=0)
    fields = LLAMA_LIKE["llama"](Reader({**r.config, "intermediate_size": dense})) | {"ffn": dense}
    every = r.get("full_attention_interval", default=4)
    kinds = r.get("layer_types")
    regular = [
        "full_attention" if place % every == 0 else "linear_attention" for place in range(1, fields["layers"] + 1)
    ]
    r.refuse(kinds and list(kinds) != regular, "layer_types: full attention is not in every n-th layer")
    linear = {
        "kind": "gated_deltanet",
        "key_heads": r.size("linear_num_key_heads"),
        "key_dim": r.size("linear_key_head_dim"),
        "value_heads": r.size("linear_num_value_heads"),
        "value_dim": r.size("linear_value_head_dim"),
        "conv": r.size("linear_conv_kernel_dim"),
    }
    more: Fields = {"moe": _qwen_routed(r)} if experts else {}
    return {
        **fields,
        **more,
        "head_dim": fields["head_dim"] or 256,
        "attention": {"qk_norm": "head", "output_gate": True},
        "linear_attention": linear,
        "full_attention_interval": every,
        "mtp_layers": r.get("mtp_num_hidden_layers", default=0),
    }


def _qwen_routed(r: Reader) -> Fields:
    step = r.get("decoder_sparse_step", default=1)
    r.refuse(r.get("mlp_only_layers"), "mlp_only_layers: layers without experts in places that no rule tells")
    shared = r.get("shared_expert_intermediate_size")
    return {
        "experts": r.size("num_experts"),
        "top_k": r.size("num_experts_per_tok"),
        "expert_ffn": r.size("moe_intermediate_size"),
        **({"freq": step, "offset": step - 1} if step > 1 else {}),
        **({"shared_experts": 1, "shared_ffn": shared, "shared_gate": True} if shared else {}),
    }


def _kimi_linear(r: Reader) -> Fields:
    """Kimi's delta rule in most layers, latent attention in the others; experts, perhaps of a latent width."""
    names = {"n_routed_experts": "num_experts", "num_experts_per_tok": "num_experts_per_token"}
    names |= {"n_shared_experts": "num_shared_experts", "n_group": "num_expert_group"}
    renamed = {own: r.get(theirs) for own, theirs in names.items()}
    config = {**r.config, **renamed, "topk_method": "noaux_tc"}
    inner = Reader(config)
    fields = LLAMA_LIKE["deepseek_v3"](inner)
    r.reasons += inner.reasons
    given = r.get("linear_attn_config", default={})
    linear = {
        "kind": "kimi_delta_attention",
        "layers": len(given.get("kda_layers", ())),
        "heads": given.get("num_heads"),
        "dim": given.get("head_dim"),
        "conv": given.get("short_conv_kernel_size"),
        **({"full_rank_gate": True} if given.get("use_full_rank_gate") else {}),
    }
    gate = {"output_gate": True} if r.get("mla_use_output_gate") else {}
    unturned = {"no_rope": True} if r.get("mla_use_nope") else {}
    latent = r.get("routed_expert_hidden_size")
    moe = {**fields["moe"], **({"latent": latent} if latent else {})} if fields["moe"] else {}
    return {
        **fields,
        "attention": {**fields["attention"], **gate, **unturned},
        "linear_attention": linear,
        "moe": moe,
    }


def _latent(r: Reader) -> Fields:
    """GLM-4.7-Flash: DeepSeek-V3's layers, of which a list may say which are dense."""
    kinds = r.get("mlp_layer_types", default=())
    dense = next((place for place, kind in enumerate(kinds) if kind != "dense"), 0)
    r.refuse("dense" in kinds[dense:], "mlp_layer_types: dense layers behind those with experts")
    inner = Reader({"first_k_dense_replace": dense, "topk_method": "noaux_tc", **r.config})
    fields = LLAMA_LIKE["deepseek_v3"](inner)
    r.reasons += inner.reasons
    return fields


def _selected(r: Reader) -> Fields:
    """DeepSeek V3.2 and GLM-5: latent attention over keys that an indexer selects; some layers share another's."""
    plain = {name: value for name, value in r.config.items() if name != "index_topk"}
    inner = Reader({**plain, "topk_method": "noaux_tc"})
    fields = LLAMA_LIKE["deepseek_v3"](inner)
    r.reasons += inner.reasons
    indexer = {"heads": r.size("index_n_heads"), "dim": r.size("index_head_dim"), "topk": r.size("index_topk")}
    every, first = r.get("index_topk_freq", default=1), r.get("index_skip_topk_offset", default=0)
    if every > 1:
        indexer |= {"every": every, "first": max(1, first)}
    return {**fields, "attention": {**fields["attention"], "indexer": indexer}}


def _deepseek_v4(r: Reader) -> Fields:
    """Windows and compressed keys of two kinds, hyper-connections; a prediction module is not instantiated."""
    layers, ratios, kinds = r.size("num_hidden_layers"), r.get("compress_ratios"), r.get("layer_types")
    if not ratios and kinds:
        ratios = [r.get("compress_rates", default={}).get(kind, 0) for kind in kinds]
    r.refuse(not ratios, "neither compress_ratios nor layer_types says which layer compresses keys how far")
    return {
        "layers": layers,
        "hidden": r.size("hidden_size"),
        "ffn": 0,
        "heads": r.size("num_attention_heads"),
        "kv_heads": 1,
        "head_dim": r.size("head_dim"),
        "vocab": r.size("vocab_size"),
        "max_positions": r.get("max_position_embeddings"),
        "tied_embeddings": bool(r.get("tie_word_embeddings", default=False)),
        "residual_streams": r.get("hc_mult", default=1),
        "attention": {
            "kind": "csa",
            "q_lora": r.size("q_lora_rank"),
            "qk_rope": r.get("qk_rope_head_dim"),
            "o_lora": r.size("o_lora_rank"),
            "o_groups": r.size("o_groups"),
            "sinks": True,
            "sliding_window": r.size("sliding_window"),
            "compression": list(ratios or ())[:layers],
            "indexer": {
                "heads": r.size("index_n_heads"),
                "dim": r.size("index_head_dim"),
                "topk": r.size("index_topk"),
            },
        },
        "moe": {
            "experts": r.size("n_routed_experts"),
            "top_k": r.size("num_experts_per_tok"),
            "expert_ffn": r.size("moe_intermediate_size"),
            "shared_experts": r.get("n_shared_experts", default=1),
            "router_bias": True,
            "hash_routed_layers": r.get("num_hash_layers", default=3),
        },
    }


def _gemma4(r: Reader) -> Fields:
    """Heads of another width in layers that attend fully, whose keys may be their values too."""
    fields = LLAMA_LIKE["gemma3_text"](r)
    r.refuse(r.get("enable_moe_block"), "enable_moe_block: experts beside the dense block of a layer")
    r.refuse(r.get("num_kv_shared_layers"), "num_kv_shared_layers: layers that use another's keys and values")
    r.refuse(r.get("hidden_size_per_layer_input"), "hidden_size_per_layer_input: embeddings for every layer")
    own = {"global_head_dim": r.get("global_head_dim"), "global_kv_heads": r.get("num_global_key_value_heads")}
    shared = {"global_shared_kv": True} if r.get("attention_k_eq_v") else {}
    attention = {**fields["attention"], **{name: value for name, value in own.items() if value}, **shared}
    return {**fields, "attention": attention}


def _longcat(r: Reader) -> Fields:
    """LongCat-Flash: DeepSeek-V3's latent attention and a dense block twice a layer, experts beside them, some that do
    nothing. `num_hidden_layers` counts attentions there."""
    r.refuse(r.get("zero_expert_type", default="identity") != "identity", "zero_expert_type: not identity")
    names = {"num_hidden_layers": "num_layers", "intermediate_size": "ffn_hidden_size"}
    names |= {"moe_intermediate_size": "expert_ffn_hidden_size", "num_experts_per_tok": "moe_topk"}
    renamed = {own: r.size(theirs) for own, theirs in names.items()}
    inner = Reader({**r.config, **renamed, "topk_method": "noaux_tc"})
    fields = LLAMA_LIKE["deepseek_v3"](inner)
    r.reasons += inner.reasons
    moe = {**fields["moe"], "zero_experts": r.get("zero_expert_num", default=0), "shortcut": True}
    return {**fields, "moe": moe}


HYBRID: dict[str, Callable[[Reader], Fields]] = {
    "nemotron_h": _nemotron_h,
    "qwen3_next": _qwen_linear,
    "qwen3_5_text": _qwen_linear,
    "qwen3_5_moe_text": _qwen_linear,
    "kimi_linear": _kimi_linear,
    "kimi_k3": _kimi_linear,
    "deepseek_v32": _selected,
    "glm_moe_dsa": _selected,
    "glm4_moe_lite": _latent,
    "deepseek_v4": _deepseek_v4,
    "gemma4_text": _gemma4,
    "longcat_flash": _longcat,
}
"""model_type -> how its configuration is read."""
