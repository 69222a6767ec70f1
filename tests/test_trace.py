import json
import os
from itertools import pairwise

import numpy as np
import pytest

from cpsolver.report.trace import chrome_trace, write_chrome_trace
from cpsolver.schedule import Timeline, simulate


@pytest.fixture(params=[1, 2], ids=["1f1b", "interleaved"])
def timeline(request: pytest.FixtureRequest) -> Timeline:
    rng = np.random.default_rng(3)
    shape = (4, request.param)
    return simulate(rng.uniform(1e-3, 2e-3, shape), rng.uniform(2e-3, 4e-3, shape), 8, np.full(4, 1e-4))


def passes(trace: dict) -> list[dict]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_events_have_the_fields_viewers_need(timeline: Timeline) -> None:
    trace = chrome_trace(timeline, ["a", "b", "c", "d"], {"plan": 1})
    assert trace["displayTimeUnit"] == "ms"
    assert trace["otherData"] == {"plan": 1}
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    vpp = timeline.chunk.max() + 1
    assert len(passes(trace)) == 2 * 4 * 8 * vpp
    for event in passes(trace):
        assert set(event) == {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}
        assert event["cat"] == {"F": "forward", "B": "backward"}[event["name"][0]]
        assert event["dur"] > 0
        where = event["args"]
        suffix = f" c{where['chunk']}" if vpp > 1 else ""
        assert event["name"][1:] == f"{where['microbatch']}{suffix}"
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert names == {0: "a", 1: "b", 2: "c", 3: "d"}


def test_stage_runs_one_event_at_a_time_and_the_last_ends_at_the_makespan(timeline: Timeline) -> None:
    events = passes(chrome_trace(timeline, list("abcd"), {}))
    for stage in range(4):
        row = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["tid"] == stage)
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(row))
    assert max(e["ts"] + e["dur"] for e in events) == pytest.approx(timeline.makespan_s * 1e6, rel=1e-12)
    assert min(e["ts"] for e in events) == 0


def test_wrong_number_of_labels_is_refused(timeline: Timeline) -> None:
    with pytest.raises(ValueError, match="4 stages, got 3"):
        chrome_trace(timeline, list("abc"), {})


def test_write_makes_folders_and_replaces(tmp_path, timeline: Timeline) -> None:
    path = tmp_path / "deep" / "er" / "trace.json"
    write_chrome_trace(path, {"traceEvents": []})
    trace = chrome_trace(timeline, list("abcd"), {"model": "模型"})
    write_chrome_trace(path, trace)
    assert json.loads(path.read_text(encoding="utf-8")) == trace
    assert os.listdir(path.parent) == ["trace.json"]


def test_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert os.listdir(tmp_path) == ["trace.json"]


def test_os_error_reaches_the_caller(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write_chrome_trace(tmp_path / "file" / "trace.json", {"traceEvents": []})
