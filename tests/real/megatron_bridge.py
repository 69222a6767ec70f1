"""Megatron-Bridge's fields, held against the dataclasses of Megatron-Core that its own extend."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from megatron.core.activations import squared_relu
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_config import MLATransformerConfig

from cpsolver.doors.export.judge import launch_of
from tests.real.megatron_cases import Case

PROVIDER = (
    *("seq_length", "vocab_size", "should_pad_vocab", "make_vocab_size_divisible_by", "position_embedding_type"),
    "rotary_base",
    "share_embeddings_and_output_weights",
)
"""What Megatron-Bridge's GPTModelProvider adds (src/megatron/bridge/models/gpt_provider.py)."""


def fields_of(case: Case) -> dict[str, Any]:
    """The file's FIELDS, without the parts that need Megatron-Bridge."""
    text = launch_of(case.problem(), case.strategy(), "megatron-bridge").files["plan.py"]
    found: dict[str, Any] = {}
    start = text.index("FIELDS")
    exec(text[start : text.index("def model()")], {"torch": torch}, found)
    result: dict[str, Any] = found["FIELDS"]
    return result


def configuration(case: Case, values: dict[str, Any]) -> Any:
    """Megatron-Core's configuration of the fields of `model`; those of `ddp` and `optimizer` must be fields there."""
    for part, kind in (("ddp", DistributedDataParallelConfig), ("optimizer", OptimizerConfig)):
        told = {name.split(".", 1)[1] for name in values if name.startswith(f"{part}.")}
        assert told <= {field.name for field in fields(kind)}, told
    model = {name[6:]: value for name, value in values.items() if name.startswith("model.")}
    kept = {name: value for name, value in model.items() if name not in PROVIDER}
    arch = case.problem().model
    functions = {"relu2": squared_relu, "gelu": torch.nn.functional.gelu}
    kind = MLATransformerConfig if arch.attention.kind == "mla" else TransformerConfig
    return kind(
        activation_func=functions.get(arch.activation, torch.nn.functional.silu),
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        bf16=True,
        **kept,
    )
