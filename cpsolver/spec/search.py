"""The spec's section `search`: objective and deadline, decisions fixed (`pin`) or ruled out (`forbid`), and clashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    WithJsonSchema,
)

from cpsolver.inputs.errors import Path, Trouble, dotted, shown
from cpsolver.inputs.language import later
from cpsolver.plans.dimensions import DIMENSIONS, Kind
from cpsolver.plans.strategy import (
    MODULES,
    RECOMPUTE_KINDS,
    SEARCHED_SCHEDULES,
    SHARDED,
    Module,
    RecomputeKind,
    SearchedSchedule,
    Sharded,
    canonical_modules,
)
from cpsolver.spec.cluster import not_a_chip
from cpsolver.spec.training import MOST, Count, Name, Number, Part

ALL_CHIPS = "*"
"""The key that stands for every chip in a mapping by chip."""

T = TypeVar("T")


def _as_tuple(value: Any) -> Any:
    if value is None or isinstance(value, tuple):
        return value
    return tuple(value) if isinstance(value, list) else (value,)


def _as_sets(value: Any) -> Any:
    """Sets of modules from one name, a list of names (one set), or a list of lists."""
    if isinstance(value, str):
        return ((value,),)
    if not isinstance(value, list | tuple):
        return value
    if all(isinstance(item, str) for item in value):
        return (tuple(value),)
    return tuple(
        tuple(item) if isinstance(item, list) else (item,) if isinstance(item, str) else item for item in value
    )


def _mapped(convert: Callable[[Any], Any]) -> BeforeValidator:
    """Values by chip, each converted; what is no mapping is of all chips."""

    def as_map(value: Any) -> Any:
        if value is None:
            return None
        by_chip = value if isinstance(value, Mapping) else {ALL_CHIPS: value}
        return {key: convert(item) for key, item in by_chip.items()}

    return BeforeValidator(as_map)


def _map_items(value: Any) -> Any:
    return {key: _as_tuple(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _one_or_many(item: dict[str, Any], *others: dict[str, Any]) -> WithJsonSchema:
    many = {"type": "array", "items": item, "minItems": 1}
    return WithJsonSchema({"anyOf": [item, many, *others, {"type": "null"}]})


def _by_chip(item: dict[str, Any]) -> dict[str, Any]:
    many = {"type": "array", "items": item, "minItems": 1}
    return {"type": "object", "additionalProperties": {"anyOf": [item, many]}}


_SET_SCHEMA = {"anyOf": [{"enum": list(MODULES)}, {"type": "array", "items": {"enum": list(MODULES)}, "minItems": 1}]}
_COUNT_SCHEMA = {"type": "integer", "minimum": 1, "maximum": MOST}
_FROM_0_SCHEMA = {"type": "integer", "minimum": 0, "maximum": MOST}
_RECOMPUTE_SCHEMA = {"enum": list(RECOMPUTE_KINDS)}
_SHARDED_SCHEMA = {"enum": list(SHARDED)}
_SCHEDULE_SCHEMA = {"enum": list(SEARCHED_SCHEDULES)}

CountFrom0 = Annotated[StrictInt, Field(ge=0, le=MOST)]
SomeOf = Annotated[tuple[T, ...], Field(min_length=1)]
Counts = Annotated[SomeOf[Count] | None, BeforeValidator(_as_tuple), _one_or_many(_COUNT_SCHEMA)]
CountsFrom0 = Annotated[SomeOf[CountFrom0] | None, BeforeValidator(_as_tuple), _one_or_many(_FROM_0_SCHEMA)]
ModuleSet = Annotated[tuple[Module, ...], Field(min_length=1), AfterValidator(canonical_modules)]
ShardedChoices = Annotated[SomeOf[Sharded] | None, BeforeValidator(_as_tuple), _one_or_many(_SHARDED_SCHEMA)]
Schedules = Annotated[SomeOf[SearchedSchedule] | None, BeforeValidator(_as_tuple), _one_or_many(_SCHEDULE_SCHEMA)]
Flags = Annotated[SomeOf[StrictBool] | None, BeforeValidator(_as_tuple), _one_or_many({"type": "boolean"})]
RecomputeByChip = Annotated[
    dict[str, SomeOf[RecomputeKind]] | None,
    _mapped(_as_tuple),
    _one_or_many(_RECOMPUTE_SCHEMA, _by_chip(_RECOMPUTE_SCHEMA)),
]
ModulesByChip = Annotated[
    dict[str, SomeOf[ModuleSet]] | None, _mapped(_as_sets), _one_or_many(_SET_SCHEMA, _by_chip(_SET_SCHEMA))
]
CountsByChip = Annotated[
    dict[str, SomeOf[CountFrom0]] | None, _mapped(_as_tuple), _one_or_many(_FROM_0_SCHEMA, _by_chip(_FROM_0_SCHEMA))
]
StagesByChip = Annotated[
    dict[str, SomeOf[CountFrom0]] | None,
    BeforeValidator(_map_items),
    WithJsonSchema({"anyOf": [_by_chip(_FROM_0_SCHEMA), {"type": "null"}]}),
]


def _free(description: str) -> Any:
    """A decision that is free where it is left out."""
    return Field(default=None, description=description)


class Decisions(BaseModel):
    """Values for some of a plan's decisions; a decision left out (None) is free.

    As `pin`: the plan takes one of the values listed. As `forbid`: it takes none of them. In a mapping by
    chip the key "*" stands for every chip; `pinned_for` and `forbidden_for` mix it with a chip's own entry.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tp: Counts = _free("tensor-parallel size: one number or a list")
    pp: Counts = _free("pipeline-parallel size: one number or a list")
    dp: Counts = _free("data-parallel size: one number or a list")
    mbs: Counts = _free("micro batch, sequences: one number or a list")
    vpp: Counts = _free("virtual-pipeline chunks in a stage (1: not interleaved)")
    sequence_parallel: Flags = _free("Megatron sequence parallelism, with tp > 1")
    distributed_optimizer: Flags = _free("optimizer state sharded over dp (ZeRO-1)")
    flash_attention: Flags = _free("flash attention")
    cp: Counts = _free("context-parallel size: one number or a list")
    ulysses: Counts = _free("context-parallel ranks that exchange heads (all-to-all); 1: ring or all-gather only")
    cp_gather: Flags = _free("keys and values are all-gathered over cp, not ringed")
    ep: Counts = _free("expert-parallel size: one number or a list")
    etp: Counts = _free("tensor-parallel size of experts, a divisor of tp")
    expert_overlap: Flags = _free("experts' all-to-alls travel while another microbatch computes")
    sharded: ShardedChoices = _free("what the distributed optimizer shares out: optimizer, gradients or parameters")
    sharding_group: CountsFrom0 = _free("data-parallel ranks that share the states out among them; 0: all of them")
    schedule: Schedules = _free(
        "order of the pipeline's passes: 1f1b, zb1p, zb2p, zbv, dualpipev, v_half, v_min, dualpipe, or a list"
    )
    recompute: RecomputeByChip = _free("none, selective, block or uniform; a list; or a mapping chip -> these")
    recompute_num_layers: CountsByChip = _free(
        "recomputed layers (block), layers in a unit (uniform); or chip -> these"
    )
    recompute_modules: ModulesByChip = _free(
        "the whole set of modules that selective recomputation runs again (Megatron-LM's names); a list of "
        "sets; or a mapping chip -> these"
    )
    stages: StagesByChip = _free("mapping chip -> pipeline stages that it serves")
    chip_order: SomeOf[Name] | None = _free("chip names in the order in which they stand along the pipeline")
    stage_chips: SomeOf[Name] | None = _free("chip names, one for each stage")
    layers: SomeOf[Count] | None = _free("layers of each pipeline stage, in order")


