"""From a row to plans: how many stages each chip type serves, and in which order the types stand along the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from cpsolver.cost.shard import Ints
from cpsolver.decisions import ALL_CHIPS
from cpsolver.problem import Problem
from cpsolver.space import most_stages, stage_step


def mixes(problem: Problem, stage_devices: int, pp: int) -> Ints:
    """Every way to share the stages among the chip types: shape (n, chip types), rows sum to pp.

    Keeps the rules chip_count and whole_nodes and the pins on `stages`.
    """
    most = most_stages(problem, stage_devices, pp)
    step = stage_step(problem.node, stage_devices)
    choices = [_counts(problem, name, limit, step, pp) for name, limit in zip(problem.chip_names, most, strict=True)]
    table = np.zeros((1, 0), dtype=np.int64)
    for index, counts in enumerate(choices):
        room = sum(max(later, default=0) for later in choices[index + 1 :])
        table = np.concatenate([np.repeat(table, len(counts), axis=0), np.tile(counts, len(table))[:, None]], axis=1)
        used = table.sum(axis=1)
        table = table[(used <= pp) & (used + room >= pp)]
    whole = (table % step == 0).all(axis=1) | (table.max(axis=1, initial=0) == pp)
    return np.asarray(table[(table.sum(axis=1) == pp) & whole])


def _counts(problem: Problem, chip: str, most: int, step: int, pp: int) -> list[int]:
    values = sorted({*range(0, most + 1, step), *([pp] if most == pp else [])})
    pin, forbid = problem.spec.search.pin.stages or {}, problem.spec.search.forbid.stages or {}
    wanted = pin.get(chip, pin.get(ALL_CHIPS))
    banned = (*forbid.get(chip, ()), *forbid.get(ALL_CHIPS, ()))
    return [value for value in values if (wanted is None or value in wanted) and value not in banned]


def arrangements(problem: Problem, mix: Ints) -> Ints:
    """Every order of the chip types used in a mix, as chip indices by position: shape (n, pp).

    Each type serves one block of neighbouring stages. Keeps the pins and bans on `chip_order` and `stage_chips`.
    """
    used = [index for index, count in enumerate(mix.tolist()) if count]
    found = [
        [index for index in order for _ in range(int(mix[index]))]
        for order in permutations(used)
        if _chips_allowed(problem, order, mix)
    ]
    return np.array(found, dtype=np.int64).reshape(len(found), int(mix.sum()))


def _chips_allowed(problem: Problem, order: tuple[int, ...], mix: Ints) -> bool:
    names = problem.chip_names
    blocks = tuple(names[index] for index in order)
    stages = tuple(names[index] for index in order for _ in range(int(mix[index])))
    pin, forbid = problem.spec.search.pin, problem.spec.search.forbid
    if pin.chip_order is not None and not _in_order(blocks, pin.chip_order):
        return False
    if pin.stage_chips is not None and stages != pin.stage_chips:
        return False
    return blocks != forbid.chip_order and stages != forbid.stage_chips


def _in_order(blocks: tuple[str, ...], order: tuple[str, ...]) -> bool:
    """Whether the chips used stand in that order (chips that it does not name may not be used)."""
    return blocks == tuple(name for name in order if name in blocks)


def chip_blocks(stage_chips: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """(chip, number of stages) of each run of neighbouring stages on the same chip type."""
    start = 0
    for index in range(1, len(stage_chips) + 1):
        if index == len(stage_chips) or stage_chips[index] != stage_chips[start]:
            yield stage_chips[start], index - start
            start = index
