"""Hugging Face configurations (config.json) as architectures, and the families that differ from LLaMA.

What a key means, and what a model has that its configuration does not say (biases, norms, tied embeddings), follows the
configuration and modelling code of transformers 5.23, whose models were counted parameter by parameter to compare. For
families that it lacks (chatglm, qwen) it follows the code that their checkpoints bring along.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from models_zoo.consistency import MOST_SIZE
from models_zoo.hugging_face_hybrid import HYBRID
from models_zoo.hugging_face_llama import LLAMA_LIKE, Config, Fields, Reader
from models_zoo.hugging_face_more import MORE
from models_zoo.hugging_face_vision import vision_fields


class UnsupportedConfigError(ValueError):
    """A Hugging Face configuration that no architecture here can express.

    `where` and `value` are the key in question ("": several), `reasons` what is wrong, `allowed` what would be right,
    `nearest` the families most like the one written.
    """

    def __init__(
        self, where: str, value: object, reasons: list[str], allowed: str | None = None, nearest: tuple[str, ...] = ()
    ) -> None:
        super().__init__("; ".join(reasons))
        self.where, self.value, self.reasons = where, value, tuple(reasons)
        self.allowed, self.nearest = allowed, nearest


def is_hugging_face(data: object) -> bool:
    """Whether plain values are a Hugging Face configuration, not fields of an architecture."""
    return isinstance(data, Mapping) and "model_type" in data


def supported_families() -> tuple[str, ...]:
    """The values of `model_type` that can be read."""
    return tuple(sorted(_FAMILIES))


def from_hugging_face(config: Config) -> Fields:
    """The fields of the architecture that a configuration describes; of one with several parts the text model, and
    the encoder of images where that is of a known kind.

    Raises UnsupportedConfigError for a family that is not known, keys that are missing, or what no field can say.
    """
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and "hidden_size" in inner:
        outer = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
        family = inner.get("model_type", config["model_type"])
        vision = vision_fields(config)
        beside = {} if vision is None else {"vision": vision}
        return {**from_hugging_face({**outer, **inner, "model_type": family}), **beside}
    if isinstance(inner, Mapping) and "hidden_size" not in config:
        owner = inner.get("_name_or_path")
        whose = f" ({owner})" if isinstance(owner, str) and owner else ""
        reason = (
            f"leaves the text model's sizes to defaults that it does not say: give that model's own config.json{whose}"
        )
        raise UnsupportedConfigError("text_config", None, [reason])
    family = str(config["model_type"])
    if family not in _FAMILIES:
        near = difflib.get_close_matches(family, _FAMILIES, n=2, cutoff=0.8)  # misspelt; relatives differ in shape
        allowed = ", ".join(supported_families())
        raise UnsupportedConfigError("model_type", family, ["is not a family that can be read"], allowed, tuple(near))
    reader = Reader(config)
    reader.refuse_sizes()
    if reader.reasons:
        raise UnsupportedConfigError("", None, reader.reasons)
    try:
        fields = _FAMILIES[family](reader)
    except UnsupportedConfigError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        reason = f"has a key whose value is of another kind than {family} has it: {error}"
        raise UnsupportedConfigError("", None, [*reader.reasons, reason]) from None
    if reader.reasons:
        raise UnsupportedConfigError("", None, reader.reasons)
    vision = vision_fields(config)  # a text model's keys beside a part for images, as older configurations have it
    fields = {**_constants(reader, fields), **fields, "vision": vision}
    return {name: value for name, value in fields.items() if value is not None and value != {}}


def _constants(r: Reader, fields: Fields) -> Fields:
    """What no plan depends on, but who trains the model has to know; nothing where a key has no usable number."""
    rope = r.get("rope_parameters", default={})
    base = _positive(r.get("rope_theta", default=rope.get("rope_theta") if isinstance(rope, Mapping) else None))
    scaling = _positive(r.get("routed_scaling_factor")) if fields.get("moe") else None
    return {
        "norm_epsilon": _positive(r.get("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps")),
        "rotary_base": int(base) if fields.get("position", "rope") == "rope" and base and base == int(base) else None,
        "router_scaling": None if scaling == 1 else scaling,
    }


def _positive(value: object) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MOST_SIZE
    return float(value) if usable else None  # type: ignore[arg-type]


def _plain_gpt(r: Reader, layers: int, hidden: int, heads: int, ffn: int) -> Fields:
    """GPT-2's block: layer norms and linear layers with biases, GELU, no gate, as many key-value heads as heads."""
    return {
        "layers": layers,
        "hidden": hidden,
        "ffn": ffn,
        "heads": heads,
        "vocab": r.size("vocab_size"),
        "gated_mlp": False,
        "activation": "gelu",
        "norm": "layernorm",
        "tied_embeddings": bool(r.get("tie_word_embeddings", default=True)),
        **_biases(True),
    }


def _biases(biased: bool) -> Fields:
    return {"bias_qkv": biased, "bias_attention_out": biased, "bias_mlp": biased}


def _block_sizes(r: Reader) -> tuple[int, int, int]:
    """Layers, width and heads by their usual names."""
    return r.size("num_hidden_layers"), r.size("hidden_size"), r.size("num_attention_heads")


def _gpt2(r: Reader) -> Fields:
    """GPT-2, and GPT-BigCode, whose queries may share one key and value head."""
    hidden = r.size("n_embd", "hidden_size")
    heads = r.size("n_head", "num_attention_heads")
    layers = r.size("n_layer", "num_hidden_layers")
    fields = _plain_gpt(r, layers, hidden, heads, r.get("n_inner", default=4 * hidden))
    shared = str(r.get("model_type")) == "gpt_bigcode" and r.get("multi_query", default=True)
    positions = r.size("n_positions", "max_position_embeddings")
    return {**fields, **({"kv_heads": 1} if shared else {}), "position": "learned", "max_positions": positions}


