"""Bytes that a pipeline stage needs on each device: states, activations in flight, buffers. Rounded up, never down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpsolver.cost.device import ELEMENT
from cpsolver.cost.products import core_widths, dense_share
from cpsolver.cost.shard import Candidates, Floats, Ints, Shard, padded_vocabulary
from cpsolver.problem import Problem
from cpsolver.strategy import RecomputeKind
from models_zoo.params import final_norm_parameters, layer_parameters


@dataclass(frozen=True)
class LayerBytes:
    """What one layer keeps per microbatch on one device, in bytes; arrays with one entry a candidate.

    full: everything kept for the backward pass. selective: without attention's core. checkpoint: only the layer's
    input. buffer: gradients, of weights too, and gathered inputs that live while one layer runs backward.
    """

    full: Floats
    selective: Floats
    checkpoint: Floats
    buffer: Floats


@dataclass(frozen=True)
class StageParameters:
    """Parameters that one device holds: of a layer without experts, of its experts, and of what stands on the first
    and the last stage."""

    layer: Floats
    experts: Floats
    first: Floats
    last: Floats


@dataclass(frozen=True)
class StageBytes:
    """Memory that one stage needs on one device in bytes, by what it is for; `total` is their sum.

    `fragments`: what the caching allocator cannot use between what is allocated. `framework`: device context, loaded
    kernels, communicators. `cached` is held beyond the need, by the allocator and the libraries, while there is room:
    it is no part of `total`, but meters show it.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    fragments: float
    framework: float
    cached: float = 0.0

    @property
    def allocated(self) -> float:
        """The framework's own count of what its tensors take."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers

    @property
    def total(self) -> float:
        """All that must fit on the device."""
        return self.allocated + self.fragments + self.framework

    @property
    def device(self) -> float:
        """What the device's driver shows while there is room."""
        return self.total + self.cached


def layer_bytes(problem: Problem, shard: Shard) -> LayerBytes:
    """Activation bytes of a layer, tensor by tensor (the count of arXiv:2205.05198, for any widths and kernels).

    Kept: inputs of the norms and of the products after them, dropout masks (1 byte), q, k, v, attention's output,
    feed-forward input and activation output. Without flash attention the softmax output (and, with dropout, its mask
    and result) of every pair of tokens too. Experts keep their inputs once for each expert that a token visits.
    """
    model, dropout = problem.model, problem.spec.training.dropout
    tokens = shard.tokens(problem.sequence)
    own = tokens / shard.sequence_split
    heads = model.heads / shard.tp.astype(np.float64)
    norms = ELEMENT * (model.norms_per_layer + 2) * model.hidden * own
    masks = 2 * dropout * model.hidden * own
    scores = (5 if dropout else 2) * heads * tokens * problem.sequence
    core = np.where(shard.flash_attention, 4 * heads * tokens, scores)
    wide, fed = _feed_forward_elements(problem, shard)
    rest = norms + masks + ELEMENT * tokens * (_attention_elements(problem, shard) + fed)
    gathered = np.where(shard.sequence_parallel, ELEMENT * model.hidden * tokens, 0.0)
    gradients = problem.stack.backward_buffer_share * ELEMENT * (2 * wide * tokens + 2 * model.hidden * own)
    weights = ELEMENT * (3 if model.gated_mlp else 2) * model.hidden * model.ffn * dense_share(model) / shard.tp
    # Backward through unfused attention holds the gradients of dropout's output, of the softmax and of the scores.
    pairs = np.where(shard.flash_attention, 0.0, 3 * ELEMENT * heads * tokens * problem.sequence)
    return LayerBytes(
        full=rest + core,
        # A flash kernel keeps no scores: recomputing attention's core saves its statistics at most.
        selective=rest + np.where(shard.flash_attention, core, 0.0),
        checkpoint=ELEMENT * model.hidden * own,
        buffer=gradients + gathered + weights + pairs,
    )


def _attention_elements(problem: Problem, shard: Shard) -> Floats:
    """Elements a token that attention keeps: queries, keys, values, output, and the low-rank inputs of these."""
    model, attention = problem.model, problem.model.attention
    heads = model.heads / shard.tp.astype(np.float64)
    if attention.kind != "mla":
        kv_heads = np.maximum(1.0, model.kv_heads / shard.tp)
        return np.asarray((2 * heads + 2 * kv_heads) * model.head_dim)
    keys, values = core_widths(model)
    ranks = 2 * (attention.q_lora or 0) + 2 * (attention.kv_lora or 0) + (attention.qk_rope or 0)
    return np.asarray(2 * heads * (keys + values) + ranks)


