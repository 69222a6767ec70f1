"""A plan run through the schedule, against the closed form that ranks plans."""

from __future__ import annotations

import pytest

from cpsolver.evaluation import timeline
from cpsolver.evaluation.timeline import plan_timeline, simulated_step_s
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.search.search import search
from cpsolver.spec.spec import parse_spec


def _problem(**pins: int) -> Problem:
    spec = {
        "model": "llama2-7b",
        "cluster": {"num_gpus": 16, "chips": "a100"},
        "training": {"global_batch_size": 64, "sequence_length": 4096},
        "search": {"top": 1, "pin": pins},
    }
    return resolve(parse_spec(spec))


@pytest.mark.parametrize("vpp", [1, 2])
def test_the_closed_form_is_close_to_the_schedule(vpp: int) -> None:
    problem = _problem(pp=4, tp=2, vpp=vpp)
    (plan,) = search(problem).plans
    simulated = simulated_step_s(plan.strategy, plan.evaluation, plan.strategy.microbatches(64))
    assert simulated == pytest.approx(plan.evaluation.step_time_s, rel=0.1)


def test_one_stage_takes_exactly_its_microbatches() -> None:
    problem = _problem(pp=1)
    (plan,) = search(problem).plans
    m = plan.strategy.microbatches(64)
    made = plan_timeline(plan.strategy, plan.evaluation.stages, m)
    assert made.makespan_s == pytest.approx(m * plan.evaluation.stages[0].microbatch_s)


def test_a_step_of_too_many_passes_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    (plan,) = search(_problem(pp=4)).plans
    monkeypatch.setattr(timeline, "MOST_EVENTS", 10)
    assert simulated_step_s(plan.strategy, plan.evaluation, plan.strategy.microbatches(64)) is None
