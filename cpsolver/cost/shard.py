"""How one candidate cuts a layer: arrays of equal length, one entry a candidate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Shard:
    """What a layer's cost depends on: tensor-parallel size, micro batch, sequence parallelism, flash attention."""

    tp: Ints
    mbs: Ints
    sequence_parallel: Bools
    flash_attention: Bools

    @property
    def sequence_split(self) -> Ints:
        """Over how many devices the norm and residual parts of a layer are split."""
        return np.where(self.sequence_parallel, self.tp, 1)

    @classmethod
    def of(cls, tp: Any, mbs: Any, sequence_parallel: Any, flash_attention: Any) -> Shard:
        """From scalars or sequences."""
        return cls(
            np.atleast_1d(np.asarray(tp, dtype=np.int64)),
            np.atleast_1d(np.asarray(mbs, dtype=np.int64)),
            np.atleast_1d(np.asarray(sequence_parallel, dtype=np.bool_)),
            np.atleast_1d(np.asarray(flash_attention, dtype=np.bool_)),
        )


def padded_vocabulary(vocab: int, tp: Ints) -> Ints:
    """Vocabulary rounded up to a multiple of 128 * tp, as Megatron pads it (training/vocab_utils.py)."""
    unit = 128 * tp
    return -(-vocab // unit) * unit


@dataclass(frozen=True)
class Candidates:
    """Degrees and flags of many candidate rows: arrays of equal length, one entry a row."""

    tp: Ints
    pp: Ints
    dp: Ints
    mbs: Ints
    vpp: Ints
    microbatches: Ints
    sequence_parallel: Bools
    distributed_optimizer: Bools
    flash_attention: Bools

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def shard(self) -> Shard:
        """The part that a layer's cost depends on."""
        return Shard(self.tp, self.mbs, self.sequence_parallel, self.flash_attention)

    @property
    def stage_devices(self) -> Ints:
        """Devices of one pipeline stage: tp * dp."""
        return self.tp * self.dp

    def take(self, rows: Any) -> Candidates:
        """The rows with those indices, or under that mask."""
        return replace(self, **{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})

    @classmethod
    def one(cls, strategy: Any, global_batch_size: int) -> Candidates:
        """A strategy's degrees and flags as a single row."""
        counts = [strategy.tp, strategy.pp, strategy.dp, strategy.mbs, strategy.vpp]
        counts.append(strategy.microbatches(global_batch_size))
        flags = [strategy.sequence_parallel, strategy.distributed_optimizer, strategy.flash_attention]
        tp, pp, dp, mbs, vpp, microbatches = (np.array([count], dtype=np.int64) for count in counts)
        sequence, optimizer, flash = (np.array([flag], dtype=np.bool_) for flag in flags)
        return cls(tp, pp, dp, mbs, vpp, microbatches, sequence, optimizer, flash)
