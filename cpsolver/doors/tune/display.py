"""Plans, trials and times in a few words, and how the trials go: a line each on stderr, and what runs at a terminal."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cpsolver.doors.report.plan_words import stage_words
from cpsolver.doors.report.progress import Waiting
from cpsolver.doors.report.text import recompute_text
from cpsolver.doors.tune.logs import LogReading
from cpsolver.doors.tune.state_notes import retold
from cpsolver.doors.tune.trial import Trial
from cpsolver.inputs.language import say
from cpsolver.inputs.text import elapsed, plural, runs, seconds, signed_percent
from cpsolver.plans.dimensions import sizes_text
from cpsolver.plans.strategy import Strategy

_EVERY_S = 1.0  # between two changes of the status line


def plan_words(s: Strategy) -> str:
    """Degrees and all else that tells plans apart: `tp 8 pp 4 dp 2 mbs 1, recompute selective`. No two plans have the
    same name."""
    parts = [sizes_text(s)]
    parts += [say("micro batches {sizes}", sizes=runs(s.micro_batches))] if s.dynamic else []
    parts += [] if s.schedule == "1f1b" else [say("schedule {schedule}", schedule=s.schedule)]
    parts += [say("no sequence parallelism")] if s.tp > 1 and not s.sequence_parallel else []
    parts += [] if s.zero_stage in (0, 1) else [f"ZeRO-{s.zero_stage}"]
    parts += [say("sharded in groups of {ranks}", ranks=s.sharding_ranks)] if s.grouped else []
    parts += [say("no distributed optimizer")] if s.dp * s.cp > 1 and not s.distributed_optimizer else []
    parts += [] if s.flash_attention else [say("no flash attention")]
    parts += [say("experts overlapped")] if s.expert_overlap else []
    parts += [say("cp by {way}", way=s.cp_comm_type)] if s.cp > 1 else []
    parts += [say("ulysses {ranks}", ranks=s.ulysses)] if 1 < s.ulysses < s.cp else []
    told = {recompute_text(s, chip) for chip in s.stage_chips}
    parts += [say("recompute {text}", text=text) for text in told - {"none"}] if len(told) == 1 else []
    parts += [stages] if (stages := stage_words(s)) else []
    return say(", ").join(parts)


def times_words(predicted_s: float, low_s: float, high_s: float) -> str:
    """A prediction with its 80 % interval: `5.31 s (4.80 to 5.92)`."""
    scale, digits = (1e3, 1) if predicted_s < 1 else (1.0, 2)
    low, high = (f"{value * scale:,.{digits}f}" for value in (low_s, high_s))
    return say("{seconds} ({low} to {high})", seconds=seconds_words(predicted_s), low=low, high=high)


def seconds_words(value: float) -> str:
    """A step time: `5.31 s`, `412.3 ms`."""
    return seconds(value) if value < 1 else f"{value:,.2f} s"


def memory_words(trial: Trial) -> str:
    """Peak memory and who counted it; a dash where it is not known."""
    return "–" if trial.peak_memory_gib is None else f"{trial.peak_memory_gib:.1f} GiB {trial.memory_kind}"


def measured_words(trial: Trial) -> str:
    """The step time and how far its iterations spread."""
    if trial.step_time_s is None:
        return "–"
    spread = "" if trial.spread is None else f" ±{trial.spread * 100:.1f} %"
    return f"{seconds_words(trial.step_time_s)}{spread}"


def trial_line(trial: Trial) -> str:
    """A finished trial in a line."""
    told = [
        say(
            "trial {number}: {plan}: {outcome}",
            number=trial.number,
            plan=plan_words(trial.strategy),
            outcome=trial.outcome,
        )
    ]
    if trial.step_time_s is not None:
        off = trial.step_time_s / trial.predicted_s - 1
        predicted = times_words(trial.predicted_s, trial.low_s, trial.high_s)
        told.append(
            say(
                "{measured}, predicted {predicted}, {off}",
                measured=measured_words(trial),
                predicted=predicted,
                off=signed_percent(off),
            )
        )
    if trial.peak_memory_gib is not None:
        told.append(memory_words(trial))
    if trial.seconds is not None:
        told.append(say("took {time}", time=elapsed(trial.seconds)))
    return say("; ").join([*told, *([retold(trial.note)] if trial.note else [])])


def command_words(command: tuple[str, ...]) -> str:
    """A command as one types it; one of --shell as the shell reads it."""
    return command[2] if command[:2] == ("/bin/sh", "-c") else shlex.join(command)


class StderrDisplay:
    """The display of `apss-cp tune`."""

    @contextmanager
    def running(self, trial: Trial) -> Iterator[Callable[[LogReading], None]]:
        """A status line while the trial runs, where stderr is a terminal."""
        predicted = times_words(trial.predicted_s, trial.low_s, trial.high_s)
        head = say(
            "trial {number}: {plan}; predicted {predicted}",
            number=trial.number,
            plan=plan_words(trial.strategy),
            predicted=predicted,
        )
        began, told = time.monotonic(), 0.0
        with Waiting(head) as waiting:

            def tell(reading: LogReading) -> None:
                nonlocal told
                now = time.monotonic()
                if now - told < _EVERY_S:
                    return
                told = now
                so_far = _so_far(now - began, reading)
                waiting.tell(say("{head}; {so_far}  (Ctrl-C: end it, and report)", head=head, so_far=so_far))

            yield tell

    def finished(self, trial: Trial) -> None:
        """A line on the trial."""
        print(trial_line(trial), file=sys.stderr, flush=True)


def _so_far(seconds: float, reading: LogReading) -> str:
    minutes, rest = divmod(round(seconds), 60)
    clock = f"{minutes}:{rest:02d}"
    if reading.step_time_s is None:
        return say("{clock}, no iteration measured yet", clock=clock)
    return say(
        "{clock}, {iterations}, median {seconds}",
        clock=clock,
        iterations=plural(reading.iterations, "iteration"),
        seconds=seconds_words(reading.step_time_s),
    )
