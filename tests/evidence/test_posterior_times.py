"""The posterior of step times: against brute force, in its limits, and on clusters whose truth is known."""

from __future__ import annotations

from functools import cache
from math import exp, log

import numpy as np
import pytest

from cpsolver.evidence.posterior.constants import uncertain_constants
from cpsolver.evidence.posterior.misfit import covariance
from cpsolver.evidence.posterior.posterior import Posterior, learn
from cpsolver.evidence.posterior.predictions import Floats, Linear, Lineariser, Observation, PlacedPlan
from cpsolver.evidence.posterior.time_posterior import closed_form, learn_times, unlearnt
from examples.simulated_cluster import hidden_truth
from tests.support.believed import places, small, spots_of, spread_of

SPREAD = spread_of()
PRIOR = np.array([1.5, 0.7])
RUNS = spots_of([0.0, 1.0, 3.0])
SLOPE = np.array([[0.1, 0.0], [0.08, -0.05], [0.02, 0.2]])
OFF = np.array([0.12, 0.05, -0.2])
WITHIN_80 = 1.2816


def _normal(off: Floats, covariance_: Floats) -> Floats:
    """Density of each row of `off`."""
    inverse, size = np.linalg.inv(covariance_), np.linalg.det(2 * np.pi * covariance_)
    return np.asarray(np.exp(-0.5 * np.einsum("ij,jk,ik->i", off, inverse, off)) / np.sqrt(size))


@cache
def _grid() -> Floats:
    axes = [np.linspace(-6 * sd, 6 * sd, 241) for sd in PRIOR]
    return np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)


def _brute(size: float) -> tuple[float, Floats]:
    """Evidence of a level of misfit, and the weights of the grid's points under it."""
    noise = size**2 * covariance(SPREAD, RUNS, RUNS) + SPREAD.noise**2 * np.eye(3)
    dense = _normal(_grid(), np.diag(PRIOR**2)) * _normal(OFF - _grid() @ SLOPE.T, noise)
    return float(dense.sum()), dense / dense.sum()


def _moments(weights: Floats, values: Floats) -> tuple[Floats, Floats]:
    mean = weights @ values
    return mean, (values - mean).T @ ((values - mean) * weights[:, None])


# Against brute force


def test_constants_are_those_of_a_grid_at_every_level() -> None:
    found = closed_form(SPREAD, PRIOR, RUNS, SLOPE, OFF)
    for level in found.levels:
        mean, spread = _moments(_brute(level.size)[1], _grid())
        assert level.mean == pytest.approx(mean, abs=1e-6)
        assert level.covariance == pytest.approx(spread, abs=1e-6)


def test_levels_are_weighed_by_their_evidence() -> None:
    found = closed_form(SPREAD, PRIOR, RUNS, SLOPE, OFF)
    evidence = np.array([SPREAD.levels[level.size] * _brute(level.size)[0] for level in found.levels])
    assert [level.weight for level in found.levels] == pytest.approx(evidence / evidence.sum(), abs=1e-6)


def test_the_mixture_is_that_of_a_grid() -> None:
    found = closed_form(SPREAD, PRIOR, RUNS, SLOPE, OFF)
    weights = np.asarray(sum(level.weight * _brute(level.size)[1] for level in found.levels))
    mean, spread = _moments(weights, _grid())
    assert found.mean == pytest.approx(mean, abs=1e-6)
    assert found.covariance == pytest.approx(spread, abs=1e-6)


@pytest.mark.parametrize("known", [False, True], ids=["another plan", "a plan that was run"])
def test_a_forecast_is_that_of_a_grid(known: bool) -> None:
    """The misfit of the plan given that of the runs, at every point of the grid."""
    plan = spots_of([1.0 if known else 2.0], first=1 if known else 9)
    value, slope = np.array([0.3]), np.array([[0.09, -0.1]])
    found = closed_form(SPREAD, PRIOR, RUNS, SLOPE, OFF)
    for level in found.levels:
        misfit = level.size**2 * covariance(SPREAD, RUNS, RUNS) + SPREAD.noise**2 * np.eye(3)
        cross = level.size**2 * covariance(SPREAD, plan, RUNS) @ np.linalg.inv(misfit)
        own = level.size**2 * covariance(SPREAD, plan, plan) - cross @ (level.size**2 * covariance(SPREAD, RUNS, plan))
        centres = value + _grid() @ slope.T + (OFF - _grid() @ SLOPE.T) @ cross.T
        mean, spread = _moments(_brute(level.size)[1], centres)
        ours = found.at_level(level, plan, Linear(np.zeros(2), value, slope))
        assert ours[0] == pytest.approx(mean, abs=1e-6)
        assert ours[1] == pytest.approx(spread + own, abs=1e-6)


