"""Plans for the page, one at a time, in a process of their own: it can be stopped, and ended whatever it does."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from cpsolver.doors.serve.spec_text import PageLimits, problem_of, trouble_for_page
from cpsolver.inputs.errors import InputError
from cpsolver.inputs.language import later, say, speaking, spoken
from cpsolver.problem.problem import Problem

_LOOK_S = 0.2
"""So often a running plan is held against the clock, and its reader looked for."""
_TELL_S = 0.5
"""So often at most a worker tells how far it is."""
_OVERDUE_S = 30.0
"""A worker that has not answered so long after its time limit, and as long again as the limit, is ended: what follows a
search (why there is no plan, what to run) has limits of its own."""

_LISTENING = None
"""What a worker sends before it plans: from here on SIGINT stops the search."""

PlanPage = Callable[[Problem, Callable[[str], None]], tuple[str, str]]
"""Plans a problem: the answer's status, and its page; it may tell how far it is. A function of a module, so that
another process finds it."""


@dataclass(frozen=True)
class Outcome:
    """What came of a spec: `status` of an answer with its `page`; else "bad_input" with `troubles`, "stopped", or
    "failed", which `said` explains."""

    status: str
    page: str = ""
    troubles: tuple[dict[str, Any], ...] = ()
    said: str = ""


class BusyError(Exception):
    """Another plan is being made."""


class Planner:
    """Makes plans in a worker process, which stays for the next spec until it has to be ended."""

    def __init__(self, plan_page: PlanPage, limits: PageLimits) -> None:
        self.limits = limits
        self._plan_page = plan_page
        self._worker: _PlanProcess | None = None
        self._busy = self._closed = False

    async def plan(self, text: str, is_gone: Callable[[], Awaitable[bool]]) -> Outcome:
        """What comes of a spec. Who asked is looked for: once it `is_gone`, nobody works for it any more.

        Raises BusyError while another plan is made.
        """
        if self._busy:
            raise BusyError
        self._busy = True
        try:
            return await self._watched(text, is_gone)
        finally:
            self._busy = False

    async def _watched(self, text: str, is_gone: Callable[[], Awaitable[bool]]) -> Outcome:
        worker = self._worker = self._worker or _PlanProcess(self._plan_page, self.limits)
        until = time.monotonic() + 2 * self.limits.time_limit_s + _OVERDUE_S
        asked = asyncio.ensure_future(asyncio.to_thread(worker.ask, text))
        try:
            while not (await asyncio.wait([asked], timeout=_LOOK_S))[0]:
                if await is_gone():
                    return Outcome("stopped", said=say("nobody waits for the plan any more"))
                if time.monotonic() > until:
                    told = later("no answer long after the time limit of {limit:g} s: it was ended")
                    return Outcome("failed", said=say(told, limit=self.limits.time_limit_s))
            outcome = asked.result()
        finally:
            if not asked.done():
                worker.end()  # the thread that waits for its answer ends too
                await asyncio.wait([asked])
            if not worker.alive:
                self._worker = None
        if outcome is None:
            return Outcome("failed", said=say("the server ends") if self._closed else worker.obituary())
        if outcome.status == "stopped":
            worker.end()  # an import that was cut short leaves half a module behind
            self._worker = None
        return outcome

    def stop(self) -> bool:
        """Ask for what is known by now, as Ctrl-C does of `solve`; whether a plan was being made."""
        if self._busy and self._worker is not None:
            self._worker.interrupt()
        return self._busy

    def progress(self) -> str:
        """How far the plan is that is being made; empty where nothing is known, or none is made."""
        return self._worker.told if self._busy and self._worker is not None else ""

    def close(self) -> None:
        """End the worker."""
        self._closed = True
        if self._worker is not None:
            self._worker.end()


class _PlanProcess:
    """A process and the pipe to it. `told`: how far it is."""

    told = ""
    _listens = _asked_to_stop = False

    def __init__(self, plan_page: PlanPage, limits: PageLimits) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy the locks of this process's threads
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=_work, args=(far, plan_page, limits, spoken()), daemon=True)
        self._lock = threading.Lock()
        resource_tracker.ensure_running()  # it would be started with the process, and let interrupts in again
        with _without_interrupts():
            self._process.start()
        far.close()  # so that the pipe ends when the process does
        self.alive = True

    def ask(self, text: str) -> Outcome | None:
        """The outcome of a spec, waited for; None where the process ended without one."""
        try:
            self.told = ""
            self._pipe.send(text)
            while not isinstance(told := self._pipe.recv(), Outcome):
                if told is _LISTENING:
                    self._now_listens()
                else:
                    self.told = str(told)
            return told
        except (EOFError, OSError):
            self.alive = False
            self._process.join()
            return None
        finally:
            self._listens = self._asked_to_stop = False

    def interrupt(self) -> None:
        """As Ctrl-C does; where the process does not listen yet, since it starts, as soon as it does."""
        with self._lock:
            self._asked_to_stop = True
            if self._listens:
                self._signal()

    def _now_listens(self) -> None:
        with self._lock:
            self._listens = True
            if self._asked_to_stop:
                self._signal()

    def _signal(self) -> None:
        if self._process.pid is not None and self._process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGINT)

    def end(self) -> None:
        """End the process at once; SIGKILL reaches one that is stopped too."""
        self.alive = False
        self._process.kill()

    def obituary(self) -> str:
        """How the process ended, for people."""
        code = self._process.exitcode
        if code == -signal.SIGKILL:
            return say("the search was killed (SIGKILL), most often for want of memory")
        return say("the search ended without an answer (exit code {code})", code=code)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes started inside are not interrupted by a Ctrl-C in the terminal, not even while they import."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Teller:
    """Sends how far a plan is, from time to time, until it is over. A thread does: SIGINT cuts short what the main one
    does, and half a message would be the end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._text = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> _Teller:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def __call__(self, text: str) -> None:
        self._text = text

    def _send(self) -> None:
        sent = ""
        with suppress(OSError):
            while not self._over.wait(_TELL_S):
                if (text := self._text) != sent:
                    self._pipe.send(text)
                    sent = text


