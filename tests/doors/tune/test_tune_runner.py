"""Running a trial: once, to its end or its limit, whoever started it, with the user's own environment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cpsolver.doors.tune import orphans, runner, supervisor
from cpsolver.doors.tune.logs import Expected, LogReading
from cpsolver.doors.tune.orphans import end_orphans, session_members
from cpsolver.doors.tune.runner import Ending, is_alive, prepare, run_trial
from tests.support.command import in_tmp as in_tmp

EXPECTED = Expected(1, 1)
PATIENCE_S = 30.0


def trial(script: str, time_limit_s: float | None = None, environment: dict[str, str] | None = None) -> Path:
    """A folder with the job of running that Python script."""
    folder = Path("trial").absolute()
    folder.mkdir()
    prepare(folder, (sys.executable, "-u", "-c", script), environment or {}, time_limit_s)
    return folder


def started(folder: Path) -> subprocess.Popen[bytes]:
    """A supervisor of the trial, as the tuner starts it."""
    return subprocess.Popen([sys.executable, "-I", supervisor.__file__, str(folder)], start_new_session=True)


def run(folder: Path, watch: Callable[[LogReading], bool] = lambda _: False) -> Ending:
    return run_trial(folder, EXPECTED, 0, watch)


def wait_for(truth: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not truth():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.02)


def log(folder: Path) -> str:
    return (folder / "log.txt").read_text(encoding="utf-8")


def test_both_streams_are_kept_and_the_exit_code() -> None:
    folder = trial("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    ending = run(folder)
    assert (ending.code, ending.ended, ending.lost) == (3, None, None)
    assert log(folder) == "out\nerr\n"


def test_a_signal_is_a_negative_code() -> None:
    assert run(trial("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")).code == -signal.SIGKILL


def test_a_command_that_cannot_be_started_is_an_error() -> None:
    folder = trial("")
    prepare(folder, ("./no-such-command",), {}, None)
    assert "no-such-command" in str(run(folder).error)


def test_the_environment_is_the_users_with_the_plans() -> None:
    told = "import os; print(os.environ['A'], os.environ.get('PYTHONPATH'), os.getcwd())"
    folder = trial(told, environment={"A": "7"})
    run(folder)
    assert log(folder) == f"7 {os.environ.get('PYTHONPATH')} {Path.cwd()}\n"


def test_at_its_time_limit_the_whole_group_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "running", lambda: {"grace_s": 0.2, "start_s": PATIENCE_S})
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(999)"
    )
    folder = trial(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {deaf!r}])", time_limit_s=0.5)
    assert run(folder).ended == "timeout"
    wait_for(lambda: not is_alive(folder))


def test_enough_seen_ends_it() -> None:
    folder = trial("import time; print('{\"step_time_s\": 2.0}'); time.sleep(999)")
    ending = run(folder, lambda reading: reading.step_time_s == 2.0)
    assert (ending.ended, ending.code) == ("enough", -signal.SIGTERM)


def test_ctrl_c_ends_it() -> None:
    def interrupt(_: LogReading) -> bool:
        raise KeyboardInterrupt

    assert run(trial("import time; time.sleep(999)"), interrupt).ended == "interrupted"


def test_a_supervisor_that_is_told_to_end_says_so() -> None:
    folder = trial("import time; print('here'); time.sleep(999)")
    process = started(folder)
    wait_for(lambda: (folder / "log.txt").exists() and log(folder))
    process.terminate()
    process.wait(PATIENCE_S)
    assert run(folder).ended == "signal"


def test_many_supervisors_run_it_once() -> None:
    folder = trial("print('once')")
    for process in [started(folder) for _ in range(5)]:
        process.wait(PATIENCE_S)
    assert run(folder).code == 0
    assert log(folder) == "once\n"


def let_go(_: LogReading) -> bool:
    """Lets the waiting script go on, and stops nothing."""
    Path("go").touch()
    return False


def test_a_trial_that_runs_already_is_awaited() -> None:
    folder = trial("import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)\nprint('went')")
    process = started(folder)
    wait_for(lambda: (folder / "log.txt").exists())
    ending = run(folder, let_go)
    assert (ending.code, log(folder)) == (0, "went\n")
    process.wait(PATIENCE_S)


def test_a_claim_without_a_process_or_a_result_is_lost_and_never_run_again() -> None:
    folder = trial("print('ran')")
    (folder / "claim.json").write_text(json.dumps({"pid": 1, "host": "gone"}), encoding="utf-8")
    assert run(folder).lost
    assert not (folder / "log.txt").exists()


def orphaned(script: str) -> tuple[Path, int]:
    """A trial that runs on without its supervisor, which was killed; and the supervisor's number."""
    folder = trial(script)
    process = started(folder)
    wait_for(lambda: (folder / "log.txt").exists() and log(folder))
    process.kill()
    process.wait(PATIENCE_S)
    assert is_alive(folder)
    return folder, process.pid


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes of a session are found in /proc")
def test_a_command_that_outlives_its_supervisor_is_ended_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "running", lambda: {"grace_s": 0.3, "start_s": PATIENCE_S})
    child = "import os, time; os.setpgid(0, 0); print('here', flush=True); time.sleep(999)"
    folder, session = orphaned(
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"subprocess.run([sys.executable, '-c', {child!r}])"
    )
    assert len(session_members(session)) == 2
    ending = run(folder)
    assert "left behind were ended: 2" in str(ending.lost)
    assert not session_members(session)
    assert not is_alive(folder)
    assert run(folder).lost  # nothing is left to end, and it is not run again


