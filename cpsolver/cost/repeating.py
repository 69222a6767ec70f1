"""What a step of Megatron's schedules takes where sending is free, and what holds it up, by few of its microbatches.

Once the warm-up is over, stages soon repeat themselves: each pass ends as much later than the same one `pp`
microbatches before. A pass waits for passes no more than that far back, and all of the step that follows is the same
with further microbatches. So where all passes of `pp` microbatches end by one time later than those of the `pp` before,
a step of further ones is longer by that time for each `pp` of them, and they need not be run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from cpsolver.cost.pipeline_events import MOST_EVENTS, Order, by_position, ends_s, order_of, warmups
from cpsolver.cost.shard import Floats, Ints
from cpsolver.cost.step_form import PipelineSizes

_FEW = 4
"""A step is run with so many times pp microbatches first. Most repeat by then; in others a stage is a chunk ahead of
one that is a little slower, and the step repeats once it has lost that."""
_LEAST = 3
"""Times pp of which the last `pp` of a step's middle have others before them, whatever the warm-up."""
_ENOUGH = 12
"""So many times pp of more than MOST_EVENTS allow, at most: the rest is taken to be as slow as the slowest of the last
`pp`, within 0.5 % (tests/cost/test_repeating.py)."""
_ALIKE = 1e-10
"""Seconds that differ by no more than that share are the same."""


@dataclass(frozen=True)
class _Run:
    """A run of few microbatches: when its passes end, and how many times `pp` more follow, each time `period_s` longer;
    `repeats` says that these are sure. `warm`: forwards of every stage before its first backward."""

    sizes: PipelineSizes
    order: Order
    warm: Ints
    seconds: Floats
    ends_s: Floats
    times: int
    period_s: float
    repeats: bool

    @property
    def makespan_s(self) -> float:
        return float(self.ends_s.max()) + self.times * self.period_s


def makespan_s(sizes: PipelineSizes, group: int, forward_s: Floats, backward_s: Floats) -> float | None:
    """Seconds of a step, as `pipeline_events.simulate` has them; None for one of too many passes.

    Args:
        sizes: of the pipeline.
        group: microbatches that pass a chunk before the next chunk's turn.
        forward_s: seconds of one microbatch's forward through any chunk of each stage, (pp,).
        backward_s: the same of its backward.
    """
    run = _run(sizes, group, forward_s, backward_s)
    return None if run is None else run.makespan_s


def longest_chain(sizes: PipelineSizes, group: int, forward_s: Floats, backward_s: Floats) -> Ints | None:
    """The passes that make a step as long as it is: chunks' forwards and backwards of every stage, (pp, 2).

    They are those before the last one to end, each of which another had to wait for. None where no few microbatches
    tell them and the step has too many passes. Arguments as of `makespan_s`.
    """
    run = _run(sizes, group, forward_s, backward_s)
    if run is None:
        return None
    chain = _chain(run)
    if chain is not None or sizes.microbatches > _most(sizes):
        return chain
    return _chain(_run_of(sizes, group, forward_s, backward_s, sizes.microbatches))


def _run(sizes: PipelineSizes, group: int, forward_s: Floats, backward_s: Floats) -> _Run | None:
    """With as few microbatches as tell all; None where those are too many."""
    run = None
    for few in _counts(sizes, group, forward_s + backward_s):
        run = _run_of(sizes, group, forward_s, backward_s, few)
        if run.repeats:
            break
    return run


