"""A cell solved, in a worker process of this machine or elsewhere; one that dies costs its cell and nothing else."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import ModuleType

from cpsolver.doors.batch.rows import Row, figures
from cpsolver.inputs.language import for_every_language, later
from cpsolver.problem.problem import Problem

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_GRACE_S = 2.0
_OVERDUE_S = 30.0
"""A worker that has not answered so long after its time limit, and as long again as the limit, is taken for hung:
stopped, held by the kernel, or with a solver that does not look at the clock. So long, for machines that are loaded."""


_OUT_OF_MEMORY = later("out of memory: fewer --jobs leave more for each cell")
_BUG = later("this is a bug in apss-cp: {kind}: {error}")
_HUNG = later("the worker did not answer: ended {after} s after its time limit of {limit} s")
_KILLED = later("the worker was killed (SIGKILL), most often for want of memory: fewer --jobs leave more for each cell")
_SIGNAL = later("the worker was ended by {name}")
_EXIT = later("the worker ended by itself with exit code {code}")
FAILURES = (_OUT_OF_MEMORY, _BUG, _HUNG, _KILLED, _SIGNAL, _EXIT)
"""What goes wrong with a cell: kept in English, whatever is spoken."""

_NEVER_S = float("inf")
_LONGEST_WAIT_S = 3600.0


@dataclass(frozen=True)
class CellTask:
    """What a worker is given: the row's key and the problem, all names looked up, so that it needs no files."""

    key: str
    problem: Problem


@dataclass(frozen=True)
class CellOutcome:
    """What comes back: the columns that the answer gives."""

    key: str
    columns: Row


def solve(task: CellTask) -> CellOutcome:
    """The answer to a cell by the search that `solve` uses; whatever goes wrong is status error, never an exception."""
    began, cpu = time.monotonic(), time.process_time()
    try:
        columns = _answer(task.problem)
    except MemoryError:
        columns = failure(_OUT_OF_MEMORY)
    except Exception as error:
        columns = failure(_BUG.format(kind=type(error).__name__, error=error))
    spent = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}
    return CellOutcome(task.key, columns | spent)


def failure(message: str) -> Row:
    """The columns of a cell that has no answer."""
    return {"status": "error", "error": message}


def _answer(problem: Problem) -> Row:
    from cpsolver.doors.report.document import dumps_line, result_document
    from cpsolver.explanation.account import solve as answer

    with for_every_language():
        found = answer(problem)
    # as JSON has it: no infinity, no NaN, no tuples
    return figures(json.loads(dumps_line(result_document(problem, found))), found.reasons)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def solve_in_processes(tasks: Sequence[CellTask], jobs: int) -> Iterator[CellOutcome]:
    """Every task's outcome as it comes, from `jobs` processes; close the iterator to stop them at once.

    A process that dies (killed for memory, say), or does not answer long after its time limit, gives its task the
    status error; another takes its place.
    """
    waiting = deque(tasks)
    workers = [_Worker() for _ in range(min(jobs, len(tasks)))]
    try:
        for worker in workers:
            worker.give(waiting)
        while busy := [worker for worker in workers if worker.task is not None]:
            ready = wait([worker.pipe for worker in busy], min(worker.left_s() for worker in busy))
            for place, worker in enumerate(workers):
                if worker.task is None or (worker.pipe not in ready and worker.left_s()):
                    continue
                outcome = worker.take() if worker.pipe in ready else worker.give_up()
                if not worker.alive and waiting:
                    workers[place] = _Worker()
                workers[place].give(waiting)
                yield outcome
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process, the pipe to it and the task that it has."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks of this process
        self.pipe, far = context.Pipe()
        self.task: CellTask | None = None
        self._until = _NEVER_S
        self.alive = True
        self._process: SpawnProcess = context.Process(target=_work, args=(far,), daemon=True)
        with _one_thread_each(), _without_interrupts(), _without_main():
            self._process.start()
        far.close()  # so that the pipe ends when the process does

    def give(self, waiting: deque[CellTask]) -> None:
        """Hand it the next task, if there is one and it lives."""
        self.task = waiting.popleft() if waiting and self.alive else None
        if self.task is not None:
            limit_s = self.task.problem.spec.search.time_limit_s
            self._until = _NEVER_S if limit_s is None else time.monotonic() + 2 * limit_s + _OVERDUE_S
            with suppress(OSError):  # it died just now: `take` finds that out
                self.pipe.send(self.task)

    def take(self) -> CellOutcome:
        """The outcome that has come, or that the process died."""
        assert self.task is not None
        try:
            outcome = self.pipe.recv()
            assert isinstance(outcome, CellOutcome)
            return outcome
        except (EOFError, OSError):
            self.alive = False
            self._process.join()
            return CellOutcome(self.task.key, failure(_end(self._process.exitcode)))

    def left_s(self) -> float:
        """Seconds until it has to have answered; 0 from then on."""
        return max(0.0, min(self._until - time.monotonic(), _LONGEST_WAIT_S))

    def give_up(self) -> CellOutcome:
        """End the process, which does not answer; SIGKILL reaches one that is stopped too."""
        assert self.task is not None
        self.alive = False
        self._process.kill()
        self._process.join(_GRACE_S)
        limit_s = self.task.problem.spec.search.time_limit_s or 0.0
        told = _HUNG.format(after=f"{limit_s + _OVERDUE_S:g}", limit=f"{limit_s:g}")
        return CellOutcome(self.task.key, failure(told))

    def stop(self) -> None:
        """End the process, kindly first."""
        self._process.terminate()
        self._process.join(_GRACE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.pipe.close()


def _end(code: int | None) -> str:
    """How a process ended, for people."""
    if code == -signal.SIGKILL:
        return _KILLED
    if code is not None and code < 0:
        return _SIGNAL.format(name=signal.Signals(-code).name)
    return _EXIT.format(code=code)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started inside have one thread for linear algebra: there are as many of them as cores."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes started inside do not run the script that started them once more, as Python's own would.

    They need nothing of it, and a script of a user's that sweeps would sweep in each of them.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes started inside are never interrupted by Ctrl-C, not even while they import."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pipe: Connection) -> None:
    """A worker's life: solve what comes until the pipe ends, or the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of the terminal; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            pipe.send(solve(pipe.recv()))


def _end_with_parent() -> None:
    """Do not go on working for nobody when the parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