# Limits


def test_without_runs_the_posterior_is_the_prior() -> None:
    for found in (
        unlearnt(SPREAD, PRIOR),
        closed_form(SPREAD, PRIOR, spots_of([]), np.zeros((0, 2)), np.zeros(0)),
        learn_times(SPREAD, PRIOR, spots_of([]), np.zeros(0), lambda at: pytest.fail("nothing to linearise")),
    ):
        assert (found.mean == 0.0).all()
        assert found.covariance == pytest.approx(np.diag(PRIOR**2))
        assert {level.size: level.weight for level in found.levels} == pytest.approx(SPREAD.levels)


def test_what_no_run_feels_stays_as_it_was() -> None:
    found = closed_form(SPREAD, PRIOR, RUNS, SLOPE * [1.0, 0.0], OFF)
    assert found.mean[1] == 0.0
    assert found.covariance[1] == pytest.approx([0.0, PRIOR[1] ** 2])


def test_more_runs_never_widen_a_constant_at_a_level() -> None:
    before = {level.size: PRIOR**2 for level in unlearnt(SPREAD, PRIOR).levels}
    for count in range(1, 4):
        where = spots_of([0.0, 1.0, 3.0][:count])
        for level in closed_form(SPREAD, PRIOR, where, SLOPE[:count], OFF[:count]).levels:
            after = np.diag(level.covariance)
            assert (after <= before[level.size] + 1e-12).all()
            before[level.size] = after


def _weight_of_the_least(off: Floats) -> float:
    where = spots_of([4.0 * at for at in range(len(off))])
    return closed_form(SPREAD, PRIOR, where, np.tile([0.1, 0.0], (len(off), 1)), off).levels[0].weight


def test_runs_that_agree_tell_of_little_misfit_and_scattered_ones_of_much() -> None:
    told = SPREAD.levels[0.25]
    assert _weight_of_the_least(np.full(8, 0.1)) > 0.95 > told
    assert _weight_of_the_least(np.array([0.25, -0.25] * 4)) < 0.05 < told


def test_a_plan_that_was_run_is_forecast_at_its_measurement() -> None:
    found = closed_form(SPREAD, PRIOR, RUNS, SLOPE, OFF)
    value = np.array([1.0, 2.0, 3.0])
    mean, spread = found.forecast(RUNS, Linear(np.zeros(2), value, SLOPE))
    assert mean == pytest.approx(value + OFF, abs=2 * SPREAD.noise)
    assert (np.sqrt(np.diag(spread)) <= 1.5 * SPREAD.noise).all()


def test_a_bent_prediction_is_followed_until_the_constants_stay() -> None:
    """log(seconds) = exp(position / 2) - 1, measured at position 1, by a plan almost without misfit."""
    spread, runs = spread_of(misfit=1e-4, leftover=1e-4, noise=1e-3), spots_of([0.0])

    def line(at: Floats) -> Linear:
        return Linear(at, np.exp(at / 2) - 1, np.exp(at / 2).reshape(1, 1) / 2)

    found = learn_times(spread, np.ones(1), runs, np.array([exp(0.5) - 1]), line)
    assert found.mean[0] == pytest.approx(1.0, abs=0.01)
    once = closed_form(spread, np.ones(1), runs, line(np.zeros(1)).slope, np.array([exp(0.5) - 1]))
    assert once.mean[0] == pytest.approx(2 * (exp(0.5) - 1), abs=0.01)


# Intervals over many clusters drawn from what is believed beforehand


@cache
def _coverage(*levels: float, count: int = 500) -> tuple[float, float]:
    """Shares of 80 % intervals that hold constants, and true logarithms of a plan never run."""
    random, spread = np.random.default_rng(3), spread_of(dict.fromkeys(levels, 1 / len(levels)))
    slope, run, new = random.normal(0.0, 0.12, (5, 2)), spots_of([0.0, 1.0, 3.0, 4.0]), spots_of([6.0], first=4)
    own = covariance(spread, spots_of([0.0, 1.0, 3.0, 4.0, 6.0]), spots_of([0.0, 1.0, 3.0, 4.0, 6.0]))
    held_constants, held_times = 0, 0
    for _ in range(count):
        truth, size = random.normal(0.0, PRIOR), random.choice(levels)
        true = slope @ truth + random.multivariate_normal(np.zeros(5), size**2 * own)
        found = closed_form(spread, PRIOR, run, slope[:4], true[:4] + random.normal(0.0, spread.noise, 4))
        held_constants += int(_inside(truth, found.mean, found.covariance).sum())
        told = found.forecast(new, Linear(np.zeros(2), np.zeros(1), slope[4:]))
        held_times += int(_inside(true[4:], *told).sum())
    return held_constants / (2 * count), held_times / count


