"""Compute by operator in the JSON document and on the page."""

from __future__ import annotations

import json

import pytest

from cpsolver.doors.report.document import dumps, evaluation_document
from cpsolver.doors.report.html.page import evaluation_page
from cpsolver.doors.report.operators import matrices_notes, operators_title, unmeasured_text
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.operators import compute_by_operator
from tests.support.problems import chip_spec, problem_of, strategy_of


def test_the_document_names_every_operator_and_its_constants() -> None:
    problem, plan = problem_of({"x": chip_spec()}), strategy_of("x:3,1", dp=2)
    found = evaluate(problem, plan)
    document = json.loads(dumps(evaluation_document(problem, plan, found, [])))["plans"][0]
    operators = document["operators"]
    assert (operators["stage"], operators["chip"]) == (0, "x")
    assert sum(part["seconds"] for part in operators["parts"]) == pytest.approx(document["breakdown_s"]["compute"])
    assert sum(part["share"] for part in operators["parts"]) == pytest.approx(1)
    assert {name for part in operators["parts"] for name in part["rests_on"]} == set(operators["constants"])
    assert set(operators["constants"]["memory"]) == {"of", "value", "basis", "source", "runs"}


def test_what_muons_matrices_cost_stands_in_every_report() -> None:
    """Three layers' twelve matrices for two ranks: cut so that nothing is padded; for sixteen buffers are padded."""
    problem = problem_of({"x": chip_spec()}, gpus=32, batch=32, training={"optimizer": "muon"})
    few, many = strategy_of("x:3,1", dp=2), strategy_of("x:3,1", dp=16)
    (told,) = matrices_notes(problem, few)
    assert "muon's matrices" in told
    assert "stage 0's fullest rank" in told
    assert "times as long as these" in list(matrices_notes(problem, many))[1]
    found = evaluate(problem, many)
    document = json.loads(dumps(evaluation_document(problem, many, found, [])))["plans"][0]
    costs = document["matrices"]
    assert 0 < costs["matrices_s"] < found.breakdown_s["optimizer"]
    assert costs["padded"] > 1
    assert costs["padding_gib"] > 0
    assert "optimizer muon" in document["unmeasured"]
    assert "muon&#x27;s matrices" in evaluation_page(problem, many, found, [])
    assert not list(matrices_notes(problem_of(), few))


def test_the_page_has_the_same() -> None:
    problem, plan = problem_of({"x": chip_spec()}), strategy_of("x:3,1", dp=2)
    found = evaluate(problem, plan)
    operators = compute_by_operator(problem, plan, found)
    page = evaluation_page(problem, plan, found, [])
    assert operators_title(operators, plan.pp) == "Where compute goes: stage 0 (x), the slowest"
    assert operators_title(operators, plan.pp) in page
    assert unmeasured_text(operators) in page
    assert "norms and residuals" in page
