"""A device through PyTorch: its name and software, its memory, the time of calls on it, and what its errors mean."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cpsolver.doors.profile.settings import DeviceKind, Timing, settings
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.inputs.language import say

_LONGEST_REASON = 120
"""Characters of an error that are shown: the first line of PyTorch's may be much longer than a report's row."""
Call = Callable[[], object]
"""Work to time, with all its inputs bound."""


@dataclass(frozen=True)
class TorchDevice:
    """A device of PyTorch. `index` counts devices of its kind. Seconds, bytes."""

    kind: DeviceKind
    index: int = 0

    @cached_property
    def torch(self) -> Any:
        """The module, with Ascend's plug-in loaded where the device needs it."""
        import torch

        if self.kind == "npu":
            importlib.import_module("torch_npu")
        return torch

    @property
    def _backend(self) -> Any:
        return getattr(self.torch, self.kind)

    @property
    def where(self) -> str:
        """PyTorch's name of the device."""
        return "cpu" if self.kind == "cpu" else f"{self.kind}:{self.index}"

    @property
    def count(self) -> int:
        """Devices of this kind on this machine; 1 for the CPU."""
        return 1 if self.kind == "cpu" else int(self._backend.device_count())

    @cached_property
    def name(self) -> str:
        """The name that its driver reports."""
        return _cpu_name() if self.kind == "cpu" else str(self._backend.get_device_name(self.index))

    @cached_property
    def driver(self) -> str:
        """Versions of the software between PyTorch and the device."""
        if self.kind == "cuda":
            return f"CUDA {self.torch.version.cuda or self.torch.version.hip}, driver {_nvidia_driver()}"
        if self.kind == "npu":
            return f"torch_npu {importlib.import_module('torch_npu').__version__}"
        return f"{platform.system()} {platform.release()}, {self.torch.get_num_threads()} threads"

    @property
    def provenance(self) -> dict[str, str]:
        """What measurements depend on. A journal holds those of one provenance."""
        return {"device": self.name, "kind": self.kind, "driver": self.driver, "torch": str(self.torch.__version__)}

    @property
    def total_bytes(self) -> float:
        """The whole memory."""
        if self.kind == "cpu":
            return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        return float(self._backend.mem_get_info(self.index)[1])

    @property
    def free_bytes(self) -> float:
        """Memory that is free now."""
        return _cpu_free() if self.kind == "cpu" else float(self._backend.mem_get_info(self.index)[0])

    @property
    def compute_units(self) -> int | None:
        """Streaming multiprocessors; None where PyTorch does not tell."""
        if self.kind != "cuda":
            return None
        return int(self._backend.get_device_properties(self.index).multi_processor_count)

    def allocated_bytes(self) -> float | None:
        """Bytes in use by PyTorch's allocator; None for the CPU, where nothing counts them."""
        return None if self.kind == "cpu" else float(self._backend.memory_allocated(self.index))

    def select(self) -> None:
        """Make this the device that the process uses."""
        if self.kind != "cpu":
            self._backend.set_device(self.index)

    def synchronize(self) -> None:
        """Wait for all work that was started on it."""
        if self.kind != "cpu":
            self._backend.synchronize()

    def release(self) -> None:
        """Return memory that no tensor uses to the device."""
        if self.kind != "cpu":
            self._backend.empty_cache()

    def seconds_of(self, call: Call) -> float:
        """Seconds of one call; on an accelerator by its own events, so that queued work does not count."""
        if self.kind == "cpu":
            began = time.perf_counter()
            call()
            return time.perf_counter() - began
        start, end = (self._backend.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        self.synchronize()
        return float(start.elapsed_time(end)) * 1e-3  # milliseconds

    def dtype(self, precision: str) -> Any:
        """PyTorch's type of that precision."""
        names = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn"}
        return getattr(self.torch, names[precision])

    def random(self, *shape: int, precision: str = "bf16") -> Any:
        """Normally distributed numbers: GEMMs of zeros take less power, and so less time."""
        wide = "bf16" if precision == "fp8" else precision
        values = self.torch.randn(*shape, dtype=self.dtype(wide), device=self.where)
        return values.to(self.dtype(precision)) if precision == "fp8" else values

    def failure(self, error: BaseException) -> str:
        """What an error of PyTorch means for a measurement: memory ran out, or the device cannot do it."""
        text = str(error).strip()
        if isinstance(error, MemoryError | self.torch.OutOfMemoryError) or any(
            sign in text.lower() for sign in ("out of memory", "can't allocate memory", "not enough memory")
        ):
            return say("out of memory")
        first = (text or type(error).__name__).splitlines()[0]
        return say("not supported here: {reason}", reason=first[:_LONGEST_REASON])


class CallTimer:
    """Times calls on one device.

    A large buffer is written before each call. That empties the caches of the last call, and keeps an accelerator busy
    while the host prepares the next one, so that the device is timed and not the host.
    """

    def __init__(self, device: TorchDevice, timing: Timing) -> None:
        self.device, self.timing = device, timing
        self._buffer = device.torch.ones(settings().flush_bytes // 4, dtype=device.torch.int32, device=device.where)

    def seconds(self, call: Call, prepare: Call = lambda: None) -> tuple[float, ...]:
        """Seconds of each timed call. `prepare` runs before each, untimed."""
        timing, seconds = self.timing, list[float]()
        for _ in range(timing.warmup):
            prepare()
            call()
        self.device.synchronize()
        start = time.monotonic()
        while len(seconds) < timing.fewest or (
            len(seconds) < timing.repeats and time.monotonic() - start < timing.seconds
        ):
            prepare()
            self._buffer.add_(1)
            seconds.append(self.device.seconds_of(call))
        return tuple(seconds)


def require_torch() -> None:
    """Raises InputError where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(Trouble("profile", say("needs PyTorch: pip install 'apss-cp[profile]'")))


def find_device(asked: str) -> TorchDevice:
    """The device asked for; auto: the first accelerator, else the CPU. Raises InputError where there is none."""
    require_torch()
    kinds = available()
    device = next((TorchDevice(kind) for kind in kinds if asked in (kind, "auto")), None)
    if device is None:
        no_plugin = asked == "npu" and importlib.util.find_spec("torch_npu") is None
        message = say("PyTorch finds none here")
        if no_plugin:
            message = say("PyTorch finds none here: torch_npu is not installed")
        raise InputError(Trouble("--device", message, asked, ", ".join(("auto", *kinds))))
    return device


def available() -> tuple[DeviceKind, ...]:
    """The kinds of devices that PyTorch finds on this machine, accelerators first."""
    torch: Any = importlib.import_module("torch")  # torch_npu adds its part of it only when it is loaded
    kinds: list[DeviceKind] = ["cuda"] if torch.cuda.is_available() else []
    if importlib.util.find_spec("torch_npu") is not None:
        importlib.import_module("torch_npu")
        kinds += ["npu"] if torch.npu.is_available() else []
    return (*kinds, "cpu")


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{named[0] if named else platform.processor() or platform.machine()} ({os.cpu_count()} CPUs)"


def _cpu_free() -> float:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable"):
                return 1024.0 * int(line.split()[1])
    except OSError:
        pass
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / 2


def _nvidia_driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        versions = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return versions[0] if versions else "unknown"
