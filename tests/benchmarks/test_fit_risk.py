"""The fits behind the chances, and whether they come true."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.chances import chance_above, pairs_of
from benchmarks.fit_risk import FEWEST, Reading, Task, fit_memory, fit_order


def spread(count: int, scale: float, publisher: str, stack: str = "s", middle: float = 0.0) -> list[Reading]:
    """Readings of the framework's count with errors of Student's t at even chances."""
    from scipy.stats import t as student

    offs = middle + scale * student.ppf((np.arange(count) + 0.5) / count, 4)
    return [Reading(float(off), publisher, stack, "count", "dense") for off in offs]


METER = [Reading(off, "m", "other", "meter", "dense") for off in (-0.02, 0.0, 0.03)]
EXPERTS = [Reading(off, "e", "other", "count", "experts") for off in (-0.02, 0.01)]


def test_the_fit_finds_the_errors_that_were_put_in() -> None:
    found = fit_memory([*spread(60, 0.05, "a", middle=0.02), *METER, *EXPERTS])["count"]["s/dense"]
    assert found.middle == pytest.approx(0.02, abs=0.01)
    assert found.scale == pytest.approx(0.05, rel=0.15)
    assert found.readings == 60


def test_a_stack_with_few_readings_has_no_group_and_others_pull_one_that_has() -> None:
    few, many = spread(FEWEST - 1, 0.01, "a", "few"), spread(FEWEST, 0.01, "b", "many", middle=0.1)
    groups = fit_memory([*few, *many, *spread(40, 0.02, "c"), *METER])["count"]
    assert set(groups) == {"dense", "experts", "many/dense", "s/dense"}
    assert 0.0 < groups["many/dense"].middle < 0.1


@pytest.mark.full
def test_a_chance_comes_true_among_errors_of_the_same_kind() -> None:
    others = [*spread(80, 0.05, "a"), *METER]
    chances = [chance_above(one, others) for one in spread(100, 0.05, "b")]
    assert np.mean([chance < 0.1 for chance in chances]) == pytest.approx(0.1, abs=0.03)


def made_up(publisher: str, own: float, shares: float, seed: int) -> Task:
    """Six layouts whose errors come from these scales."""
    random = np.random.default_rng(seed)
    parts = random.dirichlet(np.ones(8), 6)
    predicted = np.log(10.0) + 0.1 * random.standard_normal(6)
    error = own / np.sqrt(2) * random.standard_normal(6) + shares * parts @ random.standard_normal(8)
    return Task(publisher, predicted + error + 0.3, predicted, parts)


def test_the_order_s_fit_finds_the_scales_and_leaves_out_what_is_common() -> None:
    found = fit_order([made_up("a", 0.05, 0.4, seed) for seed in range(60)])
    assert found.own == pytest.approx(0.05, rel=0.4)
    assert found.shares == pytest.approx(0.4, rel=0.4)
    assert (found.layouts, found.tasks) == (360, 60)


def test_every_pair_is_judged_without_its_publisher() -> None:
    pairs = pairs_of([made_up("a", 0.02, 0.1, 1), made_up("b", 0.02, 0.1, 2)])
    assert [pair.publisher for pair in pairs] == ["a"] * 15 + ["b"] * 15
    assert np.mean([pair.brier for pair in pairs]) < 0.25
