"""Hugging Face configurations (config.json) as architectures.

Which key means what, and what a model has that its configuration does not say (biases, norms, tied embeddings), is by
the configuration and modelling code of transformers 5.23, whose models were counted parameter by parameter to compare;
the families' modules say what differs.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from models_zoo.errors import UnsupportedConfigError
from models_zoo.hugging_face_families import OTHERS
from models_zoo.hugging_face_llama import LLAMA_LIKE
from models_zoo.hugging_face_reader import Config, Fields, Reader

_FAMILIES = {**LLAMA_LIKE, **OTHERS}


def is_hugging_face(data: object) -> bool:
    """Whether plain values are a Hugging Face configuration, not fields of an architecture."""
    return isinstance(data, Mapping) and "model_type" in data


def supported_families() -> tuple[str, ...]:
    """The values of `model_type` that can be read."""
    return tuple(sorted(_FAMILIES))


def from_hugging_face(config: Config) -> Fields:
    """The fields of the architecture that a configuration describes; the text model of one with several parts.

    Raises UnsupportedConfigError for a family that is not known, keys that are missing, or what no field can say.
    """
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and "hidden_size" in inner:
        kept = {key: config[key] for key in ("tie_word_embeddings",) if key in config and key not in inner}
        return from_hugging_face({**kept, **inner, "model_type": inner.get("model_type", config["model_type"])})
    family = str(config["model_type"])
    if family not in _FAMILIES:
        near = difflib.get_close_matches(family, _FAMILIES, n=2, cutoff=0.5)
        allowed = ", ".join(supported_families())
        raise UnsupportedConfigError("model_type", family, ["is not a family that can be read"], allowed, tuple(near))
    reader = Reader(config)
    fields = _FAMILIES[family](reader)
    if reader.reasons:
        raise UnsupportedConfigError("", None, reader.reasons)
    return {name: value for name, value in fields.items() if value is not None and value != {}}
