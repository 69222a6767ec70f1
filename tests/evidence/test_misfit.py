"""Misfit: what layouts share of it, and with whom."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from cpsolver.doors.tune.trial import TRIAL_MEMORIES
from cpsolver.evidence.posterior.misfit import Locations, covariance, features, load_spread, locations
from cpsolver.evidence.posterior.predictions import PlacedPlan
from cpsolver.evidence.runs.run import MemoryKind
from cpsolver.profiles.constants import COORDINATES
from tests.support.believed import menu, places, small, spots_of, spread_of
from tests.support.problems import chip_spec, problem_of, strategy_of

PLAN = strategy_of("x:4", dp=8)
ONLY_SHARED = spread_of(misfit=1.0, leftover=0.0)


def _between(one: PlacedPlan, other: PlacedPlan) -> float:
    return float(covariance(ONLY_SHARED, locations([one]), locations([other]))[0, 0])


def test_sizes_are_all_there() -> None:
    spread = load_spread()
    assert min(spread.scale, spread.misfit, spread.reach, spread.leftover, spread.noise, *spread.memory.values()) > 0.0
    assert sum(spread.levels.values()) == pytest.approx(1.0, abs=0.01)
    assert set(spread.memory) >= {*get_args(MemoryKind), *TRIAL_MEMORIES, "need"}


def test_covariance_is_symmetric_and_no_combination_has_a_negative_variance() -> None:
    here = locations(places(small()))
    found = covariance(load_spread(), here, here)
    assert (found == found.T).all()
    assert np.linalg.eigvalsh(found).min() >= -1e-12


def test_a_plan_has_the_whole_variance() -> None:
    spread, here = load_spread(), locations(places(small()))
    expected = spread.misfit**2 + spread.leftover**2
    assert np.diag(covariance(spread, here, here)) == pytest.approx(np.full(len(menu()), expected))


def test_what_is_shared_falls_with_distance_by_its_formula() -> None:
    found = covariance(ONLY_SHARED, spots_of([0.0]), spots_of([0.0, 1.0, 2.0, 3.0], first=1))[0]
    assert found == pytest.approx(np.exp(-np.array([0.0, 1.0, 4.0, 9.0]) / (2 * 2.0**2)))


def test_the_leftover_is_of_the_very_plan_and_task() -> None:
    own = spread_of(misfit=0.0, leftover=1.0)
    same, task = PlacedPlan(small(), PLAN), problem_of({"x": chip_spec()}, gpus=8, node=2, batch=32)
    split = [PlacedPlan(small(), strategy_of(f"x:{counts}", dp=4)) for counts in ("2,2", "3,1")]
    where = locations([PlacedPlan(small(), PLAN), same, PlacedPlan(task, PLAN), *split])
    expected = np.eye(5)
    expected[0, 1] = expected[1, 0] = 1.0
    assert (covariance(own, where, where) == expected).all()


def test_other_chips_and_other_stacks_share_nothing() -> None:
    other_chip = problem_of({"y": chip_spec()}, gpus=8, node=2, batch=16)
    other_stack = replace(small(), stack=small().stack.model_copy(update={"name": "another"}))
    one = PlacedPlan(small(), PLAN)
    assert _between(one, PlacedPlan(small(), PLAN)) == 1.0
    assert _between(one, PlacedPlan(other_chip, strategy_of("y:4", dp=8))) == 0.0
    assert _between(one, PlacedPlan(other_stack, PLAN)) == 0.0


def test_a_doubling_is_one_step_and_a_switch_two() -> None:
    base = features([PlacedPlan(small(), PLAN)])[0]

    def apart(**changes: object) -> list[float]:
        moved = np.abs(features([PlacedPlan(small(), replace(PLAN, **changes))])[0] - base)  # type: ignore[arg-type]
        return [float(each) for each in moved if each]

    assert apart(mbs=2) == [1.0]
    assert apart(tp=4, dp=2) == [2.0, 2.0]
    assert apart(distributed_optimizer=False) == [2.0]
    assert apart(groups=strategy_of("x:4", recompute="uniform", amount=4).groups) == [2.0]


def test_nothing_has_no_covariance() -> None:
    none = locations([])
    assert covariance(ONLY_SHARED, none, spots_of([0.0])).shape == (0, 1)
    assert none == Locations(none.coordinates, (), ())


def test_overlays_know_how_many_numbers_say_where_a_layout_lies() -> None:
    assert features(places(small(), 1)).shape == (1, COORDINATES)
