"""Stacks that train with sharded parameters: what their frameworks run, by rule and by rows, in plans and in published
runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from cpsolver.cost.shard import Candidates
from cpsolver.evidence.runs.plan import Unpredictable, placed_plan
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from cpsolver.explanation import explanation
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.profiles.facts import Facts
from cpsolver.profiles.framework import Framework, both, launcher_names, load_launcher
from cpsolver.profiles.stack import load_stack, stack_names
from cpsolver.rules import RULES, violations
from cpsolver.search.filters import FRAME_FILTERS, LAYOUT_FILTERS, VARIANT_FILTERS
from cpsolver.search.search import search
from cpsolver.spec.spec import parse_spec
from tests.profiles.test_launcher import BIASED, plans, rows_of, runs, split
from tests.support.compared import assert_same
from tests.support.framework_plans import EXPERTS
from tests.support.oracle import brute_force
from tests.support.problems import chip_spec, model_spec, problem_of, spec_of
from tests.support.selection import full, night, only
from tests.support.tables import quick_tables

FSDP = ("fsdp-composer", "fsdp-torchtitan", "torchtitan-2025", "torchtitan-2026")
SHARDING = ("accelerate", "composer-pure", "deepspeed-2021", "deepspeed-zero3", *FSDP)


def runs_of(name: str) -> Framework:
    found = load_stack(name).runs
    assert found is not None
    return found


def said(problem: Problem, plan: Strategy) -> list[str]:
    return list(RULES["stack"](problem, plan))


# The facts.


def test_these_stacks_and_no_others_say_what_they_run() -> None:
    assert tuple(name for name in stack_names() if load_stack(name).runs) == SHARDING


@pytest.mark.parametrize("name", SHARDING)
def test_every_stated_fact_has_a_source_and_the_others_rule_nothing_out(name: str) -> None:
    runs = runs_of(name)
    assert runs.name == name
    assert set(runs.sources) <= set(Facts.model_fields)
    assert all(len(source) > 4 for source in runs.sources.values())
    assert "parameters" in runs.sharded
    for fact in set(Framework.model_fields) - set(runs.sources) - {"name", "title", "sources"}:
        stricter = runs.model_copy(update={fact: getattr(runs, fact)})
        assert both(stricter, load_launcher("megatron-lm")) == both(runs, load_launcher("megatron-lm"))
        added = ("breadth_first", "dynamic_micro_batches", "ulysses_repeats", "ulysses_indexer", "whole_encoder")
        if fact not in added and isinstance(getattr(runs, fact), bool):
            assert getattr(runs, fact)


def test_torchtitan_has_experts_since_release_0_2() -> None:
    """What was measured is of early 2025; a plan of today's launcher is timed by its own stack all the same."""
    assert [runs_of(name).expert_parallel for name in FSDP[1:]] == [False, True, True]
    problem = problem_of(gpus=8, node=8, model=EXPERTS, launcher="torchtitan", pin={"ep": 4})
    assert problem.stack.name == "torchtitan-2026"
    assert search(problem).plans[0].strategy.ep == 4


def test_the_frameworks_differ_where_they_do() -> None:
    assert {name for name in SHARDING if runs_of(name).pipeline} == set(FSDP[1:])
    assert {name for name in SHARDING if not runs_of(name).tensor_parallel} == {"composer-pure", "fsdp-composer"}
    assert {name for name in SHARDING if runs_of(name).plain_weights} == {
        "deepspeed-2021",
        "deepspeed-zero3",
        "torchtitan-2026",
    }
    assert runs_of("composer-pure").sources == runs_of("fsdp-composer").sources
    assert runs_of("deepspeed-2021").flash_attention == (False,)
    assert runs_of("deepspeed-zero3").context_parallel == ("a2a",)
    assert runs_of("deepspeed-zero3").recompute == runs_of("deepspeed-2021").recompute == ("uniform",)


# The rule and the rows.


def some_plans() -> list[Strategy]:
    return [plan for index, plan in enumerate(plans(("x",))) if plan.ep * plan.etp == 1 or index % 11 == 0]


def filtered(problem: Problem, rows: Candidates) -> np.ndarray:
    parts = (LAYOUT_FILTERS, VARIANT_FILTERS, FRAME_FILTERS)
    kept: np.ndarray = np.logical_and.reduce([part["stack"](problem, rows) for part in parts])
    return kept


