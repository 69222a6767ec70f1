"""A validator of the trace-event format, as far as apss-cp writes it."""

from __future__ import annotations

from itertools import groupby, pairwise
from numbers import Real
from typing import Any

FIELDS: dict[str, dict[str, type]] = {
    "M": {"name": str, "ph": str, "pid": int, "tid": int, "args": dict},
    "X": {"name": str, "cat": str, "ph": str, "ts": Real, "dur": Real, "pid": int, "tid": int, "args": dict},
}
"""What an event of each phase must have, and of which type."""
OPTIONAL = {"cname"}


def complete(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The complete events."""
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def by_thread(trace: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """The complete events of each thread, in the file's order."""

    def thread(event: dict[str, Any]) -> tuple[int, int]:
        return event["pid"], event["tid"]

    return {key: list(events) for key, events in groupby(sorted(complete(trace), key=thread), key=thread)}


def check_trace(trace: dict[str, Any]) -> None:
    """Fails where the trace is not one: fields, types, signs, order in time, overlaps on a thread, threads' names."""
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    named = set()
    for event in trace["traceEvents"]:
        assert event.get("ph") in FIELDS, f"ph of {event}"
        fields = FIELDS[event["ph"]]
        assert set(fields) <= set(event) <= set(fields) | OPTIONAL, f"fields of {event}"
        for name, kind in fields.items():
            assert isinstance(event[name], kind), f"{name} of {event}"
        assert event["name"], f"name of {event}"
        if event["ph"] == "M":
            named |= {(event["pid"], event["tid"])} if event["name"] == "thread_name" else set()
        else:
            assert event["ts"] >= 0, f"ts of {event}"
            assert event["dur"] > 0, f"dur of {event}"
            assert (event["pid"], event["tid"]) in named, f"thread of {event} has no name"
    assert [e["ts"] for e in complete(trace)] == sorted(e["ts"] for e in complete(trace)), "not in order of time"
    for thread, events in by_thread(trace).items():
        for one, other in pairwise(events):
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-6, f"{one} and {other} overlap on {thread}"
