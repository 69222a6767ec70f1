"""Stages placed as a V: what stands where, what it costs, and which plans may be so; by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cpsolver
from cpsolver.cost.kinds import counts_before
from cpsolver.evaluation.evaluate import evaluate, stage_evaluations, stage_kinds, stage_parameters
from cpsolver.evaluation.timeline import makespan_s, plan_timeline, simulated_step_s
from cpsolver.plans.strategy import Schedule, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import load_launcher
from cpsolver.rules import RULES
from tests.support.problems import ideal, model_spec, strategy_of

V: tuple[Schedule, ...] = ("zbv", "dualpipev", "v_half", "v_min")


def v(layers: str = "3,4", schedule: Schedule = "zbv", **given: Any) -> Strategy:
    return strategy_of(f"x:{layers}", **{"dp": 1, "vpp": 2, "flags": "f", "schedule": schedule, **given})


def seven(stack: str = "zero-bubble", **given: Any) -> Problem:
    model = {"layers": 7, "vocab": 8000, **given.pop("model", {})}
    problem = ideal(model=model_spec(**model), **{"gpus": 2, "node": 2, "batch": 8, **given})[0]
    return replace(problem, stack=problem.stack.model_copy(update={"name": stack}))


def test_the_first_stage_holds_both_ends() -> None:
    """Two stages of 3 and 4 layers: chunks 0 1, 2 3, 4 5 and 6 with the head in a layer's place."""
    plan = v()
    assert (plan.slots, plan.head_stage, plan.chunks) == ((0, 1), 0, (2, 2))
    whole, middle = stage_parameters(seven(), plan)
    folded = stage_parameters(seven(), replace(plan, schedule="1f1b", groups=strategy_of("x:4,3").groups))
    table = 8064 * 1024  # the vocabulary padded to a multiple of 128
    assert whole + middle == pytest.approx(sum(folded))
    assert middle == pytest.approx(folded[0] - table)
    first, second = stage_evaluations(seven(), plan)
    assert first.compute_s > 3 / 4 * second.compute_s
    even = stage_evaluations(seven(model={"layers": 8}), v("4,4"))
    assert even[0].compute_s - even[1].compute_s > 0
    assert even[1].compute_s == pytest.approx(second.compute_s)


def test_layers_of_several_kinds_are_counted_in_both_chunks() -> None:
    """Of 8 layers the first two are dense: on 4 stages of 2 stage 0 has layers 0 and 7, stage 1 layers 1 and 6."""
    moe = {"experts": 4, "expert_ffn": 512, "top_k": 2, "first_dense": 2}
    problem = seven(gpus=4, model={"layers": 8, "moe": moe})
    assert stage_kinds(problem, v("2,2,2,2")).tolist() == [[1, 1, 2, 2], [1, 1, 0, 0]]
    assert counts_before(problem.model, 2, v_shaped=True).tolist() == [[0, 1, 2, 4, 6], [0, 1, 2, 2, 2]]


def test_each_link_carries_both_chunks_and_none_leads_around() -> None:
    """1F1B sends a microbatch there and its gradient back; of a V two of each. The last stage has no link around."""
    problem, plan = seven(gpus=4, model={"layers": 8}), v("2,2,2,2")
    plain = [stage.pipeline_p2p_s for stage in stage_evaluations(problem, replace(plan, schedule="1f1b", vpp=1))]
    found = [stage.pipeline_p2p_s for stage in stage_evaluations(problem, plan)]
    share = 1 - float(problem.stack.pipeline_overlap_interleaved)
    assert found == pytest.approx([2 * share * each for each in plain])


@pytest.mark.parametrize("schedule", V)
def test_a_step_is_what_its_events_take(schedule: Schedule) -> None:
    """Stages within a fifth of each other: the formula is within 2 % of the order run event by event. V-Min: 2.2 %, for
    its rounds count the transfers of all their stages, 5 % of a stage here, of which events wait for some."""
    problem = seven(model={"layers": 24}, gpus=4, batch=24)
    plan = v("6,6,6,6", schedule)
    found = evaluate(problem, plan)
    assert found.step_time_s == pytest.approx(simulated_step_s(plan, found, 24), rel=0.022)
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s)
    timeline = plan_timeline(plan, found.stages, 24)
    assert {kind: int((timeline.kind == kind).sum()) for kind in "FBW"} == {"F": 192, "B": 192, "W": 192}
    last_forward = timeline.start_s[(timeline.kind == "F") & (timeline.chunk == 1) & (timeline.microbatch == 0)]
    assert np.all(np.diff(last_forward) < 0)  # the second chunks run from the last stage to the first


@pytest.mark.parametrize("schedule", V)
def test_a_heavy_head_makes_its_chunk_longer_and_the_step_with_it(schedule: Schedule) -> None:
    """A head of 46,000 words weighs as much as four layers: so much longer is the second chunk of the first stage, by
    formula too."""
    problem, plan = seven(model={"layers": 20, "vocab": 46_000}, gpus=4, batch=24), v("2,6,6,6", schedule)
    found = evaluate(problem, plan)
    first, *others = found.stages
    assert first.later_s == pytest.approx(first.compute_s - others[0].compute_s / 3, rel=0.1)
    assert [stage.later_s for stage in others] == [0.0] * 3
    alike = [replace(stage, later_s=0.0, later_forward_s=0.0, later_weight_gradients_s=0.0) for stage in found.stages]
    with_head, without = (makespan_s(plan, stages, 24) for stages in (found.stages, alike))
    assert with_head is not None
    assert without is not None
    assert with_head > 1.002 * without
    assert 0.98 * found.step_time_s < found.formula_s <= (1 + 1e-12) * found.step_time_s
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s)


