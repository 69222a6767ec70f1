"""What a training log says: seconds an iteration, peak memory, what was run, and whether memory ran out."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TextIO

from cpsolver.doors.tune.trial import TRIAL_MEMORIES, TrialMemory
from cpsolver.inputs.data import package_data

_DATA = Path(__file__).parent / "tune.yaml"
_GIB = 2**30
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LONGEST = 2000  # characters of a line that are read; no line of interest is longer
_PIECE = 2**20  # characters that are read at once
_MOST_ITERATIONS = 20_000  # of which times are kept: a median needs no more
_COUNTABLE = 2**31  # numbers of iterations are below
_LARGEST = 1e300  # no quantity of a log is as large, and a product of it with a unit is still a number
_TAIL = 15
_SHOWN = 200


@dataclass(frozen=True)
class Expected:
    """What a log must fit: tokens of a step, devices, and the trial's values by field name."""

    tokens: int
    num_gpus: int
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LogReading:
    """What was found. Times in seconds, memory in GiB.

    `step_time_s`: the median over `iterations` iterations after the warm-up; `spread`: half the width of their middle
    half, as a share of the median. `notes`: what a reader of the number should know. `wrong`: why the time is none to
    use, though one was found. `out_of_memory`, `host_out_of_memory`, `error`: the first or last line that says so.
    `began`: a line tells an iteration, be it of the warm-up.
    """

    step_time_s: float | None
    iterations: int
    spread: float | None
    peak_memory_gib: float | None
    memory_kind: TrialMemory | None
    notes: tuple[str, ...]
    wrong: str | None
    out_of_memory: str | None
    host_out_of_memory: str | None
    error: str | None
    tail: tuple[str, ...]
    began: bool = False


@dataclass(frozen=True)
class _Line:
    """An iteration's line: seconds, and how many iterations since the one before were skipped or not a number."""

    seconds: float
    skipped: int
    nan: int


def log_facts() -> dict[str, Any]:
    """The data file: formats, limits and messages, each with its source."""
    found: dict[str, Any] = package_data(_DATA)
    return found


def default_skip() -> int:
    """Iterations that are left out as warm-up."""
    return int(log_facts()["skip_iterations"]["value"])


def enough_iterations() -> int:
    """Measured iterations on which the time of a trial stands that was ended from outside."""
    return int(log_facts()["enough_iterations"]["value"])


def looked_for() -> tuple[str, ...]:
    """The forms in which a log can say what a step takes, in words."""
    facts = log_facts()
    return (*(entry["title"] for entry in facts["formats"]), facts["json_line"]["title"])


@lru_cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _group(pattern: str | None, line: str) -> str | None:
    found = None if pattern is None else _compiled(pattern).search(line)
    return None if found is None else found.group(1)


@lru_cache
def _all_keys() -> tuple[str, ...]:
    facts = log_facts()
    single = (facts["said"], facts["error_line"], facts["json_line"])
    lists = (facts[name] for name in ("formats", "memory", "out_of_memory", "host_out_of_memory"))
    return tuple({key for entry in (*single, *(entry for each in lists for entry in each)) for key in entry["keys"]})


def _with_key(entries: Iterable[Mapping[str, Any]], line: str) -> Iterator[Mapping[str, Any]]:
    """The entries of which the line holds a key: looking for those is fifty times as fast as for patterns."""
    return (entry for entry in entries if any(key in line for key in entry["keys"]))


def read_log(path: Path, expected: Expected, skip: int) -> LogReading:
    """What the file says; a file that is not there says nothing."""
    scanner = Scanner(expected, skip)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            while scanner.feed_from(file):
                pass
    except OSError:
        pass
    scanner.end_line()
    return scanner.reading()


