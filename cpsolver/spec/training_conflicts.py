"""What the fields of a training section contradict among each other, and what pins of the search say against them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from cpsolver.inputs.errors import Path, Trouble, dotted
from cpsolver.inputs.language import later
from cpsolver.profiles.switches import OptimizerName
from cpsolver.spec.training import FUSED, SPLIT, Training


def _trouble(training: Training, name: str, message: str, allowed: str | None = None) -> Trouble:
    value = getattr(training, name)
    return Trouble(f"training.{name}", message, value, allowed, path=("training", name))


_PRECISIONS = {
    "release_fp32_gradients": (("fp16",), later("fp32 gradients have no copy to release")),
    "reuse_fp32_parameters": (("bf16",), later("only a bf16 weight is the first half of its fp32 master")),
    "fp8_parameter_gather": (("fp8", "nvfp4"), later("there are no narrow weights to gather")),
    "fp8_activations": (("fp8", "nvfp4"), later("there are no narrow inputs to keep")),
    "fp8_recipe": (("fp8",), later("it has no recipes")),
    "fp8_attention": (("fp8", "nvfp4"), later("nothing of a layer is in 8 bits")),
}
"""The precisions that a switch needs one of, and why."""
_OPTIMIZERS: dict[str, tuple[OptimizerName, ...]] = {
    "reuse_fp32_parameters": ("adam", "quantized_states", "o2_adamw"),
    "swap_optimizer": ("adam",),
}
"""The optimizers that a switch works with."""
_APART = (("swap_optimizer", "optimizer_offload"), ("swap_optimizer", "reuse_fp32_parameters"))
"""Switches that exclude each other."""


_NOT_FROZEN = {
    "recompute_activation_function": later(
        "excludes training.lora: what frozen layers keep of activation functions is counted without it"
    ),
    "recompute_mla_up_proj": later("excludes training.lora: what frozen projections keep is counted without it"),
    "parameter_offload": later("excludes training.lora: what frozen weights take of the host's link is not counted"),
    "recompute_mlp_layers": later("excludes training.lora, as --swap-attention does (MindSpeed)"),
    "mla_swap_core_attn_out": later("excludes training.lora: what frozen layers send to the host is not counted"),
    "moe_zero_memory": later("excludes training.lora: what frozen experts keep is counted without it"),
}
"""Switches whose savings are not counted where layers are frozen."""


def contradictions(training: Training) -> Iterator[Trouble]:
    """What the switches do not go together with, within the section."""
    for name, (precisions, why) in _PRECISIONS.items():
        if getattr(training, name) and training.precision not in precisions:
            message = later(
                "contradicts training.precision = '{precision}': {why}", precision=training.precision, why=why
            )
            off = "null" if name == "fp8_recipe" else "false"
            yield _trouble(
                training,
                name,
                message,
                later("{off}, or precision {precisions}", off=off, precisions=" or ".join(precisions)),
            )
    for name, optimizers in _OPTIMIZERS.items():
        if getattr(training, name) and training.optimizer not in optimizers:
            message = later("contradicts training.optimizer = '{optimizer}'", optimizer=training.optimizer)
            yield _trouble(
                training, name, message, later("false, or optimizer {optimizers}", optimizers=" or ".join(optimizers))
            )
    yield from _against_matrices(training)
    for first, second in _APART:
        if getattr(training, first) and getattr(training, second):
            yield _trouble(
                training, first, later("excludes training.{second}: the states are in one place", second=second)
            )
    if training.fp8_attention and training.fp8_recipe == "blockwise":
        message = later(
            "excludes training.fp8_recipe = 'blockwise': Transformer Engine has no attention with its scales"
        )
        yield _trouble(training, "fp8_attention", message)
    modules = training.activation_offload
    if modules and training.offload_layers:
        yield _trouble(
            training, "offload_layers", later("excludes training.activation_offload: a layer's tensors go once")
        )
    if training.offload_layers and training.cuda_graph == "te":
        yield _trouble(
            training, "offload_layers", later("excludes training.cuda_graph = 'te': replayed parts keep theirs")
        )
    yield from _beside_swaps(training)
    yield from _finetuning(training)
    if training.moe_zero_memory and {"expert_fc1", "moe_act"} & set(modules):
        message = later("excludes expert_fc1 and moe_act of training.activation_offload: a tensor goes once")
        yield _trouble(training, "moe_zero_memory", message, "null")
    if "attn_proj" in modules and not {"core_attn", "attention"} & set(modules):
        yield _trouble(training, "activation_offload", later("attn_proj goes to the host together with core_attn only"))


def _beside_swaps(training: Training) -> Iterator[Trouble]:
    """What goes with attention whose tensors MindSpeed sends to the host."""
    yield from _swapped_results(training)
    if training.recompute_mlp_layers and not training.activation_offload:
        message = later("needs training.activation_offload: MindSpeed has it beside --swap-attention alone")
        yield _trouble(training, "recompute_mlp_layers", message, "0")
    if training.recompute_mlp_layers and training.moe_zero_memory:
        message = later("excludes training.moe_zero_memory: experts are made again once")
        yield _trouble(training, "recompute_mlp_layers", message, "0")


def _swapped_results(training: Training) -> Iterator[Trouble]:
    """MindSpeed 028de58, features_manager: dualpipev_feature.py and fb_overlap.py, which the flag needs."""
    if not training.mla_swap_core_attn_out:
        return
    for name in ("activation_offload", "offload_layers"):
        if getattr(training, name):
            message = later("excludes training.{name}: MindSpeed sends these alone beside DualPipeV", name=name)
            yield _trouble(training, "mla_swap_core_attn_out", message, "false")
    if training.moe_zero_memory == "level1":
        message = later("excludes training.moe_zero_memory = 'level1', which needs another overlap (MindSpeed)")
        yield _trouble(training, "mla_swap_core_attn_out", message, "false")


def _finetuning(training: Training) -> Iterator[Trouble]:
    """What sections `lora` and `lengths` of a spec's training contradict."""
    yield from _of_lora(training)
    yield from _of_lengths(training)


