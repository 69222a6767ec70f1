"""The keys of a Hugging Face configuration, and the families that differ from LLaMA in few of them.

By the configuration and modelling code of transformers 5.23, and for families that it lacks (internlm, internlm2,
baichuan, kimi_k2) by the code that their checkpoints bring along. Each function says what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from models_zoo.consistency import too_large

Config = Mapping[str, Any]
Fields = dict[str, Any]
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_LISTED = "a list of 0 for dense layers at the start and 1 for all others"


class Reader:
    """The keys of `config`; `reasons` say why it cannot be read."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.reasons: list[str] = []

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of several keys that is there and not null."""
        return next((self.config[name] for name in names if self.config.get(name) is not None), default)

    def size(self, *names: str) -> int:
        """A whole number that must be there."""
        value = self.get(*names)
        if isinstance(value, bool) or not isinstance(value, int):
            self.reasons.append(f"{' or '.join(names)} is missing, or no whole number")
            return 1
        return value

    def refuse_sizes(self) -> None:
        """Collect the numbers that are larger than any model's, before they are counted with."""
        for name, value in self.config.items():
            known = "layers" if name in _LAYERS else name
            self.reasons += [text.replace(known, name, 1) for _, text in too_large({known: value})]

    def refuse(self, condition: object, reason: str) -> None:
        """Collect a reason where the condition holds."""
        if condition:
            self.reasons.append(reason)


def _llama(r: Reader, *, tied: bool = False, bias_qkv: bool = False, bias_out: bool = False) -> Fields:
    """A LLaMA: grouped-query attention, RMSNorm, SwiGLU, rotary positions. Arguments are a family's own defaults."""
    heads = r.size("num_attention_heads")
    return {
        "layers": r.size("num_hidden_layers"),
        "hidden": r.size("hidden_size"),
        "ffn": r.size("intermediate_size"),
        "heads": heads,
        "kv_heads": r.get("num_key_value_heads", default=heads),
        "head_dim": r.get("head_dim"),
        "vocab": r.size("vocab_size"),
        "max_positions": r.get("max_position_embeddings"),
        "tied_embeddings": bool(r.get("tie_word_embeddings", default=tied)),
        "bias_qkv": bool(r.get("attention_bias", default=bias_qkv)),
        "bias_attention_out": bool(r.get("attention_bias", default=bias_out)),
        "bias_mlp": bool(r.get("mlp_bias", default=False)),
    }


def _window(r: Reader, layers: int, default: int | None = None, every: int | None = None) -> Fields:
    """Sliding windows: with full layers by `layer_types` or `sliding_window_pattern`, else in every layer.

    `default` is the family's own size and `every` its own pattern, for a configuration that gives none.
    """
    size = r.get("sliding_window", default=default)
    kinds = r.get("layer_types")
    if size is None or (kinds and "sliding_attention" not in kinds):
        return {}
    if not kinds:
        every = r.get("sliding_window_pattern", "_sliding_window_pattern", default=every)
        return {"sliding_window": size, **({"full_every": every} if every else {})}
    full = [index + 1 for index, kind in enumerate(kinds) if kind != "sliding_attention"]
    if not full:
        return {"sliding_window": size}
    rule = [place for place in range(1, layers + 1) if place % full[0] == 0]
    r.refuse(full != rule, "layer_types: full attention is not in every n-th layer")
    return {"sliding_window": size, "full_every": full[0]}


def _late_window(r: Reader, layers: int) -> Fields:
    """Qwen's windows: none unless turned on; without `layer_types` they start at layer `max_window_layers`."""
    first = r.get("max_window_layers", default=0)
    if not r.get("use_sliding_window") or (first >= layers and not r.get("layer_types")):
        return {}
    late = first > 0 and not r.get("layer_types")
    r.refuse(late, f"max_window_layers: windows in the layers from {first} on alone, which no rule tells")
    return _window(r, layers)


def _mistral(r: Reader) -> Fields:
    fields = _llama(r)
    return {**fields, "attention": _window(r, fields["layers"])}


def _moe(r: Reader, *names: str, width: int | None = None) -> Fields:
    """Experts; `names`: the keys that may hold their number, `width`: theirs where they have no key of their own."""
    fields = {"experts": r.size(*names), "top_k": r.size("num_experts_per_tok")}
    return {**fields, "expert_ffn": r.size("moe_intermediate_size") if width is None else width}


def _mixtral(r: Reader) -> Fields:
    fields = _mistral(r)
    return {**fields, "moe": _moe(r, "num_local_experts", width=fields["ffn"])}


def _qwen2(r: Reader) -> Fields:
    """Biases of queries, keys and values, whatever the configuration says."""
    fields = _llama(r)
    window = _late_window(r, fields["layers"])
    return {**fields, "bias_qkv": True, "bias_attention_out": False, "attention": window}


def _qwen3(r: Reader) -> Fields:
    """Norms of queries and keys by head; head_dim is 128 by default."""
    fields = _llama(r)
    window = _late_window(r, fields["layers"])
    head_dim = fields["head_dim"] or 128
    return {**fields, "head_dim": head_dim, "attention": {"qk_norm": "head", **window}}


