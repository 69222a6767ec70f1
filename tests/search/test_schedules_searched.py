"""Pipeline schedules as a decision of the search: against brute force, and what an answer says of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.search.search import search
from cpsolver.search.space import enumerate_rows
from tests.search.test_bounds import held_bounds
from tests.search.test_oracle import KEY, assert_same
from tests.support.oracle import brute_force, small_enough
from tests.support.problems import problem_of
from tests.support.selection import full
from tests.support.split_backward import split_problem
from tests.support.tables import quick_tables

SHARES = {"feasible": 0.35, "best zb1p": 0.03, "best zb2p": 0.05, "best 1f1b": 0.03, "mixed": 0.1}
"""Of the problems below: of how many it is so; shares at least."""


@pytest.mark.parametrize(("start", "count"), [(0, 12), *(full(start, 44) for start in range(12, 188, 44))])
def test_schedules_agree_with_brute_force(start: int, count: int) -> None:
    """364 problems, half of them with bent tables; twelve by `make test`."""
    tally: Counter[str] = Counter()
    for seed in range(start, start + count):
        problem = split_problem(seed)
        if not small_enough(problem, 1500):
            continue
        with quick_tables(seed if seed % 2 else None):
            best = brute_force(problem)
            assert_same(problem, best)
        tally["problems"] += 1
        tally["feasible"] += bool(best)
        tally["mixed"] += problem.mixed
        if best:
            fastest = min(best.items(), key=lambda item: item[1])[0]
            first = dict(zip(KEY, fastest, strict=True))
            tally[f"best {first['schedule']}"] += 1
    assert tally["problems"] >= 0.8 * count
    if count > 20:
        assert {name: tally[name] for name, share in SHARES.items() if tally[name] < share * tally["problems"]} == {}


@pytest.mark.parametrize(("start", "count"), [(500, 12), *(full(start, 40) for start in range(512, 632, 40))])
def test_no_bound_of_a_schedule_exceeds_brute_force(start: int, count: int) -> None:
    """132 problems, half of them with bent tables; twelve by `make test`."""
    tally: Counter[str] = Counter()
    for seed in range(start, start + count):
        problem = split_problem(seed)
        if not small_enough(problem, 400):
            continue
        with quick_tables(seed if seed % 2 else None):
            for _, true, bounds in held_bounds(problem, seed):
                tally["fits"] += np.isfinite(true)
                tally["tight"] += np.isfinite(true) and bounds[-1] > 0.9 * true
    assert tally["fits"] > count / 2
    assert tally["tight"] > 0.6 * tally["fits"]


def test_schedules_that_split_backward_are_left_to_those_who_have_them() -> None:
    """No other spec's space grows; what is asked for and not there is refused by its rule, and counted."""
    plain = enumerate_rows(problem_of())
    assert set(plain.frames.schedule.tolist()) == {1}
    assert "schedule" not in plain.refused
    asked = enumerate_rows(problem_of(schedules=["1f1b", "zb1p"]))
    assert len(asked) == len(plain)
    assert asked.refused["schedule"] > 0
    assert set(enumerate_rows(problem_of(stack="zero-bubble")).frames.schedule.tolist()) == {1, 2, 3}


def test_an_answer_is_what_the_judge_says() -> None:
    problem = problem_of(stack="zero-bubble", gpus=8, batch=32, pin={"pp": [4, 8], "dp": [1, 2]}, diverse=False)
    found = search(problem)
    assert found.status == "optimal"
    assert {plan.strategy.schedule for plan in found.plans} & {"zb1p", "zb2p"}
    for plan in found.plans:
        assert evaluate(problem, plan.strategy).step_time_s == pytest.approx(plan.evaluation.step_time_s, rel=1e-9)
    pinned = search(problem.with_(search={"pin": problem.spec.search.pin.model_copy(update={"schedule": ("1f1b",)})}))
    assert pinned.plans[0].evaluation.step_time_s > found.plans[0].evaluation.step_time_s
