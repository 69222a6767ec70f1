"""What the layers of a chunk keep for the backward pass where they are of several kinds, as a bound from above.

A chunk holds layers one after another, so it cannot have only those that keep most where the model does not. Of L
layers the kept bytes are no more than L times those of the kind that keeps most, and no more than L times the mean
layer's, and what the run of layers that is furthest above its mean has more. The less of the two counts: of models
whose kinds take turns (Nemotron's blocks, linear and full attention) the second, where a few dense layers come first
the other one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np

from cpsolver.cost.kinds import counts_before, kind_shares, layer_kinds
from cpsolver.cost.shard import Bools, Floats
from models_zoo import Architecture

_ROUNDED = 9
"""Decimals to which runs of layers are told apart."""


@dataclass(frozen=True)
class Stored:
    """Bytes that a chunk's layers keep of a microbatch; arrays of equal shape, or numbers.

    `most` of a layer of the kind that keeps most, `mean` of the mean layer, `beyond` the most that any run of layers
    keeps more than as many mean ones.
    """

    most: Any
    mean: Any
    beyond: Any

    @classmethod
    def alike(cls, each: Any) -> Self:
        """All layers keep as much."""
        return cls(each, each, np.zeros_like(each))

    def of(self, layers: Any) -> Any:
        """So many layers one after another."""
        return np.minimum(self.most * layers, self.mean * layers + self.beyond)

    def each_at_least(self, longest: Any) -> Floats:
        """Bytes for each layer that no chunk of up to so many layers falls below."""
        return np.asarray(np.where((self.most - self.mean) * longest <= self.beyond, self.most, self.mean))

    def at(self, index: Any) -> Stored:
        """Some of the entries."""
        return Stored(self.most[index], self.mean[index], self.beyond[index])


def stored_of_kinds(model: Architecture, by_kind: Floats, apart: Bools) -> Stored:
    """From the bytes that a layer of each kind keeps, (kinds, .., n).

    `apart` (n,): rows in which layers of other kinds are counted one by one (cost/both_ways.py): all count as `most`.
    """
    most = by_kind.max(axis=0)
    if len(by_kind) == 1:
        return Stored.alike(most)
    mean = np.tensordot(np.array(kind_shares(model)), by_kind, axes=1)
    beyond = np.max([np.tensordot(run, by_kind, axes=1) for run in runs_beyond_mean(model)], axis=0)
    return Stored(most, np.where(apart, most, mean), np.where(apart, 0.0, np.maximum(0.0, beyond)))


@lru_cache(maxsize=64)
def runs_beyond_mean(model: Architecture) -> Floats:
    """Layers of each kind that runs of layers have beyond as many mean ones, (runs, kinds): all runs of which some
    kinds' bytes may make the furthest."""
    before, shares = counts_before(model, 1).T.astype(np.float64), np.array(kind_shares(model))
    begin, end = np.triu_indices(len(before), 1)
    runs = before[end] - before[begin] - np.outer(end - begin, shares)
    runs = np.unique(runs.round(_ROUNDED), axis=0)
    if len(layer_kinds(model)) == 2:
        return runs[[0, -1]]
    return _corners(runs) if len(layer_kinds(model)) == 3 else runs


def _corners(points: Floats) -> Floats:
    """Those of sorted points in a plane, told by their first two coordinates, between which all others lie."""

    def side(points: Floats) -> list[Floats]:
        found: list[Floats] = []
        for point in points:
            while len(found) > 1 and _turn(found[-2], found[-1], point) <= 0:
                found.pop()
            found.append(point)
        return found

    return np.array([*side(points), *side(points[::-1])[1:-1]])


def _turn(one: Floats, other: Floats, point: Floats) -> float:
    """Above 0 where the way from one over the other to a point turns left."""
    ahead, aside = other - one, point - one
    return float(ahead[0] * aside[1] - ahead[1] * aside[0])
