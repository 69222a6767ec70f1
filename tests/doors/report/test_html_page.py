"""The page as a document: it stands alone, is sound, accessible and small, and shows names as text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.report.html import play
from cpsolver.doors.report.html.elements import Html, tag, text
from cpsolver.doors.report.html.page import evaluation_page, result_page
from cpsolver.doors.report.html.play import LaunchText
from cpsolver.doors.report.html.shell import asset, scripts
from cpsolver.doors.report.html.style import STYLE
from cpsolver.doors.report.pipeline_run import run_pipeline
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.inputs.data import package_data
from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.rules import violations
from cpsolver.search.proof_map import proof_map
from cpsolver.search.result import Result
from cpsolver.search.search import search
from cpsolver.spec.spec import parse_spec
from tests.support.html_page import assert_accessible, assert_stands_alone, numbers, parse, unpacked, walk
from tests.support.pictured import PLANS, judged, problem_for

EVIL = "<script>alert(1)</script>"
EVIL_CHIP = "\"><img src=x onerror='alert(2)'>&amp;"
MEGABYTE = 1_000_000
LIBRARY = asset("uplot/uPlot.iife.min.js")


def page_of(name: str) -> str:
    problem, strategy, evaluation = judged(name)
    return evaluation_page(problem, strategy, evaluation, violations(problem, strategy))


def evil_spec() -> dict[str, Any]:
    chip = {
        "peak_tflops": {"bf16": 400},
        "memory": {"capacity_gb": 64, "bandwidth_gb_s": 2000},
        "scale_up": {"bandwidth_gb_s": 200, "domain_size": 8, "topology": "switched"},
        "scale_out": {"bandwidth_gbit_s": 200},
    }
    return {
        "model": {"name": EVIL, "layers": 8, "hidden": 1024, "ffn": 2816, "heads": 8, "vocab": 4000},
        "cluster": {"num_gpus": 16, "chips": {EVIL_CHIP: {"spec": chip}, "h800": {"max": 8}}},
        "training": {"global_batch_size": 32, "sequence_length": 1024},
        "search": {"top": 2, "pin": {"pp": 2, "tp": 1, "mbs": 1, "vpp": 1}},
    }


@pytest.fixture(scope="module")
def evil() -> tuple[Problem, Result]:
    problem = resolve(parse_spec(evil_spec()))
    return problem, search(problem)


# Elements.


def test_what_is_not_html_is_escaped() -> None:
    assert tag("p", EVIL, Html("<b>x</b>")) == "<p>&lt;script&gt;alert(1)&lt;/script&gt;<b>x</b></p>"
    assert (
        tag("td", "", class_="a", aria_label='"<&>', title=None)
        == '<td class="a" aria-label="&quot;&lt;&amp;&gt;"></td>'
    )
    assert tag("meta", name="x") == '<meta name="x">'
    assert text(text("<")) == "&lt;"


def test_characters_that_html_does_not_allow_are_replaced() -> None:
    assert text("a\x00b\x1b[31m\tc\n") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31m\tc\n"


# Names that hold markup.


def test_markup_in_names_is_shown_as_text(evil: tuple[Problem, Result]) -> None:
    page = parse(result_page(*evil))
    data, *running = page.all("script")
    assert tuple(script.text for script in running) == scripts("play.js")
    assert data.attributes == {"type": "application/json", "id": "data"}
    assert EVIL not in data.text
    assert json.loads(data.text)["document"]["problem"]["model"] == EVIL
    assert not page.all("img")
    assert page.one("h1").one("strong").text == EVIL
    assert EVIL in page.one("head").one("title").text
    assert EVIL_CHIP in page.one("section", id="plans").text
    assert any(EVIL_CHIP in one.text for one in page.one("section", id="memory").all("span", class_="label"))
    assert any(EVIL_CHIP in one.text for one in page.one("section", id="timeline").all("title"))
    assert not [key for element in walk(page) for key in element.attributes if key.startswith("on")]


def test_markup_in_reasons_and_broken_rules_is_shown_as_text(evil: tuple[Problem, Result]) -> None:
    problem, found = evil
    page = parse(result_page(problem, replace(found, status="infeasible", plans=(), reasons=(EVIL, "a <b> & c"))))
    assert [item.text for item in page.one("section", id="reasons").all("li")] == [EVIL, "a <b> & c"]
    plan = found.plans[0].strategy
    wrong = replace(plan, groups=(*plan.groups[:-1], StageGroup(EVIL_CHIP, (99,))))
    broken = violations(problem, wrong)
    page = parse(evaluation_page(problem, wrong, None, broken))
    assert [item.text for item in page.one("section", id="violations").all("li")] == [str(found) for found in broken]


# The document.


@pytest.mark.parametrize("name", PLANS)
def test_the_page_stands_alone_and_is_accessible(name: str) -> None:
    page = page_of(name)
    assert_stands_alone(page)
    assert_accessible(parse(page))
    assert bool(parse(page).all("svg")) == (PLANS[name].pp > 1)


def test_the_library_is_as_published() -> None:
    folder = Path(play.__file__).parent / "uplot"
    told = package_data(folder / "uplot.yaml")
    assert {name: sha256((folder / name).read_bytes()).hexdigest() for name in told["sha256"]} == told["sha256"]
    assert told["version"] in LIBRARY[:80]
    assert "MIT" in (folder / "LICENSE").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PLANS)
def test_what_is_drawn_is_the_step_that_was_run(name: str) -> None:
    """The spans of the data, decoded as the script does, are those of the pipeline."""
    problem, strategy, evaluation = judged(name)
    data = numbers(parse(page_of(name)))
    (plan,), (step,) = data["plans"], unpacked(data["steps"])
    run = run_pipeline(strategy, evaluation, strategy.microbatches(problem.batch), play.MOST_PASSES)
    for row, spans in zip(step["rows"], run.by_stage, strict=True):
        now = 0
        for span, key, which in zip(spans, row[::2], row[1::2], strict=True):
            kind, length, *weights = step["spans"][key]
            assert now == pytest.approx(span.start_s * 1e9, abs=1.5)
            now += length
            assert (kind, bool(weights)) == (span.kind, span.weights)
            assert which == (-1 if span.microbatch < 0 else span.microbatch * strategy.vpp + max(0, span.chunk))
        assert now == pytest.approx(spans[-1].end_s * 1e9, abs=1.5)
    for memory, stage in zip(plan["memory"], evaluation.stages, strict=True):
        assert memory["standing"] + memory["activations"] == pytest.approx(stage.memory.total / 2**30, abs=1e-3)


def test_every_plan_of_an_answer_can_be_picked(evil: tuple[Problem, Result]) -> None:
    _, found = evil
    page = parse(result_page(*evil, [LaunchText("megatron-lm", "train.sh", f"echo {EVIL}")]))
    rows = page.one("section", id="pick").one("tbody").all("tr")
    assert len(rows) == len(found.plans) == len(numbers(page)["plans"]) == 2
    assert [plan["launch"] and plan["launch"]["text"] for plan in numbers(page)["plans"]] == [f"echo {EVIL}", None]
    parts = [one for one in page.all("div") if one.attributes.get("class") == "of-plan"]
    assert ["hidden" in one.attributes for one in parts] == [False, True]
    assert parts[1].one("section", id="memory-2")


def test_the_map_has_every_cell_of_the_proof(evil: tuple[Problem, Result]) -> None:
    made = proof_map(*evil)
    page = parse(result_page(*evil)).one("section", id="proof")
    assert made is not None
    rows = page.one("table", class_="cells").one("tbody").all("tr")
    assert len(rows) == len(made.cells) >= 4
    (cell,) = [one for one in page.one("table", class_="map").all("td") if "e-plan" in one.attributes["class"]]
    assert cell.attributes["title"].startswith("tp 1, pp 2: ")
    assert "Here are plans 1, 2." in cell.attributes["title"]
    assert all(one.attributes.get("title") for one in page.one("table", class_="map").all("td", class_="e-refused"))


def channel(value: int) -> float:
    share = value / 255
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio of two colours."""
    light = []
    for colour in (one, other):
        red, green, blue = (channel(int(colour[at : at + 2], 16)) for at in (1, 3, 5))
        light.append(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    return (max(light) + 0.05) / (min(light) + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_stand_out_in_both_schemes(scheme: int) -> None:
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    colours = dict(re.findall(r"--([\w]+): (#[0-9a-f]{6})", blocks[scheme]))
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    for ink in ("ink", "dim", "good", "warn", "bad"):
        for paper in ("paper", "card"):
            assert contrast(colours[ink], colours[paper]) >= 4.5, (ink, paper)
    assert contrast(colours["ink"], colours["differs"]) >= 4.5
    assert contrast("#ffffff", colours["backward"]) >= 4.5
    assert contrast("#0f2442", colours["forward"]) >= 4.5
    assert contrast(colours["forward"], colours["backward"]) >= 3
    assert contrast(colours["backward"], colours["idle"]) >= 2


@pytest.mark.full
def test_the_largest_pages_stay_below_a_megabyte() -> None:
    deep = Strategy(1, 128, 1, 1, 8, False, False, True, (StageGroup("a100", (8,) * 128),))
    spec = {
        "model": {"layers": 1024, "hidden": 4096, "ffn": 11008, "heads": 32, "vocab": 32000},
        "cluster": {"num_gpus": 128, "chips": "a100"},
        "training": {"global_batch_size": 4096, "sequence_length": 2048},
    }
    problem = resolve(parse_spec(spec))
    page = evaluation_page(problem, deep, evaluate(problem, deep), [])
    assert len(page.encode()) < MEGABYTE
    assert "a box is what a stage mostly does" in page
    many = problem_for(PLANS["1f1b"], 2048)
    page = evaluation_page(many, PLANS["1f1b"], evaluate(many, PLANS["1f1b"]), [])
    assert len(page.encode()) < MEGABYTE / 5
