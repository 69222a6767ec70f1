"""Stage coefficients of many rows at once, and how many layers they let a stage hold within a time.

A stage's time and its memory are both linear in its layers and in those that it recomputes, so the most layers that it
holds within a bottleneck time is a closed form (`Stages.most_layers`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from cpsolver.cost.shard import Bools, Floats, Ints
from cpsolver.plans.strategy import RECOMPUTE_KINDS, RecomputeKind

NO_SET = {"set_seconds": 0.0, "set_bytes": 1e30, "set_replay": 1e30}
"""Fields of Stages by set of modules, and their values where there is no set: no seconds, and no room for a layer."""
WHOLE = 1e-6
"""A quotient this little below a whole number of layers counts as that number. It is 1000 times what rounding errors of
1e-9 make of some hundred layers, and too little to matter to a bound should it be wrong."""
ROUNDING = 1e-9
"""Relative; what chains of floating-point sums may be off by, with much to spare."""
_MANY = 1e9
"""More layers than any model has: quotients are cut here, so that infinite ones round as well."""


@dataclass(frozen=True)
class Need:
    """What every layer of a stage needs beyond its own seconds and states, and what is needed once: seconds, bytes."""

    seconds: Floats
    in_flight: Floats
    once: Floats


@dataclass(frozen=True)
class Stages:
    """Coefficients of every stage of n rows with the same pp; arrays (n, pp) or (n, 1), seconds and bytes.

    A stage of L layers, R of them recomputed, takes layer * L + recompute * R + fixed seconds and needs
    states * L + live * (full * L - (full - checkpoint) * R) bytes of its room, `live` being the microbatches in
    flight, and a layer's bytes more where a forward runs beside a backward (`beside`, 1 or 0). Its layers are a
    multiple of `chunks`, one or more in each. `set_seconds`, `set_bytes` and `set_replay` (sets, n, pp or 1) are a
    layer's further seconds, its bytes in flight, and the bytes that are there once while modules are recomputed, under
    the sets of modules that are worth it on some stage. `allowed` says which kinds of recomputation each stage may use;
    `after_*` are the seconds that follow the pipeline.

    With layers of several kinds `layer` and `states` are those of the mean layer; `fixed` is less by `saving`, the most
    that a stage can save by holding cheap layers, and `room` is larger by the same in bytes: bounds stay bounds.
    """

    layer: Floats
    recompute: Floats
    set_seconds: Floats
    fixed: Floats
    room: Floats
    states: Floats
    live: Floats
    beside: Floats
    full: Floats
    set_bytes: Floats
    set_replay: Floats
    checkpoint: Floats
    chunks: Floats
    after_layer: Floats
    after_fixed: Floats
    saving: Floats
    allowed: dict[RecomputeKind, Bools]

    @classmethod
    def side_by_side(cls, blocks: list[Stages]) -> Stages:
        """The stages of several blocks in one: columns of the first, then of the second, and so on."""
        shape = blocks[0].fixed.shape

        def joined(name: str) -> Floats:
            if name in NO_SET:
                return _joined_sets([getattr(block, name) for block in blocks], shape, NO_SET[name])
            return np.concatenate([np.broadcast_to(getattr(block, name), shape) for block in blocks], axis=1)

        arrays = {field.name: joined(field.name) for field in fields(cls) if field.name != "allowed"}
        allowed = {kind: np.concatenate([block.allowed[kind] for block in blocks], axis=1) for kind in RECOMPUTE_KINDS}
        return cls(**arrays, allowed=allowed)

    @property
    def pp(self) -> int:
        """How many stages there are."""
        return int(self.fixed.shape[1])

    def take(self, rows: Ints) -> Stages:
        """Those of some of the rows, each as often as it is named."""
        alone = len(self.fixed) == 1
        return self._each(lambda array: array[..., rows, :] if alone or array.shape[-2] > 1 else array)

    def without(self, start: int, end: int) -> Stages:
        """Those of all places but some neighbouring ones."""
        left = np.r_[:start, end : self.pp]
        return self if start == end else self._each(lambda array: array[..., left] if array.shape[-1] > 1 else array)

    def _each(self, change: Callable[[Any], Any]) -> Stages:
        """All arrays changed alike; those (.., 1, pp) or (.., 1) are the same for all rows or places."""
        arrays = {field.name: change(getattr(self, field.name)) for field in fields(self) if field.name != "allowed"}
        return Stages(**arrays, allowed={kind: change(may) for kind, may in self.allowed.items()})

    def one_by_one(self) -> Stages:
        """All stages as rows of one stage each, (n * pp, 1): row by row, and therein place by place; without their sets
        of modules, of which there are many."""
        shape = self.fixed.shape
        arrays = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "allowed"}
        own = {
            name: np.zeros((0, 1, 1)) if name in NO_SET else np.broadcast_to(array, shape).reshape(-1, 1)
            for name, array in arrays.items()
        }
        allowed = {kind: np.broadcast_to(may, shape).reshape(-1, 1) for kind, may in self.allowed.items()}
        return Stages(**own, allowed=allowed)

    # What a kind of recomputation needs. Of block recomputation, which recomputes some of the layers, nothing and
    # everything recomputed are the two ends.

    @cached_property
    def plain(self) -> Need:
        """Nothing recomputed."""
        return Need(np.zeros((1, 1)), self.live * self.full, self.beside * self.full)

    @cached_property
    def recomputed(self) -> Need:
        """Every layer recomputed on its own: one is there in full at a time."""
        return Need(self.recompute, self.live * self.checkpoint, self.full + self.beside * self.full)

    @cached_property
    def by_set(self) -> Need:
        """Sets of modules recomputed in every layer: (sets, n, pp)."""
        return Need(self.set_seconds, self.live * self.set_bytes, self.set_replay + self.beside * self.set_bytes)

    @cached_property
    def seconds_for_byte(self) -> Floats:
        """Seconds of recomputation that free a byte, layer by layer."""
        return self.recompute / self._freed

    @cached_property
    def _freed(self) -> Floats:
        """Bytes that recomputing a layer frees."""
        return self.live * (self.full - self.checkpoint)

    # The most layers that fit, not rounded, whatever time they take.

    def _most_that_fit(self, need: Need) -> Floats:
        return np.asarray((self.room - need.once) / (self.states + need.in_flight))

    @cached_property
    def _most_plain(self) -> Floats:
        return self._most_that_fit(self.plain)

    @cached_property
    def _most_recomputed(self) -> Floats:
        return self._most_that_fit(self.recomputed)

    @cached_property
    def _most_by_set(self) -> Floats:
        return self._most_that_fit(self.by_set)

    @cached_property
    def _most_uniform(self) -> Floats:
        # `uniform_bytes` with units of any real size, also below 1, is twice the root of live * checkpoint * L * full.
        root = np.sqrt(self.live * self.checkpoint * self.full)
        reach = np.sqrt(root**2 + self.states * np.maximum(0.0, self.room)) - root
        return np.asarray((reach / self.states) ** 2)

    # Once memory is full every further layer costs recomputation: `_recomputed_per_layer` layers of it, beginning with
    # the layer at which recomputing what all before freed (`_recomputed_offset`) is used up.

    @cached_property
    def _recomputed_per_layer(self) -> Floats:
        return (self.states + self.live * self.full) / self._freed

    @cached_property
    def _recomputed_offset(self) -> Floats:
        return (self.room - self.full) / self._freed

    def _recomputed_for(self, layers: Floats) -> Floats:
        """Recomputed layers that make that many fit, as many in each chunk."""
        needed = self._recomputed_per_layer * layers - self._recomputed_offset
        needed = np.minimum(np.maximum(needed, 0.0), layers)
        return np.ceil(needed / self.chunks - WHOLE) * self.chunks

    def most_layers(self, bottleneck: Floats) -> Floats:
        """The most layers, in whole chunks, that each stage holds within that time; -1: not even its least.

        `bottleneck`: one time for all stages of a plan, (n,), or each stage's own, (n, pp), or many such, (.., n, pp).
        """
        time = (bottleneck if bottleneck.ndim > 1 else bottleneck[:, None]) - self.fixed
        in_time = time / self.layer
        most = np.full(time.shape, -1.0)
        if self._any("none") or self._any("block"):
            may = self.allowed["none"] | self.allowed["block"]
            most = np.where(may, self._whole(np.minimum(in_time, self._most_plain)), most)
        if self._any("block"):
            most = np.where(self.allowed["block"], np.maximum(most, self._block(time, in_time)), most)
        if self._any("uniform"):
            layers = self._whole(np.minimum(time / (self.layer + self.recompute), self._most_uniform))
            most = np.where(self.allowed["uniform"], np.maximum(most, layers), most)
        if self._any("selective"):
            layers = self._whole(self._selective(time))
            most = np.where(self.allowed["selective"], np.maximum(most, layers), most)
        return np.where(most >= self.chunks, most, -1.0)

    def _any(self, kind: RecomputeKind) -> bool:
        return self._some[kind]

    @cached_property
    def _some(self) -> dict[RecomputeKind, bool]:
        return {kind: bool(allowed.any()) for kind, allowed in self.allowed.items()}

    def _whole(self, layers: Floats) -> Floats:
        """Rounded down to whole layers in every chunk."""
        return np.floor(np.minimum(np.maximum(layers, -1.0), _MANY) / self.chunks + WHOLE) * self.chunks

    def _block(self, time: Floats, in_time: Floats) -> Floats:
        """The most layers, in whole chunks, with some of them recomputed, as many in each chunk.

        The most real layers first. If the recomputation that they need, rounded up, takes too long, one layer less in
        each chunk is within time: it frees more than the rounding costs, for a layer takes longer than its forward.
        """
        layer = self.layer + self.recompute * self._recomputed_per_layer
        paid = (time + self.recompute * self._recomputed_offset) / layer
        most = self._whole(np.minimum(np.minimum(in_time, paid), self._most_recomputed))
        late = self.layer * most + self.recompute * self._recomputed_for(most) > time * (1 + ROUNDING)
        return most - np.where(late, self.chunks, 0.0)

    def _selective(self, time: Floats) -> Floats:
        """The most layers, not rounded, with the best set of modules."""
        most, layers = np.full(time.shape, -1.0), np.empty(time.shape)
        for layer, fit in zip(self._layer_by_set, self._most_by_set, strict=True):
            np.divide(time, layer, out=layers)  # in place: there are many sets, and arrays are large
            np.minimum(layers, fit, out=layers)
            np.maximum(most, layers, out=most)
        return most

    @cached_property
    def _layer_by_set(self) -> list[Floats]:
        return [self.layer + seconds for seconds in self.set_seconds]

    def least_recompute_s(self, layers: Floats) -> Floats:
        """The least seconds of recomputation that make that many layers fit, or more than them, on each stage."""
        needed = np.minimum(self._recomputed_for(layers), layers) * self.recompute
        for seconds, fit in zip(self.set_seconds, self._most_by_set, strict=True):
            may = self.allowed["selective"] & (layers <= fit + WHOLE)
            needed = np.where(may, np.minimum(needed, seconds * layers), needed)
        return np.where(layers > self._most_plain + WHOLE, needed, 0.0)


def uniform_bytes(in_flight: Floats, full: Floats) -> Floats:
    """The least bytes of layers recomputed in units of any real size from 1 on.

    `in_flight`: bytes where every layer is a unit of its own, live * checkpoint * layers. Units of g layers keep a g-th
    of that and work on g * full.
    """
    unit = np.sqrt(np.maximum(1.0, in_flight / full))
    return np.asarray(in_flight / unit + unit * full)


def _joined_sets(parts: list[Floats], shape: tuple[int, ...], nothing: float) -> Floats:
    """Side by side, with as many sets each."""
    count = max(len(part) for part in parts)
    joined = np.full((len(parts), count, *shape), nothing)
    for index, part in enumerate(parts):
        joined[index, : len(part)] = part
    return np.concatenate(list(joined), axis=2)
