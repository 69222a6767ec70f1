"""What holds a step up: chains of passes through a schedule of which each waits for the one before.

No step is shorter than any such chain, whatever its passes take; the longest of all chains is the step. Of a schedule's
many a few are the longest where stages are about as long as each other: those found here, by running the schedule
(split_events.py) with stages of several kinds, each in turn a little longer than the others, and going back from its
last pass along what each waited for.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cpsolver.cost.pass_graph import longest_chains
from cpsolver.cost.shard import Bools, Floats, Ints
from cpsolver.cost.split_events import SplitSchedule, chunks_of

SETTLED, PERIOD = 6, 6
"""From so many times pp microbatches on each `PERIOD` of them makes a step as much longer as the last, within 0.2 %."""
_SETTLED = 3
"""The same for chains of the runs here: those that do not repeat themselves from there on are left out."""
_PASSES = ((1, 1, 1), (1, 1.3, 0.8), (1.15, 1, 0.85), (1.35, 1.03, 1), (1, 2, 1), (1, 4, 1), (1.8, 1.05, 1))
"""Seconds of F, B and W of a chunk with which schedules are run: W is half of a backward pass or less, and F may be run
again with it."""
_LONGER, _SHORTER = 1.15, 0.67
"""So many times as long as the others each stage is in turn."""
_FROM_ON, _LAST, _FIRST, _UP_TO = 1.2, 1.1, 1.25, (1.5, 2.0)
"""So many times as long are stages from one on, as with a layer more, the last of them, the first beside them; and all
behind the first up to one."""
_NEIGHBOURS = (2, 3)
"""So many neighbours are longer than the others."""
_STAGES = 16
"""Of longer pipelines so many stages, evenly apart, take their turn in all that."""
_NEAR = 4e-3
"""Chains are left out that are longer than others by no more than that share in all runs."""
_APART = 1e-6
"""What passes of the runs differ by at most, as a share."""
_HEADS = ((1.0, 1.4), (1.0, 2.0), (0.7, 1.3), (0.4, 1.6))
"""So many times as long as the others are the first chunk and the last one, which has the head: of a V both the first
stage's."""
_WITH_HEAD = ((_FROM_ON, _HEADS[0]), (2.0, (0.8, 2.6)), (2.0, (1.0, 4.0)), (1.5, (0.5, 1.9)))
"""So many times as long is a stage, or are all from it on, beside such a first one: as with a layer more of few."""


