"""Plans given out with --ask, and what came of them told back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import in_tmp as in_tmp
from tests.support.command import write
from tests.support.fake_training import OUT_OF_MEMORY, iteration_line, memory_line
from tests.support.tuning import TRAINING, errors, kept, tune


def log(*more: str) -> str:
    lines = [iteration_line(number, 2000) for number in range(1, 9)]
    return write("training.log", "\n".join([*lines, memory_line(0, 51200, 61440), *more]))


def test_asking_again_gives_the_same_plan_until_it_is_told() -> None:
    first, again = tune("--ask"), tune("--ask")
    assert first["trials"] == again["trials"]
    assert Path(first["trials"][0]["plan"]).exists()
    assert (Path(first["trials"][0]["directory"]) / "train.sh").exists()
    tune("--tell", "1", "--step-time", "2.5")
    assert tune("--ask")["trials"][0]["number"] == 2


def test_a_count_asks_for_more_and_none_comes_twice() -> None:
    found = tune("--ask", "--count", "2")
    more = tune("--ask", "--count", "2")
    numbers = [trial["number"] for trial in (*found["trials"], *more["trials"])]
    assert numbers == [1, 2, 3]
    assert more["stopped"] == "all 3 plans of the search (search.top) were tried"
    plans = [json.dumps(trial["strategy"]) for trial in (*found["trials"], *more["trials"])]
    assert len(set(plans)) == 3
    assert len(tune("--ask")["trials"]) == 3


def test_with_a_template_the_command_line_is_told_and_not_run() -> None:
    (trial,) = tune("--ask", "--run", f"{TRAINING} {{arguments}}")["trials"]
    assert "--tensor-model-parallel-size" in trial["command_line"]
    assert not (Path(trial["directory"]) / "log.txt").exists()


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        (["--step-time", "2.5"], ("ok", 2.5, None, None)),
        (["--step-time", "2", "--peak-memory", "60", "--memory-kind", "reserved"], ("ok", 2.0, 60.0, "reserved")),
        (["--oom"], ("oom", None, None, None)),
        (["--failed", "a switch died"], ("failed", None, None, None)),
        (["--log", "training.log"], ("ok", 2.0, 50.0, "allocated")),
    ],
)
def test_what_came_of_it_is_kept(told: list[str], wanted: tuple[Any, ...]) -> None:
    log()
    tune("--ask")
    found = tune("--tell", "1", *told)["trial"]
    (trial,) = kept()
    assert (trial.outcome, trial.step_time_s, trial.peak_memory_gib, trial.memory_kind) == wanted
    assert (found["outcome"], found["step_time_s"]) == wanted[:2]


def test_a_log_that_ran_out_of_memory() -> None:
    write("training.log", f"{iteration_line(1, 9000)}\n{OUT_OF_MEMORY}\n")
    tune("--ask")
    assert tune("--tell", "1", "--log", "training.log")["trial"]["outcome"] == "oom"


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        (["--tell", "7", "--oom"], "is no trial of this state (allowed: 1)"),
        (["--tell", "1"], "needs what came of the trial"),
        (["--tell", "1", "--oom", "--step-time", "2"], "--step-time and --oom are given"),
        (["--tell", "1", "--step-time", "-2"], "is no time that a step takes"),
        (["--tell", "1", "--step-time", "nan"], "is no time that a step takes"),
        (["--tell", "1", "--step-time", "2", "--peak-memory", "60"], "--memory-kind: is missing"),
        (["--tell", "1", "--step-time", "2", "--memory-kind", "device"], "--peak-memory: is missing"),
        (["--tell", "1", "--step-time", "2", "--peak-memory", "0", "--memory-kind", "device"], "more than 0 GiB"),
        (["--tell", "1", "--failed", "x", "--peak-memory", "1", "--memory-kind", "device"], "goes with --step-time"),
        (["--tell", "1", "--log", "no.log"], "there is no such file"),
        (["--tell", "1", "--log", "."], "is no plain file"),
    ],
)
def test_what_cannot_be_told_changes_nothing(told: list[str], wrong: str) -> None:
    tune("--ask")
    before = kept()
    assert wrong in errors(*told)
    assert kept() == before


def test_nothing_is_told_twice_nor_of_a_trial_that_the_tuner_ran() -> None:
    tune("--ask")
    tune("--tell", "1", "--oom")
    assert "was told before, or ran: oom (allowed: none is open" in errors("--tell", "1", "--step-time", "2")
    tune("--run", TRAINING, "--max-trials", "2")
    assert "was told before, or ran: ok" in errors("--tell", "2", "--oom")
    assert [trial.outcome for trial in kept()] == ["oom", "ok"]


def test_a_tuner_leaves_open_plans_to_those_who_asked() -> None:
    tune("--ask")
    found = tune("--run", TRAINING, "--max-trials", "2")
    assert [(trial["outcome"], trial["asked"]) for trial in found["trials"]] == [("running", True), ("ok", False)]
    assert found["trials"][0]["strategy"] != found["trials"][1]["strategy"]


def test_what_was_asked_for_is_reported() -> None:
    tune("--ask")
    tune("--tell", "1", "--step-time", "2.5")
    assert tune("--max-trials", "0")["best"]["step_time_s"] == 2.5


def test_a_log_that_ran_out_of_memory_after_some_iterations_is_no_measurement() -> None:
    tune("--ask")
    found = tune("--tell", "1", "--log", log(OUT_OF_MEMORY))["trial"]
    assert (found["outcome"], found["step_time_s"]) == ("oom", None)
