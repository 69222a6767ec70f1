"""Commands in processes of their own, to be killed: forked from one that has loaded the product, so that they start
at once, and marked in the environment, so that whatever they leave behind is found."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import time
from contextlib import suppress
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, BinaryIO

MARK = "APSS_CP_ATTACK"
PATIENCE_S = 600.0
"""For what has to come: the machine may have other work."""
OUTPUT = "out.txt"
_PROCESSES = Path("/proc")


class Stuck(Exception):
    """What had to come did not."""


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["cpsolver.commands.tuning", "cpsolver.search.search", "cpsolver.doors.tune.loop"])
    return context


class Command:
    """A command of apss-cp that runs in a folder; what it prints is added to OUTPUT there.

    `most_bytes`: of any file that it or what it starts may write, as on a disk that is full.
    """

    def __init__(self, folder: Path, *words: str, most_bytes: int | None = None) -> None:
        self._process: BaseProcess = _context().Process(target=_enter, args=(folder, words, most_bytes))
        self._process.start()

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    def kill(self) -> bool:
        """SIGKILL; whether it was alive to be killed."""
        self._process.kill()
        self._process.join(PATIENCE_S)
        return self._process.exitcode == -signal.SIGKILL

    def code(self) -> int | None:
        """How it ended, which is awaited; raises Stuck."""
        self._process.join(PATIENCE_S)
        if self.runs:
            self.kill()
            raise Stuck(f"a command did not end within {PATIENCE_S:g} s")
        return self._process.exitcode


def _enter(folder: Path, words: tuple[str, ...], most_bytes: int | None) -> None:
    """The life of such a process."""
    os.chdir(folder)
    os.environ[MARK] = str(folder)
    with Path(OUTPUT).open("ab") as out:
        to = out if most_bytes is None else _unlimited(out)
        for stream in (1, 2):
            os.dup2(to.fileno(), stream)
    if most_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    from cpsolver.commands.main import main

    main(list(words), prog_name="apss-cp")


def _unlimited(out: BinaryIO) -> IO[bytes]:
    """What is written to it is added to the file by another process, which has no limit."""
    writer = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=out)
    assert writer.stdin is not None
    return writer.stdin


def run(folder: Path, *words: str, most_bytes: int | None = None) -> int | None:
    """The exit code of a command that is let be."""
    return Command(folder, *words, most_bytes=most_bytes).code()


def output(folder: Path) -> str:
    """All that the commands of a folder have printed."""
    path = folder / OUTPUT
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def tracebacks(folder: Path) -> list[str]:
    """Those that were printed, but for that of Python itself where a worker starts whose parent was just killed."""
    found = output(folder).split("Traceback (most recent call last):")[1:]
    return [f"a traceback: {each[:900]}" for each in found if not ("spawn_main" in each and "EOFError" in each)]


def left_behind(folder: Path) -> list[int]:
    """Living processes, by number, that commands of that folder have started, or that those have."""
    mark, found = f"{MARK}={folder}\0".encode(), []
    for entry in _PROCESSES.iterdir():
        with suppress(OSError):  # it has ended
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def command_line(process: int) -> str:
    """The words of a process; none for one that is gone."""
    try:
        return (_PROCESSES / str(process) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def killed(process: int, folder: Path) -> bool:
    """SIGKILL to a process of that folder; whether it was there."""
    if process not in left_behind(folder):
        return False
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
        return True
    return False


def all_gone(folder: Path, within_s: float = 20.0) -> bool:
    """Whether all that commands of that folder have started ends within so many seconds."""
    until = time.monotonic() + within_s
    while left_behind(folder):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def end_all(folder: Path) -> None:
    """Leave nothing behind, whatever was found."""
    for process in left_behind(folder):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
