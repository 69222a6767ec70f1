"""What the training switches of a spec (switches.py) save and cost: numbers with sources, in techniques.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from cpsolver.inputs.data import package_schema

Confidence = Literal["verified", "secondary", "assumed"]
_FILE = Path(__file__).parent / "techniques.yaml"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Optimizer(_Frozen):
    """An optimizer's states in bytes of a parameter, before sharding.

    `gradient_bytes`: the most that a gradient takes, in its buffer and on its way; None: as the stack has it.
    `sharded`: it needs the distributed optimizer. `matrices`: the bytes are of matrices, which it takes whole; all
    other weights have Adam's.
    """

    master_bytes: float
    moment_bytes: float
    gradient_bytes: float | None
    sharded: bool
    matrices: bool = False
    source: str
    confidence: Confidence

    @property
    def state_bytes(self) -> float:
        """Master weight and moments."""
        return self.master_bytes + self.moment_bytes


class Figure(_Frozen):
    """One number with its provenance, in the unit that its name says."""

    value: float
    source: str
    confidence: Confidence


class Figures(_Frozen):
    """Every number but for the optimizers'; techniques.yaml says what each means."""

    remainder_bytes: Figure
    remainder_traffic_bytes: Figure
    offload_gradient_bytes: Figure
    offload_weight_bytes: Figure
    persistent_weights: Figure
    host_gradient_trips: Figure
    host_update_ns: Figure
    host_update_ranks: Figure
    swap_slices: Figure
    offload_layers_held: Figure
    swapped_results_held: Figure
    function_results_held: Figure
    expert_inputs_held: Figure
    unfused_sum_bytes: Figure
    natural_load_least: Figure
    natural_load_most: Figure
    triangle_block: Figure
    state_space_chunk: Figure
    delta_rule_chunk: Figure
    nf4_bytes: Figure
    nf4_double_bytes: Figure
    muon_steps: Figure
    muon_iterate_bytes: Figure
    muon_own_bytes: Figure
    muon_iterated_bytes: Figure
    muon_gathered_bytes: Figure
    muon_gather_bytes: Figure
    muon_kernels: Figure
    muon_host_us: Figure
    soap_factor_bytes: Figure
    soap_own_bytes: Figure
    soap_factor_traffic_bytes: Figure
    soap_kernels: Figure
    soap_qr_ms: Figure
    soap_qr_speed: Figure


class Narrow(_Frozen):
    """A recipe of fp8 or nvfp4: bytes of one value, its share of the scales with it.

    `value_bytes`: of a copy of a weight, and of a GEMM's input that is kept. `gather_bytes`: of a weight that is
    gathered where weights are held in that form only.
    """

    value_bytes: float
    gather_bytes: float
    source: str
    confidence: Confidence


class Techniques(_Frozen):
    """The whole file."""

    optimizers: dict[str, Optimizer]
    recipes: dict[str, Narrow]
    constants: Figures

    def __getattr__(self, item: str) -> Any:
        """The value of a constant: ``techniques().swap_slices``."""
        if item in Figures.model_fields:
            return getattr(self.constants, item).value
        raise AttributeError(item)


@cache
def techniques() -> Techniques:
    """The numbers that come with the package."""
    return package_schema(_FILE, Techniques)