ObjectiveName = Literal["throughput", "cost", "fewest_chips"]
_DAY_S = 86_400.0


class Deadline(Part):
    """So many tokens in so many days."""

    tokens: Annotated[Number, Field(ge=1)] | None = Field(
        default=None, description="tokens to train on; null: training.tokens"
    )
    days: Annotated[Number, Field(gt=0)] = Field(description="days in which that must be done")

    def step_time_s(self, tokens_per_step: float) -> float:
        """The longest step with which the deadline is met; `Spec.deadline` is sure to have the tokens."""
        assert self.tokens is not None
        return self.days * _DAY_S / ceil(self.tokens / tokens_per_step)


NOTHING = BeforeValidator(lambda value: {} if value is None else value)
"""A section whose fields are all commented out is null: it has every default."""


class Search(Part):
    """What to search for, how long, and where."""

    top: Annotated[StrictInt, Field(ge=1, le=100)] = Field(default=3, description="how many plans to return")
    diverse: StrictBool = Field(
        default=True,
        description="true: plans of different layout families (tp, cp, pp, dp, ep, ZeRO-3), each the best of its own; "
        "false: the best plans whatever they are, mostly near-twins",
    )
    risk: Annotated[Number, Field(gt=0, le=1)] = Field(
        default=0.05,
        description="the chance of running out of memory that the recommended plan stays below; 1: none is too high",
    )
    objective: ObjectiveName = Field(
        default="throughput",
        description="throughput: the fastest plans; cost: the fewest dollars per token (needs cluster.prices); "
        "fewest_chips: the fewest devices, in whole nodes, that meet the deadline",
    )
    deadline: Deadline | None = Field(
        default=None,
        description="days, and tokens unless training has them: reports say the chance of meeting it; with objective "
        "cost or fewest_chips no plan that is predicted to miss it is an answer",
    )
    time_limit_s: Annotated[Number, Field(gt=0)] | None = Field(
        default=None, description="seconds after which the best plans so far are returned; null: none"
    )
    layer_split: Literal["auto", "even_per_chip", "even"] = Field(
        default="auto",
        description="auto: any layers per stage; even_per_chip: equal in a chip type; even: equal everywhere",
    )
    recompute_scope: Literal["chip", "stage"] = Field(
        default="chip", description="chip: one number of recomputed layers per chip type; stage: each its own"
    )
    degrees_by_chip: StrictBool | None = Field(
        default=None,
        description="true: each chip type may have its own tp, cp, dp and ep, with vpp 1 (FlagScale's meshes); "
        "false: all have the same; null: as true where the launcher runs that",
    )
    dynamic_micro_batches: StrictBool = Field(
        default=False,
        description="true: microbatches of a step may differ in size, in ramps (docs/space.md), where the launcher or, "
        "without one, the stack's framework runs that (ascendspeed); false: all have mbs sequences",
    )
    schedules: Schedules = Field(
        default=None,
        description="pipeline schedules to try; null: those that the launcher has or, without one, the stack's "
        "framework: 1F1B alone for most",
    )
    pin: Annotated[Decisions, NOTHING] = Field(default=Decisions(), description="decisions that the plan must take")
    forbid: Annotated[Decisions, NOTHING] = Field(default=Decisions(), description="values that the plan must not take")

    def allows(self, name: str, value: object, chip: str | None = None) -> bool:
        """Whether pin and forbid leave a decision that value; of a decision by chip, on that chip type."""
        pinned, banned = getattr(self.pin, name), getattr(self.forbid, name)
        if chip is not None:
            pinned, banned = pinned_for(pinned, chip), forbidden_for(banned, chip)
        return (pinned is None or value in pinned) and value not in (banned or ())


