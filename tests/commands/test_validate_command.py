"""`apss-cp validate`: rows in, scores and reasons out, for people, machines and browsers."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len
from rich.console import Console

from cpsolver.doors.report import progress
from cpsolver.doors.report.scatter import scatter_html
from cpsolver.doors.report.validation import validation_report
from cpsolver.evidence.runs.plan import Unpredictable, placed_plan
from cpsolver.evidence.runs.run import MeasuredRun, Prediction
from cpsolver.evidence.runs.validation import Validation, validate
from tests.support.command import in_tmp, run, write  # noqa: F401
from tests.support.measured import prediction, runs, table

ROWS = (
    {"id": "near"},
    {"id": "far", "source": "another <lab> & co", "step_time_s": 5.0, "peak_mem_gib": ""},
    {"id": "partial", "mbs": "", "vpp": "", "complete": 0},
    {"id": "wrong", "tp": "x", "sharding": "zero9"},
    {"id": "beyond", "framework": "unheard-of"},
)


def predict(run: MeasuredRun) -> Prediction:
    """9 s for every run; frameworks that nobody knows cannot be predicted."""
    if run.framework == "unheard-of":
        raise Unpredictable("no stack profile stands for it", "framework")
    return prediction(9.0, 45.0)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpsolver.evidence.runs.validation.predict", predict)


@pytest.fixture
def cases(fake: None) -> str:
    return write("cases.csv", table(*ROWS))


def document(*args: str) -> dict[str, Any]:
    def no_constants(word: str) -> None:
        raise AssertionError(word)

    found: dict[str, Any] = json.loads(run("validate", *args, "--json").stdout, parse_constant=no_constants)
    return found


def test_every_row_is_in_the_document_with_its_numbers_or_its_reason(cases: str) -> None:
    found = document(cases)
    rows = {row["id"]: row for row in found["rows"]}
    assert list(rows) == ["near", "far", "partial", "wrong", "beyond"]
    near = rows["near"]
    assert (near["step_time_s_predicted"], near["step_time_s_low"], near["step_time_s_measured"]) == (9.0, 8.1, 10.0)
    assert (near["peak_mem_gib_predicted"], near["peak_mem_gib_measured"], near["skipped"]) == (45.0, 50.0, None)
    assert near["error"] == pytest.approx(-0.1)
    assert (near["source"], near["chip"], near["stack"]) == ("a lab", "a100", "nemo")
    assert rows["far"]["peak_mem_gib_measured"] is None
    assert rows["partial"]["skipped"] == "incomplete: vpp, mbs"
    assert rows["wrong"]["skipped"] == "wrong: tp, sharding"
    assert rows["beyond"]["skipped"] == "no stack profile stands for it"
    assert rows["beyond"]["step_time_s_predicted"] is None
    assert rows["beyond"]["step_time_s_measured"] == 10.0


def test_the_summary_scores_what_was_predicted(cases: str) -> None:
    summary = document(cases)["summary"]
    assert (summary["rows"], summary["predicted"]) == (5, 2)
    assert summary["step_time"]["overall"]["mean_abs_error"] == pytest.approx((0.1 + 0.8) / 2)
    assert summary["step_time"]["by_source"]["a lab"]["bias"] == pytest.approx(-0.1)
    assert summary["memory"]["by_kind"]["device"]["runs"] == 1
    assert summary["rank"]["kendall_tau"] is None
    assert summary["worst"] == ["far", "near"]


def test_troubles_are_told_on_stderr_and_in_the_document(cases: str) -> None:
    result = run("validate", cases, "--json")
    assert result.exit_code == 0
    assert "cases.csv:5 row wrong, tp = 'x'" in result.stderr
    troubles = json.loads(result.stdout)["troubles"]
    assert [trouble["where"] for trouble in troubles] == ["row wrong, tp", "row wrong, sharding"]


def test_the_report_names_what_was_left_out_and_what_is_furthest_off(cases: str) -> None:
    text = run("validate", cases, "--worst", "1").stdout
    assert "2 of 5 measured runs predicted: step time off by 45.0 % on average" in text
    assert "far: measured 5.000 s, predicted 9.000 s, +80.0 %" in text
    assert "pipeline bubble 10.0 %" in text
    assert "near: measured" not in text
    assert re.search(r"1  incomplete: vpp, mbs\n +partial\n", text)


def test_nothing_predicted_is_exit_2(fake: None) -> None:
    path = write("cases.csv", table(*ROWS[2:]))
    result = run("validate", path)
    assert result.exit_code == 2
    assert "none of the runs could be predicted" in result.stderr
    assert "None of 3 measured runs" in result.stdout
    assert document(path)["summary"]["step_time"]["overall"] is None


def test_without_a_table_the_published_runs_are_predicted(fake: None) -> None:
    found = document()
    assert len(found["rows"]) == 759
    assert len(found["summary"]["rank"]["groups"]) > 5


def test_standard_input_and_output_files(fake: None) -> None:
    result = run("validate", "-", "--json", "-o", "answer.json", "--scatter", "plot.html", stdin=table({}))
    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads(Path("answer.json").read_text(encoding="utf-8"))["summary"]["predicted"] == 1
    assert Path("plot.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_files_that_must_not_be_written_are_refused_first(cases: str) -> None:
    for args in (("-o", cases), ("--scatter", cases), ("-o", "a.html", "--scatter", "./a.html")):
        assert run("validate", cases, *args).exit_code == 2
    assert Path(cases).read_text(encoding="utf-8") == table(*ROWS)


def test_a_bad_table_is_told_as_json_too(fake: None) -> None:
    result = run("validate", write("bad.csv", "id\n"), "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["status"] == "bad_input"


BROKEN = {"memory": ("stage 0 on a100 needs 90.00 GiB, 76.80 GiB are free for it", "stage 1 on a100 needs more")}


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> str:
    def predict(run: MeasuredRun) -> Prediction:
        return replace(prediction(9.0), rules_broken=BROKEN if run.id == "near" else {})

    monkeypatch.setattr("cpsolver.evidence.runs.validation.predict", predict)
    return write("cases.csv", table(*ROWS[:3]))


def test_the_rules_that_a_real_run_breaks_are_told_with_its_row(refused: str) -> None:
    found = document(refused)
    near, far, partial = found["rows"]
    (broken,) = near["rules_broken"]
    assert (broken["rule"], broken["words"]) == ("memory", "every stage fits its device's memory less the margin")
    assert broken["messages"] == list(BROKEN["memory"])
    assert (far["rules_broken"], partial["rules_broken"]) == ([], None)
    assert found["summary"]["rules_broken"] == {"runs": 1, "by_rule": {"memory": 1}}


def test_the_report_counts_the_rules_that_real_runs_break(refused: str) -> None:
    text = run("validate", refused).stdout
    assert "1 of 2 runs break a rule of the planner: memory 1." in text
    assert "breaks memory: stage 0 on a100 needs 90.00 GiB" in text
    assert re.search(r"1  memory: every stage fits .*\n +near\n", text)


def test_where_no_rule_is_broken_the_report_says_nothing_of_rules(cases: str) -> None:
    assert "rule" not in run("validate", cases).stdout


# The parts below the command.


def test_progress_is_told_run_by_run(tmp_path: Path) -> None:
    told = []
    validate(runs(tmp_path, {"id": "a"}, {"id": "b"}), predict, lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]


def test_a_bar_appears_on_a_terminal_and_a_line_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(progress, "_QUIET_S", -1.0)
    for stream, line in ((Terminal(), False), (io.StringIO(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress.Bar("predicting") as bar:
            bar(1, 2)
        assert "predicting" in stream.getvalue()
        assert ("predicting: 1 of 2 done" in stream.getvalue()) is line
        assert ("\x1b" in stream.getvalue()) is not line


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 0.0])
def test_a_prediction_that_is_no_time_is_not_scored(tmp_path: Path, wrong: float) -> None:
    found = validate(runs(tmp_path, {}), lambda run: prediction(wrong))
    assert not found.scored
    assert found.outcomes[0].skipped is not None


def test_a_row_that_makes_no_model_is_left_out_with_the_reason(tmp_path: Path) -> None:
    row = {"heads": 7, "kv_heads": 7, "tp": 1, "dp": 8}

    def of_a_case(run: MeasuredRun) -> Prediction:
        placed_plan(run)
        return predict(run)

    found = validate(runs(tmp_path, row), of_a_case)
    assert found.outcomes[0].skipped == "no sound model: hidden 4096 is not a multiple of heads 7: give head_dim"


def many(tmp_path: Path) -> Validation:
    rows = [
        {"id": f"a run with a rather long name {number}", "source": f"Source {number % 40} " + "of long name " * 5}
        for number in range(80)
    ]
    unknown = [{"id": f"unknown{number}", "framework": "unheard-of"} for number in range(30)]
    return validate(runs(tmp_path, *rows, *unknown), predict)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_no_line_is_too_wide_and_nothing_is_cut_short(tmp_path: Path, width: int) -> None:
    text = io.StringIO()
    Console(file=text, width=width, highlight=False).print(validation_report(many(tmp_path)))
    assert max(map(cell_len, text.getvalue().splitlines())) <= width
    assert "…" not in text.getvalue()
    assert all(f"unknown{number}" in text.getvalue() for number in range(30))


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


def test_the_scatter_page_stands_alone_and_holds_every_point(tmp_path: Path) -> None:
    page = scatter_html(many(tmp_path))
    parser = _Tags()
    parser.feed(page)
    assert not {"script", "link", "img", "iframe"} & set(parser.tags)
    assert "http" not in page
    plots = [ElementTree.fromstring(plot) for plot in re.findall(r'<svg class="plot".*?</svg>', page, flags=re.DOTALL)]
    assert [len(plot.findall("g[@class='points']/*/title")) for plot in plots] == [80, 80]


def test_text_of_the_table_is_escaped(tmp_path: Path) -> None:
    row = {"id": "<script>1</script>", "source": '"><img src=x>'}
    page = scatter_html(validate(runs(tmp_path, row), predict))
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page


def test_the_page_without_any_point(tmp_path: Path) -> None:
    assert "Nothing was measured and predicted." in scatter_html(Validation(()))
