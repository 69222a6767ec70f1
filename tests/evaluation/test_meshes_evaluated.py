"""Plans whose chip types have degrees of their own: each stage is as in a plan of its degrees alone, but at borders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpsolver.evaluation.evaluate import evaluate, stage_evaluations, stage_memory, stage_parameters
from cpsolver.plans.strategy import Mesh
from cpsolver.problem.strategy_file import strategy_from_fields, strategy_to_dict
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of, with_meshes

CHIPS = {"x": chip_spec(), "y": chip_spec(tflops=60, gb=64)}
PROBLEM = problem_of(CHIPS, model=model_spec(layers=8), gpus=12, batch=32)
PLAN = with_meshes(strategy_of("x:2,2 y:4", dp=4, tp=1, flags="zf"), y=Mesh(tp=2, cp=1, dp=2))
OWN = ("compute_s", "tensor_parallel_s", "recompute_s", "data_parallel_s", "optimizer_s", "forward_s")


def test_a_stage_is_that_of_a_plan_with_its_degrees_everywhere() -> None:
    stages, memory = stage_evaluations(PROBLEM, PLAN), stage_memory(PROBLEM, PLAN)
    parameters = stage_parameters(PROBLEM, PLAN)
    for index, stage in enumerate(stages):
        alike = PLAN.on(index)
        alone = stage_evaluations(PROBLEM, alike)[index]
        assert {name: getattr(stage, name) for name in OWN} == pytest.approx(
            {name: getattr(alone, name) for name in OWN}
        )
        assert memory[index] == stage_memory(PROBLEM, alike)[index]
        assert parameters[index] == stage_parameters(PROBLEM, alike)[index]


def test_a_border_takes_the_slower_end_and_a_latency_for_every_further_partner() -> None:
    """Eight devices of x feed two of y: each of y's receives from four, one after the other."""
    plan = with_meshes(strategy_of("x:4 y:4", dp=8), y=Mesh(tp=2, cp=1, dp=1))
    latency = PROBLEM.supply("y").chip.network_latency_s
    first, last = stage_evaluations(PROBLEM, plan)
    far = [stage_evaluations(PROBLEM, plan.on(index))[index].pipeline_p2p_s for index in (0, 1)]
    share = PROBLEM.stack.pipeline_transfers / 2.0
    assert far[1] > far[0]  # two devices send what eight do on the other side
    assert first.pipeline_p2p_s == last.pipeline_p2p_s == pytest.approx(far[1] + 3 * latency * share)


def test_the_parts_of_a_step_add_up_and_peaks_count_every_stage_by_its_width() -> None:
    result = evaluate(PROBLEM, PLAN)
    assert sum(result.breakdown_s.values()) == pytest.approx(result.step_time_s)
    as_wide = evaluate(PROBLEM, replace(PLAN, tp=1, groups=strategy_of("x:2,2 y:4", dp=4).groups))
    ratio = result.mfu * result.step_time_s / (as_wide.mfu * as_wide.step_time_s)
    assert ratio == pytest.approx(1.0)  # 4 + 4 + 4 devices in both
    narrow = evaluate(PROBLEM, with_meshes(PLAN, y=Mesh(tp=1, cp=1, dp=2)))
    assert narrow.mfu * narrow.step_time_s > result.mfu * result.step_time_s


def test_a_file_holds_meshes() -> None:
    written = strategy_to_dict(PLAN)
    assert [part.get("mesh") for part in written["stages"]] == [None, {"tp": 2, "dp": 2}]
    assert strategy_from_fields(written, PROBLEM) == PLAN
