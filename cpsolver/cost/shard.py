"""How one candidate cuts a layer: arrays of equal length, one entry a candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cpsolver.plans.dimensions import DIMENSIONS, FLAGS, ROW
from cpsolver.plans.folding import folded
from cpsolver.plans.strategy import BOTH_WAYS, ONE_GROUP, PAIRED, V_SHAPED

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

OF_ATTENTION = ("ulysses", "cp_gather", "flash_attention")
"""Columns of a `Shard` that matter to attention only."""
OF_EXPERTS = ("ep", "etp", "expert_overlap")
"""Those that matter to experts only."""
NOT_COMPUTED = (*OF_ATTENTION, "expert_overlap")
"""Those that do not matter to what a feed-forward block or experts compute."""
_V_SHAPED: NDArray[np.bool_] = np.array(
    [False, *(name in (*V_SHAPED, *BOTH_WAYS) for name in DIMENSIONS["schedule"].values)]
)
"""By the code of a schedule in rows, which have those of BOTH_WAYS folded."""
_BOTH_WAYS: NDArray[np.bool_] = np.array([False, *(name in BOTH_WAYS for name in DIMENSIONS["schedule"].values)])
"""By the same."""
_PAIRED: NDArray[np.bool_] = np.array([False, *(name in PAIRED for name in DIMENSIONS["schedule"].values)])
"""By the same."""
_ONE_GROUP: NDArray[np.bool_] = np.array([False, *(name in ONE_GROUP for name in DIMENSIONS["schedule"].values)])
"""The same."""
_LARGEST = 2**62
"""Codes of combinations stay below this."""


def column_type(name: str) -> type[np.bool_] | type[np.int64]:
    """What a column of that name holds."""
    return np.bool_ if name in FLAGS else np.int64


_one: Any = partial(np.ones, 1, dtype=np.int64)
_none: Any = partial(np.zeros, 1, dtype=np.int64)
_no: Any = partial(np.zeros, 1, dtype=np.bool_)


@dataclass(frozen=True)
class _Columns:
    """Arrays that are stretched to the same length."""

    def __post_init__(self) -> None:
        columns = [getattr(self, name) for name in self.__dataclass_fields__]
        if all(isinstance(column, np.ndarray) for column in columns) and len({each.shape for each in columns}) == 1:
            return
        stretched = np.broadcast_arrays(*columns)
        for name, column in zip(self.__dataclass_fields__, stretched, strict=True):
            object.__setattr__(self, name, column)

    def take(self, rows: Any) -> Self:
        """The rows with these indices, or under that mask."""
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)  # once, not in every column
        return replace(self, **{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})

    def first_of_each(self, names: Sequence[str]) -> tuple[Ints, Ints]:
        """Of all rows that agree in these columns the index of one, and for each row the index of its own there."""
        code, size = np.zeros(len(getattr(self, names[0])), dtype=np.int64), 1
        for name in names:
            column = getattr(self, name)
            base = int(column.max(initial=0)) + 1
            if size * base >= _LARGEST:
                values, code = np.unique(code, return_inverse=True)
                size = len(values)
            code, size = code * base + column, size * base
        _, first, back = np.unique(code, return_index=True, return_inverse=True)
        return first, back


@dataclass(frozen=True)
class Shard(_Columns):
    """What a layer's cost depends on: tensor-, context- and expert-parallel sizes, micro batch, flags.

    Of the `cp` context-parallel ranks `ulysses` neighbours exchange heads for tokens (all-to-all); the cp / ulysses
    groups of these pass keys and values around a ring, or with `cp_gather` gather them. Experts have a grid of their
    own: `etp` ranks share each expert, `ep` of these groups shard the experts, in tp * cp * dp devices; with
    `expert_overlap` their all-to-alls travel while another microbatch computes.
    """

    tp: Ints
    mbs: Ints
    sequence_parallel: Bools
    flash_attention: Bools
    cp: Ints = field(default_factory=_one)
    ulysses: Ints = field(default_factory=_one)
    cp_gather: Bools = field(default_factory=_no)
    ep: Ints = field(default_factory=_one)
    etp: Ints = field(default_factory=_one)
    expert_overlap: Bools = field(default_factory=_no)

    @property
    def sequence_split(self) -> Ints:
        """Over how many tensor-parallel ranks the norm and residual parts of a layer are split."""
        return np.where(self.sequence_parallel, self.tp, 1)

    @property
    def ring(self) -> Ints:
        """Ranks around the ring (or in the gathering group) of context parallelism."""
        return np.asarray(self.cp // self.ulysses)

    def tokens(self, sequence: int) -> Floats:
        """Tokens of one microbatch on one device."""
        return np.asarray(self.mbs * sequence / self.cp, dtype=np.float64)

    @classmethod
    def of(cls, tp: Any, mbs: Any, sequence_parallel: Any, flash_attention: Any, **more: Any) -> Shard:
        """From scalars or sequences."""
        first = zip(cls.__dataclass_fields__, (tp, mbs, sequence_parallel, flash_attention), strict=False)
        columns: dict[str, Any] = {
            name: np.atleast_1d(np.asarray(value, dtype=column_type(name))) for name, value in (*first, *more.items())
        }
        return cls(**columns)

    def distinct(self) -> tuple[Shard, Ints]:
        """The distinct ones, and for each of these its index among them."""
        first, back = self.first_of_each(tuple(self.__dataclass_fields__))
        return self.take(first), back

    def of_distinct(
        self, ignored: tuple[str, ...], compute: Callable[[Shard], tuple[Floats, ...]]
    ) -> tuple[Floats, ...]:
        """The arrays that `compute` makes of these, done once for all that differ in `ignored` columns only."""
        if len(self.tp) == 1:
            return compute(self)
        same = {name: np.zeros_like(getattr(self, name)) + (name not in FLAGS) for name in ignored}
        part, back = replace(self, **same).distinct()
        return tuple(column[back] for column in compute(part))


def padded_vocabulary(vocab: int, tp: Ints) -> Ints:
    """Vocabulary rounded up to a multiple of 128 * tp, as Megatron pads it (training/vocab_utils.py)."""
    unit = 128 * tp
    return -(-vocab // unit) * unit


@dataclass(frozen=True)
class Candidates(_Columns):
    """Degrees and flags of many candidate rows: arrays of equal length, one entry a row.

    Decisions have the codes of plans/dimensions.py: `sharded` counts how much of plans.strategy.SHARDED the ranks of a
    `sharding_group` (0: all replicas) shard when `distributed_optimizer` is on. `embedding_slot` and `loss_slot` are
    the layers whose places in a chunk the embedding takes, or the head with the loss (`Strategy.slots`).

    Rows of BOTH_WAYS are folded (plans/folding.py): half of the stages, twice the replicas, two chunks. `unfolded` says
    a decision as plans have it.
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
    ulysses: Ints = field(default_factory=_one)
    cp_gather: Bools = field(default_factory=_no)
    ep: Ints = field(default_factory=_one)
    etp: Ints = field(default_factory=_one)
    expert_overlap: Bools = field(default_factory=_no)
    sharded: Ints = field(default_factory=_one)
    sharding_group: Ints = field(default_factory=_none)
    schedule: Ints = field(default_factory=_one)
    embedding_slot: Ints = field(default_factory=_none)
    loss_slot: Ints = field(default_factory=_none)

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def shard(self) -> Shard:
        """The part that a layer's cost depends on."""
        return Shard(**{name: getattr(self, name) for name in Shard.__dataclass_fields__})

    @cached_property
    def stage_devices(self) -> Ints:
        """Devices of one pipeline stage: tp * cp * dp."""
        return self.tp * self.cp * self.dp

    @cached_property
    def v_shaped(self) -> Bools:
        """Stages are placed as a V (`Strategy.v_shaped`)."""
        return np.asarray(_V_SHAPED[self.schedule])

    @cached_property
    def both_ways(self) -> Bools:
        """Rows that stand for plans of twice the stages on half of the replicas (`strategy.BOTH_WAYS`)."""
        return np.asarray(_BOTH_WAYS[self.schedule])

    @property
    def one_table(self) -> Bools:
        """Rows whose embeddings modules of multi-token prediction look up where the first stage has them: DeepSeek's
        schedules put both ends of the model on the same devices (arXiv:2412.19437, 3.2.3)."""
        return np.asarray(_PAIRED[self.schedule])

    def unfolded(self, name: str) -> Ints:
        """A column, in which rows of BOTH_WAYS are as their plans are."""
        own = self._unfolded.get(name)
        return getattr(self, name) if own is None else own

    @cached_property
    def _unfolded(self) -> dict[str, Ints]:
        """The columns in which rows of BOTH_WAYS differ from their plans, as those have them; none without such rows.
        Nodes of the search ask again and again."""
        if not self.both_ways.any():
            return {}
        own = {"pp": 2 * self.pp, "dp": self.dp // 2, "vpp": np.ones_like(self.vpp)}
        return {name: np.where(self.both_ways, column, getattr(self, name)) for name, column in own.items()}

    @property
    def one_group(self) -> Bools:
        """All microbatches of a step pass a chunk before the next chunk's turn (`strategy.ONE_GROUP`)."""
        return np.asarray(_ONE_GROUP[self.schedule])

    @property
    def chunk_group(self) -> Ints:
        """Microbatches that pass a chunk before the next chunk's turn, with vpp > 1."""
        return np.where(self.one_group, self.microbatches, self.pp)

    def places(self, layers: int, row: Ints | int | slice = slice(None)) -> Ints:
        """Places for layers, of all rows or of some: those of the model, and those that embedding and head take."""
        return np.asarray(layers + self.embedding_slot[row] + self.loss_slot[row])

    @property
    def replicas(self) -> Ints:
        """Devices that hold the same dense weights and sum their gradients: cp * dp."""
        return np.asarray(self.cp * self.dp)

    @property
    def shards(self) -> Ints:
        """Over how many devices the sharded states of dense weights lie; 1: not sharded."""
        return self._sharded_over(self.replicas)

    @property
    def expert_replicas(self) -> Ints:
        """Devices that hold the same part of the same experts: tp * cp * dp / (etp * ep)."""
        return np.asarray(np.maximum(1, self.stage_devices // (self.etp * self.ep)))

    @property
    def expert_shards(self) -> Ints:
        """As `shards`, for the weights of experts."""
        return self._sharded_over(self.expert_replicas)

    def _sharded_over(self, replicas: Ints) -> Ints:
        return np.where(self.distributed_optimizer, self.group_of(replicas), 1)

    def group_of(self, replicas: Ints) -> Ints:
        """Size of the sharding group among that many replicas: experts' are cut into as many groups as all others
        (Megatron-LM core/parallel_state.py, intra_partial_expert_data_parallel_size; torchtitan's efsdp mesh)."""
        group, all_of = self.sharding_group, self.replicas
        cut = (group > 0) & (group < all_of)
        return np.where(cut, np.maximum(1, replicas * group // all_of), replicas)

    @classmethod
    def joined(cls, parts: Sequence[Candidates]) -> Candidates:
        """The rows of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    @classmethod
    def one(cls, strategy: Any, global_batch_size: int) -> Candidates:
        """A strategy's degrees and flags as a single row."""
        strategy = folded(strategy)
        given = {name: DIMENSIONS[name].code(getattr(strategy, name)) for name in ROW}
        given["embedding_slot"], given["loss_slot"] = strategy.slots
        given["microbatches"] = strategy.microbatches(global_batch_size)
        columns: dict[str, Any] = {name: np.array([value], dtype=column_type(name)) for name, value in given.items()}
        return cls(**columns)
