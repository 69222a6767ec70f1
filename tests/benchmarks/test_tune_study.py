"""The study of policies on simulated clusters: regret, baselines, records."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tune_policies, tune_study
from benchmarks.tune_policies import best_with, first_search, grid_plans, layouts, problem_of, random_plans
from benchmarks.tune_report import best_known, coverage_lines, regret, regret_table, share_table
from benchmarks.tune_simulated import load, missing, report
from benchmarks.tune_study import Case, inputs, run_case, seen_of, truth_of, untried
from cpsolver.evidence.posterior.misfit import load_spread
from cpsolver.plans.strategy import Strategy
from cpsolver.rules import violations
from tests.support.problems import spec_of

SMALL = "a small task"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(top=10, pin={"flash_attention": True, "distributed_optimizer": True})
    monkeypatch.setattr(tune_policies, "TASKS", {SMALL: spec})
    monkeypatch.setattr(tune_study, "TASKS", {SMALL: spec})
    for cached in (problem_of, first_search, best_with, layouts):
        cached.cache_clear()


# Regret

TRIALS = [
    ("failed", None, None, None),
    ("ok", 10.0, 11.0, 11.0),
    ("oom", None, None, 11.0),
    ("ok", 9.9, 12.0, 12.0),
    ("ok", 9.0, 10.5, 10.5),
]
"""Outcome, measured, true, and true of the plan settled for."""


@pytest.mark.parametrize(("count", "expected"), [(1, inf), (2, 0.1), (3, 0.1), (4, 0.2), (5, 0.05), (10, 0.05)])
def test_regret_is_the_true_time_of_the_plan_settled_for(count: int, expected: float) -> None:
    assert regret(TRIALS, 10.0, count) == pytest.approx(expected)


def _record(policy: str, trials: Any, best: float = 10.0, misfit: bool = False, seed: int = 0) -> dict[str, Any]:
    more = {"policy": policy, "best_s": best, "trials": trials, "misfit": misfit, "seed": seed}
    return {**more, "inputs": inputs("t"), "task": "t", "cpu_s": 1.0, "coverage": None, "stopped": None}


def test_with_misfit_the_best_is_the_best_known() -> None:
    found = best_known([_record("a", TRIALS, 12.0, True), _record("b", [("ok", 1.0, 11.5, 11.5)], 12.0, True)])
    assert found == {(True, 0): 10.5}


def test_a_plan_faster_than_the_proven_best_is_an_error() -> None:
    with pytest.raises(ValueError, match="less than the proven best"):
        best_known([_record("a", TRIALS, 10.6)])


def test_no_success_counts_as_the_worst_and_is_counted() -> None:
    table = regret_table([_record("a", TRIALS), _record("b", [("ok", 5.0, 15.0, 15.0)])])
    a, b = table.splitlines()[2:]
    assert a.split("|")[3].strip() == "50.0 % / 50.0 % / 50.0 % (1 without)"
    assert b.split("|")[3].strip() == "50.0 % / 50.0 % / 50.0 %"
    assert a.split("|")[6].strip() == "5.0 % / 5.0 % / 5.0 %"


def test_percentile_and_shares() -> None:
    records = [_record("a", [("ok", 1.0, 10.0 + seed, 10.0 + seed)], seed=seed) for seed in range(10)]
    cells = regret_table(records).splitlines()[2].split("|")
    assert cells[3].strip() == "45.0 % / 45.0 % / 80.0 %"
    assert share_table(records).splitlines()[2].split("|")[2].strip() == "10%"


# Baselines


def _first(plans: Any, count: int) -> list[Strategy]:
    return list(islice(plans, count))


@pytest.mark.full
def test_baselines_give_legal_plans_each_once() -> None:
    for plans in (_first(random_plans(SMALL, 1), 10), _first(grid_plans(SMALL), 10)):
        assert len(plans) > 5
        assert not [found for plan in plans for found in violations(problem_of(SMALL), plan)]
        assert len(set(plans)) == len(plans)


def test_random_search_differs_by_seed_and_is_the_same_again() -> None:
    assert _first(random_plans(SMALL, 1), 5) == _first(random_plans(SMALL, 1), 5) != _first(random_plans(SMALL, 2), 5)


def test_the_grid_is_in_the_order_of_the_loops() -> None:
    degrees = [(plan.tp, plan.pp, plan.mbs) for plan in islice(grid_plans(SMALL), 8)]
    assert degrees == sorted(set(degrees))


def test_layouts_have_the_best_plan_and_only_what_is_pinned() -> None:
    best = first_search(SMALL).plans[0].strategy
    rows = [dict(pins) for pins in layouts(SMALL)]
    assert all(row["flash_attention"] and row["distributed_optimizer"] for row in rows)
    own = [pins for pins in layouts(SMALL) if all(getattr(best, name) == value for name, value in pins)]
    assert len(own) == 1
    assert best_with(SMALL, own[0]) == best


# Clusters and records


@pytest.mark.full
def test_a_cluster_of_the_study_is_run_by_every_policy() -> None:
    found = run_case(Case(0, False), ("top-K", "random"))
    assert [record["policy"] for record in found] == ["top-K", "random"]
    assert len({json.dumps(record["trials"]) for record in found}) == 2
    assert json.loads(json.dumps(found)) == [
        {**record, "trials": [list(trial) for trial in record["trials"]]} for record in found
    ]
    assert min(best_known(found).values()) == found[0]["best_s"]
    assert "top-K" in report(found)


def test_a_seed_has_its_truth_and_misfit_its_level() -> None:
    assert truth_of(Case(3, False)) == truth_of(Case(3, False))
    assert truth_of(Case(3, False)).misfit is None
    misfits = [truth_of(Case(seed, True)).misfit for seed in range(30)]
    assert {misfit.level for misfit in misfits if misfit} == set(load_spread().levels)
    assert all(misfits)


def test_what_is_learnt_from_are_measured_trials_and_those_out_of_memory() -> None:
    case = Case(0, False)
    trials, _, _ = tune_study.run_trials(case, truth_of(case), "random")
    told = {"ok": trials[0], "oom": trials[1], "failed": trials[2]}
    given = [replace(trial, outcome=name, step_time_s=1.0 if name == "ok" else None) for name, trial in told.items()]  # type: ignore[arg-type]
    found = seen_of(problem_of(SMALL), given)
    assert [(each.step_time_s, each.out_of_memory) for each in found] == [(1.0, False), (None, True)]


@pytest.mark.full
def test_coverage_is_about_plans_never_tried() -> None:
    case = Case(0, False)
    trials, _, _ = tune_study.run_trials(case, truth_of(case), "top-K")
    assert not {trial.strategy for trial in trials[:5]} & set(untried(case, trials[:5]))
    told = tune_study.coverage(case, truth_of(case), trials[:5])
    assert told["constants"][1] == len(truth_of(case).constants)
    assert 0 <= told["times"][0] <= told["times"][1] == len(untried(case, trials[:5]))
    assert "hidden constants" in coverage_lines([{"coverage": told}], 5)


def test_a_stopped_study_goes_on_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    whole = json.dumps(_record("a", TRIALS))
    other = json.dumps({**_record("b", TRIALS), "inputs": "others"})
    file.write_text(f'{whole}\n{other}\n{{"seed": 1, "pol', encoding="utf-8")
    records = load(file)
    assert [record["policy"] for record in records] == ["a"]
    assert file.read_text(encoding="utf-8") == f"{whole}\n{other}\n"
    assert missing(records, 2, False, ("a", "b")) == [
        (Case(0, False), ("b",), 10.0),
        (Case(1, False), ("a", "b"), None),
    ]
    assert missing(records, 1, True, ("a",)) == [(Case(0, True), ("a",), None)]
