"""From a row to plans: how many stages each chip type serves, and in which order the types stand along the pipeline."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from cpsolver.cost.shard import Ints
from cpsolver.problem.problem import Problem
from cpsolver.search.filters import most_stages, stage_step


def mixes(problem: Problem, stage_devices: int, pp: int, mixed: bool = True) -> Ints:
    """Every distribution of the stages over the chip types: shape (n, chip types), rows sum to pp.

    Where `mixed` is false one type serves all stages: see filters.may_mix.
    """
    prefixes: list[tuple[int, ...]] = [()]
    for known in range(1, len(problem.supplies) + 1):
        tables = (next_counts(problem, stage_devices, pp, prefix, mixed)[0] for prefix in prefixes)
        prefixes = [tuple(least[:known]) for table in tables for least in table.tolist()]
    return np.array(prefixes, dtype=np.int64).reshape(len(prefixes), len(problem.supplies))


def next_counts(
    problem: Problem, stage_devices: int, pp: int, prefix: tuple[int, ...], mixed: bool = True
) -> tuple[Ints, Ints]:
    """How many stages the next chip type may serve, when `prefix` has the stages of the types before it.

    Two tables with a row for each such number: the least and the most stages of every type, shape (n, types) each,
    equal for known types. The last type takes what is left. Keeps the rules chip_count and whole_nodes and the pins on
    `stages`; where `mixed` is false, also that one type serves all stages (rule launcher).
    """
    choices = _choices(problem, stage_devices, pp, mixed)
    later = choices[len(prefix) + 1 :]
    room, needed = (sum(limit(counts, default=0) for counts in later) for limit in (max, min))
    left = pp - sum(prefix)
    pairs = []
    for count in choices[len(prefix)]:
        known = (*prefix, count)
        if not left - room <= count <= left - needed or any(not counts for counts in later):
            continue
        after = left - count
        pairs.append((known + (0,) * len(later), known + tuple(min(after, max(counts)) for counts in later)))
    table = np.array(pairs, dtype=np.int64).reshape(len(pairs), 2, len(choices))
    return table[:, 0], table[:, 1]


def _choices(problem: Problem, stage_devices: int, pp: int, mixed: bool) -> list[list[int]]:
    """The numbers of stages that each chip type may serve, whatever the others do."""
    most = most_stages(problem, stage_devices, pp, mixed)
    step = stage_step(problem.node, stage_devices) if mixed else pp
    limits, allows = zip(problem.chip_names, most, strict=True), problem.spec.search.allows
    # pp itself is a multiple of the step: the cluster is whole nodes
    return [[n for n in range(0, limit + 1, step) if allows("stages", n, name)] for name, limit in limits]


def arrangements(problem: Problem, mix: Ints) -> Ints:
    """Every order of the chip types used in a mix, as chip indices by position: shape (n, pp).

    Each type serves one block of neighbouring stages. Keeps the pins and bans on `chip_order` and `stage_chips`.
    """
    used = [index for index, count in enumerate(mix.tolist()) if count]
    orders = (order for order in permutations(used) if chips_allowed(problem, order, mix))
    stages = [[index for index in order for _ in range(int(mix[index]))] for order in orders]
    return np.array(stages, dtype=np.int64).reshape(len(stages), int(mix.sum()))


def chips_allowed(problem: Problem, order: tuple[int, ...], mix: Ints) -> bool:
    """The pins and bans on which chips stand where, `order` being chip indices."""
    names = problem.chip_names
    blocks = tuple(names[index] for index in order)
    stages = tuple(names[index] for index in order for _ in range(int(mix[index])))
    pin, forbid = problem.spec.search.pin, problem.spec.search.forbid
    # Chips that the pinned order does not name may not be used.
    if pin.chip_order is not None and blocks != tuple(name for name in pin.chip_order if name in blocks):
        return False
    if pin.stage_chips is not None and stages != pin.stage_chips:
        return False
    return blocks != forbid.chip_order and stages != forbid.stage_chips