def _qwen_experts(r: Reader, fields: Fields) -> Fields:
    step = r.get("decoder_sparse_step", default=1)
    r.refuse(r.get("mlp_only_layers"), "mlp_only_layers: layers without experts in places that no rule tells")
    moe = _moe(r, "num_experts", "num_local_experts")
    moe |= {"freq": step, "offset": step - 1} if step > 1 else {}
    shared = r.get("shared_expert_intermediate_size")
    if shared and r.get("model_type") == "qwen2_moe":
        moe |= {"shared_experts": 1, "shared_ffn": shared, "shared_gate": True}
    return {**fields, "moe": moe}


def _deepseek(r: Reader) -> Fields:
    """Latent attention, experts after the first layers; from version 3 with a bias of the router (noaux_tc)."""
    fields = _llama(r)
    r.refuse(r.get("index_topk"), "sparse attention with an indexer is not supported")
    latent = {"kind": "mla", "q_lora": r.get("q_lora_rank"), "kv_lora": r.size("kv_lora_rank")}
    latent |= {name: r.size(f"{name}_head_dim") for name in ("qk_nope", "qk_rope")} | {"v_head": r.size("v_head_dim")}
    own = {"head_dim": latent["qk_nope"], "kv_heads": fields["heads"], "bias_qkv": False}
    return {
        **fields,
        **own,
        "attention": {name: value for name, value in latent.items() if value is not None},
        "moe": _routed(r),
        "mtp_layers": r.get("num_nextn_predict_layers", default=0),
    }


def _routed(r: Reader) -> Fields:
    """Experts by DeepSeek's names."""
    if r.get("n_routed_experts") is None:
        return {}
    biased = r.get("topk_method") == "noaux_tc" or str(r.get("model_type")) in ("deepseek_v3", "glm4_moe")
    first, every = _expert_layers(r)
    groups, taken = r.get("n_group", default=1), r.get("topk_group", default=1)
    return {
        **_moe(r, "n_routed_experts"),
        **({"shared_experts": shared} if (shared := r.get("n_shared_experts")) else {}),
        **({"first_dense": first} if first else {}),
        **({"freq": every} if every > 1 else {}),
        **({"router_bias": True} if biased else {}),
        **({"groups": groups, "top_groups": taken} if groups and taken and groups > taken else {}),
    }


def _expert_layers(r: Reader) -> tuple[int, int]:
    """Dense layers at the start, and every how many layers has experts after them.

    `moe_layer_freq` as a list, as Megatron has it, says 0 or 1 of each layer.
    """
    first, every = r.get("first_k_dense_replace", default=0), r.get("moe_layer_freq", default=1)
    if isinstance(every, list):
        dense = next((place for place, has in enumerate(every) if has), len(every))
        r.refuse(every != [0] * dense + [1] * (r.size("num_hidden_layers") - dense), f"moe_layer_freq: {_LISTED}")
        return dense, 1
    r.refuse(isinstance(every, bool) or not isinstance(every, int), f"moe_layer_freq: neither a number nor {_LISTED}")
    return first, every if isinstance(every, int) else 1


def _glm4_moe(r: Reader) -> Fields:
    fields = {**_llama(r), "bias_attention_out": False}
    norm = {"qk_norm": "head"} if r.get("use_qk_norm") else {}
    extra = r.get("num_nextn_predict_layers", default=0)
    return {**fields, "attention": norm, "moe": _routed(r), "mtp_layers": extra}


def _gemma(r: Reader) -> Fields:
    fields = _llama(r, tied=True)
    return {**fields, "head_dim": fields["head_dim"] or 256, "activation": "geglu_tanh"}


def _gemma2(r: Reader) -> Fields:
    fields = {**_gemma(r), "norms_per_layer": 4}
    return {**fields, "attention": _window(r, fields["layers"], 4096, 2)}


def _gemma3(r: Reader) -> Fields:
    fields = {**_gemma(r), "norms_per_layer": 4}
    return {**fields, "attention": {"qk_norm": "head", **_window(r, fields["layers"], 4096, 6)}}


def _gpt_oss(r: Reader) -> Fields:
    """Biases everywhere, also of experts and router; learned sinks; windows in every other layer. Its experts multiply
    x * sigmoid(1.702 x), cut off at `swiglu_limit`, by one more than the other half (modeling_gpt_oss.py)."""
    gate = {"activation": "quick_geglu", "gate_offset": 1, "activation_clamp": r.get("swiglu_limit", default=7)}
    fields = {**_llama(r, bias_qkv=True, bias_out=True), "bias_mlp": True, **gate}
    router = {"router_bias": True, "router_softmax": True}  # of its product, as all others; GptOssTopKRouter
    moe = {**_moe(r, "num_local_experts", width=fields["ffn"]), **router}
    return {**fields, "moe": moe, "attention": {"sinks": True, **_window(r, fields["layers"], 128, 2)}}


