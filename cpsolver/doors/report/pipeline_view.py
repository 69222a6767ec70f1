"""What of a step a picture of limited size shows: which stretches of time, which stages, and what stands in a cell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cpsolver.cost.pipeline_events import FloatArray
from cpsolver.doors.report.pipeline_run import KINDS, PipelineRun, Span, SpanKind

Window = tuple[float, float]
"""Seconds from the start of the step: from, to."""

_ROOM = 1.15  # of the steady state beside the filling and the draining, so that it is seen to be steady
_WORTH_A_BREAK = 0.9  # two windows that leave out less than a tenth of the step are no better than the whole


def windows(run: PipelineRun) -> list[Window]:
    """The stretches worth drawing: the whole step, or its start and its end where the middle repeats itself.

    The start lasts until every stage has run a backward, the end from when the first stage has no forward left; both
    windows have the longer one's length, so that they have one scale, and some of the steady state.
    """
    timeline, end_s = run.timeline, run.end_s
    forward = timeline.kind == "F"
    stages = range(timeline.num_stages)
    filled_s = max(timeline.end_s[(timeline.stage == stage) & ~forward].min() for stage in stages)
    draining_s = min(timeline.start_s[(timeline.stage == stage) & forward].max() for stage in stages)
    length_s = _ROOM * float(max(filled_s, end_s - draining_s))
    if 2 * length_s >= _WORTH_A_BREAK * end_s:
        return [(0.0, end_s)]
    return [(0.0, length_s), (end_s - length_s, end_s)]


def chosen_stages(stages: int, most: int) -> list[int]:
    """All stages, or `most` of them at even distances, the first and the last among them."""
    if stages <= most:
        return list(range(stages))
    return sorted({round(number * (stages - 1) / (most - 1)) for number in range(most)})


def cells(spans: Sequence[Span], window: Window, count: int) -> list[SpanKind]:
    """What one stage mostly does in each of `count` equal parts of the window.

    Where a part holds several things, what it is short of is owed to later parts: over a stretch each kind has as many
    cells as it has time.
    """
    time_s = _time_by_kind(spans, np.linspace(*window, count + 1))
    kinds = list(KINDS)
    owed = np.zeros(len(kinds))
    shown: list[SpanKind] = []
    for part in (time_s * count / (window[1] - window[0])).T:
        owed += part
        best = int(np.where(part > 0, owed, -np.inf).argmax())
        owed[best] -= 1.0
        shown.append(kinds[best])
    return shown


def _time_by_kind(spans: Sequence[Span], edges: FloatArray) -> FloatArray:
    """Seconds of each kind between neighbouring edges, shape (kinds, edges - 1)."""
    rows = []
    for kind in KINDS:
        here = [span for span in spans if span.kind == kind]
        times = np.array([[span.start_s, span.end_s] for span in here]).ravel()
        if not here:
            rows.append(np.zeros(len(edges) - 1))
            continue
        spent = np.cumsum([[0.0, span.end_s - span.start_s] for span in here])
        rows.append(np.diff(np.interp(edges, times, spent)))
    return np.array(rows)
