"""Stage coefficients of many rows at once, and what they say of layers within a time.

For a bottleneck time a stage can host only so many layers: its time and its memory are both linear in layers and
recomputed layers, so the most that fits is a closed form (`Stages.hosted`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from cpsolver.cost.shard import Bools, Floats
from cpsolver.plans.strategy import RECOMPUTE_KINDS, RecomputeKind

OF_SETS = {"selective": 0.0, "kept_selective": 1e30, "replay": 1e30}
"""Fields of Stages by set of modules, and their values where there is no set: no seconds, and no room for a layer."""


@dataclass(frozen=True)
class Stages:
    """Coefficients of every stage of n rows with the same pp; arrays (n, pp) or (n, 1), seconds and bytes.

    A stage of L layers, R of them recomputed, takes layer * L + recompute * R + fixed seconds and needs
    states * L + live * (full * L - (full - checkpoint) * R) bytes of its room, `live` being the microbatches in
    flight; its layers are a multiple of `least`, one or more in each chunk. `selective`, `kept_selective` and `replay`
    (sets, n, pp or 1) are a layer's further seconds, its bytes in flight, and the bytes that are there once while
    modules run again, under the sets of modules that are worth it on some stage. `allowed` says which kinds of
    recomputation each stage may use; `after_*` are the seconds that follow the pipeline.

    With layers of several kinds `layer` and `states` are those of the mean layer; `fixed` is less by `slack`, the most
    that a stage can save by holding cheap layers, and `room` is larger by the same in bytes: bounds stay bounds.
    """

    layer: Floats
    recompute: Floats
    selective: Floats
    fixed: Floats
    room: Floats
    states: Floats
    live: Floats
    full: Floats
    kept_selective: Floats
    replay: Floats
    checkpoint: Floats
    least: Floats
    after_layer: Floats
    after_fixed: Floats
    slack: Floats
    allowed: dict[RecomputeKind, Bools]

    @classmethod
    def side_by_side(cls, blocks: list[Stages]) -> Stages:
        """The stages of several blocks in one: columns of the first, then of the second, and so on."""
        shape = blocks[0].fixed.shape

        def joined(name: str) -> Floats:
            if name in OF_SETS:
                return _joined_sets([getattr(block, name) for block in blocks], shape, OF_SETS[name])
            return np.concatenate([np.broadcast_to(getattr(block, name), shape) for block in blocks], axis=1)

        arrays = {field.name: joined(field.name) for field in fields(cls) if field.name != "allowed"}
        allowed = {kind: np.concatenate([block.allowed[kind] for block in blocks], axis=1) for kind in RECOMPUTE_KINDS}
        return cls(**arrays, allowed=allowed)

    @cached_property
    def _saved(self) -> Floats:
        return self.live * (self.full - self.checkpoint)

    @cached_property
    def plain_most(self) -> Floats:
        """Layers that fit without recomputation, not rounded."""
        return self.room / (self.states + self.live * self.full)

    @cached_property
    def _block_most(self) -> Floats:
        return (self.room - self.full) / (self.states + self.live * self.checkpoint)

    @cached_property
    def recompute_for_layer(self) -> Floats:
        """Recomputed layers that one more layer costs once memory is full."""
        return (self.states + self.live * self.full) / self._saved

    @cached_property
    def _bought(self) -> Floats:
        return (self.room - self.full) / self._saved

    @cached_property
    def _uniform_most(self) -> Floats:
        # Units of g layers keep live * checkpoint * L / g and work on g * full: with the best real g that is twice
        # the root of the product.
        root = np.sqrt(self.live * self.checkpoint * self.full)
        reach = np.sqrt(root**2 + self.states * np.maximum(0.0, self.room)) - root
        return np.asarray((reach / self.states) ** 2)

    @cached_property
    def _selective_most(self) -> Floats:
        """(sets, n, pp)."""
        return np.asarray((self.room - self.replay) / (self.states + self.live * self.kept_selective))

    def _selective(self, time: Floats) -> Floats:
        """The most layers, not rounded, with the best set of modules."""
        best = np.full(time.shape, -1.0)
        for seconds, most in zip(self.selective, self._selective_most, strict=True):
            best = np.maximum(best, np.minimum(time / (self.layer + seconds), most))
        return best

    def hosted(self, bottleneck: Floats) -> Floats:
        """The most layers, whole chunks, that each stage hosts within that time; -1 where not even its least fits."""
        time = bottleneck[:, None] - self.fixed
        plain = time / self.layer
        best = np.full(time.shape, -1.0)
        if self._some("none") or self._some("block"):
            may = self.allowed["none"] | self.allowed["block"]
            best = np.where(may, self._whole(np.minimum(plain, self.plain_most)), best)
        if self._some("block"):
            best = np.where(self.allowed["block"], np.maximum(best, self._block(time, plain)), best)
        if self._some("uniform"):
            most = self._whole(np.minimum(time / (self.layer + self.recompute), self._uniform_most))
            best = np.where(self.allowed["uniform"], np.maximum(best, most), best)
        if self._some("selective"):
            most = self._whole(self._selective(time))
            best = np.where(self.allowed["selective"], np.maximum(best, most), best)
        return np.where(best >= self.least, best, -1.0)

    def _some(self, kind: RecomputeKind) -> bool:
        return bool(self.allowed[kind].any())

    def _whole(self, layers: Floats) -> Floats:
        """Rounded down to whole layers in every chunk."""
        return np.floor(np.clip(layers, -1.0, 1e9) / self.least + 1e-6) * self.least

    def _block(self, time: Floats, plain: Floats) -> Floats:
        """As `hosted`, with some layers recomputed, as many in each chunk.

        The most real layers first. If the recomputation that they need, rounded up, takes too long, one layer less in
        each chunk is within time: it frees more than the rounding costs, for a layer takes longer than its forward.
        """
        both = (time + self.recompute * self._bought) / (self.layer + self.recompute * self.recompute_for_layer)
        most = self._whole(np.minimum(np.minimum(plain, both), self._block_most))
        late = self.layer * most + self.recompute * self._repeats(most) > time * (1 + 1e-9)
        return most - np.where(late, self.least, 0.0)

    def _repeats(self, layers: Floats) -> Floats:
        """Recomputed layers that make that many fit, as many in each chunk."""
        needed = np.clip(self.recompute_for_layer * layers - self._bought, 0.0, layers)
        return np.ceil(needed / self.least - 1e-6) * self.least

    def repeated(self, layers: Floats) -> Floats:
        """The least seconds of recomputation that make that many layers fit, or more than them, on each stage."""
        needed = np.minimum(self._repeats(layers), layers) * self.recompute
        for seconds, most in zip(self.selective, self._selective_most, strict=True):
            may = self.allowed["selective"] & (layers <= most + 1e-6)
            needed = np.where(may, np.minimum(needed, seconds * layers), needed)
        return np.where(layers > self.plain_most + 1e-6, needed, 0.0)


def _joined_sets(parts: list[Floats], shape: tuple[int, ...], nothing: float) -> Floats:
    """Side by side, with as many sets each."""
    count = max(len(part) for part in parts)
    found = np.full((len(parts), count, *shape), nothing)
    for index, part in enumerate(parts):
        found[index, : len(part)] = part
    return np.concatenate(list(found), axis=2)
