"""Steps with each value of the switches that a spec leaves open are those of specs that give it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.explanation.open_switches import OpenSwitches, open_switches
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of, with_host, with_stack

MOE = model_spec(moe={"experts": 4, "top_k": 2, "expert_ffn": 512})
SLOW_HOST = {"host_expert_layer_us": 3500, "host_expert_layer_te_us": 900, "host_all_to_all_us": 3000}
PLAN = strategy_of(dp=4, ep=4)


def of(model: dict[str, Any] | None = None, pin: dict[str, Any] | None = None, **given: Any) -> Problem:
    """Four devices, and a host that takes longer than they do for experts."""
    chip = chip_spec(block_formats=["mx", "nvfp4"])
    chip["peak_tflops"] |= {"fp8": 200}
    problem = problem_of({"x": chip}, model or MOE, **({} if pin is None else {"pin": pin}), **given)
    return with_stack(problem, **SLOW_HOST)


def found(problem: Problem, plan: Strategy = PLAN, searched: bool = True) -> OpenSwitches | None:
    return open_switches(problem, plan, evaluate(problem, plan), searched)


def fields(problem: Problem, plan: Strategy = PLAN, searched: bool = True) -> list[str]:
    told = found(problem, plan, searched)
    return [] if told is None else [switch.field for switch in told.switches]


def test_every_value_takes_what_a_spec_that_gives_it_is_predicted() -> None:
    told = found(of())
    assert told is not None
    graphs, dispatcher = told.switches
    assert (graphs.field, graphs.taken, list(graphs.steps_s)) == ("training.cuda_graph", "none", ["none", "te", "full"])
    assert (dispatcher.field, dispatcher.taken) == ("training.moe_dispatcher", "alltoall")
    assert set(dispatcher.steps_s) == {"alltoall", "deepep", "hybridep"}
    for switch in told.switches:
        name = switch.field.removeprefix("training.")
        for value, step in switch.steps_s.items():
            assert step == pytest.approx(evaluate(of(training={name: value}), PLAN).step_time_s), (name, value)
    best = evaluate(of(training={"cuda_graph": "full", "moe_dispatcher": "hybridep"}), PLAN).step_time_s
    assert told.low_s == pytest.approx(best)
    assert told.high_s == pytest.approx(evaluate(of(), PLAN).step_time_s)  # nothing taken is slower than another value


def test_what_the_spec_gives_is_not_open() -> None:
    assert fields(of(training={"cuda_graph": "none"})) == ["training.moe_dispatcher"]
    assert fields(of(training={"moe_dispatcher": "deepep"})) == ["training.cuda_graph"]
    given = of(training={"cuda_graph": "full", "moe_dispatcher": "alltoall", "expert_imbalance": 1.2})
    assert found(given) is None


def test_values_that_the_framework_lacks_or_that_contradict_the_spec_are_left_out() -> None:
    assert fields(of(launcher="megatron-core-0.13")) == ["training.moe_dispatcher"]  # no graphs
    assert not fields(of(launcher="mindspeed-llm"))
    assert fields(of(launcher="megatron-lm")) == ["training.cuda_graph", "training.moe_dispatcher"]
    assert not fields(of(stack="mindspeed"))
    assert not fields(of(stack="fsdp-torchtitan"))
    assert fields(of(stack="megatron-lm-moe"))[0] == "training.cuda_graph"  # fitted with Megatron-Bridge's
    told = found(with_host(of(), offload_layers=1))
    assert told is not None
    assert list(told.switches[0].steps_s) == ["none", "full"]


def test_the_overlap_is_told_where_a_search_chose_it() -> None:
    plan = replace(PLAN, mbs=1, expert_overlap=True)
    told = found(of(), plan)
    assert told is not None
    overlap = told.switches[-1]
    assert (overlap.field, overlap.taken) == ("search.pin.expert_overlap", "true")
    without = evaluate(of(), replace(plan, expert_overlap=False)).step_time_s
    assert overlap.steps_s == {"true": evaluate(of(), plan).step_time_s, "false": pytest.approx(without)}
    assert told.high_s >= without > overlap.steps_s["true"]
    assert overlap.field not in fields(of(), plan, searched=False)
    assert overlap.field not in fields(of(pin={"expert_overlap": True}), plan)


@pytest.mark.parametrize(
    ("training", "launcher", "told"),
    [
        ({"precision": "fp8", "fp8_recipe": "delayed"}, "megatron-bridge", True),
        ({"precision": "fp8", "fp8_recipe": "delayed", "fp8_attention": False}, "megatron-bridge", False),
        ({"precision": "fp8", "fp8_recipe": "blockwise"}, "megatron-bridge", False),
        ({"precision": "fp8", "fp8_recipe": "delayed"}, "megatron-lm", False),
        ({}, "megatron-bridge", False),
    ],
)
def test_attention_in_8_bits_is_open_where_the_framework_has_it(
    training: dict[str, Any], launcher: str, told: bool
) -> None:
    dense = with_stack(of(model_spec(), training=training, launcher=launcher, sequence=8192), fp8_attention_speed=2.0)
    assert ("training.fp8_attention" in fields(dense, strategy_of(dp=4))) == told


def test_natural_routing_is_told_where_experts_are_taken_to_be_even() -> None:
    told = found(of())
    assert told is not None
    assert told.routing is not None
    assert list(told.routing.steps_s) == [1.04, 1.5]
    for load, step in told.routing.steps_s.items():
        assert step == pytest.approx(evaluate(of(training={"expert_imbalance": load}), PLAN).step_time_s)
    assert told.routing.fits == {1.04: True, 1.5: True}
    capped = found(of(training={"expert_capacity_factor": 1.2}))
    assert capped is not None
    assert capped.routing is not None
    assert list(capped.routing.steps_s) == [1.04, 1.2]
    none = found(of(training={"expert_capacity_factor": 1.0}))
    assert none is not None
    assert none.routing is None
    alone = found(of(), strategy_of(dp=4))  # every device has all experts
    assert alone is not None
    assert alone.routing is None
    full = chip_spec(gb=3.4)
    tight = open_switches(problem_of({"x": full}, MOE), PLAN, evaluate(problem_of({"x": full}, MOE), PLAN), True)
    assert tight is not None
    assert tight.routing is not None
    assert not tight.routing.fits[1.5]
