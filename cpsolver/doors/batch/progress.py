"""How far a sweep is, on stderr: a bar at a terminal, a line now and then where there is none."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from cpsolver.doors.report.progress import new_bar
from cpsolver.inputs.language import say
from cpsolver.inputs.text import plural

if TYPE_CHECKING:
    from rich.progress import Progress

_LINE_EVERY_S = 30.0


def remaining_s(elapsed_s: float, done: int, left: int) -> float | None:
    """Seconds that the cells left will take if they take what those of this run took; None before the first."""
    return elapsed_s / done * left if done else None


def duration(value: float) -> str:
    """Seconds as people say them: 42 s, 3 min, 2 h 05 min."""
    if value < 100:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


class Meter:
    """Shows the cells done of `total`, of which `kept` were there before; use it as a context manager."""

    def __init__(self, total: int, kept: int) -> None:
        self._total, self._kept, self._done, self._failed = total, kept, 0, 0
        self._began = self._told = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Meter:
        if sys.stderr.isatty() and self._kept < self._total:
            self._bar = _bar(self._total, self._kept)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, failed: bool) -> None:
        """One more cell is done."""
        self._done, self._failed = self._done + 1, self._failed + failed
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._kept + self._done, state=self.state())
        elif time.monotonic() - self._told > _LINE_EVERY_S:
            self._told = time.monotonic()
            print(self._line(), file=sys.stderr, flush=True)

    def _line(self) -> str:
        done, state = self._kept + self._done, self.state()
        return say("{done:,} of {total:,} cells, {state}", done=done, total=self._total, state=state)

    def state(self) -> str:
        """What is told beside the counts: failures, and the time that is left."""
        left = self._total - self._kept - self._done
        estimate = remaining_s(time.monotonic() - self._began, self._done, left)
        failed = [plural(self._failed, "failure")] if self._failed else []
        left_over = [] if estimate is None else [say("about {time} left", time=duration(estimate))]
        return say(", ").join([*failed, *left_over])


def _bar(total: int, kept: int) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    state = TextColumn("{task.fields[state]}")
    columns = TextColumn(say("cells")), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), state
    return new_bar(columns, "cells", total, kept, state=say("(Ctrl-C: stop, and go on later)"))
