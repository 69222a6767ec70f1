"""A first plan and an exact lower bound on the slowest stage, from the same integers that the solver gets.

`fill.py` finds the best plan for a choice of options that leaves every stage to itself: always where stages choose on
their own, or layers are of several kinds, and otherwise where a guess is not good enough and there are few choices.

The guess: all stages of a chip type share an option. Under a limit on the slowest stage every stage hosts some most
layers for each option. The smallest limit at which the best options host the model is a lower bound; filling the stages
at that limit, and at some above it, gives plans that are good enough to narrow the solver's search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod

import numpy as np

from cpsolver.cost.shard import Ints
from cpsolver.search.compile.data import PlanData
from cpsolver.search.compile.fill import NEVER, Filler, Options

_FINENESS = 22  # bits to which the smallest limit is found
_CHOICES = 128  # choices of a shared option by chip type that are looked at one by one
_STRETCH = (1.0, 1.0005, 1.002, 1.006, 1.015, 1.04, 1.1)


@dataclass(frozen=True)
class Start:
    """`slowest`: no slowest stage is faster, and `lower`: no objective (vpp times the step time) is smaller, both in
    integer steps. `objective`, `chunk` layers and `option` index by stage of the best plan found here.
    """

    slowest: int
    lower: int
    objective: int
    chunk: tuple[int, ...]
    option: tuple[int, ...]


@dataclass(frozen=True)
class _Group:
    """The stages of a chip type, which share an option."""

    places: Ints
    fits: Ints  # (stages, options)
    repeats: Ints
    again: Ints
    extra: Ints
    option: Ints  # its index among all options of the chip type


def start(plan: PlanData, layers: int, by_stage: bool) -> Start | None:
    """None where no limit is enough: the plan cannot host the model. A launcher's split of layers is not looked at."""
    if plan.needed < plan.pp:
        return None
    if by_stage or plan.kinds is not None:
        return _start_exact(plan, by_stage, None)
    tries = (_start_one_way(plan, list(_groups(plan, picks)), plan.needed) for picks in _ways(plan))
    found = [way for way in tries if way is not None]
    if not found:
        return None
    best = min(found, key=lambda way: way.objective)
    best = replace(best, slowest=min(way.slowest for way in found), lower=min(way.lower for way in found))
    if best.lower >= best.objective or prod(map(len, plan.options.values())) > _CHOICES:
        return best
    return _start_exact(plan, by_stage, best)


def _ways(plan: PlanData) -> Iterator[dict[int, list[int]]]:
    """The options of each chip type that may stand together: one set for every way to recompute that all types know."""
    for way in sorted({way for ways in plan.ways.values() for way in ways}):
        picks = {chip: [i for i, its in enumerate(ways) if its == way] for chip, ways in plan.ways.items()}
        if all(picks.values()):
            yield picks


def _start_one_way(plan: PlanData, groups: list[_Group], needed: int) -> Start | None:
    high = plan.longest_stage
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
    tries = [_fill(plan, groups, int(high * stretch), needed) for stretch in _STRETCH]
    objective, chunk, option = min(tries, key=lambda found: found[0])
    lower = _lower(plan, groups, low, top, needed)
    for group in groups:
        option[group.places] = group.option[option[group.places]]
    return Start(low, lower, objective, tuple(chunk.tolist()), tuple(option.tolist()))


def _start_exact(plan: PlanData, by_stage: bool, best: Start | None) -> Start | None:
    """The best plan: the best split for every choice of options that leaves each stage to itself.

    The best plan so far spares work, and lets the bound of a choice be no more than its objective: the least bound of
    all choices is one on any plan all the same.
    """
    filler = Filler(plan)
    slowest, lower = [], []
    for choice in _choices(plan, by_stage):
        known = NEVER if best is None else best.objective
        split = filler.best(choice, known)
        if split is None:
            continue
        slowest.append(split.slowest)
        lower.append(split.lower)
        if split.objective < known:
            best = Start(0, 0, split.objective, tuple(split.chunk.tolist()), tuple(split.option.tolist()))
    return None if best is None else replace(best, slowest=min(slowest), lower=min(lower))


def _choices(plan: PlanData, by_stage: bool) -> Iterator[tuple[Options, ...]]:
    """For each stage the options it may have: all of its chip type's, or one that the whole type shares."""
    for way in _ways(plan):
        if by_stage:
            yield tuple(tuple(way[chip]) for chip in plan.chips)
            continue
        for picks in product(*way.values()):
            chosen = dict(zip(way, picks, strict=True))
            yield tuple((chosen[chip],) for chip in plan.chips)


def _lower(plan: PlanData, groups: list[_Group], slowest: int, top: int, needed: int) -> int:
    """No objective is smaller. The limits on the slowest stage are cut into ranges: within one the stages host no more
    than its end allows, which says which options still host the model, and what they recompute at least.
    """
    edges = [*(int(slowest * stretch) for stretch in _STRETCH), max(top, slowest)]
    least_sum = _least_sum(plan, needed)
    return min(
        (plan.microbatches * plan.vpp - 1) * begin + least_sum + _least_extra(plan, groups, end, needed)
        for begin, end in pairwise(edges)
    )


