"""What the stages of pipelines take: one formula, which evaluations read part by part and bounds as coefficients.

A stage's seconds are linear in its layers and in those that it recomputes; only what compute hides of sharded weights
on their way is not. Evaluations ask for the layers of one plan (`stage_seconds`). Bounds read the same parts of
thousands of pipelines at no layers, and a layer's own seconds as the slope.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cpsolver.cost.collectives import fast_domain
from cpsolver.cost.hops import FarHops, Neighbours
from cpsolver.cost.shard import Bools, Candidates, Floats, Ints
from cpsolver.cost.split_backward import weight_share
from cpsolver.cost.tables import TimeTable, stacked
from cpsolver.problem.problem import Problem, Supply


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of every stage by part, arrays (n, pp).

    Of one microbatch: `compute`, `tensor_parallel` (communication inside the layers, embedding and head), `recompute`,
    `sharding` (weights gathered and gradients scattered, as far as nothing hides it) and `pipeline_p2p` (transfers
    between stages, as far as a stage waits for them). `to_next` is how long activations travel to the next stage,
    whichever of the two waits. `forward` is the forward pass within the first two, `weight_gradients` the W of a split
    backward pass. Of a V: `later`, `later_forward` and `later_weight_gradients`, by how much the second chunk takes
    longer than the first, which counts embedding, head and kinds of layers, but not what is recomputed. Once a step,
    after the pipeline: `data_parallel` and `optimizer`.
    """

    compute: Floats
    tensor_parallel: Floats
    recompute: Floats
    sharding: Floats
    pipeline_p2p: Floats
    data_parallel: Floats
    optimizer: Floats
    forward: Floats
    weight_gradients: Floats
    to_next: Floats
    later: Floats
    later_forward: Floats
    later_weight_gradients: Floats


@dataclass(frozen=True)
class ChipTimes:
    """The time tables of some chip types for the same rows.

    `time` has an axis of chip types before the rows: (types, rows), or (types, kinds or modules, rows). `domain`: the
    devices in a fast domain of each type; `latency`: seconds of its network; `far`: what lies beyond, if anything does.
    """

    problem: Problem
    rows: Candidates
    time: TimeTable
    domain: Ints
    latency: Floats
    far: FarHops | None

    @classmethod
    def of(cls, problem: Problem, supplies: list[Supply], rows: Candidates, tables: list[TimeTable]) -> ChipTimes:
        """`tables`: each supply's time table of the rows."""
        domain = np.array([fast_domain(problem, each.chip) for each in supplies])
        latency = np.array([each.chip.network_latency_s for each in supplies])
        return cls(problem, rows, stacked(tables), domain, latency, FarHops.of(problem, supplies, rows))

    def take(self, rows: Any) -> ChipTimes:
        """Some of the rows: indices or a mask."""
        far = None if self.far is None else self.far.take(rows)
        return replace(self, rows=self.rows.take(rows), time=self.time.take(rows), far=far)


