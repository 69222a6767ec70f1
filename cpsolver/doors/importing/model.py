"""The model that a training command builds: its arguments, and Megatron's defaults, as fields of an architecture.

Sources: Megatron-LM core_v0.12.1 and d98e8a6 (megatron/training/arguments.py: validate_args,
core_transformer_config_from_args), MindSpeed-LLM c77308a1 (features_manager), AscendSpeed e35df80 (pretrain_llama.py),
Megatron-DeepSpeed 4efb479d and BigScience's 8387ae1 (megatron/arguments.py, model/glu_activations.py),
Pai-Megatron-Patch a098ca5 (megatron_patch/model/starcoder/transformer.py).
"""

from __future__ import annotations

import re
from typing import Any

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.doors.importing.layer_kinds import (
    bit_pattern,
    compressed_fields,
    indexer_fields,
    linear_fields,
    pattern_fields,
    pattern_length,
)
from cpsolver.doors.importing.scope import refuse_models
from cpsolver.inputs.language import say

_LLAMA_LIKE = re.compile(r"pretrain_(llama|baichuan|aquila)")
"""Programs of AscendSpeed that build a LLaMA whatever the arguments say."""
_OF_MEGATRON = ("disable-bias-linear", "normalization", "swiglu", "transformer-impl", "use-mcore-models")
"""Arguments that AscendSpeed e35df80 has not: with them a program's model is by the arguments, whatever its name is."""
_POSITIONS = 2**31
"""More positions than any model has; sequences and batches are shorter (`cpsolver.spec.training.MOST`)."""


def model_fields(arguments: Arguments, program: str) -> dict[str, Any]:
    """The fields of the architecture that the arguments give; without `vocab` where it is left to the tokenizer.

    What is wrong or missing goes to `arguments.troubles`.
    """
    sizes = {name: arguments.number(name) for name in ("num-layers", "hidden-size", "num-attention-heads")}
    if sizes["num-layers"] is None:
        sizes["num-layers"] = pattern_length(arguments)
    for name in (name for name, value in sizes.items() if value is None):
        if not any(trouble.where == f"--{name}" for trouble in arguments.troubles):
            arguments.trouble(f"--{name}", say("is not given: {where}", where=_where_from(arguments)))
    refuse_models(arguments)
    layers, hidden, heads = sizes["num-layers"], sizes["hidden-size"], sizes["num-attention-heads"]
    if layers is None or hidden is None or heads is None:
        return {}
    style = _style(arguments, program)
    fields: dict[str, Any] = {
        "layers": layers - len(noop_layers(arguments)),
        "hidden": hidden,
        "ffn": _either(arguments, "ffn-hidden-size", "intermediate-size", _default_ffn(hidden, arguments, style)),
        "heads": heads,
        "kv_heads": _kv_heads(arguments, heads),
        **({"head_dim": width} if (width := arguments.number("kv-channels")) else {}),
        "max_positions": arguments.number("max-position-embeddings", most=_POSITIONS),
        **style,
        "attention": _attention(arguments),
        **linear_fields(arguments),
        **({"residual_streams": arguments.number("hc-mult", 4)} if arguments.has("enable-mhc") else {}),
    }
    vocab = [arguments.number(name) for name in ("vocab-size", "pad-vocab-size-to", "padded-vocab-size")]
    if sizes_given := [number for number in vocab if number]:
        fields["vocab"] = sizes_given[0]
    if (experts := _experts(arguments, fields["layers"], int(fields["ffn"] or 0))) is not None:
        fields["moe"] = experts
    if mtp_layers := arguments.number("mtp-num-layers", least=0):
        fields["mtp_layers"] = mtp_layers
        if arguments.has("mtp-use-repeated-layer"):
            fields["mtp_repeated"] = True
    if fields["attention"].get("kind") == "mla":
        fields["kv_heads"] = heads
        fields["head_dim"] = fields["attention"]["qk_nope"]
    elif fields["attention"].get("kind") == "csa":
        fields |= {"kv_heads": 1, "head_dim": arguments.number("qk-head-dim", 128)}
    fields |= pattern_fields(arguments)
    return {name: value for name, value in fields.items() if value is not None and value != {}}


