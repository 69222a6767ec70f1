"""Small models at random whose layers are of sorts that few models have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.problems import model_spec

Fields = dict[str, Any]
MOE = {"experts": 2, "top_k": 1, "expert_ffn": 512}
MAMBA = {"heads": 8, "head_dim": 64, "groups": 4, "state": 64, "conv": 4}
DELTA = {"kind": "gated_deltanet", "conv": 4, "key_heads": 4, "key_dim": 64, "value_heads": 8, "value_dim": 64}
KIMI = {"kind": "kimi_delta_attention", "heads": 8, "dim": 64, "conv": 4}
LATENT = {"kind": "mla", "q_lora": 128, "kv_lora": 128, "qk_nope": 64, "qk_rope": 32, "v_head": 64}
COMPRESSED = {"kind": "csa", "q_lora": 128, "qk_rope": 32, "o_lora": 64, "o_groups": 4, "sliding_window": 128}
WINDOWS = {"sliding_window": 128, "global_head_dim": 256, "global_kv_heads": 2}


def special_model(rng: np.random.Generator, layers: int) -> Fields:
    """A model of one of the sorts below."""
    sizes = {"layers": layers, "hidden": 512, "ffn": 1024, "vocab": 4000}
    made = SORTS[int(rng.integers(len(SORTS)))]
    return model_spec(**sizes, tied_embeddings=bool(rng.random() < 0.3), **made(rng, layers))


def _blocks(rng: np.random.Generator, layers: int) -> Fields:
    """State space, dense blocks and attention, each a layer; in half of the models with multi-token prediction."""
    pattern = _pattern(rng, "M-*", layers)
    return {"layer_pattern": pattern, "mamba": MAMBA, **_modules(rng, pattern)}


def _experts(rng: np.random.Generator, layers: int) -> Fields:
    """The same with experts, in half of the models of a latent width."""
    pattern = _pattern(rng, "ME*", layers)
    moe = {**MOE, "latent": 256} if rng.random() < 0.5 else MOE
    return {"layer_pattern": pattern, "mamba": MAMBA, "moe": moe, **_modules(rng, pattern)}


def _modules(rng: np.random.Generator, pattern: str) -> Fields:
    """In half of the models one or two modules of two of its blocks, of these in half with the weights of one."""
    if rng.random() < 0.5:
        return {}
    own = "".join(pattern[int(rng.integers(len(pattern)))] for _ in range(2))
    return {"mtp_layers": int(rng.integers(1, 3)), "mtp_pattern": own, "mtp_repeated": bool(rng.random() < 0.5)}


def _delta(rng: np.random.Generator, layers: int) -> Fields:
    """A delta rule in every other layer, with experts in half of the models."""
    return {"linear_attention": DELTA, "full_attention_interval": 2, **({"moe": MOE} if rng.random() < 0.5 else {})}


def _kimi(rng: np.random.Generator, layers: int) -> Fields:
    """Kimi's in the first layers, and in half of the models experts in all but the first."""
    moe = {"moe": {**MOE, "first_dense": 1}} if rng.random() < 0.5 else {}
    return {"linear_attention": {**KIMI, "layers": int(rng.integers(1, layers + 1))}, **moe}


def _indexer(rng: np.random.Generator, layers: int) -> Fields:
    """Latent attention over keys that an indexer selects."""
    return selected(int(rng.choice([64, 256])))


def selected(topk: int) -> Fields:
    """Latent attention over so many keys that an indexer selects."""
    return {"attention": {**LATENT, "indexer": {"heads": 4, "dim": 64, "topk": topk}}}


def _compressed(rng: np.random.Generator, layers: int) -> Fields:
    """Windows and compressed keys, in half of the models with two residual streams."""
    ratios = tuple(int(each) for each in rng.choice([0, 4, 64], layers))
    return compressed(ratios, streams=int(rng.choice([1, 2])))


def compressed(ratios: tuple[int, ...], streams: int = 2) -> Fields:
    """Windows, and keys of so many tokens each beyond them in each layer; so many residual streams."""
    attention = {**COMPRESSED, "indexer": {"heads": 4, "dim": 64, "topk": 64}, "compression": list(ratios)}
    return {"kv_heads": 1, "residual_streams": streams, "attention": attention}


def _shortcuts(rng: np.random.Generator, layers: int) -> Fields:
    """Two attentions and two dense blocks a layer beside experts, in half of the models with some that do nothing."""
    return shortcut(int(rng.choice([0, 2])))


def shortcut(idle: int = 2) -> Fields:
    """A layer like LongCat's, with so many experts that do nothing."""
    moe = {"experts": 4, "top_k": 2, "expert_ffn": 512, "zero_experts": idle, "shortcut": True, "router_bias": True}
    return {"attention": LATENT, "moe": moe}


def _widths(rng: np.random.Generator, layers: int) -> Fields:
    """Heads of another width in layers that attend fully."""
    every = min(int(rng.choice([1, 2, 3])), layers)
    shared = bool(rng.random() < 0.5)
    return {"kv_heads": 4, "attention": {**WINDOWS, "full_every": every, "global_shared_kv": shared}}


def _side_by_side(rng: np.random.Generator, layers: int) -> Fields:
    """Attention and feed-forward side by side."""
    return {"norms_per_layer": 1}


SORTS: tuple[Callable[[np.random.Generator, int], Fields], ...] = (
    *(_blocks, _experts, _delta, _kimi),
    *(_indexer, _compressed, _widths, _side_by_side, _shortcuts),
)


def _pattern(rng: np.random.Generator, letters: str, layers: int) -> str:
    """All of the letters, as far as there are layers, and any of them beyond, in any order; state space in any case."""
    chosen = [*letters, *rng.choice(list(letters), max(0, layers - len(letters)))][:layers]
    pattern = "".join(str(letter) for letter in rng.permutation(chosen))
    return pattern if "E" in pattern or "E" not in letters else "E" + pattern[1:].replace("*", "M", 1)
