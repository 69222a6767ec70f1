"""Facts on what replicas share out, and on recomputation: more functions of the fields of `Facts`."""

from __future__ import annotations

from typing import Any

from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import CORE, RecomputeKind, Sharded
from cpsolver.profiles.facts import Facts, grouped, listed, with_sizes
from cpsolver.profiles.judging import SHARDED, among, fact, negated
from models_zoo import Architecture


def _shards(x: Any, kinds: tuple[Sharded, ...]) -> Any:
    """Where the ranks shard one of these, whether or not there is a distributed optimizer."""
    return among(x.sharded, tuple(1 + SHARDED.index(kind) for kind in kinds))


@fact("variant")
def _plain_replicas(f: Facts, m: Architecture, x: Any) -> Any:
    yield (
        f.plain_replicas | x.distributed_optimizer | (x.dp == 1) | ((x.tp == 1) & (x.cp == 1)),
        lambda: later(
            "needs sharded replicas with tp {x.tp}, cp {x.cp} and dp {x.dp}: distributed_optimizer must be true", x=x
        ),
    )


@fact("variant")
def _plain_context(f: Facts, m: Architecture, x: Any) -> Any:
    allows = f.plain_context | x.distributed_optimizer | (x.cp == 1)
    yield (
        allows,
        lambda: later("shards over context-parallel ranks: with cp {x.cp} distributed_optimizer must be true", x=x),
    )


def sharded_in_short(f: Facts) -> str:
    """What of the states is shared out, in words that follow a framework's name."""
    alone, under = (listed(kinds) or say("nothing") for kinds in (f.sharded, f.sharded_pipeline))
    if not f.pipeline:
        return say("shares out {alone}", alone=alone)
    return say("shares out {alone} without a pipeline, {under} with one", alone=alone, under=under)


@fact("variant", about="sharded", briefly=sharded_in_short)
def _sharded(f: Facts, m: Architecture, x: Any) -> Any:
    shards = ((x.pp == 1) & _shards(x, f.sharded)) | ((x.pp > 1) & _shards(x, f.sharded_pipeline))
    yield negated(x.distributed_optimizer) | shards, lambda: _unsharded(f, x)


def _unsharded(f: Facts, x: Any) -> str:
    kinds = f.sharded if x.pp == 1 else f.sharded_pipeline
    if not kinds:
        return later("does not share out {x.plan.sharded} with pp {x.pp}: distributed_optimizer must be false", x=x)
    return later("does not share out {x.plan.sharded} with pp {x.pp}: sharded may be {kinds}", x=x, kinds=listed(kinds))


def _groups_in_short(f: Facts) -> str:
    if not f.sharding_groups:
        return say("shares out nothing in groups")
    kinds = listed(f.sharding_groups)
    if f.context_groups:
        return say("shares out {kinds} in groups", kinds=kinds)
    return say("shares out {kinds} in groups, of several context-parallel groups", kinds=kinds)


@fact("variant", about="sharding_group", briefly=_groups_in_short)
def _sharding_groups(f: Facts, m: Architecture, x: Any) -> Any:
    size, alone = x.sharding_group, negated(grouped(x))
    known = alone | _shards(x, f.sharding_groups)
    whole = alone | (not f.whole_context_groups) | (size % x.cp == 0)
    several = alone | f.context_groups | (x.cp == 1) | (size != x.cp)
    yield (
        known,
        lambda: later(
            "shares out {sharded} over all replicas: sharding_group is {size}, and must be 0",
            sharded=x.plan.sharded,
            size=size,
        ),
    )
    yield (
        whole | negated(known),
        lambda: later(
            "needs a sharding group of whole context-parallel groups: {size} is no multiple of cp {x.cp}",
            size=size,
            x=x,
        ),
    )
    yield (
        several | negated(known & whole),
        lambda: later(
            "needs a sharding group of several context-parallel groups: {size} is one of cp {x.cp}", size=size, x=x
        ),
    )


# Recomputation, of which rows of the search know nothing


@fact("plan")
def _recompute(f: Facts, m: Architecture, x: Any) -> Any:
    has = ("none", *f.recompute)
    for kind in dict.fromkeys(x.recompute):
        yield (
            kind in has,
            lambda kind=kind: later("has no recomputation of kind {kind}: {has}", kind=kind, has=listed(has)),
        )


@fact("plan")
def _recompute_units(f: Facts, m: Architecture, x: Any) -> Any:
    units = [n for kind, n in zip(x.recompute, x.recompute_layers, strict=False) if kind == "uniform" and n > 1]
    yield (
        f.recompute_units == "any" or not units,
        lambda: later("recomputes layer by layer: uniform with {n} layers must be 1", n=units[0]),
    )


def differing_kinds(f: Facts, x: Any) -> tuple[RecomputeKind, ...]:
    """The kinds of recomputation that may differ from stage to stage: of one plan, or of one row in columns."""
    free = f.recompute_by_stage_interleaving | (x.vpp == 1)
    free = free & (f.recompute_by_stage_context | (x.cp == 1))
    free = free & (f.recompute_by_stage_groups | negated(grouped(x)))
    return f.recompute_by_stage if free else ()


@fact("plan")
def _recompute_by_stage(f: Facts, m: Architecture, x: Any) -> Any:
    free = differing_kinds(f, x)
    settings = dict.fromkeys(zip(x.recompute, x.recompute_layers, x.recompute_modules, strict=False))
    alike = len(settings) == 1 or all(kind in free for kind, *_ in settings)
    yield alike, lambda: _differs(f, x, free, list(settings))


def _differs(f: Facts, x: Any, free: tuple[RecomputeKind, ...], settings: list[tuple[Any, int, Any]]) -> str:
    words = ((kind, *[str(n)] * (n > 0), *(modules if modules != CORE else ())) for kind, n, modules in settings)
    shown = ", ".join(map(" ".join, words))
    sizes = {"vpp": (x.vpp, 1), "cp": (x.cp, 1), "sharding_group": (x.sharding_group, 0)}
    where = with_sizes(sizes) if f.recompute_by_stage != free else ""
    if free:
        return later(
            "cannot recompute differently by stage{where} ({shown}): only {free} may differ",
            where=where,
            shown=shown,
            free=listed(free),
        )
    return later("cannot recompute differently by stage{where} ({shown}): one choice for all", where=where, shown=shown)
