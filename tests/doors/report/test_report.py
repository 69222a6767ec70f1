import io
import json
import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding

from cpsolver.doors.report import progress as progress_module
from cpsolver.doors.report.breakdown import MemoryByStage, stage_times
from cpsolver.doors.report.catalogue import chips_report, models_report
from cpsolver.doors.report.console import evaluation_report, result_report, tight
from cpsolver.doors.report.document import dumps, result_document
from cpsolver.doors.report.interval import interval_of
from cpsolver.doors.report.plan_trace import MOST_EVENTS, write_traces
from cpsolver.doors.report.progress import Telling, Waiting, Watcher, describe, how_far
from cpsolver.doors.report.text import assumptions
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.inputs.text import about, bar, elapsed, percent, runs, seconds
from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.rules import Violation, violations
from cpsolver.search.result import Progress, Result
from cpsolver.search.search import search
from cpsolver.spec.spec import parse_spec

SECTIONS = ("Plans", "Where the time goes", "Where the memory goes", "Proof", "What this is")


def problem_of(**more: object) -> Problem:
    spec = {
        "model": "llama2-70b",
        "cluster": {"num_gpus": 256, "chips": {"a800": 128, "h800": 160}},
        "training": {"global_batch_size": 512, "sequence_length": 4096},
        "search": {"top": 5},
    }
    return resolve(parse_spec({**spec, **more}))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return problem_of()


@pytest.fixture(scope="module")
def result(problem: Problem) -> Result:
    return search(problem)


def render(report: object, width: int = 80) -> str:
    text = io.StringIO()
    Console(file=text, width=width, highlight=False).print(report)
    return text.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_every_section_is_there_and_no_line_too_wide(problem: Problem, result: Result, width: int) -> None:
    text = render(result_report(problem, result), width)
    for title in SECTIONS:
        assert f"\n{title}" in text
    assert max(map(cell_len, text.splitlines())) <= width
    assert "\x1b" not in text
    for plan in result.plans:
        assert f"plan {plan.rank}" in text
        assert seconds(plan.evaluation.step_time_s) in text


def test_nothing_is_cut_short_at_80_columns(problem: Problem, result: Result) -> None:
    text = render(result_report(problem, result))
    assert "…" not in text
    for word in ("param", "grads", "optim", "activ", "buff", "frag", "frame", "total", "usable", "full"):
        assert f" {word} " in text.replace("\n", " ")


def test_the_step_time_comes_with_its_interval(problem: Problem, result: Result) -> None:
    text = render(result_report(problem, result))
    best = result.plans[0]
    interval = interval_of(problem, best.strategy, best.evaluation.step_time_s)
    low, high = (about(each, best.evaluation.step_time_s) for each in (interval.low_s, interval.high_s))
    assert f"per step (80 % interval {low} to {high} s)" in " ".join(text.split())
    (row,) = (line for line in text.splitlines()[:20] if line.startswith("   80 % interval"))
    assert f"{low}–{high}" in row
    assert f"80 % interval {low} to {high} s" in " ".join(
        render(evaluation_report(problem, best.strategy, best.evaluation, [])).split()
    )


def test_the_chance_that_the_first_plan_is_the_fastest_is_told(problem: Problem, result: Result) -> None:
    first, second, *_ = result.plans
    far = replace(second, rank=3, evaluation=replace(second.evaluation, step_time_s=1e3 * first.evaluation.step_time_s))
    told = "Chance that plan 1 is truly the fastest of these:"
    together = " ".join(render(result_report(problem, Result("optimal", (first, second, far), result.proof))).split())
    assert 20 < int(re.findall(rf"{told} (\d+) %", together)[0]) < 80
    assert "< 1 %" in together[together.index("P(fastest)") : together.index("tokens/s per GPU")]
    sure = render(result_report(problem, Result("optimal", (first, replace(far, rank=2)), result.proof)))
    assert f"{told} > 99 %" in " ".join(sure.split())
    assert told not in " ".join(render(result_report(problem, Result("optimal", (first,), result.proof))).split())


def sharded() -> tuple[Problem, Strategy]:
    problem = problem_of(model="llama2-7b", cluster={"num_gpus": 16, "chips": "a800"})
    groups = (StageGroup("a800", (32,), "none", (0,)),)
    return problem, Strategy(1, 1, 16, 1, 1, False, True, True, groups, sharded="parameters")


def times(text: str, first: str = "Where the time goes", end: str = "Where compute goes") -> list[float]:
    lines = text[text.index(first) : text.index(end)].splitlines()[1:]
    return [float(line.split(" s ")[0].split()[-1]) for line in lines if " s " in line and " % " in line + " "]


