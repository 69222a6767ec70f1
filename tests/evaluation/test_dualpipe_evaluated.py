"""DualPipe: microbatches from both ends of the pipeline, two stages on every device, and DeepSeek-V3 as trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpsolver.evaluation.evaluate import evaluate, stage_evaluations, stage_memory, stage_parameters
from cpsolver.evaluation.operators import compute_by_operator
from cpsolver.evidence.runs.plan import placed_plan
from cpsolver.evidence.runs.table import PUBLISHED, read_runs
from cpsolver.evidence.runs.validation import rules_broken
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import load_calibration
from cpsolver.profiles.framework import launcher_names, load_launcher
from cpsolver.rules import RULES
from tests.support.problems import ideal, model_spec, strategy_of

EXPERTS = {"experts": 8, "top_k": 2, "expert_ffn": 512}


def deepseek(**given: Any) -> Problem:
    """A problem without losses, on the stack that has the schedule; four stages of one device, 8 microbatches."""
    problem, _ = ideal(**given)
    return replace(problem, stack=problem.stack.model_copy(update={"name": "deepseek"}))


def four(layers: str = "1,1,1,1", **given: Any) -> Strategy:
    return strategy_of(f"x:{layers}", **{"dp": 1, "flags": "f", "schedule": "dualpipe", **given})


def test_each_device_works_for_two_stages_half_of_the_time() -> None:
    problem = deepseek(model={**model_spec(layers=10), "vocab": 128})
    plain = stage_evaluations(problem, four("3,2,2,3", schedule="1f1b"))
    both = stage_evaluations(problem, four("3,2,2,3"))
    for index in range(4):
        one, other = plain[index], plain[3 - index]
        assert both[index].microbatch_s == pytest.approx((one.microbatch_s + other.microbatch_s) / 2)
        assert both[index].layers == plain[index].layers
        assert both[index].optimizer_s == pytest.approx(one.optimizer_s + other.optimizer_s)  # of one replica
        assert both[index].data_parallel_s > one.data_parallel_s + other.data_parallel_s  # two devices hold either


def test_the_step_has_the_published_bubble() -> None:
    """8 microbatches of F + B, and (4 / 2 - 1) (F + B + B - 3 B / 2), and transfers on the way, one and a half."""
    problem = deepseek(model={**model_spec(), "vocab": 128})  # next to no head, for equal stages
    found = evaluate(problem, four())
    stage = found.stages[0]
    f, b = stage.forward_s, stage.backward_s
    beyond = found.breakdown_s["bubble"] - (f + b / 2)
    assert 0 < beyond < 1.7 * found.stages[1].pipeline_p2p_s
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s)


def test_each_device_holds_both_stages_and_a_microbatch_more_than_pp() -> None:
    problem = deepseek(model={**model_spec(layers=4), "vocab": 128})
    plain, both = (stage_memory(problem, plan) for plan in (four(schedule="1f1b"), four()))
    for index in range(4):
        one, other = plain[index], plain[3 - index]
        assert both[index].weights == pytest.approx(one.weights + other.weights)
        assert both[index].gradients == pytest.approx(one.gradients + other.gradients)
        assert both[index].optimizer == pytest.approx(one.optimizer + other.optimizer)  # no distributed optimizer
        assert both[index].activations == pytest.approx(5 * plain[3].activations)  # 1F1B's last stage holds one
    counts = (stage_parameters(problem, plan) for plan in (four(schedule="1f1b"), four()))
    plain_counts, counted = counts
    assert counted == pytest.approx([one + other for one, other in zip(plain_counts, plain_counts[::-1], strict=True)])


def test_a_module_of_multi_token_prediction_finds_the_embeddings_on_its_device() -> None:
    """The last stage's copy of the table is the one that the first stage's, on the same device, already is."""
    problem = deepseek(model={**model_spec(), "mtp_layers": 1})
    plain = stage_parameters(problem, four(schedule="1f1b"))
    table = problem.model.vocab * problem.model.hidden
    more = stage_parameters(problem, four())[0] - plain[0] - plain[3]
    assert -more == pytest.approx(table, rel=0.1)  # the table is padded


def test_operators_add_up_to_the_compute_of_both_stages() -> None:
    problem, plan = deepseek(model=model_spec(layers=7)), four("2,2,2,1")
    found = evaluate(problem, plan)
    assert compute_by_operator(problem, plan, found).seconds == pytest.approx(found.breakdown_s["compute"])


@pytest.mark.parametrize(
    ("plan", "batch", "told"),
    [
        (four(), 8, []),
        (four("2,1,1"), 8, ["an even pp"]),
        (four(), 9, ["an even number of microbatches"]),
        (four(), 6, ["2 pp at least: pp is 4, and there are 6 microbatches"]),
        (four("2,2", vpp=2), 8, ["does not interleave"]),
        (four("4"), 8, ["needs a pipeline"]),
    ],
)
def test_the_sizes_that_it_runs(plan: Strategy, batch: int, told: list[str]) -> None:
    found = list(RULES["schedule"](deepseek(batch=batch, gpus=4), plan))
    assert all(any(text in message for message in found) for text in told)
    assert bool(found) == bool(told)


def test_only_deepseeks_stack_has_it_and_no_launcher() -> None:
    problem, _ = ideal()
    (message,) = RULES["schedule"](problem, four())
    assert message.endswith("has no schedule dualpipe: 1f1b, or stack deepseek")
    for name in launcher_names():
        launched = replace(deepseek(), launcher=load_launcher(name))
        assert any("has no schedule dualpipe" in found for found in RULES["schedule"](launched, four()))


def test_experts_overlap_without_interleaving() -> None:
    problem = deepseek(model=model_spec(moe=EXPERTS), gpus=8, batch=16)
    plan = four(dp=2, ep=2, expert_overlap=True)
    assert not list(RULES["expert_overlap"](problem, plan))
    assert list(RULES["expert_overlap"](problem, replace(plan, schedule="1f1b")))


def test_deepseek_v3_as_its_authors_trained_it() -> None:
    """2,048 H800, pp 16 and ep 64 with DualPipe in fp8: 19.9 s a step, and in memory.

    SwiGLU's outputs are recomputed as well (arXiv:2412.19437, 3.3.3).
    """
    (row,) = (run for run in read_runs(PUBLISHED).runs if run.id == "dsv3_paper_h800")
    modules = ("layernorm", "mla_up_proj", "moe_act")
    case = placed_plan(replace(row, framework="HAI-LLM", recompute_modules=modules))
    problem = case.problem.with_constants(load_calibration())
    assert case.strategy.schedule == "dualpipe"
    assert evaluate(problem, case.strategy).step_time_s == pytest.approx(row.step_time_s, rel=0.12)
    assert not rules_broken(problem, case.strategy)
