"""A question to the command line: the words after its name, and the files that these name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Case:
    """One question. It is asked in an empty folder that has the files and no other."""

    kind: str
    """Its answer stands in frozen/KIND.json."""
    name: str
    args: tuple[str, ...]
    files: Mapping[str, Any] = field(default_factory=dict)
    """Name to text, or to what JSON can hold."""
    sample: bool = False
    """Asked in every run of the tests, not only with the mark `full`."""


def example(name: str) -> str:
    """The text of a file of the examples."""
    return (ROOT / "examples" / name).read_text(encoding="utf-8")


def spec(
    model: Any,
    gpus: int,
    chips: Any,
    batch: int,
    sequence: int = 2048,
    training: Mapping[str, Any] | None = None,
    cluster: Mapping[str, Any] | None = None,
    stack: str | None = None,
    launcher: str | None = None,
    **search: Any,
) -> dict[str, Any]:
    """A spec; what is in `search` stands there, two plans are asked for where it says no other."""
    whole: dict[str, Any] = {
        "model": model,
        "cluster": {"num_gpus": gpus, "chips": chips, **(cluster or {})},
        "training": {"global_batch_size": batch, "sequence_length": sequence, **(training or {})},
        "search": {"top": 2, **search},
    }
    if stack:
        whole["stack"] = stack
    if launcher:
        whole["launcher"] = launcher
    return whole


SMALL = {"layers": 8, "hidden": 1024, "ffn": 2816, "heads": 16, "kv_heads": 8, "vocab": 4000}
EXPERTS = {**SMALL, "moe": {"experts": 8, "top_k": 2, "expert_ffn": 512}}


def chip(tflops: float = 100, gb: float = 40, **more: Any) -> dict[str, Any]:
    """The fields of a chip that no catalogue has."""
    return {
        "peak_tflops": {"bf16": tflops},
        "memory": {"capacity_gb": gb, "bandwidth_gb_s": 1000},
        "scale_up": {"bandwidth_gb_s": 100},
        "scale_out": {"bandwidth_gbit_s": 100},
        **more,
    }


def chips(**specs: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    """Chips of a spec: how many there are and what each is."""
    return {name: {"max": most, "spec": fields} for name, (most, fields) in specs.items()}
