"""The encoder of images on the first stage: parameters, seconds and bytes of a microbatch.

As Megatron-LM (d98e8a6) has it: the encoder stands whole on the first stage, before the embedding, with as many
tensor-parallel ranks as the decoder and neither sequence nor context parallelism, so that ranks of cp repeat it
(examples/multimodal/model.py, core/models/multimodal/llava_model.py). Parallel sizes of its own were options up to
core 0.13. Megatron-Bridge takes some families' module from transformers, whole on every tensor-parallel rank, whose
gradients these average at the end of a step. Its layers' own cost is that of a model of these layers whose sequences
are images; here stands what comes before and after these, and where it all counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cpsolver.cost import compute
from cpsolver.cost.chip_speeds import ChipSpeeds
from cpsolver.cost.collectives import collective_seconds, tensor_parallel_seconds
from cpsolver.cost.gemms import Gemm
from cpsolver.cost.shard import Candidates, Floats, Ints, Shard
from cpsolver.cost.states import held
from cpsolver.problem.problem import Problem
from hw_specs import Chip


@dataclass(frozen=True)
class EncoderSeconds:
    """Of one microbatch on the first stage, communication in the layers included, and that alone: (n,) each."""

    all: Floats
    tensor: Floats


def encoder_shard(problem: Problem, shard: Shard) -> Shard:
    """How a row cuts the encoder: all images of its sequences, on every rank of context parallelism."""
    images, ones = problem.spec.training.images, np.ones_like(shard.tp)
    assert images is not None
    alone: dict[str, Any] = dict.fromkeys(("cp", "ulysses"), ones) | dict.fromkeys(("ep", "etp"), ones)
    alone |= {"tp": ones} if problem.whole_encoder else {}
    alone |= dict.fromkeys(("sequence_parallel", "cp_gather", "expert_overlap"), np.zeros_like(ones, dtype=np.bool_))
    return replace(shard, mbs=shard.mbs * images.per_sequence, **alone)


def whole_encoder(problem: Problem, chip: Chip, shard: Shard, forward: Floats, backward: Floats) -> Floats:
    """Seconds of a microbatch without what tensor-parallel ranks communicate for the projectors.

    `shard`: `encoder_shard`; `forward` and `backward`: of one mean layer. A frozen encoder has no backward pass; its
    projectors are trained all the same.
    """
    alone, vision, images = problem.encoder, problem.model.vision, problem.spec.training.images
    assert alone is not None and vision is not None and images is not None  # noqa: PT018
    device, patches = ChipSpeeds(alone, chip), shard.tokens(alone.sequence)
    tp, hidden = shard.tp.astype(np.float64), np.full(len(shard.tp), float(vision.hidden))
    width, joined = (vision.projector or problem.model.hidden) / tp, np.full_like(hidden, vision.joined)
    decoder, rows, count = np.full_like(hidden, problem.model.hidden), 1.0 / vision.merge**2, 1 + vision.deepstack
    embedded = compute.part_seconds(
        alone, device, [Gemm("patches", hidden, np.full_like(hidden, vision.patch_inputs))], patches, []
    )
    one = [Gemm("projector", width, joined, rows), Gemm("projector", decoder, width, rows)]
    projected = compute.part_seconds(alone, device, one, patches, [])
    trained = images.trained
    layers = vision.layers * (forward + trained * backward) + embedded[0] + trained * embedded[1]
    return np.asarray(layers + count * (projected[0] + projected[1]))


def projector_seconds(problem: Problem, chip: Chip, shard: Shard) -> Floats:
    """What tensor-parallel ranks sum of the projectors' results and of the gradients of their inputs."""
    alone, vision = problem.encoder, problem.model.vision
    assert alone is not None and vision is not None  # noqa: PT018
    elements = shard.tokens(alone.sequence) * (problem.model.hidden / vision.merge**2 + vision.hidden)
    payload = alone.element_bytes * elements * (1 + vision.deepstack)
    return tensor_parallel_seconds(alone, chip, shard, payload, shard.tp)


def averaged_seconds(problem: Problem, chip: Chip, rows: Candidates, parameters: Floats) -> Floats:
    """Seconds of averaging the gradients of so many parameters over tensor-parallel ranks, once a step.

    Of an encoder that each of them has whole (Megatron-LM d98e8a6, core/distributed/finalize_model_grads.py,
    average_gradients_across_tp_domain, which Megatron-Bridge's hook_hf_module_setattr_for_tp_grad_sync sets).
    """
    if not problem.whole_encoder:
        return np.zeros(len(rows))
    payload = parameters * held(problem).gradient
    return collective_seconds(problem, chip, "all_reduce", payload, rows.tp, np.ones_like(rows.tp))


def projector_bytes(problem: Problem, shard: Shard) -> Floats:
    """What the projectors keep of a microbatch: what is joined, and before and after the activation between."""
    alone, vision = problem.encoder, problem.model.vision
    assert alone is not None and vision is not None  # noqa: PT018
    tokens = shard.tokens(alone.sequence) / vision.merge**2
    width = (vision.projector or problem.model.hidden) / shard.tp
    return np.asarray(alone.element_bytes * (1 + vision.deepstack) * tokens * (vision.joined + 2 * width))


def microbatches_held(rows: Candidates) -> Ints:
    """Microbatches whose encoder's activations the first stage holds at once: it stands in the first chunk.

    As many as there are stages; twice that where chunks take turns in groups of as many microbatches, of which a second
    group is at the first chunk before the first one is back there (tests/cost/test_encoder.py runs the order).
    """
    return np.asarray(np.minimum(rows.microbatches, rows.pp * np.where(rows.vpp > 1, 2, 1)))
