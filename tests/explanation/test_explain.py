"""An infeasible problem is explained: the true cause is named, and every remedy offered does work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpsolver.explanation import Explanation, changes, explanation
from cpsolver.explanation import cause as explain
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.rules import violations
from cpsolver.search.result import Result
from cpsolver.search.search import search
from cpsolver.spec.spec import Spec, parse_spec
from tests.support.selection import full, night


def _problem(
    model: str = "llama2-7b",
    gpus: int = 16,
    batch: int = 64,
    sequence: int = 4096,
    chips: Any = "a800",
    cluster: dict[str, Any] | None = None,
    **settings: Any,
) -> Problem:
    spec = {
        "model": model,
        "cluster": {"num_gpus": gpus, "chips": chips, **(cluster or {})},
        "training": {"global_batch_size": batch, "sequence_length": sequence},
        "search": {"top": 1, **settings},
    }
    return resolve(parse_spec(spec))


def _explained(problem: Problem) -> Explanation:
    result = search(problem)
    assert result.status == "infeasible"
    return explanation(problem, result)


def _solved(spec: Spec) -> Result:
    settings = spec.search.model_copy(update={"time_limit_s": 5.0})
    return search(resolve(spec.model_copy(update={"search": settings})))


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "model too big": ({"model": "llama2-70b", "gpus": 8}, ["Too little memory", "GiB are free", "609 GiB"]),
    "batch that no dp divides": (
        {"gpus": 296, "batch": 100},
        ["mbs x dp must divide the global batch 100", "pp may be at most the 32 layers", "none divides 100"],
    ),
    "tp that does not divide the heads": (
        {"gpus": 24, "pin": {"tp": 3}},
        ["search.pin.tp = 3", "32 attention heads"],
    ),
    "tp that does not divide the devices": ({"pin": {"tp": 3}}, ["search.pin.tp = 3 leaves no plan", "16 GPUs"]),
    "no recomputation": (
        {"model": "llama2-70b", "pin": {"recompute": "none"}},
        ["Too little memory", "under search.pin.recompute = none", "activations"],
    ),
    "micro batch over memory": (
        {"model": "llama2-70b", "pin": {"mbs": 64}},
        ["Too little memory", "under search.pin.mbs = 64", "mbs 64"],
    ),
    "micro batch over the batch": ({"pin": {"mbs": 128}}, ["search.pin.mbs = 128", "global batch of 64"]),
    "interleaving": (
        {"batch": 12, "pin": {"vpp": 2, "pp": 8}},
        ["search.pin.vpp = 2", "search.pin.pp = 8", "divide the microbatches"],
    ),
    "chip limits in whole nodes": (
        {"gpus": 24, "chips": {"a800": 12, "h800": 12}},
        ["chip limits (a800 12, h800 12)", "whole nodes of 8"],
    ),
    "even split": ({"layer_split": "even", "gpus": 24, "pin": {"pp": 3}}, ["layer_split is even", "32 layers"]),
    "layers that do not sum": ({"gpus": 8, "batch": 4, "pin": {"layers": [3, 4]}}, ["7 layers in all", "has 32"]),
    "sequence too long": ({"gpus": 8, "sequence": 1048576}, ["Too little memory", "1,048,576", "activations"]),
    "forbidden recomputation": (
        {"model": "llama2-70b", "forbid": {"recompute": ["block", "uniform"]}},
        ["Too little memory", "search.forbid.recompute = [block, uniform]"],
    ),
    "every depth forbidden": ({"forbid": {"pp": [1, 2, 4, 8, 16]}}, ["search.forbid.pp = [1, 2, 4, 8, 16]"]),
    "recomputation without its number": (
        {"pin": {"recompute": "none", "recompute_num_layers": 3}},
        ["Recomputation on a800", "search.pin.recompute_num_layers = 3"],
    ),
    "experts that ep does not divide": (
        {"model": "mixtral-8x7b", "pin": {"ep": 3}},
        ["search.pin.ep = 3; ep must divide the 8 experts"],
    ),
    "parameters sharded under a pipeline": (
        {"pin": {"sharded": "parameters", "pp": 2}},
        ["search.pin.pp = 2", "search.pin.sharded = parameters", "without a pipeline only"],
    ),
    "stages that are not so many": (
        {"chips": {"a800": 16, "h800": 16}, "pin": {"pp": 2, "stages": {"a800": 2, "h800": 1}}},
        ["search.pin.stages = {a800: 2, h800: 1}"],
    ),
}


SLOW = (
    *("model too big", "no recomputation", "micro batch over memory", "chip limits in whole nodes"),
    "recomputation without its number",
)
"""Cases of which the remedies take more than a second, each with a quicker one of its kind."""
SLOWEST = ("stages that are not so many", "sequence too long", "forbidden recomputation")


def when(name: str) -> object:
    """The case, for the run that has time for it."""
    return night(name) if name in SLOWEST else full(name) if name in SLOW else name


@pytest.mark.parametrize("name", [*map(when, CASES)])
def test_the_cause_is_named_and_the_remedies_work(name: str) -> None:
    given, said = CASES[name]
    found = _explained(_problem(**given))
    causes = " ".join(found.causes)
    assert [part for part in said if part not in causes] == [], causes
    assert found.remedies
    assert [remedy.size for remedy in found.remedies] == sorted(remedy.size for remedy in found.remedies)
    for remedy in found.remedies[:2]:
        assert violations(resolve(remedy.spec), remedy.plan.strategy) == []
        assert _solved(remedy.spec).plans, remedy.text


@pytest.mark.full
def test_the_closest_plan_is_too_big_by_what_is_said_and_breaks_no_other_rule() -> None:
    problem = _problem("llama2-70b", 8)
    closest = _explained(problem).closest
    assert closest is not None
    assert closest.factor == pytest.approx(1.95, abs=0.05)  # 18 bytes for each of 69e9 parameters over 8 devices
    assert {violation.rule for violation in violations(problem, closest.strategy)} == {"memory"}
    stage = closest.stages[closest.fullest]
    assert stage.memory.total / stage.capacity_bytes == closest.factor


@pytest.mark.full
def test_the_margin_named_is_the_largest_that_is_enough() -> None:
    problem = _problem("llama2-70b", 16, cluster={"memory_margin": 0.3}, pin={"mbs": 1, "cp": 1, "vpp": 1})
    found = [remedy for remedy in _explained(problem).remedies if "memory margin" in remedy.text]
    (remedy,) = found
    margin = remedy.spec.cluster.memory_margin
    assert margin is not None
    wider = remedy.spec.cluster.model_copy(update={"memory_margin": margin + 0.001})
    assert 0 < margin < 0.3
    assert not _solved(remedy.spec.model_copy(update={"cluster": wider})).plans


@pytest.mark.full
def test_the_number_of_gpus_named_is_enough_and_a_node_less_is_not() -> None:
    found = _explained(_problem("llama2-70b", 8))
    (remedy,) = [remedy for remedy in found.remedies if "GPUs" in remedy.text]
    assert remedy.spec.cluster.num_gpus == 16
    assert str(remedy).startswith("with 16 GPUs instead of 8 a plan exists: ")


@pytest.mark.full
def test_nearest_batches_are_the_nearest() -> None:
    found = _explained(_problem(gpus=296, batch=100))
    batches = {remedy.spec.training.global_batch_size for remedy in found.remedies} - {100}
    assert batches == {74, 111}


def test_lines_start_with_the_cause_and_end_with_remedies() -> None:
    problem = _problem(pin={"tp": 3})
    lines = explanation(problem, search(problem)).lines()
    assert lines[0].startswith("search.pin.tp = 3 leaves no plan")
    assert lines[1].startswith("Without search.pin.tp = 3 ")
    assert lines[-1].startswith("Without search.pin.tp = 3 (tp ")


def test_where_no_single_change_helps_it_says_so() -> None:
    problem = _problem("llama2-70b", 8, pin={"layers": [3, 4], "tp": 3, "pp": 2}, batch=7, sequence=1048576)
    found = _explained(problem)
    assert found.remedies == []
    assert found.lines()[-1] == "No single change that was tried makes a plan possible."


def test_a_result_with_plans_needs_no_reasons() -> None:
    problem = _problem()
    assert explanation(problem, search(problem)).lines() == ()


def test_an_interruption_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Strategy:
        raise KeyboardInterrupt

    problem = _problem(pin={"tp": 3})
    result = search(problem)
    monkeypatch.setattr(explain, "remedies", interrupted)
    lines = explanation(problem, result).lines()
    assert lines[0].startswith("search.pin.tp = 3 leaves no plan")
    assert "Interrupted" in lines[-1]


def test_another_launcher_is_a_remedy() -> None:
    problem = _problem(pin={"pp": 2})
    spec = parse_spec({**problem.spec.model_dump(mode="json"), "launcher": "accelerate"})
    found = _explained(resolve(spec))
    assert found.causes == [
        "These cannot all hold with tp x cp x pp x dp = 16 GPUs: search.pin.pp = 2; "
        "launcher accelerate has no pipeline (pp 1)."
    ]
    (remedy,) = [remedy for remedy in found.remedies if remedy.spec.launcher is None]
    assert str(remedy).startswith("with another launcher than accelerate a plan exists: ")
    assert remedy.plan.strategy.pp == 2


def test_a_stack_that_came_with_a_launcher_goes_with_it() -> None:
    """What it runs is what the launcher's framework does."""
    spec = {"model": "llama2-7b", "cluster": {"num_gpus": 16, "chips": "a800"}, "launcher": "accelerate"}
    spec |= {"training": {"global_batch_size": 64, "sequence_length": 4096}, "search": {"pin": {"pp": 2}}}
    (remedy,) = [each for each in _explained(resolve(parse_spec(spec))).remedies if each.spec.launcher is None]
    assert str(remedy).startswith("with another launcher than accelerate (stack megatron-core) a plan exists: ")
    assert remedy.plan.strategy.pp == 2


def test_a_change_that_could_not_be_settled_in_its_time_is_not_called_useless(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem("llama2-70b", gpus=256, batch=512, pin={"tp": 3})
    result = search(problem)
    late = replace(result, status="unknown", proof=replace(result.proof, stop="time_limit"))
    monkeypatch.setattr(changes, "search", lambda *_, **__: late)
    assert explanation(problem, result).lines()[-1] == (
        "No single change that was tried in the time given makes a plan possible."
    )


def test_without_time_there_is_still_a_cause() -> None:
    problem = _problem("llama2-70b", 8)
    assert explanation(problem, search(problem), seconds=0.0).causes
