"""`apss-cp calibrate` end to end, and what `--calibration` does with its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cpsolver.profiles.constants import load_overlay
from tests.support.calibrating import LAYOUTS, cluster_rows, measured, row, text_of
from tests.support.command import in_tmp, run, write

__all__ = ["in_tmp"]

SPEC = """\
model: llama2-13b
cluster: {num_gpus: 16, chips: a800}
training: {global_batch_size: 64, sequence_length: 4096}
search: {top: 1}
"""


def calibrate(rows: list[dict[str, Any]], *more: str) -> Any:
    return run("calibrate", write("runs.csv", text_of(rows)), "-o", "ours.yaml", *more)


@pytest.fixture(scope="module")
def overlay_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The overlay of the cluster's runs, made once by the command."""
    folder = tmp_path_factory.mktemp("calibrated")
    (folder / "runs.csv").write_text(text_of(cluster_rows()), encoding="utf-8")
    result = run("calibrate", str(folder / "runs.csv"), "-o", str(folder / "ours.yaml"))
    assert result.exit_code == 0, result.output
    assert "nothing learnt of" in result.output
    assert "apss-cp solve SPEC --calibration" in result.output
    return (folder / "ours.yaml").read_text(encoding="utf-8")


@pytest.mark.full
def test_the_answer_as_json_says_what_was_learnt() -> None:
    result = calibrate(cluster_rows(4), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["status"] == "written"
    assert found["covers"] == [{"chip": "a800", "stack": "megatron-core", "runs": 4}]
    assert found["error"]["after"] < found["error"]["before"]
    gemm = found["constants"]["chips"]["a800"]["gemm"]
    assert gemm["learnt"] < 0.95
    assert gemm["sd"] < gemm["sd_before"]
    assert [each["id"] for each in found["rows"]] == [f"run-{place}" for place in range(4)]


@pytest.mark.full
def test_what_was_learnt_moves_the_prediction_towards_the_cluster(overlay_text: str) -> None:
    spec, ours = write("spec.yaml", SPEC), write("ours.yaml", overlay_text)
    before, after = (
        json.loads(run("solve", spec, "--json", *more).stdout)["plans"][0] for more in ((), ("--calibration", ours))
    )
    assert after["step_time_s"] > 1.08 * before["step_time_s"]


@pytest.mark.full
def test_the_report_says_where_the_interval_comes_from(overlay_text: str) -> None:
    result = run("solve", write("spec.yaml", SPEC), "--evidence", "--calibration", write("ours.yaml", overlay_text))
    assert result.exit_code == 0, result.output
    assert f"learnt from {len(LAYOUTS)} runs in ours.yaml" in " ".join(result.output.split())


def test_validate_takes_it_and_skips_what_it_does_not_cover(overlay_text: str) -> None:
    rows = [*cluster_rows(2), {**row("other", LAYOUTS[0], chip="h800"), "step_time_s": 5}]
    table = write("runs.csv", text_of(rows))
    result = run("validate", table, "--json", "--calibration", write("ours.yaml", overlay_text))
    found = json.loads(result.stdout)
    assert found["summary"]["predicted"] == 2
    (reason,) = found["summary"]["skipped"]
    assert "h800 with megatron-core" in reason
    assert abs(found["rows"][0]["error"]) < 0.03


def test_a_spec_that_it_does_not_cover_is_told_what_it_covers(overlay_text: str) -> None:
    ours = write("ours.yaml", overlay_text)
    for spec in (SPEC.replace("a800", "h800"), SPEC + "stack: nemo\n"):
        result = run("solve", write("spec.yaml", spec), "--calibration", ours)
        assert result.exit_code == 2
        assert "ours.yaml has no runs of" in result.stderr
        assert "a800 with megatron-core" in result.stderr
    own = SPEC.replace("chips: a800", "chips: {a800: {file: chip.yaml}}")
    result = run("solve", write("spec.yaml", own), "--calibration", ours)
    assert "the spec describes this one itself" in result.stderr


@pytest.mark.full
def test_evaluate_check_explain_export_and_batch_take_it(overlay_text: str) -> None:
    spec, ours = write("spec.yaml", SPEC), write("ours.yaml", overlay_text)
    Path("plans.json").write_text(run("solve", spec, "--json", "--calibration", ours).stdout, encoding="utf-8")
    plan = ("--strategy", "plans.json", "--calibration", ours)
    assert "in ours.yaml" in run("evaluate", spec, *plan).output
    assert run("check", spec, *plan).exit_code == 0
    assert run("explain", spec, *plan).exit_code == 0
    export = run("export", spec, "--to", "megatron-lm", "--plan", "plans.json", "--calibration", ours)
    assert export.exit_code == 0, export.output
    sweep = write(
        "sweep.yaml",
        f"base:\n{''.join('  ' + line for line in SPEC.splitlines(True))}grid: {{cluster.num_gpus: [16]}}\n",
    )
    found = [json.loads(run("batch", sweep, "--json", *more).stdout) for more in ((), ("--calibration", ours))]
    steps = [each["cells"][0]["step_time_s"] for each in found]
    assert steps[1] > 1.08 * steps[0]


def test_too_few_runs_are_refused_and_nothing_is_written() -> None:
    result = calibrate(cluster_rows(2))
    assert result.exit_code == 2
    assert "too few runs of a800 with the stack megatron-core: 2 with a step time (run-0, run-1)" in result.stderr
    assert not Path("ours.yaml").exists()


@pytest.mark.full
def test_readings_of_one_layout_that_lie_too_far_apart_are_refused() -> None:
    rows = cluster_rows(3)
    rows.append({**rows[0], "id": "again", "step_time_s": rows[0]["step_time_s"] * 1.2})
    rows.append({**rows[1], "id": "short", "step_time_s": "", "outcome": "oom"})
    result = calibrate(rows)
    assert result.exit_code == 2
    assert "rows run-0 and again are the same layout" in result.stderr
    assert "20.0% apart; noise explains 8.9%" in result.stderr
    assert "rows run-1 and short are the same layout, which fitted and ran out of memory" in result.stderr


@pytest.mark.full
def test_a_run_that_nothing_explains_is_named() -> None:
    rows = cluster_rows(5)
    rows[3]["step_time_s"] *= 100
    result = calibrate(rows)
    assert result.exit_code == 2
    assert [line.split()[2:4] for line in result.stderr.splitlines() if " took " in line] == [["row", "run-3"]]
    assert "standard deviations off" in result.stderr


@pytest.mark.full
def test_runs_of_which_half_are_of_another_chip_are_refused() -> None:
    rows = [{**each, "chip": "h100" if place % 2 else "a800"} for place, each in enumerate(cluster_rows())]
    result = calibrate(rows)
    assert result.exit_code == 2
    assert "these runs do not go together" in result.stderr


@pytest.mark.full
def test_that_all_times_have_one_factor_is_said() -> None:
    rows = [{**each, "step_time_s": each["step_time_s"] * 2} for each in cluster_rows(5)]
    result = calibrate(rows)
    assert result.exit_code == 0, result.stderr
    assert "note: all 5 step times are 2.2" in result.stderr


@pytest.mark.full
def test_what_no_cluster_has_is_not_learnt() -> None:
    rows = [*cluster_rows(4), row("short", LAYOUTS[4], outcome="oom")]  # it would fill a third of the device
    result = calibrate(rows)
    assert result.exit_code == 2
    assert "framework_bytes of megatron-core would have to be" in result.stderr
    assert "row short ran out of memory, and should need" in result.stderr


@pytest.mark.full
def test_runs_that_teach_nothing_are_refused() -> None:
    rows = measured([row(f"run-{place}", layout) for place, layout in enumerate(LAYOUTS[:4])], {})
    for each, off in zip(rows, (0.95, 1.05, 1.05, 0.95), strict=True):  # as often slower than published as faster
        each["step_time_s"] *= off
    result = calibrate(rows)
    assert result.exit_code == 2
    assert "these runs teach nothing that carries over" in result.stderr


@pytest.mark.full
def test_anyway_writes_and_the_file_says_so() -> None:
    result = calibrate(cluster_rows(2), "--anyway")
    assert result.exit_code == 0, result.output
    assert "too few runs" in load_overlay("ours.yaml").doubts[0]
    solved = run("solve", write("spec.yaml", SPEC), "--calibration", "ours.yaml")
    assert "written in spite of doubts: too few runs" in " ".join(solved.output.split())


@pytest.mark.full
def test_bad_tables_are_told_whole() -> None:
    assert "is empty" in run("calibrate", write("runs.csv", "")).stderr
    missing = run("calibrate", write("runs.csv", "id,model\nx,y\n"))
    assert missing.exit_code == 2
    assert missing.stderr.count("the column is missing") > 10
    rows = cluster_rows(4)
    rows[1]["step_time_s"] = -3
    result = calibrate(rows)
    assert result.exit_code == 0
    assert "row run-1, step_time_s = '-3': must be more than 0" in result.stderr
    assert "1 row at fault" in result.stdout
    none = calibrate([{**rows[0], "framework": "something of our own"}])
    assert none.exit_code == 2
    assert "no stack profile stands for the framework" in none.stderr


def test_without_scipy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpsolver.evidence.posterior.find_spec", lambda _name: None)
    result = run("calibrate", write("runs.csv", text_of(cluster_rows(3))))
    assert result.exit_code == 2
    assert "needs scipy: pip install 'apss-cp[calibrate]'" in result.stderr


@pytest.mark.parametrize("runs", ["", "/", ".."])
def test_a_folder_is_no_table(runs: str) -> None:
    result = run("calibrate", runs)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is a directory, not a file" in result.stderr
