"""Spoilt inputs through every door: an input is refused in words, or answered; nothing else may happen.

What may not: an exception, exit code 70 or another that no page tells, more than ten seconds of computing, characters
that a terminal obeys.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType

from tools.attack.doors import DOCUMENTED, Door, all_doors
from tools.attack.findings import Finding, Report, shortest
from tools.attack.mutations import mutated

LONGEST_S = 10.0
"""Seconds of computing, not of waiting: the machine may have other work."""
SHOWN = 4000
LETHAL = 24.0
"""Shrinking what takes long takes longer."""


class TooLong(BaseException):
    """A door has computed longer than any may; no door catches this."""


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    raise TooLong


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """TooLong after so many seconds of computing inside."""
    before = signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def placed(door: Door, data: bytes) -> Iterator[Path]:
    """A folder with that input, and with what the door needs beside it."""
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    try:
        for name, content in (*door.beside, (door.name, data)):
            (folder / name).write_bytes(content)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def trouble(door: Door, data: bytes) -> str | None:
    """What a door does with an input that it must not; None: all is well."""
    with placed(door, data) as folder:
        try:
            with limited(LONGEST_S):
                code, output = door.enter(folder)
        except TooLong:
            return f"more than {LONGEST_S:g} s"
        except Exception as error:
            return f"{type(error).__name__} in {_place(error)}"
    if code not in DOCUMENTED:
        return f"exit code {code}: {output.strip().splitlines()[-1][:200] if output.strip() else ''}"
    raw = sorted({sign for sign in output if not sign.isprintable() and sign not in "\n\t"})
    return f"raw characters {raw[:5]} in the output" if raw else None


def _place(error: Exception) -> str:
    """The last line of the product that an exception went through."""
    place, trace = "?", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "cpsolver" in code.co_filename or "models_zoo" in code.co_filename or "hw_specs" in code.co_filename:
            place = f"{Path(code.co_filename).name}:{code.co_name}"
        trace = trace.tb_next
    return place


def kind_of(what: str) -> str:
    """Findings of one kind are one bug, as far as one can see from outside."""
    return what.split(" (")[0][:160]


def fuzzed(seed: int, only: tuple[str, ...] = ()) -> Report:
    """One spoilt input; what it shows is made as short as may be."""
    rng, doors = Random(seed), all_doors()
    names = [name for name, door in doors.items() for _ in range(door.weight) if not only or name in only]
    name = rng.choice(names)
    door = doors[name]
    data = mutated(rng, rng.choice(door.inputs))
    report = Report()
    report.counts[f"hostile inputs: {name}"] += 1
    wrong = trouble(door, data)
    if wrong is not None:
        slow = wrong.startswith("more than")
        least = shortest(data, lambda shorter: _same(door, shorter, wrong), LETHAL if slow else LETHAL / 3)
        shown = repr(least[:SHOWN]) + (f" … {len(least):,} bytes" if len(least) > SHOWN else "")
        report.findings.append(Finding(f"hostile inputs, {name}", wrong, str(seed), shown))
    return report


def _same(door: Door, data: bytes, wrong: str) -> bool:
    again = trouble(door, data)
    return again is not None and kind_of(again) == kind_of(wrong)
