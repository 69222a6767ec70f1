"""The overlay's file: there and back, what is refused, and the intervals that it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import exp, log
from pathlib import Path

import numpy as np
import pytest

from cpsolver.doors.report.interval import Interval, interval_of, provenance
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evidence.calibrate.observations import evidence_of
from cpsolver.evidence.calibrate.overlay import overlay_of, overlay_text
from cpsolver.evidence.calibrate.result import CalibrationResult, calibrate
from cpsolver.evidence.chances import out_of_memory_probability
from cpsolver.evidence.intervals import WITHIN_80, half_width, spread
from cpsolver.evidence.posterior.forecast import forecast, posterior_of
from cpsolver.evidence.posterior.predictions import PlacedPlan
from cpsolver.evidence.runs.table import read_runs
from cpsolver.inputs.errors import InputError
from cpsolver.profiles.constants import Overlay, load_overlay
from tests.support.calibrating import cluster_rows, text_of


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> CalibrationResult:
    table = tmp_path_factory.mktemp("runs") / "runs.csv"
    table.write_text(text_of(cluster_rows(5)), encoding="utf-8")
    return calibrate(evidence_of(read_runs(table)), "runs.csv")


@pytest.fixture(scope="module")
def text(result: CalibrationResult) -> str:
    return overlay_text(overlay_of(result, "1.2.3"))


@pytest.fixture
def overlay(text: str, tmp_path: Path) -> Overlay:
    (tmp_path / "ours.yaml").write_text(text, encoding="utf-8")
    return load_overlay(tmp_path / "ours.yaml")


def _places(result: CalibrationResult) -> list[PlacedPlan]:
    """A run that was learnt from, the same with other degrees, and on more nodes."""
    place = result.evidence.rows[0].observation.plan
    wider = replace(place.strategy, dp=4 * place.strategy.dp)
    return [
        place,
        PlacedPlan(place.problem, replace(place.strategy, mbs=2)),
        PlacedPlan(place.problem.of_size(64), wider),
    ]


@pytest.mark.full
def test_forecasts_of_the_file_are_those_of_the_belief(result: CalibrationResult, overlay: Overlay) -> None:
    noise = result.posterior.times.spread.noise**2
    for place in _places(result):
        mean, covariance = result.posterior.step_times([place])
        found = forecast(place.problem.with_constants(overlay), overlay, place.strategy)
        assert found.mean == pytest.approx(mean[0], abs=2e-4)  # slopes are taken a little elsewhere
        assert found.sd == pytest.approx((covariance[0, 0] + noise) ** 0.5, rel=5e-3)


@pytest.mark.full
def test_the_posterior_of_the_file_is_the_belief(result: CalibrationResult, overlay: Overlay) -> None:
    found, constants = posterior_of(overlay)
    of_times = [each.key for each in result.posterior.constants if each.kind != "memory"]
    assert [each.key for each in constants] == of_times
    assert np.abs(found.mean - result.posterior.times.mean).max() < 1e-5
    assert np.abs(found.covariance - result.posterior.times.covariance).max() < 1e-5
    assert [level.weight for level in found.levels] == pytest.approx(
        [level.weight for level in result.posterior.times.levels], abs=1e-5
    )


def test_the_problem_has_the_constants_of_the_posterior_mean(result: CalibrationResult, overlay: Overlay) -> None:
    problem = result.evidence.rows[0].observation.plan.problem
    ours, theirs = problem.with_constants(overlay), result.posterior.problem(problem)
    for name, figure in ours.supplies[0].chip.efficiency.items():
        assert figure.value == pytest.approx(theirs.supplies[0].chip.efficiency[name].value, rel=1e-6)
    assert ours.stack.step_overhead_ms == pytest.approx(theirs.stack.step_overhead_ms, rel=1e-6)


def test_a_plan_like_the_runs_gets_a_tighter_interval(result: CalibrationResult, overlay: Overlay) -> None:
    place = _places(result)[1]
    low, high, _ = spread(place.problem, place.strategy)
    ours_low, ours_high, basis = spread(place.problem.with_constants(overlay), place.strategy)
    found = forecast(place.problem.with_constants(overlay), overlay, place.strategy)
    assert found.sd < 0.5 * found.sd_before
    assert ours_high - ours_low < 0.9 * (high - low)
    assert basis.startswith("learnt from 5 runs in ")


def test_a_plan_of_what_no_run_tells_does_not(result: CalibrationResult, overlay: Overlay) -> None:
    place = result.evidence.rows[0].observation.plan  # with a context and sequences that no run had
    training = place.problem.spec.training.model_copy(update={"sequence_length": 131072, "global_batch_size": 8})
    spec = place.problem.spec.model_copy(update={"training": training})
    problem = replace(place.problem, spec=spec)
    plan = replace(place.strategy, cp=8, tp=2, dp=1)
    low, high, _ = spread(problem, plan)
    ours_low, ours_high, _ = spread(problem.with_constants(overlay), plan)
    assert ours_high - ours_low >= high - low


def test_half_an_interval_grows_with_what_the_published_one_knew() -> None:
    assert half_width(0.1, 0.2, published=0.1) == pytest.approx(WITHIN_80 * 0.1)
    assert half_width(0.1, 0.2, published=4 * WITHIN_80 * 0.2) == pytest.approx(4 * WITHIN_80 * 0.1)


def test_the_middle_of_the_interval_is_the_forecast(result: CalibrationResult, overlay: Overlay) -> None:
    place = _places(result)[0]
    problem = place.problem.with_constants(overlay)
    found = forecast(problem, overlay, place.strategy)
    interval = interval_of(problem, place.strategy, exp(found.predicted))
    assert log(interval.low_s * interval.high_s) / 2 == pytest.approx(found.mean)
    assert interval.middle == pytest.approx(exp(found.mean - found.predicted) - 1)


def test_a_middle_off_the_prediction_is_said() -> None:
    told = " ".join(provenance(Interval(1.0, 2.0, "learnt from 5 runs in x", True, True, 0.031)))
    assert "Its middle lies 3.1 % above the prediction" in told
    assert "Its middle" not in " ".join(provenance(Interval(1.0, 2.0, "learnt from 5 runs in x", True, True, 0.01)))


def _swap(old: str, new: str) -> Callable[[str], str]:
    def swapped(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return swapped


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (_swap("schema: 1", "schema: 2"), "schema = 2: is another version of the file: calibrate again (allowed: 1)"),
        (_swap("schema: 1", "scheme: 1"), "is no overlay of `apss-cp calibrate`"),
        (
            _swap("gemm: {published: 1.0", "gemm: {published: -1.0"),
            "chips.a800.gemm.published = -1.0: must be at least",
        ),
        (_swap("gemm: {published: 1.0", "gemm: {published: .nan"), "must be a finite number"),
        (_swap("    gemm:", "    gem:"), "chips.a800.gem: is no constant that runs tell"),
        (_swap("gemm: {published: 1.0", "gemm: {x: 1, published: 1.0"), "chips.a800.gemm.x = 1: is not a known field"),
        (_swap("  at: [", "  at: [1.0e+308, "), "runs[0].at[0] = 1e+308: must be at most 1000"),
        (_swap("  at: [", "  at: [1.0, "), "must have 13 numbers: calibrate again"),
        (_swap("runs: 5", "runs: 6"), "counts 6 runs, and the file has 5"),
        (_swap("runs: 5", "runs: many"), "must be a whole number, not text"),
        (_swap("spread: ", "spread: 0"), "made with another spread.yaml than this version has"),
        (_swap("doubts: []", "doubts: []\nmore: 1"), "more"),
        (lambda text: text[:300], ""),
        (lambda text: "", "is empty"),
    ],
)
def test_damaged_files_are_refused(text: str, tmp_path: Path, damage: Callable[[str], str], told: str) -> None:
    (tmp_path / "bad.yaml").write_text(damage(text), encoding="utf-8")
    with pytest.raises(InputError) as error:
        load_overlay(tmp_path / "bad.yaml")
    assert told in str(error.value)
    assert "bad.yaml" in str(error.value)


def test_shares_stay_shares_and_factors_above_nothing(text: str, tmp_path: Path) -> None:
    import re

    for name, value, told in (("gradient_overlap", "1.2", "is a share"), ("gemm", "0.0", "must be more than 0")):
        wrong = re.sub(rf"( {name}:\s+{{published:\s+[^,]*,\s+learnt:\s+)[^,]*", rf"\g<1>{value}", text, count=1)
        (tmp_path / "bad.yaml").write_text(wrong, encoding="utf-8")
        with pytest.raises(InputError, match=told):
            load_overlay(tmp_path / "bad.yaml")


def test_own_readings_of_memory_make_a_full_device_s_chance_surer(result: CalibrationResult, overlay: Overlay) -> None:
    place = result.evidence.rows[0].observation.plan
    published, learnt = place.problem, place.problem.with_constants(overlay)
    found = evaluate(published, place.strategy)
    size = published.supplies[0].chip.memory_capacity_bytes
    need = replace(found.stages[0].memory, activations=0.0)
    need = replace(need, activations=0.94 * size - need.total)
    nearly_full = replace(found, stages=(replace(found.stages[0], memory=need),))
    before, unlearnt = (out_of_memory_probability(each, place.strategy, nearly_full) for each in (published, learnt))
    assert 0.0 < before < 0.3
    assert unlearnt <= before
    sure = {
        name: each.model_copy(update={"sd": 0.1 * each.sd_before})
        for name, each in overlay.stacks[published.stack.name].items()
    }
    surer = overlay.model_copy(update={"stacks": {**overlay.stacks, published.stack.name: sure}})
    assert out_of_memory_probability(published.with_constants(surer), place.strategy, nearly_full) < before
