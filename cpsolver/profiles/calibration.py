"""Constants fitted to published runs, laid over the catalogues' documented ones.

A calibration scales the efficiencies of chips by architecture ("*": all), and replaces constants of software stacks by
name ("*": those that all share). Every entry says how many runs it serves and how sure it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from cpsolver.profiles.stack import Constant, Stack
from hw_specs import Chip

PUBLISHED = "published"
"""The calibration that comes with the package and is used unless another is named."""
ALL = "*"

CHIP_FACTORS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("gemm_bf16", "gemm_fp16", "gemm_fp8"),
    "gemm_fp8": ("gemm_fp8",),
    "attention": ("attention_forward", "attention_backward"),
    "memory": ("memory",),
    "fabric": ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    "network": ("network",),
}
"""What a fitted factor of a chip scales, as names of `hw_specs.schema.EFFICIENCY_NAMES`."""

_FOLDER = Path(__file__).parent / "calibrations"


class Fitted(BaseModel):
    """One fitted number: `rows` runs depend on it; `start` is where the fit began and is pulled to.

    `error`: one standard error, as a share of the value (of a share that is not zero or one: on the logit scale).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    start: float
    error: float
    rows: int


class Residuals(BaseModel):
    """Spread of log(measured / predicted) over some runs: `low` and `high` enclose four in five."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    low: float
    high: float


class Calibration(BaseModel):
    """Fitted constants: factors by architecture and name of `CHIP_FACTORS`, values by stack and constant."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    method: str
    chips: dict[str, dict[str, Fitted]]
    stacks: dict[str, dict[str, Fitted]]
    residuals: dict[str, Residuals] = {}

    def chip(self, chip: Chip) -> Chip:
        """The chip with its efficiencies scaled by the factors of all chips and of its architecture."""
        efficiency = dict(chip.efficiency)
        for group in (ALL, chip.architecture):
            for name, fitted in self.chips.get(group or "", {}).items():
                for each in CHIP_FACTORS[name]:
                    old = efficiency[each]
                    most = max(old.value, 1.0)  # of the peak; only reductions in the switch are catalogued above it
                    efficiency[each] = old.model_copy(update={"value": min(old.value * fitted.value, most)})
        return chip.model_copy(update={"efficiency": efficiency})

    def stack(self, stack: Stack) -> Stack:
        """The stack with its fitted constants."""
        groups = (ALL, *stack.fitted_with, stack.name)
        fitted = {name: entry for group in groups for name, entry in self.stacks.get(group, {}).items()}
        new = {
            name: Constant(value=entry.value, source=f"fitted to {entry.rows} published runs", confidence="fitted")
            for name, entry in fitted.items()
        }
        return stack.model_copy(update={"constants": stack.constants.model_copy(update=new)})


@lru_cache
def load_calibration(name: str = PUBLISHED) -> Calibration:
    """The calibration of that name that comes with the package."""
    from ruamel.yaml import YAML

    text = (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return Calibration.model_validate(YAML(typ="safe").load(text))
