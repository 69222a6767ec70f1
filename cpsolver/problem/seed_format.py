"""The seed tool's output dictionary, as a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cpsolver.inputs.errors import InputError, Trouble, dotted, nearest_names
from cpsolver.inputs.errors import Path as KeyPath
from cpsolver.inputs.language import later
from cpsolver.plans.strategy import SHARDED, RecomputeKind, Sharded, StageGroup, Strategy
from cpsolver.problem.problem import Problem

SEED_KEYS = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "pipeline-stage-chips")
"""Keys that only the seed tool's dictionaries have."""


def merged_groups(groups: tuple[StageGroup, ...]) -> tuple[StageGroup, ...]:
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


def chip_troubles(named: list[tuple[KeyPath, str]], problem: Problem | None) -> Iterator[Trouble]:
    """Chips that the spec does not have."""
    names = () if problem is None else problem.chip_names
    for path, chip in named:
        if names and chip not in names:
            nearest = nearest_names(chip, names)
            yield Trouble(dotted(path), "is not a chip of the spec", chip, ", ".join(names), nearest, path=path)


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
    zip(SHARDED, _CHOICES["data-parallel-sharding-strategy"], strict=True)
)
"""Megatron's names for what is shared out."""
_MODULES = "recompute-modules"
_HIERARCHY = "hierarchical-context-parallel-sizes"
_SEED_FIELDS = (
    *(*_SIZES, *_MORE_SIZES, _INSTANCES, *_CHOICES, _HIERARCHY),
    *(*_FLAGS, *_KERNELS, "pipeline-stage-chips", "pipeline-stage-layers", *_LISTS, _MODULES),
)


def seed_strategy(data: Mapping[str, Any], problem: Problem | None) -> Strategy:
    """The plan of one dictionary of the seed tool's output; raises InputError with every problem."""
    found = list(_seed_troubles(data, problem))
    if found or problem is None:
        raise InputError(found or Trouble("", "is the seed tool's format, which only a spec gives a meaning"))
    tp, pp, mbs = (int(data[name]) for name in _SIZES)
    flash, sequence, sharded = (name in data for name in _FLAGS)
    cp, ep, etp = (data.get(name, 1) for name in _MORE_SIZES)
    ulysses, gather = _exchange_from_seed(data, cp)
    dp, instances = problem.num_gpus // (tp * pp * cp), data.get(_INSTANCES, 1)
    written = data.get("data-parallel-sharding-strategy", SHARDING_STRATEGIES["optimizer"])
    return Strategy(
        tp=tp,
        pp=pp,
        dp=dp,
        mbs=mbs,
        vpp=1,
        sequence_parallel=sequence,
        distributed_optimizer=sharded,
        flash_attention=flash,
        groups=_groups_from_seed(data, problem, pp),
        cp=cp,
        ulysses=ulysses,
        cp_gather=gather,
        ep=ep,
        etp=etp,
        sharded=next(name for name, strategy in SHARDING_STRATEGIES.items() if strategy == written),
        sharding_group=dp * cp // instances if instances > 1 else 0,
    )


def _groups_from_seed(data: Mapping[str, Any], problem: Problem, pp: int) -> tuple[StageGroup, ...]:
    """The stages: chips and layers are listed by stage, recomputation by chip type in the order of the stages."""
    chips = data["pipeline-stage-chips"]
    chips = chips * pp if len(chips) == 1 else chips
    layers = data.get("pipeline-stage-layers") or [problem.model.layers // pp] * pp
    kinds = [tuple(_nothing(value) for value in entry) for entry in zip(*(data[name] for name in _LISTS), strict=True)]
    types, given = list(dict.fromkeys(chips)), data.get(_MODULES)
    groups = []
    for chip, count in zip(chips, layers, strict=True):
        granularity, method, amount = kinds[types.index(chip)]
        kind: RecomputeKind = "selective" if granularity == "selective" else "none"
        if granularity == "full":
            kind = "uniform" if method == "uniform" else "block"
        modules = tuple(_nothing(given[types.index(chip)]) or ()) if given and kind == "selective" else ()
        groups.append(StageGroup(chip, (count,), kind, (int(amount or 0),), modules))
    return merged_groups(tuple(groups))


def _exchange_from_seed(data: Mapping[str, Any], cp: int) -> tuple[int, bool]:
    """Context-parallel ranks that communicate by all-to-all, and whether keys and values are gathered."""
    exchange = data.get("cp-comm-type", "p2p")
    alone = cp if exchange == "a2a" else 1
    return data[_HIERARCHY][0] if exchange == "a2a+p2p" else alone, exchange == "allgather" and cp > 1


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
        message = later(
            "must be the all-to-all and the ring size, whose product is context-parallel-size = {cp}", cp=cp
        )
        yield Trouble(_HIERARCHY, message, sizes, path=(_HIERARCHY,))


def _seed_lengths(data: Mapping[str, Any], problem: Problem | None) -> Iterator[Trouble]:
    tp, pp = (data[name] for name in _SIZES[:2])
    chips, layers = data["pipeline-stage-chips"], data.get("pipeline-stage-layers")
    named: list[tuple[KeyPath, str]] = [(("pipeline-stage-chips", i), str(chip)) for i, chip in enumerate(chips)]
    yield from chip_troubles(named, problem)
    if len(chips) not in (1, pp):
        yield Trouble(
            "pipeline-stage-chips",
            later("has {chips} entries for {pp} stages", chips=len(chips), pp=pp),
            path=("pipeline-stage-chips",),
        )
    if layers is not None and (not isinstance(layers, list) or len(layers) != pp):
        yield Trouble(
            "pipeline-stage-layers", later("must list {pp} numbers", pp=pp), layers, path=("pipeline-stage-layers",)
        )
    elif layers is not None and not all(type(count) is int and count > 0 for count in layers):
        yield Trouble("pipeline-stage-layers", "must list whole numbers", layers, path=("pipeline-stage-layers",))
    for name in _LISTS:
        entries, types = data.get(name), len(set(map(str, chips)))
        if isinstance(entries, list) and len(entries) != types:
            yield Trouble(
                name,
                later("has {entries} entries for {types} chip types", entries=len(entries), types=types),
                path=(name,),
            )
    amounts = data.get("recompute-num-layers")
    for amount in map(_nothing, amounts if isinstance(amounts, list) else ()):
        if amount is not None and (type(amount) is not int or amount < 1):
            name = "recompute-num-layers"
            yield Trouble(name, "must list whole numbers of at least 1, or None", amount, path=(name,))
    cp = data.get("context-parallel-size", 1)
    sound = problem is not None and tp > 0 and pp > 0 and type(cp) is int and cp > 0
    if sound and problem is not None and problem.num_gpus % (tp * pp * cp):
        times = later(" times context parallelism's {cp}", cp=cp) if cp > 1 else ""
        message = later(
            "times the pipeline's {pp}{times} does not divide the {num_gpus:,} GPUs of the spec",
            pp=pp,
            times=times,
            num_gpus=problem.num_gpus,
        )
        yield Trouble(_SIZES[0], message, tp, path=(_SIZES[0],))
    if problem is not None and layers is None and pp > 0 and problem.model.layers % pp:
        message = later(
            "is missing, and {layers} layers do not split evenly over {pp} stages", layers=problem.model.layers, pp=pp
        )
        yield Trouble("pipeline-stage-layers", message, path=("pipeline-stage-layers",))
