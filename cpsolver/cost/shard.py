"""How one candidate cuts a layer: arrays of equal length, one entry a candidate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SHARDED = ("optimizer", "gradients", "parameters")
"""What data-parallel ranks share out, each with all before it: ZeRO-1, ZeRO-2, ZeRO-3."""


def _one() -> Ints:
    return np.ones(1, dtype=np.int64)


def _none() -> Ints:
    return np.zeros(1, dtype=np.int64)


@dataclass(frozen=True)
class Shard:
    """What a layer's cost depends on: tensor-, context- and expert-parallel sizes, micro batch, flags."""

    tp: Ints
    mbs: Ints
    sequence_parallel: Bools
    flash_attention: Bools
    cp: Ints = field(default_factory=_one)
    ep: Ints = field(default_factory=_one)

    def __post_init__(self) -> None:
        for name in ("cp", "ep"):
            object.__setattr__(self, name, np.broadcast_to(getattr(self, name), self.tp.shape))

    @property
    def sequence_split(self) -> Ints:
        """Over how many tensor-parallel ranks the norm and residual parts of a layer are split."""
        return np.where(self.sequence_parallel, self.tp, 1)

    def tokens(self, sequence: int) -> Floats:
        """Tokens of one microbatch on one device."""
        return np.asarray(self.mbs * sequence / self.cp, dtype=np.float64)

    @classmethod
    def of(cls, tp: Any, mbs: Any, sequence_parallel: Any, flash_attention: Any, cp: Any = 1, ep: Any = 1) -> Shard:
        """From scalars or sequences."""
        return cls(
            np.atleast_1d(np.asarray(tp, dtype=np.int64)),
            np.atleast_1d(np.asarray(mbs, dtype=np.int64)),
            np.atleast_1d(np.asarray(sequence_parallel, dtype=np.bool_)),
            np.atleast_1d(np.asarray(flash_attention, dtype=np.bool_)),
            np.atleast_1d(np.asarray(cp, dtype=np.int64)),
            np.atleast_1d(np.asarray(ep, dtype=np.int64)),
        )


def padded_vocabulary(vocab: int, tp: Ints) -> Ints:
    """Vocabulary rounded up to a multiple of 128 * tp, as Megatron pads it (training/vocab_utils.py)."""
    unit = 128 * tp
    return -(-vocab // unit) * unit


@dataclass(frozen=True)
class Candidates:
    """Degrees and flags of many candidate rows: arrays of equal length, one entry a row.

    `sharded` counts how much of SHARDED the ranks of a `sharding_group` (0: all of dp) share out when
    `distributed_optimizer` is on.
    """

    tp: Ints
    pp: Ints
    dp: Ints
    mbs: Ints
    vpp: Ints
    microbatches: Ints
    sequence_parallel: Bools
    distributed_optimizer: Bools
    flash_attention: Bools
    cp: Ints = field(default_factory=_one)
    ep: Ints = field(default_factory=_one)
    sharded: Ints = field(default_factory=_one)
    sharding_group: Ints = field(default_factory=_none)

    def __post_init__(self) -> None:
        for name in ("cp", "ep", "sharded", "sharding_group"):
            object.__setattr__(self, name, np.broadcast_to(getattr(self, name), self.tp.shape))

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def shard(self) -> Shard:
        """The part that a layer's cost depends on."""
        return Shard(self.tp, self.mbs, self.sequence_parallel, self.flash_attention, self.cp, self.ep)

    @property
    def stage_devices(self) -> Ints:
        """Devices of one pipeline stage: tp * cp * dp."""
        return self.tp * self.cp * self.dp

    @property
    def replicas(self) -> Ints:
        """Devices that hold the same dense weights and sum their gradients: cp * dp."""
        return np.asarray(self.cp * self.dp)

    @property
    def shards(self) -> Ints:
        """Over how many devices the sharded states of dense weights are shared out; 1: not sharded."""
        return self._shared_over(self.replicas)

    @property
    def expert_replicas(self) -> Ints:
        """Devices that hold the same experts."""
        return np.asarray(np.maximum(1, self.replicas // self.ep))

    @property
    def expert_shards(self) -> Ints:
        """As `shards`, for the weights of experts."""
        return self._shared_over(self.expert_replicas)

    def _shared_over(self, replicas: Ints) -> Ints:
        return np.where(self.distributed_optimizer, self.group_of(replicas), 1)

    def group_of(self, replicas: Ints) -> Ints:
        """Size of the sharding group among that many replicas."""
        group = self.sharding_group
        return np.where((group == 0) | (group > replicas), replicas, group)

    def take(self, rows: Any) -> Candidates:
        """The rows with those indices, or under that mask."""
        return replace(self, **{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})

    @classmethod
    def one(cls, strategy: Any, global_batch_size: int) -> Candidates:
        """A strategy's degrees and flags as a single row."""
        counts = [strategy.tp, strategy.pp, strategy.dp, strategy.mbs, strategy.vpp]
        counts.append(strategy.microbatches(global_batch_size))
        flags = [strategy.sequence_parallel, strategy.distributed_optimizer, strategy.flash_attention]
        counts += [strategy.cp, strategy.ep, 1 + SHARDED.index(strategy.sharded), strategy.sharding_group]
        tp, pp, dp, mbs, vpp, microbatches, *more = (np.array([count], dtype=np.int64) for count in counts)
        sequence, optimizer, flash = (np.array([flag], dtype=np.bool_) for flag in flags)
        return cls(tp, pp, dp, mbs, vpp, microbatches, sequence, optimizer, flash, *more)
