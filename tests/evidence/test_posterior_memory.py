"""The posterior of memory: its peak and curvature, and what readings and runs that ran out teach."""

from __future__ import annotations

from functools import cache
from math import exp, log

import numpy as np
import pytest

from cpsolver.evaluation.meters import memory_bytes
from cpsolver.evidence.posterior.memory_posterior import MemoryEvidence, _curvature, _gradient, _minus_log, learn_memory
from cpsolver.evidence.posterior.posterior import Posterior, learn
from cpsolver.evidence.posterior.predictions import Floats, Linear, Observation, PlacedPlan
from tests.support.believed import menu, places, small
from tests.support.selection import first, full

ZERO = np.zeros(2)
READINGS = Linear(ZERO, np.array([1.0, 2.0]), np.array([[0.1, 0.02], [0.05, 0.3]]))
NEEDS = Linear(ZERO, np.array([-0.2, 0.1, 0.05]), np.array([[0.2, 0.1], [0.1, 0.1], [0.0, 0.4]]))
EVIDENCE = MemoryEvidence(
    np.array([1.1, 1.9]), np.array([0.05, 0.1]), np.zeros(3), np.array([True, False, False]), slack=0.06
)
POINTS = [ZERO, np.array([0.5, -1.0]), np.array([-2.0, 1.5])]


# The peak


def _numeric(at: Floats, step: float = 1e-5) -> Floats:
    shifts = step * np.eye(2)
    value = [[_minus_log(at + sign * by, EVIDENCE, READINGS, NEEDS) for by in shifts] for sign in (1, -1)]
    slope: Floats = (np.array(value[0]) - np.array(value[1])) / (2 * step)
    return slope


