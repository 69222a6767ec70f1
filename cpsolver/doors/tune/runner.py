"""Starts a trial's supervisor, waits for it, says how the trial ended; a trial that runs already is only awaited."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from cpsolver.doors.tune import supervisor
from cpsolver.doors.tune.logs import Expected, LogReading, Scanner, log_facts
from cpsolver.doors.tune.orphans import end_orphans
from cpsolver.doors.tune.supervisor import CLAIM, JOB, LOG, RESULT, STOP, claimed, write_whole

_POLL_S = 0.1
_PIECES = 64  # of a log that are read before the trial is looked at again
_GONE = "its supervisor is gone without a result (was the machine restarted?)"
_REMOVED = "its folder was removed"


@dataclass(frozen=True)
class Ending:
    """How a command ended.

    `code`: its exit code, negative for a signal; None where it never started or got lost. `ended`: why it was ended
    from outside: timeout, interrupted (by Ctrl-C), signal (to the supervisor), enough (iterations); None: by itself.
    `lost`: how its supervisor got lost without a result, in words: the machine was restarted, or it was killed and the
    command ended for it. `error`: why it could not be started. `now`: Ctrl-C or the signal came while it was awaited,
    and not before.
    """

    code: int | None
    ended: str | None
    seconds: float | None
    error: str | None = None
    lost: str | None = None
    now: bool = False


Watch = Callable[[LogReading], bool]
"""Told now and then what the log says so far; True ends the trial, enough was seen."""


def prepare(folder: Path, command: tuple[str, ...], environment: Mapping[str, str], time_limit_s: float | None) -> None:
    """Write the trial's job; nothing runs yet."""
    job = {
        "command": list(command),
        "environment": dict(environment),
        "cwd": str(Path.cwd()),
        "time_limit_s": time_limit_s,
        "grace_s": running()["grace_s"],
    }
    write_whole(folder / JOB, job)


def run_trial(folder: Path, expected: Expected, skip: int, watch: Watch) -> Ending:
    """Run the prepared trial, or await it where it runs already; Ctrl-C ends it.

    Starting a supervisor again is harmless: a trial that was claimed once never starts a second time.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        if not (folder / JOB).exists():
            return Ending(None, None, None, lost=_REMOVED)
        if (folder / RESULT).exists():
            return _ending(folder)
        process = _start(folder)
        if not _claimed(folder):
            return Ending(None, None, None, error="its supervisor could not be started")
        ending = _await(folder, expected, skip, watch)
        return replace(ending, now=ending.ended == "signal")
    except KeyboardInterrupt:
        return _interrupted(folder, expected, skip)
    except FileNotFoundError:
        if folder.exists():
            raise
        return Ending(None, None, None, lost=_REMOVED)
    finally:
        if process is not None:
            _let_go(process)


def _interrupted(folder: Path, expected: Expected, skip: int) -> Ending:
    """End the trial; a second Ctrl-C does not wait for that."""
    try:
        _ask_to_stop(folder, "interrupted")
        ending = _await(folder, expected, skip, lambda _: False, running()["grace_s"] + running()["start_s"])
        return replace(ending, now=True)
    except KeyboardInterrupt:
        return Ending(None, "interrupted", None, now=True)


def running() -> dict[str, float]:
    """Seconds between SIGTERM and SIGKILL (grace_s), and until a supervisor has made its claim (start_s)."""
    return {name: float(entry["value"]) for name, entry in log_facts()["running"].items()}


def _start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", supervisor.__file__, str(folder)],  # -I: the command's PYTHONPATH is none of its own
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _let_go(process: subprocess.Popen[bytes]) -> None:
    """Reap the supervisor, which ends with its result; one that goes on is left alone, and outlives this process."""
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.wait(_POLL_S)
    if process.returncode is None:
        process.returncode = 0  # not known, but Popen would warn of a child that nobody waits for


def _claimed(folder: Path) -> bool:
    """Wait for the supervisor's claim; where there is none in time, see to it that none comes later."""
    until = time.monotonic() + running()["start_s"]
    while not _has_text(folder / CLAIM) and time.monotonic() < until:
        time.sleep(_POLL_S / 5)
    if (claim := claimed(folder)) is None:
        return True
    os.close(claim)
    return False


def _await(folder: Path, expected: Expected, skip: int, watch: Watch, most_s: float | None = None) -> Ending:
    began, asked = time.monotonic(), False
    with closing(_Follower(folder / LOG, expected, skip)) as follower:
        while True:
            # asked before the result is looked for: a result comes before the end
            alive, supervised = is_alive(folder), is_locked(folder / JOB)
            if (folder / RESULT).exists():
                return _ending(folder)
            if not supervised and (ended := end_orphans(folder, running()["grace_s"])):
                return Ending(None, None, None, lost=_orphaned(ended))
            if not alive or (most_s is not None and time.monotonic() - began > most_s):
                return Ending(None, None, None, lost=_GONE)
            if watch(follower.reading()) and not asked:
                _ask_to_stop(folder, "enough")
                asked = True
            time.sleep(_POLL_S)


def _orphaned(ended: int) -> str:
    return f"its supervisor was killed; processes of the trial that were left behind were ended: {ended}"


def _ending(folder: Path) -> Ending:
    try:
        told = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        return Ending(told["code"], told["ended"], told["seconds"], told["error"])
    except (ValueError, KeyError, TypeError):
        return Ending(None, None, None, lost=f"{folder / RESULT} is damaged")


def is_alive(folder: Path) -> bool:
    """Something of the trial runs: its supervisor, or the command that inherited the lock."""
    return is_locked(folder / CLAIM)


def is_locked(path: Path) -> bool:
    """A process holds the lock on that file."""
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _ask_to_stop(folder: Path, why: str) -> None:
    (folder / STOP).write_text(why, encoding="utf-8")


def _has_text(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


class _Follower:
    """Reads on in a log that grows."""

    def __init__(self, path: Path, expected: Expected, skip: int) -> None:
        self._path, self._scanner = path, Scanner(expected, skip)
        self._file: TextIO | None = None
        self._last = self._scanner.reading()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def reading(self) -> LogReading:
        if self._file is None and self._path.exists():
            self._file = open(self._path, encoding="utf-8", errors="replace")  # noqa: SIM115
        if self._file is not None and self._scanner.feed_from(self._file):
            for _ in range(_PIECES):
                if not self._scanner.feed_from(self._file):
                    break
            self._last = self._scanner.reading()
        return self._last
