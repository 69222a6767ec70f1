"""Takes the measurement of one task, or says why it cannot be taken. One call of each operator is timed."""

from __future__ import annotations

from typing import Any

from cpsolver.doors.profile import layer
from cpsolver.doors.profile.attention import attention_backward, attention_forward
from cpsolver.doors.profile.budget import Outcome
from cpsolver.doors.profile.device import Call, CallTimer, TorchDevice
from cpsolver.doors.profile.settings import Timing, settings
from cpsolver.doors.profile.task import Measurement, MeasurementTask
from cpsolver.inputs.language import say
from models_zoo import Architecture


class Bench:
    """Measures tasks on one device, in this process."""

    def __init__(self, device: TorchDevice, model: Architecture, timing: Timing) -> None:
        device.select()
        self.device, self.model = device, model
        self.clock = CallTimer(device, timing)

    def __call__(self, task: MeasurementTask) -> Outcome:
        """The measurement, or why there is none: too large, not supported, out of memory."""
        budget_bytes = self.device.free_bytes * settings().memory_share
        if task.bytes > budget_bytes:
            return say(
                "needs {need:.1f} GiB, and {most:.1f} may be taken", need=task.bytes / 2**30, most=budget_bytes / 2**30
            )
        try:
            return self._taken(task)
        except (RuntimeError, TypeError, AttributeError, MemoryError) as error:
            return self.device.failure(error)
        finally:
            self.device.release()

    def _taken(self, task: MeasurementTask) -> Outcome:
        if not task.kind.startswith("layer"):
            return measure_operator(task, self.device, self.clock)
        reason = layer.unsuitable(self.model)
        if reason:
            return reason
        tokens = int(task.size["tokens"])
        if task.kind == "layer_time":
            call = layer.stack_call(self.device, self.model, tokens, int(task.size["layers"]))
            return Measurement(task.kind, task.size, self.clock.seconds(call))
        variant = (str(task.size["attention"]), str(task.size["recompute"]))
        saved, allocated = layer.saved_bytes(self.device, self.model, tokens, *variant)
        return Measurement(task.kind, task.size, bytes=float(saved), allocated=allocated)


def measure_operator(task: MeasurementTask, device: TorchDevice, clock: CallTimer) -> Measurement:
    """Time the task's operator. Raises what PyTorch raises where the device cannot do it."""
    if task.kind == "attention_forward":
        call, note = attention_forward(task, device)
        return Measurement(task.kind, task.size, clock.seconds(call), note=note)
    if task.kind == "attention_backward":
        call, forward, note = attention_backward(task, device)
        return Measurement(task.kind, task.size, clock.seconds(call, forward), note=note)
    if task.kind == "launch":
        call, note = _launches(task, device)
        kernels = int(task.size["kernels"])
        return Measurement(task.kind, task.size, tuple(s / kernels for s in clock.seconds(call)), note=note)
    make = {"gemm": _gemm, "memory": _stream, "host_link": _host_copy}[task.kind]
    return Measurement(task.kind, task.size, clock.seconds(make(task, device)))


def _gemm(task: MeasurementTask, device: TorchDevice) -> Call:
    """A GEMM with its operands as a linear layer has them: y = x w^T, dx = dy w, dw = dy^T x, with w of (n, k)."""
    torch, size = device.torch, task.size
    m, n, k, batch = (int(size[name]) for name in ("m", "n", "k", "batch"))
    precision, direction = str(size["precision"]), size["product"]
    lead = (batch,) if batch > 1 else ()
    if precision == "fp8":
        return _fp8_gemm(device, m, n, k, batch)
    a = device.random(*lead, k, m).mT if direction == "weight_gradient" else device.random(*lead, m, k)
    b = device.random(*lead, n, k).mT if direction == "forward" else device.random(*lead, k, n)
    a, b = a.to(device.dtype(precision)), b.to(device.dtype(precision))
    out = torch.empty(*lead, m, n, dtype=a.dtype, device=device.where)
    return lambda: torch.matmul(a, b, out=out)


def _fp8_gemm(device: TorchDevice, m: int, n: int, k: int, batch: int) -> Call:
    """One scale for each operand. The hardware takes the second operand by columns, in forward and backward alike."""
    if batch > 1:
        raise NotImplementedError("PyTorch has no batched fp8 product")
    torch = device.torch
    a, b = device.random(m, k, precision="fp8"), device.random(n, k, precision="fp8").t()
    scale = torch.ones((), device=device.where)
    return lambda: torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def _stream(task: MeasurementTask, device: TorchDevice) -> Call:
    torch, name = device.torch, str(task.size["kernel"])
    columns = 4096
    rows = int(task.size["bytes"]) // (2 * columns)
    a, b, out = device.random(rows, columns), device.random(rows, columns), device.random(rows, columns)
    weight = device.random(columns)
    calls: dict[str, Call] = {
        "copy": lambda: out.copy_(a),
        "add": lambda: torch.add(a, b, out=out),
        "scale": lambda: torch.mul(a, 1.5, out=out),
        "norm": lambda: torch.nn.functional.layer_norm(a, (columns,), weight, weight),
        "gelu": lambda: torch.ops.aten.gelu.out(a, out=out),
    }
    return calls[name]


def _launches(task: MeasurementTask, device: TorchDevice) -> tuple[Call, str]:
    """Tiny kernels in a row, each dependent on the last. On CUDA they are recorded once and replayed by the device."""
    torch, count = device.torch, int(task.size["kernels"])
    tensor = torch.ones(1, device=device.where)

    def all_of_them() -> None:
        for _ in range(count):
            tensor.mul_(1.0)

    if device.kind != "cuda":
        return all_of_them, "launched by the host one by one"
    return _recorded(torch, all_of_them), "recorded and replayed by the device"


def _recorded(torch: Any, call: Call) -> Call:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return lambda: graph.replay()


def _host_copy(task: MeasurementTask, device: TorchDevice) -> Call:
    torch, count = device.torch, int(task.size["bytes"])
    host = torch.ones(count, dtype=torch.uint8).pin_memory()
    memory = torch.ones(count, dtype=torch.uint8, device=device.where)
    target, source = (memory, host) if task.size["direction"] == "to the device" else (host, memory)
    return lambda: target.copy_(source, non_blocking=True)
