"""How far published runs reach, and what is said of plans beyond them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.measured_ranges import written
from cpsolver.evidence.reach import MEASURED, beyond_runs
from cpsolver.evidence.runs.ranges import ranges_of
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from cpsolver.problem.load import make_problem
from cpsolver.problem.problem import Problem
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of

MOE = {"experts": 8, "top_k": 2, "expert_ffn": 512}


def problem(sequence: int = 4096, **model: Any) -> Problem:
    return problem_of({"x": chip_spec()}, model_spec(layers=48, **model), gpus=8, sequence=sequence)


def test_the_ranges_are_the_tables() -> None:
    """`python -m benchmarks.measured_ranges` writes them anew."""
    assert MEASURED.read_text(encoding="utf-8") == written()


def test_an_ordinary_plan_lies_within() -> None:
    assert beyond_runs(problem(), strategy_of("x:24,24", tp=2, dp=2)) == ()


@pytest.mark.parametrize(
    ("plan", "sequence", "told"),
    [
        ({"groups": "x:24,24", "vpp": 24, "dp": 4}, 4096, ["vpp 24 (most measured: 12)"]),
        ({"groups": "x:48", "dp": 2, "cp": 4}, 4096, ["1,024 tokens on a rank of cp (least measured: 2,048)"]),
        ({"groups": "x:48", "dp": 1, "tp": 32}, 4096, ["tp 32 (most measured: 16)"]),
    ],
)
def test_what_no_run_had_is_named(plan: dict[str, Any], sequence: int, told: list[str]) -> None:
    found = beyond_runs(problem(sequence), strategy_of(**plan))
    assert len(found) == len(told)
    assert all(text.startswith(start) for text, start in zip(found, told, strict=True))


def test_dense_runs_say_nothing_of_models_with_experts() -> None:
    plan = strategy_of("x:3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3", dp=1)
    dense, experts = ranges_of(read_runs(PUBLISHED).runs)["dense"], ranges_of(read_runs(PUBLISHED).runs)["experts"]
    deep = replace(plan, pp=int(experts["pp"]) + 1)
    assert experts["pp"] < dense["pp"]
    assert not any(text.startswith("pp ") for text in beyond_runs(problem(), deep))
    assert any(text.startswith("pp ") for text in beyond_runs(problem(moe=MOE), deep))


def test_what_no_run_says_of_its_cluster_is_beyond_all_runs() -> None:
    def beyond(chip: dict[str, Any], network: Any = None, gpus: int = 64) -> tuple[str, ...]:
        cluster = {"num_gpus": gpus, "chips": {"a100": chip}, "network": network}
        training = {"global_batch_size": 64, "sequence_length": 2048}
        problem = make_problem({"model": "llama2-7b", "cluster": cluster, "training": training}, {}, {})
        return beyond_runs(problem, strategy_of("a100:32", tp=1, dp=gpus))

    levels = [{"name": "rack", "nodes": 4}, {"name": "row", "oversubscription": 2}]
    assert beyond({}, {"levels": [*levels[:1], {"name": "row"}]}) == ()
    assert beyond({}, {"levels": levels}) == ("less bandwidth beyond 32 devices of the network",)
    assert beyond({}, {"levels": levels}, 32) == ()  # all in a rack
    assert beyond({"nvlink": "none"}) == ("a100 without NVLink",)
    assert beyond({"network_gbit_s": 100}) == ()
