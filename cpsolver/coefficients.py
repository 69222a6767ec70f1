"""The cost tables of all rows as stage coefficients, for any choice of chip types along the pipeline.

For a bottleneck time a stage can host only so many layers: its time and its memory are both linear in layers and
recomputed layers, so the most that fits is a closed form (`Stages.hosted`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from cpsolver.cost.comm import fast_domain
from cpsolver.cost.shard import Bools, Candidates, Floats, Ints
from cpsolver.cost.tables import MemoryTable, TimeTable, crosses_domain, memory_table, time_table
from cpsolver.decisions import forbidden_for, pinned_for
from cpsolver.problem import Problem
from cpsolver.schedule import peak_live_total
from cpsolver.strategy import RecomputeKind

KINDS: tuple[RecomputeKind, ...] = ("none", "selective", "block", "uniform")


def allowed_kinds(problem: Problem, chip: str) -> tuple[RecomputeKind, ...]:
    """The kinds of recomputation that the pins and bans leave for a chip type."""
    pinned = pinned_for(problem.spec.search.pin.recompute, chip)
    banned = forbidden_for(problem.spec.search.forbid.recompute, chip)
    return tuple(kind for kind in KINDS if (pinned is None or kind in pinned) and kind not in banned)


@dataclass(frozen=True)
class Stages:
    """Coefficients of every stage of n rows with the same pp; arrays (n, pp) or (n, 1), seconds and bytes.

    A stage of L layers, R of them recomputed, takes layer * L + recompute * R + fixed seconds and needs
    states * L + live * (full * L - (full - checkpoint) * R) bytes of its room, `live` being the microbatches in
    flight; its layers are a multiple of `least`, one or more in each chunk. `allowed` says which kinds of
    recomputation each stage may use; `after_*` are the seconds that follow the pipeline.
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
    checkpoint: Floats
    least: Floats
    after_layer: Floats
    after_fixed: Floats
    allowed: dict[RecomputeKind, Bools]

    @classmethod
    def side_by_side(cls, blocks: list[Stages]) -> Stages:
        """The stages of several blocks in one: columns of the first, then of the second, and so on."""
        shape = blocks[0].fixed.shape

        def joined(name: str) -> Floats:
            return np.concatenate([np.broadcast_to(getattr(block, name), shape) for block in blocks], axis=1)

        arrays = {field.name: joined(field.name) for field in fields(cls) if field.name != "allowed"}
        allowed = {kind: np.concatenate([block.allowed[kind] for block in blocks], axis=1) for kind in KINDS}
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
        return self.room / (self.states + self.live * self.kept_selective)

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
            most = self._whole(np.minimum(time / (self.layer + self.selective), self._selective_most))
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
        cheapest = np.where(self.allowed["selective"], np.minimum(needed, self.selective * layers), needed)
        return np.where(layers > self.plain_most + 1e-6, cheapest, 0.0)


