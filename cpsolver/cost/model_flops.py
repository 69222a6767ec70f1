"""FLOP that a step takes by the usual count, which MFU is measured by."""

from __future__ import annotations

import numpy as np

from cpsolver.cost import gemms
from cpsolver.cost.adapters import Block, adapter_gemms
from cpsolver.cost.kinds import LayerKind, kind_shares, layer_kinds, model_of, module_counts
from cpsolver.cost.recurrence import counted_flops, mixer_gemms
from cpsolver.cost.selection import attended_share, scored_keys
from cpsolver.cost.shard import Shard
from cpsolver.problem.problem import Problem


def model_flops_per_step(problem: Problem) -> float:
    """FLOP of one step by the usual count for MFU: no recomputation, causal attention counted half.

    Source of the convention: 6 FLOP a weight that a token uses, forward and backward, plus attention's two GEMMs; 4 of
    a frozen weight, which has no gradient. Padding counts, and packed sequences attend to themselves.
    Multi-token prediction counts, as in Megatron-LM training/training.py, num_floating_point_operations.
    """
    model = problem.model
    kinds = layer_kinds(model)
    of_kinds = [_of_layer(problem, kind) for kind in kinds]
    layers, of_module = (
        sum(count * each for count, each in zip(counts, of_kinds, strict=True))
        for counts in (kind_shares(model), module_counts(model))
    )
    heads = (1 + model.mtp_layers) * model.hidden * model.vocab * _computed(problem)
    per_token = model.layers * layers + model.mtp_layers * (2 * model.hidden**2 + of_module) + heads
    return 6.0 * per_token * problem.sequence * problem.batch + _encoder_flops(problem)


def _encoder_flops(problem: Problem) -> float:
    """The same of an encoder of images; frozen, its layers run forward alone."""
    alone, vision, images = problem.encoder, problem.model.vision, problem.spec.training.images
    if alone is None or vision is None or images is None:
        return 0.0
    kinds = layer_kinds(alone.model)
    used = sum(share * _used(alone, kind) for kind, share in zip(kinds, kind_shares(alone.model), strict=True))
    before = vision.patch_inputs * vision.hidden
    width = vision.projector or problem.model.hidden
    projected = (1 + vision.deepstack) * width * (vision.joined + problem.model.hidden) / vision.merge**2
    each = (6.0 if images.trained else 2.0) * (vision.layers * used + before) + 6.0 * projected
    return each * images.patches * images.per_sequence * problem.batch


def _of_layer(problem: Problem, kind: LayerKind) -> float:
    return sum(count * _used(problem, part) for part, count in kind.parts)


def _used(problem: Problem, kind: LayerKind) -> float:
    """Weights of a layer of that kind, or of a part of one, that a token uses, and pairs of elements that attention
    multiplies for it. A frozen weight counts two thirds.
    """
    model, whole = model_of(problem.model, kind), Shard.of(1, 1, False, True)
    made_of = mixer_gemms(model, whole, kind) + gemms.block_gemms(model, whole, kind)
    weights = _computed(problem) * sum(float(np.sum(gemm.n * gemm.k * gemm.rows * gemm.count)) for gemm in made_of)
    blocks: tuple[Block, ...] = ("attention", "mlp")
    beside = [gemm for block in blocks for gemm in adapter_gemms(problem, whole, kind, block, load=1.0)]
    weights += sum(float(np.sum(gemm.n * gemm.k * gemm.rows * gemm.count)) for gemm in beside)
    if not kind.attends:
        return weights + (0.0 if kind.mixer == "none" else counted_flops(model, kind.mixer) / 2)
    visible = attended_share(problem, kind)
    scored = scored_keys(kind, problem.sequence, problem.stack.causal_fraction) * kind.scores
    indexer = model.attention.indexer
    scores = 0.0 if indexer is None else indexer.heads * indexer.dim * scored
    return weights + model.heads * sum(gemms.core_widths(model)) * problem.sequence * visible + scores


def _computed(problem: Problem) -> float:
    """Of the three products of a weight's GEMM, forward and backward, those that are computed."""
    return 1.0 if problem.lora is None else 2 / 3
