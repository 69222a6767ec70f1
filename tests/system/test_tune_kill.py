"""A tuner that is killed, at any moment, goes on with nothing lost and nothing run twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.checkout import ROOT
from tests.support.command import in_tmp as in_tmp
from tests.support.selection import first
from tests.support.tuning import TOP, TRAINING, kept, spec, tune

PATIENCE_S = 60.0


def tuner(*args: str) -> subprocess.Popen[str]:
    """`apss-cp tune` in a process of its own, in a group of its own."""
    command = [sys.executable, "-c", "import cli; cli.main()", "tune", spec(), *TOP, *args]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for(truth: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not truth():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.02)


def ledger() -> list[str]:
    """The numbers of the trials whose commands ran, in order."""
    return Path("ledger").read_text(encoding="utf-8").split() if Path("ledger").exists() else []


@pytest.mark.full
def test_killed_while_a_trial_runs_it_awaits_that_trial() -> None:
    template = f"{TRAINING} --ledger ledger --trial {{trial}} --until go"
    first = tuner("--run", template, "--max-trials", "2")
    wait_for(ledger)
    first.kill()
    first.communicate()
    second = tuner("--max-trials", "2")
    time.sleep(0.3)
    Path("go").touch()
    _, told = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, told
    assert ledger() == ["1", "2"]
    assert [(trial.number, trial.outcome) for trial in kept()] == [(1, "ok"), (2, "ok")]


@pytest.mark.full
def test_killed_and_the_trial_ends_meanwhile() -> None:
    first = tuner("--run", f"{TRAINING} --ledger ledger --trial {{trial}} --until go", "--max-trials", "1")
    wait_for(ledger)
    first.kill()
    first.communicate()
    Path("go").touch()
    wait_for(lambda: Path("spec.tune/trial-001/result.json").exists())
    assert tune("--max-trials", "1")["best"]["step_time_s"] == 2.0
    assert ledger() == ["1"]


@pytest.mark.full
def test_after_a_restart_of_the_machine_the_trial_is_interrupted_and_its_plan_comes_again() -> None:
    first = tuner("--run", f"{TRAINING} --ledger ledger --trial {{trial}} --iters 3 --until go", "--max-trials", "1")
    wait_for(ledger)
    first.kill()
    first.communicate()
    claim = json.loads(Path("spec.tune/trial-001/claim.json").read_text(encoding="utf-8"))
    os.kill(claim["pid"], signal.SIGKILL)
    Path("go").touch()  # the command that outlived it ends too
    found = tune("--max-trials", "2")
    assert [trial["outcome"] for trial in found["trials"]] == ["interrupted", "ok"]
    assert found["trials"][0]["strategy"] == found["trials"][1]["strategy"]
    assert ledger() == ["1", "2"]


@pytest.mark.full
def test_ctrl_c_ends_the_trial_and_reports() -> None:
    first = tuner("--run", f"{TRAINING} --ledger ledger --trial {{trial}} --until never", "--json")
    wait_for(lambda: ledger() == ["1"] and "iteration        8" in _log(1))
    first.send_signal(signal.SIGINT)
    out, told = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 0, told
    found = json.loads(out)
    assert found["stopped"] == "stopped by Ctrl-C"
    assert (found["best"]["outcome"], found["best"]["step_time_s"]) == ("interrupted", 2.0)
    assert ledger() == ["1"]


@pytest.mark.full
def test_a_trial_that_a_scheduler_ended_before_does_not_stop_the_next_tuner() -> None:
    first = tuner("--run", f"{TRAINING} --ledger ledger --trial {{trial}} --iters 3 --until go", "--max-trials", "2")
    wait_for(ledger)
    first.kill()
    first.communicate()
    claim = json.loads(Path("spec.tune/trial-001/claim.json").read_text(encoding="utf-8"))
    os.kill(claim["pid"], signal.SIGTERM)
    wait_for(lambda: Path("spec.tune/trial-001/result.json").exists())
    Path("go").touch()
    found = tune("--max-trials", "2")
    assert [trial["outcome"] for trial in found["trials"]] == ["interrupted", "ok"]
    assert found["stopped"] == "2 trials: --max-trials 2"


@pytest.mark.full
def test_a_signal_to_the_running_trial_stops_the_tuner() -> None:
    first = tuner("--run", f"{TRAINING} --ledger ledger --trial {{trial}} --until never", "--json")
    wait_for(ledger)
    claim = json.loads(Path("spec.tune/trial-001/claim.json").read_text(encoding="utf-8"))
    os.kill(claim["pid"], signal.SIGTERM)
    out, told = first.communicate(timeout=PATIENCE_S)
    assert "ended by a signal" in json.loads(out)["stopped"], told
    assert ledger() == ["1"]


def _log(number: int) -> str:
    path = Path(f"spec.tune/trial-{number:03d}/log.txt")
    return path.read_text(encoding="utf-8") if path.exists() else ""


@pytest.mark.parametrize(
    "name", first(1, ["", "claim.json", "result.json", "plan.json", "job.json", "../tune.sqlite-journal", "log.txt"])
)
def test_killed_the_moment_that_something_appears(name: str) -> None:
    """At every step of a trial: its folder, its files, the row, the claim, the log, the result."""
    template = f"{TRAINING} --ledger ledger --trial {{trial}}"
    tune("--run", template, "--max-trials", "1")
    first = tuner("--max-trials", "3")
    watched = Path("spec.tune/trial-002") / name
    while not watched.exists() and first.poll() is None:
        time.sleep(0.0005)
    first.kill()
    first.communicate()
    tune("--max-trials", "3")
    assert ledger() == ["1", "2", "3"]
    assert [(trial.number, trial.outcome) for trial in kept()] == [(1, "ok"), (2, "ok"), (3, "ok")]


@pytest.mark.full
def test_killed_at_any_moment_every_trial_runs_once_and_is_kept() -> None:
    """Six kills at random moments of start-up, choosing, running and keeping."""
    dice, trials = random.Random(7), 8
    options = ("--top", str(trials), "--max-trials", str(trials))
    template = f"{TRAINING} --ledger ledger --trial {{trial}} --iters 8 --sleep 0.05"
    tune("--run", template, "--top", str(trials), "--max-trials", "1")
    for _ in range(6):
        running = tuner(*options)
        time.sleep(dice.uniform(0.5, 2.5))
        running.kill()
        running.communicate()
    last = tuner(*options)
    _, told = last.communicate(timeout=PATIENCE_S)
    assert last.returncode == 0, told
    assert Counter(ledger()) == Counter(str(number) for number in range(1, trials + 1))
    assert [(trial.number, trial.outcome) for trial in kept()] == [(n, "ok") for n in range(1, trials + 1)]
