"""The page of experts' layouts beside ours."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.experts_layouts import AUTHORS, AUTHORS_MODULES, CASES, OUTPUT, Case, dualpipe_plans, mechanism
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evidence.runs.plan import placed_plan
from cpsolver.evidence.runs.table import PUBLISHED, read_runs

RUNS = {run.id: run for run in read_runs(PUBLISHED).runs}


def test_every_case_has_its_lines() -> None:
    text = OUTPUT.read_text(encoding="utf-8")
    assert all(text.count(f"\n| {title} |") == 2 for _, title in CASES)
    assert all(name in RUNS for name, _ in CASES)


def test_the_authors_layout_is_among_those_tried_and_the_same_plan_gains_nothing() -> None:
    run = replace(RUNS[AUTHORS], framework="HAI-LLM", recompute_modules=AUTHORS_MODULES)
    placed = placed_plan(run)
    problem, plan = placed.problem, placed.strategy
    tried = [
        (each.pp, each.ep, each.mbs, each.layers, each.recompute_modules) for each in dualpipe_plans(problem, plan)
    ]
    assert (plan.pp, plan.ep, plan.mbs, plan.layers, plan.recompute_modules) in tried
    told = evaluate(problem, plan)
    case = Case("the same", run, problem, plan, told, plan, told, stopped=False)
    assert (case.gain, case.tie, mechanism(case)) == (0, True, "the same plan")
    slower = replace(
        told, breakdown_s={**told.breakdown_s, "bubble": told.breakdown_s["bubble"] + told.step_time_s / 4}
    )
    assert mechanism(replace(case, told=slower)) == "bubble -25.0%"
