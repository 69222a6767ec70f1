"""The distribution of a step time: a split log-normal through its median and the ends of its 80 % interval."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from cpsolver.evidence.step_times import StepTimes

# the errors of dense models, of models with experts, of a wide and of a symmetric interval: 10 %, 50 %, 90 %
CASES = [(8.77, 10.0, 12.09), (7.53, 10.0, 11.14), (0.5, 1.0, 4.0), (9.0, 10.0, 100 / 9)]


def drawn(low: float, median: float, high: float, number: int) -> np.ndarray:
    """Draws that share no code with the product: a normal deviate, stretched otherwise below the median than above."""
    normal = np.random.default_rng(14).standard_normal(number)
    per_deviation = np.where(normal < 0, log(median / low), log(high / median)) / 1.28155
    return np.asarray(median * np.exp(per_deviation * normal))


@pytest.mark.parametrize("ends", CASES)
def test_the_chance_of_being_in_time_is_that_of_ten_thousand_draws(ends: tuple[float, float, float]) -> None:
    times, draws = StepTimes.through(*ends), drawn(*ends, 10_000)
    for limit in np.geomspace(ends[0] / 1.2, ends[2] * 1.2, 15).tolist():
        assert times.within(limit) == pytest.approx(float(np.mean(draws <= limit)), abs=0.01)


@pytest.mark.parametrize("ends", CASES)
def test_the_mean_is_that_of_many_draws(ends: tuple[float, float, float]) -> None:
    assert StepTimes.through(*ends).mean_s == pytest.approx(float(drawn(*ends, 2_000_000).mean()), rel=4e-3)


@pytest.mark.parametrize("ends", CASES)
def test_the_ends_and_the_median_are_its_quantiles(ends: tuple[float, float, float]) -> None:
    times = StepTimes.through(*ends)
    for share, seconds in zip((0.1, 0.5, 0.9), ends, strict=True):
        assert times.within(seconds) == pytest.approx(share, abs=1e-4)
        assert times.quantile(share) == pytest.approx(seconds, rel=1e-4)


def test_a_symmetric_interval_is_a_log_normal() -> None:
    times = StepTimes(10.0, 0.1, 0.1)
    assert times.mean_s == pytest.approx(10 * exp(0.1**2 / 2))


def test_a_median_outside_its_interval_is_moved_to_its_end() -> None:
    times = StepTimes.through(11.0, 10.0, 12.0)
    assert (times.median_s, times.below) == (11.0, 0.0)
    assert (times.within(10.9), times.within(11.0), times.within(13.0) > 0.9) == (0.0, 0.5, True)
