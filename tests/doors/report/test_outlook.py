"""Days and dollars of the whole training in every report, worked out by hand."""

from __future__ import annotations

import json
from html import escape
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from cpsolver.doors.report.columns import shown_plan
from cpsolver.doors.report.console import evaluation_report
from cpsolver.doors.report.document import dumps, evaluation_document
from cpsolver.doors.report.goals import chance, fewest_line
from cpsolver.doors.report.html.page import evaluation_page
from cpsolver.doors.report.interval import Interval
from cpsolver.doors.report.outlook import days_text, outlook, total_dollars
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.spec.spec import parse_spec
from tests.support.problems import model_spec, strategy_of

TEN_SECONDS = Interval(8.0, 12.5, "some runs", alike=0)  # as far down as up: 10 s / 1.25, 10 s × 1.25


def case(
    training: dict[str, Any] | None = None, prices: dict[str, float] | None = None, **search: Any
) -> tuple[Problem, Strategy]:
    """A plan on 16 devices whose step sees 16 × 1,024 tokens."""
    spec = {
        "model": model_spec(),
        "cluster": {"num_gpus": 16, "gpus_per_node": 8, "chips": "a800", "prices": prices},
        "training": {"global_batch_size": 16, "sequence_length": 1024, **(training or {})},
        "search": search,
    }
    return resolve(parse_spec(spec)), strategy_of("a800:4", dp=16)


def test_days_and_dollars_are_those_of_a_hand() -> None:
    problem, strategy = case({"tokens": 1.6384e8}, {"a800": 1.5})  # 10,000 steps of 16,384 tokens
    found = outlook(problem, strategy, 10.0, TEN_SECONDS)
    assert found.days is not None
    assert found.dollars is not None
    # 10,000 steps of 8 s are 80,000 s; a day has 86,400
    assert (found.days.low, found.days.high) == pytest.approx((0.925926, 1.446759), rel=1e-5)
    # ln 1.25 / 1.2816 = 0.174113: a log-normal's mean is its median × exp(0.174113² / 2) = × 1.015273
    assert found.days.mean == pytest.approx(1.157407 * 1.015273, rel=1e-5)
    # 16 devices at $1.50 are $24 an hour, $576 a day
    assert (found.dollars.low, found.dollars.high) == pytest.approx((533.3333, 833.3333), rel=1e-5)
    assert found.dollars.mean == pytest.approx(666.6667 * 1.015273, rel=1e-5)
    assert found.deadline_probability is None


def test_a_step_more_for_tokens_that_fill_none() -> None:
    days = [outlook(*case({"tokens": tokens}), 10.0, TEN_SECONDS).days for tokens in (16384 * 5, 16384 * 5 + 1)]
    assert [one and one.low for one in days] == pytest.approx([5 * 8 / 86400, 6 * 8 / 86400])


@pytest.mark.parametrize("objective", ["throughput", "cost", "fewest_chips"])
def test_a_deadline_goes_with_every_objective(objective: str) -> None:
    tokens, prices = {"tokens": 1.6384e8}, {"a800": 1.5}
    for days, probability in ((80_000 / 86_400, 0.1), (100_000 / 86_400, 0.5), (125_000 / 86_400, 0.9)):
        problem, strategy = case(tokens, prices, objective=objective, deadline={"days": days})
        found = outlook(problem, strategy, 10.0, TEN_SECONDS)
        assert found.deadline_probability == pytest.approx(probability, abs=1e-4)


def test_without_tokens_nothing_is_known_and_without_prices_no_dollars() -> None:
    assert outlook(*case(), 10.0, TEN_SECONDS).document() == {
        "days": None,
        "dollars": None,
        "deadline_probability": None,
    }
    assert outlook(*case({"tokens": 1e9}), 10.0, TEN_SECONDS).dollars is None


def test_a_deadline_s_tokens_are_the_training_s() -> None:
    problem, strategy = case(deadline={"tokens": 1.6384e8, "days": 1})
    assert problem.spec.tokens == 1.6384e8
    assert (
        outlook(problem, strategy, 10.0, TEN_SECONDS).days
        == outlook(*case({"tokens": 1.6384e8}), 10.0, TEN_SECONDS).days
    )


def test_every_report_says_the_same() -> None:
    problem, strategy = case({"tokens": 1e9}, {"a800": 1.5}, deadline={"days": 0.5})
    evaluation = evaluate(problem, strategy)
    plan = json.loads(dumps(evaluation_document(problem, strategy, evaluation, ())))["plans"][0]
    shown = shown_plan(problem, "", strategy, evaluation).outlook
    assert {name: plan[name] for name in ("days", "dollars", "deadline_probability")} == shown.document()
    days, cost = days_text(plan["days"]["mean"]), total_dollars(plan["dollars"]["mean"])
    in_time = chance(plan["deadline_probability"])
    console = Console(file=StringIO(), width=80)
    console.print(evaluation_report(problem, strategy, evaluation, ()))
    assert isinstance(console.file, StringIO)
    text, page = " ".join(console.file.getvalue().split()), evaluation_page(problem, strategy, evaluation, ())
    for part in (f"1e+09 tokens: {days} days expected", f", {cost} (", f"{in_time} likely within 0.5 days"):
        assert part in text
        assert escape(part, quote=False) in page
    assert f"$ in all {cost}" in text
    assert f"in time, chance {in_time}" in text
    assert page.count(f">{cost}<") == 2  # a tile, a cell of the table


def test_a_minimum_says_the_chance_that_it_holds() -> None:
    problem, strategy = case({"tokens": 1e9}, objective="fewest_chips", deadline={"days": 1})
    assert fewest_line(problem, [strategy], 0.553) == (
        "Proven of predicted times: no plan on fewer than 16 GPUs meets the deadline. "
        "The chance that these 16 do is 55 %."
    )


def test_amounts_have_some_three_digits() -> None:
    amounts = (12.3456, 999.4, 1234.5, 45_678.0, 999_700.0, 1_360_000.0, 2.5e9)
    assert [total_dollars(value) for value in amounts] == [
        "$12.35",
        "$999",
        "$1.23 k",
        "$45.7 k",
        "$1.00 M",
        "$1.36 M",
        "$2.50 G",
    ]
    assert [days_text(value) for value in (0.0123, 1.0, 44.13, 365.2)] == ["0.012", "1.0", "44.1", "365"]
    assert [chance(value) for value in (0.0, 0.004, 0.55, 0.996)] == ["< 1 %", "< 1 %", "55 %", "> 99 %"]
