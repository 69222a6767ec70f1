"""The operators: products, memory-bound kernels, launches, copies from and to the host; one call of each to time."""

from __future__ import annotations

from typing import Any

from cpsolver.doors.profile.attention import attention_backward, attention_forward
from cpsolver.doors.profile.device import Device
from cpsolver.doors.profile.task import Measurement, Task
from cpsolver.doors.profile.timing import Call, Clock


def measure_operator(task: Task, device: Device, clock: Clock) -> Measurement:
    """Time the task's operator. Raises what PyTorch raises where the device cannot do it."""
    if task.kind == "attention_forward":
        call, note = attention_forward(task, device)
        return Measurement(task.kind, task.size, clock.seconds(call), note=note)
    if task.kind == "attention_backward":
        call, before, note = attention_backward(task, device)
        return Measurement(task.kind, task.size, clock.seconds(call, before), note=note)
    if task.kind == "launch":
        call, note = _launches(task, device)
        each = int(task.size["kernels"])
        return Measurement(task.kind, task.size, tuple(s / each for s in clock.seconds(call)), note=note)
    make = {"gemm": _gemm, "memory": _stream, "host_link": _host_copy}[task.kind]
    return Measurement(task.kind, task.size, clock.seconds(make(task, device)))


def _gemm(task: Task, device: Device) -> Call:
    """A product as a linear layer lays its operands out: y = x w^T, dx = dy w, dw = dy^T x, with w of (n, k)."""
    torch, size = device.torch, task.size
    m, n, k, batch = (int(size[name]) for name in ("m", "n", "k", "batch"))
    precision, product = str(size["precision"]), size["product"]
    lead = (batch,) if batch > 1 else ()
    if precision == "fp8":
        return _fp8_gemm(device, m, n, k, batch)
    a = device.random(*lead, k, m).mT if product == "weight_gradient" else device.random(*lead, m, k)
    b = device.random(*lead, n, k).mT if product == "forward" else device.random(*lead, k, n)
    a, b = a.to(device.dtype(precision)), b.to(device.dtype(precision))
    out = torch.empty(*lead, m, n, dtype=a.dtype, device=device.where)
    return lambda: torch.matmul(a, b, out=out)


def _fp8_gemm(device: Device, m: int, n: int, k: int, batch: int) -> Call:
    """One scale for each operand; the hardware takes the second one column by column, whichever product it is."""
    if batch > 1:
        raise NotImplementedError("PyTorch has no batched fp8 product")
    torch = device.torch
    a, b = device.random(m, k, precision="fp8"), device.random(n, k, precision="fp8").t()
    one = torch.ones((), device=device.where)
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _stream(task: Task, device: Device) -> Call:
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


def _launches(task: Task, device: Device) -> tuple[Call, str]:
    """Tiny kernels in a row, each after the one before: on CUDA recorded once and replayed by the device itself."""
    torch, count = device.torch, int(task.size["kernels"])
    one = torch.ones(1, device=device.where)

    def all_of_them() -> None:
        for _ in range(count):
            one.mul_(1.0)

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


def _host_copy(task: Task, device: Device) -> Call:
    torch, count = device.torch, int(task.size["bytes"])
    host = torch.ones(count, dtype=torch.uint8).pin_memory()
    there = torch.ones(count, dtype=torch.uint8, device=device.where)
    if task.size["direction"] == "to the device":
        return lambda: there.copy_(host, non_blocking=True)
    return lambda: host.copy_(there, non_blocking=True)
