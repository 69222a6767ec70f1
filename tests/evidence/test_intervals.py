"""The 80 % interval: which runs it comes from, and what reports make of it."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp

import pytest

from cpsolver.doors.report import interval as intervals
from cpsolver.doors.report.document import dumps, evaluation_document, result_document
from cpsolver.doors.report.interval import Interval, interval_of, provenance, ties
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evidence import intervals as uncertainty
from cpsolver.evidence.intervals import interval, keys_of, spread
from cpsolver.inputs.text import about
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.search.result import Plan, Proof, Result
from cpsolver.spec.spec import parse_spec
from models_zoo import Architecture
from tests.support.fitted import FITTED
from tests.support.problems import chip_spec, model_spec, strategy_of

UNSEEN_WIDTH = (-0.2, 0.3)
EXPERTS = {"experts": 4, "top_k": 2, "expert_ffn": 512}


def case(chips: object = "a800", gpus: int = 16, stack: str = "megatron-core") -> tuple[Problem, Strategy]:
    spec = {
        "model": model_spec(),
        "cluster": {"num_gpus": gpus, "gpus_per_node": 8, "chips": chips},
        "training": {"global_batch_size": 16, "sequence_length": 1024},
        "stack": stack,
    }
    problem = resolve(parse_spec(spec))
    stages = problem.chip_names
    groups = " ".join(f"{name}:{4 // len(stages)}" for name in stages)
    return problem, strategy_of(groups, dp=gpus // len(stages))


def found(problem: Problem, strategy: Strategy) -> tuple[float, float, str]:
    return spread(problem, strategy, FITTED)


def test_the_errors_on_publishers_left_out_of_the_fit_speak_by_kind_of_model() -> None:
    low, high, basis = found(*case(gpus=8))
    assert (low, high) == UNSEEN_WIDTH
    assert basis == "100 published runs of dense models, their publishers left out of the fit"
    assert found(*case(stack="paddlenlp"))[:2] == UNSEEN_WIDTH
    problem, strategy = case()
    routed = replace(problem, model=Architecture.model_validate({"name": "e", **model_spec(moe=EXPERTS)}))
    assert found(routed, strategy)[:2] == (-0.3, 0.4)


def test_a_plan_beyond_every_run_has_a_wider_interval_that_names_why() -> None:
    problem, strategy = case()
    deep = replace(strategy, cp=2)  # 512 tokens a rank
    low, high, basis = found(problem, deep)
    assert (low, high) == pytest.approx((-0.3, 0.45))
    assert "half as wide again for 512 tokens on a rank of cp (least measured:" in basis


def test_every_further_unknown_widens() -> None:
    custom = {"max": 16, "spec": chip_spec()}
    new = found(*case({"x": custom}))[:2]
    assert new == pytest.approx((-0.3, 0.45))  # half as wide again: 1.5 * -0.2 and 1.5 * 0.3
    assert found(*case({"a800": -1, "h800": -1}))[:2] == pytest.approx(new)
    both = found(*case({"a800": -1, "x": custom}))[:2]
    assert both == pytest.approx((-0.45, 0.675))  # 1.5 * 1.5 = 2.25 times


def test_the_calibration_that_comes_with_the_package_gives_an_interval_around_the_prediction() -> None:
    problem, strategy = case()
    low, high = interval(problem, strategy, 10.0)
    assert 3 < low < 10 < high < 30
    log_low, log_high, basis = spread(problem, strategy)
    assert (low, high) == (pytest.approx(10 * exp(log_low)), pytest.approx(10 * exp(log_high)))
    assert "published runs" in basis


def test_the_kind_of_model_and_the_scale_are_part_of_the_group() -> None:
    assert keys_of(*case(gpus=8))[0] == "megatron-core/ampere/dense/one node"
    assert keys_of(*case(gpus=16))[0] == "megatron-core/ampere/dense/nodes"
    bloom = case(stack="megatron-deepspeed-bloom-bf16")
    assert keys_of(*bloom)[2] == "megatron-deepspeed-bloom-bf16/ampere"


# What reports make of it.


def test_an_interval_knows_how_many_runs_were_of_its_own_kind() -> None:
    own = interval_of(*case(gpus=8), 20.0, FITTED)
    assert (own.low_s, own.high_s) == (pytest.approx(20 * exp(-0.2)), pytest.approx(20 * exp(0.3)))
    assert own.alike == 25
    assert interval_of(*case("h800"), 20.0, FITTED).alike == 0


def some(low: float, high: float) -> Interval:
    return Interval(low, high, "", 0)


def test_a_plan_s_interval_overlaps_the_best_one_s() -> None:
    assert ties([some(9, 11), some(10.9, 13), some(11, 14), some(11.1, 14)]) == [True, True, True, False]
    assert ties([some(9, 11), some(11.1, 12), some(8, 20)]) == [True, False, True]
    assert ties([some(9, 11)]) == [True]


def test_a_report_says_what_the_interval_rests_on() -> None:
    own, other = (" ".join(provenance(interval_of(*case(chip), 9.0, FITTED), FITTED)) for chip in ("a800", "h800"))
    assert "fitted to 123 published runs" in own
    assert "100 published runs of dense models, their publishers left out of the fit. 25 of the fitted runs have" in own
    assert "Few or none of the fitted runs have this software stack" in other
    assert "docs/accuracy.md" in own
    nothing = " ".join(provenance(None, FITTED))
    assert "fitted to 123 published runs" in nothing
    assert "80 %" not in nothing


def test_about_three_digits() -> None:
    assert [about(17.459), about(9.577), about(163.4), about(1634.4), about(12345.6)] == [
        "17.5",
        "9.58",
        "163",
        "1,634",
        "12346",
    ]
    assert [about(0.4126), about(0.0413), about(1.02, of=0.9)] == ["413", "41.3", "1,020"]


def test_the_json_has_it_for_every_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "load_calibration", lambda: FITTED)
    monkeypatch.setattr(uncertainty, "load_calibration", lambda: FITTED)
    problem, strategy = case(gpus=8)
    evaluation = evaluate(problem, strategy)
    slower = replace(evaluation, step_time_s=2 * evaluation.step_time_s)
    plans = tuple(Plan(rank, strategy, each, 0.0) for rank, each in enumerate((evaluation, evaluation, slower), 1))
    proof = Proof(3, {}, 0, 0, 3, 0, 3, 3, 1.0, "complete", 1.0, 1.0)
    document = json.loads(dumps(result_document(problem, Result("optimal", plans, proof))))
    assert [plan["tie_with_best"] for plan in document["plans"]] == [True, True, False]
    for plan in document["plans"]:
        assert plan["step_time_low_s"] == pytest.approx(plan["step_time_s"] * exp(-0.2))
        assert plan["step_time_high_s"] == pytest.approx(plan["step_time_s"] * exp(0.3))
        assert plan["interval_basis"].startswith("100 published runs of dense models")
    alone = evaluation_document(problem, strategy, slower, [])["plans"][0]
    assert (alone["tie_with_best"], alone["step_time_high_s"]) == (True, pytest.approx(slower.step_time_s * exp(0.3)))
