"""A plan as decisions only: degrees, flags, and groups of pipeline stages by chip type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby
from typing import Literal, get_args

RecomputeKind = Literal["none", "selective", "block", "uniform"]
"""none; selective: some modules of all layers; block: the first layers of each chunk; uniform: all layers, in units."""
RECOMPUTE_KINDS: tuple[RecomputeKind, ...] = get_args(RecomputeKind)
BESIDE_FUNCTIONS: tuple[RecomputeKind, ...] = ("none", "block")
"""Those that go with what training makes again in every layer (`Training.recomputes_inside`)."""

Module = Literal["core_attn", "layernorm", "mla_up_proj", "moe_act", "mlp", "moe", "shared_experts", "operators"]
"""What selective recomputation may recompute, by the names of Megatron-LM's --recompute-modules; operators: all of a
layer but attention's core and every other GEMM, torchtitan's selective mode, which goes with no other."""
MODULES: tuple[str, ...] = get_args(Module)
OPERATORS = ("operators",)
NAMED_MODULES = tuple(name for name in MODULES if name not in OPERATORS)
"""Those that Megatron-LM has."""

CORE = ("core_attn",)
"""Megatron-LM's own choice of them."""

Sharded = Literal["optimizer", "gradients", "parameters"]
"""What a distributed optimizer shards over its ranks, each with all before it: ZeRO-1, ZeRO-2, ZeRO-3 (FSDP)."""
SHARDED: tuple[Sharded, ...] = get_args(Sharded)

Schedule = Literal["1f1b", "zb1p", "zb2p", "breadth_first", "dualpipe", "zbv", "dualpipev", "v_half", "v_min"]
"""1F1B (interleaved with vpp > 1); zero-bubble with the memory of 1F1B, and with twice that (arXiv:2401.10241);
breadth-first: all microbatches pass a chunk before the next chunk's turn (arXiv:2211.05953), as Fold3D does;
DualPipe: half of the microbatches come from the pipeline's other end (arXiv:2412.19437, 3.2.1); ZB-V and DualPipeV:
zero bubble, and forwards beside backwards, with stages placed as a V; V-Half and V-Min: the same with about half and a
third of 1F1B's memory (arXiv:2405.15362)."""
V_SHAPED: tuple[Schedule, ...] = ("zbv", "dualpipev", "v_half", "v_min")
"""Placed as a V: stage s of pp holds chunk s and chunk 2 pp - 1 - s of 2 pp, the first stage both ends of the model."""
ONE_GROUP: tuple[Schedule, ...] = ("breadth_first",)
"""All microbatches of a step pass a chunk before the next chunk's turn, where 1F1B interleaved takes pp of them."""
BOTH_WAYS: tuple[Schedule, ...] = ("dualpipe",)
"""Half of the microbatches come from either end: devices of stage s of pp serve stage pp - 1 - s too (folding.py)."""
PAIRED: tuple[Schedule, ...] = ("dualpipe", "dualpipev")
"""A forward of one microbatch runs beside a backward of another."""
SearchedSchedule = Literal["1f1b", "zb1p", "zb2p", "breadth_first", "zbv", "dualpipev", "v_half", "v_min", "dualpipe"]
"""Those that the search knows: all of them."""
SEARCHED_SCHEDULES: tuple[SearchedSchedule, ...] = get_args(SearchedSchedule)
ON_REQUEST: tuple[SearchedSchedule, ...] = ("breadth_first",)
"""Those that it proposes only where a spec asks for them."""


OWN_BEST = ("sharding_group", "expert_overlap")
"""Fields of `Strategy` that do not make a plan another one: of several values the best is the plan's."""


def canonical_modules(names: Iterable[str]) -> tuple[str, ...]:
    """A set of modules in the order of MODULES, without what `moe` recomputes in any case; unknown ones come last."""
    named = set(names)
    named -= {"moe_act", "shared_experts"} if "moe" in named else set()
    return (*(name for name in MODULES if name in named), *sorted(named - set(MODULES)))


