"""What a spec says of fine-tuning: adapters beside frozen weights (LoRA), and sequences of several lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, StrictBool, WithJsonSchema

from cpsolver.inputs.errors import Path, Trouble, dotted
from cpsolver.spec.part import Count, Number, Part

Target = Literal[
    "linear_qkv",
    "linear_q",
    "linear_k",
    "linear_v",
    "linear_proj",
    "linear_fc1",
    "linear_fc1_gate",
    "linear_fc1_up",
    "linear_fc2",
]
"""A linear layer with an adapter, by Megatron-Bridge's names: LoRA's, and CanonicalLoRA's for parts of fused ones."""
QuantizedBase = Literal["nf4", "nf4_double"]
"""Frozen weights in 4 bits (QLoRA); double: the blocks' constants are quantised too."""
_OF_OTHERS: Mapping[str, tuple[Target, ...]] = {
    "attention": ("linear_qkv", "linear_proj"),
    "mlp": ("linear_fc1", "linear_fc2"),
    "all": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    "q_proj": ("linear_q",),
    "k_proj": ("linear_k",),
    "v_proj": ("linear_v",),
    "o_proj": ("linear_proj",),
    "gate_proj": ("linear_fc1_gate",),
    "up_proj": ("linear_fc1_up",),
    "down_proj": ("linear_fc2",),
}
"""What NeMo 1 and PEFT call them."""
FUSED: tuple[Target, ...] = ("linear_qkv", "linear_fc1")
"""Layers whose parts may have adapters of their own instead."""
SPLIT: tuple[Target, ...] = ("linear_q", "linear_k", "linear_v", "linear_fc1_gate", "linear_fc1_up")
"""Those parts."""


def _targets(value: Any) -> Any:
    """Names of any vocabulary as Target's, each once."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        return value
    found = [each for name in names for each in (_OF_OTHERS.get(name, (name,)) if isinstance(name, str) else (name,))]
    return tuple(dict.fromkeys(found)) if all(isinstance(each, str) for each in found) else tuple(found)


_NAME = {"enum": [*get_args(Target), *_OF_OTHERS]}
Targets = Annotated[
    tuple[Target, ...],
    BeforeValidator(_targets),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [_NAME, {"type": "array", "items": _NAME, "minItems": 1}]}),
]


class Lora(Part):
    """Low-rank adapters beside frozen linear layers, as Megatron-Bridge runs them."""

    rank: Count = Field(default=32, description="width of the adapters")
    targets: Targets = Field(
        default=("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
        description="linear layers with an adapter; PEFT's names are taken too",
    )
    dropout: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=0.0, description="dropout of the adapters' inputs: above 0 its masks and results are kept"
    )
    all_to_all: StrictBool = Field(
        default=False,
        description="results beside row-parallel layers go by all-to-all, not gathered (a2a_experimental)",
    )
    quantized_base: QuantizedBase | None = Field(
        default=None, description="QLoRA: frozen linear layers are held in nf4, or nf4_double; null: as they are used"
    )

    @property
    def splits_rank(self) -> bool:
        """Tensor-parallel ranks share the rank of some adapter: of one beside a column-parallel layer."""
        return any(name not in ("linear_proj", "linear_fc2") for name in self.targets)


class Length(Part):
    """Sequences of one length in a histogram."""

    tokens: Count = Field(description="tokens of each")
    share: Annotated[Number, Field(gt=0)] = Field(
        description="how many sequences have it, relative to the other shares"
    )


Histogram = Annotated[tuple[Length, ...], Field(min_length=1)]


def finetuning_troubles(training: Any) -> Iterator[Trouble]:
    """What sections `lora` and `lengths` of a spec's training contradict."""
    yield from _of_lora(training)
    yield from _of_lengths(training)


def _trouble(path: Path, message: str, value: Any = None, allowed: str | None = None) -> Trouble:
    path = ("training", *path)
    return Trouble(dotted(path), message, value, allowed, path=path)


def _of_lora(training: Any) -> Iterator[Trouble]:
    lora = training.lora
    if lora is None:
        return
    split = [name for name in lora.targets if name in SPLIT]
    fused = [name for name in lora.targets if name in FUSED]
    if split and fused:
        told = f"{', '.join(split)} beside {', '.join(fused)}: adapters are of fused layers, or of their parts"
        yield _trouble(("lora", "targets"), told, allowed=f"{', '.join(FUSED)}, or {', '.join(SPLIT)}")
    if lora.quantized_base is not None and training.precision != "bf16":
        message = f"contradicts training.precision = '{training.precision}': weights become 16 bits before each GEMM"
        yield _trouble(("lora", "quantized_base"), message, lora.quantized_base, "null, or precision bf16")
    if training.activation_offload:
        message = "excludes training.lora: what frozen layers send to the host is not counted"
        yield _trouble(("activation_offload",), message, list(training.activation_offload), "null, or offload_layers")


def _of_lengths(training: Any) -> Iterator[Trouble]:
    if training.lengths is None:
        if training.packing is not None:
            yield _trouble(("packing",), "says nothing without training.lengths", training.packing, "null")
        return
    for index, length in enumerate(training.lengths):
        if length.tokens > training.sequence_length:
            message = f"is more than training.sequence_length = {training.sequence_length}, which holds any sequence"
            yield _trouble(("lengths", index, "tokens"), message, length.tokens)
    for tokens, count in Counter(length.tokens for length in training.lengths).items():
        if count > 1:
            yield _trouble(("lengths",), f"has {tokens} tokens {count} times", allowed="each length once")