class Scanner:
    """Reads a log line by line; `reading` may be asked at any time."""

    def __init__(self, expected: Expected, skip: int) -> None:
        self._expected, self._skip = expected, skip
        self._lines: dict[int, _Line] = {}
        self._memory: dict[str, float] = {}
        self._told: dict[str, Any] | None = None
        self._differs: dict[str, str] = {}
        self._messages: dict[str, str] = {}
        self._absurd: str | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._open = ""

    def feed_from(self, file: TextIO) -> bool:
        """The file's next piece; False where there is none. A line without its end waits for it, cut to what is read.

        A log of any size takes the memory of one piece.
        """
        if not (piece := file.read(_PIECE)):
            return False
        *lines, rest = (self._open + piece).split("\n")
        self._open = rest[:_LONGEST]
        text = (lines[0] if lines else "") + piece
        if not any(key in text for key in _all_keys()):
            lines = [line for line in lines if line.strip()][-_TAIL:]
        self.feed(lines)
        return True

    def end_line(self) -> None:
        """What waits for the end of its line has no end: it counts as a line."""
        self.feed([self._open])
        self._open = ""

    def feed(self, lines: Iterable[str]) -> None:
        """More lines."""
        for raw in lines:
            line = (_COLOURS.sub("", raw[:_LONGEST]) if "\x1b" in raw else raw[:_LONGEST]).rstrip()
            if line.strip():
                self._tail.append(line[:_SHOWN])
                if any(key in line for key in _all_keys()):
                    self._line(line)

    def _line(self, line: str) -> None:
        facts = log_facts()
        for entry in _with_key(facts["formats"], line):
            self._iteration(entry, line)
        for entry in _with_key(facts["memory"], line):
            if (value := _decimal(_group(entry["pattern"], line))) is not None:
                self._keep_memory(entry["kind"], value * entry["bytes"] / _GIB)
        if any(key in line for key in facts["json_line"]["keys"]):
            self._json(line)
        for entry in _with_key([facts["said"]], line):
            if said := _compiled(entry["pattern"]).search(line):
                self._check(entry["fields"].get(said.group(1)), said.group(2))
        self._message(line)

    def _message(self, line: str) -> None:
        """The first line about memory, and the last that says what went wrong."""
        facts = log_facts()
        for kind in ("out_of_memory", "host_out_of_memory"):
            found = (_compiled(entry["pattern"]).search(line) for entry in _with_key(facts[kind], line))
            if any(found):
                self._messages.setdefault(kind, line.strip()[:_SHOWN])
        for entry in _with_key([facts["error_line"]], line):
            if (error := _group(entry["pattern"], line)) is not None:
                self._messages["error"] = error.strip()[:_SHOWN]

    def _iteration(self, entry: Mapping[str, Any], line: str) -> None:
        number, text = _group(entry["iteration"], line), _group(entry["time"], line)
        seconds = None if number is None or text is None else self._seconds(text, entry["unit"])
        if number is None or seconds is None or not self._countable(number):
            return
        skipped, nan = (_group(entry.get(name), line) or "0" for name in ("skipped", "nan"))
        here = _Line(seconds, int(skipped), 1 if nan == "nan" else int(nan))
        before = self._lines.get(int(number))
        if before is None or before.seconds < seconds:  # of several ranks that log, the slowest counts
            self._lines[int(number)] = here
        for name, pattern in entry.get("said", {}).items():
            self._check(name, _group(pattern, line))

    def _countable(self, number: str) -> bool:
        known = len(self._lines) < _MOST_ITERATIONS or int(number) in self._lines
        return int(number) < _COUNTABLE and known

    def _seconds(self, text: str, unit: str) -> float | None:
        """The time in seconds, or None and a word about it where it is none."""
        number = _decimal(text)
        value = math.nan if number is None else number
        if unit == "tokens_per_s_per_gpu":
            value = self._expected.tokens / (value * self._expected.num_gpus) if value > 0 else math.nan
        seconds = value / 1e3 if unit == "ms" else value
        limits = log_facts()["step_time_s"]
        if limits["least"] <= seconds <= limits["most"]:
            return seconds
        range_ = f"{limits['least']:g} s to {limits['most']:g} s"
        self._absurd = (
            f"the log says {text[:30]} {unit.replace('_per_', '/')} of an iteration: no step takes that ({range_})"
        )
        return None

    def _keep_memory(self, kind: str, gib: float) -> None:
        if math.isfinite(gib) and gib > 0:
            self._memory[kind] = max(gib, self._memory.get(kind, 0.0))

    def _json(self, line: str) -> None:
        try:
            told = json.loads(line[line.index("{") : line.rindex("}") + 1])
        except (ValueError, RecursionError):
            return
        if isinstance(told, dict) and _usable(told):
            self._told = told

    def _check(self, name: str | None, value: str | None) -> None:
        wanted = self._expected.values.get(name or "")
        if wanted is None or value is None:
            return
        self._differs.pop(str(name), None)
        if value != wanted:
            self._differs[str(name)] = f"{name} is {value} in the log and {wanted} in the plan"

    def reading(self) -> LogReading:
        """What the lines so far say."""
        seconds, iterations, spread, notes = self._from_json() if self._told else self._from_lines()
        kind, memory = self._peak()
        wrong = "; ".join(self._differs.values()) or (self._absurd if seconds is None else None)
        if self._differs:
            wrong = f"the log is of another layout: {wrong}. Does the command pass the plan's arguments?"
        return LogReading(
            step_time_s=seconds,
            iterations=iterations,
            spread=spread,
            peak_memory_gib=memory,
            memory_kind=kind,
            notes=notes,
            wrong=wrong,
            out_of_memory=self._messages.get("out_of_memory"),
            host_out_of_memory=self._messages.get("host_out_of_memory"),
            error=self._messages.get("error"),
            tail=tuple(self._tail),
            began=bool(self._lines or self._told),
        )

    def _from_json(self) -> tuple[float | None, int, None, tuple[str, ...]]:
        told = self._told or {}
        value = told.get("step_time_s")
        if value is None and (rate := _number(told.get("tokens_per_s"))):
            value = self._expected.tokens / rate
        seconds = self._seconds(str(value), "s")
        if (gib := _number(told.get("peak_memory_gib"))) is not None:
            kind = told.get("memory_kind", "allocated")
            if kind in TRIAL_MEMORIES:
                self._keep_memory(kind, gib)
        iterations = int(_number(told.get("iterations")) or 1)
        return seconds, 0 if seconds is None else iterations, None, ()

    def _from_lines(self) -> tuple[float | None, int, float | None, tuple[str, ...]]:
        numbers = sorted(self._lines)
        if not numbers:
            return None, 0, None, ()
        step = numbers[1] - numbers[0] if len(numbers) > 1 else numbers[0]
        start = numbers[0] - step  # where the run began: 0, or a checkpoint's iteration
        spans = {now: now - before for before, now in zip([start, *numbers], numbers, strict=False)}
        warm = [number for number in numbers if number - spans[number] >= start + self._skip]
        used = [number for number in warm if not self._lines[number].skipped]
        times = [self._lines[number].seconds for number in used]
        notes = tuple(self._iteration_notes(numbers, warm, used, start))
        if not times:
            return None, 0, None, notes
        middle = median(times)
        return middle, sum(spans[number] for number in used), _spread(times) / middle, notes

    def _iteration_notes(self, numbers: list[int], warm: list[int], used: list[int], start: int) -> Iterable[str]:
        if not warm:
            most = numbers[-1] - start
            told = f"all {most} iterations in the log are warm-up (--skip-iterations {self._skip})"
            if most == 1:
                told = f"the one iteration in the log is warm-up (--skip-iterations {self._skip})"
            if len(numbers) == 1 and most > self._skip:
                told = (
                    f"the only line covers iterations 1 to {most}, warm-up included: log every one (--log-interval 1)"
                )
            yield told
        if skipped := len(warm) - len(used):
            yield f"{skipped} {'line' if skipped == 1 else 'lines'} with skipped iterations left out"
        if nan := sum(self._lines[number].nan for number in used):
            yield f"{nan} measured {'iteration' if nan == 1 else 'iterations'} had a loss that is not a number"

    def _peak(self) -> tuple[TrialMemory | None, float | None]:
        for kind in TRIAL_MEMORIES:
            if kind in self._memory:
                return kind, self._memory[kind]  # type: ignore[return-value]
        return None, None


def _decimal(text: str | None) -> float | None:
    """`1,234.5` as a number, be it nan or infinite; None for `1.2.3`, which is none."""
    try:
        return None if text is None else float(text.replace(",", "").rstrip("."))
    except ValueError:
        return None


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    good = 0 < value < _LARGEST  # of an integer of any length, which may be no float
    return float(value) if good else None


def _usable(told: Mapping[str, Any]) -> bool:
    """The line says how long a step took, and every number in it is one that can be counted with."""
    if not {"step_time_s", "tokens_per_s"} & set(told):
        return False
    numbers = [value for value in told.values() if isinstance(value, int | float)]
    return not any(abs(value) >= _LARGEST for value in numbers) and (_number(told.get("iterations")) or 1) < _COUNTABLE


def _spread(times: list[float]) -> float:
    """Half the width of the middle half; of fewer than four values half the range."""
    if len(times) < 4:
        return (max(times) - min(times)) / 2
    first, _, third = quantiles(times, n=4, method="inclusive")
    return (third - first) / 2
