"""Trials as measured runs, read back by those who read such tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.tune.measured_runs import runs_table
from cpsolver.evidence.runs.plan import placed_plan
from cpsolver.evidence.runs.table import read_runs
from cpsolver.evidence.runs.validation import predict
from tests.support.command import in_tmp as in_tmp
from tests.support.command import run
from tests.support.tuning import TRAINING, kept, problem, tune


def table() -> Path:
    path = Path("runs.csv")
    tune(
        "--shell",
        "--run",
        f"if [ {{trial}} = 2 ]; then exec {TRAINING} --iters 1 --ends oom; fi; {TRAINING}",
        "--runs-csv",
        str(path),
    )
    return path


def test_measured_trials_are_runs_of_the_same_plan_with_the_same_prediction() -> None:
    read = read_runs(table())
    assert not read.troubles
    trials = {f"spec-{trial.number:03d}": trial for trial in kept()}
    measured = [run for run in read.runs if run.step_time_s is not None]
    assert [found.id for found in measured] == ["spec-001", "spec-003"]
    for found in measured:
        trial = trials[found.id]
        assert placed_plan(found).strategy == trial.strategy
        assert (found.step_time_s, found.peak_mem_gib, found.peak_mem_kind) == (2.0, 50.0, "allocated")
        assert found.complete
        assert abs(predict(found).step_time_s / trial.predicted_s - 1) < 1e-9


def test_a_plan_that_ran_out_of_memory_is_a_row_without_a_time() -> None:
    lines = table().read_text(encoding="utf-8").splitlines()
    names = lines[0].split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in lines[1:]]
    assert [row["outcome"] for row in rows] == ["ok", "oom", "ok"]
    assert [row["step_time_s"] for row in rows] == ["2", "", "2"]


@pytest.mark.full
def test_validate_reads_them() -> None:
    result = run("validate", str(table()), "--json")
    assert result.exit_code == 0, result.output


@pytest.mark.full
def test_what_a_row_cannot_say_is_left_out_and_told() -> None:
    table()
    (trial, *_) = kept()
    group = trial.strategy.groups[0]
    parts = (("mlp",), ("core_attn",))
    apart = tuple(replace(group, layers=(16,), recompute="selective", modules=modules) for modules in parts)
    plans = {
        "recompute_modules": replace(trial.strategy, pp=2, dp=trial.strategy.dp // 2, groups=apart),
        "schedule": replace(trial.strategy, schedule="zb1p"),
        "cp_gather": replace(trial.strategy, cp_gather=True),
    }
    for name, strategy in plans.items():
        text, left_out = runs_table(problem(), [replace(trial, strategy=strategy)])
        assert text.count("\n") == 1
        assert left_out == [f"trial 1 is not in the table: a row has no word for its {name}"]
    mixed = replace(trial.strategy, groups=(replace(group, layers=(16,)), replace(group, chip="a100", layers=(16,))))
    _, left_out = runs_table(problem(), [replace(trial, strategy=mixed)])
    assert "one chip type" in left_out[0]


def test_modules_and_the_layers_of_stages_are_written_and_read_back() -> None:
    table()
    (trial, *_) = kept()
    stages: dict[str, Any] = {
        "layers": (15, 17),
        "recompute": "selective",
        "recompute_layers": (0, 0),
        "modules": ("core_attn", "mlp"),
    }
    group = replace(trial.strategy.groups[0], **stages)
    uneven = replace(trial.strategy, pp=2, dp=trial.strategy.dp // 2, groups=(group,))
    text, left_out = runs_table(problem(), [replace(trial, strategy=uneven)])
    assert left_out == []
    Path("uneven.csv").write_text(text, encoding="utf-8")
    (found,) = read_runs("uneven.csv").runs
    assert (found.layers_per_stage, found.recompute_modules) == ((15, 17), ("core_attn", "mlp"))


@pytest.mark.full
def test_a_training_or_a_model_that_no_row_can_say_is_left_out() -> None:
    table()
    (trial, *_) = kept()
    spec = problem().spec
    dropped = spec.training.model_copy(update={"dropout": True})
    other = replace(problem(), spec=spec.model_copy(update={"training": dropped}))
    assert runs_table(other, [trial])[1] == ["trial 1 is not in the table: a row has no word for its dropout"]
    wide = replace(problem(), model=problem().model.model_copy(update={"head_dim": 192}))
    assert runs_table(wide, [trial])[1] == ["trial 1 is not in the table: a row has no word for its head_dim"]
    odd = replace(problem(), model=problem().model.model_copy(update={"heads": 48, "kv_heads": 48}))
    assert "a row cannot say its model" in runs_table(odd, [trial])[1][0]
