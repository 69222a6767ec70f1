"""Pipelines whose backward pass is split, as events: the published orders, run pass by pass.

A pass is F (forward), B (the inputs' gradients) or W (the weights'); a *turn* is what a device runs without a break:
one pass, a whole backward pass (B and W), or a forward beside a whole backward pass. What a turn makes leaves when all
of it is done. A device runs its turns in their order, each as soon as it is free and what its passes wait for is there:
F for the F of the stage before, B for its own F and the B of the stage behind, W for its own B.

Orders by schedule (`turns`), pp devices s = 0 .. pp - 1, m microbatches:

- zb1p, zb2p: ZB-H1 and ZB-H2 of arXiv:2401.10241 (figures 2 and 3), one stage a device. Device s has as many F in front
  of its first B as 1F1B, or nearly twice that, and runs W so many B later as it has fewer of them than device 0. The
  order of PyTorch's ScheduleInterleavedZeroBubble with one stage a device is that of zb1p.
- V-shaped placement: device s has stages s and 2 pp - 1 - s of 2 pp (chunks 0 and 1), so that the first and the last
  stage are on device 0.
- zbv: arXiv:2401.10241, section 6, in the order of PyTorch's ScheduleZBVZeroBubble.
- v_half, v_min: arXiv:2405.15362; see v_blocks.py.
- dualpipev: deepseek-ai/DualPipe 3da1bbe, dualpipev.py, step; m is 2 pp at least.
- dualpipe: the same place, dualpipe.py, step; pp and m are even, m is 2 pp at least. Half of the microbatches come from
  either end, and device s has stages s and pp - 1 - s: the one that is nearer to its beginning is chunk 0. Each half of
  the devices runs what dualpipev has for half as many with half of the microbatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import ArrayLike

from cpsolver.cost.pipeline_events import FloatArray, IntArray
from cpsolver.cost.v_blocks import half_blocks, min_blocks, order_of

Kind = Literal["F", "B", "W"]
Pass: TypeAlias = tuple[Kind, int, int]
"""What it is, its chunk on the device, and its microbatch."""
Turn: TypeAlias = tuple[Pass, ...]
SplitSchedule = Literal["zb1p", "zb2p", "zbv", "v_half", "v_min", "dualpipev", "dualpipe"]


@dataclass(frozen=True)
class SplitRun:
    """One step of a schedule with split backward passes.

    Attributes:
        passes: of each device, in the order in which it runs them: the pass, its start and its end in seconds. Those of
            one turn follow each other.
        span_s: seconds from each device's first pass to the end of its last one, (pp,). The step is the longest where
            the next one need not wait for all devices.
        makespan_s: seconds from the first pass of all to the end of the last one.
        peak: the most chunks of microbatches that each device holds from F to the end of W, (pp,).
    """

    passes: tuple[tuple[tuple[Pass, float, float], ...], ...]
    span_s: FloatArray
    makespan_s: float
    peak: IntArray


def run(
    order: Sequence[Sequence[Turn]],
    forward_s: ArrayLike,
    input_s: ArrayLike,
    weight_s: ArrayLike,
    p2p_s: ArrayLike | None = None,
    *,
    both_ways: bool = False,
) -> SplitRun:
    """Run one step. Sending takes time but occupies neither device.

    Args:
        order: turns of every device; placed as a V where there are two chunks, or as dualpipe has them.
        forward_s: seconds of F of each chunk, (pp, chunks).
        input_s: the same of B.
        weight_s: the same of W.
        p2p_s: seconds to send between device s and s + 1, in either direction, (pp,); None: sending takes no time.
        both_ways: the order is dualpipe's.

    Raises:
        ValueError: some pass waits for ever.
    """
    tables = (("F", forward_s), ("B", input_s), ("W", weight_s))
    seconds = {kind: np.asarray(table, dtype=np.float64).tolist() for kind, table in tables}
    pp, chunks = np.shape(forward_s)
    delay = np.zeros(pp) if p2p_s is None else np.asarray(p2p_s, dtype=np.float64)
    beside = beside_of(pp, chunks, both_ways)
    devices = [_Device(number, list(own), beside) for number, own in enumerate(order)]
    done: dict[tuple[int, Pass], float] = {}
    while sum(device.advance(done, seconds, delay) for device in devices):
        pass
    if any(device.waiting for device in devices):
        raise ValueError("a pass waits for ever")
    return _summary([device.passes for device in devices])


class _Device:
    """A device and how far it is."""

    def __init__(self, number: int, order: list[Turn], beside: Beside) -> None:
        self._number, self.waiting, self._beside = number, order[::-1], beside
        self.passes: list[tuple[Pass, float, float]] = []
        self._needed: list[tuple[int, Pass]] = []  # of the turn that waits, once it was looked at

    def advance(
        self, done: dict[tuple[int, Pass], float], seconds: dict[str, list[list[float]]], delay: FloatArray
    ) -> bool:
        """Run turns until one has to wait; whether there was any. `done`: when what a pass makes leaves."""
        moved = False
        while self.waiting:
            turn = self.waiting[-1]
            needed = self._needed = self._needed or waited_for(self._number, turn, self._beside)
            if any(source not in done for source in needed):
                break
            now = max([self.passes[-1][2] if self.passes else 0.0, *(self._arrives(done, delay, at) for at in needed)])
            for each in turn:
                end = now + seconds[each[0]][self._number][each[1]]
                self.passes.append((each, now, end))
                now = end
            for each in turn:
                done[self._number, each] = now
            self.waiting.pop()
            self._needed = []
            moved = True
        return moved

    def _arrives(self, done: dict[tuple[int, Pass], float], delay: FloatArray, source: tuple[int, Pass]) -> float:
        other = source[0]
        return done[source] + (0.0 if other == self._number else float(delay[min(other, self._number)]))


def _sources(device: int, each: Pass, beside: Beside) -> Iterator[tuple[int, Pass]]:
    """What a pass waits for: devices and their passes; `beside`: on other stages."""
    kind, chunk, microbatch = each
    if kind == "W":
        yield device, ("B", chunk, microbatch)
        return
    if kind == "B":
        yield device, ("F", chunk, microbatch)
    yield from ((other, (kind, at, microbatch)) for other, at in beside(device, chunk, -1 if kind == "F" else 1))


Beside: TypeAlias = Callable[[int, int, int], Iterator[tuple[int, int]]]
"""Of a device and its chunk the device and chunk of the stage so many further on, if there is one."""


def beside_of(pp: int, chunks: int, both_ways: bool) -> Beside:
    """How stages follow each other: one a device, two placed as a V, or dualpipe's."""
    return partial(_both_ways, pp) if both_ways else partial(_along, pp, chunks)


