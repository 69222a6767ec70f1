"""What no constant explains: a smooth error that layouts alike share, and a rest that is each layout's own.

How large both are differs from cluster to cluster (`Spread.levels`), which runs tell: where the cost model fits them,
little misfit is expected of others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2

import numpy as np

from cpsolver.evidence.posterior.predictions import Floats, PlacedPlan
from cpsolver.inputs.data import package_schema
from cpsolver.profiles.constants import SPREAD
from models_zoo.schema import DESCRIPTIVE_FIELDS

_SWITCH = 2.0
"""Recomputation or sharding, on or off, sets layouts as far apart as two doublings."""


@dataclass(frozen=True)
class Spread:
    """Standard deviations of logarithms; spread.yaml says what each is and where it comes from."""

    scale: float
    misfit: float
    reach: float
    leftover: float
    levels: Mapping[float, float]
    noise: float
    memory: Mapping[str, float]


def load_spread() -> Spread:
    """What published runs say."""
    return package_schema(SPREAD, Spread)


@dataclass(frozen=True)
class Locations:
    """Where plans lie: `coordinates` in doublings, (plans, coordinates); chips and stack; the very plan and task."""

    coordinates: Floats
    clusters: tuple[str, ...]
    identities: tuple[str, ...]


def locations(plans: Sequence[PlacedPlan]) -> Locations:
    """Where these plans lie."""
    return Locations(features(plans), tuple(map(_cluster, plans)), tuple(map(_identity, plans)))


def features(plans: Sequence[PlacedPlan]) -> Floats:
    """Coordinates of plans in doublings, shape (places, coordinates)."""
    return np.array([_coordinates(placed) for placed in plans]) if plans else np.zeros((0, 0))


def covariance(spread: Spread, ours: Locations, others: Locations) -> Floats:
    """Of the misfit of plans with that of others at level 1, shape (ours, others).

    Plans of other chips or another stack share nothing; a plan and itself share its leftover too.
    """
    shape = len(ours.clusters), len(others.clusters)
    if 0 in shape:
        return np.zeros(shape)
    apart = ours.coordinates[:, None, :] - others.coordinates[None, :, :]
    near = np.exp(-(apart**2).sum(axis=2) / (2 * spread.reach**2))
    alike = near * _equal(ours.clusters, others.clusters)
    return np.asarray(spread.misfit**2 * alike + spread.leftover**2 * _equal(ours.identities, others.identities))


def _equal(ours: Sequence[str], others: Sequence[str]) -> Floats:
    return np.asarray(np.array(ours)[:, None] == np.array(others)[None, :], dtype=np.float64)


def _coordinates(placed: PlacedPlan) -> list[float]:
    plan, model, training = placed.strategy, placed.problem.model, placed.problem.spec.training
    sizes = [plan.tp, plan.pp, plan.dp, plan.cp, plan.ep, plan.vpp, plan.mbs, model.hidden, model.layers]
    sizes += [training.sequence_length, training.global_batch_size]
    recomputes = any(kind != "none" for kind in plan.recompute)
    return [*(log2(size) for size in sizes), _SWITCH * recomputes, _SWITCH * plan.distributed_optimizer]


def _cluster(placed: PlacedPlan) -> str:
    return f"{' + '.join(sorted(set(placed.strategy.stage_chips)))} with {placed.problem.stack.name}"


def _identity(placed: PlacedPlan) -> str:
    spec = placed.problem.spec
    model = placed.problem.model.model_dump(exclude=DESCRIPTIVE_FIELDS)
    told = (placed.strategy, model, spec.training, placed.problem.num_gpus, _cluster(placed))
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]
