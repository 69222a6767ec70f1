"""What all stages take together, and what follows the pipeline, at least: against every way to share the layers out."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from cpsolver.search.bounds.bottleneck import After, least_after
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.space import enumerate_rows
from tests.support.problems import chip_spec, model_spec, problem_of


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("chunks", [1, 2])
def test_what_follows_is_no_less_than_with_the_best_shares(seed: int, chunks: int) -> None:
    """Three stages: the last of the shares whose worst stage is best is what is found, to its precision."""
    rng = np.random.default_rng(seed)
    layer, fixed, most = rng.uniform(0.1, 1.0, 3), rng.uniform(0.0, 2.0, 3), chunks * rng.integers(2, 7, 3)
    layers = int(chunks * rng.integers(3, most.sum() // chunks + 1))
    shares = [share for share in product(*(range(chunks, top + 1, chunks) for top in most)) if sum(share) == layers]
    best = min(float((fixed + layer * share).max()) for share in shares)
    after = After(layer[None], fixed[None], np.full((1, 1), float(chunks)))
    low = np.array([(fixed + chunks * layer).max()])
    found = float(least_after(after, most[None].astype(float), low, np.array([layers]))[0])
    assert best - 0.05 * best < found <= best * (1 + 1e-12)


def test_stages_of_one_kind_count_together() -> None:
    """Two stages of one type and one of another hold 8 layers: at best 3, 3 and 2, 0.5 + 2 * 0.2 on the slower type."""
    after = After(np.array([[0.1, 0.2]]), np.array([[0.5, 0.5]]), np.ones((1, 1)))
    most, layers = np.array([[6.0, 3.0]]), np.array([8])
    found = float(least_after(after, most, np.array([0.0]), layers, np.array([[2, 1]]))[0])
    assert found == pytest.approx(0.5 + 2 * 0.2, rel=0.01)


def test_layers_save_once() -> None:
    """Nothing on a single type; on two no less than with any split of the dense layers and the experts."""
    chips = {"a": chip_spec(100), "b": chip_spec(300, gb=2)}
    model = model_spec(layers=10, moe={"experts": 4, "top_k": 2, "expert_ffn": 4096, "first_dense": 3})
    problem = problem_of(chips, model, 4, 2, 16, 512)
    rows = enumerate_rows(problem).rows
    table, row = Coefficients(problem, rows.take(np.arange(min(len(rows), 6)))), np.arange(min(len(rows), 6))
    for used in ([True, False], [False, True]):
        alone = table.saving_in_all([row, row], np.array([used] * len(row)))
        assert alone == pytest.approx(np.zeros(len(row)), abs=1e-9)
    both = table.saving_in_all([row, row], np.ones((len(row), 2), dtype=np.bool_))
    prefix = [table.beyond_mean(table.time.kind_layer[chip], row)[:, :11] for chip in range(2)]
    saved = [
        prefix[first][:, cut] + prefix[1 - first][:, -1] - prefix[1 - first][:, cut]
        for first, cut in product(range(2), range(11))
    ]
    assert (both >= np.max([-each for each in saved], axis=0) - 1e-12).all()
    assert (both > 0).any()
