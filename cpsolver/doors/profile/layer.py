"""A real transformer layer in plain PyTorch, laid out as Megatron's on one tensor-parallel rank, to measure the bytes
that it saves for backward and its time.

Norm, projection to queries, keys and values, rotary embedding, attention's core, projection, residual; norm, gate and
up projection in one GEMM, activation, down projection, residual. Values are copied out of the common projection
before attention, as Transformer Engine does with operands whose layouts differ (dot_product_attention/utils.py,
get_qkv_layout). Where bytes are counted, norm and gated activation save only their input and recompute the rest, as the
fused ones do (Megatron-LM core/fusions/fused_bias_swiglu.py; Transformer Engine's norms, which also save a number a
token). Where the layer is timed they are PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from cpsolver.doors.profile.device import TorchDevice
from cpsolver.inputs.language import say
from models_zoo import SPECIAL_LAYERS, Architecture, special_layers

Tensor = Any


def unsuitable(model: Architecture) -> str:
    """Why this layer differs from the model's; empty where it does not."""
    if model.attention.kind not in ("mha", "gqa", "mqa"):
        return say(
            "the real layer has plain or grouped attention, and {model} has {kind}",
            model=model.name,
            kind=model.attention.kind,
        )
    for name in special_layers(model):
        return say(
            "the real layer has attention and a feed-forward block, and {model} has {special}",
            model=model.name,
            special=say(SPECIAL_LAYERS[name]),
        )
    if all(model.has_experts(index) for index in range(model.layers)):
        return say("the real layer has a dense feed-forward block, and all of {model} have experts", model=model.name)
    if model.attention.output_gate or model.norms_per_layer != 2:
        return say("the real layer has two norms and no gate on attention, unlike {model}", model=model.name)
    return ""


