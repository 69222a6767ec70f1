"""A plan as a file: YAML or JSON in and out, and the seed tool's output dictionary in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError

from cpsolver.decisions import Count, CountFrom0, Name, Recompute
from cpsolver.errors import InputError, Trouble, dotted, nearest_names, validation_trouble
from cpsolver.errors import Path as KeyPath
from cpsolver.problem import Problem
from cpsolver.strategy import CORE, Schedule, Sharded, StageGroup, Strategy
from cpsolver.yaml_file import Document, load_yaml

SEED_KEYS = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "pipeline-stage-chips")
"""Keys that only the seed tool's dictionaries have."""


def _one_or_more(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else (value,)


_KINDS = ("cp", "ulysses", "cp_gather", "ep", "etp", "sharded", "sharding_group", "schedule")
"""Fields of a strategy that a file may leave out, and that are then as if there were no such thing."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Stages(_Part):
    """Neighbouring stages on one chip type."""

    chip: Name
    layers: Annotated[tuple[Count, ...], BeforeValidator(_one_or_more), Field(min_length=1)]
    recompute: Recompute = "none"
    recompute_layers: Annotated[tuple[CountFrom0, ...], BeforeValidator(_one_or_more)] = ()
    recompute_modules: Annotated[tuple[Name, ...], BeforeValidator(_one_or_more)] = ()


class _Plan(_Part):
    """The file."""

    tp: Count
    pp: Count | None = None
    dp: Count
    mbs: Count
    vpp: Count = 1
    sequence_parallel: StrictBool | None = None
    distributed_optimizer: StrictBool | None = None
    flash_attention: StrictBool = True
    cp: Count = 1
    ulysses: Count = 1
    cp_gather: StrictBool = False
    ep: Count = 1
    etp: Count = 1
    sharded: Sharded = "optimizer"
    sharding_group: CountFrom0 = 0
    schedule: Schedule = "1f1b"
    stages: Annotated[tuple[_Stages, ...], Field(min_length=1)]


def load_strategy(path: str | Path, problem: Problem | None = None) -> Strategy:
    """The plan in a YAML or JSON file ("-": standard input), the best one of `solve --json`, or one dictionary of the
    seed tool's output.

    With a `problem` the chips must be its own, and the seed tool's dictionaries can be read: they leave out what
    follows from the model and the number of GPUs. Whether the plan is legal is for `rules` to say.

    Raises InputError with every problem, each with its line and column.
    """
    document = load_yaml(path, collect=True)
    return strategy_from(document, problem)


def strategy_from(document: Document, problem: Problem | None = None) -> Strategy:
    """As `load_strategy`, from a document that is already read."""
    data: Any = document.data
    prefix: KeyPath = ()
    plans = data.get("plans")
    if isinstance(plans, list) and plans and isinstance(plans[0], Mapping):  # what `solve --json` prints: its best
        data, prefix = plans[0], ("plans", 0)
    inner = data.get("strategy")
    fields: Mapping[str, Any] = inner if isinstance(inner, Mapping) else data
    prefix = (*prefix, "strategy") if isinstance(inner, Mapping) else prefix
    seed = any(key in fields for key in SEED_KEYS)
    read = _from_seed if seed else _from_fields
    found = list(document.troubles)
    strategy: Strategy | None = None
    try:
        strategy = read(fields, problem)
    except InputError as error:
        found += [_placed(trouble, prefix) for trouble in error.troubles]
    if found or strategy is None:
        raise InputError(document.in_order(found))
    return strategy


def strategy_to_dict(strategy: Strategy) -> dict[str, Any]:
    """A strategy as a file holds it: plain values that `load_strategy` reads back to an equal strategy."""
    return {
        "tp": strategy.tp,
        "pp": strategy.pp,
        "dp": strategy.dp,
        "mbs": strategy.mbs,
        "vpp": strategy.vpp,
        "sequence_parallel": strategy.sequence_parallel,
        "distributed_optimizer": strategy.distributed_optimizer,
        "flash_attention": strategy.flash_attention,
        **{name: getattr(strategy, name) for name in _KINDS},
        "stages": [_group_to_dict(group) for group in strategy.groups],
    }


def _group_to_dict(group: StageGroup) -> dict[str, Any]:
    fields: dict[str, Any] = {"chip": group.chip, "layers": list(group.layers), "recompute": group.recompute}
    amounts = group.stage_recompute_layers
    if any(amounts):
        fields["recompute_layers"] = amounts[0] if len(set(amounts)) == 1 else list(amounts)
    if group.modules not in ((), CORE):
        fields["recompute_modules"] = list(group.modules)
    return fields


def _placed(trouble: Trouble, prefix: KeyPath) -> Trouble:
    path = (*prefix, *trouble.path)
    return replace(trouble, where=dotted(path), path=path) if prefix else trouble


def _fields_at(path: KeyPath) -> Mapping[str, Any]:
    if not path:
        return _Plan.model_fields
    return _Stages.model_fields if len(path) == 2 and path[0] == "stages" else {}


def _from_fields(data: Mapping[str, Any], problem: Problem | None) -> Strategy:
    try:
        plan = _Plan.model_validate(dict(data))
    except ValidationError as error:
        details = error.errors(include_url=False)
        found = [validation_trouble(detail, data, _fields_at) for detail in details]
        raise InputError((*found, *_chip_troubles(_chips_written(data), problem))) from None
    found = list(_length_troubles(plan))
    found += _chip_troubles([(("stages", i, "chip"), part.chip) for i, part in enumerate(plan.stages)], problem)
    if found:
        raise InputError(found)
    groups = tuple(_group(part) for part in plan.stages)
    replicas = plan.dp * plan.cp
    return Strategy(
        tp=plan.tp,
        pp=plan.pp or sum(group.num_stages for group in groups),
        dp=plan.dp,
        mbs=plan.mbs,
        vpp=plan.vpp,
        sequence_parallel=plan.tp > 1 if plan.sequence_parallel is None else plan.sequence_parallel,
        distributed_optimizer=replicas > 1 if plan.distributed_optimizer is None else plan.distributed_optimizer,
        flash_attention=plan.flash_attention,
        groups=_canonical(groups),
        **{name: getattr(plan, name) for name in _KINDS},
    )


def _group(part: _Stages) -> StageGroup:
    amounts = part.recompute_layers or (0,)
    spread = amounts * len(part.layers) if len(amounts) == 1 else amounts
    return StageGroup(part.chip, part.layers, part.recompute, spread, part.recompute_modules)


def _canonical(groups: tuple[StageGroup, ...]) -> tuple[StageGroup, ...]:
    """Neighbouring groups that differ in their layers only, as one."""
    merged: list[StageGroup] = []
    for group in groups:
        last = merged[-1] if merged else None
        if last is not None and replace(last, layers=(), recompute_layers=()) == replace(
            group, layers=(), recompute_layers=()
        ):
            amounts = last.stage_recompute_layers + group.stage_recompute_layers
            merged[-1] = replace(last, layers=last.layers + group.layers, recompute_layers=amounts)
        else:
            merged.append(group)
    return tuple(merged)


def _length_troubles(plan: _Plan) -> Iterator[Trouble]:
    for index, part in enumerate(plan.stages):
        path: KeyPath = ("stages", index, "recompute_layers")
        given, stages = len(part.recompute_layers), len(part.layers)
        if given > 1 and given != stages:
            message = f"has {given} entries for the {stages} stages of layers"
            yield Trouble(dotted(path), message, None, f"one number, or {stages} of them", path=path)


def _chips_written(data: Mapping[str, Any]) -> list[tuple[KeyPath, str]]:
    stages = data.get("stages")
    parts = enumerate(stages) if isinstance(stages, list) else ()
    named = [(index, part.get("chip")) for index, part in parts if isinstance(part, Mapping)]
    return [(("stages", index, "chip"), chip) for index, chip in named if isinstance(chip, str)]


def _chip_troubles(named: list[tuple[KeyPath, str]], problem: Problem | None) -> Iterator[Trouble]:
    names = () if problem is None else problem.chip_names
    for path, chip in named:
        if names and chip not in names:
            nearest = nearest_names(chip, names)
            yield Trouble(dotted(path), "is not a chip of the spec", chip, ", ".join(names), nearest, path=path)


# The seed tool's dictionary.

_FLAGS = ("use-flash-attn", "sequence-parallel", "use-distributed-optimizer")
_KERNELS = ("fused-rmsnorm", "apply-rotary-positional-embedding-kernel")
_LISTS = ("recompute-granularity", "recompute-method", "recompute-num-layers")
_SIZES = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "micro-batch-size")
_MORE_SIZES = ("context-parallel-size", "expert-model-parallel-size", "expert-tensor-parallel-size")
_INSTANCES = "num-distributed-optimizer-instances"
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "cp-comm-type": ("p2p", "allgather", "a2a", "a2a+p2p"),
    "data-parallel-sharding-strategy": ("optim", "optim_grads", "optim_grads_params"),
}
SHARDING_STRATEGIES: Mapping[Sharded, str] = dict(
    zip(("optimizer", "gradients", "parameters"), _CHOICES["data-parallel-sharding-strategy"], strict=True)
)
"""Megatron's names for what is shared out."""
_MODULES = "recompute-modules"
_HIERARCHY = "hierarchical-context-parallel-sizes"
_SEED_FIELDS = (
    *(*_SIZES, *_MORE_SIZES, _INSTANCES, *_CHOICES, _HIERARCHY),
    *(*_FLAGS, *_KERNELS, "pipeline-stage-chips", "pipeline-stage-layers", *_LISTS, _MODULES),
)


def _from_seed(data: Mapping[str, Any], problem: Problem | None) -> Strategy:
    found = list(_seed_troubles(data, problem))
    if found or problem is None:
        raise InputError(found or Trouble("", "is the seed tool's format, which only a spec gives a meaning"))
    tp, pp, mbs = (int(data[name]) for name in _SIZES)
    chips = data["pipeline-stage-chips"]
    chips = chips * pp if len(chips) == 1 else chips
    layers = data.get("pipeline-stage-layers") or [problem.model.layers // pp] * pp
    kinds = [tuple(_nothing(value) for value in entry) for entry in zip(*(data[name] for name in _LISTS), strict=True)]
    types = list(dict.fromkeys(chips))
    groups = []
    for chip, count in zip(chips, layers, strict=True):
        granularity, method, amount = kinds[types.index(chip)]
        kind: Recompute = "selective" if granularity == "selective" else "none"
        if granularity == "full":
            kind = "uniform" if method == "uniform" else "block"
        modules = _modules_from_seed(data, types.index(chip))
        groups.append(StageGroup(chip, (count,), kind, (int(amount or 0),), modules if kind == "selective" else ()))
    flash, sequence, sharded = (name in data for name in _FLAGS)
    more = _kinds_from_seed(data)
    dp = problem.num_gpus // (tp * pp * more["cp"])
    if data.get(_INSTANCES, 1) > 1:
        more["sharding_group"] = dp * more["cp"] // data[_INSTANCES]
    return Strategy(tp, pp, dp, mbs, 1, sequence, sharded, flash, _canonical(tuple(groups)), **more)


def _modules_from_seed(data: Mapping[str, Any], place: int) -> tuple[str, ...]:
    given = data.get(_MODULES)
    return tuple(_nothing(given[place]) or ()) if given else ()


def _kinds_from_seed(data: Mapping[str, Any]) -> dict[str, Any]:
    cp, ep, etp = (data.get(name, 1) for name in _MORE_SIZES)
    exchange = data.get("cp-comm-type", "p2p")
    alone = cp if exchange == "a2a" else 1
    ulysses = data[_HIERARCHY][0] if exchange == "a2a+p2p" else alone
    depth = data.get("data-parallel-sharding-strategy", "optim")
    sharded = next(name for name, written in SHARDING_STRATEGIES.items() if written == depth)
    gather = exchange == "allgather" and cp > 1
    return {"cp": cp, "ulysses": ulysses, "cp_gather": gather, "ep": ep, "etp": etp, "sharded": sharded}


def _nothing(value: Any) -> Any:
    """A Python literal's None reads as text in YAML."""
    return None if value == "None" else value


def _seed_troubles(data: Mapping[str, Any], problem: Problem | None) -> Iterator[Trouble]:
    for key in data:
        if key not in _SEED_FIELDS:
            yield Trouble(key, "is not a known field", nearest=nearest_names(key, _SEED_FIELDS), path=(key,))
    sizes = [data.get(name) for name in _SIZES]
    for name, size in zip(_SIZES, sizes, strict=True):
        if type(size) is not int or size < 1:
            yield Trouble(name, "must be a whole number of at least 1", size, path=(name,))
    given, chips = data.get(_MODULES, []), data.get("pipeline-stage-chips")
    types = len(set(map(str, chips))) if isinstance(chips, list) else 0
    sound = isinstance(given, list) and all(isinstance(_nothing(some), list | None) for some in given)
    if not sound or (given and len(given) != types):
        yield Trouble(_MODULES, "must list the modules, or None, of each chip type", given, path=(_MODULES,))
    for name in (*_MORE_SIZES, _INSTANCES):
        if name in data and (type(data[name]) is not int or data[name] < 1):
            yield Trouble(name, "must be a whole number of at least 1", data[name], path=(name,))
    for name, choices in _CHOICES.items():
        if data.get(name, choices[0]) not in choices:
            yield Trouble(name, "is not one of the choices", data[name], ", ".join(choices), path=(name,))
    if data.get("cp-comm-type") == "a2a+p2p" or _HIERARCHY in data:
        yield from _seed_hierarchy(data)
    for name in ("pipeline-stage-chips", *_LISTS):
        if not isinstance(data.get(name), list) or not data[name]:
            yield Trouble(name, "must be a list", data.get(name), path=(name,))
    if isinstance(data.get("pipeline-stage-chips"), list) and all(type(size) is int for size in sizes):
        yield from _seed_lengths(data, problem)


def _seed_hierarchy(data: Mapping[str, Any]) -> Iterator[Trouble]:
    sizes, cp = data.get(_HIERARCHY), data.get("context-parallel-size", 1)
    listed = sizes if isinstance(sizes, list) and all(type(size) is int and size > 0 for size in sizes) else []
    if len(listed) != 2 or listed[0] * listed[1] != cp:
        message = f"must be the all-to-all and the ring size, whose product is context-parallel-size = {cp}"
        yield Trouble(_HIERARCHY, message, sizes, path=(_HIERARCHY,))


def _seed_lengths(data: Mapping[str, Any], problem: Problem | None) -> Iterator[Trouble]:
    tp, pp = (data[name] for name in _SIZES[:2])
    chips, layers = data["pipeline-stage-chips"], data.get("pipeline-stage-layers")
    named: list[tuple[KeyPath, str]] = [(("pipeline-stage-chips", i), str(chip)) for i, chip in enumerate(chips)]
    yield from _chip_troubles(named, problem)
    if len(chips) not in (1, pp):
        yield Trouble(
            "pipeline-stage-chips", f"has {len(chips)} entries for {pp} stages", path=("pipeline-stage-chips",)
        )
    if layers is not None and (not isinstance(layers, list) or len(layers) != pp):
        yield Trouble("pipeline-stage-layers", f"must list {pp} numbers", layers, path=("pipeline-stage-layers",))
    elif layers is not None and not all(type(count) is int and count > 0 for count in layers):
        yield Trouble("pipeline-stage-layers", "must list whole numbers", layers, path=("pipeline-stage-layers",))
    for name in _LISTS:
        entries, types = data.get(name), len(set(map(str, chips)))
        if isinstance(entries, list) and len(entries) != types:
            yield Trouble(name, f"has {len(entries)} entries for {types} chip types", path=(name,))
    amounts = data.get("recompute-num-layers")
    for amount in map(_nothing, amounts if isinstance(amounts, list) else ()):
        if amount is not None and (type(amount) is not int or amount < 1):
            name = "recompute-num-layers"
            yield Trouble(name, "must list whole numbers of at least 1, or None", amount, path=(name,))
    cp = data.get("context-parallel-size", 1)
    sound = problem is not None and tp > 0 and pp > 0 and type(cp) is int and cp > 0
    if sound and problem is not None and problem.num_gpus % (tp * pp * cp):
        times = f" times context parallelism's {cp}" if cp > 1 else ""
        message = f"times the pipeline's {pp}{times} does not divide the {problem.num_gpus:,} GPUs of the spec"
        yield Trouble(_SIZES[0], message, tp, path=(_SIZES[0],))
    if problem is not None and layers is None and pp > 0 and problem.model.layers % pp:
        message = f"is missing, and {problem.model.layers} layers do not split evenly over {pp} stages"
        yield Trouble("pipeline-stage-layers", message, path=("pipeline-stage-layers",))
