"""Layers of several kinds in their places: how far the stages reach along the model within a bottleneck time.

A stage that starts later never ends earlier, so taking as many layers as a stage can, one stage after the other,
reaches as far as any split does. Recomputation is each stage's own here, in any fractions: a bound, not a plan.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cpsolver.cost.shard import Floats, Ints
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.stages import Stages


class Walk:
    """Rows with the same pp on known chips by position, (n,) and (n, pp)."""

    def __init__(self, table: Coefficients, row: Ints, chips: Ints) -> None:
        self._pp = chips.shape[1]
        self._row, self._chips = np.arange(len(row)), chips
        self._stages = stages = table.stages(row, chips)
        self._fixed = np.broadcast_to(stages.fixed + stages.slack, chips.shape)
        self._sets = [np.broadcast_to(part, (len(part), *chips.shape)) for part in _in_order(stages)]
        self._room = np.broadcast_to(stages.room - table.slack_states(row)[:, None], chips.shape)
        vpp = table.rows.vpp[row]
        self._end = table.rows.places(table.problem.model.layers)[row] // vpp
        states = table.before(table.memory.kind_states, row)
        self._layers = vpp[:, None] * np.arange(states.shape[1])[None, :].astype(np.float64)
        beyond = np.arange(states.shape[1])[None, :] > self._end[:, None]
        self._states = np.where(beyond, np.inf, states + stages.states[:, :1] * self._layers)
        self._time: dict[int, Floats] = {}
        for chip in np.unique(chips).tolist():
            layer = table.time["layer"][chip, row][:, None]
            extra = table.before(table.kind_layer[chip], row)
            self._time[chip] = np.where(beyond, np.inf, extra + layer * self._layers)

    def reaches(self, bottleneck: Floats) -> np.ndarray:
        """Whether the stages hold the whole model when none takes longer than that: (n,)."""
        at = np.zeros(len(self._row), dtype=np.int64)
        good = np.ones(len(at), dtype=np.bool_)
        for stage in range(self._pp):
            left = self._pp - 1 - stage
            to = np.minimum(self._furthest(stage, at, bottleneck), self._end - left)
            good &= to > at
            at = np.where(good, to, at)
        return np.asarray(good & (at == self._end))

    def _furthest(self, stage: int, at: Ints, bottleneck: Floats) -> Ints:
        s, column = self._stages, np.minimum(stage, self._stages.layer.shape[1] - 1)
        recompute = s.recompute[:, column : column + 1]
        live, full, checkpoint = (
            np.broadcast_to(getattr(s, name), self._chips.shape)[:, stage : stage + 1]
            for name in ("live", "full", "checkpoint")
        )
        time = self._seconds(stage)
        limit = (bottleneck - self._fixed[:, stage])[:, None] * (1 + 1e-9)
        room = self._room[:, stage : stage + 1] * (1 + 1e-9)
        allowed = {kind: may[:, stage] for kind, may in s.allowed.items()}

        def within(prefix: Floats, most: Floats) -> Ints:
            """The furthest position that a growing quantity reaches from `at`."""
            return np.asarray((prefix <= prefix[self._row, at][:, None] + most).sum(axis=1) - 1)

        plain = within(time, limit)
        held = self._states + live * full * self._layers
        best = np.where(allowed["none"] | allowed["block"], np.minimum(plain, within(held, room)), -1)
        if allowed["block"].any():
            rate = recompute / (live * (full - checkpoint))
            both = within(time + rate * held, limit + rate * (room - full))
            least = within(self._states + live * checkpoint * self._layers, room - full)
            block = np.minimum(np.minimum(plain, both), least)
            best = np.where(allowed["block"], np.maximum(best, block), best)
        if allowed["selective"].any():
            seconds, kept, replay = (part[:, :, stage] for part in self._sets)

            def by_set(pick: Ints) -> tuple[Ints, Ints]:
                some = within(time + seconds[pick, self._row][:, None] * self._layers, limit)
                held = self._states + live * kept[pick, self._row][:, None] * self._layers
                return some, within(held, room - replay[pick, self._row][:, None])

            best = np.where(allowed["selective"], np.maximum(best, _best_set(len(seconds), by_set, best)), best)
        if allowed["uniform"].any():
            twice = within(time + recompute * self._layers, limit)
            more = np.nonzero(allowed["uniform"] & (twice > best))[0]
            if len(more):
                fits = self._uniform(more, at[more], *(part[more] for part in (live, full, checkpoint, room)))
                best[more] = np.maximum(best[more], np.minimum(twice[more], fits))
        return best

    def _uniform(self, some: Ints, at: Ints, live: Floats, full: Floats, checkpoint: Floats, room: Floats) -> Ints:
        """How far memory reaches with units of layers recomputed, of the best size in any fractions from 1 on.

        Units of g of l layers keep live * checkpoint * l / g and work on g * full.
        """
        layers = np.maximum(0.0, self._layers[some] - self._layers[some, at][:, None])
        kept = live * checkpoint * layers
        unit = np.sqrt(np.maximum(1.0, kept / full))
        held = self._states[some] - self._states[some, at][:, None] + kept / unit + unit * full
        return np.asarray(((held <= room) | (layers == 0)).sum(axis=1) - 1)

    def _seconds(self, stage: int) -> Floats:
        chips = self._chips[:, stage]
        if len(self._time) == 1:
            return next(iter(self._time.values()))
        return np.asarray(np.stack([self._time[chip][n] for n, chip in enumerate(chips.tolist())]))


def _in_order(stages: Stages) -> tuple[Floats, Floats, Floats]:
    """Seconds, bytes kept and bytes replayed by set of modules, such that slower ones never need more memory."""
    parts = (stages.kept_selective, stages.replay)
    kept, replay = (np.minimum.accumulate(part, axis=0) for part in parts)
    return np.maximum.accumulate(stages.selective, axis=0), kept, replay


def _best_set(count: int, by_set: Callable[[Ints], tuple[Ints, Ints]], none: Ints) -> Ints:
    """The furthest that any set of modules reaches: the less of how far its time and its memory do.

    The slower a set the less far its time, and the farther its memory: the best is where they meet, or next to it.
    """
    if not count:
        return none
    best, low, high = none, np.zeros(len(none), dtype=np.int64), np.full(len(none), count - 1)
    for _ in range(int(count - 1).bit_length() + 1):
        middle = (low + high) // 2
        in_time, fits = by_set(middle)
        best = np.maximum(best, np.minimum(in_time, fits))
        enough = fits >= in_time
        low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
    return best
