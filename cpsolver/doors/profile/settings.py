"""How measurements are taken: the checked contents of settings.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

from cpsolver.inputs.data import package_schema

DeviceKind = Literal["cuda", "npu", "cpu"]
_FILE = Path(__file__).parent / "settings.yaml"


class _SettingsRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Timing(_SettingsRecord):
    """How a call is timed: untimed calls first, timed calls at most and at least, seconds after which no further call
    is made, and the longest that a whole measurement may be expected to take."""

    warmup: PositiveInt
    repeats: PositiveInt
    fewest: PositiveInt
    seconds: PositiveFloat
    longest_s: PositiveFloat


class FitGrid(_SettingsRecord):
    """The values that a fit tries: `steps` of equal ratio from `least` to `most`."""

    least: PositiveFloat
    most: PositiveFloat
    steps: PositiveInt


class Settings(_SettingsRecord):
    """The whole file; its comments say what each setting is for. Bytes and seconds."""

    timing: Timing
    quick_timing: Timing
    time_budget_s: PositiveFloat
    quick_time_budget_s: PositiveFloat
    flush_bytes: PositiveInt
    memory_share: PositiveFloat
    large_dimension: PositiveInt
    squares: tuple[PositiveInt, ...]
    quick_squares: tuple[PositiveInt, ...]
    long_sequence: PositiveInt
    stream_bytes: dict[DeviceKind, PositiveInt]
    launches: PositiveInt
    host_copy_bytes: PositiveInt
    payload_bytes: dict[DeviceKind, tuple[PositiveInt, ...]]
    group_wait_s: PositiveFloat
    half_payload_mib: FitGrid
    layer_tokens: tuple[PositiveInt, ...]
    layers: PositiveInt

    def times(self, quick: bool) -> Timing:
        """The timing of calls, quick or not."""
        return self.quick_timing if quick else self.timing


def settings() -> Settings:
    """The settings that come with the package."""
    return package_schema(_FILE, Settings)
