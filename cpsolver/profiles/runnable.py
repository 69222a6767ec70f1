"""Which candidate rows a launcher profile lets through: its facts as masks over degrees, flags and chunks.

The rule `launcher` (rules/launching.py) says the same of one plan, in words.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cpsolver.plans.strategy import Sharded
from cpsolver.profiles.launcher import CpType, Launcher
from models_zoo import Architecture

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_SHARDED: tuple[Sharded, ...] = ("optimizer", "gradients", "parameters")


class Rows(Protocol):
    """Columns of candidate rows: cost.shard.Candidates, which this module may not import. `sharded` counts 1, 2, 3."""

    @property
    def microbatches(self) -> Ints: ...  # noqa: D102
    @property
    def flash_attention(self) -> Bools: ...  # noqa: D102
    @property
    def tp(self) -> Ints: ...  # noqa: D102
    @property
    def pp(self) -> Ints: ...  # noqa: D102
    @property
    def dp(self) -> Ints: ...  # noqa: D102
    @property
    def vpp(self) -> Ints: ...  # noqa: D102
    @property
    def embedding_slot(self) -> Ints: ...  # noqa: D102
    @property
    def loss_slot(self) -> Ints: ...  # noqa: D102
    @property
    def sequence_parallel(self) -> Bools: ...  # noqa: D102
    @property
    def distributed_optimizer(self) -> Bools: ...  # noqa: D102
    @property
    def cp(self) -> Ints: ...  # noqa: D102
    @property
    def ulysses(self) -> Ints: ...  # noqa: D102
    @property
    def cp_gather(self) -> Bools: ...  # noqa: D102
    @property
    def ep(self) -> Ints: ...  # noqa: D102
    @property
    def etp(self) -> Ints: ...  # noqa: D102
    @property
    def sharded(self) -> Ints: ...  # noqa: D102
    @property
    def sharding_group(self) -> Ints: ...  # noqa: D102


def allowed_rows(launcher: Launcher, model: Architecture, num_chip_types: int | Ints, rows: Rows) -> Bools:
    """Which rows the launcher can run, as far as degrees and flags say; layers and recomputation come later.

    `num_chip_types` is the fewest chip types that a plan of the row can do with (Problem.fewest_chip_types): 1 where
    one type has the devices for all stages. `mixed_rows` says which rows may mix types.
    """
    parts = (allowed_layouts, allowed_variants, allowed_frames)
    allowed = np.logical_and.reduce([part(launcher, model, rows) for part in parts])
    return np.asarray(allowed & ((np.asarray(num_chip_types) <= 1) | mixed_rows(launcher, rows)))


def mixed_rows(launcher: Launcher, rows: Rows) -> Bools:
    """The rows whose plans may mix chip types, for the patterns in plans.py: others have one type for all stages."""
    allowed = launcher.mixed_chips & (launcher.mixed_chips_interleaving | (rows.vpp == 1))
    allowed &= launcher.mixed_chips_context | (rows.cp == 1)
    return np.asarray(allowed & (launcher.mixed_chips_groups | ~_grouped(rows)))


def allowed_layouts(launcher: Launcher, model: Architecture, rows: Rows) -> Bools:
    """The part of `allowed_rows` that looks at tp, pp and cp alone; rows need no more than these to be right."""
    allowed = (launcher.tensor_parallel | (rows.tp == 1)) & (launcher.pipeline | (rows.pp == 1))
    allowed &= bool(launcher.context_parallel) | (rows.cp == 1)
    allowed &= launcher.context_pipeline | (rows.cp == 1) | (rows.pp == 1)
    if model.mtp_layers and not launcher.mtp_parallel:
        allowed &= (rows.cp == 1) & (rows.pp == 1)
    if launcher.kv_groups == "divides":
        allowed &= model.kv_heads % rows.tp == 0
    if launcher.even_layers:
        allowed &= model.layers % rows.pp == 0
    return np.asarray(allowed)


def allowed_variants(launcher: Launcher, model: Architecture, rows: Rows) -> Bools:
    """The part of `allowed_rows` that looks at flags, kinds of context parallelism, experts' grid and sharding too."""
    parts = (_context_allowed, _experts_allowed, _sharding_allowed)
    flags = launcher.sequence_parallel | ~rows.sequence_parallel
    flags &= np.isin(rows.flash_attention, launcher.flash_attention)
    return np.asarray(np.logical_and.reduce([flags, *(part(launcher, model, rows) for part in parts)]))


