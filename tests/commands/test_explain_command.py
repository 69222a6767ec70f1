"""`check` and `explain`: a plan against every rule, why there is no plan, why not another one, what wishes cost."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from cpsolver.doors.report.explanations import prices_report
from cpsolver.explanation.advice import INTERRUPTED, PAIRS, Advice, Suggestion
from cpsolver.explanation.alternatives import Alternative
from cpsolver.explanation.changes import Budget, Changer, best_plan, is_better, rank_of
from cpsolver.explanation.favourite import FREED, favourite
from cpsolver.explanation.remedies import Prices, wish_prices
from cpsolver.plans.dimensions import Group, pins
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.rules import RULES
from cpsolver.spec.spec import parse_spec
from tests.support.command import in_tmp, run, write  # noqa: F401
from tests.support.problems import chip_spec, problem_of, spec_of, strategy_of

SPEC = """\
model: llama2-7b
cluster: {num_gpus: 16, chips: a800}
training: {global_batch_size: 64, sequence_length: 2048}
search: {pin: {vpp: 1, cp: 1, flash_attention: true}}
"""
SLOW = "{tp: 8, pp: 1, dp: 2, mbs: 1, stages: [{chip: a800, layers: 32, recompute: uniform, recompute_layers: 1}]}"
WRONG = "{tp: 3, pp: 1, dp: 2, mbs: 1, stages: [{chip: a800, layers: 32}]}"
SMALL = {"vpp": 1, "cp": 1, "flash_attention": True, "distributed_optimizer": False}


def small(**pins: object) -> Problem:
    return problem_of({"x": chip_spec(gb=60)}, gpus=4, batch=8, pin={**SMALL, **pins}, layer_split="even")


def plan_of(problem: Problem) -> Strategy:
    found = best_plan(problem, Budget(60.0), 60.0)
    assert found is not None
    return found.strategy


def test_check_names_every_broken_rule_with_numbers() -> None:
    write("spec.yaml", SPEC)
    write("plan.yaml", SLOW)
    legal = run("check", "spec.yaml", "-s", "plan.yaml")
    assert legal.exit_code == 0
    assert f"Legal: all {len(RULES)} rules are kept." in legal.stdout
    assert "stage 0 on a800:" in legal.stdout
    write("plan.yaml", SLOW.replace("dp: 2, mbs: 1", "dp: 2, mbs: 1, vpp: 2"))
    broken = run("check", "spec.yaml", "-s", "plan.yaml", "--json")
    found = json.loads(broken.stdout)
    assert broken.exit_code == 2  # interleaving without a pipeline cannot be evaluated
    assert set(found["rules"]) == set(RULES)
    assert found["rules"]["interleaving"]
    assert not found["legal"]


def test_check_of_a_plan_that_only_memory_refuses() -> None:
    write("spec.yaml", SPEC.replace("llama2-7b", "llama2-70b"))
    write("plan.yaml", "{tp: 8, pp: 1, dp: 2, mbs: 1, stages: [{chip: a800, layers: 80}]}")
    result = run("check", "spec.yaml", "-s", "plan.yaml")
    assert result.exit_code == 3
    assert "Not legal: 1 of" in result.stdout
    assert "- memory: " in result.stdout


@pytest.mark.full
def test_explain_why_not_this_plan() -> None:
    write("spec.yaml", SPEC)
    write("plan.yaml", SLOW)
    found = json.loads(run("explain", "spec.yaml", "-s", "plan.yaml", "--json").stdout)
    assert found["legal"]
    assert found["step_time_s"] > found["best"]["step_time_s"]
    changes = {change["freed"]: change for change in found["changes"]}
    freed = changes["recomputation"]
    assert freed["gain_s"] == pytest.approx(found["step_time_s"] - freed["step_time_s"])
    assert freed["strategy"]["tp"] == 8
    assert {stage["recompute"] for stage in freed["strategy"]["stages"]} != {"uniform"}
    text = run("explain", "spec.yaml", "-s", "plan.yaml").stdout
    assert "slower" in text
    assert "- recomputation: " in text


@pytest.mark.full
def test_the_parts_that_explain_shows_add_up_and_no_plan_is_shown_twice() -> None:
    write("spec.yaml", SPEC.replace("search: {pin: {vpp: 1, cp: 1, flash_attention: true}}", ""))
    write("plan.yaml", "{tp: 8, dp: 2, mbs: 1, stages: [{chip: a800, layers: 32}]}")
    text = run("explain", "spec.yaml", "-s", "plan.yaml").stdout
    step, _, compute = text.partition("Of compute")
    rows, operators = (
        re.findall(r"^ *([0-9.]+) s +([0-9.]+) s +([+-][0-9.]+) s  (.*)$", part, re.M) for part in (step, compute)
    )
    own, best = (float(number) for number in re.findall(r"([0-9.]+) s a step against ([0-9.]+) s", text)[0])
    assert rows[-1][3] == "all else"
    assert sum(float(row[0]) for row in rows) == pytest.approx(own, abs=0.004)
    assert sum(float(row[2]) for row in rows) == pytest.approx(own - best, abs=0.004)
    of_compute = next(row for row in rows if row[3] == "compute")
    for column in range(3):
        assert sum(float(row[column]) for row in operators) == pytest.approx(float(of_compute[column]), abs=0.006)
    plans = [line.partition(" less): ")[2] for line in " ".join(text.split()).split(" - ")[1:]]
    assert len(plans) == len(set(plans)) > 1


def test_explain_an_illegal_favourite() -> None:
    write("spec.yaml", SPEC)
    write("plan.yaml", WRONG)
    result = run("explain", "spec.yaml", "-s", "plan.yaml")
    assert result.exit_code == 3
    assert "It is not legal. degrees: " in " ".join(result.stdout.split())


@pytest.mark.full
def test_explain_a_spec_without_plans() -> None:
    write("spec.yaml", SPEC.replace("num_gpus: 16", "num_gpus: 8").replace("llama2-7b", "llama2-70b"))
    result = run("explain", "spec.yaml", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["status"]) == (3, "infeasible")
    assert "Too little memory" in found["causes"][0]
    assert any("cluster.num_gpus" in remedy["changes"] for remedy in found["remedies"])


@pytest.mark.full
def test_explain_what_wishes_cost() -> None:
    write("spec.yaml", SPEC.replace("pin: {", "pin: {recompute: uniform, "))
    result = run("explain", "spec.yaml", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["status"]) == (0, "feasible")
    (price,) = [price for price in found["prices"] if "search.pin.recompute = uniform" in price["text"]]
    assert price["step_time_s"] < found["best"]["step_time_s"]
    assert price["changes"] == {"search.pin.recompute": None}


@pytest.mark.full
def test_explain_tells_what_the_spec_leaves_open() -> None:
    write("spec.yaml", SPEC.replace("llama2-7b", "deepseek-v2-lite"))
    found = json.loads(run("explain", "spec.yaml", "--json").stdout)["open_switches"]
    for switch in found["switches"]:
        assert found["low_s"] <= min(switch["step_time_s"].values())
        assert found["high_s"] >= max(switch["step_time_s"].values())
    assert found["switches"][0]["field"] in run("explain", "spec.yaml").stdout


@pytest.mark.full
def test_explain_advises_small_changes() -> None:
    write("spec.yaml", SPEC.replace("global_batch_size: 64", "global_batch_size: 61"))
    found = json.loads(run("explain", "spec.yaml", "--json").stdout)
    assert found["all_settled"]
    assert (found["advice_left"], found["advice_interrupted"]) == ({}, False)
    assert found["advice"]
    own = 61 * 2048 / 16 / found["best"]["step_time_s"]
    for one in found["advice"]:
        assert set(one) >= {"changes", "text", "gain", "tokens_per_s_per_gpu", "strategy", "proven"}
        assert one["gain"] == pytest.approx(one["tokens_per_s_per_gpu"] / own - 1)
        batch = one["changes"].get("training.global_batch_size", 61)
        assert batch == 61 or "another training" in one["text"]
    (fewer,) = [one for one in found["advice"] if one["changes"] == {"training.global_batch_size": 60}]
    assert fewer["proven"]
    assert fewer["strategy"]["dp"] > 1
    text = " ".join(run("explain", "spec.yaml").stdout.split())
    assert "Nothing that the spec asks for" not in text
    assert f"- A batch of 60 sequences instead of 61: +{fewer['gain'] * 100:.1f} % tokens/s per GPU, to " in text
    assert "A batch of 60 is another training than 61 by 1.6 %." in text


def said(advice: Advice, problem: Problem | None = None, **prices: bool) -> str:
    asked = problem or resolve(parse_spec(spec_of({"x": chip_spec(gb=60)})))
    best = best_plan(asked, Budget(60.0), 60.0)
    assert best is not None
    report = prices_report(asked, best, Prices((), **{"settled": True, **prices}), advice)
    text = io.StringIO()
    Console(file=text, width=200).print(report)
    return text.getvalue()


def test_that_nothing_gains_is_said_of_what_was_settled_alone() -> None:
    nothing = "Nothing that the spec asks for makes it slower, as far as it was tried alone, and no other value nearby"
    assert f"{nothing} gains a percent (batch, stack)." in said(Advice((), {"batch": 2, "stack": 1}, {}))
    left = said(Advice((), {"batch": 2}, {"batch": 2, PAIRS: 3}))
    assert "Nothing that the spec asks for" not in left
    assert "The time given was too short: not settled: batch (2 of 4), 3 pairs." in left
    stopped = said(Advice((), {}, {"devices": 4}, interrupted=True))
    assert "Interrupted: not settled: devices (4 of 4)." in stopped
    assert "No pin, ban or setting of the spec makes it slower" in stopped
    early = said(INTERRUPTED, settled=False, interrupted=True)
    assert "Interrupted: there may be more to say." in early
    assert "slower" not in early


def test_advice_tells_of_devices_all_tokens_and_of_margins_the_risk() -> None:
    data = spec_of({"x": chip_spec(gb=60)}, gpus=8, node=2, batch=32, pin=SMALL | {"distributed_optimizer": True})
    asked = resolve(parse_spec(data))
    best = best_plan(asked, Budget(60.0), 60.0)
    assert best is not None
    parts = {
        "devices": Alternative("devices", -1, {("cluster", "num_gpus"): 6}, "6 GPUs instead of 8", ""),
        "margin": Alternative("memory margin", -1, {("cluster", "memory_margin"): 0.0}, "no margin", "it may run out"),
    }
    changer, found = Changer(asked, Budget(60.0)), []
    for part in parts.values():
        other = changer.changed(part.changes)
        assert other is not None
        plan = best_plan(other, changer.budget, 60.0)
        assert plan is not None
        found.append(Suggestion((part,), other, plan, 1.0, 0.25))
    text = said(Advice(tuple(found), {}, {}), asked)
    assert re.search(r"- 6 GPUs instead of 8: \+25.0 % tokens/s per GPU, to [0-9,]+, .* in all", text)
    assert re.search(r"- No margin: .* a chance of < 1 % to run out of memory instead of < 1 %", text)
    assert "It may run out." in text


@pytest.mark.parametrize(("objective", "dear_is_better"), [("throughput", True), ("cost", False)])
def test_better_is_by_the_objective(objective: str, dear_is_better: bool) -> None:
    chips = {"x": chip_spec(gb=60), "y": chip_spec(gb=60)}
    data = spec_of(chips, objective=objective)
    data["cluster"]["prices"] = {"x": 1.0, "y": 9.0}
    problem = resolve(parse_spec(data))
    cheap = best_plan(problem_of({"x": chip_spec(gb=60)}, gpus=4, batch=8), Budget(60.0), 60.0)
    assert cheap is not None
    groups = tuple(replace(group, chip="y") for group in cheap.strategy.groups)
    faster = replace(cheap.evaluation, step_time_s=0.6 * cheap.evaluation.step_time_s)
    dear = replace(cheap, strategy=replace(cheap.strategy, groups=groups), evaluation=faster)
    ranks = rank_of(problem, dear), rank_of(problem, cheap)
    assert is_better(*ranks) == dear_is_better
    assert is_better(*reversed(ranks)) != dear_is_better


@pytest.mark.full
def test_what_is_not_proven_is_not_settled() -> None:
    problem = small()
    best = best_plan(problem, Budget(60), 60)
    assert best is not None
    assert wish_prices(problem, best).settled
    assert not wish_prices(problem, replace(best, gap=0.1)).settled
    assert not wish_prices(problem, best, seconds=0.0).settled


def test_the_best_plan_has_nothing_to_gain() -> None:
    problem = small()
    found = favourite(problem, plan_of(problem))
    assert found.best is not None
    assert not found.changes
    assert found.in_time


def test_every_decision_of_a_plan_is_pinned() -> None:
    problem = small(tp=2, recompute="block", recompute_num_layers=1)
    plan = plan_of(problem)
    assert plan_of(problem_of({"x": chip_spec(gb=60)}, gpus=4, batch=8, pin=pins(plan, mixed=False))) == plan
    assert {group for groups in FREED.values() for group in groups} == set(get_args(Group)) - {"run"}


def test_a_plan_whose_sizes_do_not_add_up_is_judged_all_the_same() -> None:
    found = favourite(small(), strategy_of("x:4", tp=3, dp=1))
    assert found.evaluation is None
    assert any(violation.rule == "degrees" for violation in found.broken)


def test_a_missing_plan_file_is_an_error() -> None:
    write("spec.yaml", SPEC)
    result = run("explain", "spec.yaml", "-s", "none.yaml")
    assert result.exit_code == 2
    assert "none.yaml" in result.stderr


def test_any_plan_of_an_answer_can_be_judged() -> None:
    write("spec.yaml", SPEC)
    assert run("solve", "spec.yaml", "--top", "2", "--json", "-o", "plans.json").exit_code == 0
    told = json.loads(Path("plans.json").read_text(encoding="utf-8"))["plans"][1]
    for command in ("check", "evaluate"):
        found = json.loads(run(command, "spec.yaml", "-s", "plans.json", "--plan-rank", "2", "--json").stdout)
        assert (found if command == "check" else found["plans"][0])["strategy"] == told["strategy"]
    result = run("check", "spec.yaml", "-s", "plans.json", "--plan-rank", "3")
    assert result.exit_code == 2
    assert "--plan-rank = 3: is no plan of the file (allowed: 1 to 2)" in result.stderr