def _gpt_neox(r: Reader) -> Fields:
    """GPT-NeoX and Pythia: attention and MLP side by side, each with a norm of its own."""
    fields = _plain_gpt(r, *_block_sizes(r), r.size("intermediate_size"))
    biased = bool(r.get("attention_bias", default=True))
    tied = bool(r.get("tie_word_embeddings", default=False))
    own = {"tied_embeddings": tied, "bias_qkv": biased, "bias_attention_out": biased}
    return {**fields, **own, "max_positions": r.get("max_position_embeddings")}


def _bloom(r: Reader) -> Fields:
    """BLOOM: ALiBi, and a norm after the word embeddings."""
    hidden = r.size("hidden_size", "n_embed")
    layers, heads = r.size("n_layer", "num_hidden_layers"), r.size("n_head", "num_attention_heads")
    fields = _plain_gpt(r, layers, hidden, heads, 4 * hidden)
    return {**fields, "position": "alibi", "embedding_norm": True, "max_positions": r.get("seq_length", default=2048)}


def _falcon(r: Reader) -> Fields:
    """Falcon: no biases by default; key-value heads by decoder. Attention and MLP may share one norm."""
    hidden = r.size("hidden_size")
    heads = r.size("num_attention_heads", "n_head")
    ffn = r.get("ffn_hidden_size", default=4 * hidden)
    fields = _plain_gpt(r, r.size("num_hidden_layers", "n_layer"), hidden, heads, ffn)
    new, biased = bool(r.get("new_decoder_architecture")), bool(r.get("bias", default=False))
    kv_heads = r.get("num_kv_heads", default=heads) if new else 1 if r.get("multi_query", default=True) else heads
    norms = r.get("num_ln_in_parallel_attn", default=2 if new else 1)
    one_norm = r.get("parallel_attn", default=True) and norms == 1
    position = {"position": "alibi"} if r.get("alibi") else {}
    positions = r.get("max_position_embeddings", default=2048)
    shared = {"norms_per_layer": 1} if one_norm else {}
    return {**fields, **position, **shared, **_biases(biased), "kv_heads": kv_heads, "max_positions": positions}


def _opt(r: Reader) -> Fields:
    """OPT: learned positions in a table with two rows more."""
    sizes = _block_sizes(r)
    fields = _plain_gpt(r, *sizes, r.size("ffn_dim"))
    r.refuse(r.get("word_embed_proj_dim", default=sizes[1]) != sizes[1], "word_embed_proj_dim differs from hidden_size")
    r.refuse(r.get("do_layer_norm_before") is False, "norms behind the blocks (do_layer_norm_before: false)")
    biased = bool(r.get("enable_bias", default=True))
    affine = bool(r.get("layer_norm_elementwise_affine", default=True))
    r.refuse(not affine, "norms without weights (layer_norm_elementwise_affine: false)")
    learned = {"position": "learned", "position_offset": 2, "max_positions": r.size("max_position_embeddings")}
    return {**fields, **_biases(biased), **learned}


def _starcoder2(r: Reader) -> Fields:
    """StarCoder2: grouped queries, no gate, layer norms, biases everywhere."""
    window = r.get("sliding_window")
    return {
        **_plain_gpt(r, *_block_sizes(r), r.size("intermediate_size")),
        **_biases(bool(r.get("use_bias", default=True))),
        "kv_heads": r.get("num_key_value_heads", default=2),
        "max_positions": r.get("max_position_embeddings"),
        "attention": {"sliding_window": window} if window else {},
    }


def _chatglm(r: Reader) -> Fields:
    """ChatGLM2 and 3, GLM-4-9B in its first form."""
    heads = r.size("num_attention_heads")
    grouped = r.get("multi_query_attention")
    linear = bool(r.get("add_bias_linear", default=False))
    rms = bool(r.get("rmsnorm", default=True))
    return {
        "layers": r.size("num_layers"),
        "hidden": r.size("hidden_size"),
        "ffn": r.size("ffn_hidden_size"),
        "heads": heads,
        "kv_heads": r.get("multi_query_group_num", default=1) if grouped else heads,
        "head_dim": r.get("kv_channels"),
        "vocab": r.size("padded_vocab_size", "vocab_size"),
        "max_positions": r.get("seq_length"),
        "norm": "rmsnorm" if rms else "layernorm",
        "tied_embeddings": bool(r.get("tie_word_embeddings", default=False)),
        "bias_qkv": bool(r.get("add_qkv_bias", default=False)) or linear,
        "bias_attention_out": linear,
        "bias_mlp": linear,
    }


def _qwen(r: Reader) -> Fields:
    """The first Qwen: intermediate_size counts gate and up projection together; biases of queries, keys and values."""
    return {
        "layers": r.size("num_hidden_layers"),
        "hidden": r.size("hidden_size"),
        "ffn": r.size("intermediate_size") // 2,
        "heads": r.size("num_attention_heads"),
        "head_dim": r.get("kv_channels"),
        "vocab": r.size("vocab_size"),
        "max_positions": r.get("seq_length"),
        "tied_embeddings": bool(r.get("tie_word_embeddings", default=False)),
        "bias_qkv": True,
    }


_FAMILIES: dict[str, Callable[[Reader], Fields]] = {
    **LLAMA_LIKE,
    **HYBRID,
    **MORE,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt2,
    "gpt_neox": _gpt_neox,
    "bloom": _bloom,
    "falcon": _falcon,
    "opt": _opt,
    "starcoder2": _starcoder2,
    "chatglm": _chatglm,
    "qwen": _qwen,
}
"""model_type -> how its configuration is read."""
