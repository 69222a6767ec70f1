"""More Hugging Face families near LLaMA, by the configuration and modelling code of transformers 5.23.

Each function says what differs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from models_zoo.hugging_face_llama import LLAMA_LIKE, Fields, Reader


def _llama(r: Reader, tied: bool = False, normed: bool = False) -> Fields:
    """A LLaMA that may tie its embeddings by default and have norms of queries and keys."""
    fields = LLAMA_LIKE["llama"](r)
    norm: Fields = {"attention": {"qk_norm": "head"}} if normed else {}
    return {**fields, **norm, "tied_embeddings": bool(r.get("tie_word_embeddings", default=tied))}


def _exaone4(r: Reader) -> Fields:
    """Norms of queries and keys, and of what blocks give; windows but in every n-th layer."""
    fields, window, kinds = _llama(r, normed=True), r.get("sliding_window"), r.get("layer_types")
    full = [place for place, kind in enumerate(kinds or (), 1) if kind != "sliding_attention"]
    if window is None or not kinds or len(full) == fields["layers"]:
        return fields
    every = full[0] if full else None
    r.refuse(every and full != list(range(every, fields["layers"] + 1, every)), "layer_types: no n-th layer is full")
    windows = {"sliding_window": window, **({"full_every": every} if every else {})}
    return {**fields, "attention": {"qk_norm": "head", **windows}}


def _ungated(r: Reader, normed: bool = False, activation: str = "relu2") -> Fields:
    """Arcee and Apertus: a feed-forward block without a gate."""
    return {**_llama(r, normed=normed), "gated_mlp": False, "activation": activation}


def _ernie(r: Reader) -> Fields:
    """One switch for the biases of queries, keys, values, output and feed-forward."""
    biased = bool(r.get("use_bias", default=False))
    return {**_llama(r, tied=True), "bias_qkv": biased, "bias_attention_out": biased, "bias_mlp": biased}


def _ernie_moe(r: Reader) -> Fields:
    """Experts from one layer to another, every n-th, with a bias of the router and shared ones of their width."""
    fields = _ernie(r)
    first, every = r.get("moe_layer_start_index", default=0), r.get("moe_layer_interval", default=1)
    last = r.get("moe_layer_end_index", default=-1)
    r.refuse(last not in (-1, fields["layers"] - 1), "moe_layer_end_index: dense layers behind those with experts")
    shared = r.get("moe_num_shared_experts", default=0)
    moe = {
        "experts": r.size("moe_num_experts"),
        "top_k": r.size("moe_k"),
        "expert_ffn": r.size("moe_intermediate_size"),
        "router_bias": True,
        **({"shared_experts": shared} if shared else {}),
        **({"first_dense": first} if first else {}),
        **({"freq": every, "offset": every - 1} if every > 1 else {}),
    }
    return {**fields, "moe": moe}


def _cohere(r: Reader) -> Fields:
    """Attention and feed-forward side by side behind one norm without a bias; tied embeddings."""
    fields = _llama(r, tied=True)
    r.refuse(r.get("use_qk_norm"), "use_qk_norm: a norm for each head of its own")
    windows: Fields = {}
    if str(r.get("model_type")) == "cohere2":
        windows = {"sliding_window": r.get("sliding_window", default=4096), "full_every": 4}
        kinds = r.get("layer_types")
        full = [place for place, kind in enumerate(kinds or (), 1) if kind != "sliding_attention"]
        r.refuse(kinds and full != list(range(4, fields["layers"] + 1, 4)), "layer_types: not every fourth is full")
    return {**fields, "norm": "layernorm", "norm_bias": False, "norms_per_layer": 1, "attention": windows}


def _phi(r: Reader) -> Fields:
    """Phi (1, 1.5, 2): side by side behind one norm, biases everywhere; one of the head is too small to count."""
    fields = _llama(r)
    r.refuse(r.get("qk_layernorm"), "qk_layernorm: norms of queries and keys with biases")
    biases = {"bias_qkv": True, "bias_attention_out": True, "bias_mlp": True}
    return {**fields, **biases, "norm": "layernorm", "norms_per_layer": 1, "gated_mlp": False, "activation": "gelu"}


def _nemotron(r: Reader) -> Fields:
    """Nemotron-4: layer norms, squared ReLU without a gate."""
    return {**_ungated(r), "norm": "layernorm"}


MORE: dict[str, Callable[[Reader], Fields]] = {
    "ministral3": _llama,
    "mimo": lambda r: {**_llama(r), "bias_qkv": True},
    "ernie4_5": _ernie,
    "ernie4_5_moe": _ernie_moe,
    "hunyuan_v1_dense": partial(_llama, normed=True),
    "exaone4": _exaone4,
    "smollm3": partial(_llama, tied=True),
    "arcee": _ungated,
    "apertus": partial(_ungated, normed=True, activation="xielu"),
    "nemotron": _nemotron,
    "cohere": _cohere,
    "cohere2": _cohere,
    "phi": _phi,
    "helium": _llama,
}
"""model_type -> how its configuration is read."""
