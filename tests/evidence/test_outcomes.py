"""The column `outcome`: runs that ran out of memory, and runs that failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cpsolver.evidence.calibrate.observations import evidence_of
from cpsolver.evidence.calibrate.result import calibrate
from cpsolver.evidence.runs.table import read_runs
from tests.support.calibrating import LAYOUTS, cluster_rows, row, text_of
from tests.support.command import in_tmp, run, write

__all__ = ["in_tmp"]

BIG = {"num_gpus": 16, "tp": 1, "pp": 1, "mbs": 4}


def test_runs_without_a_step_time_are_read_and_need_none() -> None:
    rows = [*cluster_rows(1), row("short", BIG, outcome="oom"), row("lost", LAYOUTS[1], outcome="failed")]
    table = read_runs(write("runs.csv", text_of(rows)))
    assert not table.troubles
    assert [each.outcome for each in table.runs] == ["ok", "oom", "failed"]
    assert all(each.complete for each in table.runs)


def test_validate_tells_them_and_does_not_score_them() -> None:
    rows = [*cluster_rows(1), row("short", BIG, outcome="oom"), row("lost", LAYOUTS[1], outcome="failed")]
    found = json.loads(run("validate", write("runs.csv", text_of(rows)), "--json").stdout)
    assert found["summary"]["predicted"] == 1
    assert list(found["summary"]["skipped"]) == [
        "ran out of memory: no step time to predict",
        "failed: no step time to predict",
    ]


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ({"outcome": "oom", "step_time_s": 3}, "must be empty: the outcome is oom"),
        ({"outcome": "crashed"}, "is not one of the choices (allowed: ok, oom, failed)"),
        ({"outcome": "ok", "complete": 1}, "step_time_s: is empty, and the row is marked complete"),
    ],
)
def test_wrong_outcomes_are_told(cells: dict[str, object], told: str) -> None:
    table = read_runs(write("runs.csv", text_of([row("one", BIG, **cells)])))
    assert told in " ".join(map(str, table.troubles))


@pytest.mark.full
def test_a_run_that_ran_out_counts_for_memory_alone() -> None:
    rows = [*cluster_rows(3), row("short", BIG, outcome="oom"), row("lost", LAYOUTS[3], outcome="failed")]
    evidence = evidence_of(read_runs(write("runs.csv", text_of(rows))))
    assert [each.run.id for each in evidence.rows] == ["run-0", "run-1", "run-2", "short"]
    assert evidence.left_out == {"failed for a reason that says nothing of the layout": ("lost",)}
    result = calibrate(evidence, "runs.csv")
    assert len(result.runs) == 3
    (short,) = result.ran_out
    assert short.name == "short"
    assert short.explained
    assert not result.readings


@pytest.mark.full
def test_a_run_that_should_have_fitted_moves_memory_and_is_told() -> None:
    tight = {"num_gpus": 16, "tp": 2, "pp": 2, "mbs": 1}
    rows = [*cluster_rows(2), cluster_rows(6)[3], row("short", {**tight, "mbs": 2}, outcome="oom")]
    result = run("calibrate", write("runs.csv", text_of(rows)), "-o", "ours.yaml", "--json")
    (short,) = json.loads(result.stdout)["out_of_memory"]
    assert short["after"] > short["before"]
    text = run("calibrate", "runs.csv", "-o", "ours.yaml").output
    assert "short ran out of memory: " in text


@pytest.mark.full
def test_readings_of_memory_are_learnt_from_and_left_out_in_turn() -> None:
    plain = cluster_rows(4)
    first = json.loads(run("validate", write("runs.csv", text_of(plain)), "--json").stdout)["rows"]
    rows = [
        {**each, "peak_mem_gib": 1.1 * one["peak_mem_gib_predicted"], "peak_mem_kind": "device"}
        for each, one in zip(plain, first, strict=True)
    ]
    result = run("calibrate", write("runs.csv", text_of(rows)), "-o", "ours.yaml", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["memory"]
    assert [round(each["before"], 2) for each in found] == [-0.09] * 4
    assert all(abs(each["after"]) < 0.055 for each in found)
    after = json.loads(run("validate", "runs.csv", "--json", "--calibration", "ours.yaml").stdout)["rows"]
    assert after[0]["peak_mem_gib_predicted"] > 1.03 * first[0]["peak_mem_gib_predicted"]
    assert Path("ours.yaml").exists()
