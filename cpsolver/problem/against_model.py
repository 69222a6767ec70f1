"""What the training section asks of a model that has it not, or that nothing counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cpsolver.inputs.errors import Path as KeyPath
from cpsolver.inputs.errors import Trouble, dotted
from cpsolver.inputs.language import later
from cpsolver.profiles.framework import Framework
from cpsolver.spec.spec import Spec
from cpsolver.spec.training import Target, Training
from models_zoo import Architecture
from models_zoo.schema import SPECIAL_LAYERS, special_layers


def against_model(spec: Spec, model: Architecture, launcher: Framework | None) -> Iterator[Trouble]:
    """All that does not fit, with what is allowed."""
    yield from _too_many_away(spec.training, model)
    yield from _not_counted(spec.training, model)
    yield from _projections(spec, model)
    yield from _blocks(spec, model)
    yield from _images(spec, model, launcher)


def _too_many_away(training: Training, model: Architecture) -> Iterator[Trouble]:
    """The last layer's activations are needed at once: Megatron takes fewer layers than there are."""
    if training.offload_layers >= model.layers:
        message, most = (
            later("{name} has {layers} layers, of which one at least stays", name=model.name, layers=model.layers),
            model.layers - 1,
        )
        path: KeyPath = ("training", "offload_layers")
        yield Trouble(
            dotted(path), message, training.offload_layers, later("{least} to {most}", least=0, most=most), path=path
        )


_OF_MLP: tuple[Target, ...] = ("linear_fc1", "linear_fc1_gate", "linear_fc1_up", "linear_fc2")
_ELSEWHERE = ("sparse_attention", "compressed_attention")
"""Layers whose attention over packed sequences is not counted."""


def _not_counted(training: Training, model: Architecture) -> Iterator[Trouble]:
    """What of `training.lora` and `training.lengths` a plan of the model could not be told for."""
    if training.lora is not None:
        yield from _of_adapters(training, model)
    selects = [SPECIAL_LAYERS[name] for name in special_layers(model) if name in _ELSEWHERE]
    if selects and training.packs:
        message = later(
            "{name} has {selects}, of which packed sequences are not counted",
            name=model.name,
            selects=later(selects[0]),
        )
        yield _finetuning_trouble(("lengths",), message, allowed=later("null, or packing false"))


def _of_adapters(training: Training, model: Architecture) -> Iterator[Trouble]:
    assert training.lora is not None
    special = [SPECIAL_LAYERS[name] for name in special_layers(model)]
    special += [later("multi-token prediction")] if model.mtp_layers else []
    if special:
        yield _finetuning_trouble(
            ("lora",),
            later(
                "adapters beside {special} are not counted, and {name} has that",
                special=later(special[0]),
                name=model.name,
            ),
        )
        return
    targets, path = training.lora.targets, ("lora", "targets")
    has = _beside_attention(model)
    unknown = [name for name in targets if name not in (*has, *_OF_MLP)]
    if unknown:
        kind = later("latent attention (mla)") if model.attention.kind == "mla" else later("grouped heads")
        message = later(
            "{name} has {kind}, beside whose layers there is no {unknown}",
            name=model.name,
            kind=kind,
            unknown=", ".join(unknown),
        )
        yield _finetuning_trouble(path, message, allowed=", ".join(has))
    parts = [name for name in targets if name in ("linear_fc1_gate", "linear_fc1_up")]
    if model.moe is not None and parts:
        message = later(
            "{name} has experts, beside which adapters of parts are not counted: {parts}",
            name=model.name,
            parts=", ".join(parts),
        )
        yield _finetuning_trouble(path, message, allowed="linear_fc1, linear_fc2")
    if "linear_fc1_gate" in targets and not model.gated_mlp:
        message = later("{name} has no gate in its feed-forward block", name=model.name)
        yield _finetuning_trouble(path, message, "linear_fc1_gate", "linear_fc1_up, linear_fc2")


def _beside_attention(model: Architecture) -> tuple[Target, ...]:
    """Layers of the model's attention that may have adapters."""
    if model.attention.kind != "mla":
        return ("linear_qkv", "linear_q", "linear_k", "linear_v", "linear_proj")
    queries: tuple[Target, ...] = ("linear_q_down_proj", "linear_q_up_proj")
    queries = queries if model.attention.q_lora else ("linear_q_proj",)
    return (*queries, "linear_kv_down_proj", "linear_kv_up_proj", "linear_proj")