@dataclass(frozen=True, order=True)
class Mesh:
    """Degrees of stages whose devices are cut otherwise than the plan's: one of FlagScale's heterogeneous meshes."""

    tp: int
    cp: int
    dp: int
    ep: int = 1
    etp: int = 1

    def __str__(self) -> str:
        sizes = {name: size for name, size in vars(self).items() if size > 1 or name in ("tp", "dp")}
        return " ".join(f"{name} {size}" for name, size in sizes.items())

    @property
    def stage_devices(self) -> int:
        """Devices of one of its stages."""
        return self.tp * self.cp * self.dp


@dataclass(frozen=True)
class StageGroup:
    """Neighbouring pipeline stages on one chip type.

    `layers` has one entry a stage. `recompute_layers` too: with block, the layers recomputed in each model chunk
    of the stage; with uniform, the layers in one recomputed unit; otherwise 0. `modules` are what selective
    recomputation recomputes in every layer (CORE where none are given); the other kinds have none. `mesh`: the
    degrees of these stages, None where they are the plan's.
    """

    chip: str
    layers: tuple[int, ...]
    recompute: RecomputeKind = "none"
    recompute_layers: tuple[int, ...] = ()
    modules: tuple[str, ...] = ()
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        if self.recompute == "selective":
            object.__setattr__(self, "modules", canonical_modules(self.modules or CORE))

    @property
    def num_stages(self) -> int:
        """How many pipeline stages the group has."""
        return len(self.layers)

    @property
    def stage_recompute_layers(self) -> tuple[int, ...]:
        """`recompute_layers`, zeros where none are given."""
        return self.recompute_layers or (0,) * len(self.layers)


