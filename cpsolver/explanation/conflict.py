"""Which rules, pins and bans together leave no row: a smallest set of them, in words with numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cpsolver.cost.shard import Bools, Candidates, Ints
from cpsolver.explanation.wishes import Wish, only_wish, wishes
from cpsolver.inputs.language import say
from cpsolver.problem.problem import Problem
from cpsolver.rules import RULES
from cpsolver.search.filters import FRAME_FILTERS, LAYOUT_FILTERS, VARIANT_FILTERS, Filter
from cpsolver.search.space import all_frames, all_layouts, all_variants


@dataclass(frozen=True)
class Conflict:
    """Requirements that cannot all hold. `dps`: what dp may be when all but `batch` hold, if `batch` is one of them."""

    wishes: tuple[Wish, ...]
    rules: tuple[str, ...]
    dps: tuple[int, ...] = ()


Masks = dict[str | Wish, Bools]
"""Requirement -> which layouts or rows keep it."""


def find_conflict(problem: Problem) -> Conflict | None:
    """A smallest set of requirements that leaves no row; None where rows are left or other rules are the cause."""
    layouts = all_layouts(problem)
    masks = _masks(problem, LAYOUT_FILTERS, layouts)
    frames, of_frame = all_frames(problem, layouts)
    variants, of_variant = all_variants(problem, layouts)
    parts = [
        (_masks(problem, FRAME_FILTERS, frames), of_frame),
        (_masks(problem, VARIANT_FILTERS, variants), of_variant),
    ]
    every = [masks, *(part for part, _ in parts)]
    asked = dict.fromkeys(key for part in every for key in part if not isinstance(key, str))
    keys = list(dict.fromkeys([*asked, *(key for part in every for key in part)]))
    bits = {key: index for index, key in enumerate(keys)}
    broken = _codes(masks, bits, len(layouts))
    by_part = [_by_layout(_codes(part, bits, len(of)), of, len(layouts)) for part, of in parts]
    found: set[int] = set()
    for own, some, others in zip(broken.tolist(), *by_part, strict=True):
        found |= {own | one | other for one in some for other in others}
    core = _smallest_cover({frozenset(bit for bit in bits.values() if code >> bit & 1) for code in found})
    if core is None:
        return None
    named = [keys[index] for index in core]
    chosen = tuple(key for key in named if not isinstance(key, str))
    names = tuple(key for key in named if isinstance(key, str))
    others_hold = [masks[key] for key in named if key in masks and key != "batch"]
    left = np.logical_and.reduce(others_hold) if others_hold else np.ones(len(layouts), dtype=np.bool_)
    return Conflict(chosen, names, tuple(np.unique(layouts.dp[left]).tolist()) if "batch" in names else ())


def _masks(problem: Problem, filters: Mapping[str, Filter], rows: Candidates) -> Masks:
    """What keeps each rule, and each wish that any of the rows does not keep."""
    masks: Masks = {name: keep(problem, rows) for name, keep in filters.items() if name != "pin"}
    for wish in wishes(problem):
        kept = filters["pin"](only_wish(problem, wish), rows)
        if not kept.all():
            masks[wish] = kept
    return masks


def _codes(masks: Masks, bits: dict[str | Wish, int], count: int) -> Ints:
    """The requirements that each row breaks, as the bits of a number."""
    codes = np.zeros(count, dtype=np.int64)
    for key, mask in masks.items():
        codes |= (~mask).astype(np.int64) << bits[key]
    return codes


def _by_layout(codes: Ints, layout: Ints, count: int) -> list[list[int]]:
    """The distinct codes of each layout's frames or variants; [0] for a layout that has none."""
    ends = np.searchsorted(layout, np.arange(count + 1))
    return [np.unique(codes[ends[index] : ends[index + 1]]).tolist() or [0] for index in range(count)]


def _smallest_cover(broken: set[frozenset[int]]) -> tuple[int, ...] | None:
    """The smallest set that meets every one of the sets; None where one of them is empty."""
    least = [some for some in broken if not any(other < some for other in broken)]
    if frozenset() in broken:
        return None
    least.sort(key=lambda some: (len(some), sorted(some)))

    def cover(chosen: frozenset[int], more: int) -> frozenset[int] | None:
        missed = next((some for some in least if not some & chosen), None)
        if missed is None:
            return chosen
        if more == 0:
            return None
        tries = (cover(chosen | {bit}, more - 1) for bit in sorted(missed))
        return next((found for found in tries if found is not None), None)

    sizes = (cover(frozenset(), size) for size in range(len(least) + 1))
    return tuple(sorted(next(found for found in sizes if found is not None)))


def conflict_line(problem: Problem, conflict: Conflict) -> str:
    """The conflict in one sentence."""
    parts = [str(wish) for wish in conflict.wishes] + _rule_texts(problem, conflict)
    of = say("tp x cp x pp x dp = {num_gpus:,} GPUs", num_gpus=problem.num_gpus)
    if len(parts) == 1 and conflict.wishes:
        return say(
            "{parts} leaves no plan: {of}, and mbs x dp must divide the global batch of {batch:,}.",
            parts=parts[0],
            of=of,
            batch=problem.batch,
        )
    if len(parts) == 1:
        return say("No layout is legal: {parts}, and none does with {of}.", parts=parts[0], of=of)
    text = say("These cannot all hold with {of}: {parts}.", of=of, parts=say("; ").join(parts))
    if conflict.dps and all(problem.batch % dp for dp in conflict.dps):
        some = ", ".join(map(str, conflict.dps[:8])) + (", …" if len(conflict.dps) > 8 else "")
        text += say(" dp could only be one of {some}: none divides {batch:,}.", some=some, batch=problem.batch)
    return text


def _rule_texts(problem: Problem, conflict: Conflict) -> list[str]:
    asked = {wish.name for wish in conflict.wishes}
    return [RULES[name].in_short(problem, asked) for name in conflict.rules]