def test_gathers_of_sharded_weights_are_a_part_of_the_step(problem: Problem, result: Result) -> None:
    *parts, step = times(text := render(evaluation_report(*(plan := sharded()), evaluate(*plan), [])))
    assert "sharded weights and gradients" in text
    assert sum(parts) == pytest.approx(step, abs=0.0005 * len(parts))
    assert "sharded weights" not in render(result_report(problem, result))


def test_a_part_that_takes_no_time_is_left_out(problem: Problem, result: Result) -> None:
    text = render(evaluation_report(*(plan := sharded()), evaluate(*plan), []))
    assert evaluate(*plan).breakdown_s["bubble"] == pytest.approx(0)
    assert "pipeline bubble" not in text
    best = result.plans[0].evaluation
    report = render(result_report(problem, result))
    assert ("\n recomputation " in report) == (best.breakdown_s["recompute"] > 0)


@pytest.mark.parametrize("chip", ["h20", "a800", "ascend_910b1"])
def test_memory_by_stage_fits_80_columns_and_its_rows_sum(chip: str, result: Result) -> None:
    stage = replace(result.plans[0].evaluation.stages[0], chip=chip)
    head, row, *_ = render(Padding(MemoryByStage([stage]), (0, 0, 0, 1))).splitlines()
    assert "…" not in head + row
    assert max(cell_len(head), cell_len(row)) <= 80
    names, cells = head.split(), row.split()
    parts = [float(cells[names.index(name)]) for name in names[3 : names.index("total")]]
    assert len(parts) == 7
    assert sum(parts) == pytest.approx(float(cells[names.index("total")]), abs=0.05 * 8)
    assert ("usable" in names) == (len(chip) < 6)


def test_the_time_breakdown_sums_to_the_step_as_printed(problem: Problem, result: Result) -> None:
    *parts, step = times(render(result_report(problem, result)))
    assert sum(parts) == pytest.approx(step, abs=0.0005 * len(parts))
    assert step == pytest.approx(result.plans[0].evaluation.step_time_s, abs=0.001)


def test_the_operators_of_compute_sum_to_it_as_printed_in_80_columns(problem: Problem, result: Result) -> None:
    text = render(result_report(problem, result))
    found = text[text.index("Where compute goes") : text.index("The pipeline over time")]
    *parts, compute = times(text, "Where compute goes", "The pipeline over time")
    assert sum(parts) == pytest.approx(compute, abs=0.0005 * len(parts))
    assert compute == pytest.approx(result.plans[0].evaluation.breakdown_s["compute"], abs=0.001)
    assert all(name in found for name in ("qkv", "mlp up", "attention", "fit to", "No measurement bears on"))
    assert max(map(cell_len, found.splitlines())) <= 80


def test_the_parts_of_every_plan_sum_to_its_step_and_none_is_nothing_for_all(problem: Problem, result: Result) -> None:
    text = render(result_report(problem, result), 160)
    rows = text[text.index("time, in parts") : text.index("Chance that")].splitlines()[1:-2]
    shares = [[float(cell) for cell in re.findall(r"([\d.]+) %", row)] for row in rows]
    assert {len(row) for row in shares} == {len(result.plans)}
    assert all(max(row) > 0 for row in shares)
    for plan in zip(*shares, strict=True):
        assert sum(plan) == pytest.approx(100, abs=0.05 * len(rows) + 0.1)


def test_the_proof_accounts_for_every_candidate(problem: Problem, result: Result) -> None:
    text = render(result_report(problem, result))
    lines = text[text.index("\nProof") : text.index("\nWhat this is")].splitlines()[2:]
    numbers = [int(line.split()[0].replace(",", "")) for line in lines if line[:9].strip().replace(",", "").isdigit()]
    assert numbers[0] == result.proof.considered == sum(numbers[1:])


def test_a_stopped_search_says_what_could_still_be_gained(problem: Problem, result: Result) -> None:
    plans = tuple(replace(plan, gap=0.034) for plan in result.plans)
    proof = replace(result.proof, stop="interrupted", open=7, bound_s=9.0)
    text = render(result_report(problem, Result("feasible", plans, proof)))
    plain = " ".join(text.split())
    assert "Another plan may be up to 3.4 % faster: 7 candidates" in plain
    assert "were open at the interruption" in plain
    assert "still open, none faster than 9.000 s" in text
    assert "gap 3.4 %" in text


def test_a_stopped_search_that_has_the_best_says_so(problem: Problem, result: Result) -> None:
    proof = replace(result.proof, stop="interrupted", open=7, bound_s=99.0)
    text = render(result_report(problem, Result("feasible", result.plans[:1], proof)))
    assert "Proven the fastest, but 7 candidates" in " ".join(text.split())
    assert "gap 0 %: proven" not in text


