"""Launcher profiles: what a training framework's own parser and schedules can run, each fact with its source.

A stack says how fast a framework runs a plan and what it keeps; a launcher says whether it runs the plan at all. A
profile lists facts only; the rule `launcher` and `allowed_rows` here judge plans by them.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from cpsolver.errors import InputError, Trouble, nearest_names
from cpsolver.strategy import RecomputeKind, Schedule, Sharded
from models_zoo import Architecture

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Split = Literal["none", "first_last", "any"]
"""Layers by stage: all equal; all but the first and the last equal; any."""
CpType = Literal["p2p", "allgather", "a2a", "a2a+p2p"]

_FOLDER = Path(__file__).parent / "launchers"
_STRICTEST: tuple[Split, ...] = ("none", "first_last", "any")
_SHARDED: tuple[Sharded, ...] = ("optimizer", "gradients", "parameters")


class Launcher(BaseModel):
    """A launcher profile. Every field but `name`, `title` and `sources` is a fact, with its source in `sources`.

    `split` and the properties after the facts say what follows from several of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    sources: dict[str, str]

    tensor_parallel: bool = Field(description="tp > 1")
    sequence_parallel: bool = Field(description="sequence parallelism as Megatron's, inside tp")
    kv_groups: Literal["divides", "divides_or_multiple"] = Field(
        description="tp divides the key-value heads; or they may also divide tp"
    )
    pipeline: bool = Field(description="pp > 1")
    interleaving: bool = Field(description="vpp > 1")
    zero_bubble: tuple[Schedule, ...] = Field(description="its zero-bubble schedules")
    breadth_first: bool = Field(description="interleaving in groups of all microbatches")
    dynamic_micro_batches: bool = Field(description="microbatches of different sizes in a pipeline")
    uneven_layers: Split = Field(description="layers by stage")
    uneven_interleaved: Split = Field(description="the same with vpp > 1")
    uneven_context: Split = Field(description="the same with cp > 1")
    uneven_flag: str = Field(description="how stages that differ are told; empty where they cannot")
    mixed_chips: bool = Field(description="chip types may be mixed along the pipeline")
    mixed_chips_interleaving: bool = Field(description="and with vpp > 1")
    mixed_chips_context: bool = Field(description="and with cp > 1")
    mixed_chips_groups: bool = Field(description="and with a sharding group")
    context_parallel: tuple[CpType, ...] = Field(description="its kinds of context parallelism; none: cp is 1")
    expert_parallel: bool = Field(description="ep > 1")
    expert_tensor_parallel: Literal["one", "without_bias", "any"] = Field(
        description="etp: only 1; more for a model whose feed-forward has no bias; more for all"
    )
    experts_within: Literal["stage", "sharding_group"] = Field(
        description="etp * ep divides tp times all replicas, or tp times the replicas of a sharding group"
    )
    sharded: tuple[Sharded, ...] = Field(description="what replicas share out without a pipeline; none: nothing")
    sharded_pipeline: tuple[Sharded, ...] = Field(description="the same with pp > 1")
    sharding_groups: tuple[Sharded, ...] = Field(description="what may be shared out in groups of some replicas")
    whole_context_groups: bool = Field(description="a sharding group holds whole context-parallel groups")
    plain_replicas: bool = Field(description="replicas without sharding go together with tp or cp > 1")
    recompute: tuple[RecomputeKind, ...] = Field(description="its kinds of recomputation besides none")
    recompute_modules: tuple[str, ...] = Field(
        description="modules that selective recomputation can run again, by Megatron-LM's names"
    )
    recompute_units: Literal["one", "any"] = Field(description="layers in a unit of uniform recomputation")
    recompute_by_stage: tuple[RecomputeKind, ...] = Field(
        description="kinds and numbers that may differ from stage to stage; none: one choice for the whole plan"
    )

    @property
    def even_layers(self) -> bool:
        """Every plan has equal stages: layer_split is even whatever the spec says."""
        return self.uneven_layers == "none"

    @property
    def recompute_per_chip(self) -> bool:
        """Stages may recompute differently."""
        return bool(self.recompute_by_stage)

    def split(self, vpp: int, cp: int) -> Split:
        """What the layers by stage may be with that many chunks and context-parallel ranks."""
        told = [self.uneven_layers, *[self.uneven_interleaved] * (vpp > 1), *[self.uneven_context] * (cp > 1)]
        return min(told, key=_STRICTEST.index)

    def kinds(self, wanted: tuple[RecomputeKind, ...]) -> tuple[RecomputeKind, ...]:
        """The kinds of recomputation among those wanted that it has."""
        return tuple(kind for kind in wanted if kind == "none" or kind in self.recompute)


