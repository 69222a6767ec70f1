"""Models that a recipe of Megatron-Bridge builds itself: a provider's fields as Megatron-LM's arguments.

Names and defaults are in formats.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cpsolver.doors.importing.reading import Fields, as_tokens, table
from cpsolver.doors.importing.recipe_values import UNCLEAR, Configured
from cpsolver.inputs.language import say

_LISTED = ("moe_layer_freq", "linear_attention_freq", "no_rope_freq")
"""Fields whose lists are one value, in brackets."""
_FLAGS = {
    (True, "silu"): "--swiglu",
    (True, "gelu"): "--geglu",
    (True, "openai_gelu"): "--gelu-tanh",
    (True, "quick_gelu"): "--quick-geglu",
    (False, "squared_relu"): "--squared-relu",
}
"""Whether the block is gated, and its activation -> the argument; GELU without one."""


def is_provider(model: Configured) -> bool:
    """Whether the fields of a model's class are known here."""
    return model.kind in table("bridge_model")["defaults"]


def provided(model: Configured, tokenizer: Mapping[str, Any], file: str) -> Iterator[str]:
    """The arguments of Megatron-LM that give the model.

    `tokenizer`: the recipe's, which has the vocabulary where the model has not. Raises InputError with all that is not
    clear or not planned for.
    """
    shape = {**table("bridge_model")["defaults"][model.kind], **model.plain()}
    shape["activation_func"] = model.fields.get("activation_func", "gelu")
    fields = Fields(shape, file, "bridge_model")
    for name in fields.known["arguments"]:
        if shape.get(name) is UNCLEAR:
            fields.trouble(f"model.{name}", "is not clear from the text")
            fields.data.pop(name)
    fields.data |= {name: str(list(shape[name])) for name in _LISTED if isinstance(shape.get(name), list | tuple)}
    if isinstance(window := fields.data.get("window_size"), list | tuple):
        fields.data["window_size"] = ",".join(map(str, window))
    tokens = list(fields.mapped())
    tokens += ["--group-query-attention"] if fields.data.get("num_query_groups") is not None else []
    tokens += (
        [] if shape.get("share_embeddings_and_output_weights", True) else ["--untie-embeddings-and-output-weights"]
    )
    tokens += [] if shape.get("add_bias_linear", True) else ["--disable-bias-linear"]
    if shape.get("position_embedding_type", "learned_absolute") == "learned_absolute":
        tokens += as_tokens("max-position-embeddings", shape.get("seq_length"))
    tokens += [*_activation(shape, fields), *_vocabulary(shape, tokenizer)]
    fields.refuse()
    fields.close()
    yield from tokens


def _activation(shape: Mapping[str, Any], fields: Fields) -> Iterator[str]:
    given, gated = shape["activation_func"], bool(shape.get("gated_linear_unit", False))
    name = given.kind if isinstance(given, Configured) else str(given)
    if (flag := _FLAGS.get((gated, name))) is not None:
        yield flag
    elif gated or name != "gelu":
        told = say("is of no architecture here")
        fields.trouble("model.activation_func", told, name, ", ".join(sorted({each for _, each in _FLAGS})))


def _vocabulary(shape: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> Iterator[str]:
    """The tokenizer's where the model has none of its own. NullTokenizer has one token more than it is told."""
    if shape.get("vocab_size") is not None:
        return
    tokens = tokenizer.get("vocab_size")
    if tokenizer.get("tokenizer_type") == "NullTokenizer" and isinstance(tokens, int):
        yield from as_tokens("vocab-size", tokens + 1)
    elif isinstance(name := tokenizer.get("tokenizer_model"), str):
        yield from as_tokens("tokenizer-model", name)
