"""The table of a plan's decisions: one entry each, from which every list of them derives.

What a user may pin, the columns of candidate rows, plan files, texts and tables of a plan, and what is freed or let go
together: all of these ask here. Two orders are in use: that of this table, in which people read a plan, and that of
`Strategy`'s fields, in which files hold it. docs/adding-a-decision.md says what a new decision needs besides its entry.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from cpsolver.plans.strategy import RECOMPUTE_KINDS, SEARCHED_SCHEDULES, SHARDED, Schedule, Strategy

Part = Literal["layout", "variant", "frame", "run", "stages"]
"""layout: the sizes that the devices are divided by; frame: micro batch, chunks and schedule; variant: all else about
a layout (flags, how context parallelism communicates, the experts' grid, sharding); run: what the search leaves at its
default; stages: what each pipeline stage has."""

Kind = Literal["size", "size_or_all", "flag", "choice", "sizes", "by_chip", "chips", "layers"]
"""size: a whole number from 1; size_or_all: from 0, which stands for all; flag: true or false; choice: one of `values`;
sizes: a list of sizes; by_chip: a value for each chip type; chips: a list of chip names; layers: a number a stage."""

Group = Literal[
    "sizes", "exchange", "micro batch", "chunks", "flags", "sharding", "run", "chips", "layers", "recomputation"
]
"""Decisions that change together when a plan is varied."""

MUST_BE_SAID = ...
"""As a default: a file that leaves the decision out is no plan."""


@dataclass(frozen=True)
class Dimension:
    """One decision of a plan.

    `example` and `about` are what a commented spec shows, `{chip}` and `{order}` being chips of it. `default`: the
    value where a file leaves it out; None: it follows from the others. `values`: all that there are, in the order in
    which rows are made. `free`: the search tries each of the values with everything else; what is not free is made by
    search/space.py. `label`: the row of a flag in tables of plans; empty: another row shows it. `held_as`: the
    attribute of `Strategy` that holds it, where that has another name. `pin_only`: another decision holds it (which
    chips serve which stages can be pinned in three ways). `pinned`: a spec may pin or forbid it.
    `needs`: the flag without which it means nothing.
    """

    name: str
    part: Part
    kind: Kind
    group: Group
    example: str = ""
    about: str = ""
    default: Any = None
    values: tuple[Any, ...] = ()
    free: bool = False
    label: str = ""
    held_as: str = ""
    pin_only: bool = False
    pinned: bool = True
    needs: str = ""

    @property
    def attribute(self) -> str:
        """The attribute of `Strategy` that holds it."""
        return self.held_as or self.name

    def matters(self, strategy: Strategy) -> bool:
        """Whether the plan has the flag that the decision needs."""
        return not self.needs or bool(getattr(strategy, self.needs))

    def code(self, value: Any) -> int:
        """A value as a column of rows has it: flags as 0 and 1, choices counted from 1."""
        return 1 + self.values.index(value) if self.kind == "choice" else int(value)

    def decoded(self, code: int) -> Any:
        """The value that a column has in its place."""
        if self.kind == "choice":
            return self.values[code - 1]
        return bool(code) if self.kind == "flag" else code


def _size(name: str, part: Part, group: Group, example: str, about: str, default: Any = 1) -> Dimension:
    return Dimension(name, part, "size", group, example, f"{about}, 1 or more", default)


def _flag(name: str, group: Group, example: str, about: str = "", **more: Any) -> Dimension:
    return Dimension(name, "variant", "flag", group, example, f"{about}true or false", **{"values": _BOTH, **more})


def _sharding(name: str, kind: Kind, example: str, about: str, default: Any, values: tuple[Any, ...] = ()) -> Dimension:
    needs = "distributed_optimizer"
    return Dimension(name, "variant", kind, "sharding", example, about, default, values, needs=needs)


def _stages(name: str, kind: Kind, group: Group, example: str, about: str, **more: Any) -> Dimension:
    return Dimension(name, "stages", kind, group, example, about, **more)


def _recompute(name: str, example: str, about: str, default: Any, **more: Any) -> Dimension:
    return _stages(name, "by_chip", "recomputation", example, about, default=default, **more)


_BOTH = (False, True)
_TABLE = (
    _size("tp", "layout", "sizes", "[2, 4, 8]", "tensor-parallel size", MUST_BE_SAID),
    _size("cp", "layout", "sizes", "[1, 2]", "context-parallel size"),
    _size("pp", "layout", "sizes", "[1, 2, 4, 8]", "pipeline-parallel size", None),
    _size("dp", "layout", "sizes", "[8, 16, 32]", "data-parallel size", MUST_BE_SAID),
    _size("mbs", "frame", "micro batch", "[1, 2]", "micro batch, sequences", MUST_BE_SAID),
    _size("ep", "variant", "sizes", "1", "expert-parallel size"),
    _size("etp", "variant", "sizes", "1", "tensor-parallel size of experts"),
    _size("vpp", "frame", "chunks", "1", "virtual-pipeline chunks in a stage"),
    _flag(
        "sequence_parallel",
        "flags",
        "true",
        "Megatron sequence parallelism: ",
        values=(True, False),
        free=True,
        label="sequence parallel",
    ),
    _flag(
        "distributed_optimizer",
        "sharding",
        "true",
        "optimizer state sharded over dp: ",
        label="distr. optimizer",
    ),
    _flag("flash_attention", "flags", "true", default=True, free=True, label="flash attention"),
    _flag(
        "expert_overlap",
        "flags",
        "false",
        "experts' all-to-alls under another microbatch's compute: ",
        default=False,
        label="experts overlapped",
    ),
    _flag("cp_gather", "exchange", "false", "keys and values gathered over cp, not ringed: ", default=False),
    _size("ulysses", "variant", "exchange", "1", "of the cp ranks, those that exchange heads (all-to-all)"),
    _sharding(
        "sharded",
        "choice",
        "optimizer",
        "what the distributed optimizer shares out: optimizer, gradients or parameters",
        "optimizer",
        SHARDED,
    ),
    _sharding("sharding_group", "size_or_all", "0", "ranks that share the states out among them; 0: all", 0),
    Dimension(
        "schedule",
        "frame",
        "choice",
        "chunks",
        "1f1b",
        f"order of the pipeline's passes: {', '.join(SEARCHED_SCHEDULES)}",
        "1f1b",
        get_args(Schedule),
    ),
    Dimension("micro_batches", "run", "sizes", "run", "", "", (), pinned=False),
    _stages(
        "stages",
        "by_chip",
        "chips",
        "{{{chip}: [2]}}",
        "chip: number of pipeline stages that it serves, 0 or more",
        pin_only=True,
    ),
    _stages("chip_order", "chips", "chips", "{order}", "chip names as they stand along the pipeline", pin_only=True),
    _stages("stage_chips", "chips", "chips", "[{chip}, {chip}]", "one chip name for each stage"),
    _stages("layers", "layers", "layers", "[40, 40]", "layers of each stage"),
    _recompute(
        "recompute",
        "[none, selective]",
        "none, selective, block, uniform; or {chip: [...]}",
        "none",
        values=RECOMPUTE_KINDS,
    ),
    _recompute("recompute_num_layers", "[0, 1, 2]", "0 or more; or {chip: [...]}", 0, held_as="recompute_layers"),
    _recompute(
        "recompute_modules",
        "[core_attn, mlp]",
        "all that selective recomputation runs again: one set, or a list of sets",
        (),
    ),
)
DIMENSIONS: Mapping[str, Dimension] = {dimension.name: dimension for dimension in _TABLE}
"""Every decision by name, in the order in which people read a plan."""


def names(*parts: Part, kinds: Container[Kind] = get_args(Kind)) -> tuple[str, ...]:
    """The decisions of those parts of a plan, in the table's order."""
    return tuple(entry.name for entry in _TABLE if entry.part in parts and entry.kind in kinds)


PLAN_FIELDS = tuple(field.name for field in fields(Strategy) if field.name in DIMENSIONS)
"""The decisions that are one value for the whole plan, in the order in which files and specs hold them."""
ROW = tuple(name for name in PLAN_FIELDS if DIMENSIONS[name].part != "run")
"""Those of them that a candidate row is made of, since the search varies them."""
FLAGS = names("layout", "variant", "frame", kinds=("flag",))
"""Those of them that are true or false."""
SIZES = names("layout", "variant", "frame", kinds=("size",))
"""Those that are whole numbers from 1."""
DEGREES = tuple(
    name for part in ("layout", "variant", "frame") for name in names(part, kinds=("size",)) if name != "ulysses"
)
"""The sizes in the order of a line of text, those of the devices first; ulysses is part of how cp communicates."""
OF_DEVICES = tuple(name for name in DEGREES if DIMENSIONS[name].group == "sizes" and name not in ("ep", "etp"))
"""Those whose product is the number of devices: experts have a grid of their own on the same ones."""
CUTS = tuple(name for name in DEGREES if name not in ("dp", "mbs", "etp"))
"""Those that say into how many parts a model, its sequences or its stages are cut."""
FAMILY = (*OF_DEVICES, "ep")
"""Those that make a layout family, with whether parameters are sharded (ZeRO-3): what people tell plans apart by."""
ALWAYS_SHOWN = tuple(name for name in SIZES if DIMENSIONS[name].default in (None, MUST_BE_SAID))
"""The sizes that a text names even where they are 1: no default stands for them."""


def shown_sizes(strategy: Strategy) -> dict[str, int]:
    """The sizes that a line of text names, in its order: those of ALWAYS_SHOWN, and others above 1; but none in which
    chip types differ, which go with their stages."""
    sizes = {name: int(getattr(strategy, name)) for name in DEGREES if len(strategy.by_mesh(name)) == 1}
    return {name: size for name, size in sizes.items() if size > 1 or name in ALWAYS_SHOWN}


def sizes_text(strategy: Strategy) -> str:
    """The same sizes as a text, `tp 8 pp 4 dp 2 mbs 1`, then the degrees of chip types that have their own."""
    shared = " ".join(f"{name} {size}" for name, size in shown_sizes(strategy).items())
    return f"{shared}, {strategy.meshes_in_words}" if strategy.unequal else shared


def family(strategy: Strategy) -> tuple[object, ...]:
    """The layout family of a plan: the sizes of FAMILY, then 1 where parameters are sharded, else 0, then the degrees
    of every mesh where chip types have their own.

    Plans of one family are variants of one another: they differ in micro batch, chunks, flags, recomputation, in how cp
    exchanges or in which chips serve how many stages.
    """
    own = *(int(getattr(strategy, name)) for name in FAMILY), int(strategy.zero_stage == len(SHARDED))
    meshes = ((groups[0].chip, mesh.tp, mesh.cp, mesh.dp, mesh.ep) for mesh, groups in strategy.meshes)
    return (*own, *meshes) if strategy.unequal else own


def family_name(strategy: Strategy) -> str:
    """The family in words: `tp 4 pp 8 dp 16`."""
    if strategy.unequal:
        return f"pp {strategy.pp}, {strategy.meshes_in_words}"
    sizes = {name: int(getattr(strategy, name)) for name in FAMILY}
    shown = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    return " ".join([*shown, *(["ZeRO-3"] if strategy.zero_stage == len(SHARDED) else [])]) or "one device"


def pins(strategy: Strategy, but: Container[Group] = (), *, mixed: bool = True) -> dict[str, Any]:
    """A plan's decisions as values of `search.pin`, without those of the groups in `but`.

    What has no meaning in the plan is left out: what is sharded without a distributed optimizer, the chips of stages
    where none are `mixed`, sets of modules where none is recomputed, a schedule that the search does not have.
    Recomputation is pinned by chip: the kinds and numbers that its stages have, of which a plan may take any.
    """
    wanted = (entry for entry in _TABLE if entry.pinned and not entry.pin_only and entry.group not in but)
    values = {entry.name: _as_pin(strategy, entry) for entry in wanted if entry.matters(strategy)}
    if values.get("schedule") not in SEARCHED_SCHEDULES:
        values.pop("schedule", None)
    return {name: value for name, value in values.items() if value != {} and (mixed or name != "stage_chips")}


def _as_pin(strategy: Strategy, dimension: Dimension) -> Any:
    """A decision's value, by chip: chip -> values; empty where none of its stages has one. Of a size in which chip
    types differ all its values, of which every mesh may then take any."""
    value = _value(strategy, dimension.attribute)
    if dimension.kind != "by_chip":
        return list(value) if isinstance(value, tuple) else value
    by_chip: dict[str, list[Any]] = {}
    for chip, of_stage in dict.fromkeys(zip(strategy.stage_chips, value, strict=False)):
        if of_stage != ():
            by_chip.setdefault(chip, []).append(list(of_stage) if isinstance(of_stage, tuple) else of_stage)
    return by_chip


def _value(strategy: Strategy, attribute: str) -> Any:
    """A decision's value; of a size in which chip types differ that of every mesh, in the pipeline's order."""
    sizes = strategy.by_mesh(attribute) if attribute in SIZES and attribute not in ("pp", "vpp", "ulysses") else ()
    return sizes if len(sizes) > 1 else getattr(strategy, attribute)


def differences(before: Strategy, after: Strategy) -> dict[str, tuple[Any, Any]]:
    """Attribute -> its value in both plans, for those decisions that differ, in the table's order.

    Sizes of single microbatches are left out: what is nearest to a plan that cannot be exported has none.
    """
    compared = [entry.attribute for entry in _TABLE if not entry.pin_only and entry.name != "micro_batches"]
    pairs = {name: (_value(before, name), _value(after, name)) for name in compared}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
