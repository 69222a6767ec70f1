"""A quick split of one plan where a chip type's stages share an option: the guessing half of a warm start.

Under a limit on the slowest stage every stage holds some most layers for each option. The smallest limit at which the
best options hold the model is a lower bound; filling the stages at that limit, and at some above it, gives plans that
are good enough to narrow the solver's search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cpsolver.cost.shard import Ints
from cpsolver.search.compile.data import PlanData
from cpsolver.search.compile.exact import Split

_FINENESS = 22
"""Bits to which the smallest limit is found."""
_STRETCHES = (1.0, 1.0005, 1.002, 1.006, 1.015, 1.04, 1.1)
"""Limits on the slowest stage at which the stages are filled, relative to the smallest."""


@dataclass(frozen=True)
class _Group:
    """The stages of a chip type, which share an option: (options,), `fits` (stages, options).

    `option`: the index among all options of the chip type; the rest as in ChipOptions.
    """

    places: Ints
    fits: Ints
    recomputed: Ints
    layer_steps: Ints
    steps: Ints
    option: Ints


def guessed(plan: PlanData, choices: dict[int, list[int]]) -> Split | None:
    """A split with one of the choices of options of each chip type; None where it cannot hold the model.

    Layers of several kinds and a launcher's split of layers are not looked at.
    """
    groups, needed, high = list(_groups(plan, choices)), plan.needed, plan.longest_stage
    top = high
    if _most(plan, groups, top) < needed:
        return None
    low = int(plan.fixed.min())
    while low < high - (high >> _FINENESS):
        middle = (low + high) // 2
        if _most(plan, groups, middle) >= needed:
            high = middle
        else:
            low = middle + 1
    tries = [_fill(plan, groups, int(high * stretch), needed) for stretch in _STRETCHES]
    objective, chunk, option = min(tries, key=lambda split: split[0])
    lower = _lower(plan, groups, low, top, needed)
    for group in groups:
        option[group.places] = group.option[option[group.places]]
    return Split(objective, low, lower, chunk, option)


def _lower(plan: PlanData, groups: list[_Group], slowest: int, top: int, needed: int) -> int:
    """No objective is smaller. The limits on the slowest stage are cut into ranges: within one the stages hold no more
    than its end allows, which says which options still hold the model, and what they recompute at least.
    """
    edges = [*(int(slowest * stretch) for stretch in _STRETCHES), max(top, slowest)]
    least_sum = _least_sum(plan, needed)
    return min(
        (plan.microbatches * plan.vpp - 1) * begin + least_sum + _least_added(plan, groups, end, needed)
        for begin, end in pairwise(edges)
    )


def _least_added(plan: PlanData, groups: list[_Group], limit: int, needed: int) -> int:
    """The least recomputation and time after the pipeline (times vpp) when no stage exceeds the limit."""
    held = [_most_layers(plan, group, limit) for group in groups]
    totals = [_totals(table) for table in held]
    spare = sum(int(total.max()) for total in totals) - needed
    extra, after = 0, 0
    for group, table, total in zip(groups, held, totals, strict=True):
        least = int(total.max()) - spare  # what the other groups cannot take
        options = np.nonzero((total >= least) & (total > 0))[0]
        chunk = np.maximum(1, table[:, options] - (total[options] - max(least, len(group.places))))
        recomputed = np.minimum(group.recomputed[options], chunk) * plan.recompute[group.places][:, None]
        modules = group.layer_steps[options] * chunk
        extra += int((recomputed + modules).sum(axis=0).min())
        follows = plan.after_layer[group.places] * chunk.min(axis=1) + plan.after_fixed[group.places]
        after = max(after, int(follows.max()))
    return extra + plan.vpp * after


def _least_sum(plan: PlanData, needed: int) -> int:
    """The least sum of stage times: one layer in every chunk, the rest where a layer is fastest, nothing recomputed."""
    room = np.zeros(plan.pp, dtype=np.int64)
    for own in plan.by_chip.values():
        room[list(own.places)] = own.most.max(axis=1) - 1
    order = np.argsort(plan.layer, kind="stable")
    faster = np.cumsum(room[order]) - room[order]
    more = np.clip(needed - plan.pp - faster, 0, room[order])
    return int(plan.fixed.sum() + plan.layer.sum() + (plan.layer[order] * more).sum())


def _groups(plan: PlanData, choices: dict[int, list[int]]) -> Iterator[_Group]:
    for chip, indices in choices.items():
        own = plan.by_chip[chip].take(indices)
        yield _Group(np.array(own.places), own.most, own.recomputed, own.layer_steps, own.steps, np.array(indices))


def _most_layers(plan: PlanData, group: _Group, limit: int) -> Ints:
    """Most layers in a chunk for each stage and option within the limit, shape (stages, options)."""
    at = group.places[:, None]
    layer, recompute = plan.layer[at] + group.layer_steps[None, :], plan.recompute[at]
    time = limit - plan.fixed[at] - group.steps[None, :]
    recomputed = group.recomputed[None, :]
    all_recomputed = time // (layer + recompute)
    some_recomputed = (time - recompute * recomputed) // layer
    most = np.where(all_recomputed < recomputed, all_recomputed, some_recomputed)
    return np.minimum(most, group.fits)


def _totals(held: Ints) -> Ints:
    """Layers in all by option; -1 where some stage holds none."""
    return np.where(held.min(axis=0) >= 1, held.sum(axis=0), -1)


def _most(plan: PlanData, groups: list[_Group], limit: int) -> int:
    totals = [int(_totals(_most_layers(plan, group, limit)).max()) for group in groups]
    return -1 if min(totals) < 0 else sum(totals)


def _fill(plan: PlanData, groups: list[_Group], limit: int, needed: int) -> tuple[int, Ints, Ints]:
    """A plan within the limit: least recomputation that still holds the model, surplus taken from the slowest chips."""
    held = [_most_layers(plan, group, limit) for group in groups]
    totals = [_totals(table) for table in held]
    chosen = [int(total.argmax()) for total in totals]
    spare = sum(int(total[pick]) for total, pick in zip(totals, chosen, strict=True)) - needed
    for index, group in enumerate(groups):
        enough = np.nonzero((totals[index] >= totals[index][chosen[index]] - spare) & (totals[index] > 0))[0]
        cost = group.recomputed[enough] * plan.recompute[group.places[0]]
        cost = cost + group.layer_steps[enough] * plan.longest
        pick = int(enough[cost.argmin()])
        spare -= int(totals[index][chosen[index]] - totals[index][pick])
        chosen[index] = pick
    chunk, option = np.zeros(plan.pp, dtype=np.int64), np.zeros(plan.pp, dtype=np.int64)
    for group, table, pick in zip(groups, held, chosen, strict=True):
        chunk[group.places], option[group.places] = table[:, pick], pick
    for place in sorted(range(plan.pp), key=lambda p: (-int(plan.layer[p]), p)):
        taken = min(spare, int(chunk[place]) - 1)
        chunk[place] -= taken
        spare -= taken
    return _objective(plan, groups, chunk, option), chunk, option


def _objective(plan: PlanData, groups: list[_Group], chunk: Ints, option: Ints) -> int:
    extra = np.zeros(plan.pp, dtype=np.int64)
    for group in groups:
        pick, held = option[group.places], chunk[group.places]
        recomputed = np.minimum(group.recomputed[pick], held) * plan.recompute[group.places]
        extra[group.places] = recomputed + group.layer_steps[pick] * held + group.steps[pick]
    stages = plan.layer * chunk + extra + plan.fixed
    after = int((plan.after_layer * chunk + plan.after_fixed).max())
    slowest = int(stages.max())
    return (plan.microbatches * plan.vpp - 1) * slowest + int(stages.sum()) + plan.vpp * after
