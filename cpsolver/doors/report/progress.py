"""How a running search stands, on stderr: a line an event, or a status line when one waits at a terminal."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from cpsolver.search.result import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn
    from rich.status import Status

_QUIET_S = 2.0  # what takes less than this shows nothing


class Waiting:
    """A line beside a spinner, at a terminal, while something takes longer than two seconds; a context manager.

    A thread's timer shows it: what is waited for need not call anything. `tell` changes the text.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._shows = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._over = False
        self._timer = threading.Timer(_QUIET_S, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if self._shows:
            self._timer.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._status is not None:
                self._status.stop()

    def tell(self, text: str) -> None:
        """What is going on now."""
        from rich.markup import escape

        with self._lock:
            self._text = text
            if self._status is not None:
                self._status.update(escape(text))

    def _show(self) -> None:
        from rich.console import Console
        from rich.markup import escape

        with self._lock:
            if not self._over:
                self._status = Console(stderr=True).status(escape(self._text))
                self._status.start()


class Watcher(Waiting):
    """A listener for `search`; use it as a context manager.

    `verbose` writes every event on its own line; otherwise a status line appears on a terminal after two seconds.
    """

    def __init__(self, verbose: bool = False) -> None:
        super().__init__("listing the candidates")
        self._verbose = verbose
        self._shows = self._shows and not verbose
        self._started = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Show one event."""
        elapsed = time.monotonic() - self._started
        if self._verbose:
            print(f"{elapsed:7.2f} s  {describe(progress)}", file=sys.stderr, flush=True)
        elif self._shows:
            self.tell(f"{elapsed:.0f} s  {describe(progress)}  (Ctrl-C: best so far)")


def describe(progress: Progress) -> str:
    """One event on one line."""
    best = f"best {progress.best_s:.3f} {progress.unit}" if math.isfinite(progress.best_s) else "no plan yet"
    bound = f"bound {progress.bound_s:.3f} {progress.unit}" if math.isfinite(progress.bound_s) else "nothing open"
    return f"{bound}, {best}, {progress.plans} plans, {progress.waiting:,} waiting: {progress.message}"


class Bar:
    """A bar of how much of a known amount of work is done, on a terminal and after two seconds; a context manager."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shows = sys.stderr.isatty()
        self._started = time.monotonic()
        self._bar: RichProgress | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done; a total may grow."""
        if self._bar is None:
            if not self._shows or time.monotonic() - self._started <= _QUIET_S:
                return
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
            self._bar = new_bar(columns, self._what, total)
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)


def new_bar(
    columns: Iterable[str | ProgressColumn], task: str, total: int, done: int = 0, **fields: Any
) -> RichProgress:
    """A bar on stderr that is shown at once and gone when it is stopped; `fields` are for the columns."""
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    progress = RichProgress(*columns, console=Console(stderr=True), transient=True)
    progress.add_task(task, total=total, completed=done, **fields)
    progress.start()
    return progress


class Terminal:
    """What the commands show on stderr while they search: the `SearchDisplay` of `cpsolver.explanation.account`."""

    def __init__(self, verbose: bool = False) -> None:
        self._verbose = verbose

    def searching(self) -> Watcher:
        """Events of a search."""
        return Watcher(self._verbose)

    def waiting(self, what: str) -> Waiting:
        """A line beside a spinner."""
        return Waiting(what)

    def counting(self, what: str) -> Bar:
        """A bar."""
        return Bar(what)