def _finetuning_trouble(path: KeyPath, message: str, value: Any = None, allowed: str | None = None) -> Trouble:
    path = ("training", *path)
    return Trouble(dotted(path), message, value, allowed, path=path)


def _blocks(spec: Spec, model: Architecture) -> Iterator[Trouble]:
    """Feed-forward blocks of some layers are recomputed where all stages and layers are alike."""
    layers, path = spec.training.recompute_mlp_layers, ("training", "recompute_mlp_layers")
    if not layers:
        return
    if layers > model.layers:
        message = later("is more than the {layers} layers of {name}", layers=model.layers, name=model.name)
        yield Trouble(dotted(path), message, layers, later("at most {layers}", layers=model.layers), path=path)
    kinds = {(model.mixer(index), model.has_experts(index)) for index in range(model.layers)}
    if len(kinds) > 1 or model.mtp_layers:
        message = later("{name} has layers of several kinds: of which the blocks are is not counted", name=model.name)
        yield Trouble(dotted(path), message, layers, "0", path=path)
    if spec.search.layer_split != "even":
        message = later("needs search.layer_split = 'even': MindSpeed counts layers of equal stages")
        yield Trouble(dotted(path), message, layers, "0", path=path)


def _projections(spec: Spec, model: Architecture) -> Iterator[Trouble]:
    """Latent attention's projections are made again, and results sent away, where its core takes no low ranks."""
    if model.attention.kind == "mla" and model.attention.indexer is None:
        return
    for switch in ("recompute_mla_up_proj", "mla_swap_core_attn_out"):
        path = ("training", switch)
        if getattr(spec.training, switch):
            message = later("{name} has no latent attention whose core takes projected keys", name=model.name)
            yield Trouble(dotted(path), message, True, "false", path=path)


def _images(spec: Spec, model: Architecture, launcher: Framework | None) -> Iterator[Trouble]:
    """What images do not go together with."""
    images, path = spec.training.images, ("training", "images")
    if images is None:
        return
    vision = model.vision
    if vision is None:
        yield Trouble(
            dotted(path),
            later("{name} has no encoder of images (model.vision)", name=model.name),
            allowed="null",
            path=path,
        )
        return
    if images.patches % vision.merge**2:
        message = later(
            "{merge} x {merge} patches are joined to a token of {name}", merge=vision.merge, name=model.name
        )
        where: KeyPath = (*path, "patches")
        yield Trouble(
            dotted(where), message, images.patches, later("a multiple of {size}", size=vision.merge**2), path=where
        )
    tokens = images.per_sequence * images.patches // vision.merge**2
    if tokens > spec.training.sequence_length:
        message = later(
            "they take {tokens:,} tokens of a sequence of {sequence_length:,}",
            tokens=tokens,
            sequence_length=spec.training.sequence_length,
        )
        yield Trouble(dotted(path), message, allowed=later("fewer images or patches"), path=path)
    lacking = None if launcher is None else lacks_encoder(launcher, model)
    if lacking is not None:
        yield Trouble("launcher", lacking, spec.launcher, later("null, or images null"), path=("launcher",))
    if spec.training.whole_matrices:
        message, where = later("its step over an encoder's matrices is not planned for"), ("training", "optimizer")
        yield Trouble(dotted(where), message, spec.training.optimizer, later("another optimizer"), path=where)


def lacks_encoder(launcher: Framework, model: Architecture) -> str | None:
    """Why the launcher does not train the model's encoder of images; None where it does."""
    if model.vision is None or model.vision.family in launcher.encoders:
        return None
    has = (
        later("encoders of {encoders} alone", encoders=", ".join(launcher.encoders))
        if launcher.encoders
        else later("no encoder of images")
    )
    own = later("one of another kind") if model.vision.family is None else model.vision.family
    return later(
        "plans of {launcher} have {has}, and {model} has {own}",
        launcher=launcher.name,
        has=has,
        model=model.name,
        own=own,
    )
