"""--runs: what was measured before the tuning counts as its own trials do."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpsolver.doors.tune.measured_runs import read_earlier_runs
from cpsolver.inputs.errors import InputError
from cpsolver.problem.load import load_problem
from tests.support.calibrating import cluster_rows, text_of
from tests.support.command import in_tmp as in_tmp
from tests.support.command import run, write
from tests.support.tuning import TRAINING, errors, spec

SPEC = """\
model: llama2-13b
cluster: {num_gpus: 16, chips: CHIP}
training: {global_batch_size: 64, sequence_length: 4096}
"""
_LINKS = "scale_up: {bandwidth_gb_s: 300}, scale_out: {bandwidth_gbit_s: 200}}"


def test_rows_of_the_chip_and_stack_are_evidence() -> None:
    found = read_earlier_runs(write("runs.csv", text_of(cluster_rows(3))), load_problem(_spec("a800")))
    assert [each.name for each in found.observations] == ["run-0", "run-1", "run-2"]
    assert all(each.step_time_s for each in found.observations)
    assert found.notes == ()


def test_rows_of_another_chip_are_left_out_and_told() -> None:
    rows = cluster_rows(2)
    rows[1] |= {"chip": "h800"}
    found = read_earlier_runs(write("runs.csv", text_of(rows)), load_problem(_spec("a800")))
    assert [each.name for each in found.observations] == ["run-0"]
    assert found.notes == ("runs.csv: run-1: left out, not on a800 with megatron-core",)


def test_a_table_without_such_rows_is_refused_with_what_it_has() -> None:
    with pytest.raises(InputError, match=r"no run on h800 with megatron-core.*a800 with megatron-core"):
        read_earlier_runs(write("runs.csv", text_of(cluster_rows(2))), load_problem(_spec("h800")))


def test_all_that_is_wrong_in_the_table_is_told_and_nothing_is_started() -> None:
    rows = cluster_rows(2)
    rows[0] |= {"step_time_s": -1}
    rows[1] |= {"tp": "many"}
    result = run("tune", spec(), "--run", TRAINING, "--runs", write("runs.csv", text_of(rows)))
    assert result.exit_code == 2, result.output
    assert "step_time_s" in result.stderr
    assert "tp" in result.stderr
    assert not Path("spec.tune").exists()


def test_a_policy_that_learns_nothing_takes_no_runs() -> None:
    assert "does not go with --policy top" in errors("--run", TRAINING, "--runs", "runs.csv")


def test_chips_that_the_spec_describes_have_no_runs() -> None:
    chip = "{peak_tflops: {bf16: 300}, memory: {capacity_gb: 80, bandwidth_gb_s: 2000}, " + _LINKS
    own = SPEC.replace("CHIP", f"{{mine: {{spec: {chip}}}}}")
    with pytest.raises(InputError, match="describes this one itself"):
        read_earlier_runs(write("runs.csv", text_of(cluster_rows(1))), load_problem(write("spec.yaml", own)))


def _spec(chip: str) -> str:
    return write("spec.yaml", SPEC.replace("CHIP", chip))