def _feed_forward_elements(problem: Problem, shard: Shard) -> tuple[Floats, Floats]:
    """Elements a token of the widest product's output, and all that a feed-forward block keeps beside its input."""
    model, moe, tp = problem.model, problem.model.moe, shard.tp.astype(np.float64)
    gates = 2 if model.gated_mlp else 1
    wide = gates * model.ffn / tp
    kept = wide + model.ffn / tp
    if moe is None:
        return wide, kept
    dense = dense_share(model)
    width = moe.top_k * moe.expert_ffn + moe.shared_experts * (moe.shared_ffn or moe.expert_ffn)
    inputs = 2 * moe.top_k * model.hidden / shard.sequence_split  # tokens in the experts' order, and their results
    routed = (gates + 1) * width / tp + inputs
    return np.maximum(dense * wide, gates * width / tp), dense * kept + (1 - dense) * routed


def stage_parameters(problem: Problem, rows: Candidates) -> StageParameters:
    """Parameters per device. With tied embeddings and several stages the last one holds a copy of the table."""
    model = problem.model
    tp = rows.tp.astype(np.float64)
    split_once, whole, experts = _layer_parameters(problem)
    split = np.full_like(tp, split_once)
    if model.attention.kind == "mla":
        down = _down_projections(problem)  # to the low ranks: every tensor-parallel rank holds them whole
        split, whole = split - down, whole + down
    else:
        copies = np.maximum(1.0, tp / model.kv_heads) - 1.0  # kv heads fewer than tp are held several times
        split = split + copies * 2 * model.hidden * model.kv_heads * model.head_dim
    table = padded_vocabulary(model.vocab, rows.tp) / tp * model.hidden
    positions = ((model.max_positions or 0) + model.position_offset) if model.position == "learned" else 0
    first = table + positions * model.hidden + 2.0 * model.embedding_norm * model.hidden
    own_head = (rows.pp > 1) | (not model.tied_embeddings)
    last = np.where(own_head, table, 0.0) + final_norm_parameters(model)
    return StageParameters(layer=split / tp + whole, experts=experts / tp / rows.ep, first=first, last=last)


def _down_projections(problem: Problem) -> float:
    model, attention = problem.model, problem.model.attention
    ranks = (attention.q_lora or 0) + (attention.kv_lora or 0) + (attention.qk_rope or 0)
    return float(model.hidden * ranks)


def _layer_parameters(problem: Problem) -> tuple[float, float, float]:
    """Of a layer, the mean over all: parameters that tensor parallelism splits, that it does not, and experts."""
    model = problem.model
    if model.moe is None:
        counts = [layer_parameters(model)]
    else:
        counts = [layer_parameters(model, index) for index in range(model.layers)]
    split = sum(each.attention_qkv + each.attention_out + each.mlp + each.shared_experts for each in counts)
    whole = sum(each.norms + each.attention_norms + each.router for each in counts)
    experts = sum(each.experts for each in counts)
    return split / len(counts), whole / len(counts), experts / len(counts)


@dataclass(frozen=True)
class StateBytes:
    """Bytes of weight, gradient and optimizer state for each parameter that a device holds, before sharding."""

    weight: Floats
    gradient: Floats
    optimizer: Floats

    @property
    def each(self) -> Floats:
        """All three."""
        return self.weight + self.gradient + self.optimizer


def state_bytes(problem: Problem, rows: Candidates, shards: Ints) -> StateBytes:
    """State of each parameter, what is sharded shared out over `shards` devices."""
    stack = problem.stack
    depth = np.where(rows.distributed_optimizer, rows.sharded, 0)
    held = stack.parameter_bytes + (stack.fp8_weight_bytes if problem.spec.training.precision == "fp8" else 0.0)
    return StateBytes(
        weight=held / np.where(depth >= 3, shards, 1),
        gradient=stack.gradient_bytes / np.where(depth >= 2, shards, 1),
        optimizer=stack.optimizer_bytes / np.where(depth >= 1, shards, 1),
    )


def logits_bytes(problem: Problem, rows: Candidates) -> Floats:
    """Logits, their fp32 copy and gradient on the last stage."""
    vocab = padded_vocabulary(problem.model.vocab, rows.tp) / rows.tp
    return np.asarray(problem.stack.logits_bytes * rows.shard.tokens(problem.sequence) * vocab)


def activation_bytes(
    layer: tuple[float, float, float], live: Ints, layers: Ints | Floats, kind: RecomputeKind, amount: Ints
) -> Floats:
    """Peak activation bytes of model chunks of equal length; all arrays broadcast against each other.

    Args:
        layer: full, selective and checkpoint bytes of a layer and microbatch.
        live: chunks' forward passes held at the stage's peak (`schedule.peak_live_total`).
        layers: layers of each chunk.
        kind, amount: recomputation, and its number in each chunk (see `StageGroup.recompute_layers`).

    Returns:
        What is in flight, plus the unit that is being recomputed.
    """
    full, selective, checkpoint = layer
    if kind == "uniform":
        unit = np.clip(amount, 1, layers)
        return np.asarray(live * -(-layers // unit) * checkpoint + unit * full)
    if kind == "block":
        recomputed = np.minimum(amount, layers)
        held = live * ((layers - recomputed) * full + recomputed * checkpoint)
        return np.asarray(held + np.where(amount > 0, full, 0.0))
    return np.asarray(live * layers * (selective if kind == "selective" else full))
