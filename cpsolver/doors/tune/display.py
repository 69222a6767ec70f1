"""How the trials go, on stderr: a line for each that is over, and at a terminal a changing one for what runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cpsolver.doors.report.progress import Waiting
from cpsolver.doors.tune.logs import Reading
from cpsolver.doors.tune.trial import Trial
from cpsolver.doors.tune.words import plan_words, seconds_words, times_words, trial_line

_EVERY_S = 1.0


class StderrDisplay:
    """The display of `apss-cp tune`."""

    @contextmanager
    def running(self, trial: Trial) -> Iterator[Callable[[Reading], None]]:
        """A status line while the trial runs, where stderr is a terminal."""
        predicted = times_words(trial.predicted_s, trial.low_s, trial.high_s)
        head = f"trial {trial.number}: {plan_words(trial.strategy)}; predicted {predicted}"
        began, told = time.monotonic(), 0.0
        with Waiting(head) as waiting:

            def tell(reading: Reading) -> None:
                nonlocal told
                now = time.monotonic()
                if now - told < _EVERY_S:
                    return
                told = now
                waiting.tell(f"{head}; {_so_far(now - began, reading)}  (Ctrl-C: end it, and report)")

            yield tell

    def finished(self, trial: Trial) -> None:
        """A line on the trial."""
        print(trial_line(trial), file=sys.stderr, flush=True)


def _so_far(seconds: float, reading: Reading) -> str:
    minutes, rest = divmod(round(seconds), 60)
    clock = f"{minutes}:{rest:02d}"
    if reading.step_time_s is None:
        return f"{clock}, no iteration measured yet"
    return f"{clock}, {reading.iterations} iterations, median {seconds_words(reading.step_time_s)}"