@pytest.mark.parametrize("at", POINTS, ids=str)
def test_gradient(at: Floats) -> None:
    assert _gradient(at, EVIDENCE, READINGS, NEEDS) == pytest.approx(_numeric(at), rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("at", POINTS, ids=str)
def test_curvature(at: Floats) -> None:
    step = 1e-5 * np.eye(2)
    rows = [
        _gradient(at + by, EVIDENCE, READINGS, NEEDS) - _gradient(at - by, EVIDENCE, READINGS, NEEDS) for by in step
    ]
    assert _curvature(at, EVIDENCE, READINGS, NEEDS) == pytest.approx(np.array(rows) / 2e-5, rel=1e-4, abs=1e-3)


def test_the_answer_is_the_peak_and_its_curvature_the_width() -> None:
    at, spread = learn_memory(2, EVIDENCE, lambda at: (READINGS, NEEDS))
    assert _gradient(at, EVIDENCE, READINGS, NEEDS) == pytest.approx(ZERO, abs=1e-3)
    assert np.linalg.inv(spread) == pytest.approx(_curvature(at, EVIDENCE, READINGS, NEEDS))


def test_a_reading_alone_is_the_usual_update() -> None:
    """Position 1 moves log(bytes) by 0.1; the reading is 0.2 off, known to 0.1: half the way, half the variance."""
    line, none = Linear(np.zeros(1), np.array([5.0]), np.array([[0.1]])), np.zeros(0)
    told = MemoryEvidence(np.array([5.2]), np.array([0.1]), none, none.astype(bool), 0.06)
    at, spread = learn_memory(1, told, lambda at: (line, Linear(at, none, np.zeros((0, 1)))))
    assert (at[0], spread[0, 0]) == (pytest.approx(1.0, abs=1e-4), pytest.approx(0.5))


def test_far_evidence_has_no_overflow() -> None:
    """A run that ran out of memory though it should need a thousandth of it."""
    needs = Linear(np.zeros(1), np.array([log(1e-3)]), np.array([[0.1]]))
    none = np.zeros(0)
    told = MemoryEvidence(none, none, np.zeros(1), np.array([True]), 0.06)
    at, spread = learn_memory(1, told, lambda at: (Linear(at, none, np.zeros((0, 1))), needs))
    assert at[0] > 1.0
    assert np.isfinite(spread).all()


# With the memory model


@cache
def _place(at: int = 1) -> PlacedPlan:
    return places(small())[at]


def _believe(*seen: Observation, problem_gb: float = 40) -> Posterior:
    return learn(seen, [small(problem_gb)])


def _need(posterior: Posterior, place: PlacedPlan) -> float:
    return posterior.fill(place)[0]


def _tight(share: float) -> PlacedPlan:
    """The plan on devices of which its published need is that share."""
    need = exp(_need(_believe(), _place()))
    return PlacedPlan(small(40 * need / share), _place().strategy)


def test_without_evidence_the_prior_stays() -> None:
    found = _believe()
    count = len(found.times.prior)
    assert (found.mean == 0.0).all()
    assert (found.covariance[count:, count:] == np.eye(len(found.constants) - count)).all()


def test_what_is_needed_is_what_the_memory_model_says() -> None:
    mean, spread = _believe().fill(_tight(0.7))
    assert mean == pytest.approx(log(0.7), abs=1e-6)
    assert 0.026 < spread < 0.3


@pytest.mark.parametrize("share", [0.6, full(0.95), full(1.05), 1.3])
def test_running_out_raises_the_need_and_fitting_never_does(share: float) -> None:
    place = _tight(share)
    before = _need(_believe(), place)
    ran_out, fitted = Observation("a", place, out_of_memory=True), Observation("b", place, step_time_s=1.0)
    assert _need(learn([ran_out]), place) > before - 1e-9
    assert _need(learn([fitted]), place) < before + 1e-9
    if 0.9 < share < 1.1:
        assert _need(learn([ran_out]), place) > before + 0.01
        assert _need(learn([fitted]), place) < before - 0.002


def test_running_out_is_told_of_other_plans_too_and_is_no_step_time() -> None:
    place, other = _tight(0.9), _place(3)
    found = learn([Observation("a", place, out_of_memory=True)])
    assert _need(found, PlacedPlan(place.problem, other.strategy)) > _need(
        _believe(), PlacedPlan(place.problem, other.strategy)
    )
    assert not len(found.times.off)


@pytest.mark.parametrize("kind", first(1, ["allocated", "reserved", "device"]))
@pytest.mark.parametrize("factor", [0.85, 1.2])
def test_a_reading_pulls_towards_it(kind: str, factor: float) -> None:
    read = factor * memory_bytes(small(), _place().strategy, kind)
    found = _believe(Observation("a", _place(), 1.0, read, kind))
    told = memory_bytes(found.problem(small()), _place().strategy, kind)
    assert min(read, read / factor) < told < max(read, read / factor)
    count = len(found.times.prior)
    left = np.linalg.eigvalsh(found.covariance[count:, count:])  # of priors that are all 1
    assert left.min() < 0.9
    assert left.max() < 1.0 + 1e-9


@pytest.mark.full
def test_exact_readings_are_followed_farther_than_rough_ones() -> None:
    moved = {}
    for kind in ("allocated", "device"):
        before = memory_bytes(small(), _place().strategy, kind)
        told = _believe(Observation("a", _place(), 1.0, 1.15 * before, kind)).problem(small())
        moved[kind] = log(memory_bytes(told, _place().strategy, kind) / before)
    spread = _believe().times.spread.memory
    assert spread["allocated"] < spread["device"]
    assert log(1.15) > moved["allocated"] > 0.0
    assert log(1.15) > moved["device"] > 0.0


@pytest.mark.full
def test_readings_move_no_step_time_and_step_times_no_memory() -> None:
    time, memory = Observation("a", _place(), 1.0), Observation("a", _place(), 1.0, 3e10, "allocated")
    one, both = _believe(time), _believe(memory)
    count = len(one.times.prior)
    assert (one.mean[:count] == both.mean[:count]).all()
    assert (one.mean[count:] != both.mean[count:]).any()
    assert (both.covariance[:count, count:] == 0.0).all()


@pytest.mark.full
def test_every_plan_of_the_menu_has_a_need() -> None:
    found = _believe(*(Observation(str(at), place, 1.0) for at, place in enumerate(places(small(), 3))))
    assert all(np.isfinite(found.fill(PlacedPlan(small(), plan))).all() for plan in menu())