@pytest.mark.parametrize("name", SHARDING)
def test_rows_are_allowed_where_the_rule_finds_nothing(name: str) -> None:
    problem, found = replace(problem_of(stack=name, model=model_spec(layers=12)), model=BIASED), some_plans()
    allowed = filtered(problem, rows_of(found)).tolist()
    wrong = [plan for plan, each in zip(found, allowed, strict=True) if each == bool(said(problem, plan))]
    assert not wrong, wrong[0]
    assert 0 < sum(allowed) < len(allowed)


def test_other_stacks_refuse_nothing() -> None:
    problem, found = problem_of(), some_plans()
    assert problem.launcher is None
    assert filtered(problem, rows_of(found)).all()
    assert not any(said(problem, plan) for plan in found)


def _own(stack: str, launcher: str) -> bool:
    """Every launcher with one stack, every stack with some launchers."""
    return (SHARDING.index(stack) - launcher_names().index(launcher)) % len(SHARDING) == 0


@pytest.mark.parametrize(("stack", "launcher"), only(_own, product(SHARDING, launcher_names())))
def test_both_run_what_each_of_them_runs(stack: str, launcher: str) -> None:
    framework, profile, rows = runs_of(stack), load_launcher(launcher), rows_of(plans(("x",))[::11])
    together = both(profile, framework)
    assert together is not None
    for types in (1, 2):
        each = [runs(one, BIASED, types, rows) for one in (framework, profile)]
        assert (runs(together, BIASED, types, rows) == (each[0] & each[1])).all()
    assert set(together.recompute) == {*framework.recompute} & {*profile.recompute}
    assert all(
        split(together, vpp, cp) in (split(framework, vpp, cp), split(profile, vpp, cp))
        for vpp in (1, 2)
        for cp in (1, 2)
    )


def test_a_spec_may_name_a_launcher_beside() -> None:
    alone = resolve(parse_spec({**spec_of(), "stack": "fsdp-torchtitan"}))
    assert (alone.named_launcher, alone.launcher) == (None, runs_of("fsdp-torchtitan"))
    beside = resolve(parse_spec({**spec_of(launcher="accelerate"), "stack": "fsdp-torchtitan"}))
    assert beside.named_launcher == load_launcher("accelerate")
    assert beside.launcher is not None
    assert not beside.launcher.pipeline
    found = search(beside)
    assert found.status == "optimal"
    assert {plan.strategy.pp for plan in found.plans} == {1}


@pytest.mark.full
def test_published_runs_of_these_frameworks_are_among_what_they_run() -> None:
    """But for torchtitan's selective recomputation, which is predicted as something that it does not have."""
    counted: Counter[str] = Counter()
    for run in read_runs(PUBLISHED).runs:
        try:
            case = placed_plan(run) if run.complete else None
        except Unpredictable:
            continue
        if case is not None and case.problem.stack.runs is not None:
            told = said(case.problem, case.strategy)
            assert not [text for text in told if "recomputation of kind block" not in text], run.id
            counted[case.problem.stack.name] += not told
    assert counted["fsdp-torchtitan"] >= 12
    assert counted["fsdp-composer"] >= 25
    assert min(counted["composer-pure"], counted["deepspeed-2021"]) >= 4


# Plans.


@pytest.mark.parametrize("stack", SHARDING)
@pytest.mark.parametrize(("gpus", "chip"), [full(16, "a100"), (64, "h100")])
def test_each_is_planned_with(stack: str, gpus: int, chip: str) -> None:
    spec = {
        "model": "llama2-7b",
        "cluster": {"num_gpus": gpus, "chips": chip},
        "stack": stack,
        "search": {"top": 5, "diverse": False},
    }
    training = {"global_batch_size": 256, "sequence_length": 4096, "precision": "bf16"}
    problem = resolve(parse_spec({**spec, "training": training}))
    found, runs = search(problem), runs_of(stack)
    assert found.status == "optimal"
    assert len(found.plans) == 5
    for plan in (each.strategy for each in found.plans):
        assert not violations(problem, plan)
        assert runs.tensor_parallel or plan.tp == 1
        assert runs.pipeline or plan.pp == 1
        assert plan.cp == 1 or plan.cp_comm_type in runs.context_parallel
        assert plan.sharded in (runs.sharded if plan.pp == 1 else runs.sharded_pipeline)
        assert plan.distributed_optimizer or runs.plain_weights
        assert plan.flash_attention in runs.flash_attention
        assert {*plan.recompute} <= {"none", *runs.recompute}