def test_processes_of_another_machine_or_of_a_number_used_again_are_let_be() -> None:
    folder, session = orphaned("import time; print('here'); time.sleep(999)")
    claim = json.loads((folder / "claim.json").read_text(encoding="utf-8"))
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    for changed in ({"machine": "another"}, {"session": other.pid}, {"session": None}):
        (folder / "claim.json").write_text(json.dumps(claim | changed), encoding="utf-8")
        assert end_orphans(folder, 0.0) == 0
    assert other.poll() is None
    other.communicate(b"\n")
    assert is_alive(folder)
    (folder / "claim.json").write_text(json.dumps(claim), encoding="utf-8")
    assert end_orphans(folder, PATIENCE_S) == 1
    assert not session_members(session)


@pytest.mark.parametrize("session", [0, os.getsid(0)], ids=["outside", "dead"])
def test_our_own_session_is_let_be_though_its_leader_is_dead_or_outside_the_container(
    session: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path("trial")
    folder.mkdir()
    claim = {"machine": supervisor.machine(), "session": session}
    (folder / "claim.json").write_text(json.dumps(claim), encoding="utf-8")
    ended: list[int] = []
    monkeypatch.setattr(orphans, "session_members", lambda _: [os.getpid()])
    monkeypatch.setattr(orphans, "_send", lambda processes, _: ended.extend(processes))
    assert (end_orphans(folder, 0.0), ended) == (0, [])


def test_a_folder_that_was_removed_settles_at_once() -> None:
    folder = trial("")
    shutil.rmtree(folder)
    assert run(folder).lost == "its folder was removed"


def test_a_damaged_result_settles() -> None:
    folder = trial("")
    (folder / "result.json").write_text('{"code": 0, "en', encoding="utf-8")
    assert "result.json is damaged" in str(run(folder).lost)


def test_a_supervisor_that_never_came_cannot_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trial("print('ran')")
    monkeypatch.setattr(runner, "running", lambda: {"grace_s": 1.0, "start_s": 0.0})
    monkeypatch.setattr(supervisor, "__file__", "/no/such/file.py")
    assert "could not be started" in str(run(folder).error)
    monkeypatch.undo()
    started(folder).wait(PATIENCE_S)
    assert not (folder / "log.txt").exists()