def waited_for(device: int, turn: Turn, beside: Beside) -> list[tuple[int, Pass]]:
    """Devices and passes that a turn waits for, but for its own."""
    own = [(device, each) for each in turn]
    return [source for each in turn for source in _sources(device, each, beside) if source not in own]


def _along(pp: int, chunks: int, device: int, chunk: int, step: int) -> Iterator[tuple[int, int]]:
    """One stage a device, or two placed as a V."""
    other = (device if chunk == 0 else 2 * pp - 1 - device) + step
    if 0 <= other < pp * chunks:
        yield (other, 0) if other < pp else (2 * pp - 1 - other, 1)


def _both_ways(pp: int, device: int, chunk: int, step: int) -> Iterator[tuple[int, int]]:
    """Two stages a device, of which chunk 0 is the one nearer to where its microbatches come from."""
    from_last = (chunk == 1) != (device >= pp // 2)
    other = device - step if from_last else device + step
    if 0 <= other < pp:
        yield other, int(from_last != (other >= pp // 2))


def _summary(passes: list[list[tuple[Pass, float, float]]]) -> SplitRun:
    peaks = []
    for of_device in passes:
        held = np.cumsum([(each[0] == "F") - (each[0] == "W") for each, _, _ in of_device])
        peaks.append(int(held.max()))
    span = np.array([of_device[-1][2] - of_device[0][1] for of_device in passes])
    makespan_s = max(of_device[-1][2] for of_device in passes)
    return SplitRun(tuple(map(tuple, passes)), span, makespan_s, np.array(peaks))


def turns(schedule: SplitSchedule, pp: int, microbatches: int) -> list[list[Turn]]:
    """The turns of every device.

    Raises:
        ValueError: dualpipev or dualpipe with fewer than 2 pp microbatches, or the latter with an odd number.
    """
    if schedule in ("dualpipev", "dualpipe") and microbatches < 2 * pp:
        raise ValueError(f"{schedule} needs 2 pp microbatches at least, got {microbatches} with pp {pp}")
    if schedule == "dualpipe" and (pp % 2 or microbatches % 2):
        raise ValueError(f"dualpipe needs an even pp and microbatches, got {microbatches} with pp {pp}")
    return _ORDERS[schedule](pp, microbatches)


def chunks_of(schedule: SplitSchedule) -> int:
    """Chunks of every device."""
    return 1 if schedule in ("zb1p", "zb2p") else 2


def split_schedule(name: str) -> SplitSchedule:
    """A schedule's order here.

    Raises:
        ValueError: its backward passes are not split.
    """
    for known in get_args(SplitSchedule):
        if known == name:
            return cast("SplitSchedule", known)
    raise ValueError(f"schedule {name} does not split backward")


def _with_w_put_off(times: int) -> Callable[[int, int], list[list[Turn]]]:
    """ZB-H1 (1) and ZB-H2 (2)."""

    def order(pp: int, m: int) -> list[list[Turn]]:
        return [_one_device(m, times * (pp - s) - (times - 1), times * s) for s in range(pp)]

    return order


def _one_device(m: int, ahead: int, later: int) -> list[Turn]:
    """F and B in turn behind so many F `ahead`, W so many B `later`; what is left of W comes last."""
    kinds: list[tuple[Kind, int]] = [("F", i) for i in range(min(m, ahead))]
    for k in range(m):
        kinds.append(("B", k))
        kinds += [("W", k - later)] * (k >= later)
        kinds += [("F", k + ahead)] * (k + ahead < m)
    kinds += [("W", k) for k in range(max(0, m - later), m)]
    return [((kind, 0, microbatch),) for kind, microbatch in kinds]


def _zbv(pp: int, m: int) -> list[list[Turn]]:
    """As if there were 2 pp - 1 microbatches at least, without those that are not there."""
    most = max(m, 2 * pp - 1)
    return [[turn for turn in _zbv_device(s, pp, most) if turn[0][2] < m] for s in range(pp)]


def _zbv_device(s: int, pp: int, m: int) -> list[Turn]:
    count, made = dict.fromkeys(((kind, chunk) for kind in "FBW" for chunk in (0, 1)), 0), list[Turn]()

    def add(*names: str) -> None:
        for name in names:
            kind: Kind = "F" if name[0] == "F" else "B" if name[0] == "B" else "W"
            chunk = int(name[1])
            made.append(((kind, chunk, count[kind, chunk]),))
            count[kind, chunk] += 1

    add(*["F0"] * (2 * (pp - s) - 1), *["F1", "F0"] * s, *["F1", "B1", "W1"] * (pp - s))
    while count["F", 1] < count["F", 0] or count["F", 0] < m:
        add(*["F0"] * (count["F", 0] < m), "B0", "W0", "F1", "B1", "W1")
    add(*["B0", "B1"] * s, *["B0", "W0"] * (pp - s))
    add(*["W1"] * (count["B", 1] - count["W", 1]), *["W0"] * (count["B", 0] - count["W", 0]))
    return made


_NAMED: tuple[tuple[Kind, int], ...] = (("F", 0), ("F", 1), ("B", 1), ("B", 0), ("W", 1), ("W", 0))
"""Kinds of passes as v_blocks counts them."""


def _in_blocks(blocks: Callable[[int], list[tuple[int, ...]]]) -> Callable[[int, int], list[list[Turn]]]:
    """Blocks of passes one after the other."""

    def order(pp: int, m: int) -> list[list[Turn]]:
        return [[((*_NAMED[kind], i),) for kind, i in device] for device in order_of(blocks(pp), m)]

    return order


def _dualpipev(pp: int, m: int) -> list[list[Turn]]:
    return [_dualpipev_device(s, pp, m) for s in range(pp)]


def _dualpipev_device(s: int, pp: int, m: int) -> list[Turn]:
    """The eight steps of the authors' code."""
    count, made, put_off = dict.fromkeys(("F0", "F1", "B0", "B1"), 0), list[Turn](), list[tuple[int, int]]()

    def forward(chunk: int) -> Pass:
        count[f"F{chunk}"] += 1
        return "F", chunk, count[f"F{chunk}"] - 1

    def backward(chunk: int, split: bool = False) -> Turn:
        i = count[f"B{chunk}"]
        count[f"B{chunk}"] += 1
        if split:
            put_off.append((chunk, i))
            return (("B", chunk, i),)
        return ("B", chunk, i), ("W", chunk, i)

    def weight() -> Turn:
        return (("W", *put_off.pop(0)),)

    rest, first = pp - s - 1, s + 1
    made += [(forward(0),) for _ in range(2 * rest)]
    made += [(forward(chunk),) for _ in range(first) for chunk in (0, 1)]
    for _ in range(rest):
        made += [backward(1, split=True), weight(), (forward(1),)]
    for i in range(m - 2 * pp + first):
        apart = i == 0 and s == pp - 1
        made += [(forward(0),), backward(1)] if apart else [(forward(0), *backward(1))]
        made.append((forward(1), *backward(0)))
    for _ in range(rest):
        made += [backward(1), (forward(1), *backward(0))]
    for i in range(first):
        half = i - first // 2
        made.append(backward(1, split=half > 0 or (half == 0 and s % 2 == 1)))
        made.append(backward(0, split=half >= 0))
    for _ in range(rest):
        made += [weight(), backward(0, split=True)]
    return [*made, *(weight() for _ in range(len(put_off)))]


def _dualpipe(pp: int, m: int) -> list[list[Turn]]:
    half = _dualpipev(pp // 2, m // 2)
    return [*half, *reversed(half)]


_ORDERS: dict[SplitSchedule, Callable[[int, int], list[list[Turn]]]] = {
    "zb1p": _with_w_put_off(1),
    "zb2p": _with_w_put_off(2),
    "zbv": _zbv,
    "v_half": _in_blocks(half_blocks),
    "v_min": _in_blocks(min_blocks),
    "dualpipev": _dualpipev,
    "dualpipe": _dualpipe,
}
