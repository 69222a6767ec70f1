"""How a trial went: every way in which a command ends, with every thing that its log says."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cpsolver.doors.tune.logs import Expected, Scanner, enough_iterations
from cpsolver.doors.tune.outcome import Verdict, failure_kind, how_ended, judge
from cpsolver.doors.tune.runner import Ending
from tests.support.fake_training import OUT_OF_MEMORY, iteration_line, memory_line

ENOUGH = [iteration_line(number, 2000) for number in range(1, 3 + enough_iterations())]
FEW = ENOUGH[:-1]
LOST = Ending(None, None, None, lost="its supervisor is gone")


def verdict(ending: Ending, *lines: str) -> Verdict:
    scanner = Scanner(Expected(1, 1), 2)
    scanner.feed(lines)
    return judge(ending, scanner.reading(), Path("/state/log.txt"))


def ended(code: int | None, why: str | None = None) -> Ending:
    return Ending(code, why, 60.0)


@pytest.mark.parametrize(
    ("ending", "lines", "outcome", "seconds"),
    [
        (ended(0), FEW, "ok", 2.0),
        (ended(-15, "enough"), FEW, "ok", 2.0),
        (ended(-15, "timeout"), ENOUGH, "timeout", 2.0),
        (ended(-15, "timeout"), FEW, "timeout", None),
        (ended(-15, "interrupted"), ENOUGH, "interrupted", 2.0),
        (ended(-15, "signal"), ENOUGH, "interrupted", 2.0),
        (ended(-15, "interrupted"), FEW, "interrupted", None),
        (LOST, ENOUGH, "interrupted", 2.0),
        (LOST, FEW, "interrupted", None),
        (ended(1), ENOUGH, "ok", 2.0),
        (ended(1), FEW, "failed", None),
        (ended(1), [*ENOUGH, OUT_OF_MEMORY], "oom", None),
        (ended(-15, "timeout"), [OUT_OF_MEMORY], "oom", None),
        (ended(0), [OUT_OF_MEMORY], "oom", None),
        (ended(0), [OUT_OF_MEMORY, *ENOUGH], "ok", 2.0),
        (ended(0), [], "failed", None),
        (Ending(None, None, 0.0, "x: no such file"), [], "failed", None),
    ],
)
def test_every_end(ending: Ending, lines: list[str], outcome: str, seconds: float | None) -> None:
    found = verdict(ending, *lines)
    assert (found.outcome, found.step_time_s) == (outcome, seconds)
    assert (found.iterations > 0) == (seconds is not None)


def test_the_hosts_memory_is_not_the_devices() -> None:
    killed = verdict(ended(-signal.SIGKILL))
    assert killed.outcome == "failed"
    assert "signal SIGKILL: perhaps by the host's out-of-memory killer; that is not device memory" in killed.note
    slurm = verdict(ended(1), "ValueError: x", "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0")
    assert "Detected 1 oom_kill" in slurm.note
    assert slurm.outcome == "failed"


def test_a_failure_names_the_error_and_the_log() -> None:
    found = verdict(ended(1), "Traceback:", "AssertionError: heads 40 % tp 16", "torch.distributed.ChildFailedError")
    assert found.note == "exit code 1: AssertionError: heads 40 % tp 16 (log: /state/log.txt)"


def test_memory_of_a_trial_that_ran_out_of_it_is_kept_and_of_one_that_failed_not() -> None:
    assert verdict(ended(1), memory_line(0, 1024, 2048), OUT_OF_MEMORY).peak_memory_gib == 1.0
    assert verdict(ended(1), memory_line(0, 1024, 2048)).peak_memory_gib is None


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (3, "exit code 3"),
        (-9, "signal SIGKILL"),
        (143, "signal SIGTERM"),
        (255, "exit code 255"),
        (-99, "exit code -99"),
    ],
)
def test_how_a_command_ended(code: int, told: str) -> None:
    assert how_ended(code) == told


def test_failures_alike_differ_in_numbers_and_paths_only() -> None:
    assert failure_kind("rank 3 of /a/b: no") == failure_kind("rank 12 of /c: no")
    assert failure_kind("KeyError: a") != failure_kind("KeyError: b")


def test_one_iteration_is_no_iterations() -> None:
    lines = [iteration_line(number, 2000) for number in range(1, 4)]
    assert verdict(ended(-15, "enough"), *lines).note == "ended after 1 measured iteration, which was asked for"
    assert verdict(ended(-15, "timeout"), *lines).note == "ended at its time limit after 1 measured iteration"


def test_what_a_log_says_commands_no_terminal() -> None:
    note = verdict(ended(1), "\x1b]0;title\x07RuntimeError: \u202elost").note
    assert note == "exit code 1: \\x1b]0;title\\x07RuntimeError: \\u202elost (log: /state/log.txt)"
