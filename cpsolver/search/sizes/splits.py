"""Splits of a model's layers over stages in which no chain of passes is longer than a step may take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cpsolver.cost.shard import Bools, Floats, Ints
from cpsolver.search.bounds.stages import WHOLE

_AT_ONCE = 50_000
"""Splits that are made in one go, at most."""


@dataclass(frozen=True)
class Chains:
    """Chains of passes of n sequences, whose seconds are linear in the layers of the stages: no step takes less.

    A chain through stage s takes `before` for each layer of the stages before it and `before_recomputed` for each that
    they recompute, (n,); `own` and `own_recomputed` for each of its own, (chains, n, pp); `behind` for each of the
    stages behind it, (chains, n); and `once`, (chains, n, pp), with what follows the pipeline.
    """

    before: Floats
    before_recomputed: Floats
    own: Floats
    own_recomputed: Floats
    behind: Floats
    once: Floats

    def least(self) -> Chains:
        """One sequence's, none of which takes more than those of any."""
        return Chains(
            self.before.min(keepdims=True),
            self.before_recomputed.min(keepdims=True),
            self.own.min(axis=1, keepdims=True),
            self.own_recomputed.min(axis=1, keepdims=True),
            self.behind.min(axis=1, keepdims=True),
            self.once.min(axis=1, keepdims=True),
        )

    def most_layers(self, limit_s: float) -> int:
        """No stage hosts more layers within a limit, with any sequence."""
        return int(max(0.0, ((limit_s - self.once[0]) / self.own[0]).max() + WHOLE))

    def take(self, keep: Ints) -> Chains:
        """Those of some of the sequences."""
        return Chains(
            self.before[keep],
            self.before_recomputed[keep],
            self.own[:, keep],
            self.own_recomputed[:, keep],
            self.behind[:, keep],
            self.once[:, keep],
        )

    def may_end_within(self, limit_s: float, layers: int) -> Bools:
        """Which sequences may host the layers within a limit, in any fractions and with nothing recomputed: (n,).

        Each stage in turn hosts the most that it can. One layer less there lets those behind host less than one more:
        the passes that they wait for are some of those that the stage has of each layer.
        """
        hosted = np.zeros(len(self.before))
        for stage in range(self.own.shape[2]):
            left = limit_s - self.before * hosted - self.once[0, :, stage]
            hosted = hosted + np.maximum(0.0, left / self.own[0, :, stage])
        return np.asarray(hosted >= layers - WHOLE)

    def longest_s(self, splits: Ints, recomputed: Ints) -> Floats:
        """Seconds of the longest chain of every sequence with every split: (n, splits). `recomputed`: layers of each
        stage that are, as the splits (splits, pp)."""
        until, again = np.cumsum(splits, axis=1), np.cumsum(recomputed, axis=1)
        longest = np.zeros((len(self.before), len(splits)))
        for stage in range(splits.shape[1]):
            own, own_again = splits[:, stage], recomputed[:, stage]
            fill = np.outer(self.before, until[:, stage] - own)
            fill += np.outer(self.before_recomputed, again[:, stage] - own_again)
            behind = until[:, -1] - until[:, stage]
            for chain in range(len(self.own)):
                taken = fill + np.outer(self.own[chain, :, stage], own) + self.once[chain, :, stage, None]
                taken += np.outer(self.own_recomputed[chain, :, stage], own_again)
                taken += np.outer(self.behind[chain], behind)
                np.maximum(longest, taken, out=longest)
        return longest


def allowed_within(chains: Chains, recomputed: Ints, most: Ints, layers: int, limit_s: float) -> Bools:
    """Whether a stage may have so many layers behind so many of the stages before it without a chain that is longer
    than a limit, and with others that may have the rest: (pp, before, number).

    Args:
        chains: of one sequence.
        recomputed: how many of a stage's layers are, by their number from 0 on.
        most: the most layers on each stage, (pp,), none beyond those of `recomputed`.
        layers: of the model.
    """
    allowed = _allowed(chains, recomputed, most, layers, limit_s)
    reached = np.zeros(layers + 1, dtype=np.bool_)
    reached[0] = True
    leads_on = [behind > 0 for behind in _ways(allowed, layers)]
    ends = np.minimum(np.arange(layers + 1)[:, None] + np.arange(allowed.shape[2]), layers)
    for stage, of_stage in enumerate(allowed):
        of_stage &= reached[:, None] & leads_on[stage + 1][ends]
        reached = np.zeros(layers + 1, dtype=np.bool_)
        reached[ends[of_stage]] = True
    return allowed


