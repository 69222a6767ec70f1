"""What of fine-tuning the cost model does not count for a model: such specs are refused, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cpsolver.inputs.errors import Path, Trouble, dotted
from cpsolver.spec.finetuning import Target
from cpsolver.spec.training import Training
from models_zoo import Architecture, special_layers
from models_zoo.schema import SPECIAL_LAYERS

_OF_MLP: tuple[Target, ...] = ("linear_fc1", "linear_fc1_gate", "linear_fc1_up", "linear_fc2")
_ELSEWHERE = ("sparse_attention", "compressed_attention")
"""Layers whose attention over packed sequences is not counted."""


def finetuning_limits(training: Training, model: Architecture) -> Iterator[Trouble]:
    """What of `training.lora` and `training.lengths` a plan of the model could not be told for."""
    if training.lora is not None:
        yield from _of_adapters(training, model)
    selects = [SPECIAL_LAYERS[name] for name in special_layers(model) if name in _ELSEWHERE]
    if selects and training.packs:
        message = f"{model.name} has {selects[0]}, of which packed sequences are not counted"
        yield _trouble(("lengths",), message, allowed="null, or packing false")


def _of_adapters(training: Training, model: Architecture) -> Iterator[Trouble]:
    assert training.lora is not None
    special = [SPECIAL_LAYERS[name] for name in special_layers(model)]
    special += ["latent attention (mla)"] if model.attention.kind == "mla" else []
    special += ["multi-token prediction"] if model.mtp_layers else []
    if special:
        yield _trouble(("lora",), f"adapters beside {special[0]} are not counted, and {model.name} has that")
        return
    targets = training.lora.targets
    if model.moe is not None and (named := [name for name in targets if name in _OF_MLP]):
        message = f"{model.name} has experts, beside which adapters are not counted: {', '.join(named)}"
        yield _trouble(("lora", "targets"), message, allowed="linear_qkv, linear_proj, or parts of linear_qkv")
    if "linear_fc1_gate" in targets and not model.gated_mlp:
        message = f"{model.name} has no gate in its feed-forward block"
        yield _trouble(("lora", "targets"), message, "linear_fc1_gate", "linear_fc1_up, linear_fc2")


def _trouble(path: Path, message: str, value: Any = None, allowed: str | None = None) -> Trouble:
    path = ("training", *path)
    return Trouble(dotted(path), message, value, allowed, path=path)
