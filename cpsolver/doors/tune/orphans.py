"""What a killed supervisor leaves behind: its session has the trial's processes, and nothing else ever joins one."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cpsolver.doors.tune.supervisor import CLAIM, machine

_PROCESSES = Path("/proc")
_POLL_S = 0.05
_KILLED_S = 5.0
"""Until processes that were killed are gone; longer only where the kernel holds them."""


def end_orphans(folder: Path, grace_s: float) -> int:
    """End the processes of a trial whose supervisor is dead, as the supervisor would have; how many there were.

    SIGTERM, and after `grace_s` seconds SIGKILL. Nothing is done on another machine, after a restart of this one,
    where the number of the supervisor is another process's by now, or to the session that this process is in. Without
    /proc (macOS) only the command itself, the holder of the trial's lock, can be awaited, and none is found.
    """
    session = _session(folder)
    if session is None or not (found := session_members(session)):
        return 0
    _send(found, signal.SIGTERM)
    if not _gone(session, grace_s):
        _send(session_members(session), signal.SIGKILL)
        _gone(session, _KILLED_S)
    return len(found)


def _session(folder: Path) -> int | None:
    """The session of the trial's processes, whose leader is dead; None where that cannot be said."""
    try:
        claim = json.loads((folder / CLAIM).read_text(encoding="utf-8"))
        session = int(claim["session"])
        known = claim["machine"] == machine()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # Our own leader may be dead too, or outside the container, where its number reads as 0: we are no orphans.
    ours = session in (0, os.getsid(0))
    return session if known and not ours and session not in session_members(session) else None


def session_members(session: int) -> list[int]:
    """Living processes of a session, by number; dead ones that nobody has waited for do not count."""
    found = []
    with suppress(OSError):
        for entry in _PROCESSES.iterdir():
            if entry.name.isdecimal() and _session_of(entry) == session:
                found.append(int(entry.name))
    return found


def _session_of(process: Path) -> int | None:
    """By its `stat`: number (name) state parent group session …; the name may hold blanks and parentheses."""
    with suppress(OSError, ValueError, IndexError):
        state, _parent, _group, session = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
        return None if state in "ZX" else int(session)
    return None


def _gone(session: int, within_s: float) -> bool:
    until = time.monotonic() + within_s
    while session_members(session):
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def _send(processes: Sequence[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)
