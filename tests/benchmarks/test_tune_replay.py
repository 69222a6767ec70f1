"""The replay of the tuner on published runs: how trials are counted, and what its tables rest on."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from benchmarks.tune_replay import RESULT, Measured, Task, random_order, thompson_order
from benchmarks.withhold import FEWEST_LAYOUTS, OUTPUT, task_groups
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from tests.support.believed import lean, menu

PLANS = menu()[:4]
TASK = Task("a task", lean(), dict(zip(PLANS, (2.0, 1.04, 1.0, 3.0), strict=True)))


@pytest.mark.parametrize(("order", "needed"), [((0, 1, 2, 3), (3, 2)), ((2, 0, 1, 3), (1, 1)), ((3, 0, 2, 1), (3, 3))])
def test_trials_are_counted_until_the_best_and_until_one_close(order: tuple[int, ...], needed: tuple[int, int]) -> None:
    assert TASK.trials_needed([PLANS[at] for at in order]) == needed


@pytest.mark.full
def test_every_layout_is_tried_once() -> None:
    assert set(Measured(TASK).search(None)) == set(PLANS)  # type: ignore[arg-type]
    for order in (thompson_order(TASK, 0), random_order(TASK, 1)):
        assert sorted(map(PLANS.index, order)) == [0, 1, 2, 3]


def test_what_was_withheld_are_the_tasks_of_many_layouts() -> None:
    runs = [run for run in read_runs(PUBLISHED).runs if run.complete]
    expected = {name: [runs[at].id for at in rows] for name, rows in task_groups(runs)}
    kept = {each["name"]: each["runs"] for each in YAML(typ="safe").load(OUTPUT.read_text(encoding="utf-8"))}
    assert FEWEST_LAYOUTS == 5
    assert {name: kept[name] for name in expected} == expected


def test_the_kept_table_is_of_these_tasks() -> None:
    text = Path(RESULT).read_text(encoding="utf-8")
    runs = [run for run in read_runs(PUBLISHED).runs if run.complete]
    assert all(f"| {name} |" in text for name, _ in task_groups(runs))
