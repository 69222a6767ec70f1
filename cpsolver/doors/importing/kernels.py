"""Kernels of a script's layers: which are fused, and which products add gradients up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.inputs.language import later, say
from cpsolver.profiles.stack import load_stack
from models_zoo import Architecture

_MINDSPEED = ("mindspeed", "mindspeed-2024")
_UNREAD = ("ascendspeed",)
"""A stack whose kernels are as its runs had them."""
_GATES = later("gates without a kernel of their own keep the activation's result too: memory is predicted too low")
_SWITCHED_OFF = ("no-bias-swiglu-fusion", "no-bias-gelu-fusion", "no-rope-fusion", "no-bias-dropout-fusion")


def kernel_fields(arguments: Arguments, model: Architecture, stack: str) -> tuple[dict[str, Any], list[str]]:
    """`fused_kernels` and `gradient_accumulation_fusion` of the section, where a script has them otherwise than its
    stack, and a note where it fuses some kernels."""
    fields, notes = _fused_kernels(arguments, model, stack)
    if (fusion := _gradient_fusion(arguments, stack, model.moe is not None)) is not None:
        fields["gradient_accumulation_fusion"] = fusion
    return fields, notes


def _fused_kernels(arguments: Arguments, model: Architecture, stack: str) -> tuple[dict[str, Any], list[str]]:
    """Megatron-LM fuses kernels but for those that it has to leave; MindSpeed none but for those that it is given
    (028de58, features_manager/fusions)."""
    known = dict(_on_ascend(arguments, model) if stack in _MINDSPEED else _by_default(arguments, model))
    apart = [name for name, fused in known.items() if not fused]
    if not apart or stack in _UNREAD:
        return {}, []
    notes = [say(_GATES)] if any("swiglu" in name for name in apart) else []
    if len(apart) == len(known):
        return {"fused_kernels": False}, notes
    message = later("not fused in the script: {names}; here all kernels are, or none, and time is predicted too short")
    return {}, [say(message, names=", ".join(apart)), *notes]


def _on_ascend(arguments: Arguments, model: Architecture) -> Iterator[tuple[str, bool]]:
    """Flags of the kernels that the model's layers could have fused, and whether they are given."""
    if model.norm == "rmsnorm" and arguments.text("transformer-impl", "local") == "local":
        yield "--use-fused-rmsnorm", arguments.has("use-fused-rmsnorm")
    if model.activation == "swiglu":
        yield "--use-fused-swiglu", arguments.has("use-fused-swiglu")
    if model.position == "rope":
        yield "--use-fused-rotary-pos-emb", arguments.has("use-fused-rotary-pos-emb")


def _by_default(arguments: Arguments, model: Architecture) -> Iterator[tuple[str, bool]]:
    """Flags that leave kernels apart, of those that the model's layers could have fused, and whether they are not
    given."""
    of_model = {"no-bias-swiglu-fusion": model.gated_mlp, "no-bias-gelu-fusion": not model.gated_mlp}
    of_model["no-rope-fusion"] = model.position == "rope"
    for name in _SWITCHED_OFF:
        if of_model.get(name, True):
            yield f"--{name}", not arguments.has(name)


def _gradient_fusion(arguments: Arguments, stack: str, experts: bool) -> str | None:
    """Which products add gradients up; None: those that do in the stack. `experts`: the model has some.

    On Ascend products of experts have a flag of their own, and in fp16 nothing is fused (MindSpeed 028de58,
    features_manager/moe/gmm.py, arguments.py).
    """
    none = arguments.has("no-gradient-accumulation-fusion")
    grouped = arguments.has("gemm-gradient-accumulation-fusion") and experts
    if stack not in _MINDSPEED:
        return "none" if none and not load_stack(stack).gradient_sum_bytes else None
    if arguments.has("fp16"):
        return None
    if none:
        return "experts" if grouped else None
    return "all" if grouped or not experts else "dense"