class Layer:
    """One layer with random weights in bf16; `run` is its forward pass on (1, tokens, hidden).

    `lean`: norm and gated activation save only their input.
    """

    def __init__(
        self, device: TorchDevice, model: Architecture, tokens: int, attention: str, recompute: str, lean: bool
    ) -> None:
        self.torch, self.model, self.lean = device.torch, model, lean
        self.attention, self.recompute = attention, recompute
        wide, kv_wide = model.heads * model.head_dim, model.kv_heads * model.head_dim
        gates = 2 if model.gated_mlp else 1

        def weight(rows: int, columns: int) -> Tensor:
            return (device.random(rows, columns) * columns**-0.5).requires_grad_()

        self.weights = {
            "qkv": weight(wide + 2 * kv_wide, model.hidden),
            "out": weight(model.hidden, wide),
            "up": weight(gates * model.ffn, model.hidden),
            "down": weight(model.hidden, model.ffn),
            "norm1": device.random(model.hidden).requires_grad_(),
            "norm2": device.random(model.hidden).requires_grad_(),
        }
        self.tables = self._tables(device, tokens)

    def _tables(self, device: TorchDevice, tokens: int) -> dict[str, Tensor]:
        """Tensors that all layers share: the angles of the rotary embedding, and the mask of unfused attention."""
        torch, half = self.torch, self.model.head_dim // 2
        tables: dict[str, Tensor] = {}
        if self.model.position == "rope":
            turns = 10_000.0 ** (-torch.arange(half, device=device.where) / half)
            angles = torch.outer(torch.arange(tokens, device=device.where), turns).repeat(1, 2)
            tables |= {"cos": angles.cos().bfloat16()[:, None], "sin": angles.sin().bfloat16()[:, None]}
        if self.attention == "unfused":
            minus = torch.full((tokens, tokens), float("-inf"), dtype=torch.bfloat16, device=device.where)
            tables["mask"] = minus.triu(1)
        return tables

    def run(self, x: Tensor) -> Tensor:
        """The forward pass, with its recomputation."""
        return self._checkpointed(self._forward, x) if self.recompute == "full" else self._forward(x)

    def _checkpointed(self, what: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        return checkpoint(what, *inputs, use_reentrant=False)

    def _forward(self, x: Tensor) -> Tensor:
        linear = self.torch.nn.functional.linear
        q, k, v = self._heads(linear(self._norm(x, "norm1"), self.weights["qkv"]))
        core = self._checkpointed(self._core, q, k, v) if self.recompute == "selective" else self._core(q, k, v)
        x = x + linear(core.transpose(1, 2).flatten(2), self.weights["out"])
        inside = linear(self._norm(x, "norm2"), self.weights["up"])
        return x + linear(self._activation(inside), self.weights["down"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        functional, weight = self.torch.nn.functional, self.weights[name]
        norm = functional.rms_norm if self.model.norm == "rmsnorm" else functional.layer_norm

        def normed(x: Tensor, weight: Tensor) -> Tensor:
            return norm(x, (self.model.hidden,), weight)

        return _recomputed_in_backward(normed, x, weight) if self.lean else normed(x, weight)

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(1, heads, tokens, head_dim) each, in memory with a token's heads together as Megatron has them."""
        model, (batch, tokens, _) = self.model, mixed.shape
        heads = (model.heads, model.kv_heads, model.kv_heads)
        parts = mixed.split([count * model.head_dim for count in heads], dim=-1)
        q, k, v = (part.view(batch, tokens, count, model.head_dim) for part, count in zip(parts, heads, strict=True))
        q, k, v = (count.contiguous().transpose(1, 2) for count in (self._turned(q), self._turned(k), v))
        return q, k, v

    def _turned(self, x: Tensor) -> Tensor:
        if "cos" not in self.tables:
            return x
        first, second = x.chunk(2, dim=-1)
        turned = self.torch.cat((-second, first), dim=-1)
        return x * self.tables["cos"] + turned * self.tables["sin"]

    def _core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch, groups = self.torch, q.shape[1] // k.shape[1]
        if self.attention == "flash":
            grouped = {"enable_gqa": True} if groups > 1 else {}
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)
        (_, heads, tokens, wide), scale = q.shape, q.shape[-1] ** -0.5
        keys, values = (tensor[0].repeat_interleave(groups, 0) if groups > 1 else tensor[0] for tensor in (k, v))
        mask = self.tables["mask"].expand(heads, tokens, tokens)
        scores = torch.baddbmm(mask, q[0], keys.transpose(1, 2), alpha=scale)
        return torch.bmm(scores.softmax(-1), values).view(1, heads, tokens, wide)

    def _activation(self, inside: Tensor) -> Tensor:
        functional, name = self.torch.nn.functional, self.model.activation
        act = functional.silu if "swi" in name or "silu" in name else functional.gelu
        if not self.model.gated_mlp:
            return act(inside)

        def gated(inside: Tensor) -> Tensor:
            gate, up = inside.chunk(2, dim=-1)
            return act(gate) * up

        return _recomputed_in_backward(gated, inside) if self.lean else gated(inside)

    @property
    def constants(self) -> set[int]:
        """Storages of weights and tables, which do not count as activations."""
        return {_storage(tensor) for tensor in (*self.weights.values(), *self.tables.values())}


def _recomputed_in_backward(what: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """what(*inputs), saving only the inputs: backward recomputes the rest."""
    return _recomputing_function().apply(what, *inputs)


@lru_cache
def _recomputing_function() -> Any:
    import torch

    def forward(ctx: Any, what: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.what = what
        ctx.save_for_backward(*inputs)
        return what(*inputs)

    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        with torch.enable_grad():
            inputs = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            return (None, *torch.autograd.grad(ctx.what(*inputs), inputs, gradient))

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Recomputing", (torch.autograd.Function,), methods)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def saved_bytes(
    device: TorchDevice, model: Architecture, tokens: int, attention: str, recompute: str
) -> tuple[int, Any]:
    """Bytes that one layer saves for backward: those of all storages that autograd saved, each counted once; and the
    growth of the device's allocated memory without the layer's result (None where nothing counts it)."""
    torch = device.torch
    layer = Layer(device, model, tokens, attention, recompute, lean=True)
    x = device.random(1, tokens, model.hidden).requires_grad_()
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    before = device.allocated_bytes()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = layer.run(x)
    device.synchronize()
    after = device.allocated_bytes()
    activations = sum(size for storage, size in saved.items() if storage not in layer.constants)
    grown = None
    if before is not None and after is not None:  # the input was allocated before, and counts as saved
        grown = after - before - result.untyped_storage().nbytes() + x.untyped_storage().nbytes()
    del result
    return activations, grown


def stack_call(device: TorchDevice, model: Architecture, tokens: int, layers: int) -> Callable[[], object]:
    """Forward and backward of that many layers with a fused attention kernel and nothing recomputed."""
    stack = [Layer(device, model, tokens, "flash", "none", lean=False) for _ in range(layers)]
    x = device.random(1, tokens, model.hidden).requires_grad_()
    gradient = device.random(1, tokens, model.hidden)
    leaves = [x, *(weight for layer in stack for weight in layer.weights.values())]

    def call() -> object:
        y = x
        for layer in stack:
            y = layer.run(y)
        return device.torch.autograd.grad(y, leaves, gradient)

    return call
