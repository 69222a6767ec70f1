"""Which model of the catalogue an architecture is, and the vocabulary that a script leaves to its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from models_zoo import Architecture, list_architectures
from models_zoo.schema import DESCRIPTIVE_FIELDS

_NOT_COMPARED = DESCRIPTIVE_FIELDS | {"activation"}
"""Fields that change neither time nor memory here (positions are compared where they are learned)."""


def catalogue_matches(fields: Mapping[str, Any], hint: str) -> list[Architecture]:
    """Models of the catalogue with the same shape, likeliest first; without a `vocab` in `fields`, whatever theirs is.

    The likeliest has as many positions, and the most of its name in `hint` (a script's name and text).
    """
    probe = Architecture.model_validate({"name": "custom", "vocab": 1, **fields})
    open_vocab = "vocab" not in fields
    found = [
        model
        for model in list_architectures()
        if not model.proposal and _shape(model, open_vocab) == _shape(probe, open_vocab)
    ]
    positions = fields.get("max_positions")
    return sorted(found, key=lambda model: (*unlikeness(model, positions, hint), model.name))


def unlikeness(model: Architecture, positions: Any, hint: str) -> tuple[bool, int]:
    """How unlike a model of the same shape is: in positions, then in its name; the smaller the likelier."""
    named = [part for part in re.split(r"[-_.]", f"{model.name}-{model.family}") if len(part) > 1]
    parts = {*named, *(part.rstrip("0123456789") for part in named)} - {""}  # llama2-7b is a llama too
    return model.max_positions != positions, -sum(part in hint.lower() for part in parts)


def _shape(model: Architecture, open_vocab: bool) -> dict[str, Any]:
    shape = model.model_dump(exclude={*_NOT_COMPARED, *(("vocab",) if open_vocab else ())})
    if model.position == "learned":
        shape["positions"] = model.max_positions
    if model.attention.kind == "mla":  # these do not count there
        shape["kv_heads"] = shape["head_dim"] = None
    if model.moe is not None and model.moe.shared_ffn == model.moe.expert_ffn:
        shape["moe"]["shared_ffn"] = None
    if model.moe is not None and all(map(model.has_experts, range(model.layers))):
        shape["ffn"] = None  # no layer has that width
    return shape