@lru_cache(maxsize=256)
def critical_paths(schedule: SplitSchedule, pp: int, microbatches: int, joins: bool) -> Ints:
    """Chains that may hold a step of a schedule up: F, B and W of every stage's chunks, (chains, pp, chunks, 3).

    `joins`: a step is from the first pass of all to the last, not from each device's own first.
    """
    times = max(0, (microbatches - _SETTLED * pp) // PERIOD)
    few, runs = microbatches - PERIOD * times, _runs(pp, chunks_of(schedule))
    found = _found(schedule, pp, few, joins)[0]
    if times:
        period, repeats = _period(schedule, pp, few, joins)
        found = np.where(repeats[:, None, None, None], found + times * period, 0)
    seconds = runs.reshape(len(runs), -1) @ found.reshape(len(found), -1).T
    alike = min(pp, _STAGES) * len(_PASSES)  # runs before those with all stages alike: in each a stage is longer
    return np.asarray(found[_of_use(seconds, range(alike, alike + len(_PASSES)))])


def critical_path(schedule: SplitSchedule, microbatches: int, joins: bool, seconds: Floats) -> Ints | None:
    """The longest chain of one plan's passes, (pp, chunks, 3), of which `seconds` has how long they take.

    None: it is not known, for the schedule does not repeat itself after so few microbatches as are run.
    """
    times = max(0, (microbatches - SETTLED * len(seconds)) // PERIOD)
    few = microbatches - PERIOD * times
    counts = [few + count * PERIOD for count in range(min(times, 2) + 1)]
    found: list[Ints] = [longest_chains(schedule, count, seconds[None], joins)[0] for count in counts]
    if times < len(counts):
        return found[-1]
    first, once, twice = found
    repeats = bool((twice - once == once - first).all())
    return np.asarray(first + times * (once - first)) if repeats else None


def _of_use(seconds: Floats, alike: range) -> list[int]:
    """Chains of which in each run one is almost the longest, and in those with `alike` stages the longest.

    `seconds`: of chains in runs, (runs, chains).
    """
    longest, kept = seconds.max(axis=1), list(dict.fromkeys(seconds[list(alike)].argmax(axis=1).tolist()))
    known = seconds[:, kept].max(axis=1)
    while (known < longest * (1 - _NEAR)).any():
        kept.append(int(seconds[(known / longest).argmin()].argmax()))
        known = np.maximum(known, seconds[:, kept[-1]])
    return kept


def _with_head(shape: Floats, ends: tuple[float, float]) -> Floats:
    """A V with other first and last chunks."""
    found = shape.copy()
    found[0] *= ends
    return found


@lru_cache(maxsize=256)
def _found(schedule: SplitSchedule, pp: int, microbatches: int, joins: bool) -> tuple[Ints, Ints]:
    """The longest chains of all runs, and of each the first run that has it."""
    runs = _runs(pp, chunks_of(schedule))
    of_runs = longest_chains(schedule, microbatches, runs, joins)
    found, first = np.unique(of_runs.reshape(len(runs), -1), axis=0, return_index=True)
    return found.reshape(-1, *runs.shape[1:]), first


@lru_cache(maxsize=256)
def _period(schedule: SplitSchedule, pp: int, microbatches: int, joins: bool) -> tuple[Ints, Bools]:
    """By how much `PERIOD` microbatches more make each of these chains longer, and whether as many again do so too."""
    found, first = _found(schedule, pp, microbatches, joins)
    runs = _runs(pp, chunks_of(schedule))[first]
    once, twice = (longest_chains(schedule, microbatches + count * PERIOD, runs, joins) for count in (1, 2))
    return once - found, (twice - once == once - found).all(axis=(1, 2, 3))


def _runs(pp: int, chunks: int) -> Floats:
    """Seconds of the passes of every run: (runs, pp, chunks, 3).

    First come those with a longer stage, for each in turn those of all kinds, then those with all stages alike.
    """
    kinds, stages = np.array(_PASSES)[:, None, None], np.arange(pp)
    some = np.unique(np.linspace(0, pp - 1, min(pp, _STAGES)).round())
    inner, further = some[1:-1], some[1:]
    shapes = [np.where(stages == stage, _LONGER, 1.0) for stage in some]
    shapes += [np.ones(pp), *(np.where(stages == stage, _SHORTER, 1.0) for stage in some)]
    from_on = [np.where(stages >= stage, _FROM_ON, 1.0) for stage in further]
    shapes += [*from_on[:-1], *(np.where(stages == pp - 1, _LAST, longer) for longer in from_on[:-1])]
    shapes += [np.where(stages == 0, _FIRST, longer) for longer in from_on[:-1]]
    for longer in _UP_TO:
        shapes += [np.where((stages > 0) & (stages <= stage), longer, 1.0) for stage in inner if stage > 1]
        shapes += [np.where(stages == stage, longer, 1.0) for stage in further]
    for count in _NEIGHBOURS:
        shapes += [np.where((stages >= stage) & (stages < stage + count), _UP_TO[0], 1.0) for stage in further]
    by_chunk = [np.repeat(shape[:, None], chunks, axis=1) for shape in shapes]
    if chunks > 1:
        by_chunk += [_with_head(np.ones((pp, chunks)), head) for head in _HEADS]
        for times, head in _WITH_HEAD:
            shapes = [np.where(stages >= stage, times, 1.0) for stage in further]
            shapes += [np.where(stages == stage, times, 1.0) for stage in further]
            for count in _NEIGHBOURS if times == _UP_TO[0] else ():
                shapes += [np.where((stages >= stage) & (stages < stage + count), times, 1.0) for stage in further[:-1]]
            by_chunk += [_with_head(np.repeat(shape[:, None], chunks, axis=1), head) for shape in shapes]
    # No two chains take as long: of those that do one run would find this one, another that.
    apart = np.random.default_rng(0).uniform(1, 1 + _APART, (pp, chunks, 3))
    return np.concatenate([shape[:, :, None] * kinds for shape in by_chunk]) * apart