TINY: dict[str, dict[str, Any]] = {
    "one chip": {"gpus": 4, "node": 4, "batch": 4},
    "two nodes": {"gpus": 4, "node": 2, "batch": 4, "pin": {"cp": 1}},
    "mixed": {"gpus": 4, "node": 1, "batch": 4, "pin": {"cp": 1, "mbs": 1}},
}


SEARCHED = ("fsdp-composer", "fsdp-torchtitan", "deepspeed-2021", "deepspeed-zero3")


_PAIRS = [(stack, name) for i, stack in enumerate(SEARCHED) for j, name in enumerate(TINY) if (i + j) % 2 == 0]
"""Stacks that are alike on other problems each."""


def _when(stack: str, name: str) -> ParameterSet:
    """One that shards by both chip types is quick; those on one chip have the most plans."""
    if (stack, name) == ("fsdp-composer", "mixed"):
        return pytest.param(stack, name)
    like_another = name == "one chip" or (stack, name) == ("fsdp-torchtitan", "two nodes")
    return night(stack, name) if like_another else full(stack, name)


@pytest.mark.parametrize(("stack", "name"), [_when(stack, name) for stack, name in _PAIRS])
def test_search_agrees_with_brute_force(stack: str, name: str) -> None:
    """From too small a memory for anything to ample."""
    statuses, sharded = set(), set()
    for gb in (3.0, 3.5, 5.0):
        chips = {"x": chip_spec(gb=gb)}
        if name == "mixed":
            chips = {"x": {"max": 2, "spec": chip_spec(gb=gb)}, "y": {"max": 4, "spec": chip_spec(60, gb=gb + 0.1)}}
        model = model_spec(layers=3, hidden=512, ffn=1024, kv_heads=2)
        given = {"pin": {"flash_attention": False} if stack == "deepspeed-2021" else {}, **TINY[name]}
        problem = problem_of(chips, model, stack=stack, sequence=4096, **given, top=4, diverse=False)
        with quick_tables():
            best = brute_force(problem)
            assert_same(problem, best)
        statuses.add(bool(best))
        sharded |= {plan.strategy.sharded for plan in search(problem).plans}
    assert statuses == {False, True}
    assert "parameters" in sharded


# Wishes against the facts.


@pytest.mark.parametrize(
    ("stack", "pin", "why"),
    [
        ("fsdp-composer", {"tp": 2}, "stack fsdp-composer has no tensor parallelism (tp 1)"),
        ("composer-pure", {"pp": 2}, "stack composer-pure has no pipeline (pp 1)"),
        ("deepspeed-zero3", {"pp": 2}, "stack deepspeed-zero3 has no pipeline (pp 1)"),
        ("fsdp-composer", {"sharded": "gradients"}, "stack fsdp-composer shares out parameters"),
        ("fsdp-torchtitan", {"distributed_optimizer": False}, "stack fsdp-torchtitan shares out weights over replicas"),
        ("fsdp-torchtitan", {"tp": 2, "sequence_parallel": False}, "has sequence parallelism wherever tp > 1"),
        ("deepspeed-2021", {"flash_attention": True}, "stack deepspeed-2021 has no flash attention"),
        ("fsdp-composer", {"recompute": "selective"}, "cannot be selective: stack fsdp-composer has none, uniform"),
        ("fsdp-composer", {"recompute_modules": [["mlp"]]}, "layers that fsdp-composer recomputes are none"),
    ],
    ids=str,
)
def test_a_wish_against_the_facts_is_told_the_stack(stack: str, pin: dict[str, Any], why: str) -> None:
    problem = problem_of(stack=stack, gpus=4, batch=8, pin=pin)
    result = search(problem)
    assert result.status == "infeasible"
    found = explanation(problem, result)
    assert why in " ".join(found.causes)
    other = [str(remedy) for remedy in found.remedies if remedy.spec.stack != stack]
    assert any(text.startswith(f"with another stack than {stack} (megatron-core)") for text in other)