def _counts(sizes: PipelineSizes, group: int, stage_s: Floats) -> Iterator[int]:
    """Microbatches to try a step with, each a multiple of pp less than all: few, as many as it seems to take, all."""
    pp, m = sizes.pp, sizes.microbatches
    most, over = _most(sizes), m % pp
    whole = m <= most
    if group == pp or sizes.vpp == 1:
        slowest = stage_s.max()
        ahead = stage_s[stage_s < slowest * (1 - _ALIKE)].max(initial=0.0)
        settled = _FEW + slowest / ((slowest - ahead) or 1.0) / (pp * sizes.vpp)
        least = [ceil(settled)] if whole else [ceil(min(settled, _ENOUGH)), min(_ENOUGH, (most - over) // pp)]
        for times in sorted({_FEW, *least}):
            if times >= _LEAST and times * pp + over <= (2 * m // 3 if whole else most):
                yield times * pp + over
    if whole:
        yield m


def _most(sizes: PipelineSizes) -> int:
    """Microbatches of a step that is run in full, at most."""
    return MOST_EVENTS // (2 * sizes.pp * sizes.vpp)


def _run_of(sizes: PipelineSizes, group: int, forward_s: Floats, backward_s: Floats, few: int) -> _Run:
    """With so many microbatches."""
    pp, vpp = sizes.pp, sizes.vpp
    order = order_of(pp, vpp, few, group, sizes.beside)
    seconds = by_position(order.at, forward_s[:, None], backward_s[:, None], np.float64)
    ends, times = ends_s(order, None, seconds), (sizes.microbatches - few) // pp
    warm = warmups(pp, vpp, few, group, sizes.beside)
    later = _later_s(sizes, order, warm, ends) if times else np.zeros(1)
    slowest = float(later.max())
    return _Run(sizes, order, warm, seconds, ends, times, slowest, bool(later.min() >= slowest * (1 - _ALIKE)))


def _later_s(sizes: PipelineSizes, order: Order, warm: Ints, ends: Floats) -> Floats:
    """By how many seconds the last passes of every stage before it has but backwards left end later than those `pp`
    microbatches before: (2, pp, pp).

    Where forward W + k of a stage is followed by backward k, neither waits for another with a k less by more than pp.
    """
    pp, units = order.at[0].shape
    stages, of_stage = np.arange(pp)[:, None], ends[:-1].reshape(pp, -1)

    def ends_of(turn: Ints) -> Floats:
        forwards, backwards = order.at[0][stages, warm[:, None] + turn], order.at[1][stages, turn]
        return np.stack([of_stage[stages, forwards], of_stage[stages, backwards]])

    last = units - int(warm.max()) - 1 - np.arange(pp)
    return np.asarray(ends_of(last) - ends_of(last - pp * sizes.vpp))


def _chain(run: _Run) -> Ints | None:
    """`longest_chain` of a run; None where its end is not seen to repeat what the passes that follow would add."""
    stages, on_chain = run.sizes.pp, _waited_for(run)
    place = np.arange(stages)[:, None] * 2 + np.array([0, 1])
    place = by_position(run.order.at, place[:, :1], place[:, 1:], np.int64)[on_chain]
    passes = np.bincount(place, minlength=2 * stages)
    if run.times:
        again = _cycle(run, on_chain, place)
        if again is None:
            return None
        (first, last), times = again
        passes = passes + times * np.bincount(place[first:last], minlength=2 * stages)
        took_s = float(run.seconds[on_chain].sum() + times * run.seconds[on_chain[first:last]].sum())
        if run.repeats and abs(took_s - run.makespan_s) > _ALIKE * stages * run.makespan_s:
            return None
    return np.asarray(passes.reshape(stages, 2))


def _waited_for(run: _Run) -> Ints:
    """Events from the last one to end back to the first, of which each waited for the next."""
    source, before, ends = run.order.source, run.order.before, run.ends_s
    waited = np.where((ends[source] > ends[before]) & (source >= 0) | (before < 0), source, before).tolist()
    found, event = [], int(ends.argmax())
    while event >= 0:
        found.append(event)
        event = waited[event]
    return np.array(found)


def _cycle(run: _Run, on_chain: Ints, place: Ints) -> tuple[tuple[int, int], int] | None:
    """The part of a chain that runs from a pass back to the same one of earlier microbatches, nearest to the chain's
    end, and how often it follows: so it is a way through the whole step, whatever passes take."""
    units, period = run.order.at[0].shape[1], run.sizes.pp * run.sizes.vpp
    warm, unit = run.warm[:, None], np.arange(units)
    turn = by_position(run.order.at, unit - warm, unit, np.int64)[on_chain]
    between = (turn >= 0) & (turn < units - run.warm[place // 2])
    seen: dict[tuple[int, int], tuple[int, int]] = {}
    for at in np.flatnonzero(between).tolist():
        now = int(turn[at])
        first, then = seen.setdefault((int(place[at]), now % period), (at, now))
        periods = (then - now) // period
        if periods and run.times % periods == 0:
            return (first, at), run.times // periods
    return None
