"""What is left of the ways to recompute of a plan: cpsolver/search/compile/options.py."""

from __future__ import annotations

import numpy as np
import pytest

from cpsolver.search.compile.options import Costs, _undominated

LAYERS = 12


def random_costs(rng: np.random.Generator, options: int) -> Costs:
    """On one or two chip types; few values, so that many options are as good as others."""
    chips = int(rng.integers(1, 3))
    each, once = (rng.integers(0, 3, (chips, options)) for _ in range(2))
    recomputed = np.repeat(rng.integers(0, LAYERS + 4, (1, options)), chips, axis=0)
    return Costs(each, recomputed, once, rng.integers(0, 4, (chips, 1)))


def table(costs: Costs) -> np.ndarray:
    """The steps of every option with 1 to LAYERS layers: (chip types, options, LAYERS)."""
    layers = np.arange(1, LAYERS + 1)
    recomputed = np.minimum(costs.recomputed[..., None], layers)
    steps = costs.layer_steps[..., None] * layers + costs.recompute[..., None] * recomputed + costs.steps[..., None]
    return np.asarray(steps)


@pytest.mark.parametrize("seed", range(40))
def test_costs_are_compared_as_at_every_number_of_layers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs, options = random_costs(rng, 9), np.arange(8)
    most = int(rng.integers(1, LAYERS + 1))
    every = table(costs)[:, :, :most]
    expected = (every[:, options] <= every[:, [8]]).all(axis=(0, 2))
    found = costs.as_cheap(options, np.array([8]), np.array([most]))
    np.testing.assert_array_equal(found, np.stack([expected]))


@pytest.mark.parametrize("seed", range(40))
def test_an_option_goes_where_one_before_is_as_cheap_and_fits_as_much(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs, fits = random_costs(rng, 9), rng.integers(0, 5, (2, 9, 1))
    every, kept = table(costs), list[int]()
    for option in range(9):
        most = int(fits[:, option].max())
        as_good = [
            other
            for other in kept
            if (fits[:, other] >= fits[:, option]).all() and (every[:, other, :most] <= every[:, option, :most]).all()
        ]
        if most and not as_good:
            kept.append(option)
    assert _undominated(costs, fits, list(range(9))) == kept
    assert len(kept) < 9
