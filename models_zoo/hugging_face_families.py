"""Families of Hugging Face configurations that are no LLaMA: keys of their own, other norms, biases and blocks.

By the configuration and modelling code of transformers 5.23, and for families that it lacks (chatglm,
qwen) by the code that their checkpoints bring along. Serves hugging_face.py.
"""

from __future__ import annotations

from collections.abc import Callable

from models_zoo.hugging_face_reader import Fields, Reader


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
        "bias_qkv": True,
        "bias_attention_out": True,
        "bias_mlp": True,
    }


def gpt2(r: Reader) -> Fields:
    """GPT-2, and GPT-BigCode, whose queries may share one key and value head."""
    hidden = r.size("n_embd", "hidden_size")
    heads = r.size("n_head", "num_attention_heads")
    layers = r.size("n_layer", "num_hidden_layers")
    fields = _plain_gpt(r, layers, hidden, heads, r.get("n_inner", default=4 * hidden))
    shared = str(r.get("model_type")) == "gpt_bigcode" and r.get("multi_query", default=True)
    positions = r.size("n_positions", "max_position_embeddings")
    return {**fields, **({"kv_heads": 1} if shared else {}), "position": "learned", "max_positions": positions}


def gpt_neox(r: Reader) -> Fields:
    """GPT-NeoX and Pythia: attention and MLP side by side, each with a norm of its own."""
    sizes = (r.size("num_hidden_layers"), r.size("hidden_size"), r.size("num_attention_heads"))
    fields = _plain_gpt(r, *sizes, r.size("intermediate_size"))
    biased = bool(r.get("attention_bias", default=True))
    tied = bool(r.get("tie_word_embeddings", default=False))
    return {
        **fields,
        "tied_embeddings": tied,
        "bias_qkv": biased,
        "bias_attention_out": biased,
        "max_positions": r.get("max_position_embeddings"),
    }


def bloom(r: Reader) -> Fields:
    """BLOOM: ALiBi, and a norm after the word embeddings."""
    hidden = r.size("hidden_size", "n_embed")
    fields = _plain_gpt(
        r, r.size("n_layer", "num_hidden_layers"), hidden, r.size("n_head", "num_attention_heads"), 4 * hidden
    )
    return {**fields, "position": "alibi", "embedding_norm": True, "max_positions": r.get("seq_length", default=2048)}


def falcon(r: Reader) -> Fields:
    """Falcon: no biases unless told; key-value heads by its decoder; blocks with one norm are not planned for."""
    hidden = r.size("hidden_size")
    heads = r.size("num_attention_heads", "n_head")
    ffn = r.get("ffn_hidden_size", default=4 * hidden)
    fields = _plain_gpt(r, r.size("num_hidden_layers", "n_layer"), hidden, heads, ffn)
    new, biased = bool(r.get("new_decoder_architecture")), bool(r.get("bias", default=False))
    kv_heads = r.get("num_kv_heads", default=heads) if new else 1 if r.get("multi_query", default=True) else heads
    norms = r.get("num_ln_in_parallel_attn", default=2 if new else 1)
    one = r.get("parallel_attn", default=True) and norms == 1
    r.refuse(one, "attention and MLP share one norm (parallel_attn), which is not supported")
    position = {"position": "alibi"} if r.get("alibi") else {}
    biases = {"bias_qkv": biased, "bias_attention_out": biased, "bias_mlp": biased}
    return {
        **fields,
        **position,
        **biases,
        "kv_heads": kv_heads,
        "max_positions": r.get("max_position_embeddings", default=2048),
    }


def opt(r: Reader) -> Fields:
    """OPT: learned positions in a table with two rows more."""
    sizes = (r.size("num_hidden_layers"), r.size("hidden_size"), r.size("num_attention_heads"))
    fields = _plain_gpt(r, *sizes, r.size("ffn_dim"))
    r.refuse(r.get("word_embed_proj_dim", default=sizes[1]) != sizes[1], "word_embed_proj_dim differs from hidden_size")
    r.refuse(r.get("do_layer_norm_before") is False, "norms behind the blocks (do_layer_norm_before: false)")
    biased = bool(r.get("enable_bias", default=True))
    biases = {"bias_qkv": biased, "bias_attention_out": biased, "bias_mlp": biased}
    affine = bool(r.get("layer_norm_elementwise_affine", default=True))
    r.refuse(not affine, "norms without weights (layer_norm_elementwise_affine: false)")
    learned = {"position": "learned", "position_offset": 2, "max_positions": r.size("max_position_embeddings")}
    return {**fields, **biases, **learned}


def starcoder2(r: Reader) -> Fields:
    """StarCoder2: grouped queries, no gate, layer norms, biases everywhere."""
    sizes = (r.size("num_hidden_layers"), r.size("hidden_size"), r.size("num_attention_heads"))
    fields = _plain_gpt(r, *sizes, r.size("intermediate_size"))
    biased = bool(r.get("use_bias", default=True))
    window = r.get("sliding_window")
    return {
        **fields,
        "kv_heads": r.get("num_key_value_heads", default=2),
        "bias_qkv": biased,
        "bias_attention_out": biased,
        "bias_mlp": biased,
        "max_positions": r.get("max_position_embeddings"),
        "attention": {"sliding_window": window} if window else {},
    }


def parallel_block(r: Reader) -> Fields:
    """Phi (1, 1.5, 2): attention and MLP side by side behind one norm."""
    r.refuse(True, "attention and MLP share one norm, which is not supported")
    return {}


def chatglm(r: Reader) -> Fields:
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


def qwen(r: Reader) -> Fields:
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


OTHERS: dict[str, Callable[[Reader], Fields]] = {
    "gpt2": gpt2,
    "gpt_bigcode": gpt2,
    "gpt_neox": gpt_neox,
    "bloom": bloom,
    "falcon": falcon,
    "opt": opt,
    "starcoder2": starcoder2,
    "phi": parallel_block,
    "chatglm": chatglm,
    "qwen": qwen,
}
"""model_type -> how its configuration is read."""