def noop_layers(arguments: Arguments) -> list[int]:
    """Places of MindSpeed's layers that do nothing. --num-layers counts them."""
    return arguments.numbers("noop-layers") or []


def _where_from(arguments: Arguments) -> str:
    unknown = [word for word in arguments.loose if word.startswith("$")]
    return (
        say("it may be in {unknown}, whose value is not known", unknown=", ".join(unknown))
        if unknown
        else say("the model needs it")
    )


def _default_ffn(hidden: int, arguments: Arguments, style: dict[str, Any]) -> int:
    """Megatron's: 4 h; with SwiGLU 2/3 of it, in whole 64s (validate_args), but not with those of _GIVEN_WIDE."""
    narrower = style["gated_mlp"] and not any(map(arguments.has, _GIVEN_WIDE))
    return int(4 * hidden * 2 / 3 / 64) * 64 if narrower else 4 * hidden


def _kv_heads(arguments: Arguments, heads: int) -> int:
    if own := arguments.number("num-key-value-heads") or arguments.number("n-head-kv"):
        return own
    if arguments.text("attention-head-type") == "multiquery":
        return 1
    groups = arguments.number("num-query-groups", 1)
    return groups if arguments.has("group-query-attention") and groups else heads


_GATED = {
    "swiglu": "swiglu",
    "gelu-tanh": "geglu_tanh",
    "geglu": "geglu",
    "quick-geglu": "quick_geglu",
    "t5-swiglu": "swiglu",  # OpenGPTX/Megatron-LM f8d245d
}
_ACTIVATIONS = {**_GATED, "squared-relu": "relu2"}
"""Flags of activations -> ours; without one it is GELU."""
_GIVEN_WIDE = ("glu-activation", "quick-geglu", "t5-swiglu")
"""Gates that leave the width as it is."""
_GLU = ("swiglu", "geglu")
"""Values of --glu-activation that an architecture here says."""


def _gate(arguments: Arguments) -> dict[str, Any]:
    """What gpt-oss's gate has besides."""
    named = {"gate_offset": "glu-linear-offset", "activation_clamp": "activation-func-clamp-value"}
    return {field: value for field, name in named.items() if (value := arguments.real(name, 0.0))}


def _style(arguments: Arguments, program: str) -> dict[str, Any]:
    """Norms, biases, activation, positions and the head."""
    if _LLAMA_LIKE.search(program) and not arguments.given.keys() & set(_OF_MEGATRON):
        style = {"gated_mlp": True, "norm": "rmsnorm", "position": "rope", "tied_embeddings": False}
        return {**style, "bias_qkv": False, "bias_attention_out": False, "bias_mlp": False}
    named = (arguments.text("normalization", "LayerNorm") or "").lower()
    rms = named == "rmsnorm" or arguments.has("RMSNorm")  # the latter of alibaba/Megatron-LLaMA 25306de
    biased = not arguments.has("disable-bias-linear")
    glu = arguments.text("glu-activation")
    if glu is not None and glu not in _GLU:
        arguments.trouble("--glu-activation", "is of no architecture here", glu, ", ".join(_GLU))
    return {
        "gated_mlp": any(arguments.has(flag) for flag in (*_GATED, "glu-activation")),
        "activation": glu or next((name for flag, name in _ACTIVATIONS.items() if arguments.has(flag)), "gelu"),
        **_gate(arguments),
        "norm": "rmsnorm" if rms else "layernorm",
        **({"norms_per_layer": 4} if arguments.has("post-norm") else {}),
        "position": _positions(arguments),
        **({"embedding_norm": True} if arguments.has("embed-layernorm") else {}),
        "tied_embeddings": not arguments.has("untie-embeddings-and-output-weights"),
        "bias_qkv": biased or arguments.has("add-qkv-bias"),
        "bias_attention_out": arguments.has("add-dense-bias") or biased,
        "bias_mlp": biased,
    }