def _least_extra(plan: PlanData, groups: list[_Group], limit: int, needed: int) -> int:
    """The least recomputation and time after the pipeline (times vpp) when no stage exceeds the limit."""
    hosted = [_hosted(plan, group, limit) for group in groups]
    totals = [_totals(table) for table in hosted]
    spare = sum(int(total.max()) for total in totals) - needed
    extra, after = 0, 0
    for group, table, total in zip(groups, hosted, totals, strict=True):
        least = int(total.max()) - spare  # what the other groups cannot take
        options = np.nonzero((total >= least) & (total > 0))[0]
        chunk = np.maximum(1, table[:, options] - (total[options] - max(least, len(group.places))))
        twice = np.minimum(group.repeats[options], chunk) * plan.repeat[group.places][:, None]
        modules = group.again[options] * chunk
        extra += int((twice + modules).sum(axis=0).min())
        follows = plan.after_layer[group.places] * chunk.min(axis=1) + plan.after_fixed[group.places]
        after = max(after, int(follows.max()))
    return extra + plan.vpp * after


def _least_sum(plan: PlanData, needed: int) -> int:
    """The least sum of stage times: one layer in every chunk, the rest where a layer is fastest, nothing recomputed."""
    room = np.zeros(plan.pp, dtype=np.int64)
    for chip in plan.options:
        room[plan.places(chip)] = plan.fits[chip].max(axis=1) - 1
    order = np.argsort(plan.layer, kind="stable")
    before = np.cumsum(room[order]) - room[order]
    more = np.clip(needed - plan.pp - before, 0, room[order])
    return int(plan.fixed.sum() + plan.layer.sum() + (plan.layer[order] * more).sum())


def _groups(plan: PlanData, picks: dict[int, list[int]]) -> Iterator[_Group]:
    for chip, some in picks.items():
        repeats = np.array([plan.options[chip][index].repeats for index in some])
        again, extra, option = plan.again[chip][some], plan.extra[chip][some], np.array(some)
        yield _Group(np.array(plan.places(chip)), plan.fits[chip][:, some], repeats, again, extra, option)


def _hosted(plan: PlanData, group: _Group, limit: int) -> Ints:
    """Most layers in a chunk for each stage and option within the limit, shape (stages, options)."""
    at = group.places[:, None]
    layer, repeat = plan.layer[at] + group.again[None, :], plan.repeat[at]
    time = limit - plan.fixed[at] - group.extra[None, :]
    repeats = group.repeats[None, :]
    all_twice = time // (layer + repeat)
    some_twice = (time - repeat * repeats) // layer
    most = np.where(all_twice < repeats, all_twice, some_twice)
    return np.minimum(most, group.fits)


def _totals(hosted: Ints) -> Ints:
    """Layers in all by option; -1 where some stage hosts none."""
    return np.where(hosted.min(axis=0) >= 1, hosted.sum(axis=0), -1)


def _most(plan: PlanData, groups: list[_Group], limit: int) -> int:
    totals = [int(_totals(_hosted(plan, group, limit)).max()) for group in groups]
    return -1 if min(totals) < 0 else sum(totals)


def _fill(plan: PlanData, groups: list[_Group], limit: int, needed: int) -> tuple[int, Ints, Ints]:
    """A plan within the limit: least recomputation that still hosts the model, surplus taken from the slowest chips."""
    hosted = [_hosted(plan, group, limit) for group in groups]
    totals = [_totals(table) for table in hosted]
    chosen = [int(total.argmax()) for total in totals]
    spare = sum(int(total[pick]) for total, pick in zip(totals, chosen, strict=True)) - needed
    for index, group in enumerate(groups):
        enough = np.nonzero((totals[index] >= totals[index][chosen[index]] - spare) & (totals[index] > 0))[0]
        cost = group.repeats[enough] * plan.repeat[group.places[0]]
        cost = cost + group.again[enough] * plan.longest
        pick = int(enough[cost.argmin()])
        spare -= int(totals[index][chosen[index]] - totals[index][pick])
        chosen[index] = pick
    chunk, option = np.zeros(plan.pp, dtype=np.int64), np.zeros(plan.pp, dtype=np.int64)
    for group, table, pick in zip(groups, hosted, chosen, strict=True):
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
        twice = np.minimum(group.repeats[pick], held) * plan.repeat[group.places]
        extra[group.places] = twice + group.again[pick] * held + group.extra[pick]
    stages = plan.layer * chunk + extra + plan.fixed
    after = int((plan.after_layer * chunk + plan.after_fixed).max())
    slowest = int(stages.max())
    return (plan.microbatches * plan.vpp - 1) * slowest + int(stages.sum()) + plan.vpp * after
