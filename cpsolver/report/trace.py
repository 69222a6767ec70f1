"""The pipeline's timeline as a trace that chrome://tracing and https://ui.perfetto.dev open.

Source of the format: the "Trace Event Format" document of the Chromium project (JSON object format; complete
events "X", metadata events "M"; ts and dur in microseconds).
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpsolver.schedule import Timeline

_CATEGORY = {"F": "forward", "B": "backward"}
_MICROSECONDS = 1e6


def chrome_trace(timeline: Timeline, labels: Sequence[str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The timeline as a Chrome trace object: one process, one thread per pipeline stage, one event per pass.

    Args:
        timeline: what `schedule.simulate` returned.
        labels: the name to show for each stage, pp of them, stage 0 first.
        metadata: anything JSON can hold about the run; it becomes "otherData".

    Returns:
        A dict of plain Python values, ready for `write_chrome_trace`. Events are named "F12" or, with several
        chunks per stage, "F12 c1": kind, microbatch, chunk.

    Raises:
        ValueError: the number of labels is not the number of stages.
    """
    if len(labels) != timeline.num_stages:
        raise ValueError(f"labels must name {timeline.num_stages} stages, got {len(labels)}")
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "pipeline"}}
    ]
    for stage, label in enumerate(labels):
        events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": stage, "args": {"name": label}})
        events.append({"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": stage, "args": {"sort_index": stage}})
    return {
        "traceEvents": events + _passes(timeline),
        "displayTimeUnit": "ms",
        "otherData": dict(metadata),
    }


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
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _passes(timeline: Timeline) -> list[dict[str, Any]]:
    chunked = bool(np.any(timeline.chunk > 0))
    start_us = (timeline.start_s * _MICROSECONDS).tolist()
    end_us = (timeline.end_s * _MICROSECONDS).tolist()
    columns = zip(
        timeline.stage.tolist(),
        timeline.kind.tolist(),
        timeline.microbatch.tolist(),
        timeline.chunk.tolist(),
        start_us,
        end_us,
        strict=True,
    )
    return [
        {
            "name": f"{kind}{microbatch} c{chunk}" if chunked else f"{kind}{microbatch}",
            "cat": _CATEGORY[kind],
            "ph": "X",
            "ts": start,
            "dur": end - start,
            "pid": 0,
            "tid": stage,
            "args": {"microbatch": microbatch, "chunk": chunk},
        }
        for stage, kind, microbatch, chunk, start, end in columns
    ]
