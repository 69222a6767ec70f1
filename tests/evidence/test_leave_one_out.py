"""Leaving a layout out in closed form says what a fit without it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpsolver.evidence.calibrate.leave_one_out import LeftOutMoments, leave_one_out, leave_out
from cpsolver.evidence.calibrate.observations import Evidence, evidence_of
from cpsolver.evidence.posterior.misfit import Locations
from cpsolver.evidence.posterior.posterior import Posterior, learn
from cpsolver.evidence.posterior.time_posterior import TimePosterior, closed_form
from cpsolver.evidence.runs.table import read_runs
from tests.support.calibrating import cluster_rows, text_of


def _evidence(path: Path, rows: list[dict[str, object]]) -> Evidence:
    path.write_text(text_of(rows), encoding="utf-8")
    return evidence_of(read_runs(path))


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    rows = cluster_rows()
    twice = {**rows[0], "id": "again", "step_time_s": rows[0]["step_time_s"] * 1.02}
    return _evidence(tmp_path_factory.mktemp("runs") / "runs.csv", [*rows, twice])


@pytest.fixture(scope="module")
def posterior(evidence: Evidence) -> Posterior:
    return learn([row.observation for row in evidence.rows])


@pytest.fixture(scope="module")
def left(posterior: Posterior) -> LeftOutMoments:
    return leave_out(posterior.times)


def _without(found: TimePosterior, rows: list[int]) -> TimePosterior:
    kept = [at for at in range(len(found.off)) if at not in rows]
    locations = Locations(
        found.locations.coordinates[kept],
        tuple(found.locations.clusters[at] for at in kept),
        tuple(found.locations.identities[at] for at in kept),
    )
    return closed_form(found.spread, found.prior, locations, found.slope[kept], found.off[kept])


@pytest.mark.parametrize("rows", [[1], [3], [0, 6]], ids=["one", "another", "a layout measured twice"])
def test_it_is_the_same_linear_model_without_the_rows(
    posterior: Posterior, left: LeftOutMoments, rows: list[int]
) -> None:
    found = posterior.times
    fresh = _without(found, rows)
    at = rows[0]
    where = found.locations
    spot = Locations(where.coordinates[[at]], (where.clusters[at],), (where.identities[at],))
    line = replace(
        posterior.linear([posterior.observations[at].plan]), at=np.zeros(len(found.prior)), value=np.zeros(1)
    )
    line = replace(line, slope=found.slope[[at]])
    mean, covariance = fresh.forecast(spot, line)
    assert left.mean[at] == pytest.approx(mean[0], abs=1e-9)
    assert left.sd[at] ** 2 == pytest.approx(covariance[0, 0] + found.spread.noise**2, rel=1e-9)
    assert left.constants[at] == pytest.approx(found.slope[at] @ fresh.mean, abs=1e-9)


@pytest.mark.full
def test_a_fit_that_never_saw_the_row_agrees(evidence: Evidence, posterior: Posterior) -> None:
    told = leave_one_out(posterior, evidence.timed)[3]
    fresh = learn(
        [row.observation for row in evidence.rows if row is not told.row], [told.row.observation.plan.problem]
    )
    mean, covariance = fresh.step_times([told.row.observation.plan])
    assert told.middle_s == pytest.approx(np.exp(mean[0]), rel=0.005)  # lines bend a little
    assert np.log(told.high_s / told.low_s) / 2 >= 1.28 * covariance[0, 0] ** 0.5


def test_both_readings_of_a_layout_are_left_out(posterior: Posterior, left: LeftOutMoments) -> None:
    assert left.mean[0] == pytest.approx(left.mean[6], abs=1e-9)


def test_the_others_tell_what_the_published_constants_do_not(evidence: Evidence, posterior: Posterior) -> None:
    told = leave_one_out(posterior, evidence.timed)
    assert np.mean([abs(each.after) for each in told]) < 0.5 * np.mean([abs(each.before) for each in told])
