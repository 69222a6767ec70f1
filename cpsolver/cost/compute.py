"""Seconds that a device computes: matrix products by shape, attention by kernel, the rest by memory traffic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpsolver.cost import products
from cpsolver.cost.device import ELEMENT, Device
from cpsolver.cost.products import Product
from cpsolver.cost.shard import Floats, Shard, padded_vocabulary
from cpsolver.problem import Problem
from hw_specs import Chip


@dataclass(frozen=True)
class LayerSeconds:
    """One layer, one microbatch, one device, without communication; the mean over the model's layers.

    `core` is attention's core within `forward`. `host` is what the host takes to launch one pass over the layer: a
    pass takes no less.
    """

    forward: Floats
    backward: Floats
    core: Floats
    host: float


@dataclass(frozen=True)
class EndSeconds:
    """Forward plus backward of what stands before the first layer and after the last one."""

    embedding: Floats
    head: Floats


def layer_seconds(problem: Problem, chip: Chip, shard: Shard) -> LayerSeconds:
    """One transformer layer on one device."""
    device, stack, model = Device(problem, chip), problem.stack, problem.model
    tokens = shard.tokens(problem.sequence)
    core_forward, core_backward = _attention(problem, device, shard, tokens)
    dense = products.dense_share(model)
    parts = [(1.0, products.attention_products(model, shard), _outside_feed_forward(problem, shard, tokens))]
    if dense:
        widths = products.feed_forward_products(model, shard, model.ffn)
        parts.append((dense, widths, _activation(problem, shard, tokens)))
    if dense < 1:
        parts.append((1 - dense, products.expert_products(model, shard), _routing(problem, shard, tokens)))
    forward, backward = core_forward, core_backward
    for share, made_of, (elements, kernels) in parts:
        gemm_forward, gemm_backward = _products(problem, device, made_of, tokens)
        other = _stream(problem, device, elements, kernels)
        forward = forward + share * (gemm_forward + other)
        backward = backward + share * (gemm_backward + stack.elementwise_backward_factor * other)
    return LayerSeconds(forward, backward, core_forward, stack.host_layer_us * 1e-6)


def _products(problem: Problem, device: Device, made_of: list[Product], tokens: Floats) -> tuple[Floats, Floats]:
    """Forward; backward is one product for the input's gradient and one for the weight's, added up in fp32.

    fp8 casts each operand where it is made; a stack without a fused sum runs over the weights' gradients once more.
    """
    forward, backward = np.zeros(len(tokens)), np.zeros(len(tokens))
    stack = problem.stack
    for each in made_of:
        m = tokens * each.rows
        once = device.layer_gemm(m, each.n, each.k, each.count)
        back = device.layer_gemm(m, each.k, each.n, each.count)
        back = back + device.layer_gemm(each.k, each.n, m, each.count, summed=True)
        if each.grouped:
            once, back = once / stack.grouped_gemm_speed, back / stack.grouped_gemm_speed
        if device.fp8:
            once = once + device.stream(each.count * stack.fp8_cast_bytes * m * each.k, 1)
            back = back + device.stream(each.count * stack.fp8_cast_bytes * m * each.n, 1)
        sums = stack.gradient_sum_bytes * each.count * each.n * each.k / device.memory_rate
        forward = forward + once
        backward = backward + back + sums
    return forward, backward


def _attention(problem: Problem, device: Device, shard: Shard, tokens: Floats) -> tuple[Floats, Floats]:
    """Attention's core. Context parallelism leaves each device its share of the whole sequence's pairs."""
    model, stack = problem.model, problem.stack
    heads = model.heads / shard.tp.astype(np.float64)
    keys, values = products.core_widths(model)
    flops = 2.0 * tokens * problem.sequence * (keys + values) * heads
    kernel = device.kernel_latency
    visible = flops * products.visible_share(model, problem.sequence, stack.causal_fraction)
    flash_forward = visible / device.forward_attention_rate + kernel
    flash_backward = visible * stack.attention_backward_flops_factor / device.backward_attention_rate + 2 * kernel
    # Unfused: two full products forward and four backward, which read and write the score matrix themselves; beside
    # them softmax reads and writes it (backward: reads two, writes one), and so does dropout.
    scores = heads * tokens * problem.sequence * ELEMENT
    dropout = problem.spec.training.dropout
    depth = np.full_like(heads, problem.sequence)
    width = np.full_like(heads, keys)
    batch = heads * shard.mbs
    one = device.gemm(depth, depth, width, batch) + device.gemm(depth, width, depth, batch)
    pairs = (one - 2 * kernel) / shard.cp + 2 * kernel
    traffic = scores * stack.score_traffic
    plain_forward = pairs + device.stream(traffic * (2 + 2 * dropout), 1 + dropout)
    plain_backward = 2 * pairs + device.stream(traffic * (3 + 2 * dropout), 1 + dropout)
    return (
        np.where(shard.flash_attention, flash_forward, plain_forward),
        np.where(shard.flash_attention, flash_backward, plain_backward),
    )


Traffic = tuple[Floats, float]
"""Elements read and written, and the number of kernels that do it."""


def _outside_feed_forward(problem: Problem, shard: Shard, tokens: Floats) -> Traffic:
    """Norms, residuals and rotary embedding."""
    model, training = problem.model, problem.spec.training
    own = tokens / shard.sequence_split
    norms = model.norms_per_layer * 2 * model.hidden * own
    residuals = 2 * (3 + training.dropout) * model.hidden * own
    heads = (model.heads + model.kv_heads) / shard.tp.astype(np.float64)
    rotary = 2 * heads * model.head_dim * tokens if model.position == "rope" else np.zeros_like(tokens)
    return norms + residuals + rotary, model.norms_per_layer + 3


def _activation(problem: Problem, shard: Shard, tokens: Floats) -> Traffic:
    model = problem.model
    return (3 if model.gated_mlp else 2) * model.ffn / shard.tp * tokens, 1


def _routing(problem: Problem, shard: Shard, tokens: Floats) -> Traffic:
    """Experts' activation functions, and tokens copied into the experts' order and back."""
    model, moe = problem.model, problem.model.moe
    assert moe is not None
    inside = 3 if model.gated_mlp else 2
    shared = moe.shared_experts * (moe.shared_ffn or moe.expert_ffn)
    activation = inside * (moe.top_k * moe.expert_ffn + shared) / shard.tp * tokens
    copies = 4 * moe.top_k * model.hidden * tokens / shard.sequence_split
    return activation + copies, 10


def _stream(problem: Problem, device: Device, elements: Floats, kernels: float) -> Floats:
    stack = problem.stack
    factor = 1.0 if problem.spec.training.fused_kernels else stack.unfused_traffic_factor
    return device.stream(elements * ELEMENT * stack.elementwise_traffic * factor, kernels * factor)


def end_seconds(problem: Problem, chip: Chip, shard: Shard) -> EndSeconds:
    """Embedding on the first stage; final norm, logits and loss on the last; forward plus backward."""
    device, model, stack = Device(problem, chip), problem.model, problem.stack
    tokens = shard.tokens(problem.sequence)
    vocab = padded_vocabulary(model.vocab, shard.tp) / shard.tp.astype(np.float64)
    hidden = np.full_like(tokens, model.hidden)
    table = 4 * tokens * model.hidden * ELEMENT  # rows read and written, forward and backward
    logits = (
        device.gemm(tokens, vocab, hidden) + device.gemm(tokens, hidden, vocab) + device.gemm(hidden, vocab, tokens)
    )
    loss = device.stream(stack.logits_traffic_bytes * tokens * vocab, 8)
    norm = device.stream(6 * ELEMENT * tokens * model.hidden / shard.sequence_split, 2)
    return EndSeconds(embedding=device.stream(table, 4), head=logits + loss + norm)


def optimizer_seconds(problem: Problem, chip: Chip, parameters: Floats) -> Floats:
    """One optimizer step over that many parameters held by a device."""
    device = Device(problem, chip)
    return np.asarray(parameters * problem.stack.optimizer_step_bytes / device.memory_rate)


def model_flops_per_step(problem: Problem) -> float:
    """FLOP of one step by the usual count for MFU: no recomputation, causal attention counted half.

    Source of the convention: 6 FLOP a weight that a token uses, forward and backward, plus attention's two products.
    """
    model = problem.model
    whole = Shard.of(1, 1, False, True)
    dense = products.dense_share(model)
    parts = [(1.0, products.attention_products(model, whole))]
    parts.append((dense, products.feed_forward_products(model, whole, model.ffn)))
    if dense < 1:
        parts.append((1 - dense, products.expert_products(model, whole)))
    weights = sum(share * float(np.sum(each.n * each.k * each.rows * each.count)) for share, of in parts for each in of)
    keys, values = products.core_widths(model)
    seen = products.visible_share(model, problem.sequence, problem.stack.causal_fraction)
    attention = model.heads * (keys + values) * problem.sequence * seen
    per_token = model.layers * (weights + attention) + model.hidden * model.vocab
    return 6.0 * per_token * problem.sequence * problem.batch
