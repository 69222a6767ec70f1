"""A trace that chrome://tracing and https://ui.perfetto.dev open: tracks of slices, and what there is to know of them.

Source of the format: the "Trace Event Format" document of the Chromium project (JSON object format; complete
events "X", metadata events "M"; ts and dur in microseconds).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpsolver.inputs.output import draft_of

_NANOSECONDS = 1e9
_PER_MICROSECOND = 1000.0


@dataclass(frozen=True)
class Track:
    """A row of the picture, a thread to the viewer. `process` is the heading that it stands under."""

    process: str
    name: str


@dataclass(frozen=True)
class Slice:
    """Something that takes time on a track, given by its number; `colour` is one of the viewer's reserved names."""

    track: int
    name: str
    category: str
    start_s: float
    end_s: float
    colour: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)


def chrome_trace(tracks: Sequence[Track], slices: Iterable[Slice], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The slices as a Chrome trace object, in order of time.

    Args:
        tracks: rows from the top; those of a process stand together.
        slices: what to show; times are kept to a nanosecond, and what is shorter than half of one is left out.
        metadata: anything JSON can hold about the run; it becomes "otherData".

    Returns:
        A dict of plain Python values, ready for `write_chrome_trace`.

    Raises:
        ValueError: a slice of a track that is not there, or one that ends before it starts.
    """
    processes = list(dict.fromkeys(track.process for track in tracks))
    events = [_named("process_name", number, 0, name) for number, name in enumerate(processes)]
    for thread, track in enumerate(tracks):
        process = processes.index(track.process)
        events.append(_named("thread_name", process, thread, track.name))
        order = {"sort_index": thread}
        events.append({"name": "thread_sort_index", "ph": "M", "pid": process, "tid": thread, "args": order})
    complete = []
    for one in slices:
        if not 0 <= one.track < len(tracks):
            raise ValueError(f"slice {one.name!r} is on track {one.track}, of {len(tracks)}")
        if one.end_s < one.start_s:
            raise ValueError(f"slice {one.name!r} ends before it starts")
        event = _complete(one, processes.index(tracks[one.track].process))
        complete += [event] if event["dur"] > 0 else []
    complete.sort(key=lambda event: (event["ts"], event["tid"]))
    return {"traceEvents": events + complete, "displayTimeUnit": "ms", "otherData": dict(metadata)}


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _complete(one: Slice, process: int) -> dict[str, Any]:
    """Whole nanoseconds, so that a slice starts exactly where the one before it ends."""
    start, end = round(one.start_s * _NANOSECONDS), round(one.end_s * _NANOSECONDS)
    event: dict[str, Any] = {
        "name": one.name,
        "cat": one.category,
        "ph": "X",
        "ts": start / _PER_MICROSECOND,
        "dur": (end - start) / _PER_MICROSECOND,
        "pid": process,
        "tid": one.track,
    }
    if one.colour:
        event["cname"] = one.colour
    return {**event, "args": dict(one.args)}


def write_chrome_trace(path: str | os.PathLike[str], trace: Mapping[str, Any]) -> None:
    """Write the trace as JSON, whole or not at all, making the folders it needs.

    Raises:
        OSError: the file or its folder cannot be written.
        TypeError: the trace holds something that JSON cannot (a number type of numpy, say).
        ValueError: the trace holds a NaN or an infinity, which JSON has no word for.
    """
    text = json.dumps(trace, separators=(",", ":"), allow_nan=False)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with draft_of(target) as draft:
        draft.write_text(text, encoding="utf-8")