def all_splits(allowed: Bools) -> Iterator[Ints]:
    """All splits whose stages have what they may, some at a time: (n, pp) each."""
    ways = _ways(allowed, allowed.shape[1] - 1)
    if ways[0][0]:
        yield from _made(allowed, ways, np.zeros((1, 0), dtype=np.int64))


def cheapest_splits(allowed: Bools, cost: Floats) -> tuple[Floats, Ints]:
    """Of all splits whose stages have what they may those of the least sum of costs: the sums, (n,), and the splits,
    (n, pp). `cost`: of every stage by its number of layers, (pp, numbers, n)."""
    layers, count = allowed.shape[1] - 1, cost.shape[2]
    sums, picked = np.full((layers + 1, count), np.inf), list[Ints]()
    sums[-1] = 0.0
    for of_stage, own in zip(allowed[::-1], cost[::-1], strict=True):
        best, pick = np.full((layers + 1, count), np.inf), np.zeros((layers + 1, count), dtype=np.int64)
        for number in np.flatnonzero(of_stage.any(axis=0)).tolist():
            at = np.flatnonzero(of_stage[:, number])
            taken = own[number] + sums[at + number]
            better = taken < best[at]
            best[at] = np.where(better, taken, best[at])
            pick[at] = np.where(better, number, pick[at])
        sums = best
        picked.insert(0, pick)
    splits, before = np.zeros((count, len(allowed)), dtype=np.int64), np.zeros(count, dtype=np.int64)
    for stage, pick in enumerate(picked):
        splits[:, stage] = pick[before, np.arange(count)]
        before += splits[:, stage]
    return sums[0], splits


def _allowed(chains: Chains, recomputed: Ints, most: Ints, layers: int, limit_s: float) -> Bools:
    before, number = np.arange(layers + 1)[:, None], np.arange(len(recomputed))[None, :]
    behind = layers - before - number
    allowed = np.zeros((len(most), layers + 1, len(recomputed)), dtype=np.bool_)
    for stage, of_stage in enumerate(most.tolist()):
        fits = (number >= 1) & (number <= of_stage) & (behind >= len(most) - 1 - stage)
        for chain in range(len(chains.own)):
            taken = chains.before[0] * before + chains.own[chain, 0, stage] * number
            taken = taken + chains.own_recomputed[chain, 0, stage] * recomputed + chains.behind[chain, 0] * behind
            fits = fits & (taken + chains.once[chain, 0, stage] <= limit_s)
        allowed[stage] = fits
    return allowed


def _ways(allowed: Bools, layers: int) -> list[Floats]:
    """In about how many ways stages from each on can hold what is left behind so many layers."""
    ways = [np.zeros(layers + 1)]
    ways[0][-1] = 1.0
    for of_stage in allowed[::-1]:
        ways.insert(0, np.zeros(layers + 1))
        for number in np.flatnonzero(of_stage.any(axis=0)).tolist():
            ways[0][: layers + 1 - number] += of_stage[: layers + 1 - number, number] * ways[1][number:]
    return ways


def _made(allowed: Bools, ways: list[Floats], first: Ints) -> Iterator[Ints]:
    """The splits that begin with some layers of the first stages, the same for all: (1, stages)."""
    stage, before = first.shape[1], int(first.sum())
    if stage < len(allowed) and ways[stage][before] > _AT_ONCE:
        for more in np.flatnonzero(allowed[stage, before]).tolist():
            if ways[stage + 1][before + more]:
                yield from _made(allowed, ways, np.append(first, [[more]], axis=1))
        return
    found, until = first, np.array([before])
    for own, leads_on in zip(allowed[stage:], ways[stage + 1 :], strict=True):
        at, number = np.nonzero(own[until])
        good = leads_on[until[at] + number] > 0
        at, number = at[good], number[good]
        found, until = np.append(found[at], number[:, None], axis=1), until[at] + number
    yield found