def _of_kind(*kinds: Kind) -> tuple[str, ...]:
    """The decisions of those kinds, in the order of a spec."""
    return tuple(name for name in Decisions.model_fields if DIMENSIONS[name].kind in kinds)


PER_CHIP = _of_kind("by_chip")
"""The decisions that are mappings by chip."""
CHIP_LISTS = _of_kind("chips")
"""The decisions that are lists of chip names."""
WHOLE = _of_kind("chips", "layers")
"""The decisions whose list is one value, not a choice of several."""


def pinned_for(pins: Mapping[str, tuple[T, ...]] | None, chip: str) -> tuple[T, ...] | None:
    """The values that a pin by chip leaves for `chip`: its own entry, else that of "*"; None: it is free."""
    return None if not pins else pins.get(chip, pins.get(ALL_CHIPS))


def forbidden_for(forbids: Mapping[str, tuple[T, ...]] | None, chip: str) -> tuple[T, ...]:
    """The values that a forbid by chip takes from `chip`: its own entry's and those of "*" together."""
    if not forbids:
        return ()
    return tuple(dict.fromkeys((*forbids.get(ALL_CHIPS, ()), *forbids.get(chip, ()))))


def _clash(path: Path, pinned: object, forbidden: object) -> Trouble:
    pin, forbid = ("search", "pin", *path), ("search", "forbid", *path)
    message = later(
        "contradicts {forbid} = {forbidden}, which forbids all that is pinned",
        forbid=dotted(forbid),
        forbidden=shown(forbidden),
    )
    return Trouble(dotted(pin), message, pinned, path=pin)


