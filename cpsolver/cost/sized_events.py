"""1F1B of microbatches that differ in size, many steps at once: exact, as `pipeline_events.simulate`."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cpsolver.cost.pipeline_events import by_position, order_of
from cpsolver.cost.shard import Bools, Floats, Ints


def run_steps(forward_s: Floats, backward_s: Floats) -> tuple[Floats, Bools]:
    """Seconds of pipelines of equal pp and microbatches, sending free, (n,), and the passes that make each as long as
    it is: those before the last one to end, each of which another had to wait for, (n, 2, pp, microbatches), forwards
    first.

    Args:
        forward_s: seconds of every microbatch's forward on every stage, (n, pp, microbatches).
        backward_s: the same of its backward.
    """
    count, pp, microbatches = forward_s.shape
    both = np.concatenate([forward_s.reshape(count, -1), backward_s.reshape(count, -1)], axis=1)
    seconds, (before, source, own) = np.ascontiguousarray(both.T), _turns(pp, microbatches)
    ends = np.zeros((1 + len(seconds), count))
    for event, (first, second, place) in enumerate(zip(*map(np.ndarray.tolist, (before, source, own)), strict=True), 1):
        np.maximum(ends[first], ends[second], out=ends[event])
        ends[event] += seconds[place]
    last = ends.argmax(axis=0)
    chain, at, now = np.zeros(both.shape, dtype=np.bool_), np.arange(count), last
    while len(at):
        chain[at, own[now - 1]] = True
        first, second = before[now - 1], source[now - 1]
        now = np.where(ends[first, at] >= ends[second, at], first, second)
        at, now = at[now > 0], now[now > 0]
    return ends[last, np.arange(count)], chain.reshape(count, 2, pp, microbatches)


@lru_cache(maxsize=8)
def _turns(pp: int, microbatches: int) -> tuple[Ints, Ints, Ints]:
    """Of the passes in an order in which none waits for a later one: the two that each waits for, counted from 1 (0:
    none), and its place among all forwards, then all backwards, by stage and microbatch."""
    order = order_of(pp, 1, microbatches, None, False)
    place = np.arange(pp)[:, None] * microbatches + order.microbatch
    own = by_position(order.at, place, pp * microbatches + place, np.int64)[order.turn]
    return np.array(order.waits[0]), np.array(order.waits[1]), np.asarray(own)