_ROTARY = (
    "use-rotary-position-embeddings",
    "use-llama2-rotary-position-embeddings",
    "use-mistral-rotary-position-embeddings",
)


def _positions(arguments: Arguments) -> str:
    """Rotary by either flag. Without positions only where Megatron-DeepSpeed says so and names no type."""
    kinds = dict.fromkeys(("rope", "yarn", "mrope", "rotary", "deepseek4"), "rope") | {"alibi": "alibi", "none": "none"}
    named, none = arguments.text("position-embedding-type"), arguments.has("no-position-embedding")
    rotary = [arguments.has(name) for name in _ROTARY]
    if any(rotary):  # all are asked first: what was asked for counts as read
        return "rope"
    if arguments.has("use-alibi-mask"):  # Pai-Megatron-Patch a098ca5, model/baichuan2/transformer.py
        return "alibi"
    return kinds.get((named or "").lower(), "none" if none and named is None else "learned")


def _attention(arguments: Arguments) -> dict[str, Any]:
    normed = arguments.has("qk-layernorm")  # latent attention has its norms in any case
    latent = [arguments.has(name) for name in ("multi-latent-attention", "multi-head-latent-attention")]
    # Pai's first DeepSeek-V2 has no flag (megatron/core/models/deepseekv2 of A-Dying-Pig/Megatron-LM c232d7f)
    latent.append(arguments.has("kv-lora-rank") and arguments.has("qk-nope-head-dim"))
    if any(latent) and (compressed := compressed_fields(arguments, noop_layers(arguments))):
        return compressed
    if any(latent):
        rank = arguments.number("q-lora-rank")
        return {
            "kind": "mla",
            **({"q_lora": rank} if rank else {}),
            "kv_lora": arguments.number("kv-lora-rank", 32),
            "qk_nope": _either(arguments, "qk-head-dim", "qk-nope-head-dim", 128),
            "qk_rope": _either(arguments, "qk-pos-emb-head-dim", "qk-rope-head-dim", 64),
            "v_head": arguments.number("v-head-dim", 128),
            **indexer_fields(arguments),
        }
    over_all = arguments.has("qk-layernorm-over-all")  # LoongForge's MiniMax (megatron_files)
    fields: dict[str, Any] = {"qk_norm": "layer" if over_all else "head"} if normed else {}
    window = arguments.numbers("window-size")
    if window and window[0] > 0:
        fields["sliding_window"] = window[0] + 1  # tokens to the left and itself
        if arguments.has("window-attn-skip-freq") and (every := arguments.number("window-attn-skip-freq")):
            fields["full_every"] = every
    # --sliding-window: ModelLink d4feda7 and MindSpeed-LLM c77308a1, custom_dot_product_attention.py
    if size := arguments.number("sliding-window-size") or arguments.number("sliding-window"):
        fields["sliding_window"] = size
    if arguments.has("attention-output-gate") or arguments.has(
        "full-attention-interval"
    ):  # Qwen3-Next's, in MindSpeed-LLM
        fields["output_gate"] = True
    if arguments.text("softmax-type") == "learnable":
        fields["sinks"] = True
    if (unturned := arguments.text("no-rope-freq") or "").isdigit() and int(unturned):  # a list is of other layers
        fields["no_rope_every"] = int(unturned)
    if size := arguments.number("interleave-sliding-window"):
        fields |= {"sliding_window": size, "full_every": 2}
    return fields


def _either(arguments: Arguments, name: str, former: str, default: int) -> int | None:
    """An argument that MindSpeed-LLM (arguments/deprecated_args.py) or Pai-Megatron-Patch take by another name too."""
    return arguments.number(name) or arguments.number(former, default)