def _work(pipe: Connection, plan_page: PlanPage, limits: PageLimits, language: str) -> None:
    """A worker's life: plan what comes until the pipe ends, or the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgrp()  # a Ctrl-C in the terminal is for the server, which decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError), speaking(language):
        while True:
            text = pipe.recv()
            with _Teller(pipe) as tell:
                outcome = outcome_of(text, plan_page, limits, tell, lambda: pipe.send(_LISTENING))
            pipe.send(outcome)


def _end_with_parent() -> None:
    """Do not go on working for nobody when the parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def outcome_of(
    text: str,
    plan_page: PlanPage,
    limits: PageLimits,
    tell: Callable[[str], None] = lambda _: None,
    listening: Callable[[], None] = lambda: None,
) -> Outcome:
    """What comes of a spec, here and now. SIGINT ends the search with what is known, once `listening` was called;
    whatever goes wrong is told."""
    try:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            listening()
            return _planned(text, plan_page, limits, tell)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        return Outcome("stopped", said=say("stopped before there was a plan"))
    except MemoryError:
        return Outcome("failed", said=say("out of memory"))
    except Exception as error:
        told = say("this is a bug in apss-cp: {kind}: {error}", kind=type(error).__name__, error=error)
        return Outcome("failed", said=told)


def _planned(text: str, plan_page: PlanPage, limits: PageLimits, tell: Callable[[str], None]) -> Outcome:
    """What comes of a spec unless something goes wrong; what is wrong with the spec itself does not."""
    try:
        return Outcome(*plan_page(problem_of(text, limits), tell))
    except InputError as error:
        return Outcome("bad_input", troubles=tuple(map(trouble_for_page, error.troubles)))
