"""Seconds that a device computes: matrix products by shape, attention by kernel, the rest by memory traffic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpsolver.cost.shard import Floats, Shard, padded_vocabulary
from cpsolver.problem import Problem
from hw_specs import Chip

_ELEMENT = 2  # bytes of a bf16 or fp16 value


@dataclass(frozen=True)
class LayerSeconds:
    """One layer, one microbatch, one device, without communication. `core` is attention's core within `forward`."""

    forward: Floats
    backward: Floats
    core: Floats


@dataclass(frozen=True)
class EndSeconds:
    """Forward plus backward of what stands before the first layer and after the last one."""

    embedding: Floats
    head: Floats


class Device:
    """A chip's speeds in SI units, for one problem's precision and software stack."""

    def __init__(self, problem: Problem, chip: Chip) -> None:
        precision = problem.spec.training.precision
        stack = problem.stack
        self.peak = chip.peak_flops(precision)
        self.gemm_rate = self.peak * chip.efficiency_value(f"gemm_{precision}")
        self.forward_attention_rate = self.peak * chip.efficiency_value("attention_forward")
        self.backward_attention_rate = self.peak * chip.efficiency_value("attention_backward")
        self.memory_rate = chip.memory_bandwidth_bytes_s * chip.efficiency_value("memory")
        self.kernel_latency = chip.kernel_latency_s
        self.units = chip.compute_units
        self.tile = (stack.gemm_tile_rows, stack.gemm_tile_columns)
        self.half_depth = stack.gemm_half_depth

    def gemm(self, m: Floats, n: Floats, k: Floats) -> Floats:
        """Seconds of an (m, k) x (k, n) product: roofline, tiles that fill the device's units, depth of the loop."""
        flops = 2.0 * m * n * k
        shape = self._tile_use(m, n) * k / (k + self.half_depth)
        traffic = _ELEMENT * (m * k + k * n + m * n)
        seconds = np.maximum(flops / (self.gemm_rate * shape), traffic / self.memory_rate)
        return np.asarray(seconds + self.kernel_latency)

    def stream(self, traffic_bytes: Floats, kernels: float) -> Floats:
        """Seconds of `kernels` memory-bound kernels that together move that many bytes."""
        return np.asarray(traffic_bytes / self.memory_rate + kernels * self.kernel_latency)

    def _tile_use(self, m: Floats, n: Floats) -> Floats:
        """Useful share of the tiles computed, the better of the large tile (either way round) and half of it."""
        rows, columns = self.tile
        best = np.zeros(np.broadcast(m, n).shape)
        for tile_m, tile_n in ((rows, columns), (columns, rows), (rows, rows)):
            tiles = np.ceil(m / tile_m) * np.ceil(n / tile_n)
            slots = tiles if self.units is None else np.ceil(tiles / self.units) * self.units
            best = np.maximum(best, m * n / (slots * tile_m * tile_n))
        return best


def layer_seconds(problem: Problem, chip: Chip, shard: Shard) -> LayerSeconds:
    """One transformer layer on one device."""
    device = Device(problem, chip)
    tokens = (shard.mbs * problem.sequence).astype(np.float64)
    gemm_forward, gemm_backward = _gemms(problem, device, shard, tokens)
    core_forward, core_backward = _attention(problem, device, shard, tokens)
    other = _elementwise(problem, device, shard, tokens)
    return LayerSeconds(
        forward=gemm_forward + core_forward + other,
        backward=gemm_backward + core_backward + problem.stack.elementwise_backward_factor * other,
        core=core_forward,
    )


def _layer_products(problem: Problem, shard: Shard) -> list[tuple[Floats, Floats]]:
    """(n, k) of a layer's four products for T rows: qkv, attention output, feed-forward in, feed-forward out."""
    model, tp = problem.model, shard.tp.astype(np.float64)
    heads = model.heads / tp
    kv_heads = np.maximum(1.0, model.kv_heads / tp)
    ffn = model.ffn / tp
    hidden = np.full_like(tp, model.hidden)
    return [
        ((heads + 2 * kv_heads) * model.head_dim, hidden),
        (hidden, heads * model.head_dim),
        (ffn * (2 if model.gated_mlp else 1), hidden),
        (hidden, ffn),
    ]


def _gemms(problem: Problem, device: Device, shard: Shard, tokens: Floats) -> tuple[Floats, Floats]:
    """Forward; backward is one product for the input's gradient and one for the weight's."""
    forward, backward = np.zeros(len(tokens)), np.zeros(len(tokens))
    for n, k in _layer_products(problem, shard):
        forward = forward + device.gemm(tokens, n, k)
        backward = backward + device.gemm(tokens, k, n) + device.gemm(k, n, tokens)
    return forward, backward


