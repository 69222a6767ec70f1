"""Which rules, pins and bans together leave no row: a smallest set of them, in words with numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cpsolver.cost.shard import Bools, Candidates, Ints
from cpsolver.explain.wishes import Wish, only_wish, wishes
from cpsolver.problem import Problem
from cpsolver.rules import RULES
from cpsolver.space import LAYOUT_FILTERS, ROW_FILTERS, all_layouts, expand_rows


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
    tp, pp = all_layouts(problem.num_gpus)
    dp = problem.num_gpus // (tp * pp)
    layouts = _layout_masks(problem, tp, pp, dp)
    rules = np.logical_and.reduce([mask for name, mask in layouts.items() if isinstance(name, str)])
    rows = expand_rows(problem, tp[rules], pp[rules], dp[rules])
    wished: Masks = {name: mask[rules] for name, mask in layouts.items() if not isinstance(name, str)}
    of_row = _index_of(rows, tp[rules], pp[rules])
    inner: Masks = {name: mask[of_row] for name, mask in wished.items()}
    for key, mask in _row_masks(problem, rows).items():
        inner[key] = inner[key] & mask if key in inner else mask
    keys = list(dict.fromkeys([*wished, *(name for name in inner if not isinstance(name, str)), *layouts, *inner]))
    bits = {key: index for index, key in enumerate(keys)}
    outer: Masks = {name: mask[~rules] for name, mask in layouts.items()}
    core = _smallest_cover(_broken(outer, bits) | _broken(inner, bits))
    if core is None:
        return None
    named = [keys[index] for index in core]
    chosen = tuple(key for key in named if not isinstance(key, str))
    names = tuple(key for key in named if isinstance(key, str))
    others = [layouts[key] for key in named if key in layouts and key != "batch"]
    left = np.logical_and.reduce(others) if others else np.ones(len(dp), dtype=np.bool_)
    return Conflict(chosen, names, tuple(np.unique(dp[left]).tolist()) if "batch" in names else ())


def _layout_masks(problem: Problem, tp: Ints, pp: Ints, dp: Ints) -> Masks:
    masks: Masks = {name: keep(problem, tp, pp, dp) for name, keep in LAYOUT_FILTERS.items() if name != "pin"}
    for wish in wishes(problem):
        kept = LAYOUT_FILTERS["pin"](only_wish(problem, wish), tp, pp, dp)
        if not kept.all():
            masks[wish] = kept
    return masks


def _row_masks(problem: Problem, rows: Candidates) -> Masks:
    masks: Masks = {name: keep(problem, rows) for name, keep in ROW_FILTERS.items() if name != "pin"}
    for wish in wishes(problem):
        kept = ROW_FILTERS["pin"](only_wish(problem, wish), rows)
        if not kept.all():
            masks[wish] = kept
    return masks


def _index_of(rows: Candidates, tp: Ints, pp: Ints) -> Ints:
    """For each row the index of its layout."""
    places = {pair: index for index, pair in enumerate(zip(tp.tolist(), pp.tolist(), strict=True))}
    found = [places[pair] for pair in zip(rows.tp.tolist(), rows.pp.tolist(), strict=True)]
    return np.array(found, dtype=np.int64)


def _broken(masks: Masks, bits: dict[str | Wish, int]) -> set[frozenset[int]]:
    """The distinct sets of requirements that rows break, one set a row."""
    codes = sum((~mask).astype(np.int64) << bits[key] for key, mask in masks.items())
    found = np.unique(np.asarray(codes)).tolist()
    return {frozenset(bit for bit in bits.values() if code >> bit & 1) for code in found}


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
    parts = [str(wish) for wish in conflict.wishes] + [_rule_text(problem, name) for name in conflict.rules]
    of = f"tp x pp x dp = {problem.num_gpus:,} GPUs"
    if len(parts) == 1 and conflict.wishes:
        return f"{parts[0]} leaves no plan: {of}, and mbs x dp must divide the global batch of {problem.batch:,}."
    if len(parts) == 1:
        return f"No layout is legal: {parts[0]}, and none does with {of}."
    text = f"These cannot all hold with {of}: {'; '.join(parts)}."
    if conflict.dps and all(problem.batch % dp for dp in conflict.dps):
        some = ", ".join(map(str, conflict.dps[:8])) + (", …" if len(conflict.dps) > 8 else "")
        text += f" dp could only be one of {some}: none divides {problem.batch:,}."
    return text


def _rule_text(problem: Problem, name: str) -> str:
    model, layers = problem.model, problem.model.layers
    limits = ", ".join(f"{supply.name} {supply.limit:,}" for supply in problem.supplies)
    texts = {
        "heads": f"tp must divide the {model.heads} attention heads",
        "kv_groups": f"tp and the {model.kv_heads} key-value heads: one must divide the other",
        "feed_forward": f"tp must divide the feed-forward width {model.ffn:,}",
        "tensor_nodes": f"tp must divide the {problem.node} GPUs of a node, or be a multiple of them",
        "pipeline_depth": f"pp may be at most the {layers} layers",
        "batch": f"mbs x dp must divide the global batch {problem.batch:,}",
        "chip_count": f"the stages must fit the chip limits ({limits}), whole nodes of {problem.node} where chips mix",
        "even_chunks": f"vpp must divide the {layers} layers",
        "interleaving": "with vpp > 1 pp must be > 1 and divide the microbatches (global batch / mbs / dp)",
        "sequence_parallel": f"sequence parallelism needs tp > 1, and tp must divide {problem.sequence:,} tokens",
        "distributed_optimizer": "the distributed optimizer needs dp > 1",
        "layer_split": f"layer_split is even: pp x vpp must divide the {layers} layers",
    }
    return texts.get(name) or f"rule {name}: {(RULES[name].__doc__ or '').strip()}" if name in RULES else name