@pytest.mark.parametrize("layers", ["6,6,6,6", "2,6,6,6", "6,4,6,4"])
@pytest.mark.parametrize("schedule", V)
def test_many_microbatches_take_as_long_each_as_the_last_ones_of_a_shorter_run(schedule: Schedule, layers: str) -> None:
    """200 microbatches, of which fewer are run: within 0.2 % of a run of all."""
    plan = v(layers, schedule)
    problem = seven(model={"layers": sum(plan.layers), "vocab": 46_000}, gpus=4, batch=200)
    stages = [replace(stage, pipeline_p2p_s=0.0, to_next_s=0.0) for stage in stage_evaluations(problem, plan)]
    whole = plan_timeline(plan, stages, 200).makespan_s
    assert makespan_s(plan, stages, 200) == pytest.approx(whole, rel=2e-3)


def test_memory_is_that_of_the_microbatches_under_way() -> None:
    """pp microbatches with ZB-V on every stage; with DualPipeV half a one more; of pp 4 three with V-Half and two with
    V-Min."""
    problem = seven(gpus=4, model={"layers": 16}, batch=16)
    held = {name: evaluate(problem, v("4,4,4,4", name)).stages for name in V}
    one = evaluate(problem, strategy_of("x:4,4,4,4", dp=1, flags="f")).stages[3].memory.activations
    assert [stage.memory.activations / one for stage in held["zbv"]] == pytest.approx([4] * 4)
    assert [stage.memory.activations / one for stage in held["dualpipev"]] == pytest.approx([4.5] * 4)
    assert [stage.memory.activations / one for stage in held["v_half"]] == pytest.approx([3] * 4)
    assert [stage.memory.activations / one for stage in held["v_min"]] == pytest.approx([2] * 4)


def said(problem: Problem, plan: Strategy, rule: str = "schedule") -> list[str]:
    return list(RULES[rule](problem, plan))


def test_rules() -> None:
    problem = seven()
    assert not any(said(problem, v(), name) for name in RULES if name != "memory")
    assert said(problem, v(vpp=1))[0] == "schedule zbv interleaves: vpp is 1, and must be more"
    assert said(problem, v("7")) == ["schedule zbv needs a pipeline, and pp is 1"]
    assert said(seven(batch=3), v())[0].startswith("schedule zbv needs 2 pp microbatches at least: pp is 2")
    assert said(problem, v("1,6", vpp=3))[0].startswith("schedule zbv has two chunks a stage: vpp is 3")
    tied = said(seven(model={"tied_embeddings": True}), v())
    assert tied == ["schedule zbv is for models whose embedding and head are tables of their own"]
    assert said(problem, v("4,3"), "even_chunks") == ["stage 1 has 3 layers, not a multiple of vpp 2"]
    assert said(seven("megatron-core"), v())[0].startswith("stack megatron-core has no schedule zbv: 1f1b, or stack")
    assert not said(seven("deepseek"), v(schedule="dualpipev"))


@pytest.mark.parametrize("vpp", [1, 3, 4])
@pytest.mark.parametrize("schedule", V)
def test_a_plan_without_two_chunks_a_stage_is_refused_before_it_is_judged(schedule: Schedule, vpp: int) -> None:
    """Its layers could not be counted: `check` and `apss-cp evaluate` ended in an IndexError."""
    plan = strategy_of("x:4,3", vpp=vpp, schedule=schedule, dp=2)
    found = cpsolver.check(seven(), plan)
    assert ("layers", f"schedule {schedule} puts 2 chunks on a stage: vpp is {vpp}") in [
        (v.rule, v.message) for v in found
    ]
    with pytest.raises(cpsolver.InputError, match="puts 2 chunks on a stage"):
        cpsolver.evaluate(seven(), plan)


def test_experts_overlap_only_where_passes_are_paired() -> None:
    moe = {"experts": 4, "expert_ffn": 512, "top_k": 2}
    problem = seven("deepseek", gpus=4, model={"moe": moe})
    paired = v(schedule="dualpipev", dp=2, ep=2, expert_overlap=True)
    assert not said(problem, paired, "expert_overlap")
    assert said(problem, replace(paired, schedule="zbv"), "expert_overlap")


def test_launchers_that_run_them() -> None:
    """MindSpeed fills shorter chunks up, and has no context parallelism with it (dualpipev_feature.py)."""
    odd, even = seven(), seven(model={"layers": 8})
    titan, mindspeed = (replace(odd, launcher=load_launcher(name)) for name in ("torchtitan", "mindspeed-llm"))
    assert not said(titan, v()) + said(titan, v(schedule="dualpipev"))
    assert said(mindspeed, v())[0].startswith("mindspeed-llm has no schedule zbv")
    told = replace(mindspeed, spec=mindspeed.spec.model_copy(update={"launcher": "mindspeed-llm"}))
    assert not said(told, v(schedule="dualpipev"), "launcher")
    told = replace(told, model=even.model)
    assert not said(told, v("4,4", "dualpipev"), "launcher")
    assert "no context parallelism" in said(told, v("4,4", "dualpipev", cp=2), "launcher")[0]
