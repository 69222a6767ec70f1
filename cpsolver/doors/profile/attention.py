"""Fused causal attention: PyTorch's kernels (on CUDA the fastest of them), and on Ascend its own operator."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from cpsolver.doors.profile.device import Call, TorchDevice
from cpsolver.doors.profile.task import MeasurementTask

Attend = Callable[[], Any]
_MASK = 2048  # rows of the compressed causal mask that the Ascend operator takes with sparse_mode 2


def attention_forward(task: MeasurementTask, device: TorchDevice) -> tuple[Call, str]:
    """One call of the forward pass, and the kernel that it runs."""
    q, k, v = _inputs(task, device)
    with device.torch.no_grad():
        attend, note = _fastest(device, q, k, v)

    def call() -> None:
        with device.torch.no_grad():
            attend()

    return call, note


def attention_backward(task: MeasurementTask, device: TorchDevice) -> tuple[Call, Call, str]:
    """One call of the backward pass, the forward pass before it, and the kernel."""
    q, k, v = _inputs(task, device)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    attend, note = _fastest(device, q, k, v, backward=True)
    torch, outputs = device.torch, list[Any]()
    outputs.append(attend())
    gradient = torch.randn_like(outputs[0])

    def forward() -> None:
        outputs[0] = attend()

    return lambda: torch.autograd.grad(outputs[0], (q, k, v), gradient), forward, note


def _inputs(task: MeasurementTask, device: TorchDevice) -> tuple[Any, Any, Any]:
    names = ("batch", "heads", "sequence", "keys", "values")
    batch, heads, sequence, keys, values = (int(task.size[name]) for name in names)
    precision = str(task.size["precision"])
    q, k = (device.random(batch, heads, sequence, keys, precision=precision) for _ in range(2))
    return q, k, device.random(batch, heads, sequence, values, precision=precision)


def _fastest(device: TorchDevice, q: Any, k: Any, v: Any, backward: bool = False) -> tuple[Attend, str]:
    """The fastest way to call attention, and its name. Raises the last error where none works."""
    if device.kind == "npu":
        return _ascend(q, k, v), "torch_npu.npu_fusion_attention"
    functional = device.torch.nn.functional

    def plain() -> Any:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    if device.kind == "cpu":
        return plain, "scaled_dot_product_attention"
    timed, last_error = [], RuntimeError("no fused kernel")
    for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION"):
        attend = _with_kernel(device.torch, name, plain)
        try:
            timed.append((_probe(device, attend, (q, k, v) if backward else None), name, attend))
        except RuntimeError as error:
            last_error = error
    if not timed:
        raise last_error
    _, name, attend = min(timed, key=lambda candidate: candidate[0])
    return attend, f"scaled_dot_product_attention, {name.lower().partition('_')[0]} kernel"


def _with_kernel(torch: Any, name: str, plain: Attend) -> Attend:
    chosen = getattr(torch.nn.attention.SDPBackend, name)

    def attend() -> Any:
        with torch.nn.attention.sdpa_kernel(chosen):
            return plain()

    return attend


def _probe(device: TorchDevice, attend: Attend, inputs: tuple[Any, ...] | None) -> float:
    def call() -> None:
        out = attend()
        if inputs is not None:
            device.torch.autograd.grad(out, inputs, device.torch.ones_like(out))

    call()
    device.synchronize()
    return min(device.seconds_of(call) for _ in range(3))


def _ascend(q: Any, k: Any, v: Any) -> Attend:
    """As MindSpeed calls it (core/context_parallel/dot_product_attention.py), masked as by sparse_mode 2."""
    import torch

    torch_npu = import_module("torch_npu")

    mask = torch.triu(torch.ones(_MASK, _MASK, dtype=torch.bool, device=q.device), diagonal=1)

    def attend() -> Any:
        return torch_npu.npu_fusion_attention(
            q, k, v, q.shape[1], "BNSD", atten_mask=mask, scale=q.shape[-1] ** -0.5, sparse_mode=2
        )[0]

    return attend