@dataclass(frozen=True)
class Pipelines:
    """n pipelines of pp stages each: row[i] of the tables with chip type chips[i, p] on stage p; (n,) and (n, pp).

    Where stages have degrees of their own, `row` too is by stage, (n, pp): rows of equal microbatches and chunks.
    Methods give seconds of every stage, (n, pp); `layers` are a stage's layers, (n, pp), without what stands in the
    place of one.
    """

    tables: ChipTimes
    row: Ints
    chips: Ints

    @property
    def pp(self) -> int:
        """Stages of each pipeline."""
        return int(self.chips.shape[1])

    @cached_property
    def by_stage(self) -> Ints:
        """The row of every stage: (n, pp), or (n, 1) where stages share it."""
        return self.row if self.row.ndim == 2 else self.row[:, None]

    @property
    def _first(self) -> Ints:
        return np.asarray(self.by_stage[:, 0])

    @property
    def _last(self) -> Ints:
        return np.asarray(self.by_stage[:, -1])

    @cached_property
    def vpp(self) -> Floats:
        """Chunks of each stage: (n, 1)."""
        return self.tables.rows.vpp[self._first][:, None].astype(np.float64)

    @cached_property
    def slots(self) -> Ints:
        """Layers of a stage in whose place the embedding or the head stands."""
        rows = self.tables.rows
        return np.asarray(self.at_ends(rows.embedding_slot[self._first], rows.loss_slot[self._last]))

    @cached_property
    def _v_shaped(self) -> Bools:
        """Pipelines whose first stage holds the head too: (n,)."""
        return np.asarray(self.tables.rows.v_shaped[self._first])

    @cached_property
    def _both_ways(self) -> Bools:
        """Pipelines that stand for two halves: (n,)."""
        return np.asarray(self.tables.rows.both_ways[self._first])

    @cached_property
    def head_stage(self) -> Ints:
        """The stage that holds the head: (n,)."""
        return np.where(self._v_shaped, 0, self.pp - 1)

    @cached_property
    def _only_type(self) -> int | None:
        """The chip type of all stages, where there is one."""
        first = int(self.chips.flat[0]) if self.chips.size else 0
        return first if bool((self.chips == first).all()) else None

    def at(self, column: Floats) -> Floats:
        """A column (types, rows) of the tables by stage."""
        if self._only_type is not None:
            return np.broadcast_to(column[self._only_type, self.by_stage], self.chips.shape)
        return np.asarray(column[self.chips, self.by_stage])

    def at_ends(self, first: Any, last: Any) -> Any:
        """Values (n,) of the model's beginning and end, on the stages that hold them; 0 on others.

        These are the first and the last, or of a V the first alone: it has one chip type, so "of the last" is right.
        """
        values = np.zeros(self.chips.shape, dtype=np.result_type(first, last))
        values[:, 0] = first
        if self._v_shaped.any():
            values[np.arange(len(values)), self.head_stage] += last
        else:
            values[:, -1] += last
        return values

    def _of_first(self, column: Floats) -> Floats:
        return np.asarray(column[self.chips[:, 0], self._first])

    def _of_last(self, column: Floats) -> Floats:
        return np.asarray(column[self.chips[:, -1], self._last])

    @cached_property
    def ends(self) -> Floats:
        """Embedding and head. In layers' places in a chunk they take no less time than the layers of other chunks.

        A shorter chunk would only wait for those of its neighbours, and a longer one holds up all (pipeline_events).
        """
        time, rows = self.tables.time, self.tables.rows
        embedding = rows.embedding_slot[self._first] * self._of_first(time.layer)
        head = rows.loss_slot[self._last] * self._of_last(time.layer)
        first, last = np.maximum(self._of_first(time.embedding), embedding), np.maximum(self._of_last(time.head), head)
        return np.asarray(self.at_ends(first, last))

    @cached_property
    def ends_later(self) -> Floats:
        """Of a V: by how much the head is longer than the embedding, each less the layers in whose places it stands."""
        if not self._v_shaped.any():
            return np.zeros(self.chips.shape)
        time, rows, first = self.tables.time, self.tables.rows, self._first
        layer = self._of_first(time.layer)
        embedding = np.maximum(0.0, self._of_first(time.embedding) - rows.embedding_slot[first] * layer)
        head = np.maximum(0.0, self._of_first(time.head) - rows.loss_slot[first] * layer)
        return np.asarray(self.at_ends(np.where(self._v_shaped, head - embedding, 0.0), 0.0))

    @cached_property
    def forward(self) -> Floats:
        """The forward pass of a layer."""
        return self.at(self.tables.time.recompute - self.tables.time.collected)

    @cached_property
    def weight_gradients(self) -> Floats:
        """W of a layer, where backward is split (split_backward.py); none of frozen ones."""
        layer = self.at(self.tables.time.layer)
        share = weight_share(self.forward / layer)
        return layer * share * (self.tables.problem.lora is None)

    @cached_property
    def weight_ends(self) -> Floats:
        """The same of embedding and head: a third."""
        return self.ends / 3.0 * (self.tables.problem.lora is None)

    @cached_property
    def forward_ends(self) -> Floats:
        """Forward of embedding and head, a third (frozen: half), and of the host's work, half.

        In layers' places a chunk waits for the passes of others: it takes their forward there, and a third of what
        embedding or head take beyond these layers.
        """
        passes = 3.0 if self.tables.problem.lora is None else 2.0
        layers = self.slots * self.at(self.tables.time.layer)
        return self.slots * self.forward + (self.ends - layers) / passes + self.host / 2.0

    @cached_property
    def host(self) -> Floats:
        """The host's work for every chunk of a microbatch."""
        return np.asarray(self.vpp * self.at(self.tables.time.chunk))

    @cached_property
    def ends_tensor(self) -> Floats:
        """Communication within `ends`."""
        time = self.tables.time
        end, module = self._of_last(time.end_tp), self._of_last(time.mtp_tp)
        first = self._of_first(time.end_tp) + self._of_first(time.encoder_tp)
        return np.asarray(self.at_ends(first, end) + self.at_ends(0.0, module))

    def p2p(self, any_neighbours: bool = False) -> Floats:
        """What a stage waits for of its transfers; `any_neighbours` as in `transfers`."""
        return self.waited(*self.transfers(any_neighbours))

    def waited(self, before: Floats, after: Floats) -> Floats:
        """Of transfers with the stage before and with the next: what buffers hold (`waited_share`) only the later of
        two stages waits for, or with `pipeline_sends_first` only the earlier."""
        stack = self.tables.problem.stack
        if not stack.pipeline_buffer_mib:
            return np.asarray(before + after)
        both = self.at(self.tables.time.hop_waited)
        return np.asarray(both * before + after if stack.pipeline_sends_first else before + both * after)

    def transfers(self, any_neighbours: bool = False) -> tuple[Floats, Floats]:
        """Transfers with the stage before and with the next. Between chip types they take the slower end's time.

        Interleaving sends every chunk's activations, also from the last stage back to the first; part of that is
        hidden. Stages placed as a V send theirs to both neighbours, and none around, but for those of BOTH_WAYS across
        the middle of their pipeline; nothing of these is hidden. `any_neighbours`: the least where chips may stand in
        any order, the faster kind of link everywhere.
        """
        if self.pp == 1 and not self._both_ways.any():
            return np.zeros(self.chips.shape), np.zeros(self.chips.shape)
        near, far = self.at(self.tables.time.hop_near), self.at(self.tables.time.hop_far)
        if any_neighbours:
            link = np.minimum(near, far)
            onward, back, middle = link[:, :-1], link[:, :1], link[:, -1:]
        else:
            onward, back = self._links(near, far)
            middle = self._middle(near, far)
        stack, both_ways = self.tables.problem.stack, self._both_ways[:, None]
        share = np.where((self.vpp == 1) | both_ways, 1.0, 1.0 - stack.pipeline_overlap_interleaved)
        share = share * (stack.pipeline_transfers / 2.0)
        back = back * (self.vpp - 1) * ~self._v_shaped[:, None]
        into = np.concatenate([back, self.vpp * onward], axis=1)
        out = np.concatenate([self.vpp * onward, np.where(both_ways, self.vpp * middle, back)], axis=1)
        return np.asarray(share * into), np.asarray(share * out)

    def _middle(self, near: Floats, far: Floats) -> Floats:
        """Seconds of one transfer between the two halves of a pipeline of BOTH_WAYS: (n, 1)."""
        last, width = slice(-1, None), self._width
        crossing = crosses_domain((self.pp - 1) * width, (self.pp + 1) * width - 1, self.tables.domain[self.chips])
        onward = np.where(crossing, far, near)[:, last]
        if self.tables.far is not None:
            first, ends = ((self.pp - 1) * width)[:, last], ((self.pp + 1) * width)[:, last]
            onward = np.maximum(onward, self._beyond(last, last, first, width, ends))
        return np.asarray(onward)

    @cached_property
    def _width(self) -> Ints:
        """Devices of every stage of a pipeline, of BOTH_WAYS of either half: (n, pp)."""
        width = self.tables.rows.stage_devices[self.by_stage] // np.where(self._both_ways, 2, 1)[:, None]
        return np.broadcast_to(width, self.chips.shape)

    def _links(self, near: Floats, far: Floats) -> tuple[Floats, Floats]:
        """Seconds of one transfer to the next stage, (n, pp - 1), and from the last back to the first, (n, 1).

        Where stages differ in width every device still sends and receives its own share, one partner after another:
        each partner beyond the first costs a latency. Of BOTH_WAYS the first half's links stand for those of the other,
        which are the same the other way round.
        """
        chips, domain, width = self.chips, self.tables.domain[self.chips], self._width
        ends = width.cumsum(axis=1)
        crossing = crosses_domain((ends - width)[:, :-1], ends[:, 1:] - 1, domain[:, :-1])
        crossing |= chips[:, :-1] != chips[:, 1:]
        over = np.maximum(far[:, :-1], far[:, 1:])
        if self.row.ndim == 2:
            latency = self.tables.latency[chips]
            over = np.maximum(
                far[:, :-1] + latency[:, :-1] * (-(-width[:, 1:] // width[:, :-1]) - 1),
                far[:, 1:] + latency[:, 1:] * (-(-width[:, :-1] // width[:, 1:]) - 1),
            )
        onward = np.where(crossing, over, np.maximum(near[:, :-1], near[:, 1:]))
        outside = (chips[:, :1] != chips[:, -1:]) | (ends[:, -1:] > domain[:, -1:])
        back = np.where(outside, np.maximum(far[:, :1], far[:, -1:]), np.maximum(near[:, :1], near[:, -1:]))
        if self.tables.far is not None:
            onward = np.maximum(onward, self._beyond(slice(0, -1), slice(1, None), (ends - width)[:, :-1], width, ends))
            back = np.maximum(back, self._beyond(slice(-1, None), slice(0, 1), 0 * width[:, :1], width, ends[:, -1:]))
        return onward, back

    def _beyond(self, sender: slice, receiver: slice, first: Ints, width: Ints, ends: Ints) -> Floats:
        """What transfers take at least for the levels that they cross beyond fast domains, and for links: (n, k)."""
        assert self.tables.far is not None
        rows = np.broadcast_to(self.by_stage, self.chips.shape)
        last = ends[:, receiver] - 1 if ends.shape == self.chips.shape else ends - 1
        partners = (
            np.maximum(-(-width[:, receiver] // width[:, sender]), -(-width[:, sender] // width[:, receiver])) - 1
        )
        chips = (self.chips[:, sender], self.chips[:, receiver])
        return self.tables.far.least(Neighbours(chips, (rows[:, sender], rows[:, receiver]), first, last, partners))

    def sharding(self, layers: Floats | float, recompute_s: Floats) -> Floats:
        """Gathering sharded weights, twice, and scattering gradients, as far as compute does not hide it.

        Weights come before a layer's forward, and again before its backward, whose recomputation (`recompute_s`) uses
        them too.
        """
        time, ends = self.tables.time, self.at_ends(0.5, 0.5)
        forward = layers * self.forward
        backward = np.maximum(0.0, layers * self.at(time.layer) - forward + recompute_s)
        gather = layers * self.at(time.gather) + ends * self.at(time.gather_ends)
        scatter = layers * self.at(time.scatter) + ends * self.at(time.scatter_ends)
        hidden = np.minimum(gather, forward) + np.minimum(gather + scatter, backward)
        return np.asarray(2 * gather + scatter - float(self.tables.problem.stack.sharding_overlap) * hidden)

    def data_parallel(self, layers: Ints | Floats) -> Floats:
        """Communication of replicas once a step that nothing hides."""
        time = self.tables.time
        ends = self.at_ends(self._of_first(time.sync_first), self._of_last(time.sync_last))
        if (far := self.tables.far) is not None:
            first, last = self.chips[:, 0], self.chips[:, -1]
            ends = ends + self.at_ends(far.tied[first, last, self._first], far.tied[last, first, self._last])
        return np.asarray(layers * self.at(time.sync_layer) + self.at(time.sync_stage) + ends)

    def optimizer(self, layers: Ints | Floats) -> Floats:
        """The optimizer's step."""
        time = self.tables.time
        ends = self.at_ends(self._of_first(time.update_first), self._of_last(time.update_last))
        return np.asarray(layers * self.at(time.update_layer) + self.at(time.update_stage) + ends)


def stage_seconds(
    stages: Pipelines, layers: Ints, recomputed: Ints, modules_s: Floats, kinds: Floats, kinds_later: Floats
) -> StageSeconds:
    """All parts of the stages' seconds.

    Args:
        stages: n pipelines of pp stages.
        layers: each stage's layers, (n, pp).
        recomputed: places of a layer that a stage recomputes whole, (n, pp).
        modules_s: seconds that recomputed modules add to every place of a layer, (n, pp).
        kinds: each stage's layers of each kind, (kinds, n, pp).
        kinds_later: of a V, how many more of each kind its second chunk has, of the same shape.
    """
    time, layer = stages.tables.time, stages.at(stages.tables.time.layer)
    tensor = layers * stages.at(time.layer_tp) + _beyond_mean(stages, time.kind_layer_tp, kinds) + stages.ends_tensor
    beyond = _beyond_mean(stages, time.kind_layer, kinds)
    recompute = recomputed * stages.at(time.recompute) + (layers + stages.slots) * modules_s
    transfers = stages.transfers()
    later = stages.ends_later + _beyond_mean(stages, time.kind_layer, kinds_later)
    return StageSeconds(
        compute=layers * layer + beyond + stages.ends - tensor + stages.host,
        tensor_parallel=tensor,
        recompute=recompute,
        sharding=stages.sharding(layers.astype(np.float64), recompute),
        pipeline_p2p=stages.waited(*transfers),
        data_parallel=stages.data_parallel(layers),
        optimizer=stages.optimizer(layers),
        # A recomputed layer runs its forward again. What a kind of layer takes beyond the mean layer splits as the mean
        # layer does, and so does what a chunk takes more than the other.
        forward=(layers + beyond / layer) * stages.forward + stages.forward_ends,
        weight_gradients=(layers + beyond / layer) * stages.weight_gradients + stages.weight_ends,
        to_next=transfers[1] / (stages.tables.problem.stack.pipeline_transfers / 2.0),
        later=later,
        later_forward=later * stages.forward / layer,
        later_weight_gradients=later * stages.weight_gradients / layer,
    )


def _beyond_mean(stages: Pipelines, column: Floats, kinds: Floats) -> Floats:
    """What layers of several kinds take beyond as many mean ones; `column`: (types, kinds, rows)."""
    seconds = np.zeros(stages.chips.shape)
    for kind in range(column.shape[1]):
        seconds = seconds + kinds[kind] * stages.at(column[:, kind])
    return seconds


def crosses_domain(first: Ints, last: Ints, domain: Any) -> Bools:
    """Whether a device of a stage sits in another fast domain than its peer in the next (rank order tp-dp-pp).

    `first`: the first rank of a stage; `last`: the last rank of the next.
    """
    return np.asarray(first // domain != last // domain)
