"""`apss-cp tune` end to end, with a training that is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.tune.trial import Trial
from cpsolver.search.search import search
from tests.support.command import in_tmp as in_tmp
from tests.support.command import run
from tests.support.fake_training import OUT_OF_MEMORY
from tests.support.tuning import TOP, TRAINING, errors, kept, problem, spec, tune


@pytest.mark.full
def test_plans_are_tried_in_order_and_the_fastest_wins() -> None:
    found = tune("--run", f"{TRAINING} {{arguments}} --ms 3{{trial}}00")
    plans = [plan.strategy for plan in search(problem()).plans]
    assert [trial.strategy for trial in kept()] == plans
    assert [trial["step_time_s"] for trial in found["trials"]] == [3.1, 3.2, 3.3]
    assert found["best"]["number"] == 1
    assert found["stopped"] == "all 3 plans of the search (search.top) were tried"
    first = found["trials"][0]
    assert (first["peak_memory_gib"], first["memory_kind"], first["iterations"]) == (50.0, "allocated", 6)
    assert first["interval_80_s"][0] < first["predicted_s"] < first["interval_80_s"][1]


def test_the_folder_of_a_trial_has_its_plan_its_files_and_its_command() -> None:
    tune("--run", f"{TRAINING} {{arguments}}", "--max-trials", "1")
    (trial,) = kept()
    names = {path.name for path in trial.directory.iterdir()}
    assert {"plan.json", "train.sh", "log.txt", "result.json", "command.sh"} <= names
    exported = json.loads(run("export", "spec.yaml", "--to", "megatron-lm", "--plan", _plan(trial), "--json").stdout)
    assert list(trial.command)[2:] == exported["arguments"]
    assert run("evaluate", "spec.yaml", "-s", _plan(trial)).exit_code == 0
    again = subprocess.run([trial.directory / "command.sh"], capture_output=True, text=True, check=True)
    assert again.stdout == (trial.directory / "log.txt").read_text(encoding="utf-8")


def _plan(trial: Trial) -> str:
    return str(trial.directory / "plan.json")


@pytest.mark.parametrize(
    ("ends", "outcome", "told"),
    [
        ("--ends oom --iters 1", "oom", OUT_OF_MEMORY.split(": ", 1)[1]),
        ("--ends error --iters 1 --trial {trial}", "failed", "RuntimeError: rank 1 lost its data"),
        ("--iters 2", "failed", "all 2 iterations in the log are warm-up"),
        ("--iters 0", "failed", "Looked for: Megatron-LM's lines"),
        ("--global-batch-size 64", "failed", "gbs is 64 in the log and 32 in the plan"),
    ],
)
def test_what_is_no_measurement(ends: str, outcome: str, told: str) -> None:
    found = tune("--run", f"{TRAINING} {ends}", "--max-trials", "1", code=4)
    assert found["status"] == "nothing_measured"
    assert found["trials"][0]["outcome"] == outcome
    assert told in found["trials"][0]["note"]


def test_a_crash_after_enough_iterations_is_a_measurement_that_says_so() -> None:
    found = tune("--run", f"{TRAINING} --ends error --iters 9", "--max-trials", "1")
    assert found["best"]["step_time_s"] == 2.0
    assert "after 7 measured iterations the command ended with exit code 1" in found["best"]["note"]


@pytest.mark.full
def test_three_failures_alike_stop_it() -> None:
    found = tune("--run", f"{TRAINING} --ends error --iters 1 --trial {{trial}}", "--top", "9", code=4)
    assert len(found["trials"]) == 3
    assert "3 trials in a row failed alike" in found["stopped"]
    assert "rank 3 lost its data" in found["stopped"]


@pytest.mark.full
def test_two_failures_alike_before_any_iteration_stop_it() -> None:
    script = "import sys; sys.exit('ImportError: no module ' + sys.argv[1])"
    found = tune("--run", f'{sys.executable} -c "{script}" {{trial}}', "--top", "9", code=4)
    assert len(found["trials"]) == 2
    assert "2 trials in a row failed alike before the first iteration" in found["stopped"]


@pytest.mark.full
def test_three_failures_of_different_kinds_do_not() -> None:
    script = "import sys; sys.exit(['', 'A', 'B', 'A', 'C'][int(sys.argv[1])] + 'Error: no')"
    found = tune("--run", f'{sys.executable} -c "{script}" {{trial}}', "--top", "4", code=4)
    assert len(found["trials"]) == 4


def test_limits() -> None:
    assert tune("--run", TRAINING, "--max-trials", "2")["stopped"] == "2 trials: --max-trials 2"
    assert "--max-hours" in tune("--run", TRAINING, "--max-hours", "0.000001")["stopped"]
    assert len(kept()) == 2


@pytest.mark.full
def test_a_trial_ends_at_its_time_limit_and_its_iterations_count_where_there_are_enough() -> None:
    slow = f"{TRAINING} --until never"
    found = tune("--run", slow, "--trial-time-limit", "1", "--max-trials", "1")
    assert (found["best"]["outcome"], found["best"]["step_time_s"]) == ("timeout", 2.0)
    few = tune("--run", f"{slow} --iters 5", "--trial-time-limit", "1", "--max-trials", "1", "--state", "few", code=4)
    assert (few["trials"][0]["outcome"], few["trials"][0]["step_time_s"]) == ("timeout", None)


def test_a_trial_ends_when_it_has_iterations_enough() -> None:
    found = tune("--run", f"{TRAINING} --iters 4000 --sleep 0.05", "--iterations", "3", "--max-trials", "1")
    assert found["best"]["outcome"] == "ok"
    assert 3 <= found["best"]["iterations"] < 100


@pytest.mark.full
def test_the_state_knows_the_command_and_goes_on() -> None:
    first = tune("--run", TRAINING, "--max-trials", "1", "--iterations", "50")
    assert first["resume"] == "apss-cp tune spec.yaml --state spec.tune --policy top --iterations 50"
    more = tune("--state", "spec.tune")
    assert [trial["number"] for trial in more["trials"]] == [1, 2, 3]
    assert more["trials"][0] == first["trials"][0]


def test_a_plan_that_the_target_refuses_is_told_and_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from cpsolver.doors.export import judge
    from cpsolver.doors.export.launch import CannotExpress
    from cpsolver.doors.tune import jobs

    launch_of, refusals = judge.launch_of, iter([("no such thing",)])

    def picky(*args: Any) -> Any:
        for reasons in refusals:
            raise CannotExpress(reasons)
        return launch_of(*args)

    monkeypatch.setattr(jobs, "launch_of", picky)
    found = tune("--run", TRAINING, "--max-trials", "2")
    assert found["trials"][0]["note"] == "megatron-lm cannot run this plan: no such thing"
    assert [trial["outcome"] for trial in found["trials"]] == ["failed", "ok"]


def test_the_target_is_the_specs_or_must_be_named() -> None:
    Path("free.yaml").write_text(Path(spec()).read_text(encoding="utf-8").replace("launcher: megatron-lm\n", ""))
    result = run("tune", "free.yaml", "--run", f"{TRAINING} {{arguments}}")
    assert result.exit_code == 2
    assert "the template has {arguments}, and the spec names no launcher" in result.stderr
    done = run("tune", "free.yaml", "--run", f"{TRAINING} {{arguments}}", "--to", "torchtitn")
    assert "did you mean 'torchtitan'" in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--run", TRAINING, "--policy", "tpo"], "is no policy"),
        (["--run", TRAINING, "--count", "2"], "--ask is missing"),
        (["--run", TRAINING, "--oom"], "--tell NUMBER is missing"),
        (["--shell"], "--run is missing"),
        (["--ask", "--tell", "1", "--oom"], "does not go with --tell"),
        ([], "--run: is needed"),
        (["--tell", "1", "--oom"], "--ask: is needed"),
        (["--run", TRAINING, "--runs-csv", "no/such/file.csv"], "no directory"),
        (["--run", TRAINING, "--runs-csv", "spec.yaml"], "is an input of this command"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], told: str) -> None:
    assert told in errors(*options)
    assert not Path("spec.tune").exists()


def test_the_report_says_what_to_run_and_how_to_go_on() -> None:
    result = run("tune", spec(), *TOP, "--run", f"{TRAINING} {{arguments}} --ms 2{{trial}}00", "--max-trials", "2")
    text = " ".join(result.stdout.split())
    assert "Best measured plan: 2.10 s per step" in text
    assert "--tensor-model-parallel-size" in text
    assert "The next is 4.8 % slower (trial 2)." in text
    assert "Plans not measured" in text
    assert "To go on: apss-cp tune spec.yaml --state spec.tune --policy top" in text
    lines = result.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["trial 1", "trial 2"]


def test_shell_templates_run_in_a_shell() -> None:
    tune("--shell", "--run", f"A={{tp}}; echo tp $A | cat; {TRAINING} | tee copy.txt", "--max-trials", "1")
    (trial,) = kept()
    assert (trial.directory / "log.txt").read_text(encoding="utf-8").startswith(f"tp {trial.strategy.tp}\n")
    assert Path("copy.txt").exists()