def _attention(problem: Problem, device: Device, shard: Shard, tokens: Floats) -> tuple[Floats, Floats]:
    model, stack = problem.model, problem.stack
    heads = model.heads / shard.tp.astype(np.float64)
    flops = 4.0 * tokens * problem.sequence * model.head_dim * heads
    kernel = device.kernel_latency
    visible = flops * stack.causal_fraction
    flash_forward = visible / device.forward_attention_rate + kernel
    flash_backward = visible * stack.attention_backward_flops_factor / device.backward_attention_rate + 2 * kernel
    # Unfused: two full products forward and four backward; the score matrix is written and read by each kernel.
    # Forward: scores written, softmax reads and writes, dropout reads and writes, values read it.
    # Backward: gradient of the values, of the scores (written), softmax (reads two, writes one), two products.
    scores = heads * tokens * problem.sequence * _ELEMENT
    dropout = problem.spec.training.dropout
    depth = np.full_like(heads, problem.sequence)
    width = np.full_like(heads, model.head_dim)
    one = device.gemm(depth, depth, width) + device.gemm(depth, width, depth)
    products = (one - 2 * kernel) * heads * shard.mbs + 2 * kernel
    plain_forward = products + device.stream(scores * (4 + 2 * dropout), 1 + dropout)
    plain_backward = 2 * products + device.stream(scores * (6 + 2 * dropout), 1 + dropout)
    return (
        np.where(shard.flash_attention, flash_forward, plain_forward),
        np.where(shard.flash_attention, flash_backward, plain_backward),
    )


def _elementwise(problem: Problem, device: Device, shard: Shard, tokens: Floats) -> Floats:
    """Forward traffic of norms, residuals, rotary embedding and activation."""
    model, training = problem.model, problem.spec.training
    tp = shard.tp.astype(np.float64)
    own = tokens / shard.sequence_split
    norms = model.norms_per_layer * 2 * model.hidden * own
    residuals = 2 * (3 + training.dropout) * model.hidden * own
    heads = model.heads / tp + np.maximum(1.0, model.kv_heads / tp)
    rotary = 2 * heads * model.head_dim * tokens if model.position == "rope" else np.zeros_like(tokens)
    activation = (3 if model.gated_mlp else 2) * model.ffn / tp * tokens
    elements = norms + residuals + rotary + activation
    kernels = model.norms_per_layer + 4
    fused = device.stream(elements * _ELEMENT, kernels)
    if training.fused_kernels:
        return fused
    factor = problem.stack.unfused_traffic_factor
    return device.stream(elements * _ELEMENT * factor, kernels * factor)


def end_seconds(problem: Problem, chip: Chip, shard: Shard) -> EndSeconds:
    """Embedding on the first stage; final norm, logits and loss on the last; forward plus backward."""
    device, model, stack = Device(problem, chip), problem.model, problem.stack
    tokens = (shard.mbs * problem.sequence).astype(np.float64)
    vocab = padded_vocabulary(model.vocab, shard.tp) / shard.tp.astype(np.float64)
    hidden = np.full_like(tokens, model.hidden)
    table = 4 * tokens * model.hidden * _ELEMENT  # rows read and written, forward and backward
    logits = (
        device.gemm(tokens, vocab, hidden) + device.gemm(tokens, hidden, vocab) + device.gemm(hidden, vocab, tokens)
    )
    loss = device.stream(stack.logits_traffic_bytes * tokens * vocab, 8)
    norm = device.stream(6 * _ELEMENT * tokens * model.hidden / shard.sequence_split, 2)
    return EndSeconds(embedding=device.stream(table, 4), head=logits + loss + norm)


def optimizer_seconds(problem: Problem, chip: Chip, parameters: Floats) -> Floats:
    """One optimizer step over that many parameters held by a device."""
    device = Device(problem, chip)
    return np.asarray(parameters * problem.stack.optimizer_step_bytes / device.memory_rate)


def model_flops_per_step(problem: Problem) -> float:
    """FLOP of one step by the usual count for MFU: no recomputation, causal attention counted half.

    Source of the convention: 6 FLOP a weight and token for forward and backward, plus attention's two products.
    """
    model = problem.model
    queries = model.heads * model.head_dim
    widths = (
        model.hidden * (queries + 2 * model.kv_heads * model.head_dim)
        + queries * model.hidden
        + (3 if model.gated_mlp else 2) * model.hidden * model.ffn
    )
    attention = 2 * problem.sequence * queries * problem.stack.causal_fraction
    per_token = 6.0 * (model.layers * (widths + attention) + model.hidden * model.vocab)
    return float(per_token * problem.sequence * problem.batch)
