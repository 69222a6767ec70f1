"""The published runs beside a plan, as reports show them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console, Group

from cpsolver.doors.report import evidence as report
from cpsolver.evidence.nearest import PublishedRun
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of


def test_each_run_is_told_measured_against_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    run = PublishedRun(
        id="lab_1",
        model="a-model-with-a-very-long-name",
        parameters=7e9,
        stack="nemo",
        architecture="hopper",
        chip="h100",
        experts=False,
        devices=1024,
        sequence=8192,
        tp=4,
        pp=8,
        cp=2,
        ep=1,
        vpp=5,
        measured_s=10.0,
        predicted_s=9.0,
    )
    monkeypatch.setattr(report, "nearest_runs", lambda *_: [run])
    problem = problem_of({"x": chip_spec()}, model_spec(), gpus=8)
    text = io.StringIO()
    Console(file=text, width=80, highlight=False).print(Group(*report.evidence(problem, strategy_of("x:4", dp=8))))
    first, *rest = text.getvalue().splitlines()[1:]
    assert first.split() == [
        "a-model-with-a-…,",
        "1,024",
        "h100,",
        "seq",
        "8,192",
        "4·8·2·1",
        "5",
        "10.000",
        "s",
        "-10",
        "%",
    ]
    assert " ".join(" ".join(rest).split()) == (
        f"Rows lab_1 of the table of published runs, of nemo (the plan: {problem.stack.name})."
    )