@dataclass(frozen=True)
class Strategy:
    """What a plan decides, and nothing that follows from it.

    `sharded` matters with `distributed_optimizer`; `sharding_group` is the number of replicas that shard the states
    among them, 0 for all of them. Of the `cp` context-parallel ranks `ulysses` neighbours exchange heads for
    tokens; between these groups keys and values go around a ring, or with `cp_gather` are gathered. Experts have a
    grid of their own on the same devices: `etp` ranks share each expert, `ep` such groups shard the experts; with
    `expert_overlap` their all-to-alls travel while another microbatch computes (profiles/expert_overlap.py).
    `micro_batches` are the sequences of each microbatch in their order, `mbs` then their mean; empty: all have `mbs`.

    Stages may have degrees of their own (`StageGroup.mesh`): all else is shared, `dp * mbs` sequences of each round
    too, so that a mesh of fewer replicas has larger micro batches. What is said here of degrees is the plan's own, of
    the stages without a mesh; `on(stage)` is the plan as a stage has it. Equal degrees are always the plan's:
    `canonical` makes those of the first stage so.
    """

    tp: int
    pp: int
    dp: int
    mbs: int
    vpp: int
    sequence_parallel: bool
    distributed_optimizer: bool
    flash_attention: bool
    groups: tuple[StageGroup, ...]
    cp: int = 1
    ulysses: int = 1
    cp_gather: bool = False
    ep: int = 1
    etp: int = 1
    expert_overlap: bool = False
    sharded: Sharded = "optimizer"
    sharding_group: int = 0
    schedule: Schedule = "1f1b"
    micro_batches: tuple[int, ...] = ()

    @property
    def stage_devices(self) -> int:
        """Devices of one pipeline stage."""
        return self.tp * self.cp * self.dp

    @property
    def devices(self) -> int:
        """Devices of all stages."""
        return sum(self.widths) if self.unequal else self.stage_devices * self.pp

    @property
    def mesh(self) -> Mesh:
        """The plan's own degrees."""
        return Mesh(self.tp, self.cp, self.dp, self.ep, self.etp)

    @property
    def unequal(self) -> bool:
        """Some stages have degrees of their own."""
        return any(group.mesh is not None for group in self.groups)

    @property
    def stage_meshes(self) -> tuple[Mesh, ...]:
        """Degrees of every stage."""
        own = self.mesh
        return tuple(group.mesh or own for group in self.groups for _ in group.layers)

    @property
    def widths(self) -> tuple[int, ...]:
        """Devices of every stage."""
        return tuple(mesh.stage_devices for mesh in self.stage_meshes)

    @property
    def round(self) -> int:
        """Sequences that all replicas together run as one microbatch."""
        return self.mbs * self.dp

    @property
    def meshes(self) -> tuple[tuple[Mesh, tuple[StageGroup, ...]], ...]:
        """Runs of neighbouring groups on one chip type with the same degrees, which a launcher calls meshes."""
        own = self.mesh
        runs = groupby(self.groups, key=lambda group: (group.chip, group.mesh or own))
        return tuple((mesh, tuple(groups)) for (_, mesh), groups in runs)

    def by_mesh(self, name: str) -> tuple[int, ...]:
        """A size, `mbs` too, on every mesh in the order of the pipeline; one value where it is the same on all."""
        values = [getattr(self.of(mesh), name) for mesh, _ in self.meshes] if self.unequal else [getattr(self, name)]
        return tuple(values) if len(set(values)) > 1 else (values[0],)

    def devices_on(self, chip: str) -> int:
        """How many devices of a chip type the plan uses."""
        return sum(width for name, width in zip(self.stage_chips, self.widths, strict=True) if name == chip)

    @property
    def meshes_in_words(self) -> str:
        """The degrees by chip type: `tp 4 dp 8 on a800, tp 2 dp 16 on h800`."""
        return ", ".join(f"{mesh} on {groups[0].chip}" for mesh, groups in self.meshes)

    def of(self, mesh: Mesh) -> Strategy:
        """The plan with a mesh's degrees on all stages; the micro batch is 0 where the round does not divide."""
        if mesh == self.mesh and not self.unequal:
            return self
        size, rest = divmod(self.round, mesh.dp)
        return replace(
            self,
            **vars(mesh),
            mbs=0 if rest else size,
            ulysses=min(self.ulysses, mesh.cp),
            cp_gather=self.cp_gather and mesh.cp > 1,
            sequence_parallel=self.sequence_parallel and mesh.tp > 1,
            distributed_optimizer=self.distributed_optimizer and mesh.cp * mesh.dp > 1,
            groups=tuple(replace(group, mesh=None) for group in self.groups),
        )

    def on(self, stage: int) -> Strategy:
        """The plan with the degrees of a stage on all of them."""
        return self.of(self.stage_meshes[stage])

    def canonical(self) -> Strategy:
        """The same plan, its own degrees those of the first stage."""
        if not self.unequal:
            return self
        first = self.stage_meshes[0]
        own, mbs = self.mesh, self.round // first.dp
        groups = (
            replace(group, mesh=None if (group.mesh or own) == first else group.mesh or own) for group in self.groups
        )
        return replace(self, **vars(first), mbs=mbs, groups=tuple(groups))

    @property
    def stage_chips(self) -> tuple[str, ...]:
        """Chip name of every stage."""
        return tuple(group.chip for group in self.groups for _ in group.layers)

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layers of every stage."""
        return tuple(count for group in self.groups for count in group.layers)

    @property
    def recompute(self) -> tuple[RecomputeKind, ...]:
        """Kind of recomputation of every stage."""
        return tuple(group.recompute for group in self.groups for _ in group.layers)

    @property
    def recompute_layers(self) -> tuple[int, ...]:
        """`StageGroup.recompute_layers` of every stage."""
        return tuple(count for group in self.groups for count in group.stage_recompute_layers)

    @property
    def recompute_modules(self) -> tuple[tuple[str, ...], ...]:
        """`StageGroup.modules` of every stage."""
        return tuple(group.modules for group in self.groups for _ in group.layers)

    @property
    def cp_comm_type(self) -> str:
        """Megatron's name for how context parallelism exchanges: p2p, allgather, a2a or a2a+p2p."""
        if self.ulysses == 1:
            return "allgather" if self.cp_gather else "p2p"
        return "a2a" if self.ulysses == self.cp else "a2a+p2p"

    @property
    def zero_stage(self) -> int:
        """DeepSpeed's name for what is sharded: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too."""
        return 1 + SHARDED.index(self.sharded) if self.distributed_optimizer else 0

    @cached_property
    def slots(self) -> tuple[int, int]:
        """Layers in whose place interleaving puts the embedding in the first chunk of all, 0 or 1, and the head, with
        any multi-token prediction, in the last, from 0 to vpp - 1.

        The stage's layers are so many short of filling its chunks (Megatron: account-for-embedding-in-pipeline-split,
        account-for-loss-in-pipeline-split, or a layout that says so, such as `Et*4|(t*4|)*14tmL`, three short). Of
        stages placed as a V the first holds the head too, in the place of at most one layer.
        """
        if self.vpp == 1 or not self.layers:
            return 0, 0
        if self.v_shaped:
            return 0, self.layers[0] % self.vpp
        return int(self.layers[0] % self.vpp == self.vpp - 1), -self.layers[-1] % self.vpp

    @property
    def v_shaped(self) -> bool:
        """Each stage holds a chunk on the way in and one on the way out (V_SHAPED)."""
        return self.schedule in V_SHAPED

    @property
    def both_ways(self) -> bool:
        """Its devices hold two stages each (BOTH_WAYS): costs take it as `folding.folded` has it."""
        return self.schedule in BOTH_WAYS

    @property
    def head_stage(self) -> int:
        """The stage that holds the head."""
        return 0 if self.v_shaped else self.pp - 1

    def slots_on(self, stage: int) -> int:
        """Layers of a stage in whose place the embedding or the head stands."""
        return (stage == 0) * self.slots[0] + (stage == self.head_stage) * self.slots[1]

    @property
    def chunks(self) -> tuple[int, ...]:
        """Layers of every stage's chunks, the embedding and the head counted where they stand in a layer's place."""
        return tuple(-(-count // self.vpp) for count in self.layers)

    def microbatches(self, global_batch_size: int) -> int:
        """Microbatches that each pipeline runs in one step."""
        return global_batch_size // (self.mbs * self.dp)

    @property
    def dynamic(self) -> bool:
        """Microbatches differ in size."""
        return len(set(self.micro_batches)) > 1

    @property
    def replicas(self) -> int:
        """Devices that hold the same dense weights and sum their gradients: cp * dp."""
        return self.cp * self.dp

    @property
    def grouped(self) -> bool:
        """States are sharded among some of the replicas only."""
        return self.distributed_optimizer and self.sharding_group > 0

    @property
    def sharding_ranks(self) -> int:
        """Of the replicas those that shard the states of dense weights among them, with a distributed optimizer."""
        return self.sharding_group or self.replicas

    def key(self) -> tuple[object, ...]:
        """What makes two plans different ones: a degree, a flag, or which chip serves which stage.

        Layers, recomputation, the sharding group and whether experts' communication overlaps are each plan's own best.
        """
        stages = tuple(zip(self.stage_chips, self.stage_meshes, strict=True)) if self.unequal else self.stage_chips
        own = {"groups": stages, "micro_batches": self.micro_batches if self.dynamic else ()}
        names = (field.name for field in fields(self) if field.name not in OWN_BEST)
        return tuple(own[name] if name in own else getattr(self, name) for name in names)


def chip_blocks(stage_chips: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """(chip, number of stages) of each run of neighbouring stages on the same chip type."""
    start = 0
    for index in range(1, len(stage_chips) + 1):
        if index == len(stage_chips) or stage_chips[index] != stage_chips[start]:
            yield stage_chips[start], index - start
            start = index
