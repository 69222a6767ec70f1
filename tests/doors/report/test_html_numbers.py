"""The numbers of the page are those of the JSON document, and its bars and boxes are as long as they say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.report.document import evaluation_document
from cpsolver.doors.report.html.page import evaluation_page
from cpsolver.doors.report.html.sections import MEMORY_NAMES
from cpsolver.doors.report.pipeline_run import run_pipeline
from cpsolver.doors.report.pipeline_view import windows
from cpsolver.doors.report.text import PART_NAMES
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.inputs.text import about, count, percent, seconds
from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.rules import violations
from tests.support.command import in_tmp, messages, run, write  # noqa: F401
from tests.support.html_page import Element, parse
from tests.support.pictured import PLANS, judged

SPEC = """\
model: llama2-7b
cluster: {num_gpus: 16, chips: {a800: 8, h800: 8}}
training: {global_batch_size: 64, sequence_length: 2048}
search: {top: 3, pin: {pp: 4}}
"""
TOO_BIG = """\
model: llama2-70b
cluster: {num_gpus: 8, chips: a800}
training: {global_batch_size: 8, sequence_length: 4096}
search: {pin: {vpp: 1}}
"""


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Element, str]:
    """The JSON document, the page and the terminal's report of one search's answer."""
    folder = tmp_path_factory.mktemp("solved")
    spec, page = folder / "spec.yaml", folder / "report.html"
    spec.write_text(SPEC, encoding="utf-8")
    result = run("solve", str(spec), "--json", "--html", str(page))
    assert (result.exit_code, messages(result)) == (0, "")
    return json.loads(result.stdout), parse(page.read_text(encoding="utf-8")), run("solve", str(spec), "--full").stdout


def share(style: str, what: str) -> float:
    return float(re.search(rf"{what}:([\d.]+)%", style)[1]) / 100  # type: ignore[index]


def bars(section: Element) -> list[Element]:
    """The bars that are not intervals."""
    return [row for chart in section.all("div", class_="bars") for row in chart.all("div")]


def test_the_table_of_plans_has_the_documents_numbers(solved: Any) -> None:
    document, page, _ = solved
    rows = page.one("section", id="plans").one("table").rows()
    plans = document["plans"]
    assert [plan["added"] for plan in plans].count(False) == 3
    assert rows["step time"] == [seconds(plan["step_time_s"]) for plan in plans]
    assert rows["tokens/s"] == [count(plan["throughput_tokens_per_s"]) for plan in plans]
    assert rows["tokens/s per GPU"] == [f"{plan['throughput_tokens_per_s_per_gpu']:,.1f}" for plan in plans]
    assert rows["MFU"] == [percent(plan["mfu"]) for plan in plans]
    assert rows["microbatches"] == [count(plan["microbatches"]) for plan in plans]
    assert rows["tp × pp × dp"] == [
        " × ".join(str(plan["strategy"][name]) for name in ("tp", "pp", "dp")) for plan in plans
    ]
    assert rows["compute"] == [percent(plan["breakdown_s"]["compute"] / plan["step_time_s"]) for plan in plans]


def test_what_differs_is_marked_and_nothing_else(solved: Any) -> None:
    document, page, _ = solved
    for row in page.one("section", id="plans").all("tr"):
        cells = row.all("td")
        marked = ["differs" in cell.attributes.get("class", "").split() for cell in cells]
        same = "same" in row.attributes.get("class", "").split()
        if len(cells) == len(document["plans"]):
            assert marked == [len({cell.text for cell in cells}) > 1] * len(cells)
            assert same == (not marked[0])


def test_the_tiles_have_the_best_plans_numbers(solved: Any) -> None:
    document, page, _ = solved
    best = document["plans"][0]
    tiles = {tile.one("dt").text: [cell.text for cell in tile.all("dd")] for tile in page.one("dl").all("div")}
    step, low, high = (best[f"step_time_{end}s"] for end in ("", "low_", "high_"))
    unit = "ms" if step < 1 else "s"
    interval = f"80 % interval {about(low, step)} to {about(high, step)} {unit}"
    assert tiles["step time"] == [f"{about(step)} {unit}", interval]
    assert tiles["tokens/s"][0] == count(best["throughput_tokens_per_s"])
    assert tiles["MFU"][0] == percent(best["mfu"])
    fullest = max(stage["memory_gib"]["total"] / stage["capacity_gib"] for stage in best["stages"])
    assert tiles["memory, fullest"][0] == percent(fullest)


def test_the_time_sums_to_the_step_in_numbers_and_lengths(solved: Any) -> None:
    document, page, _ = solved
    best, section = document["plans"][0], page.one("section", id="time")
    step = best["step_time_s"]
    told = section.all("table")[0].rows()
    for key, value in best["breakdown_s"].items():
        if key != "tensor_parallel" and value > 1e-9 * step:
            assert told[PART_NAMES[key]] == [seconds(value, of=step), percent(value / step)]
    assert told["step"] == [seconds(step), "100.0 %"]
    for row in bars(section):
        parts = row.one("span", class_="track").all("i")
        assert sum(share(part.attributes["style"], "width") for part in parts) == pytest.approx(1, abs=1e-3)
    for row in section.all("table")[1].rows().values():
        assert row[-1] in ("total", seconds(step))


def test_every_stage_has_its_time_and_memory(solved: Any) -> None:
    document, page, _ = solved
    best = document["plans"][0]
    table = page.one("section", id="memory").one("table").rows()
    assert table[""] == [*MEMORY_NAMES.values(), "total"]
    for stage in best["stages"]:
        wanted = [f"{stage['memory_gib'][name]:.1f} GiB" for name in (*MEMORY_NAMES, "total")]
        assert wanted in table.values()
        note = f"{stage['microbatch_s']['total'] * 1e3:,.1f} ms a microbatch"
        assert note in [row.one("span", class_="note").text for row in bars(page.one("section", id="time"))]
    largest = max(stage["capacity_gib"] for stage in best["stages"])
    first, drawn = best["stages"][0], bars(page.one("section", id="memory"))[0].one("span", class_="track")
    widths = [share(part.attributes["style"], "width") for part in drawn.all("i")]
    sizes = [first["memory_gib"][name] for name in MEMORY_NAMES]
    assert widths == pytest.approx([size / largest for size in sizes if size > 0], abs=1e-5)
    assert share(drawn.one("b").attributes["style"], "left") == pytest.approx(first["capacity_gib"] / largest, abs=1e-5)


def test_intervals_are_drawn_where_they_are_and_overlaps_are_marked(solved: Any) -> None:
    document, page, _ = solved
    section = page.one("section", id="uncertainty")
    scale = max(plan["step_time_high_s"] for plan in document["plans"]) * 1.02
    for row, plan in zip(section.all("figure")[0].one("div", class_="bars").all("div"), document["plans"], strict=True):
        (part,), (line,) = row.all("i"), row.all("b")
        low, high = plan["step_time_low_s"], plan["step_time_high_s"]
        assert share(part.attributes["style"], "left") == pytest.approx(low / scale, abs=1e-5)
        assert share(part.attributes["style"], "width") == pytest.approx((high - low) / scale, abs=1e-5)
        assert share(line.attributes["style"], "left") == pytest.approx(plan["step_time_s"] / scale, abs=1e-5)
        assert ("tie" in row.attributes.get("class", "")) == plan["tie_with_best"]
    assert "Chance that plan 1 is truly the" in section.text


def test_the_proof_accounts_for_every_candidate(solved: Any) -> None:
    document, page, _ = solved
    rows = [[cell.text for cell in row.all("td")] for row in page.one("section", id="proof").all("table")[-1].all("tr")]
    told = {what.split(":")[0]: number for number, what in rows}
    proof = document["proof"]
    assert told["candidates"] == count(proof["considered"])
    for rule, number in proof["refused"].items():
        assert told[f"cut by {rule}"] == count(number)
    ended = [int(number.replace(",", "")) for number, _ in rows[1:]]
    assert sum(ended) == proof["considered"]
    assert "gap 0 %" in page.one("section", id="proof").text


def test_the_texts_are_the_terminals(solved: Any) -> None:
    _, page, terminal = solved
    flat = " ".join(terminal.split())
    for paragraph in (*page.one("header").all("p"), *page.one("section", id="basis").all("p")):
        said = " ".join(paragraph.text.split())
        if "Proven: " not in said and paragraph.attributes.get("class") != "brand" and "tp " not in said:
            assert said in flat or said.startswith("The pipeline: "), said


@pytest.mark.parametrize("name", [name for name, plan in PLANS.items() if plan.pp > 1])
def test_boxes_stand_where_the_schedule_has_them(name: str) -> None:
    problem, strategy, evaluation = judged(name)
    page = parse(evaluation_page(problem, strategy, evaluation, violations(problem, strategy)))
    run_of = run_pipeline(strategy, evaluation, strategy.microbatches(problem.batch), 1_000_000)
    rows = page.one("section", id="timeline").one("svg").all("g")
    assert len(rows) == strategy.pp
    for row, spans in zip(rows, run_of.by_stage, strict=True):
        wanted = [
            span
            for low, high in windows(run_of)
            for span in spans
            if span.kind != "idle" and span.end_s > low and span.start_s < high
        ]
        boxes = [box for box in row.all("rect") if box.attributes["class"] != "k-idle"]
        assert [box.attributes["class"] for box in boxes] == [f"k-{span.kind}" for span in wanted]
        backdrop = sum(float(box.attributes["width"]) for box in row.all("rect", class_="k-idle"))
        per_second = backdrop / sum(high - low for low, high in windows(run_of))
        for box, span in zip(boxes, wanted, strict=True):
            if all(span.end_s <= high or span.start_s >= high for _, high in windows(run_of)) and box is not boxes[0]:
                seen = min(
                    span.end_s - span.start_s, span.end_s - max(low for low, _ in windows(run_of) if low < span.end_s)
                )
                assert float(box.attributes["width"]) == pytest.approx(seen * per_second, abs=0.02)
        texts = [text.text for text in row.all("text")]
        stage = spans[0].stage
        assert texts[-1] == percent(float(run_of.idle_share[stage]))


@pytest.mark.full
def test_a_result_without_plans_has_its_reasons() -> None:
    result = run("solve", write("spec.yaml", TOO_BIG), "--json", "--html", "report.html")
    assert result.exit_code == 3
    page, document = parse(Path("report.html").read_text(encoding="utf-8")), json.loads(result.stdout)
    assert [item.text for item in page.one("section", id="reasons").all("li")] == document["reasons"]
    assert "There is no plan: proven for all of" in page.one("header").text
    assert {section.attributes["id"] for section in page.all("section")} == {"reasons", "proof", "basis"}


def test_a_plan_that_breaks_rules_has_them_all_and_its_numbers() -> None:
    problem, _, _ = judged("1f1b")
    heavy = Strategy(1, 1, 32, 1, 1, False, False, False, (StageGroup("a800", (32,)),))
    found, evaluation = violations(problem, heavy), evaluate(problem, heavy)
    page = parse(evaluation_page(problem, heavy, evaluation, found))
    assert found
    assert [item.text for item in page.one("section", id="violations").all("li")] == [str(one) for one in found]
    (plan,) = evaluation_document(problem, heavy, evaluation, found)["plans"]
    stage = plan["stages"][0]
    full = stage["memory_gib"]["total"] / stage["capacity_gib"]
    assert full > 1
    assert f"{full * 100:.0f} %" in page.one("section", id="memory").text
    assert (
        sum(share(i.attributes["style"], "width") for i in bars(page.one("section", id="memory"))[0].all("i")) < 1.001
    )
