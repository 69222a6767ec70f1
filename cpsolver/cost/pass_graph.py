"""A schedule with split backward passes as a graph of turns, so that many steps of it are run at once.

The same events as `split_events.run` has, for the seconds of many plans together: what turns wait for is known
beforehand, and levels of them are gone through in which none waits for another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cpsolver.cost.shard import Floats, Ints
from cpsolver.cost.split_events import SplitSchedule, beside_of, chunks_of, turns, waited_for

KINDS = ("F", "B", "W")
_AT_ONCE = 4_000_000
"""Turns of all plans that are run together, at most: so they stay below some tens of megabytes."""


@dataclass(frozen=True)
class PassGraph:
    """Turns of all devices and what they wait for.

    Attributes:
        device: of every turn, and of one more that takes nothing.
        passes: F, B and W of every turn by chunk, (turns, chunks, 3).
        waits: turns that each waits for, (turns, most); filled up with the one that takes nothing.
        levels: turns in an order in which none waits for one in a later level.
        last: every device's last turn.
    """

    device: Ints
    passes: Ints
    waits: Ints
    levels: tuple[Ints, ...]
    last: Ints

    def steps_s(self, seconds: Floats, joins: bool) -> Floats:
        """Seconds of the steps of plans: (plans,).

        Args:
            seconds: of each plan's F, B and W, (plans, pp, chunks, 3).
            joins: a step is from the first pass of all to the last, not the longest of what devices take from their own
                first one on. That begins when the first microbatch's F has passed all devices before it.
        """
        ends = [self._last_ends(part, joins).max(axis=0) for part in self._parts(seconds)]
        return np.concatenate(ends)

    def longest_chains(self, seconds: Floats, joins: bool) -> Ints:
        """Passes of the chain that makes each step as long as it is: (plans, pp, chunks, 3); arguments as `steps_s`."""
        return np.concatenate([self._chains(part, joins) for part in self._parts(seconds)])

    def _parts(self, seconds: Floats) -> list[Floats]:
        count = -(-len(seconds) * len(self.device) // _AT_ONCE)
        return np.array_split(seconds, count)

    def _run(self, seconds: Floats) -> tuple[Floats, NDArray[np.int8]]:
        """When turns end, (turns, plans), and which of `waits` each went on from."""
        plans = len(seconds)
        by_device = np.moveaxis(seconds, 0, -1).reshape(seconds.shape[1], -1, plans)
        passes = self.passes.reshape(len(self.passes), 1, -1)
        ends = np.zeros((len(self.device), plans))
        latest = np.zeros((len(self.device), plans), dtype=np.int8)
        for level in self.levels:
            first, *others = self.waits[level].T
            begin, source = ends[first], np.zeros((len(level), plans), dtype=np.int8)
            for index, other in enumerate(others, 1):
                end = ends[other]
                np.copyto(source, index, where=end > begin)
                np.maximum(begin, end, out=begin)
            latest[level] = source
            ends[level] = begin + (passes[level] @ by_device[self.device[level]])[:, 0]
        return ends, latest

    def _last_ends(self, seconds: Floats, joins: bool, ends: Floats | None = None) -> Floats:
        """When devices are done, from the beginning of all or from their own: (pp, plans)."""
        ends = self._run(seconds)[0] if ends is None else ends
        forward = seconds[:, :, 0, 0]
        return ends[self.last] - (0.0 if joins else (forward.cumsum(axis=1) - forward).T)

    def _chains(self, seconds: Floats, joins: bool) -> Ints:
        (ends, latest), every = self._run(seconds), np.arange(len(seconds))
        found = np.zeros(seconds.shape, dtype=np.int64)
        at = self.last[self._last_ends(seconds, joins, ends).argmax(axis=0)]
        if not joins:
            found[:, :, 0, 0] -= np.arange(len(self.last)) < self.device[at][:, None]
        nothing = len(self.device) - 1
        while (at != nothing).any():
            found[every, self.device[at]] += self.passes[at]
            at = self.waits[at, latest[at, every]]
        return found


def steps_s(schedule: SplitSchedule, microbatches: int, seconds: Floats, joins: bool) -> Floats:
    """Seconds of steps, as `PassGraph.steps_s`; of dualpipe where devices of both halves are told together, see
    `_mirrored`."""
    if schedule == "dualpipe":
        return pass_graph(schedule, 2 * seconds.shape[1], 2 * microbatches).steps_s(_mirrored(seconds), joins)
    return pass_graph(schedule, seconds.shape[1], microbatches).steps_s(seconds, joins)


def longest_chains(schedule: SplitSchedule, microbatches: int, seconds: Floats, joins: bool) -> Ints:
    """The chains that make the same steps as long as they are, as `PassGraph.longest_chains`."""
    if schedule != "dualpipe":
        return pass_graph(schedule, seconds.shape[1], microbatches).longest_chains(seconds, joins)
    graph, half = pass_graph(schedule, 2 * seconds.shape[1], 2 * microbatches), seconds.shape[1]
    found = graph.longest_chains(_mirrored(seconds), joins)
    return np.asarray(found[:, :half] + found[:, half:][:, ::-1, ::-1])


def _mirrored(seconds: Floats) -> Floats:
    """Of all devices of a dualpipe from those of the first half: the others have the same two stages the other way
    round, and half of the microbatches come to them first (plans/folding.py)."""
    return np.concatenate([seconds, seconds[:, ::-1, ::-1]], axis=1)


@lru_cache(maxsize=64)
def pass_graph(schedule: SplitSchedule, pp: int, microbatches: int) -> PassGraph:
    """That of a schedule with so many devices."""
    order = turns(schedule, pp, microbatches)
    named = [(device, turn) for device, own in enumerate(order) for turn in own]
    number = {(device, each): index for index, (device, turn) in enumerate(named) for each in turn}
    chunks = chunks_of(schedule)
    beside = beside_of(pp, chunks, both_ways=schedule == "dualpipe")
    starts = np.cumsum([0, *map(len, order)]).tolist()
    waits = [[number[source] for source in waited_for(*each, beside)] for each in named]
    for index in set(range(len(named))) - set(starts):
        waits[index].append(index - 1)
    levels = _levels(waits, starts)
    passes = np.zeros((len(named) + 1, chunks, len(KINDS)), dtype=np.int64)
    for index, (_, turn) in enumerate(named):
        for kind, chunk, _ in turn:
            passes[index, chunk, KINDS.index(kind)] += 1
    nothing = len(named)
    most = max(map(len, waits))
    padded = np.array([own + [nothing] * (most - len(own)) for own in [*waits, []]])
    device = np.array([*(device for device, _ in named), 0])
    return PassGraph(device, passes, padded, levels, np.array(starts[1:]) - 1)


def _levels(waits: list[list[int]], starts: list[int]) -> tuple[Ints, ...]:
    """Turns by how many others come before them in the longest row."""
    level, following = dict[int, int](), starts[:-1]
    moved = True
    while moved:
        moved = False
        for device, end in enumerate(starts[1:]):
            while following[device] < end and all(each in level for each in waits[following[device]]):
                at = following[device]
                level[at] = 1 + max((level[each] for each in waits[at]), default=-1)
                following[device], moved = at + 1, True
    by_level: list[list[int]] = [[] for _ in range(1 + max(level.values()))]
    for index, own in level.items():
        by_level[own].append(index)
    return tuple(np.array(own) for own in by_level)
