"""V-Half and V-Min: blocks of passes repeated every six grains, then what is left of both ends moved forward.

Controllable-memory pipelines (Qi et al., arXiv:2405.15362), by the method of the authors' scheduler
(sail-sg/zero-bubble-pipeline-parallelism 39f2c18, megatron/core/pipeline_parallel/zerobubble/scheduler/zbv_greedy.py),
whose bubbles and peaks `tests/cost/test_split_events.py` has: grains are as long as a pass; W takes the first free
ones; while the pipeline fills and drains, passes go to the earliest free grain that what they wait for and the memory
of the blocks allow. Once with W among the passes, once with W placed at the end; gaps are squeezed out each time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

Grains = list[list[int]]
"""Of one device: the grains of its F of chunks 0 and 1 and its B of chunks 1 and 0, by microbatch; then those of W."""

_PERIOD = 6
_FIRST_B = 2
_PASSES = 4
"""Kinds of passes beside W; the last is the B of chunk 0."""


def half_blocks(pp: int) -> list[tuple[int, ...]]:
    """Grains of the first microbatch on every device, with half of the memory of 1F1B."""
    more = 3 if pp % 2 == 0 else 0
    return [(2 * s, 3 * pp - s - 2, 3 * pp + more + 2 * s - 1, 6 * pp + more - s - 2) for s in range(pp)]


def min_blocks(pp: int) -> list[tuple[int, ...]]:
    """The same with a third of it."""
    more = 2 if pp % 3 == 0 else 0
    return [(s, 2 * pp - s - 1, 2 * pp + more + s, 4 * pp + more - s - 1) for s in range(pp)]


def order_of(blocks: list[tuple[int, ...]], microbatches: int) -> list[list[tuple[int, int]]]:
    """Every device's passes in order: the kind (0 F of chunk 0, 1 F of 1, 2 B of 1, 3 B of 0, 4 and 5 their W), and the
    microbatch."""
    devices = [[[start + _PERIOD * i for i in range(microbatches)] for start in block] for block in blocks]
    devices = _squeezed(_moved([_with_weights(device, 1) for device in devices]))
    devices = _squeezed([_with_weights(device, 1) for device in _moved([device[:_PASSES] for device in devices])])
    placed = [_with_weights(device[:_PASSES], 2) for device in devices]
    return [[(kind, i) for _, kind, i in sorted(_events(device))] for device in placed]


def _events(device: Grains) -> Iterator[tuple[int, int, int]]:
    """Grain, kind and microbatch of all passes."""
    return ((grain, kind, i) for kind, grains in enumerate(device) for i, grain in enumerate(grains))


def _with_weights(device: Grains, lists: int) -> Grains:
    """With W in the first free grains behind their B: in one list, or in one for each chunk, chunk 1's first."""
    taken = {grain: kind for grain, kind, _ in _events(device)}
    made: Grains = [[] for _ in range(lists)]
    left, grain, end = [0] * lists, 0, max(taken)
    while grain <= end or any(left):
        kind = taken.get(grain)
        if kind is not None and kind >= _FIRST_B:
            left[(kind - _FIRST_B) % lists] += 1
        elif kind is None and any(left):
            first = next(at for at, count in enumerate(left) if count)
            made[first].append(grain)
            left[first] -= 1
        grain += 1
    return [*device, *made]


def _peak(device: Grains) -> int:
    """Chunks that are held from F to W at most; without W in the first free grains.

    So many W are done by then: all free grains but those in which no B waited for its W.
    """
    kinds = np.full(max(max(grains) for grains in device) + 1, -1)
    for kind, grains in enumerate(device):
        kinds[grains] = kind
    if len(device) > _PASSES:
        done = np.cumsum(kinds == _PASSES)
    else:
        free, came = np.cumsum(kinds < 0), np.cumsum(kinds >= _FIRST_B)
        done = free + np.minimum(0, np.minimum.accumulate(came - free))
    return int((np.cumsum((kinds >= 0) & (kinds < _FIRST_B)) - done).max())


def _moved(devices: list[Grains]) -> list[Grains]:
    """Passes of the first and the last microbatches to earlier grains, in the order of their grains."""
    devices, most = [[list(grains) for grains in device] for device in devices], max(map(_peak, devices))
    with_w, last = len(devices[0]) > _PASSES, len(devices[0][0]) - 1
    every = sorted((grain, s, kind, i) for s, device in enumerate(devices) for grain, kind, i in _events(device))
    taken: list[set[int]] = [set() for _ in devices]
    phase = 0
    for grain, s, kind, i in every:
        phase += phase == 0 and s == 0 and kind == _PASSES - 1
        steady = phase == 1
        phase += steady and kind == 0 and i == last
        if not steady and (phase == 2 or with_w):
            _move(devices, taken[s], (s, kind, i), grain, most)
        taken[s].add(devices[s][kind][i])
    return devices


def _move(devices: list[Grains], taken: set[int], at: tuple[int, int, int], grain: int, most: int) -> None:
    """One pass to the first grain that is free and allowed, if any is before its own."""
    s, kind, i = at
    own = devices[s]
    for earlier in range(_ready(devices, s, kind, i), grain):
        if earlier not in taken:
            own[kind][i] = earlier
            if _peak(own) <= most:
                return
    own[kind][i] = grain


def _ready(devices: list[Grains], s: int, kind: int, i: int) -> int:
    """The grain behind all that a pass waits for."""
    own, before = devices[s], [-1]
    if kind < _PASSES:
        other = s - 1 if kind % 2 == 0 else s + 1
        if 0 <= other < len(devices):
            before.append(devices[other][kind][i])
        if kind > 0:
            before.append(own[kind - 1][i])
    else:
        before.append(sorted(own[2] + own[3])[i])
    if i > 0:
        before.append(own[kind][i - 1])
    return max(before) + 1


def _squeezed(devices: list[Grains]) -> list[Grains]:
    """All passes in the order of their grains, each as early as its device and what it waits for let it."""
    every = sorted((grain, s, kind, i) for s, device in enumerate(devices) for grain, kind, i in _events(device))
    made = [[[0] * len(grains) for grains in device] for device in devices]
    free = [0] * len(devices)
    for _, s, kind, i in every:
        ready = _ready(made, s, kind, i) if kind < _PASSES else 0
        made[s][kind][i] = max(free[s], ready)
        free[s] = made[s][kind][i] + 1
    return made
