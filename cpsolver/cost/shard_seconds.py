"""What a row's shard decides of its times on a chip type; each shard is worked out once for all that asks.

Searches ask for the same shards again and again: in the bounds of frames, of rows and of plans, and in evaluations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cpsolver.cost import comm, compute, encoder
from cpsolver.cost.kinds import mean_of_kinds, of_module
from cpsolver.cost.layers import Layers
from cpsolver.cost.shard import Floats, Ints, Shard
from cpsolver.problem.problem import Problem
from hw_specs import Chip

Columns = dict[str, Floats]
"""Columns (.., shards) by name."""
_MOST = 16_384
"""Shards that are remembered in all: spaces with more have others in every part."""
_MODULE_TENSOR = 5
"""A module of multi-token prediction communicates so many times as embedding or head do: one each after embedding and
before the head, three around the GEMM that joins two inputs (twice the hidden states there and back, its result once).
"""


class KnownShards:
    """The columns that `make` gives of shards, where each shard's entries depend on nothing but itself."""

    def __init__(self, make: Callable[[Shard], Columns]) -> None:
        self._make = make
        self._place: dict[tuple[int, ...], int] = {}
        self._columns: Columns = {}

    def of(self, shard: Shard) -> Columns:
        """The columns of some shards."""
        sizes = (getattr(shard, name).tolist() for name in Shard.__dataclass_fields__)
        asked = list(zip(*sizes, strict=True))
        new = {key: at for at, key in enumerate(asked) if key not in self._place}
        if len(self._place) + len(new) > _MOST:
            return self._make(shard)
        if new or not self._columns:
            self._learn(list(new), self._make(shard.take(np.array(list(new.values()), dtype=np.int64))))
        places: Ints = np.array([self._place[key] for key in asked], dtype=np.int64)
        return {name: column[..., places] for name, column in self._columns.items()}

    def _learn(self, keys: list[tuple[int, ...]], made: Columns) -> None:
        known = self._columns
        self._columns = {name: np.concatenate([known[name], made[name]], axis=-1) for name in known} or made
        self._place |= {key: place for place, key in enumerate(keys, len(self._place))}


def known_shards(problem: Problem, chip: Chip) -> KnownShards:
    """Those of the problem on a chip type, with `shard_columns`."""
    known = problem.worked_out.get(id(chip))
    if known is None:
        known = problem.worked_out[id(chip)] = KnownShards(lambda shard: shard_columns(problem, chip, shard))
    assert isinstance(known, KnownShards)
    return known


def shard_columns(problem: Problem, chip: Chip, shard: Shard) -> Columns:
    """The columns of `time_table` that are the same for all rows of a shard, (.., shards); and what forward and
    backward of a layer compute themselves (`own_forward`, `own_backward`)."""
    layers, images = Layers.of(problem, chip, shard), _encoder_seconds(problem, chip, shard)
    tensor, end_tensor = layers.tensor, comm.end_comm(problem, chip, shard)
    mean_tensor, collected = mean_of_kinds(problem.model, tensor), comm.collecting_seconds(problem, chip, shard)
    return {
        **pass_columns(problem, chip, shard, layers, images),
        "layer_tp": mean_tensor,
        "kind_layer_tp": tensor - mean_tensor,
        "recompute": mean_of_kinds(problem.model, layers.forward - layers.again) + collected,
        "collected": collected,
        "modules": mean_of_kinds(problem.model, layers.modules(problem, chip, shard)),
        "end_tp": end_tensor,
        "encoder_tp": images.tensor,
        "mtp_tp": problem.model.mtp_layers * (of_module(problem.model, tensor) + _MODULE_TENSOR * end_tensor),
        "own_forward": mean_of_kinds(problem.model, layers.own[0]),
        "own_backward": mean_of_kinds(problem.model, layers.own[1]),
    }


def pass_columns(
    problem: Problem,
    chip: Chip,
    shard: Shard,
    layers: Layers | None = None,
    images: encoder.EncoderSeconds | None = None,
) -> Columns:
    """Those of `pass_seconds`."""
    layers = layers or Layers.of(problem, chip, shard)
    images = images or _encoder_seconds(problem, chip, shard)
    both = layers.both
    ends, end_tensor = compute.end_seconds(problem, chip, shard), comm.end_comm(problem, chip, shard)
    layer, payload = mean_of_kinds(problem.model, both), comm.hop_bytes(problem, shard)
    module = of_module(problem.model, both) + ends.module + _MODULE_TENSOR * end_tensor
    return {
        "layer": layer,
        "kind_layer": both - layer,
        "embedding": ends.embedding + end_tensor + images.all,
        "head": ends.head + end_tensor + problem.model.mtp_layers * module,
        "hop_near": comm.hop_seconds(problem, chip, payload, within_node=True),
        "hop_far": comm.hop_seconds(problem, chip, payload, within_node=False),
        "hop_waited": comm.waited_share(problem, payload),
    }


def _encoder_seconds(problem: Problem, chip: Chip, shard: Shard) -> encoder.EncoderSeconds:
    """Of the encoder of images, where there are any."""
    alone, vision = problem.encoder, problem.model.vision
    if alone is None or vision is None:
        return encoder.EncoderSeconds(np.zeros(len(shard.tp)), np.zeros(len(shard.tp)))
    own = encoder.encoder_shard(problem, shard)
    layers = Layers.of(alone, chip, own)
    forward, backward, tensor = (
        mean_of_kinds(alone.model, each) for each in (layers.forward, layers.backward, layers.tensor)
    )
    whole = encoder.whole_encoder(problem, chip, own, forward, backward)
    images = problem.spec.training.images
    halves = 1.0 if images is None or images.trained else 0.5  # frozen: forward alone
    projected = encoder.projector_seconds(problem, chip, own)
    return encoder.EncoderSeconds(whole + projected, halves * vision.layers * tensor + projected)
