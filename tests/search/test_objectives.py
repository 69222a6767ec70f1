"""Other objectives than throughput, and clusters that a plan need not fill: against brute force, and bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from io import StringIO
from itertools import product
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from cpsolver.doors.report.console import result_report
from cpsolver.doors.report.document import dumps, result_document
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.explanation.cause import explain_deadline
from cpsolver.inputs.errors import InputError
from cpsolver.plans.dimensions import family
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.rules import violations
from cpsolver.search.device_counts import count_bounds
from cpsolver.search.objective import dollars_per_million_tokens, objective_of
from cpsolver.search.result import Progress, Proof, Result
from cpsolver.search.search import search
from cpsolver.spec.spec import Spec, load_spec, parse_spec
from tests.support.oracle import legal, strategies
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of, with_stack
from tests.support.selection import first, only
from tests.support.tables import quick_tables

pytestmark = pytest.mark.usefixtures("by_formula")

PINS: dict[str, Any] = {
    "mbs": [1, 2],
    "flash_attention": True,
    "sequence_parallel": False,
    "recompute": ["none", "block"],
    "cp": 1,
    "sharded": "optimizer",
    "sharding_group": 0,
}
TOKENS = 8 * 1024


def small(seed: int, cluster: dict[str, Any], straggling: float = 0.03, **search_for: Any) -> Problem:
    """A tiny problem on one or two chip types: speeds, prices and room at random."""
    rng = np.random.default_rng(seed)
    chips: dict[str, Any] = {}
    for name in ("x", "y")[: 1 + seed % 2]:
        fields = chip_spec(float(rng.uniform(30, 150)), float(rng.uniform(3.6, 5.5)), out=float(rng.uniform(20, 200)))
        chips[name] = {"max": 4 if name == "x" else int(rng.integers(1, 5)), "spec": fields}
    node = int(rng.choice([1, 1, 2]))
    problem = problem_of(chips, model_spec(layers=4, ffn=2048), 4, node, pin=PINS, top=4, diverse=False)
    prices = {name: float(rng.uniform(1, 4)) for name in chips}
    return with_stack(asked(problem, {"prices": prices, **cluster}, **search_for), straggling=straggling)


def asked(problem: Problem, cluster: dict[str, Any], **search_for: Any) -> Problem:
    """The problem with those fields of its spec's cluster and search."""
    data = problem.spec.model_dump(mode="json")
    data["cluster"] |= cluster
    data["search"] |= search_for
    return replace(problem, spec=Spec.model_validate(data))


def deadline(step_s: float) -> dict[str, float]:
    """One that steps of so many seconds just meet."""
    return {"tokens": 1000 * TOKENS, "days": step_s * 1000 / 86_400}


@cache
def all_plans(seed: int, idle: bool) -> list[tuple[Strategy, float]]:
    """The best of every legal plan key of `small` and its step time, for each number of devices that may be used."""
    problem = small(seed, {"idle": idle})
    counts = range(problem.node, problem.num_gpus + 1, problem.node) if problem.may_idle else [problem.num_gpus]
    best: dict[object, tuple[Strategy, float]] = {}
    with quick_tables():
        for sized in map(problem.of_size, counts):
            for s in (s for s in strategies(sized) if legal(sized, s)):
                step = evaluate(sized, s).step_time_s
                if step < best.get(s.key(), (s, float("inf")))[1]:
                    best[s.key()] = s, step
    return list(best.values())


def scores(problem: Problem, result: Result) -> list[float]:
    return [objective_of(problem).score(plan.strategy, plan.evaluation.step_time_s) for plan in result.plans]


def accounted(proof: Proof) -> int:
    return sum(proof.refused.values()) + proof.memory + proof.bounded + proof.solved + proof.open


def check(problem: Problem, result: Result) -> None:
    assert result.status in ("optimal", "infeasible")
    assert accounted(result.proof) == result.proof.considered
    counts = result.proof.device_counts
    assert (counts is None) == (not problem.may_idle)
    assert counts is None or (counts.open == 0 and counts.considered == counts.cut + counts.searched)
    for plan in result.plans:
        assert plan.proven
        assert not violations(problem, plan.strategy)
        assert plan.evaluation == evaluate(problem, plan.strategy)


