"""The trace of a plan: what the evaluation says takes time stands in it, no more and no less."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.report import plan_trace as module
from cpsolver.doors.report import terminal_timeline as terminal
from cpsolver.doors.report.html import timeline as boxes
from cpsolver.doors.report.pipeline_run import KINDS
from cpsolver.doors.report.plan_trace import cut_note, plan_trace
from cpsolver.evaluation.timeline import simulated_step_s
from cpsolver.search.result import Plan
from tests.support.checkout import ROOT
from tests.support.command import in_tmp, messages, run, write  # noqa: F401
from tests.support.pictured import PLANS, judged
from tests.support.trace_format import by_thread, check_trace, complete

EXAMPLES = ROOT / "examples"
SMALL = """\
model: llama2-7b
cluster: {num_gpus: 16, chips: {a800: 8, h800: 16}}
training: {global_batch_size: 32, sequence_length: 2048}
search: {top: 2, pin: {pp: 4, vpp: 1, tp: 1}}
"""


def traced(name: str) -> dict[str, Any]:
    problem, strategy, evaluation = judged(name)
    trace = plan_trace(problem, Plan(1, strategy, evaluation, 0.0))
    check_trace(trace)
    return trace


def spent_s(events: list[dict[str, Any]]) -> Counter[str]:
    """Seconds by category."""
    total: Counter[str] = Counter()
    for event in events:
        total[event["cat"]] += event["dur"] / 1e6
    return total


@pytest.mark.parametrize("name", PLANS)
def test_a_stage_spends_what_its_evaluation_says(name: str) -> None:
    _, _, evaluation = judged(name)
    trace = traced(name)
    end_s = trace["otherData"]["trace_end_s"]
    for stage, of_stage in enumerate(evaluation.stages):
        events = by_thread(trace)[0, stage]
        spent = spent_s(events)
        each = of_stage.sized or (of_stage,) * 16
        assert sum(spent.values()) == pytest.approx(end_s)  # nothing overlaps and nothing is missing
        assert spent["forward"] == pytest.approx(sum(one.forward_s for one in each))
        assert spent["recompute"] == pytest.approx(sum(one.recompute_s for one in each), abs=1e-7)
        assert spent["recompute"] + spent["backward"] == pytest.approx(sum(one.backward_s for one in each))
        assert spent["data_parallel"] == pytest.approx(of_stage.data_parallel_s, abs=1e-8)
        assert spent["optimizer"] == pytest.approx(of_stage.optimizer_s, abs=1e-8)
        idle_s = trace["otherData"]["stage_idle_share"][stage] * trace["otherData"]["pipeline_simulated_s"]
        idle_s += trace["otherData"]["after_pipeline_s"] - of_stage.after_s
        assert spent["idle"] == pytest.approx(idle_s, abs=1e-5 * end_s)


@pytest.mark.parametrize("name", PLANS)
def test_it_ends_with_the_simulated_step_and_tells_both_times(name: str) -> None:
    problem, strategy, evaluation = judged(name)
    trace = traced(name)
    about, after = trace["otherData"], evaluation.breakdown_s["data_parallel"] + evaluation.breakdown_s["optimizer"]
    ends_s = max(event["ts"] + event["dur"] for event in complete(trace)) / 1e6
    assert ends_s == pytest.approx(about["trace_end_s"], abs=1e-8)
    assert about["trace_end_s"] == pytest.approx(about["pipeline_simulated_s"] + after, rel=1e-12)
    simulated_s = simulated_step_s(strategy, evaluation, strategy.microbatches(problem.batch))
    assert about["simulated_step_time_s"] == pytest.approx(simulated_s, rel=1e-12)
    assert about["step_time_s"] == evaluation.step_time_s
    assert about["pipeline_closed_form_s"] == pytest.approx(evaluation.step_time_s - after, rel=1e-12)
    if name == "one stage":
        assert ends_s == pytest.approx(evaluation.step_time_s, rel=1e-7)
    if name == "sizes":  # a transfer delays here, and takes a stage's time there
        assert 0.98 * evaluation.step_time_s < ends_s < evaluation.step_time_s


@pytest.mark.parametrize(("name", "passed"), [("1f1b", 3), ("interleaved", 15), ("breadth first", 15), ("sizes", 3)])
def test_transfers_stand_between_the_passes_that_they_join(name: str, passed: int) -> None:
    trace = traced(name)
    sent = [event for event in complete(trace) if event["cat"] == "p2p"]
    assert len(sent) == 2 * passed * 16
    passes = {event["name"].split()[0] for event in sent}
    assert passes == {f"{kind}{microbatch}" for kind in "FB" for microbatch in range(16)}
    forward, last = ("forward",), ("recompute", "backward")
    for event in sent:
        where, kinds = event["args"], forward if event["name"][0] == "F" else last
        ends, starts = (
            {
                nanoseconds(one["ts"] + one["dur"] * (at == "from_stage"))
                for one in by_stage(trace, where[at])
                if one["cat"] in kinds and one["args"]["microbatch"] == where["microbatch"]
            }
            for at in ("from_stage", "to_stage")
        )
        assert nanoseconds(event["ts"]) in ends
        assert max(starts) >= nanoseconds(event["ts"] + event["dur"])


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def by_stage(trace: dict[str, Any], stage: int) -> list[dict[str, Any]]:
    return by_thread(trace)[0, stage]


def test_one_stage_sends_nothing_and_waits_for_nothing() -> None:
    assert set(spent_s(complete(traced("one stage")))) <= {"forward", "backward", "data_parallel", "optimizer"}


def test_threads_say_stage_chip_and_layers() -> None:
    named = [e["args"]["name"] for e in traced("1f1b")["traceEvents"] if e["name"] == "thread_name"]
    assert named[:2] == ["stage 0: h800, 8 layers", "stage 1: h800, 8 layers"]
    assert {"activations, stage 0 to 1", "gradients, stage 1 to 0"} <= set(named)
    split = traced("zero bubble")
    assert split["otherData"]["drawn_as"] == "zb1p"
    weights = [e["name"] for e in by_stage(split, 0) if e["name"].startswith("W")]
    assert weights == [f"W{microbatch}" for microbatch in range(16)]


def test_a_long_step_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cut_note(traced("1f1b")) == ""
    monkeypatch.setattr(module, "MOST_EVENTS", 5 * 2 * 4 * 8)
    trace = traced("1f1b")
    assert (trace["otherData"]["microbatches_shown"], trace["otherData"]["microbatches"]) == (8, 16)
    assert trace["otherData"]["simulated_step_time_s"] is None
    assert len(complete(trace)) <= module.MOST_EVENTS
    assert cut_note(trace) == "the first 8 of 16 microbatches are in"


# The option.


def test_solve_writes_the_plan_that_is_asked_for() -> None:
    spec = write("spec.yaml", SMALL)
    result = run("solve", spec, "--json", "--trace", "step.json", "--trace-plan", "2")
    assert (result.exit_code, messages(result)) == (0, "")
    trace, plan = json.loads(Path("step.json").read_text(encoding="utf-8")), json.loads(result.stdout)["plans"][1]
    check_trace(trace)
    assert trace["otherData"]["rank"] == 2
    assert trace["otherData"]["step_time_s"] == plan["step_time_s"]
    assert trace["otherData"]["trace_end_s"] == plan["simulated_step_time_s"]
    assert trace["otherData"]["trace_end_s"] == pytest.approx(plan["step_time_s"], rel=0.03)


def test_evaluate_writes_its_plan() -> None:
    spec, plan = EXAMPLES / "seed-published.yaml", EXAMPLES / "seed-published-strategy.yaml"
    result = run("evaluate", str(spec), "--strategy", str(plan), "--trace", "step.json")
    assert result.exit_code == 0
    trace = json.loads(Path("step.json").read_text(encoding="utf-8"))
    check_trace(trace)
    assert trace["otherData"]["trace_end_s"] == pytest.approx(trace["otherData"]["step_time_s"], rel=0.03)


@pytest.mark.full
def test_without_a_plan_there_is_no_trace_and_a_note() -> None:
    spec = write("spec.yaml", SMALL.replace("llama2-7b", "llama2-70b").replace("16, chips", "8, chips"))
    result = run("solve", spec, "--trace", "step.json")
    assert result.exit_code == 3
    assert "note: there is no plan 1: no trace was written to step.json" in result.stderr
    assert not Path("step.json").exists()


def test_options_that_make_no_sense_are_refused_before_the_search() -> None:
    spec = write("spec.yaml", SMALL)
    wrong = run("solve", spec, "--trace", "no/step.json", "--html", spec, "-o", "./no/step.json")
    assert wrong.exit_code == 2
    assert "there is no directory no" in wrong.stderr
    assert "is an input of this command" in wrong.stderr
    assert "is the file of --output and of --trace: give two" in wrong.stderr
    more = run("solve", spec, "--trace", "step.json", "--trace-plan", "3")
    assert "--trace-plan = 3: is not a plan of this search (allowed: 1 to 2" in more.stderr
    alone = run("solve", spec, "--trace-plan", "1", "--json")
    assert "give --trace FILE too" in json.loads(alone.stdout)["troubles"][0]["message"]
    assert {more.exit_code, alone.exit_code} == {2}


def test_the_document_names_every_category_and_limit() -> None:
    told = (EXAMPLES.parent / "docs" / "reports.md").read_text(encoding="utf-8")
    for category in (*KINDS, "p2p"):
        assert f"\n| `{category}` |" in told, category
    for limit in (module.MOST_EVENTS, module.MOST_EVENTS // module._A_PASS, terminal._MOST_PASSES, boxes._MOST_BOXES):
        assert f"{limit:,}" in told, limit
    for name in re.findall(r"`(\w+_s|drawn_as|microbatches_shown)`", told.split("`otherData`")[1].split("##")[0]):
        assert name in traced("1f1b")["otherData"] or name == "closed_form_s", name