def _inside(truth: Floats, mean: Floats, spread: Floats) -> Floats:
    return np.asarray(np.abs(truth - mean) <= WITHIN_80 * np.sqrt(np.diag(spread)))


def test_intervals_hold_four_in_five_where_the_level_of_misfit_is_known() -> None:
    constants, times = _coverage(1.0)
    assert 0.75 < constants < 0.85
    assert 0.75 < times < 0.85


def test_intervals_hold_no_fewer_where_it_is_not() -> None:
    """A mixture of narrow and wide has more in its middle than a normal distribution as wide."""
    constants, times = _coverage(0.25, 1.0)
    assert 0.75 < constants < 0.87
    assert 0.77 < times < 0.92


# With the cost model


@cache
def _near() -> tuple[Lineariser, list[PlacedPlan]]:
    """Slopes taken once serve all these tests."""
    constants = [each for each in uncertain_constants([small()]) if each.kind != "memory"]
    return Lineariser(constants, at_origin=True), places(small())


@cache
def _learnt(seed: int, count: int, misfit: float = 0.0) -> tuple[Posterior, Floats]:
    """What the first runs of a simulated cluster teach, and where its constants of step times truly lie."""
    truth, (lineariser, own) = hidden_truth(small(), seed, misfit=misfit), _near()
    seen = [Observation(str(at), place, truth.step_time_s(place.strategy)) for at, place in enumerate(own[:count])]
    found = learn(seen, lineariser=lineariser)
    assert [each.key for each in found.constants] == [each.key for each in truth.constants]
    return found, np.array(truth.positions)[: len(found.times.prior)]


@pytest.mark.full
def test_runs_bring_the_constants_nearer_to_the_truth() -> None:
    pairs = [_learnt(seed, 10) for seed in range(4)]
    before = sum((truth**2).sum() for _, truth in pairs)
    after = sum(((found.times.mean - truth) ** 2).sum() for found, truth in pairs)
    assert after < 0.9 * before


@pytest.mark.full
def test_predictions_with_what_was_learnt_are_nearer_to_the_truth_also_of_plans_never_run() -> None:
    lineariser, own = _near()
    before, after = [], []
    for seed in range(4):
        truth, (found, _) = hidden_truth(small(), seed), _learnt(seed, 10)
        true = np.array([log(truth.step_time_s(place.strategy)) for place in own[10:]])
        before.append(np.abs(lineariser(own[10:], np.zeros(len(found.times.prior))).value - true).mean())
        after.append(np.abs(found.step_times(own[10:])[0] - true).mean())
    assert np.mean(after) < 0.4 * np.mean(before)


@pytest.mark.full
def test_what_was_measured_is_about_what_is_forecast() -> None:
    found, _ = _learnt(5, 6, misfit=1.0)
    told, spread = found.step_times([each.plan for each in found.observations])
    measured = np.array([log(each.step_time_s or 0.0) for each in found.observations])
    assert told == pytest.approx(measured, abs=0.03)
    assert np.sqrt(np.diag(spread)).max() < 0.025


@pytest.mark.full
def test_draws_are_of_the_posterior_and_those_of_memory_stay() -> None:
    found, _ = _learnt(1, 4)
    count, random = len(found.times.prior), np.random.default_rng(0)
    drawn = np.array([found.draw(random) for _ in range(2000)])
    assert drawn[:, :count].mean(axis=0) == pytest.approx(found.times.mean, abs=0.2)
    assert drawn[:, :count].std(axis=0) == pytest.approx(np.sqrt(np.diag(found.times.covariance)), rel=0.1)
    assert (drawn[:, count:] == found.mean[count:]).all()


def test_the_belief_is_the_same_in_any_order_of_the_runs() -> None:
    found, _ = _learnt(2, 5)
    again = learn(tuple(reversed(found.observations)), lineariser=_near()[0])
    assert again.mean == pytest.approx(found.mean, abs=1e-6)


def test_sizes_of_errors_may_be_others() -> None:
    assert (learn([], [small()], spread_of(scale=0.5)).times.prior == 0.5).all()
