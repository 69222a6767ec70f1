"""The process that runs one trial and outlives whoever started it: `python -I supervisor.py DIRECTORY`.

It imports nothing but the standard library, so that the command's environment is the user's own. In DIRECTORY it reads
job.json and writes log.txt (what the command prints) and result.json (how it ended; whole or not at all). Whoever holds
the lock on claim.json runs the trial; a claim that has text was made before and is never made twice: a trial runs once,
however often a supervisor is started for it. The command inherits the lock, so it is held as long as anything of the
trial lives, even when this process was killed. The lock on job.json is this process's alone: where nobody holds it and
there is no result, this process was killed, and what it left behind is of its session (`orphans`).
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

JOB, CLAIM, RESULT, LOG, STOP = "job.json", "claim.json", "result.json", "log.txt", "stop"
_POLL_S = 0.1
_asked_to_end = False


def write_whole(path: Path, document: Any) -> None:
    """The document as JSON: on disk when this returns, and never half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(draft, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def machine() -> str:
    """Where numbers of processes mean what they mean here: the host, its boot and the process namespace."""
    names = [socket.gethostname()]
    with suppress(OSError):
        names.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        names.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(names)


def claimed(folder: Path, session: int | None = None) -> int | None:
    """The lock on the trial, held by the descriptor that is returned; None where another has it or had it.

    `session`: that of all processes of the trial, where the one who claims is its leader.
    """
    handle = os.open(folder / CLAIM, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    if os.fstat(handle).st_size:
        os.close(handle)
        return None
    told = {"pid": os.getpid(), "machine": machine(), "session": session, "began": time.time()}
    os.write(handle, json.dumps(told).encode())
    os.fsync(handle)
    return handle


def supervise(folder: Path) -> None:
    """Run the trial of the folder, unless somebody did or does."""
    try:
        alone = os.open(folder / JOB, os.O_RDWR)  # held to the end; not inherited
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    lock = claimed(folder, os.getpid() if os.getsid(0) == os.getpid() else None)
    if lock is None:
        return
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    began = time.monotonic()
    ended: str | None = None
    try:
        with open(folder / LOG, "ab") as log:
            child = subprocess.Popen(
                job["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=job["cwd"],
                env={**os.environ, **job["environment"]},
                process_group=0,
                pass_fds=(lock,),
            )
    except OSError as error:
        told = f"{job['command'][0]}: {error.strerror}"
        write_whole(folder / RESULT, {"error": told, "code": None, "ended": None, "seconds": 0.0})
        return
    ended = _wait(child, folder, began, job["time_limit_s"])
    if ended is not None:
        _signal(child.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(job["grace_s"])
    _signal(child.pid, signal.SIGKILL)  # what is left of it, also of a command that ended by itself
    code = child.wait()
    seconds = time.monotonic() - began
    write_whole(folder / RESULT, {"error": None, "code": code, "ended": ended, "seconds": seconds})


def _wait(child: subprocess.Popen[bytes], folder: Path, began: float, limit_s: float | None) -> str | None:
    """Until the command ends (None), or why it is to be ended: signal, timeout, or what the file `stop` says."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_S)
            return None
        if _asked_to_end:
            return "signal"
        if (folder / STOP).exists():
            return (folder / STOP).read_text(encoding="utf-8").strip() or "interrupted"
        if limit_s is not None and time.monotonic() - began > limit_s:
            return "timeout"


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _note_end(_number: int, _frame: Any) -> None:
    global _asked_to_end
    _asked_to_end = True


def main() -> None:
    """Supervise the trial of the folder that the command line names."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _note_end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    supervise(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