def _phi3(r: Reader) -> Fields:
    fields = _llama(r)
    return {**fields, "bias_qkv": False, "bias_attention_out": False, "attention": _window(r, fields["layers"])}


def _phimoe(r: Reader) -> Fields:
    """Layer norms with biases; a bias of the head (lm_head_bias) is too small to count."""
    fields = {**_mixtral(r), "norm": "layernorm"}
    r.refuse(r.get("sliding_window") and r.get("sliding_window") < (fields["max_positions"] or 0), "sliding windows")
    return {**fields, "attention": {}}


def _glm(r: Reader) -> Fields:
    """GLM-4: biases of queries, keys and values only; from GLM-4-0414 norms behind the blocks too."""
    fields = {**_llama(r, bias_qkv=True), "bias_attention_out": False}
    norms = {"norms_per_layer": 4} if r.get("model_type") == "glm4" else {}
    return {**fields, **norms, "head_dim": fields["head_dim"] or 128}


def _olmo2(r: Reader) -> Fields:
    """Norms behind the blocks, and of whole queries and keys."""
    fields = _llama(r)
    window = _window(r, fields["layers"], 4096, 4) if r.get("model_type") == "olmo3" else {}
    return {**fields, "attention": {"qk_norm": "layer", **window}}


def _olmoe(r: Reader) -> Fields:
    fields = _llama(r)
    moe = _moe(r, "num_experts", "num_local_experts", width=fields["ffn"])
    return {**fields, "attention": {"qk_norm": "layer"}, "moe": moe}


def _olmo(r: Reader) -> Fields:
    """Norms without weights, which no field says: counted as RMSNorm's, a few parameters in a hundred thousand."""
    return _llama(r)


def _internlm(r: Reader) -> Fields:
    """Biases of all four projections of attention, by `bias`: true for InternLM and false for InternLM2 by default."""
    first = r.get("model_type") == "internlm"
    biased = bool(r.get("bias", default=first))
    return {**_llama(r), "bias_qkv": biased, "bias_attention_out": biased}


def _baichuan(r: Reader) -> Fields:
    """Positions by its code, not its configuration: ALiBi in the 13B models (40 heads), rotary in those of 7B."""
    fields = _llama(r)
    positions = fields["max_positions"] or r.get("model_max_length")
    alibi = {"position": "alibi"} if fields["heads"] == 40 else {}
    return {**fields, **alibi, "max_positions": positions}


def _minimax_m2(r: Reader) -> Fields:
    fields = _mixtral(r)
    moe = {**fields["moe"], **({"router_bias": True} if r.get("use_routing_bias", default=True) else {})}
    norm = {"qk_norm": "layer"} if r.get("use_qk_norm", default=True) else {}
    extra = r.get("num_mtp_modules", default=0) if r.get("use_mtp") else 0
    return {**fields, "moe": moe, "attention": norm, "mtp_layers": extra}


def _llama4(r: Reader) -> Fields:
    """Experts in every layer, or in every other from the second; one shared expert; dense layers of another width.
    Every fourth layer has no rotary embedding, unless a list says other ones."""
    listed = r.get("no_rope_layers") or []
    turned = listed if isinstance(listed, list) else []
    usual = turned == [int((layer + 1) % 4 > 0) for layer in range(len(turned))]
    fields = {**_llama(r), "attention": {"no_rope_every": 4} if usual else {}}
    step = r.get("interleave_moe_layer_step", default=1)
    moe = {**_moe(r, "num_local_experts", width=fields["ffn"]), "shared_experts": 1}
    moe |= {"freq": step, "offset": step - 1} if step > 1 else {}
    return {**fields, "ffn": r.get("intermediate_size_mlp", default=fields["ffn"]), "moe": moe}


def _seed_oss(r: Reader) -> Fields:
    fields = _llama(r, bias_qkv=True)
    return {**fields, "bias_attention_out": bool(r.get("attention_out_bias", default=False))}


LLAMA_LIKE: dict[str, Callable[[Reader], Fields]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_5_vl": _qwen2,
    "qwen2_5_vl_text": _qwen2,
    "qwen2_moe": lambda r: _qwen_experts(r, _qwen2(r)),
    "qwen3": _qwen3,
    "qwen3_moe": lambda r: _qwen_experts(r, _qwen3(r)),
    "qwen3_vl_text": _qwen3,
    "qwen3_vl_moe_text": lambda r: _qwen_experts(r, _qwen3(r)),
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "glm4_moe": _glm4_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gemma3": _gemma3,
    "gpt_oss": _gpt_oss,
    "phi3": _phi3,
    "phimoe": _phimoe,
    "glm": _glm,
    "glm4": _glm,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmo3": _olmo2,
    "olmoe": _olmoe,
    "granite": _llama,
    "granitemoe": _mixtral,
    "internlm": _internlm,
    "internlm2": _internlm,
    "baichuan": _baichuan,
    "minimax_m2": _minimax_m2,
    "llama4_text": _llama4,
    "seed_oss": _seed_oss,
}
"""model_type -> how its configuration is read."""
