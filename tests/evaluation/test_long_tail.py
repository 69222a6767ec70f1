"""The wait for the replica with most attention: the formula against draws, and what it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.long_tail import long_tail_s, pairs_of_windows, slowest_of
from tests.support.problems import ideal, strategy_of

KINDS = [(0.5, 0.1), (0.3, 0.4), (0.2, 1.0)]


def test_two_replicas_of_one_window() -> None:
    """Halves of 0.25 and 0.75: the larger of two is 0.75 three times in four: 0.625 of a mean of 0.5."""
    assert slowest_of([(0.5, 0.25), (0.5, 0.75)], 1, 2) == pytest.approx(0.625 / 0.5)
    assert slowest_of([(0.5, 0.25), (0.5, 0.75)], 1, 1) == 1.0
    assert slowest_of([(1.0, 0.3)], 7, 64) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize(("windows", "replicas"), [(1, 4), (4, 8), (32, 64)])
def test_formula_agrees_with_draws(windows: int, replicas: int) -> None:
    """20,000 steps drawn window by window: four standard errors of their mean."""
    draw = np.random.default_rng(7)
    shares, sizes = (np.array(each) for each in zip(*KINDS, strict=True))
    counts = draw.multinomial(windows, shares, size=(20_000, replicas))
    slowest = (counts @ sizes).max(axis=1)
    mean = windows * float(shares @ sizes)
    error = 4 * slowest.std() / np.sqrt(len(slowest)) / mean
    assert slowest_of(KINDS, windows, replicas) == pytest.approx(slowest.mean() / mean, abs=error + 1e-3)


def test_a_steps_wait_is_its_attention_times_the_formula() -> None:
    """Windows of 1024: one of a sequence of 1024, or of two of 512, which have half the pairs; as many of either."""
    lengths = [{"tokens": 1024, "share": 1}, {"tokens": 512, "share": 2}]
    problem, _ = ideal(training={"lengths": lengths})
    kinds = pairs_of_windows(problem)
    assert sorted(size for _, size in kinds if size > 0.4) == pytest.approx([0.5, 1.0])
    plan = strategy_of(dp=4)
    wait = long_tail_s(problem, plan, evaluate(problem, plan))
    longer, _ = ideal(training={"lengths": [{"tokens": 1024, "share": 1}]})
    core = 4 * 2 * (4 * 1024 * 1024 * 0.5 * 1024) * (1 + 2.5) / 50e12  # layers, microbatches, FLOP, passes
    assert wait == pytest.approx(0.75 * core * (slowest_of(kinds, 2, 4) - 1), rel=1e-3)
    assert long_tail_s(longer, plan, evaluate(longer, plan)) == pytest.approx(0.0, abs=1e-3 * core)
    assert long_tail_s(ideal()[0], plan, evaluate(ideal()[0], plan)) is None


def test_sharded_gradients_have_replicas_wait_at_every_microbatch() -> None:
    lengths = [{"tokens": 1024, "share": 1}, {"tokens": 512, "share": 2}]
    problem, _ = ideal(training={"lengths": lengths})
    plans = [strategy_of(dp=4, sharded=each) for each in ("optimizer", "gradients")]
    once, always = (long_tail_s(problem, plan, evaluate(problem, plan)) for plan in plans)
    assert once is not None
    assert always is not None
    assert always > 1.2 * once