def _finetuning_trouble(path: Path, message: str, value: Any = None, allowed: str | None = None) -> Trouble:
    path = ("training", *path)
    return Trouble(dotted(path), message, value, allowed, path=path)


def _of_lora(training: Training) -> Iterator[Trouble]:
    lora = training.lora
    if lora is None:
        return
    split = [name for name in lora.targets if name in SPLIT]
    fused = [name for name in lora.targets if name in FUSED]
    if split and fused:
        told = later(
            "{split} beside {fused}: adapters are of fused layers, or of their parts",
            split=", ".join(split),
            fused=", ".join(fused),
        )
        yield _finetuning_trouble(
            ("lora", "targets"),
            told,
            allowed=later("{fused}, or {split}", fused=", ".join(FUSED), split=", ".join(SPLIT)),
        )
    if lora.quantized_base is not None and training.precision != "bf16":
        message = later(
            "contradicts training.precision = '{precision}': weights become 16 bits before each GEMM",
            precision=training.precision,
        )
        yield _finetuning_trouble(
            ("lora", "quantized_base"), message, lora.quantized_base, later("null, or precision bf16")
        )
    for name in ("images", "whole_matrices"):
        if getattr(training, name):
            field, what = (
                ("images", later("an encoder of images"))
                if name == "images"
                else ("optimizer", later("whole matrices"))
            )
            yield _trouble(
                training, field, later("excludes training.lora: adapters beside {what} are not counted", what=what)
            )
    for name, message in _NOT_FROZEN.items():
        if value := getattr(training, name):
            allowed = "false" if value is True else "null" if isinstance(value, str) else "0"
            yield _trouble(training, name, message, allowed)
    if training.activation_offload:
        message = later("excludes training.lora: what frozen layers send to the host is not counted")
        yield _finetuning_trouble(
            ("activation_offload",), message, list(training.activation_offload), later("null, or offload_layers")
        )


def _of_lengths(training: Training) -> Iterator[Trouble]:
    if training.lengths is None:
        if training.packing is not None:
            yield _finetuning_trouble(
                ("packing",), later("says nothing without training.lengths"), training.packing, "null"
            )
        return
    if training.images is not None:
        yield _finetuning_trouble(
            ("lengths",), later("excludes training.images: sequences with images are all as long"), None
        )
    for index, length in enumerate(training.lengths):
        if length.tokens > training.sequence_length:
            message = later(
                "is more than training.sequence_length = {sequence_length}, which holds any sequence",
                sequence_length=training.sequence_length,
            )
            yield _finetuning_trouble(("lengths", index, "tokens"), message, length.tokens)
    for tokens, count in Counter(length.tokens for length in training.lengths).items():
        if count > 1:
            yield _finetuning_trouble(
                ("lengths",),
                later("has {tokens} tokens {count} times", tokens=tokens, count=count),
                allowed=later("each length once"),
            )


def _against_matrices(training: Training) -> Iterator[Trouble]:
    """What an optimizer of whole matrices does not go together with, and the switch that is Muon's alone."""
    told = later("contradicts training.optimizer = '{optimizer}'", optimizer=training.optimizer)
    if training.optimizer != "muon" and training.muon_tp_mode != "duplicated":
        yield _trouble(
            training, "muon_tp_mode", later("{told}: it orthogonalizes no matrices", told=told), "duplicated"
        )
    if not training.whole_matrices:
        return
    if training.precision in ("fp16", "fp32"):
        message = later("{told}: Megatron-LM's is for bf16 weights with an fp32 master", told=told)
        yield _trouble(training, "precision", message, later("bf16, fp8 or nvfp4"))
    if training.optimizer_offload:
        message = later("{told}: the host's update is Adam's (core/optimizer/cpu_offloading)", told=told)
        yield _trouble(training, "optimizer_offload", message, "0")


def against_pins(training: Training, sharded: Iterable[bool], flash: Iterable[bool]) -> Iterator[Trouble]:
    """What the switches do not go together with among the decisions.

    `sharded` and `flash`: the values that pins and bans leave distributed_optimizer and flash_attention.
    """
    switch = training.sharded_switch
    if switch is not None and not any(sharded):
        name = switch.split()[0]
        message = later("needs the distributed optimizer, and search leaves distributed_optimizer = false only")
        yield _trouble(training, name, message)
    if training.triangle_attention and all(flash):
        message = later("has no effect: search leaves flash_attention = true only, which skips masked blocks itself")
        yield _trouble(training, "triangle_attention", message)
