"""Layouts that cannot be: sizes of a row that contradict each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from cpsolver.evidence.runs.run import counted_chips
from cpsolver.inputs.language import say

Contradiction = tuple[str, str]
"""The column to look at first, and what is wrong."""

_EXPERTS_MODULES = {"moe", "moe_act", "shared_experts"}
_PRECISIONS = {"nvfp4": "nvfp4"}  # of a recipe; all others are of fp8
_ENDS = 2  # embedding and head may count as a layer each where chunks are laid out


def contradictions(row: Mapping[str, Any]) -> Iterator[Contradiction]:
    """What does not add up in a row's values, by column name; values that are None are left out of the account."""
    yield from _chips(row)
    yield from _devices(row)
    yield from _batch(row)
    yield from _interleaving(row)
    yield from _model(row)
    yield from _stages(row)
    yield from _experts(row)
    yield from _recomputation(row)
    yield from _eight_bits(row)


def _known(row: Mapping[str, Any], *names: str) -> tuple[int, ...] | None:
    """The values, or None unless all are known."""
    values = tuple(row[name] for name in names)
    return None if None in values else values


def _devices(row: Mapping[str, Any]) -> Iterator[Contradiction]:
    if row["stages"] is not None:
        yield from _replicas(row)
    elif sizes := _known(row, "tp", "pp", "cp", "num_gpus"):
        tp, pp, cp, gpus = sizes
        dp = row["dp"]
        if dp is None and gpus % (tp * pp * cp):
            yield (
                "num_gpus",
                say("{gpus:,} GPUs are no multiple of tp * pp * cp = {devices:,}", gpus=gpus, devices=tp * pp * cp),
            )
        elif dp is not None and tp * pp * cp * dp != gpus:
            yield (
                "dp",
                say(
                    "tp * pp * cp * dp = {tp} * {pp} * {cp} * {dp} = {devices:,}, not num_gpus = {gpus:,}",
                    tp=tp,
                    pp=pp,
                    cp=cp,
                    dp=dp,
                    devices=tp * pp * cp * dp,
                    gpus=gpus,
                ),
            )
        else:
            yield from _expert_grid(row, gpus // pp)
    if (shards := _known(row, "sharding_group", "cp", "dp")) and shards[1] * shards[2] % shards[0]:
        yield (
            "sharding_group",
            say("{group} does not divide the {ranks:,} ranks of cp * dp", group=shards[0], ranks=shards[1] * shards[2]),
        )


def _chips(row: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Of several chip types."""
    if row["chip"] is None or row["num_gpus"] is None or ":" not in row["chip"]:
        return
    counts = counted_chips(row["chip"], row["num_gpus"])
    if len(dict(counts)) < len(counts):
        yield "chip", say("names a chip type twice")
    elif sum(dict(counts).values()) != row["num_gpus"]:
        yield (
            "chip",
            say(
                "has {devices:,} devices in all, and num_gpus is {num_gpus:,}",
                devices=sum(dict(counts).values()),
                num_gpus=row["num_gpus"],
            ),
        )
    elif row["stages"] is not None:
        used = Counter[str]()
        for stage in row["stages"]:
            for name, tp in stage:
                used[name] += tp * (row["cp"] or 1)
        if used != Counter(dict(counts)):
            told = ", ".join(f"{name} {number:,}" for name, number in used.items())
            yield "stages", say("use other devices than chip has: {told}", told=told)


def _replicas(row: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Of replicas that are said one by one."""
    stages, cp = row["stages"], row["cp"] or 1
    most, devices = max(map(len, stages), default=0), cp * sum(tp for stage in stages for _, tp in stage)
    if row["pp"] is not None and len(stages) != row["pp"]:
        yield (
            "stages",
            say("has {count} entries, and pp is {pp:,}: one for each stage", count=len(stages), pp=row["pp"]),
        )
    elif not all(stage and most % len(stage) == 0 for stage in stages):
        yield (
            "stages",
            say(
                "has stages of {counts} replicas: no shares of {most}",
                counts=", ".join(str(len(stage)) for stage in stages),
                most=most,
            ),
        )
    elif row["dp"] is not None and row["dp"] != most:
        yield "dp", say("is {dp:,}, and a stage has {most:,} replicas", dp=row["dp"], most=most)
    elif row["num_gpus"] is not None and devices != row["num_gpus"]:
        yield (
            "stages",
            say(
                "has {devices:,} devices in all, and num_gpus is {num_gpus:,}",
                devices=devices,
                num_gpus=row["num_gpus"],
            ),
        )


def _expert_grid(row: Mapping[str, Any], stage: int) -> Iterator[Contradiction]:
    """`stage`: GPUs of a pipeline stage, which etp * ep * the replicas of each expert share out among them."""
    ep, etp = row["ep"] or 1, row["etp"] or 1
    if stage % ep:
        yield (
            "ep",
            say("ep = {ep} does not divide the {stage:,} GPUs of a pipeline stage (tp * cp * dp)", ep=ep, stage=stage),
        )
    elif stage % (etp * ep):
        told = say(
            "etp * ep = {etp} * {ep} = {grid:,} does not divide the {stage:,} GPUs of a pipeline stage (tp * cp * dp)",
            etp=etp,
            ep=ep,
            grid=etp * ep,
            stage=stage,
        )
        yield "etp", told


def _batch(row: Mapping[str, Any]) -> Iterator[Contradiction]:
    if (sizes := _known(row, "gbs", "mbs", "dp")) and sizes[0] % (sizes[1] * sizes[2]):
        gbs, mbs, dp = sizes
        yield (
            "gbs",
            say(
                "{gbs:,} sequences are no multiple of mbs * dp = {mbs} * {dp} = {step:,}",
                gbs=gbs,
                mbs=mbs,
                dp=dp,
                step=mbs * dp,
            ),
        )


def _interleaving(row: Mapping[str, Any]) -> Iterator[Contradiction]:
    sizes = _known(row, "vpp", "pp")
    if sizes is None or sizes[0] == 1:
        return
    vpp, pp = sizes
    if pp == 1:
        yield "vpp", say("{vpp} chunks a stage need a pipeline, and pp is 1", vpp=vpp)
    elif row["layers"] is not None and vpp * pp > row["layers"] + _ENDS:
        yield (
            "vpp",
            say(
                "vpp * pp = {vpp} * {pp} = {chunks:,} chunks are more than the {layers:,} layers",
                vpp=vpp,
                pp=pp,
                chunks=vpp * pp,
                layers=row["layers"],
            ),
        )
    elif (batch := _known(row, "gbs", "mbs", "dp")) and batch[0] % (batch[1] * batch[2]) == 0:
        microbatches = batch[0] // (batch[1] * batch[2])
        if microbatches % pp:
            yield (
                "vpp",
                say(
                    "interleaving needs microbatches in whole groups of pp = {pp}, not {microbatches:,}",
                    pp=pp,
                    microbatches=microbatches,
                ),
            )


def _model(row: Mapping[str, Any]) -> Iterator[Contradiction]:
    if (sizes := _known(row, "layers", "pp")) and sizes[0] < sizes[1]:
        yield (
            "pp",
            say("{stages:,} pipeline stages are more than the {layers:,} layers", stages=sizes[1], layers=sizes[0]),
        )
    if (heads := _known(row, "heads", "kv_heads")) and heads[0] % heads[1]:
        yield (
            "kv_heads",
            say("{kv_heads} key-value heads do not divide the {heads} heads", kv_heads=heads[1], heads=heads[0]),
        )
    if (split := _known(row, "heads", "tp")) and split[0] % split[1]:
        yield "tp", say("tp = {tp} does not divide the {heads} heads", tp=split[1], heads=split[0])


def _stages(row: Mapping[str, Any]) -> Iterator[Contradiction]:
    """What the layers of single pipeline ranks must add up to."""
    split = row["layers_per_stage"]
    if split is not None and row["pp"] is not None and len(split) != row["pp"]:
        yield (
            "layers_per_stage",
            say("has {count} entries, and pp is {pp:,}: one for each pipeline rank", count=len(split), pp=row["pp"]),
        )
    elif split is not None and row["layers"] is not None and sum(split) not in _sums(row):
        beside = say("; those of multi-token prediction are for mtp_layers") if row["mtp_layers"] else ""
        yield (
            "layers_per_stage",
            say(
                "has {split:,} layers in all, and the model has {layers:,}{beside}",
                split=sum(split),
                layers=row["layers"],
                beside=beside,
            ),
        )
    if (sizes := _known(row, "offload_layers", "layers")) and sizes[0] > sizes[1]:
        yield (
            "offload_layers",
            say("{host:,} layers on the host are more than the {layers:,} layers", host=sizes[0], layers=sizes[1]),
        )


def _sums(row: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers in all; on several chip types embedding and head may be counted too."""
    layers = int(row["layers"])
    mixed = row["stages"] is not None or ":" in (row["chip"] or "")
    return (layers, layers + _ENDS) if mixed else (layers,)


def _experts(row: Mapping[str, Any]) -> Iterator[Contradiction]:
    if (sizes := _known(row, "moe_topk", "moe_experts")) and sizes[0] > sizes[1]:
        yield "moe_topk", say("{chosen} experts chosen of {experts}", chosen=sizes[0], experts=sizes[1])
    if (sizes := _known(row, "ep", "moe_experts")) and sizes[1] and sizes[1] % sizes[0]:
        yield "moe_experts", say("ep = {ep} does not divide the {experts} experts", ep=sizes[0], experts=sizes[1])
    if row["moe_experts"] != 0:
        return
    if (row["etp"] or 1) > 1:
        yield "etp", say("etp = {etp} splits experts, and moe_experts is 0", etp=row["etp"])
    for column in ("routing", "dispatcher"):
        if row[column] is not None:
            yield column, say("{value} is of a mixture of experts, and moe_experts is 0", value=row[column])
    if row["a2a_overlap"]:
        yield "a2a_overlap", say("hides an all-to-all of experts, and moe_experts is 0")


def _recomputation(row: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Only selective recomputation is by module."""
    kind = row["recompute"]
    if row["recompute_modules"] is not None and kind not in (None, "selective"):
        yield "recompute_modules", say("goes with recompute = selective, and that is {kind}", kind=kind)
    named = set(row["recompute_modules"] or ()) & _EXPERTS_MODULES
    if named and row["moe_experts"] == 0:
        yield (
            "recompute_modules",
            say("{named}: of a mixture of experts, and moe_experts is 0", named=", ".join(sorted(named))),
        )


def _eight_bits(row: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Which recipes go with which precision."""
    recipe, precision = row["fp8_recipe"], row["precision"]
    if recipe is not None and precision is not None and precision != (needed := _PRECISIONS.get(recipe, "fp8")):
        yield (
            "fp8_recipe",
            say(
                "{recipe} is a recipe of precision {needed}, and that is {precision}",
                recipe=recipe,
                needed=needed,
                precision=precision,
            ),
        )