def test_a_nearly_full_plan_is_called_tight(problem: Problem, result: Result) -> None:
    plan = result.plans[0]
    stages = tuple(replace(stage, capacity_bytes=stage.memory.total / 0.99) for stage in plan.evaluation.stages)
    tight = replace(plan, evaluation=replace(plan.evaluation, stages=stages))
    assert "filled to 99 %" in render(result_report(problem, Result("optimal", (tight,), result.proof)))
    roomy = tuple(replace(stage, capacity_bytes=stage.memory.total * 2) for stage in plan.evaluation.stages)
    plan = replace(plan, evaluation=replace(plan.evaluation, stages=roomy))
    assert "Tight" not in render(result_report(problem, Result("optimal", (plan,), result.proof)))


@pytest.mark.parametrize(("filled", "warned"), [(0.96, False), (0.98, True), (1.0, True), (1.02, False)])
def test_tight_is_from_97_percent_to_full_and_no_word_for_what_does_not_fit(
    problem: Problem, result: Result, filled: float, warned: bool
) -> None:
    evaluation = result.plans[0].evaluation
    stages = tuple(replace(stage, capacity_bytes=stage.memory.total / filled) for stage in evaluation.stages)
    assert bool(list(tight(problem, replace(evaluation, stages=stages)))) == warned


def test_no_plan_is_told_with_its_reasons(problem: Problem, result: Result) -> None:
    proof = replace(result.proof, bound_s=math.inf)
    text = render(result_report(problem, Result("infeasible", (), proof, ("too big by 3 GiB",))))
    assert "There is no plan" in text
    assert "- too big by 3 GiB" in text
    assert "\nPlans" not in text
    text = render(result_report(problem, Result("unknown", (), replace(proof, stop="time_limit", open=3))))
    assert "No plan found by the time limit" in text


def test_json_has_no_infinity(problem: Problem, result: Result) -> None:
    proof = replace(result.proof, bound_s=math.inf)
    document = json.loads(dumps(result_document(problem, Result("infeasible", (), proof))), parse_constant=pytest.fail)
    assert document["proof"]["bound_s"] is None
    assert document["proof"]["gap"] is None


def test_an_evaluation_lists_what_it_breaks(problem: Problem, result: Result) -> None:
    plan = result.plans[0]
    text = render(
        evaluation_report(problem, plan.strategy, plan.evaluation, [Violation("memory", "stage 0 needs [x]")])
    )
    assert "Not legal: 1 violation." in text
    assert "memory: stage 0 needs [x]" in text
    assert "slower than best" not in text


def deep() -> tuple[Problem, Strategy]:
    problem = problem_of(model="megatron-1t", cluster={"num_gpus": 512, "chips": "a100"}, search={})
    strategy = Strategy(8, 64, 1, 1, 1, True, False, True, (StageGroup("a100", (2,) * 64, "uniform", (1,) * 64),))
    assert {found.rule for found in violations(problem, strategy)} <= {"memory"}
    return problem, strategy


def test_a_deep_pipeline_stays_short() -> None:
    problem, strategy = deep()
    evaluation = evaluate(problem, strategy)
    text = render(MemoryByStage(evaluation.stages))
    assert len(text.splitlines()) < 22
    assert "1–62" in text
    assert "on stages 0 to 63" in stage_times(evaluation.stages)


def test_equal_neighbours_share_a_line(problem: Problem, result: Result) -> None:
    stage = result.plans[0].evaluation.stages[0]
    text = render(MemoryByStage([stage] * 5))
    assert len(text.splitlines()) == 4  # heads, the line, two of explanation
    assert "0–4" in text


@pytest.mark.full
def test_long_traces_are_cut(tmp_path: Path, result: Result) -> None:
    problem = problem_of(training={"global_batch_size": 1_048_576, "sequence_length": 512})
    plan = replace(result.plans[0], strategy=replace(result.plans[0].strategy, mbs=1, dp=16, cp=1))
    told = list(write_traces(problem, Result("optimal", (plan,), result.proof), tmp_path / "cache"))
    assert "the first" in told[0]
    assert "of 65,536 microbatches" in told[0]
    trace = json.loads((tmp_path / "cache" / "plan-1.json").read_text())
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) <= MOST_EVENTS


@pytest.mark.parametrize("report", [models_report, chips_report])
@pytest.mark.parametrize("width", [80, 160])
def test_catalogue_tables_fit(report: Callable[[], object], width: int) -> None:
    assert max(map(cell_len, render(report(), width).splitlines())) <= width


@pytest.mark.parametrize("report", [lambda: models_report("llama-1800b"), lambda: chips_report("ascend_910b")])
def test_catalogue_details_fit(report: Callable[[], object]) -> None:
    text = render(report())
    assert "…" not in text
    assert max(map(cell_len, text.splitlines())) <= 80


