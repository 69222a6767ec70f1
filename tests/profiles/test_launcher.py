"""Launcher profiles: every fact with its source, the known differences, and the same verdict by rule and by rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cpsolver.cost.shard import Candidates
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import SHARDED, Sharded, StageGroup, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.profiles.facts import Facts, tied_stages
from cpsolver.profiles.framework import Framework, launcher_names, load_launcher
from cpsolver.profiles.judging import FACTS, allowed_rows
from cpsolver.rules import RULES, violations
from cpsolver.search.search import search
from cpsolver.spec.spec import parse_spec
from models_zoo import Architecture
from tests.support.oracle import brute_force
from tests.support.problems import chip_spec, model_spec, problem_of, spec_of
from tests.support.selection import full, only
from tests.support.tables import quick_tables

MEGATRON = ("megatron-core-0.12", "megatron-core-0.13", "megatron-lm", "megatron-bridge", "mindspeed-llm", "loongforge")
STATED = tuple(name for name, field in Facts.model_fields.items() if field.is_required())
"""The facts that every launcher profile states."""
OLD = ("megatron-core-0.12", "megatron-core-0.13", "mindspeed-llm", "flagscale", "loongforge")
BIASED = Architecture.model_validate(
    {
        "name": "biased",
        "bias_mlp": True,
        **model_spec(layers=12, kv_heads=2, moe={"experts": 8, "top_k": 2, "expert_ffn": 512}),
    }
)
PREDICTING = BIASED.model_copy(update={"mtp_layers": 1})


@pytest.mark.parametrize("name", launcher_names())
def test_every_fact_has_a_source(name: str) -> None:
    found = load_launcher(name)
    assert found.name == name
    assert 20 < len(found.title) < 130
    assert set(STATED) <= set(found.sources) <= set(Facts.model_fields)
    assert all(len(source) >= 4 for source in found.sources.values())
    assert all(field.description for field in Facts.model_fields.values())
    assert bool(found.uneven_flag) == (found.uneven_layers != "none")
    assert found.uneven_groups == "any" or found.uneven_interleaved != "any"  # else it would tie frames to variants


def test_the_dialects_differ_where_the_parsers_do() -> None:
    told = {name: load_launcher(name) for name in launcher_names()}
    assert {name for name in told if told[name].kv_groups == "divides_or_multiple"} == {
        "megatron-lm",
        "megatron-bridge",
        "verl",
    }
    assert all(told[name].kv_groups == "divides" for name in OLD)
    assert {name for name in told if told[name].uneven_layers == "first_last"} == {"megatron-core-0.12"}
    assert {name for name in told if told[name].recompute_per_chip} == {"flagscale", "loongforge", "mindformers"}
    assert {name for name in told if told[name].uneven_layers == "none"} == {
        "deepspeed",
        "accelerate",
        "paddleformers",
        "megatron-deepspeed",
    }
    assert all(told[name].sharded_pipeline == ("optimizer",) for name in (*MEGATRON, "deepspeed", "flagscale"))


def split(framework: Framework, vpp: int, cp: int) -> str:
    """What the layers by stage may be with that many chunks and context-parallel ranks."""
    row = SimpleNamespace(vpp=vpp, cp=cp, distributed_optimizer=False, sharding_group=0, schedule=1)
    equal, tied = tied_stages(framework, BIASED, row)
    return "none" if equal else "first_last" if tied else "any"


def runs(framework: Framework, model: Architecture, num_chip_types: int, rows: Candidates) -> np.ndarray:
    """The rows that the framework runs with plans of that many chip types, as far as degrees and flags say."""
    parts: tuple[Any, ...] = ("layout", "variant", "frame", *("mixture",) * (num_chip_types > 1))
    return np.asarray(np.logical_and.reduce([allowed_rows(framework, model, rows, part) for part in parts]))


def test_facts_are_asked_of_a_part_of_a_plan_that_has_what_they_look_at() -> None:
    assert {part for fact in FACTS for part in fact.parts} == {"layout", "variant", "frame", "mixture", "plan"}
    assert all(fact.parts and fact.judge.__name__.startswith("_") for fact in FACTS)


def test_what_stages_may_hold_depends_on_chunks_and_context() -> None:
    flagscale, megatron = load_launcher("flagscale"), load_launcher("megatron-lm")
    assert [split(flagscale, vpp, cp) for vpp, cp in ((1, 1), (2, 1), (1, 2))] == ["any", "first_last", "first_last"]
    assert split(megatron, 2, 2) == "any"
    assert split(load_launcher("deepspeed"), 1, 1) == "none"
    assert load_launcher("deepspeed").kinds(("none", "selective", "uniform")) == ("none", "uniform")


def test_unknown_names() -> None:
    with pytest.raises(InputError) as caught:
        load_launcher("megatronlm")
    (trouble,) = caught.value.troubles
    assert (trouble.where, trouble.nearest[0]) == ("launcher", "megatron-lm")
    with pytest.raises(InputError, match="unknown launcher"):
        resolve(parse_spec({**spec_of(), "launcher": "deep-sped"}))


def test_a_spec_names_its_launcher_or_none() -> None:
    assert resolve(parse_spec(spec_of())).launcher is None
    assert resolve(parse_spec({**spec_of(), "launcher": None})).launcher is None
    assert resolve(parse_spec({**spec_of(), "launcher": "flagscale"})).launcher == load_launcher("flagscale")


CONTEXT = ((1, 1, False), (2, 1, False), (2, 1, True), (2, 2, False), (4, 2, False))
SHARES: tuple[tuple[bool, Sharded, int], ...] = (
    *((False, "optimizer", 0), (True, "optimizer", 0), (True, "optimizer", 2), (True, "gradients", 0)),
    *((True, "parameters", 0), (True, "parameters", 2), (True, "parameters", 4)),
)


BATCH = 8


def plans(chips: tuple[str, ...]) -> list[Strategy]:
    """Degrees and flags of every kind that a profile judges, with equal stages and chips in equal blocks."""
    degrees = product((1, 4), (1, 2, 8), (1, 4), (1, 2), (False, True), CONTEXT, (1, 2, 8), (1, 2), SHARES)
    found: list[Strategy] = []
    for tp, pp, dp, vpp, sequence, (cp, ulysses, gather), ep, etp, (zero, sharded, group) in degrees:
        if pp < len(chips):
            continue
        groups = tuple(StageGroup(chip, (vpp,) * (pp // len(chips))) for chip in chips)
        more: dict[str, Any] = {"cp": cp, "ulysses": ulysses, "cp_gather": gather, "ep": ep, "etp": etp}
        flash = len(found) % 5 > 0
        found.append(
            Strategy(
                *(tp, pp, dp, 1, vpp, sequence, zero, flash, groups), **more, sharded=sharded, sharding_group=group
            )
        )
    return found


def rows_of(found: list[Strategy]) -> Candidates:
    names = [field.name for field in fields(Candidates) if hasattr(found[0], field.name)]
    columns: dict[str, Any] = {name: [getattr(plan, name) for plan in found] for name in names}
    columns["microbatches"] = [plan.microbatches(BATCH) for plan in found]
    columns["sharded"] = [1 + SHARDED.index(plan.sharded) for plan in found]
    return Candidates(**{name: np.array(column) for name, column in columns.items()})


@pytest.fixture(scope="module")
def problem() -> Problem:
    problem = problem_of({"x": chip_spec(), "y": chip_spec()}, model_spec(layers=12, kv_heads=2))
    return replace(problem, model=BIASED)


KINDS = {
    "one chip": (("x",), BIASED),
    "two chips": (("x", "y"), BIASED),
    "multi-token prediction": (("x",), PREDICTING),
}


def _in_turn(name: str, kind: str) -> bool:
    return (launcher_names().index(name) - list(KINDS).index(kind)) % len(KINDS) == 0


@pytest.mark.parametrize(("name", "kind"), only(_in_turn, product(launcher_names(), KINDS)))
def test_rows_are_allowed_where_the_rule_finds_nothing(name: str, kind: str, problem: Problem) -> None:
    chips, model = KINDS[kind]
    profile, found = load_launcher(name), plans(chips)[::4]
    told = replace(problem, launcher=profile, model=model)
    rows = rows_of(found)
    allowed = runs(profile, model, len(chips), rows)
    legal = [not any(True for _ in RULES["launcher"](told, plan)) for plan in found]
    wrong = [plan for plan, a, b in zip(found, allowed.tolist(), legal, strict=True) if a != b]
    assert not wrong, wrong[0]
    assert allowed.any() or not profile.mixed_chips
    assert not allowed.all()


@pytest.mark.parametrize("name", launcher_names())
def test_the_parts_are_the_whole(name: str) -> None:
    """Each part may be asked as soon as what it looks at is decided: the others keep their defaults."""
    profile, rows = load_launcher(name), rows_of(plans(("x",))[::7])
    whole = runs(profile, BIASED, 1, rows)
    layouts = allowed_rows(profile, BIASED, rows, "layout")
    first = Candidates.one(plans(("x",))[0], 8)
    undecided = replace(rows, **{key: getattr(first, key) for key in ("ep", "etp", "ulysses")})
    assert (allowed_rows(profile, BIASED, undecided, "layout") == layouts).all()
    undecided = replace(undecided, vpp=first.vpp)
    assert (allowed_rows(profile, BIASED, undecided, "layout") >= layouts).all()
    assert not (whole & ~layouts).any()
    mixed = allowed_rows(profile, BIASED, rows, "mixture")
    assert (runs(profile, BIASED, 2, rows) == (whole & mixed)).all()


SMALL = model_spec(layers=4, hidden=512, ffn=1024)
FIXED = {"tp": 1, "mbs": 1, "flash_attention": True, "sequence_parallel": False, "recompute": ["none"]}
ONE_WAY = {**FIXED, "mbs": 4, "pp": 2, "vpp": 1, "cp": 1, "distributed_optimizer": False}
EXPERTS = {"experts": 4, "top_k": 2, "expert_ffn": 512}


def tight(y: float = 4.3) -> dict[str, Any]:
    """Two chip types; the second, slower one has less memory."""
    return {"x": chip_spec(gb=5.0), "y": chip_spec(tflops=60, gb=y)}


def tasks() -> Iterator[tuple[str, Problem]]:
    """Tiny problems, each for some of what launchers differ in."""
    ways = {**ONE_WAY, "recompute": ["none", "selective", "block", "uniform"]}
    yield "recomputation", problem_of(tight(), SMALL, 2, 1, 8, 4096, top=4, diverse=False, pin=ways)
    yield (
        "selective",
        problem_of(tight(4.6), SMALL, 2, 1, 8, 2048, diverse=False, pin={**ways, "flash_attention": False}),
    )
    stages: dict[str, Any] = {"recompute_scope": "stage", "pin": ways}
    yield (
        "recomputation by stage",
        problem_of({"x": chip_spec(gb=4.4)}, SMALL, 2, 2, 8, 4096, top=4, diverse=False, **stages),
    )
    ring = {"cp": [1, 2], "ulysses": 1, "cp_gather": False, "distributed_optimizer": False}
    uneven = model_spec(layers=7, hidden=512, ffn=1024, vocab=32_000)
    yield (
        "layers",
        problem_of({"x": chip_spec()}, uneven, 8, 8, 8, top=4, diverse=False, pin={**FIXED, **ring, "pp": [2, 4]}),
    )
    even = model_spec(layers=8, hidden=512, ffn=1024, vocab=32_000)
    yield (
        "layers by chip",
        problem_of(tight(20), even, 4, 1, 4, diverse=False, pin={**FIXED, **ring, "cp": 1, "pp": 4, "vpp": [1, 2]}),
    )
    depth: dict[str, Any] = {**FIXED, "pp": [1, 2], "cp": [1, 2], "ulysses": 1, "cp_gather": False}
    depth |= {"sharding_group": [0, 2], "sharded": "optimizer"}
    chips = {"x": chip_spec(), "y": chip_spec(tflops=60)}
    yield "mixtures", problem_of(chips, model_spec(layers=6), 4, 1, 4, top=6, diverse=False, pin=depth)
    some = {"x": {"spec": chip_spec(), "max": 2}, "y": chip_spec(tflops=60)}
    yield (
        "too few of one type",
        problem_of(some, model_spec(layers=6), 4, 1, 4, top=6, diverse=False, pin={**depth, "pp": 2}),
    )
    grid = {**FIXED, "cp": 1, "tp": [1, 2], "sequence_parallel": [False, True]}
    yield "experts", problem_of(model=model_spec(moe=EXPERTS), batch=4, top=6, diverse=False, pin=grid)
    dense = model_spec(layers=4, hidden=512, ffn=1024, moe={**EXPERTS, "first_dense": 1})
    kinds = {**ways, "ep": 1, "recompute": ["none", "block", "uniform"]}
    few = {**FIXED, "mbs": [1, 2, 4], "pp": [2, 4], "cp": [1, 2], "vpp": 1, "distributed_optimizer": False}
    yield "few microbatches", problem_of({"x": chip_spec()}, SMALL, 4, 4, 4, top=6, diverse=False, pin=few)
    shared = {"pp": 2, "cp": [1, 2], "vpp": [1, 2], "sharding_group": [0, 2], "recompute": ["none", "block"]}
    shared |= {"sharded": "optimizer", "distributed_optimizer": True, "ulysses": [1, 2], "cp_gather": False}
    tuned: dict[str, Any] = {"recompute_scope": "stage", "pin": {**FIXED, **shared}}
    yield (
        "stages with chunks and groups",
        problem_of({"x": chip_spec(gb=3.45)}, SMALL, 8, 8, 16, 4096, top=8, diverse=False, **tuned),
    )
    ahead = {**FIXED, "pp": [1, 2, 4], "cp": [1, 2], "recompute": "none", "ulysses": 1}
    more = model_spec(layers=5, hidden=512, ffn=1024, mtp_layers=1)
    yield "prediction", problem_of({"x": chip_spec()}, more, 4, 4, 4, top=8, diverse=False, pin=ahead)
    yield "kinds of layers", problem_of(tight(4.6), dense, 2, 1, 8, 4096, top=4, diverse=False, pin=kinds)


TASKS = dict(tasks())


SLOW = {
    ("megatron-deepspeed", "experts"),
    ("megatron-bridge", "layers by chip"),
    ("megatron-core-0.13", "too few of one type"),
}


def _quick(name: str, task: str) -> bool:
    """Every task and every launcher, in turn, but for what takes long."""
    if (name, task) in SLOW:
        return False
    return (launcher_names().index(name) - list(TASKS).index(task)) % min(len(TASKS), len(launcher_names())) == 0


_PAIRS = [
    (name, task)
    for i, name in enumerate(launcher_names())
    for j, task in enumerate(TASKS)
    if (i + j) % 2 == 0 or _quick(name, task)
]


@pytest.mark.parametrize(("name", "task"), only(_quick, _PAIRS))
def test_the_search_finds_the_best_plans_that_the_launcher_can_run(name: str, task: str) -> None:
    problem = replace(TASKS[task], launcher=load_launcher(name))
    with quick_tables():
        best = brute_force(problem)
        result = search(problem)
    assert result.status == ("optimal" if best else "infeasible")
    found = [plan.evaluation.step_time_s for plan in result.plans]
    assert found == pytest.approx(sorted(best.values())[: problem.spec.search.top], rel=1e-6)
    assert not [told for plan in result.plans for told in violations(problem, plan.strategy)]


@pytest.mark.parametrize(
    ("task", "strict", "free"),
    [
        ("recomputation", "megatron-lm", "flagscale"),
        full("recomputation by stage", "megatron-lm", "loongforge"),
        full("layers", "megatron-core-0.12", "megatron-core-0.13"),
        full("mixtures", "flagscale", "megatron-lm"),
        ("experts", "deepspeed", "torchtitan"),
        ("few microbatches", "torchtitan", "megatron-lm"),
        full("stages with chunks and groups", "flagscale", "loongforge"),
        ("prediction", "torchtitan", "megatron-lm"),
    ],
)
def test_what_a_launcher_cannot_run_costs_time(task: str, strict: str, free: str) -> None:
    told = [search(replace(TASKS[task], launcher=load_launcher(name))).plans for name in (strict, free)]
    slow, fast = (sum(plan.evaluation.step_time_s for plan in plans) for plans in told)
    assert len(told[0]) < len(told[1]) or slow > fast * (1 + 1e-6)
