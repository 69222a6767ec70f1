"""How a running search stands, on stderr: a line an event, or a status line when one waits at a terminal."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self

from cpsolver.inputs.language import say
from cpsolver.inputs.text import plural
from cpsolver.search.result import Listener, Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn
    from rich.status import Status

_QUIET_S = 2.0  # what takes less than this shows nothing
_BETWEEN_S = 10.0  # between two lines where there is no terminal
_LEAST_SHARE = 0.02  # below this share of the way an estimate of the rest would be a guess


class Waiting:
    """Says what is going on while something takes longer than two seconds; a context manager.

    At a terminal a line beside a spinner; elsewhere a line on stderr after two seconds, then every ten, later less
    often. A thread's timer shows it: what is waited for need not call anything. `tell` changes the text.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._shows = True
        self._at_terminal = sys.stderr.isatty()
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._over = False
        self._timer = self._timer_of(_QUIET_S)

    def _timer_of(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self._show)
        timer.daemon = True
        return timer

    def __enter__(self) -> Self:
        if self._shows:
            self._timer.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._over = True
            self._timer.cancel()
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
            if self._over:
                return
            if self._at_terminal:
                self._status = Console(stderr=True).status(escape(self._text))
                self._status.start()
                return
            elapsed = time.monotonic() - self._started
            print(f"{elapsed:.0f} s: {self._text}", file=sys.stderr, flush=True)
            self._timer = self._timer_of(_pause(elapsed))
            self._timer.start()


class Watcher(Waiting):
    """A listener for `search`; use it as a context manager.

    `verbose` writes every event on its own line; otherwise it shows from time to time how far the proof is.
    """

    def __init__(self, verbose: bool = False) -> None:
        super().__init__(say("listing the candidates"))
        self._verbose = verbose
        self._shows = not verbose
        self._least = math.inf

    def __call__(self, progress: Progress) -> None:
        """Show one event."""
        elapsed = time.monotonic() - self._started
        if self._verbose:
            print(f"{elapsed:7.2f} s  {describe(progress)}", file=sys.stderr, flush=True)
            return
        self._least = min(self._least, progress.bound_s)
        told = how_far(progress, self._least, elapsed)
        self.tell(
            say("{elapsed:.0f} s: {told} (Ctrl-C: stop)", elapsed=elapsed, told=told) if self._at_terminal else told
        )


def how_far(progress: Progress, least_bound: float, elapsed_s: float) -> str:
    """How far a search is: the share of the way that its lower bound has come from the least one to the best plan,
    what the rest would take at that pace, and by how much another plan may still be better.

    The least bound is not always the first: what is searched after other things may begin lower.
    """
    bound, best = progress.bound_s, progress.best_s
    if math.isinf(best):
        return say("no plan yet, {candidates} open", candidates=plural(progress.waiting, "candidate"))
    best_said = say("best {best:,.4g} {unit}", best=best, unit=progress.unit)
    if bound >= best:
        return say("{best_said}, proven; looking for the next best", best_said=best_said)
    share = (bound - least_bound) / (best - least_bound)
    rest = say(", ~{rough} left", rough=_rough(elapsed_s * (1 - share) / share)) if share >= _LEAST_SHARE else ""
    told = say("{share:.0f} % proven{rest}; {best_said}", share=share * 100, rest=rest, best_said=best_said)
    gain = round((1 - bound / best) * 100)
    return told if gain >= 100 else say("{told}, at most {gain:.0f} % to gain", told=told, gain=gain)


def _pause(elapsed_s: float) -> float:
    """Seconds until the next line: more and more, so that hours fill no log."""
    return max(_BETWEEN_S, elapsed_s / 5)


def _rough(seconds: float) -> str:
    """A time of which little is known: 8 s, 12 min, 3 h."""
    for size, name in ((3600, say("h")), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{max(1.0, seconds):.0f} s"


def describe(progress: Progress) -> str:
    """One event on one line."""
    best = (
        say("best {best_s:.3f} {unit}", best_s=progress.best_s, unit=progress.unit)
        if math.isfinite(progress.best_s)
        else say("no plan yet")
    )
    bound = (
        say("bound {bound_s:.3f} {unit}", bound_s=progress.bound_s, unit=progress.unit)
        if math.isfinite(progress.bound_s)
        else say("nothing open")
    )
    return say(
        "{bound}, {best}, {plans}, {waiting:,} waiting: {text}",
        bound=bound,
        best=best,
        plans=plural(progress.plans, "plan"),
        waiting=progress.waiting,
        text=progress.message,
    )


class Bar:
    """How much of a known amount of work is done, after two seconds; a context manager. At a terminal a bar, elsewhere
    lines.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._at_terminal = sys.stderr.isatty()
        self._started = time.monotonic()
        self._next_s = _QUIET_S
        self._bar: RichProgress | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done; a total may grow."""
        elapsed = time.monotonic() - self._started
        if not self._at_terminal:
            if elapsed > self._next_s:
                rest = say(", ~{rough} left", rough=_rough(elapsed * (total - done) / done)) if done else ""
                print(
                    say(
                        "{elapsed:.0f} s: {what}: {done} of {total} done{rest}",
                        elapsed=elapsed,
                        what=self._what,
                        done=done,
                        total=total,
                        rest=rest,
                    ),
                    file=sys.stderr,
                    flush=True,
                )
                self._next_s = elapsed + _pause(elapsed)
            return
        if self._bar is None:
            if elapsed <= _QUIET_S:
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


class Telling:
    """The same as texts, for whoever shows them: `tell` hears what is going on now."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def searching(self) -> AbstractContextManager[Listener]:
        """Events of a search."""
        started, least = time.monotonic(), [math.inf]

        def listen(progress: Progress) -> None:
            least[0] = min(least[0], progress.bound_s)
            self._tell(how_far(progress, least[0], time.monotonic() - started))

        self._tell(say("listing the candidates"))
        return nullcontext(listen)

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """What is waited for."""
        self._tell(what)
        return nullcontext()

    def counting(self, what: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """How much of it is done."""
        self._tell(what)
        return nullcontext(
            lambda done, total: self._tell(say("{what}: {done} of {total} done", what=what, done=done, total=total))
        )
