"""What the stages of a row take and hold of microbatches of every size, and the chains of passes that follow."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cpsolver.cost.memory import activation_bytes
from cpsolver.cost.pipeline_events import run_steps
from cpsolver.cost.schedules import SCHEDULES
from cpsolver.cost.shard import Candidates, Floats, Ints
from cpsolver.problem.problem import Problem
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.stages import ROUNDING
from cpsolver.search.compile.options import Option, PlanRow, allowed_options
from cpsolver.search.sizes.sequences import Sequences
from cpsolver.search.sizes.splits import Chains

_SAFETY = 1.0 - ROUNDING
"""Chains are rounded down by this, so that rounding errors never lift one above a schedule run event by event."""


@dataclass(frozen=True)
class Passes:
    """Seconds by size of a microbatch, from 0 on, under one option to recompute: of a layer's forward and backward and
    of recomputing one, (sizes,), and of a stage's without layers, half of its transfers each, (sizes, pp).

    `recomputed`: the layers of a stage that are, by their number from 0 on.
    """

    forward: Floats
    backward: Floats
    recompute: Floats
    forward_once: Floats
    backward_once: Floats
    recomputed: Ints

    def run(self, sequences: Ints, splits: Ints) -> tuple[Floats, LongestChain]:
        """Seconds of pipelines event by event, of one sequence each, (n, microbatches), and one split, (n, pp); and the
        chain of passes that is as long."""
        number = np.arange(len(self.recomputed))[:, None, None]
        forward = self.forward[:, None] * number + self.forward_once
        backward = self.backward[:, None] * number + self.backward_once
        backward = backward + self.recompute[:, None] * self.recomputed[:, None, None]
        at = splits[:, :, None], sequences[:, None, :], np.arange(splits.shape[1])[None, :, None]
        seconds, chain = run_steps(forward[at], backward[at])
        forwards, backwards = (np.swapaxes(chain[:, kind], 1, 2).astype(np.float64) for kind in (0, 1))
        layer = self.forward[sequences][:, None] @ forwards + self.backward[sequences][:, None] @ backwards
        recomputed = self.recompute[sequences][:, None] @ backwards
        once = (self.forward_once[sequences] * forwards + self.backward_once[sequences] * backwards).sum(axis=(1, 2))
        return seconds, LongestChain(layer[:, 0], recomputed[:, 0], once)


@dataclass(frozen=True)
class LongestChain:
    """A chain of passes of n sequences: seconds of each layer of a stage and of each that it recomputes, (n, pp), and
    others, (n,). With any split the sequence takes no less."""

    layer: Floats
    recomputed: Floats
    once: Floats

    def mixed(self, other: LongestChain, share: float) -> LongestChain:
        """The mean of both, of which the other has that share: a bound as well."""
        pairs = {name: (part, getattr(other, name)) for name, part in vars(self).items()}
        return LongestChain(**{name: (1 - share) * one + share * two for name, (one, two) in pairs.items()})

    def take(self, keep: Ints) -> LongestChain:
        """Those of some of the sequences."""
        return LongestChain(self.layer[keep], self.recomputed[keep], self.once[keep])

    def cost(self, recomputed: Ints) -> Floats:
        """Seconds of every stage by its number of layers from 0 on, of which so many are recomputed: (pp, numbers,
        n)."""
        number = np.arange(len(recomputed))[:, None]
        return np.asarray(self.layer.T[:, None] * number + self.recomputed.T[:, None] * recomputed[:, None])

    def seconds(self, splits: Ints, recomputed: Ints) -> Floats:
        """Of every sequence with every split: (n, splits)."""
        return _SAFETY * (self.layer @ splits.T + self.recomputed @ recomputed.T + self.once[:, None])


class SizedRow:
    """A row of `rows` whose microbatches may differ in size; `mbs` is their mean. `options`: to recompute, all that
    pins and bans leave; `longest`: no stage has more layers; `equal`: which stages have equally many
    (`coefficients.equal_stages`)."""

    def __init__(self, problem: Problem, rows: Candidates, row: int) -> None:
        self.rows, self.row, self._problem = rows, row, problem
        self.pp, self.microbatches = int(rows.pp[row]), int(rows.microbatches[row])
        self.sequences = Sequences.of(self.microbatches, int(rows.mbs[row]))
        self.which = np.arange(len(self.sequences.sizes))
        self.layers = problem.model.layers
        self.longest = self.layers - self.pp + 1
        sizes = np.arange(1, self.sequences.largest + 1)
        self._sizes = Coefficients(problem, _of_sizes(problem, rows.take(np.full(len(sizes), row)), sizes))
        at, chips = np.arange(len(sizes)), np.zeros((len(sizes), self.pp), dtype=np.int64)
        self._stages, self._forward = self._sizes.stages(at, chips), self._sizes.passes(at, chips)["forward"]
        mean = self.sequences.mean - 1
        self._after_layer, self._after_once = (
            np.broadcast_to(part, chips.shape)[mean] for part in (self._stages.after_layer, self._stages.after_fixed)
        )
        self.equal = int(self._sizes.equal[mean])
        own = PlanRow(self._sizes, np.full(self.pp, mean), chips[0], self._stages, self.longest)
        self.options = tuple(allowed_options(own, 0))

    def among(self, which: Ints, longest: int) -> SizedRow:
        """The row with some of its sequences, by their places, and stages of no more layers."""
        part = copy(self)
        part.which, part.longest = self.which[which], min(longest, self.longest)
        return part

    @property
    def sizes(self) -> Ints:
        """The sequences: (n, microbatches)."""
        return np.asarray(self.sequences.sizes[self.which])

    def cost_s(self, options: tuple[Option, ...]) -> Floats:
        """Seconds that options add to a stage's backward by size from 1 on and by layers: (options, sizes, layers)."""
        layers = np.arange(1, self.longest + 1)
        at = np.arange(len(self._stages.layer))
        modules = self._sizes.modules_s(0, tuple(option.modules for option in options), at)
        recomputed = np.minimum(np.array([[option.recomputed] for option in options]), layers)
        whole = np.broadcast_to(self._stages.recompute[:, :1], (len(at), 1))
        return np.asarray(modules[:, :, None] * layers + whole * recomputed[:, None])

    def after_s(self, splits: Ints) -> Floats:
        """Seconds of what follows the pipeline: (splits,)."""
        return np.asarray((self._after_layer * splits + self._after_once).max(axis=1))

    def passes(self, option: Option) -> Passes:
        """Seconds of passes under an option."""
        stages, (forward, forward_once) = self._stages, self._forward
        modules = self._sizes.modules_s(0, (option.modules,), np.arange(len(forward)))[0] if option.modules else 0.0
        layer, recompute = stages.layer[:, 0], np.broadcast_to(stages.recompute[:, :1], (len(forward), 1))[:, 0]
        backward_once = stages.fixed - forward_once
        by_size = layer - forward[:, 0] + modules, recompute, forward_once, backward_once
        backward, recompute, forward_once, backward_once = (_from_0(each) for each in by_size)
        recomputed = np.minimum(option.recomputed, np.arange(self.longest + 1))
        return Passes(_from_0(forward[:, 0]), backward, recompute, forward_once, backward_once, recomputed)

    def most_layers(self, option: Option) -> Ints:
        """The most layers that fit on each stage with each sequence: (n, pp), 0 for none.

        As `evaluate` counts them: the worst neighbours in flight, layers at work and buffers of the largest microbatch.
        """
        memory, live = self._sizes.memory, self._live()
        layers = np.arange(1, self.longest + 1)
        held, at_work = self._held_bytes(option, layers)
        factor, peak = 1.0 + memory.overhead, self.sequences.peak[self.which] - 1
        most = np.zeros((len(peak), self.pp), dtype=np.int64)
        for stage, count in enumerate(live.tolist()):
            states = memory.layer_states[0] * layers
            needed = states + factor * (self.sequences.in_flight(count)[self.which, 1:] @ held + at_work[peak])
            most[:, stage] = (needed <= self._stages.room[peak, stage, None]).cumprod(axis=1).sum(axis=1)
        return most

    def _live(self) -> Ints:
        return np.asarray(SCHEDULES["1f1b"].live_chunks(self._problem, self.pp, 1, self.microbatches))

    def _held_bytes(self, option: Option, layers: Ints) -> tuple[Floats, Floats]:
        """Bytes that so many layers keep of a microbatch, and of layers at work, by size from 1 on: (sizes, layers)."""
        memory = self._sizes.memory
        at = np.arange(len(memory.full))
        kept, replayed = memory.stored((option.modules, ()), at), memory.replayed((option.modules,), at)[0]
        column = at[:, None]
        checkpoint: Any = memory.checkpoint[column]
        layer = kept.at((1, column)), kept.at((0, column)), checkpoint
        one, none = (
            np.broadcast_to(
                activation_bytes(
                    layer, np.array(live), layers[None, :], option.kind, np.array(option.amount), replayed[column]
                ),
                (len(at), len(layers)),
            )
            for live in (1, 0)
        )
        return one - none, none

    def plain_chains(self) -> Chains:
        """The first of the chains below, with nothing recomputed."""
        passes = self.passes(Option("none", 0, 0))
        first, last, counts = self.sizes[:, 0], self.sizes[:, -1], self.sequences.counts[self.which]
        fill = passes.forward_once[first] + passes.backward_once[last]
        once = counts @ (passes.forward_once + passes.backward_once) + (fill.cumsum(axis=1) - fill) + self._after_once
        own = np.repeat((counts @ (passes.forward + passes.backward))[:, None], self.pp, axis=1) + self._after_layer
        none = np.zeros((1, len(first), self.pp))
        before = passes.forward[first] + passes.backward[last]
        found = Chains(before, 0.0 * before, own[None], none, none[:, :, 0], once[None])
        return replace(found, **{name: _SAFETY * part for name, part in vars(found).items()})

    def chains(self, passes: Passes) -> Chains:
        """Chains of passes with what follows the pipeline, none longer than the schedule."""
        parts = list(zip(*(self._through(passes, stage) for stage in range(self.pp)), strict=True))
        own, own_recomputed, once = (np.stack(part, axis=2) for part in parts)
        first, last = self.sizes[:, 0], self.sizes[:, -1]
        there, back = (passes.forward[size] + passes.backward[size] for size in (first, last))
        behind = np.stack([0.0 * there, there, back, there + back])
        before = passes.forward[first] + passes.backward[last]
        found = Chains(before, passes.recompute[last], own, own_recomputed, behind, once)
        return replace(found, **{name: _SAFETY * part for name, part in vars(found).items()})

    def _through(self, passes: Passes, stage: int) -> tuple[Floats, Floats, Floats]:
        """Of the chains through one stage its layers', recomputed layers' and other seconds: (chains, n) each.

        The first microbatch's forward passes the stages before, the stage works on all, and the last one's backward
        passes them again. In place of the forwards until its first backward the first microbatch may pass the stages
        behind and come back; and in place of the backwards from its last forward on, the last one. Both where there
        is a backward before the last forward.
        """
        ahead = min(self.pp - stage, self.microbatches)  # forwards before the first backward
        first, last, known = self.sizes[:, 0], self.sizes[:, -1], self.sequences
        counts, early, late = (each[self.which] for each in (known.counts, known.first(ahead), known.last(ahead)))
        ends = (
            passes.forward_once[first] + passes.backward_once[last],
            *(passes.forward_once[size] + passes.backward_once[size] for size in (first, last)),
        )
        fill, there, back = ends[0][:, :stage].sum(axis=1), *(end[:, stage + 1 :].sum(axis=1) for end in ends[1:])
        once = passes.forward_once[:, stage], passes.backward_once[:, stage]

        def work(forward: Floats, backward: Floats) -> Floats:
            skips_first = early @ forward - forward[first]
            skips_last = late @ backward - backward[last]
            whole = counts @ (forward + backward)
            return np.stack([whole, whole - skips_first, whole - skips_last, whole - skips_first - skips_last])

        own, other = work(passes.forward, passes.backward), work(*once)
        recomputed = work(0.0 * passes.recompute, passes.recompute)
        other = other + fill + np.stack([0.0 * there, there, back, there + back]) + self._after_once[stage]
        if self.microbatches <= ahead:
            other[-1] = -np.inf
        return own + self._after_layer[stage], recomputed, other


def _of_sizes(problem: Problem, rows: Candidates, sizes: Ints) -> Candidates:
    return replace(rows, mbs=sizes, microbatches=np.maximum(1, problem.batch // (sizes * rows.dp)))


def _from_0(by_size: Floats) -> Floats:
    """With a size of no sequences before."""
    return np.concatenate([np.zeros((1, *by_size.shape[1:])), by_size])
