"""The trace-event format: what the writer makes, by a validator of its own, and files whole or not at all."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.report.pipeline_run import run_pipeline, transfers
from cpsolver.doors.report.trace import Slice, Track, chrome_trace, write_chrome_trace
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.plans.strategy import Schedule
from tests.support.problems import ideal, model_spec, strategy_of
from tests.support.trace_format import check_trace, complete

TRACKS = [Track("plan", "stage 0"), Track("plan", "stage 1"), Track("links", "0 to 1")]


def some_trace() -> dict[str, Any]:
    slices = [
        Slice(1, "F0", "forward", 0.2, 0.3, "grey", {"microbatch": 0}),
        Slice(0, "F0", "forward", 0.0, 0.1),
        Slice(0, "B0", "backward", 0.1, 0.1 + 0.2),
        Slice(2, "F0", "p2p", 0.1, 0.2),
    ]
    return chrome_trace(TRACKS, slices, {"plan": 1})


def test_events_have_the_fields_that_viewers_need() -> None:
    trace = some_trace()
    check_trace(trace)
    assert trace["displayTimeUnit"] == "ms"
    assert trace["otherData"] == {"plan": 1}
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    assert [(e["tid"], e["name"], e["ts"], e["dur"]) for e in complete(trace)] == [
        (0, "F0", 0, 100_000),
        (0, "B0", 100_000, 200_000),
        (2, "F0", 100_000, 100_000),
        (1, "F0", 200_000, 100_000),
    ]
    assert complete(trace)[-1]["cname"] == "grey"


def test_tracks_are_threads_in_their_order_under_their_process() -> None:
    named = [event for event in some_trace()["traceEvents"] if event["name"] in ("process_name", "thread_name")]
    told = [(event["pid"], event["tid"], event["args"]["name"]) for event in named]
    assert told == [(0, 0, "plan"), (1, 0, "links"), (0, 0, "stage 0"), (0, 1, "stage 1"), (1, 2, "0 to 1")]


def test_what_is_shorter_than_half_a_nanosecond_is_left_out() -> None:
    assert complete(chrome_trace(TRACKS, [Slice(0, "F0", "forward", 1.0, 1.0 + 4e-10)], {})) == []


def test_slices_without_a_track_or_backwards_in_time_are_refused() -> None:
    with pytest.raises(ValueError, match="track 3, of 3"):
        chrome_trace(TRACKS, [Slice(3, "F0", "forward", 0.0, 0.1)], {})
    with pytest.raises(ValueError, match="ends before"):
        chrome_trace(TRACKS, [Slice(0, "F0", "forward", 0.1, 0.0)], {})


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"dur": -1.0}, "dur"),
        ({"ts": None}, "ts"),
        ({"pid": "plan"}, "pid"),
        ({"ph": "Q"}, "ph"),
        ({"name": ""}, "name"),
        ({"tid": 7}, "no name"),
        ({"ts": 50_000.0}, "overlap"),
        ({"ts": 400_000.0}, "order"),
    ],
)
def test_the_validator_finds_what_is_wrong(change: dict[str, Any], wrong: str) -> None:
    trace = some_trace()
    complete(trace)[1].update(change)
    with pytest.raises(AssertionError, match=wrong):
        check_trace(trace)


def test_write_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "trace.json"
    write_chrome_trace(path, {"traceEvents": []})
    trace = chrome_trace(TRACKS, [], {"model": "模型"})
    write_chrome_trace(path, trace)
    assert json.loads(path.read_text(encoding="utf-8")) == trace
    assert list(path.parent.iterdir()) == [path]


def test_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="JSON"):
        write_chrome_trace(path, {"otherData": float("nan")})

    def refuse(*_: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        write_chrome_trace(path, {"traceEvents": []})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_os_error_reaches_the_caller(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write_chrome_trace(tmp_path / "file" / "trace.json", {"traceEvents": []})


@pytest.mark.parametrize("schedule", ["zbv", "dualpipev", "v_half", "v_min"])
def test_a_v_sends_onward_and_back(schedule: Schedule) -> None:
    """Of every microbatch each link has two forwards and two gradients, one each way; none leads from end to end. Of
    more passes than are drawn the first 2 pp microbatches are, with which the order begins."""
    problem = ideal(model=model_spec(layers=8), gpus=4, batch=24, scale_up={"bandwidth_gb_s": 1})[0]
    plan = strategy_of("x:2,2,2,2", dp=1, vpp=2, flags="f", schedule=schedule)
    made = run_pipeline(plan, evaluate(problem, plan), 24, most_passes=10)
    assert made.shown == 8
    found = Counter((each.kind, each.source, each.target) for each in transfers(made))
    links = [(stage, stage + 1) for stage in range(3)]
    both = [*links, *((after, before) for before, after in links)]
    assert found == {(kind, *link): 8 for kind in "FB" for link in both}