def _experts(arguments: Arguments, layers: int, ffn: int) -> dict[str, Any] | None:
    deepspeed = arguments.of_deepspeed()
    switch, blocks = arguments.has("num-experts-switch"), arguments.has("moe-num-experts")  # the latter MegaBlocks'
    # Megatron-DeepSpeed takes a number for each layer with experts
    counts = arguments.numbers("num-experts-switch" if switch else "moe-num-experts" if blocks else "num-experts")
    if counts is None or (deepspeed and counts == [1]):  # a dense model there
        return None
    if len(set(counts)) > 1:
        arguments.trouble("--num-experts", "differs from layer to layer, which no architecture here says", counts)
    experts = counts[0]
    width = arguments.number("moe-ffn-hidden-size") or arguments.number("moe-intermediate-size") or ffn
    if own_width := arguments.number("moe-hidden-size"):  # of these of the fork's experts alone
        width = own_width if arguments.text("moe-type") == "hf_mixtral" else width
    fields: dict[str, Any] = {
        "experts": experts,
        "top_k": 1 if switch else _top_k(arguments, deepspeed, blocks),
        "expert_ffn": width,
        **_which_layers(arguments, layers),
    }
    shared = arguments.number("n-shared-experts", 0, least=0) or 0
    shared_width = arguments.number("moe-shared-expert-intermediate-size")
    if shared:
        fields["shared_experts"] = shared
    elif shared_width is not None:
        whole, rest = divmod(shared_width, width)
        fields |= {"shared_experts": 1, "shared_ffn": shared_width} if rest else {"shared_experts": whole}
    if arguments.has("moe-shared-expert-gate") or arguments.has("shared-expert-gate"):
        fields["shared_gate"] = True
    if arguments.has("moe-router-enable-expert-bias"):
        fields["router_bias"] = True
    if idle := arguments.number("num-zero-experts", least=0):
        fields["zero_experts"] = idle
    if any("longcat_spec" in module for module in arguments.values("spec")):  # MindSpeed-LLM
        fields["shortcut"] = True
    if hashed := arguments.number("n-hash-layers", least=0):
        fields["hash_routed_layers"] = hashed
    if (groups := arguments.number("moe-router-num-groups", 1) or 1) > 1:
        fields |= {"groups": groups, "top_groups": arguments.number("moe-router-group-topk", groups)}
    return fields


def _top_k(arguments: Arguments, deepspeed: bool, blocks: bool) -> int | None:
    """Experts of a token by each parser's name and default; MegaBlocks' is stanford-futuredata/Megatron-LM 3a9e3d8."""
    if blocks:
        return arguments.number("moe-top-k", 1)
    return arguments.number("topk", 1) if deepspeed else arguments.number("moe-router-topk", 2)


def _which_layers(arguments: Arguments, layers: int) -> dict[str, int]:
    """Which layers have experts: every n-th, all after the first few, or by a list of zeros and ones."""
    if any(arguments.has(name) for name in ("moe-num-experts", "moe-type", "num-experts-switch")):
        return {}  # all of them
    if arguments.of_deepspeed():  # arguments.py of Megatron-DeepSpeed: 2
        every = arguments.number("expert-interval", 2) or 2
        return {"freq": every, "offset": every - 1} if every > 1 else {}
    first = max(0, arguments.number("first-k-dense-replace", 0, least=-1) or 0)  # MindSpeed-LLM: -1 is none
    text = arguments.text("moe-layer-freq", "1") or "1"
    text = "1" if text == "-1" else text
    if text.isdigit():
        every = max(1, int(text))
        return {**({"first_dense": first} if first else {}), **({"freq": every} if every > 1 else {})}
    pattern = bit_pattern(text)
    if pattern is None:
        arguments.trouble("--moe-layer-freq", say("is not followed"), text, say("a number, or lists as ([0]*3+[1]*58)"))
        return {}
    noops = noop_layers(arguments)
    pattern = [bit for place, bit in enumerate(pattern) if place not in noops][:layers]
    dense = pattern.index(1) if 1 in pattern else len(pattern)
    sparse = pattern[dense:]
    for every in range(1, layers + 1):
        if sparse == [int(index % every == 0) for index in range(len(sparse))]:
            offset = dense % every
            return {
                **({"first_dense": dense} if dense >= every else {}),
                **({"freq": every} if every > 1 else {}),
                **({"offset": offset} if offset else {}),
            }
    arguments.trouble("--moe-layer-freq", "has experts in places that no rule of the architecture tells", text)
    return {}
