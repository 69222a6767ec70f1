"""Which kernels of a script's layers are fused: norms, rotary embedding, activation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.inputs.language import later, say
from models_zoo import Architecture

_SWITCHED_OFF = ("no-bias-swiglu-fusion", "no-bias-gelu-fusion", "no-rope-fusion", "no-bias-dropout-fusion")


def kernel_fields(arguments: Arguments, model: Architecture, mindspeed: bool) -> tuple[dict[str, Any], list[str]]:
    """`fused_kernels` of the section, and a note where a script fuses some of them.

    Megatron-LM fuses what it is not told to leave; MindSpeed what it is told to (028de58, features_manager/fusions).
    `mindspeed`: whose script it is.
    """
    known = dict(_on_ascend(arguments, model) if mindspeed else _by_default(arguments, model))
    apart = [name for name, fused in known.items() if not fused]
    if not apart:
        return {}, []
    if len(apart) == len(known):
        return {"fused_kernels": False}, []
    told = later("not fused in the script: {names}; here all kernels are, or none, and time is predicted too short")
    return {}, [say(told, names=", ".join(apart))]


def _on_ascend(arguments: Arguments, model: Architecture) -> Iterator[tuple[str, bool]]:
    """Flags of the kernels that the model's layers could have fused, and whether they are given."""
    if model.norm == "rmsnorm" and arguments.text("transformer-impl", "local") == "local":
        yield "--use-fused-rmsnorm", arguments.has("use-fused-rmsnorm")
    if model.activation == "swiglu":
        yield "--use-fused-swiglu", arguments.has("use-fused-swiglu")
    if model.position == "rope":
        yield "--use-fused-rotary-pos-emb", arguments.has("use-fused-rotary-pos-emb")


def _by_default(arguments: Arguments, model: Architecture) -> Iterator[tuple[str, bool]]:
    """Flags that leave kernels apart, of those that the model's layers could have fused."""
    of_model = {"no-bias-swiglu-fusion": model.gated_mlp, "no-bias-gelu-fusion": not model.gated_mlp}
    of_model["no-rope-fusion"] = model.position == "rope"
    for name in _SWITCHED_OFF:
        if of_model.get(name, True):
            yield f"--{name}", not arguments.has(name)