FACTS = tuple(name for name in Launcher.model_fields if name not in ("name", "title", "sources"))
"""The fields that state a fact."""


class Rows(Protocol):
    """Columns of candidate rows: cost.shard.Candidates, which this module may not import. `sharded` counts 1, 2, 3."""

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
    ungrouped = ~rows.distributed_optimizer | (rows.sharding_group == 0)
    return np.asarray(allowed & (launcher.mixed_chips_groups | ungrouped))


def allowed_layouts(launcher: Launcher, model: Architecture, rows: Rows) -> Bools:
    """The part of `allowed_rows` that looks at tp, pp and cp alone; rows need no more than these to be right."""
    allowed = (launcher.tensor_parallel | (rows.tp == 1)) & (launcher.pipeline | (rows.pp == 1))
    allowed &= bool(launcher.context_parallel) | (rows.cp == 1)
    if launcher.kv_groups == "divides":
        allowed &= model.kv_heads % rows.tp == 0
    if launcher.even_layers:
        allowed &= model.layers % rows.pp == 0
    return np.asarray(allowed)


def allowed_variants(launcher: Launcher, model: Architecture, rows: Rows) -> Bools:
    """The part of `allowed_rows` that looks at flags, kinds of context parallelism, experts' grid and sharding too."""
    parts = (_context_allowed, _experts_allowed, _sharding_allowed)
    flags = launcher.sequence_parallel | ~rows.sequence_parallel
    return np.asarray(np.logical_and.reduce([flags, *(part(launcher, model, rows) for part in parts)]))


def allowed_frames(launcher: Launcher, model: Architecture, rows: Rows) -> Bools:
    """The part of `allowed_rows` that looks at vpp, besides pp and cp."""
    allowed = launcher.interleaving | (rows.vpp == 1)
    for vpp, cp in ((1, 1), (2, 1), (1, 2), (2, 2)):
        if launcher.split(vpp, cp) == "none":
            these = ((rows.vpp > 1) == (vpp > 1)) & ((rows.cp > 1) == (cp > 1))
            allowed &= ~these | (model.layers % (rows.pp * rows.vpp) == 0)
        if launcher.split(vpp, cp) != "any":
            these = ((rows.vpp > 1) == (vpp > 1)) & ((rows.cp > 1) == (cp > 1))
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
    return np.asarray(allowed)


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
    plain = np.full(len(rows.tp), launcher.plain_replicas) | (rows.dp == 1) | ((rows.tp == 1) & (rows.cp == 1))
    return np.asarray(np.where(rows.distributed_optimizer, allowed, plain))


def launcher_names() -> tuple[str, ...]:
    """Names of all profiles that come with the package."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@lru_cache
def load_launcher(name: str) -> Launcher:
    """The profile of that name; raises InputError naming the nearest one."""
    if name not in launcher_names():
        trouble = Trouble(
            where="launcher",
            value=name,
            message="unknown launcher",
            allowed=", ".join(launcher_names()),
            nearest=nearest_names(name, launcher_names()),
            path=("launcher",),
        )
        raise InputError((trouble,))
    fields = _read(name)
    facts = fields.pop("facts")
    values = {key: fact["value"] for key, fact in facts.items()}
    return Launcher(**fields, **values, sources={key: fact["source"] for key, fact in facts.items()})


def _read(name: str) -> dict[str, Any]:
    """A profile's fields; a profile that extends another has its facts where it states none of its own."""
    from ruamel.yaml import YAML

    fields: dict[str, Any] = YAML(typ="safe").load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    base = fields.pop("extends", None)
    if base is not None:
        fields["facts"] = {**_read(base)["facts"], **(fields.get("facts") or {})}
    return fields
