"""The spread of clusters: its likelihood, and the file it is written to."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from benchmarks import fit_spread
from benchmarks.fit_spread import Source, log_likelihood
from cpsolver.evidence.posterior.misfit import Locations, covariance, load_spread
from cpsolver.inputs.document import load_yaml

PLACES = Locations(np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 2.0]]), ("a", "a", "b"), ("1", "2", "3"))
SOURCE = Source(np.array([0.1, 0.05, -0.2]), np.array([[0.3, 0.0], [0.2, 0.1], [0.0, 0.4]]), PLACES)


def test_the_likelihood_is_that_of_a_gaussian() -> None:
    spread, level = load_spread(), 0.5
    whole = spread.scale**2 * SOURCE.slope @ SOURCE.slope.T + level**2 * covariance(spread, PLACES, PLACES)
    whole = whole + spread.noise**2 * np.eye(3)
    expected = multivariate_normal(np.zeros(3), whole).logpdf(SOURCE.off) + 1.5 * np.log(2 * np.pi)
    assert log_likelihood(SOURCE, spread, level) == pytest.approx(expected)


@pytest.mark.full
def test_wide_errors_are_fitted_by_a_wider_spread() -> None:
    start = load_spread()
    narrow = fit_spread.fit([replace(SOURCE, off=SOURCE.off / 10)] * 4, start)
    wide = fit_spread.fit([replace(SOURCE, off=SOURCE.off * 10)] * 4, start)
    assert wide.scale > narrow.scale


def test_the_file_keeps_its_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "spread.yaml"
    shutil.copy(fit_spread.OUTPUT, copy)
    monkeypatch.setattr(fit_spread, "OUTPUT", copy)
    fit_spread.write(replace(load_spread(), scale=1.23456))
    assert load_yaml(copy).data["scale"] == 1.235
    assert "# of the spreads in uncertain.yaml" in copy.read_text(encoding="utf-8")