@pytest.mark.parametrize(
    ("seed", "objective", "idle"),
    only(
        lambda seed, objective, idle: not seed and idle == (objective == "cost"),
        product(range(4), ("throughput", "cost"), (False, True)),
    ),
)
def test_the_best_plans_are_those_of_brute_force(seed: int, objective: str, idle: bool) -> None:
    problem = small(seed, {"idle": idle}, objective=objective)
    result = search(problem)
    check(problem, result)
    every = sorted(objective_of(problem).score(s, step) for s, step in all_plans(seed, idle))
    assert scores(problem, result) == pytest.approx(every[:4], rel=1e-9)
    assert result.proof.bound == pytest.approx(every[3] if len(every) > 3 else float("inf"))
    families: dict[tuple[object, ...], float] = {}
    for s, step in all_plans(seed, idle):
        score = objective_of(problem).score(s, step)
        families[family(s)] = min(score, families.get(family(s), score))
    diverse = asked(problem, {}, diverse=True)
    assert scores(diverse, search(diverse)) == pytest.approx(sorted(families.values())[:4], rel=1e-9)


@pytest.mark.parametrize("seed", first(1, range(4)))
def test_the_cheapest_plans_in_time(seed: int) -> None:
    problem = small(seed, {"idle": True}, objective="cost")
    every = all_plans(seed, True)
    limit = sorted(step for _, step in every)[len(every) // 6]
    timed = asked(problem, {}, deadline=deadline(limit * 1.0001))
    result = search(timed)
    check(timed, result)
    in_time = sorted(objective_of(problem).score(s, step) for s, step in every if step <= limit * 1.0001)
    assert scores(timed, result) == pytest.approx(in_time[:4], rel=1e-9)


@pytest.mark.full
def test_a_deadline_is_a_question_to_the_fastest_plan_and_no_limit() -> None:
    problem = small(0, {})
    late = asked(problem, {}, deadline=deadline(1e-3))
    assert scores(late, search(late)) == scores(problem, search(problem))
    plans = result_document(late, search(late))["plans"]
    assert [plan["deadline_probability"] < 0.01 for plan in plans] == [True] * len(plans)
    assert explain_deadline(late) == ()


@pytest.mark.parametrize("seed", first(1, range(4)))
def test_the_fewest_chips_that_meet_the_deadline(seed: int) -> None:
    problem = small(seed, {"idle": True})
    every = all_plans(seed, True)
    for limit in np.quantile([step for _, step in every], [0.0, 0.1, 0.5]) * 1.0001:
        timed = asked(problem, {}, objective="fewest_chips", deadline=deadline(float(limit)))
        result = search(timed)
        check(timed, result)
        fewest = min(s.devices for s, step in every if step <= limit)
        steps = sorted(step for s, step in every if step <= limit and s.devices == fewest)
        assert {plan.strategy.devices for plan in result.plans} == {fewest}
        assert [plan.evaluation.step_time_s for plan in result.plans] == pytest.approx(steps[:4], rel=1e-9)
    hopeless = asked(problem, {}, objective="fewest_chips", deadline=deadline(min(step for _, step in every) * 0.999))
    assert search(hopeless).status == "infeasible"


@pytest.mark.parametrize("seed", first(1, range(6)))
@pytest.mark.parametrize("objective", ["throughput", "cost"])
def test_the_bound_on_a_number_of_devices_is_a_bound(seed: int, objective: str) -> None:
    problem = small(seed, {"idle": True}, objective=objective)
    counts, bounds = count_bounds(problem, objective_of(problem))
    known = dict(zip(counts.tolist(), bounds.tolist(), strict=True))
    for s, step in all_plans(seed, True):
        assert known[s.devices] <= objective_of(problem).score(s, step) * (1 + 1e-12)


def real(cluster: dict[str, Any], **search_for: Any) -> Problem:
    given = {"chips": {"a800": 64}, "model": "llama2-13b", "gpus": 64, "node": 8, "batch": 128}
    problem = problem_of(**given, sequence=4096)
    return asked(problem, {"prices": {"a800": 1.2}, **cluster}, **search_for)


@pytest.mark.full
def test_a_real_cluster_costs_less_when_it_may_idle() -> None:
    all_used, some_idle = (search(real({"idle": idle}, objective="cost")) for idle in (False, True))
    dollars = [
        dollars_per_million_tokens(real({}), r.plans[0].strategy, r.plans[0].evaluation.step_time_s)
        for r in (all_used, some_idle)
    ]
    all_used_costs, some_idle_costs = dollars
    assert all_used_costs is not None
    assert some_idle_costs is not None
    assert some_idle_costs < all_used_costs
    assert some_idle.plans[0].strategy.devices < 64
    assert some_idle.proof.device_counts is not None
    assert some_idle.proof.device_counts.considered == 8


@pytest.mark.full
def test_a_stopped_search_states_a_true_bound() -> None:
    problem = real({"idle": True}, objective="cost")
    whole, told = search(problem), list[Progress]()

    def stop(progress: Progress) -> None:
        told.append(progress)
        if progress.plans:
            raise KeyboardInterrupt

    stopped = search(problem, stop)
    assert stopped.status == "feasible"
    assert accounted(stopped.proof) == stopped.proof.considered
    assert stopped.proof.bound <= whole.proof.bound * (1 + 1e-9)
    best, found = scores(problem, whole)[0], scores(problem, stopped)[0]
    assert stopped.plans[0].gap >= 1 - best / found - 1e-9
    counts = stopped.proof.device_counts
    assert counts is not None
    assert counts.considered == counts.cut + counts.searched + counts.open
    assert {progress.unit for progress in told} == {"$ per million tokens"}
    assert search(real({"idle": True}, time_limit_s=1e-9)).proof.stop == "time_limit"


def test_devices_that_idle_count_for_nothing() -> None:
    strategy = strategy_of("x:2,2", dp=1, flags="f")
    full, half = problem_of(node=2), problem_of(node=2, gpus=2)
    idle = asked(full, {"idle": True, "prices": {"x": 3.6}})
    for problem in (full, half, idle):
        problem = with_stack(problem, straggling=0.1)
        assert evaluate(problem, strategy) == evaluate(with_stack(half, straggling=0.1), strategy)
    assert [found.rule for found in violations(full, strategy)] == ["degrees"]
    assert not violations(idle, strategy)
    (broken, *_) = violations(idle, replace(strategy, dp=4))
    assert broken.message.endswith("8 devices, not 4, and not fewer in whole nodes of 2")
    step = evaluate(idle, strategy).step_time_s
    assert dollars_per_million_tokens(idle, strategy, step) == pytest.approx(step * 2 * 3.6 / 3600 / TOKENS * 1e6)
    assert dollars_per_million_tokens(full, strategy, step) is None


def wrong(cluster: dict[str, Any], **search_for: Any) -> str:
    data = {
        "model": "llama2-70b",
        "cluster": {"num_gpus": 256, "chips": {"a800": 128, "h800": 160}, **cluster},
        "training": {"global_batch_size": 512, "sequence_length": 4096},
        "search": search_for,
    }
    with pytest.raises(InputError) as caught:
        parse_spec(data)
    return str(caught.value)


SOON = {"tokens": 1e12, "days": 30}


@pytest.mark.parametrize(
    ("cluster", "search_for", "said"),
    [
        ({"prices": {"a80": 1}}, {}, "cluster.prices.a80: 'a80' is not one of cluster.chips (allowed: a800, h800)"),
        ({"prices": {"a80": 1}}, {}, "did you mean 'a800'"),
        ({"prices": {"a800": 0}}, {}, "cluster.prices.a800 = 0: must be more than 0"),
        ({"prices": 0}, {}, "cluster.prices = 0: must be more than 0"),
        ({"prices": "cheap"}, {}, "cluster.prices = 'cheap': must be a number for all chips, or a mapping"),
        ({"prices": True}, {}, "cluster.prices = true: must be a number for all chips"),
        ({"prices": {"a800": "cheap"}}, {}, "cluster.prices.a800 = 'cheap': must be a number"),
        ({"prices": {"a800": 1}}, {"objective": "cost"}, "cluster.prices: lacks h800: search.objective = 'cost'"),
        ({}, {"objective": "cost"}, "cluster.prices: lacks a800, h800"),
        ({}, {"objective": "price"}, "allowed: throughput, cost, fewest_chips"),
        ({}, {"objective": "fewest_chips"}, "search.deadline: is missing"),
        ({}, {"deadline": {"days": 30}}, "search.deadline.tokens: is missing, and so is training.tokens"),
        (
            {},
            {"objective": "fewest_chips", "deadline": {"tokens": 1e12}},
            "search.deadline.days: is required",
        ),
        ({}, {"objective": "fewest_chips", "deadline": {**SOON, "days": 0}}, "search.deadline.days = 0"),
        ({}, {"objective": "fewest_chips", "deadline": {**SOON, "weeks": 1}}, "search.deadline.weeks"),
        ({"idle": 1}, {}, "cluster.idle = 1: must be true or false"),
        ({"prices": {"a80": 1}, "num_gpus": 7}, {"deadline": {"days": 3}}, "search.deadline.tokens: is missing"),
        ({"prices": {"a80": 1}, "memory_margin": 7}, {"deadline": {"days": 3}}, "search.deadline.tokens: is missing"),
    ],
)
def test_what_is_wrong_is_named(cluster: dict[str, Any], search_for: dict[str, Any], said: str) -> None:
    assert said in wrong(cluster, **search_for)


def test_one_price_is_that_of_every_chip() -> None:
    fields = {"model": "llama2-7b", "training": {"global_batch_size": 8, "sequence_length": 512}}
    cluster = {"num_gpus": 16, "chips": ["a800", "h800"], "prices": 2.5}
    spec = parse_spec({**fields, "cluster": cluster})
    assert spec.cluster.prices == {"a800": 2.5, "h800": 2.5}
    assert parse_spec(spec.model_dump(mode="json")) == spec


def test_a_spec_with_prices_and_a_deadline_keeps_them(tmp_path: Any) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(
        "model: llama2-70b\ncluster: {num_gpus: 64, chips: [a800], idle: true, prices: {a800: 1.2}}\n"
        "training: {global_batch_size: 512, sequence_length: 4096}\n"
        "search: {objective: fewest_chips, deadline: {tokens: 1.0e+12, days: 30}}\n"
    )
    spec = load_spec(file)
    assert spec.search.deadline is not None
    assert spec.search.deadline.step_time_s(512 * 4096) == pytest.approx(30 * 86_400 / (1e12 / (512 * 4096)), rel=1e-5)
    assert parse_spec(spec.model_dump(mode="json")) == spec


def told(problem: Problem, result: Result) -> str:
    console = Console(file=StringIO(), width=100)
    console.print(result_report(problem, result))
    assert isinstance(console.file, StringIO)
    return " ".join(console.file.getvalue().split())


def test_reports_tell_objective_dollars_and_idle_devices() -> None:
    problem = small(0, {"idle": True}, objective="cost", deadline=deadline(60.0))
    result = search(problem)
    text, best = told(problem, result), result.plans[0]
    dollars = dollars_per_million_tokens(problem, best.strategy, best.evaluation.step_time_s)
    assert dollars is not None
    for part in (
        "objective: the fewest dollars per token; 8.192e+06 tokens in",
        f"${dollars:,.3f} per million tokens, on {best.strategy.devices} GPU",
        "the 4 cheapest of",
        "dearer than best",
        "numbers of GPUs in whole nodes: ",
    ):
        assert part in text
    document = json.loads(dumps(result_document(problem, result)))
    assert document["problem"]["objective"] == "cost"
    assert document["problem"]["deadline"]["step_time_s"] == pytest.approx(60.0)
    assert document["proof"]["device_counts"]["considered"] == problem.num_gpus // problem.node
    assert document["proof"]["bound"] == result.proof.bound
    plan = document["plans"][0]
    assert (plan["devices"], plan["devices"] + plan["idle_devices"]) == (best.strategy.devices, problem.num_gpus)
    assert plan["dollars_per_million_tokens"] == pytest.approx(dollars)


def test_a_deadline_that_cannot_be_met_is_explained() -> None:
    problem = small(0, {}, objective="fewest_chips", deadline=deadline(1e-3))
    result = search(problem)
    (line,) = explain_deadline(problem)
    assert "8,192,000 tokens in" in line
    assert "the fastest plan takes" in line
    assert "on any of" in told(problem, result)
    assert explain_deadline(small(0, {})) == ()


def chip_of(tflops: float, gb: float, gb_s: float, up: float, out: float) -> dict[str, Any]:
    return {"spec": chip_spec(tflops, gb, gb_s, up, out)}


LEFT_OUT: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "replicas that only a third micro batch divides": (
        {
            "cluster": {
                "chips": {"one": chip_of(846.8, 4.1479, 4000, 100, 10)},
                "gpus_per_node": 4,
                "num_gpus": 12,
                "idle": True,
            },
            "model": {"layers": 3, "vocab": 4000, "moe": {"expert_ffn": 128, "experts": 4, "top_k": 1}},
            "training": {"global_batch_size": 6, "sequence_length": 2048},
            "search": {"pin": {"cp": 1, "pp": 1, "recompute": ["none"], "sharded": "optimizer", "tp": 2}},
        },
        (2, 3),
    ),
    "micro batches in time where one sequence is late": (
        {
            "cluster": {
                "chips": {"one": chip_of(872, 4.38, 4000, 450, 100), "two": chip_of(327.1, 64, 1500, 450, 10)},
                "gpus_per_node": 2,
                "num_gpus": 2,
            },
            "model": {"layers": 6, "vocab": 64000, "moe": {"expert_ffn": 128, "experts": 6, "top_k": 1}},
            "training": {"global_batch_size": 6, "sequence_length": 1024},
            "search": {
                "objective": "fewest_chips",
                "deadline": {"days": 0.547, "tokens": 1e9},
                "pin": {"ep": 2, "sequence_parallel": True},
                "forbid": {"pp": [2]},
            },
        },
        (1, 6),
    ),
    "groups of some replicas, all of them together being forbidden": (
        {
            "cluster": {"chips": {"one": chip_of(640.2, 6.17361, 400, 100, 100)}, "gpus_per_node": 1, "num_gpus": 12},
            "model": {"ffn": 256, "heads": 8, "hidden": 512, "layers": 3, "vocab": 64000},
            "training": {"global_batch_size": 12, "sequence_length": 768},
            "launcher": "mindspeed-llm",
            "search": {
                "objective": "fewest_chips",
                "deadline": {"days": 15.565, "tokens": 1e9},
                "forbid": {"sharding_group": [0, 1]},
                "pin": {
                    "cp": 1,
                    "flash_attention": True,
                    "mbs": 1,
                    "recompute": ["none"],
                    "schedule": "1f1b",
                    "vpp": 1,
                },
            },
        },
        (4, 1),
    ),
}
"""Numbers of devices that were left out although they hold the best plan: its replicas and micro batch."""


