"""Software-stack profiles: what a training framework keeps, sends, hides and launches."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cpsolver.errors import InputError, Trouble, nearest_names

_FOLDER = Path(__file__).parent / "stacks"


class Constant(BaseModel):
    """One number with its provenance."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    source: str
    confidence: Literal["verified", "secondary", "assumed"]


class Constants(BaseModel):
    """Every constant that a profile must state; the data files say what each means and where it is from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parameter_bytes: Constant
    gradient_bytes: Constant
    optimizer_bytes: Constant
    gradient_reduce_bytes: Constant
    parameter_gather_bytes: Constant
    optimizer_step_bytes: Constant
    gradient_overlap: Constant
    parameter_overlap: Constant
    pipeline_overlap_interleaved: Constant
    elementwise_backward_factor: Constant
    unfused_traffic_factor: Constant
    attention_backward_flops_factor: Constant
    causal_fraction: Constant
    gemm_tile_rows: Constant
    gemm_tile_columns: Constant
    gemm_half_depth: Constant
    logits_bytes: Constant
    logits_traffic_bytes: Constant
    backward_buffer_share: Constant
    framework_bytes: Constant
    allocator_overhead: Constant


class Stack(BaseModel):
    """A software-stack profile."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    accuracy: str
    constants: Constants

    def __getattr__(self, item: str) -> Any:
        """The value of a constant: ``stack.gradient_bytes``."""
        if item in Constants.model_fields:
            return getattr(self.constants, item).value
        raise AttributeError(item)


def stack_names() -> tuple[str, ...]:
    """Names of all profiles that come with the package."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@lru_cache
def load_stack(name: str) -> Stack:
    """The profile of that name; raises InputError naming the nearest one."""
    path = _FOLDER / f"{name}.yaml"
    if name not in stack_names():
        raise InputError(
            (
                Trouble(
                    where="stack",
                    value=name,
                    message="unknown software stack",
                    allowed=", ".join(stack_names()),
                    nearest=nearest_names(name, stack_names()),
                    path=("stack",),
                ),
            )
        )
    from ruamel.yaml import YAML

    return Stack.model_validate(YAML(typ="safe").load(path.read_text(encoding="utf-8")))
