"""Seconds of a call, again and again, with the caches emptied before each."""

from __future__ import annotations

import time
from collections.abc import Callable

from cpsolver.doors.profile.device import Device
from cpsolver.doors.profile.settings import Timing, settings

Call = Callable[[], object]


class Clock:
    """Times calls on one device. Writing a large buffer before each leaves nothing of the last call in the caches,
    and keeps an accelerator busy while the host prepares the next: what is timed is the device."""

    def __init__(self, device: Device, timing: Timing) -> None:
        self.device, self.timing = device, timing
        self._buffer = device.torch.ones(settings().flush_bytes // 4, dtype=device.torch.int32, device=device.where)

    def seconds(self, call: Call, before: Call | None = None) -> tuple[float, ...]:
        """Of each timed call; `before` runs before each, untimed."""
        timing, found = self.timing, list[float]()
        for _ in range(timing.warmup):
            self._ready(before)
            call()
        self.device.synchronize()
        began = time.monotonic()
        while len(found) < timing.fewest or (len(found) < timing.repeats and time.monotonic() - began < timing.seconds):
            self._ready(before)
            self._buffer.add_(1)
            found.append(self.device.seconds_of(call))
        return tuple(found)

    def _ready(self, before: Call | None) -> None:
        if before is not None:
            before()