class Coefficients:
    """The cost tables of all rows on all chip types, and stage coefficients for any choice of chips by position."""

    def __init__(self, problem: Problem, rows: Candidates) -> None:
        self.problem, self.rows = problem, rows
        tables = [time_table(problem, supply, rows) for supply in problem.supplies]
        self.time = {
            field.name: np.stack([getattr(table, field.name) for table in tables]) for field in fields(TimeTable)
        }
        self.memory: MemoryTable = memory_table(problem, rows)
        self.capacity = np.array([problem.capacity_bytes(supply.chip) for supply in problem.supplies])
        self.domain = np.array([fast_domain(problem, supply.chip) for supply in problem.supplies])
        kinds = [allowed_kinds(problem, name) for name in problem.chip_names]
        self.allowed = {kind: np.array([kind in some for some in kinds]) for kind in KINDS}

    def links(self, row: Ints, chips: Ints, relaxed: bool) -> Floats:
        """Seconds per microbatch that each stage spends on transfers, shape (n, pp) (see evaluate's account of it).

        `relaxed` takes the faster of both kinds of link everywhere, so that neighbours may be any chips.
        """
        pp = chips.shape[1]
        if pp == 1:
            return np.zeros(chips.shape)
        near, far = self.time["hop_near"][chips, row[:, None]], self.time["hop_far"][chips, row[:, None]]
        vpp = self.rows.vpp[row][:, None].astype(np.float64)
        if relaxed:
            link = np.minimum(near, far)
            forward, wrap = link[:, :-1], link[:, :1]
        else:
            forward, wrap = self._forward_links(row, chips, near, far)
        share = np.where(vpp == 1, 1.0, 1.0 - self.problem.stack.pipeline_overlap_interleaved)
        share = share * self.problem.stack.pipeline_transfers / 2.0
        back = wrap * (vpp - 1)
        into = np.concatenate([back, vpp * forward], axis=1)
        out = np.concatenate([vpp * forward, back], axis=1)
        return np.asarray(share * (into + out))

    def _forward_links(self, row: Ints, chips: Ints, near: Floats, far: Floats) -> tuple[Floats, Floats]:
        pp = chips.shape[1]
        width = self.rows.stage_devices[row][:, None]
        domain = self.domain[chips]
        other = chips[:, :-1] != chips[:, 1:]
        crossing = other | crosses_domain(np.arange(pp - 1)[None, :], width, domain[:, :-1])
        forward = np.where(crossing, np.maximum(far[:, :-1], far[:, 1:]), np.maximum(near[:, :-1], near[:, 1:]))
        ends = chips[:, :1] != chips[:, -1:]
        outside = ends | (pp * width > domain[:, -1:])
        wrap = np.where(outside, np.maximum(far[:, :1], far[:, -1:]), np.maximum(near[:, :1], near[:, -1:]))
        return forward, wrap

    def stages(self, row: Ints, chips: Ints, relaxed: bool = False) -> Stages:
        """Stage coefficients of rows with the same pp; `chips` (n, pp) holds chip indices by position."""
        pp, at = chips.shape[1], row[:, None]
        time = {name: values[chips, at] for name, values in self.time.items()}
        first = (np.arange(pp) == 0)[None, :]
        last = (np.arange(pp) == pp - 1)[None, :]
        memory = self.memory
        factor = 1.0 + memory.overhead
        states = first * memory.first_states[at] + last * memory.last_states[at]
        buffer = np.where(last, memory.last_buffer[at], memory.buffer[at])
        return Stages(
            layer=time["layer"],
            recompute=time["recompute"],
            selective=time["selective"],
            fixed=self.links(row, chips, relaxed)
            + self.rows.vpp[at] * time["chunk"]
            + first * time["embedding"]
            + last * time["head"],
            room=self.capacity[chips] - memory.fixed - states - factor * buffer,
            states=memory.layer_states[at],
            live=self._live(row, pp),
            full=factor * memory.full[at],
            kept_selective=factor * memory.selective[at],
            checkpoint=factor * memory.checkpoint[at],
            least=self.rows.vpp[at].astype(np.float64),
            after_layer=time["sync_layer"] + time["update_layer"],
            after_fixed=time["sync_stage"]
            + time["update_stage"]
            + first * (time["sync_first"] + time["update_first"])
            + last * (time["sync_last"] + time["update_last"]),
            allowed={kind: may[chips] for kind, may in self.allowed.items()},
        )

    def _live(self, row: Ints, pp: int) -> Floats:
        """Microbatches in flight at each stage's peak, chunks counted as their share: shape (n, pp)."""
        vpp, m = self.rows.vpp[row], np.minimum(self.rows.microbatches[row], 4 * pp)
        pairs, back = np.unique(np.stack([vpp, m]), axis=1, return_inverse=True)
        totals = [peak_live_total(pp, v, count) / v for v, count in pairs.T.tolist()]
        return np.asarray(np.stack(totals)[back.ravel()])

    def weights(self, row: Ints) -> tuple[Floats, Floats]:
        """Step time = first * slowest stage + second * sum of stages + what follows."""
        vpp = self.rows.vpp[row].astype(np.float64)
        return self.rows.microbatches[row] - 1.0 / vpp, 1.0 / vpp