@pytest.mark.parametrize("name", LEFT_OUT)
def test_every_micro_batch_counts_in_the_bound_of_a_number_of_devices(name: str) -> None:
    spec, best = LEFT_OUT[name]
    problem = resolve(parse_spec({**spec, "model": {"ffn": 1024, "heads": 4, "hidden": 256, **spec["model"]}}))
    plan = search(problem).plans[0].strategy
    assert (plan.dp, plan.mbs) == best


def test_layouts_that_dualpipe_cannot_run_hide_no_number_of_devices() -> None:
    """One device alone has no even number of stages, and three microbatches no half: such frames had no bound at all,
    which left their number of devices out where 1F1B was allowed beside it."""
    chips = {
        name: {"max": 2, "spec": chip_spec(tflops=tflops, gb=4, gb_s=4000, up=up, out=10)}
        for name, tflops, up in (("one", 350, 450), ("two", 830, 100))
    }
    spec = {
        "model": {"ffn": 256, "heads": 6, "hidden": 384, "layers": 5, "vocab": 997},
        "cluster": {"chips": chips, "gpus_per_node": 1, "idle": True, "num_gpus": 2, "prices": {"one": 8, "two": 1}},
        "training": {"global_batch_size": 12, "sequence_length": 2048},
    }
    found = []
    for schedules in (["1f1b"], ["1f1b", "dualpipe"]):
        problem = resolve(parse_spec({**spec, "search": {"objective": "cost", "schedules": schedules}}))
        assert np.isfinite(count_bounds(problem, objective_of(problem))[1]).all()
        found.append([plan.strategy for plan in search(problem).plans])
    assert found[0] == found[1] != []
