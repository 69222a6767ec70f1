"""Bytes that a pipeline stage needs on each device: states, activations in flight, buffers. Rounded up, never down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpsolver.cost.shard import Candidates, Floats, Ints, Shard, padded_vocabulary
from cpsolver.problem import Problem
from cpsolver.strategy import RecomputeKind
from models_zoo.params import final_norm_parameters, layer_parameters

_ELEMENT = 2


@dataclass(frozen=True)
class LayerBytes:
    """What one layer keeps per microbatch on one device, in bytes; arrays with one entry a candidate.

    full: everything kept for the backward pass. selective: without attention's core. checkpoint: only the layer's
    input. buffer: gradients and gathered inputs that live while one layer runs backward.
    """

    full: Floats
    selective: Floats
    checkpoint: Floats
    buffer: Floats


@dataclass(frozen=True)
class StageParameters:
    """Parameters that one device holds: of a layer, and of what stands on the first and the last stage."""

    layer: Floats
    first: Floats
    last: Floats


@dataclass(frozen=True)
class StageBytes:
    """Memory of one stage on one device in bytes, by what it is for; `total` is their sum."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    framework: float

    @property
    def total(self) -> float:
        """All of it."""
        states = self.weights + self.gradients + self.optimizer
        return states + self.activations + self.buffers + self.framework


def layer_bytes(problem: Problem, shard: Shard) -> LayerBytes:
    """Activation bytes of a layer, tensor by tensor (the count of arXiv:2205.05198, for any widths and kernels).

    Kept: inputs of the norms and of the products after them, dropout masks (1 byte), q, k, v, attention's output,
    feed-forward input and activation output. Without flash attention the softmax output (and, with dropout, its mask
    and result) of every pair of tokens too.
    """
    model, dropout = problem.model, problem.spec.training.dropout
    tokens = (shard.mbs * problem.sequence).astype(np.float64)
    tp = shard.tp.astype(np.float64)
    own = tokens / shard.sequence_split
    heads, kv_heads = model.heads / tp, np.maximum(1.0, model.kv_heads / tp)
    norms = _ELEMENT * (model.norms_per_layer + 2) * model.hidden * own
    masks = 2 * dropout * model.hidden * own
    qkv = _ELEMENT * (heads + 2 * kv_heads) * model.head_dim * tokens
    attended = _ELEMENT * heads * model.head_dim * tokens
    wide = (2 if model.gated_mlp else 1) * model.ffn / tp * tokens
    mlp = _ELEMENT * (wide + model.ffn / tp * tokens)
    scores = (5 if dropout else 2) * heads * tokens * problem.sequence
    statistics = 4 * heads * tokens
    core = np.where(shard.flash_attention, statistics, scores)
    rest = norms + masks + qkv + attended + mlp
    gathered = np.where(shard.sequence_parallel, _ELEMENT * model.hidden * tokens, 0.0)
    gradients = problem.stack.backward_buffer_share * _ELEMENT * (2 * wide + 2 * model.hidden * own)
    return LayerBytes(
        full=rest + core,
        # A flash kernel keeps no scores: recomputing attention's core saves its statistics at most.
        selective=rest + np.where(shard.flash_attention, core, 0.0),
        checkpoint=_ELEMENT * model.hidden * own,
        buffer=gradients + gathered,
    )


def stage_parameters(problem: Problem, rows: Candidates) -> StageParameters:
    """Parameters per device. With tied embeddings and several stages the last one holds a copy of the table."""
    model = problem.model
    tp = rows.tp.astype(np.float64)
    counts = layer_parameters(model)
    copies = np.maximum(1.0, tp / model.kv_heads) - 1.0  # kv heads fewer than tp are held several times
    kv_weights = 2 * model.hidden * model.kv_heads * model.head_dim
    split = counts.attention_qkv + counts.attention_out + counts.mlp + copies * kv_weights
    layer = split / tp + counts.norms + counts.attention_norms
    table = padded_vocabulary(model.vocab, rows.tp) / tp * model.hidden
    positions = ((model.max_positions or 0) + model.position_offset) if model.position == "learned" else 0
    first = table + positions * model.hidden + 2.0 * model.embedding_norm * model.hidden
    own_head = (rows.pp > 1) | (not model.tied_embeddings)
    last = np.where(own_head, table, 0.0) + final_norm_parameters(model)
    return StageParameters(layer=layer, first=first, last=last)


def state_bytes_per_parameter(problem: Problem, rows: Candidates) -> tuple[float, float, Floats]:
    """Bytes of weight, gradient and optimizer state for each parameter that a device holds."""
    stack = problem.stack
    shards = np.where(rows.distributed_optimizer, rows.dp, 1).astype(np.float64)
    return stack.parameter_bytes, stack.gradient_bytes, stack.optimizer_bytes / shards


def logits_bytes(problem: Problem, rows: Candidates) -> Floats:
    """Logits, their fp32 copy and gradient on the last stage."""
    vocab = padded_vocabulary(problem.model.vocab, rows.tp) / rows.tp
    return np.asarray(problem.stack.logits_bytes * rows.mbs * problem.sequence * vocab)


def activation_bytes(
    layer: tuple[float, float, float], live: Ints, layers: Ints, kind: RecomputeKind, amount: Ints
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