def allowed_frames(launcher: Launcher, model: Architecture, rows: Rows) -> Bools:
    """The part of `allowed_rows` that looks at vpp and microbatches, besides pp and cp.

    A sharding group is a variant's: where it leaves layers less free, chunks leave them as little (uneven_groups).
    """
    allowed = launcher.interleaving | (rows.vpp == 1)
    allowed &= launcher.few_microbatches | (rows.vpp > 1) | (rows.microbatches >= rows.pp)
    for vpp, cp in ((1, 1), (2, 1), (1, 2), (2, 2)):
        these = ((rows.vpp > 1) == (vpp > 1)) & ((rows.cp > 1) == (cp > 1))
        split = launcher.split(vpp, cp, mtp=model.mtp_layers > 0)
        if split == "none":
            allowed &= ~these | (model.layers % (rows.pp * rows.vpp) == 0)
        if split != "any":
            allowed &= ~these | (rows.embedding_slot + rows.loss_slot == 0)
    return np.asarray(allowed)


def _context_allowed(launcher: Launcher, _model: Architecture, rows: Rows) -> Bools:
    known: dict[CpType, Bools] = {
        "p2p": (rows.ulysses == 1) & ~rows.cp_gather,
        "allgather": (rows.ulysses == 1) & rows.cp_gather,
        "a2a": (rows.ulysses > 1) & (rows.ulysses == rows.cp),
        "a2a+p2p": (rows.ulysses > 1) & (rows.ulysses != rows.cp),
    }
    allowed = rows.cp == 1
    for kind in launcher.context_parallel:
        allowed = allowed | known[kind]
    beside = (launcher.ulysses_tensor | (rows.tp == 1)) & (launcher.ulysses_groups | ~_grouped(rows))
    return np.asarray(allowed & (beside | ~known["a2a"]))


def _grouped(rows: Rows) -> Bools:
    return np.asarray(rows.distributed_optimizer & (rows.sharding_group > 0))


def _experts_allowed(launcher: Launcher, model: Architecture, rows: Rows) -> Bools:
    allowed = launcher.expert_parallel | (rows.ep == 1)
    whole = launcher.expert_tensor_parallel
    if whole == "one" or (whole == "without_bias" and model.bias_mlp):
        allowed &= rows.etp == 1
    if launcher.experts_within == "sharding_group":
        group = np.where(rows.sharding_group > 0, rows.sharding_group, rows.dp * rows.cp)
        group = np.where(rows.distributed_optimizer, group, rows.cp)
        allowed &= rows.tp * group % (rows.etp * rows.ep) == 0
    return np.asarray(allowed)


def _sharding_allowed(launcher: Launcher, _model: Architecture, rows: Rows) -> Bools:
    def told(kinds: tuple[Sharded, ...]) -> Bools:
        return np.isin(rows.sharded, [1 + _SHARDED.index(kind) for kind in kinds])

    grouped = rows.sharding_group > 0
    allowed = np.where(rows.pp == 1, told(launcher.sharded), told(launcher.sharded_pipeline))
    allowed &= ~grouped | told(launcher.sharding_groups)
    if launcher.whole_context_groups:
        allowed &= ~grouped | (rows.sharding_group % rows.cp == 0)
    if not launcher.context_groups:
        allowed &= ~grouped | (rows.cp == 1) | (rows.sharding_group != rows.cp)
    plain = np.full(len(rows.tp), launcher.plain_replicas) | (rows.dp == 1) | ((rows.tp == 1) & (rows.cp == 1))
    plain &= launcher.plain_context | (rows.cp == 1)
    return np.asarray(np.where(rows.distributed_optimizer, allowed, plain))
