"""Layers of several kinds in their places: how far the stages reach along the model within a bottleneck time.

A stage that starts later never ends earlier, so taking as many layers as a stage can, one stage after the other,
reaches as far as any split does. Recomputation is each stage's own here, in any fractions: a bound, not a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cpsolver.cost.shard import Floats, Ints
from cpsolver.search.bounds.coefficients import Coefficients, row_of
from cpsolver.search.bounds.stages import ROUNDING, Need, Stages, uniform_bytes


class Placement:
    """Rows with the same pp on known chips by position, as in `Coefficients.stages`.

    Places of layers run from 0 to the chunks' last; `_layers`, `_states` and `_time` are what a stage holds from the
    model's beginning to each place, (n, places): layers in all its chunks, and by chip their states' bytes and seconds.
    """

    def __init__(self, table: Coefficients, row: Ints, chips: Ints) -> None:
        self._pp = chips.shape[1]
        self._row, self._chips = np.arange(len(row)), chips
        stages = table.stages(row, chips)
        first, chips_used = row if row.ndim == 1 else row[:, 0], np.unique(chips).tolist()
        vpp = table.rows.vpp[first]
        self._end = table.rows.places(table.problem.model.layers)[first] // vpp
        self._time: dict[int, Floats] = {}
        self._states: dict[int, Floats] = {}
        spared = np.zeros(chips.shape)
        for chip in chips_used:
            own = row_of(row, chips, chip)
            states = table.beyond_mean(table.memory.kind_states, own)
            self._layers = vpp[:, None] * np.arange(states.shape[1])[None, :].astype(np.float64)
            past_the_end = np.arange(states.shape[1])[None, :] > self._end[:, None]
            in_all = states + table.memory.layer_states[own][:, None] * self._layers
            self._states[chip] = np.where(past_the_end, np.inf, in_all)
            extra, layer = table.beyond_mean(table.time.kind_layer[chip], own), table.time.layer[chip, own][:, None]
            self._time[chip] = np.where(past_the_end, np.inf, extra + layer * self._layers)
            spared = np.where(chips == chip, table.states_saving(own)[:, None], spared)
        # Layers are counted where they stand: nothing is to be saved beyond that.
        stages = replace(_sets_in_order(stages), fixed=stages.fixed + stages.saving, room=stages.room - spared)
        self._stages = [stages.stage(place) for place in range(self._pp)]

    def reaches(self, bottleneck: Floats) -> np.ndarray:
        """Whether the stages hold the whole model when none takes longer than that: (n,)."""
        at = np.zeros(len(self._row), dtype=np.int64)
        good = np.ones(len(at), dtype=np.bool_)
        for stage in range(self._pp):
            left = self._pp - 1 - stage
            to = np.minimum(self._furthest(stage, at, bottleneck), self._end - left)
            # One that has no time for the layer it starts at may have started earlier: it reaches no further for that.
            good &= to >= at + (stage == 0)
            at = np.where(good, to, at)
        return np.asarray(good & (at == self._end))

    def _furthest(self, place: int, at: Ints, bottleneck: Floats) -> Ints:
        """The furthest place that a stage reaches from `at`, -1 where it may not recompute in any way."""
        stage, layers = self._stages[place], self._layers
        time, states = self._at(self._time, place), self._at(self._states, place)
        limit = (bottleneck[:, None] - stage.fixed) * (1 + ROUNDING)
        room = stage.room * (1 + ROUNDING)
        allowed = {kind: may[:, 0] for kind, may in stage.allowed.items()}

        def within(prefix: Floats, most: Floats) -> Ints:
            """The furthest place up to which a growing quantity grows by no more than that from `at` on."""
            return np.asarray((prefix <= prefix[self._row, at][:, None] + most).sum(axis=1) - 1)

        def fits(need: Need) -> Ints:
            return within(states + need.in_flight * layers, room - need.once)

        plain = within(time, limit)
        best = np.where(allowed["none"] | allowed["block"], np.minimum(plain, fits(stage.plain)), -1)
        if allowed["block"].any():
            held, rate = states + stage.plain.in_flight * layers, stage.seconds_for_byte
            paid = within(time + rate * held, limit + rate * (room - stage.full))
            block = np.minimum(np.minimum(plain, paid), fits(stage.recomputed))
            best = np.where(allowed["block"], np.maximum(best, block), best)
        if allowed["selective"].any():

            def by_set(pick: Ints) -> tuple[Ints, Ints]:
                need = Need(*(part[pick, self._row] for part in vars(stage.by_set).values()))
                return within(time + need.seconds * layers, limit), fits(need)

            sets = len(stage.set_seconds)
            best = np.where(allowed["selective"], np.maximum(best, _best_set(sets, by_set, best)), best)
        if allowed["uniform"].any():
            in_time = within(time + stage.recompute * layers, limit)
            open_rows = np.nonzero(allowed["uniform"] & (in_time > best))[0]
            if len(open_rows):
                fit = self._uniform(stage, states, open_rows, at[open_rows], room[open_rows])
                best[open_rows] = np.maximum(best[open_rows], np.minimum(in_time[open_rows], fit))
        return best

    def _uniform(self, stage: Stages, states: Floats, rows: Ints, at: Ints, room: Floats) -> Ints:
        """How far memory reaches in some rows with units of layers recomputed, of the best size in any fractions."""
        layers = np.maximum(0.0, self._layers[rows] - self._layers[rows, at][:, None])
        in_flight = stage.recomputed.in_flight[rows] * layers
        held = states[rows] - states[rows, at][:, None] + uniform_bytes(in_flight, stage.full[rows])
        return np.asarray(((held <= room) | (layers == 0)).sum(axis=1) - 1)

    def _at(self, by_chip: dict[int, Floats], place: int) -> Floats:
        """A table by chip for the chips at that place."""
        if len(by_chip) == 1:
            return next(iter(by_chip.values()))
        chips, found = self._chips[:, place], np.empty_like(next(iter(by_chip.values())))
        for chip, table in by_chip.items():
            own = chips == chip
            found[own] = table[own]
        return found


def _sets_in_order(stages: Stages) -> Stages:
    """With sets of modules such that slower ones never need more memory."""
    seconds = np.maximum.accumulate(stages.set_seconds, axis=0)
    stored, replay = (np.minimum.accumulate(part, axis=0) for part in (stages.set_bytes, stages.set_replay))
    return replace(stages, set_seconds=seconds, set_bytes=stored, set_replay=replay)


def _best_set(count: int, by_set: Callable[[Ints], tuple[Ints, Ints]], otherwise: Ints) -> Ints:
    """The furthest that any set of modules reaches: the less of how far its time and its memory do.

    The slower a set the less far its time, and the farther its memory: the best is where they meet, or next to it.
    """
    if not count:
        return otherwise
    best, low = otherwise, np.zeros(len(otherwise), dtype=np.int64)
    high = np.full(len(otherwise), count - 1)
    for _ in range(int(count - 1).bit_length() + 1):
        middle = (low + high) // 2
        in_time, fits = by_set(middle)
        best = np.maximum(best, np.minimum(in_time, fits))
        enough = fits >= in_time
        low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
    return best
