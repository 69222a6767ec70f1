"""Launcher profiles: what a training framework's own parser and schedules can run, each fact with its source.

A stack says how fast a framework runs a plan and what it keeps; a launcher says whether it runs the plan at all. A
profile lists facts only; the rule `launcher` and `runnable.allowed_rows` judge plans by them, `problem.resolve` what a
spec trains.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cpsolver.inputs.data import package_data
from cpsolver.inputs.errors import InputError, Trouble, nearest_names
from cpsolver.plans.strategy import RecomputeKind, Schedule, Sharded
from cpsolver.profiles.switches import OffloadModule, OptimizerName, Precision, Switch

Split = Literal["none", "first_last", "any"]
"""Layers by stage: all equal; all but the first and the last equal; any."""
CpType = Literal["p2p", "allgather", "a2a", "a2a+p2p"]

_FOLDER = Path(__file__).parent / "launchers"
_STRICTEST: tuple[Split, ...] = ("none", "first_last", "any")


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
    few_microbatches: bool = Field(description="fewer microbatches than stages, with vpp 1")
    dynamic_micro_batches: bool = Field(description="microbatches of different sizes in a pipeline")
    uneven_layers: Split = Field(description="layers by stage")
    uneven_interleaved: Split = Field(description="the same with vpp > 1")
    uneven_context: Split = Field(description="the same with cp > 1")
    uneven_groups: Split = Field(
        description="the same with a sharding group; with vpp > 1 no stricter than without one"
    )
    uneven_mtp: Split = Field(description="the same for a model with multi-token prediction")
    uneven_flag: str = Field(description="how stages that differ are told; empty where they cannot")
    mixed_chips: bool = Field(description="chip types may be mixed along the pipeline")
    mixed_chips_interleaving: bool = Field(description="and with vpp > 1")
    mixed_chips_context: bool = Field(description="and with cp > 1")
    mixed_chips_groups: bool = Field(description="and with a sharding group")
    context_parallel: tuple[CpType, ...] = Field(description="its kinds of context parallelism; none: cp is 1")
    context_pipeline: bool = Field(description="cp > 1 with pp > 1")
    ulysses_tensor: bool = Field(description="cp > 1 of kind a2a with tp > 1")
    ulysses_groups: bool = Field(description="cp > 1 of kind a2a with a sharding group")
    mtp_parallel: bool = Field(description="multi-token prediction with pp > 1 or cp > 1")
    flash_attention: tuple[bool, ...] = Field(description="what flash_attention may be")
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
    context_groups: bool = Field(description="with cp > 1 a sharding group may be one context-parallel group")
    plain_replicas: bool = Field(description="replicas without sharding go together with tp or cp > 1")
    plain_context: bool = Field(description="cp > 1 without the distributed optimizer")
    recompute: tuple[RecomputeKind, ...] = Field(description="its kinds of recomputation besides none")
    recompute_modules: tuple[str, ...] = Field(
        description="modules that selective recomputation can run again, by Megatron-LM's names"
    )
    recompute_units: Literal["one", "any"] = Field(description="layers in a unit of uniform recomputation")
    recompute_by_stage: tuple[RecomputeKind, ...] = Field(
        description="kinds and numbers that may differ from stage to stage; none: one choice for the whole plan"
    )
    recompute_by_stage_interleaving: bool = Field(description="they may differ with vpp > 1")
    recompute_by_stage_context: bool = Field(description="and with cp > 1")
    recompute_by_stage_groups: bool = Field(description="and with a sharding group")
    precisions: tuple[Precision, ...] = Field(description="what training.precision may be")
    optimizers: tuple[OptimizerName, ...] = Field(description="what training.optimizer may be")
    switches: tuple[Switch, ...] = Field(
        description="fields of training that may have another value than their default"
    )
    activation_offload: tuple[OffloadModule, ...] = Field(description="what training.activation_offload may have")
    partial_offload: tuple[Sharded, ...] = Field(
        description="what may be shared out where training.optimizer_offload is between 0 and 1"
    )
    experts_anywhere: bool = Field(
        description="layers with experts need not be every n-th one, counted from the first behind the dense ones"
    )

    @property
    def even_layers(self) -> bool:
        """Every plan has equal stages: layer_split is even whatever the spec says."""
        return self.uneven_layers == "none"

    @property
    def recompute_per_chip(self) -> bool:
        """Stages may recompute differently."""
        return bool(self.recompute_by_stage)

    def split(self, vpp: int, cp: int, grouped: bool = False, mtp: bool = False) -> Split:
        """What the layers by stage may be with that many chunks and context-parallel ranks.

        `grouped`: with a sharding group; `mtp`: for a model with multi-token prediction.
        """
        told = [self.uneven_layers, *[self.uneven_interleaved] * (vpp > 1), *[self.uneven_context] * (cp > 1)]
        told += [*[self.uneven_groups] * grouped, *[self.uneven_mtp] * mtp]
        return min(told, key=_STRICTEST.index)

    def differing(self, vpp: int, cp: int, grouped: bool) -> tuple[RecomputeKind, ...]:
        """The kinds of recomputation that may differ from stage to stage; `grouped`: with a sharding group."""
        one = (vpp > 1 and not self.recompute_by_stage_interleaving) or (cp > 1 and not self.recompute_by_stage_context)
        return () if one or (grouped and not self.recompute_by_stage_groups) else self.recompute_by_stage

    def kinds(self, wanted: tuple[RecomputeKind, ...]) -> tuple[RecomputeKind, ...]:
        """The kinds of recomputation among those wanted that it has."""
        return tuple(kind for kind in wanted if kind == "none" or kind in self.recompute)


FACTS = tuple(name for name in Launcher.model_fields if name not in ("name", "title", "sources"))
"""The fields that state a fact."""


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
    fields: dict[str, Any] = dict(package_data(_FOLDER / f"{name}.yaml"))
    base = fields.pop("extends", None)
    if base is not None:
        fields["facts"] = {**_read(base)["facts"], **(fields.get("facts") or {})}
    return fields