def _written(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else list(values)


def pin_contradictions(pin: Decisions, forbid: Decisions) -> Iterator[Trouble]:
    """Each pin all of whose values are forbidden, and each choice none of whose values is left."""
    for name in Decisions.model_fields:
        pinned, forbidden = getattr(pin, name), getattr(forbid, name)
        if name in PER_CHIP:
            for chip, values in (pinned or {}).items():
                taken = forbidden_for(forbidden, chip)
                if taken and set(values) <= set(taken):
                    path = (name,) if chip == ALL_CHIPS else (name, chip)
                    yield _clash(path, _written(values), _written(taken))
        elif pinned and forbidden and _none_left(name, pinned, forbidden):
            yield _clash((name,), _written(pinned), _written(forbidden))
    yield from _nothing_left(forbid)


def _none_left(name: str, pinned: tuple[Any, ...], forbidden: tuple[Any, ...]) -> bool:
    return pinned == forbidden if name in WHOLE else set(pinned) <= set(forbidden)


def _nothing_left(forbid: Decisions) -> Iterator[Trouble]:
    choices: list[tuple[Path, tuple[Any, ...] | None]] = [
        ((name,), getattr(forbid, name)) for name in _of_kind("flag", "choice")
    ]
    choices += [(("recompute", chip), values) for chip, values in (forbid.recompute or {}).items()]
    for path, values in choices:
        if values and len(set(values)) == len(DIMENSIONS[str(path[0])].values):
            full = ("search", "forbid", *(part for part in path if part != ALL_CHIPS))
            yield Trouble(dotted(full), "forbids every choice there is", value=list(values), path=full)


def unknown_chips(decisions: Decisions, section: str, chips: list[str]) -> Iterator[Trouble]:
    """Chip names in `search.<section>` that the cluster does not have."""
    for name in (*PER_CHIP, *CHIP_LISTS):
        given = getattr(decisions, name)
        if not given:
            continue
        places: list[tuple[str | int, str]] = [(chip, chip) for chip in given]
        if name in CHIP_LISTS:
            places = list(enumerate(given))
        star = name in PER_CHIP and name != "stages"
        for key, chip in places:
            if chip not in chips and not (star and chip == ALL_CHIPS):
                path = ("search", section, name, key)
                yield not_a_chip(path, chip, chips)


def pin_lengths(pin: Decisions) -> Iterator[Trouble]:
    """Pins that cannot hold together: list lengths against pp, stages against stage_chips, repeated chips."""
    listed = {name: getattr(pin, name) for name in ("stage_chips", "layers") if getattr(pin, name)}
    for name, values in listed.items():
        if pin.pp and len(values) not in pin.pp:
            yield _pin_trouble(
                name,
                later(
                    "has {entries} entries, and search.pin.pp = {pp} stages", entries=len(values), pp=_written(pin.pp)
                ),
            )
    if len(listed) == 2 and len(listed["layers"]) != len(listed["stage_chips"]):
        yield _pin_trouble(
            "layers",
            later(
                "has {layers} entries, and search.pin.stage_chips has {chips}: one for each stage is needed",
                layers=len(listed["layers"]),
                chips=len(listed["stage_chips"]),
            ),
        )
    for chip, counts_allowed in (pin.stages or {}).items():
        if pin.stage_chips and pin.stage_chips.count(chip) not in counts_allowed:
            yield _pin_trouble(
                "stages",
                later(
                    "gives {chip!r} {stages} stages, and search.pin.stage_chips has {chip!r} {count} times",
                    chip=chip,
                    stages=_written(counts_allowed),
                    count=pin.stage_chips.count(chip),
                ),
                chip,
            )
    if pin.chip_order and len(set(pin.chip_order)) < len(pin.chip_order):
        yield _pin_trouble("chip_order", later("names a chip twice: each stands in one place along the pipeline"))


def _pin_trouble(name: str, message: str, *more: str) -> Trouble:
    path = ("search", "pin", name, *more)
    return Trouble(dotted(path), message, path=path)


def deadline_troubles(deadline: Deadline | None, objective: ObjectiveName, tokens: float | None) -> Iterator[Trouble]:
    """A deadline that the objective needs and is missing, or whose tokens are missing or not those of `training`."""
    path = ("search", "deadline")
    if objective == "fewest_chips" and deadline is None:
        message = later("is missing: search.objective = 'fewest_chips' looks for the fewest devices that meet it")
        yield Trouble(dotted(path), message, allowed=later("{tokens: 1.0e+12, days: 30} say"), path=path)
    if deadline is None:
        return
    where, place = "search.deadline.tokens", (*path, "tokens")
    if deadline.tokens is None and tokens is None:
        message = later("is missing, and so is training.tokens: days of how many tokens?")
        yield Trouble(where, message, allowed=later("training: {tokens: 1.0e+12} say"), path=place)
    elif deadline.tokens is not None and tokens not in (None, deadline.tokens):
        message = later("is not training.tokens = {tokens:g}", tokens=tokens)
        yield Trouble(where, message, deadline.tokens, allowed=later("one of the two, or equal ones"), path=place)
