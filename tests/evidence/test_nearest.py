"""Published runs beside a plan, and what none of them has had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.fit_risk import nearest_row
from cpsolver.evidence import nearest
from cpsolver.evidence.nearest import PublishedRun, nearest_runs, published_runs, unmeasured
from cpsolver.evidence.runs.score import Scored
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from cpsolver.evidence.runs.validation import predict
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.spec.spec import parse_spec
from models_zoo import total_parameters
from tests.support.problems import model_spec, strategy_of


def case(chips: str = "a800", stack: str = "nemo", sequence: int = 4096, **more: object) -> Problem:
    spec = {
        "model": model_spec(layers=8, **more),
        "cluster": {"num_gpus": 16, "gpus_per_node": 8, "chips": chips},
        "training": {"global_batch_size": 16, "sequence_length": sequence},
        "stack": stack,
    }
    return resolve(parse_spec(spec))


def plan(chip: str = "a800", **more: Any) -> Strategy:
    return strategy_of(f"{chip}:4,4", **{"dp": 8 // more.get("cp", 1), **more})


def run(problem: Problem, strategy: Strategy, name: str, **more: object) -> PublishedRun:
    """A run just like the plan, but for `more`."""
    sizes = {each: getattr(strategy, each) for each in ("tp", "pp", "cp", "ep", "vpp")}
    same = PublishedRun(
        id=name,
        model="m",
        parameters=float(total_parameters(problem.model)),
        stack=problem.stack.name,
        architecture="ampere",
        chip="a800",
        experts=False,
        devices=strategy.devices,
        sequence=problem.sequence,
        **sizes,
        measured_s=10.0,
        predicted_s=11.0,
    )
    return replace(same, **more)  # type: ignore[arg-type]


def test_stack_architecture_and_kind_come_before_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, strategy = case(), plan()
    runs = (
        run(problem, strategy, "other stack", stack="mindspeed"),
        run(problem, strategy, "far", pp=16, tp=8, sequence=65536),
        run(problem, strategy, "twice as deep", pp=4),
        run(problem, strategy, "unpredicted", predicted_s=None),
        run(problem, strategy, "other kind", experts=True, architecture="hopper"),
        run(problem, strategy, "the same"),
    )
    monkeypatch.setattr(nearest, "published_runs", lambda: runs)
    assert [found.id for found in nearest_runs(problem, strategy)] == ["the same", "twice as deep", "far"]


def test_what_was_measured_in_every_part_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, strategy = case(), plan(cp=2)
    monkeypatch.setattr(nearest, "published_runs", lambda: (run(problem, strategy, "the same"),))
    assert unmeasured(problem, strategy) == []
    assert unmeasured(problem, plan()) == []


def test_what_was_not_measured_together_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, strategy = case(), plan(cp=2)
    longer = run(problem, strategy, "longer", sequence=8192, architecture="hopper")
    here = run(problem, strategy, "here", cp=1, stack="mindspeed")
    monkeypatch.setattr(nearest, "published_runs", lambda: (longer, here))
    assert unmeasured(problem, strategy) == ["nemo on ampere", "cp on ampere", "cp 2 at 4,096 tokens"]
    monkeypatch.setattr(nearest, "published_runs", lambda: (longer,))
    assert unmeasured(problem, plan()) == ["a chip of the kind ampere"]


def test_sizes_beyond_all_runs_are_named_too() -> None:
    deep = plan(vpp=24)
    assert unmeasured(case(), deep)[0].startswith("vpp 24 (most measured")


def test_the_file_is_the_table_s() -> None:
    """`python -m benchmarks.fit_risk` writes it anew."""
    kept = {found.id: found for found in published_runs()}
    runs = [found for found in read_runs(PUBLISHED).runs if found.id in kept]
    assert len(runs) == len(kept) > 700
    for found in (each for each in runs if each.complete and each.outcome == "ok"):
        if found.line % 60:
            continue
        now, then = nearest_row(found, Scored(found, predict(found))), kept[found.id]
        assert then.predicted_s == pytest.approx(now.predicted_s, rel=0.005)
        assert replace(then, predicted_s=None, predicted_gib=None) == replace(now, predicted_s=None, predicted_gib=None)
