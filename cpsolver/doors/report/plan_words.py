"""A plan in a few words: what to set, which chips serve which stages, how its roles are called."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from cpsolver.doors.report.text import recompute_text
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import plural, runs
from cpsolver.plans.dimensions import DEGREES, DIMENSIONS, FLAGS, differences, shown_sizes
from cpsolver.plans.strategy import StageGroup, Strategy

_NO_RECOMPUTE = "none"
_RECOMPUTATION = {one.name for one in DIMENSIONS.values() if one.group == "recomputation"}
_IN_WORDS = (later("recomputation"), later("schedule"), later("micro batches"))
"""What of it has a word in every language; all else is called as in a spec."""


def layout_words(strategy: Strategy) -> list[str]:
    """What is set, a decision each, the sizes first: `tp 4`, `cp 2 (p2p)`, `ZeRO-1`, `sequence parallel`.

    Sizes of 1 that a default stands for, and flags at their default, are left out. Microbatches that differ in size
    follow their mean, in order: `mbs 2 (1, 2, 3 ×3, 2, 1 ×2)`.
    """
    said = {name: f"{name} {size}" for name, size in shown_sizes(strategy).items()}
    if "cp" in said and strategy.cp > 1:
        said["cp"] += f" ({strategy.cp_comm_type})"
    if strategy.dynamic:
        said["mbs"] += f" ({runs(strategy.micro_batches)})"
    schedule = [] if strategy.schedule == "1f1b" else [say("schedule {schedule}", schedule=strategy.schedule)]
    return [*said.values(), *schedule, *_states(strategy), *_flags(strategy), *_recomputation(strategy)]


def twin_words(one: Strategy, other: Strategy) -> str:
    """What sets two plans of the same sizes apart: `layers, recomputation`; empty where their sizes differ."""
    found = [*differences(one, other), *["micro_batches"] * (one.micro_batches != other.micro_batches)]
    if any(name in found for name in DEGREES):
        return ""
    words = ("recomputation" if name in _RECOMPUTATION else name.replace("_", " ") for name in found)
    return say(", ").join(say(word) if word in _IN_WORDS else word for word in dict.fromkeys(words))


def stage_words(strategy: Strategy) -> str:
    """Which chips serve which stages, where there are several types or stages differ in layers; else nothing."""
    uneven = any(len(set(group.layers)) > 1 for group in strategy.groups)
    if strategy.pp == 1 or not (len(strategy.groups) > 1 or uneven):
        return ""
    alike = len({recompute_text(strategy, chip) for chip in strategy.stage_chips}) == 1
    said: list[str] = []
    for group in strategy.groups:
        more = [] if alike else [say("recompute {recompute_text}", recompute_text=recompute_text(strategy, group.chip))]
        more = [*_degrees(strategy, group), *more]
        own = f" ({', '.join(more)})" if more else ""
        for layers, same in groupby(group.layers):
            stages = len(list(same))
            said.append(
                say("then {stages} of {layers}", stages=stages, layers=layers)
                if said
                else say("{stages} of {layers}", stages=plural(stages, "stage"), layers=plural(layers, "layer"))
            )
        said[-1] += say(" on {chip}{own}", chip=group.chip, own=own)
    return ", ".join(said)


def _degrees(strategy: Strategy, group: StageGroup) -> Iterator[str]:
    """The sizes of a group's mesh in which chip types differ: `tp 4 dp 8`."""
    own = strategy.of(group.mesh or strategy.mesh)
    sizes = [f"{name} {getattr(own, name)}" for name in DEGREES if len(strategy.by_mesh(name)) > 1]
    yield from [" ".join(sizes)] if sizes else []


def _states(strategy: Strategy) -> Iterator[str]:
    """What replicas shard, in the field's word; nothing where there are none."""
    if strategy.zero_stage:
        yield f"ZeRO-{strategy.zero_stage}" + (
            say(" in groups of {sharding_ranks}", sharding_ranks=strategy.sharding_ranks) if strategy.grouped else ""
        )
    elif strategy.replicas > 1:
        yield say("no ZeRO")


def _flags(strategy: Strategy) -> Iterator[str]:
    """Flags that are not as a plan has them by default, but for the one that ZeRO says."""
    for one in (DIMENSIONS[name] for name in FLAGS if DIMENSIONS[name].label and DIMENSIONS[name].group == "flags"):
        on = bool(getattr(strategy, one.name))
        if on != bool(one.default):
            yield say(one.label) if on else say("no {label}", label=say(one.label))


def _recomputation(strategy: Strategy) -> Iterator[str]:
    """How all stages recompute; nothing where chip types differ, of which the stages tell."""
    texts = {recompute_text(strategy, chip) for chip in strategy.stage_chips}
    if len(texts) == 1:
        text = texts.pop()
        yield say("no recomputation") if text == _NO_RECOMPUTE else say("recompute {text}", text=text)