def test_what_is_assumed_is_said(problem: Problem) -> None:
    assert any(line.startswith("a800: ") for line in assumptions(problem, ["a800", "h800"]))
    assert "proposal" in assumptions(problem_of(model="llama-1800b"), [])[-1]


def test_what_is_unusual_is_said() -> None:
    longer = "\n".join(
        assumptions(
            problem_of(model="llama-7b", training={"global_batch_size": 512, "sequence_length": 8192}), ["a800"]
        )
    )
    assert "llama-7b was published for 2,048 positions; the sequence has 8,192." in longer
    mixed = problem_of(cluster={"num_gpus": 64, "chips": {"a800": -1, "ascend_910b": -1}})
    assert any("nvidia and huawei in one job" in line for line in assumptions(mixed, ["a800", "ascend_910b"]))


def test_numbers_for_people() -> None:
    assert [seconds(9.5774), seconds(0.0413), seconds(12345.67)] == ["9.577 s", "41.3 ms", "12,345.7 s"]
    assert seconds(0.0413, of=9.0) == "0.041 s"
    assert [elapsed(0.987), elapsed(74.4)] == ["0.99 s", "74 s"]
    assert percent(0.1234) == "12.3 %"
    assert runs([6, 7, 7, 7, 6]) == "6, 7 ×3, 6"
    assert [bar(1, 4), bar(0.5, 4), bar(0, 4), bar(0.5, 4, "ascii")] == ["████", "██", "", "##"]
    assert bar(1e-9, 4) == "▏"


def test_the_status_line_waits_and_verbose_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(9.0, math.inf, 0, 1234, 2, "bounding 512 rows")
    assert describe(progress) == "bound 9.000 s, no plan yet, 0 plans, 1,234 waiting: bounding 512 rows"
    with Watcher() as watcher:
        watcher(progress)
    assert capsys.readouterr().err == ""
    with Watcher(verbose=True) as watcher:
        watcher(progress)
    assert "1,234 waiting" in capsys.readouterr().err


def test_what_is_waited_for_is_told_after_two_seconds_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_module, "_QUIET_S", 0.01)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Waiting("looking for reasons"):
        told = ""
        until = time.monotonic() + 10
        while "looking for reasons" not in told and time.monotonic() < until:
            time.sleep(0.05)
            told += capsys.readouterr().err
    assert "looking for reasons" in told


def test_without_a_terminal_lines_come_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Waiting("nothing takes long"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress_module, "_QUIET_S", 0.01)
    monkeypatch.setattr(progress_module, "_BETWEEN_S", 0.01)
    found = ""
    with Watcher() as watcher:
        watcher(Progress(9.0, 10.0, 1, 1234, 2, "bounding 512 rows"))
        watcher(Progress(9.5, 10.0, 1, 1234, 2, "bounding 512 rows"))
        until = time.monotonic() + 10
        while found.count("50 % proven") < 2 and time.monotonic() < until:
            time.sleep(0.05)
            found += capsys.readouterr().err
    said = r"^\d+ s: 50 % proven, ~\d+ s left; best 10 s, at most 5 % to gain$"
    assert re.search(said, found, re.MULTILINE)
    assert found.count("50 % proven") >= 2
    time.sleep(0.1)
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_a_bound_that_begins_lower_later_is_no_way_back() -> None:
    """Devices that may idle, say, are searched after all of them."""
    told: list[str] = []
    with Telling(told.append).searching() as listen:
        for bound_s in (9.0, 5.0, 7.5):
            listen(Progress(bound_s, 10.0, 1, 1234, 2, ""))
    assert [line.split(";")[0] for line in told[1:]] == ["0 % proven", "0 % proven", "50 % proven, ~1 s left"]


@pytest.mark.parametrize(
    ("bound_s", "best_s", "elapsed_s", "said"),
    [
        (9.0, math.inf, 3.0, "no plan yet, 1,234 candidates open"),
        (9.0, 10.0, 3.0, "0 % proven; best 10 s, at most 10 % to gain"),
        (9.3, 10.0, 40.0, "30 % proven, ~2 min left; best 10 s, at most 7 % to gain"),
        (9.1, 10.0, 2000.0, "10 % proven, ~5 h left; best 10 s, at most 9 % to gain"),
        (10.0, 10.0, 3.0, "best 10 s, proven; looking for the next best"),
        (9.0, 2000.0, 3.0, "0 % proven; best 2,000 s"),  # all there is would be gained
    ],
)
def test_how_far_a_search_is(bound_s: float, best_s: float, elapsed_s: float, said: str) -> None:
    assert how_far(Progress(bound_s, best_s, 1, 1234, 2, ""), 9.0, elapsed_s) == said
