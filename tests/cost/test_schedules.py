"""The table of pipeline schedules."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from cpsolver.cost.schedules import SCHEDULES, schedules_to_search
from cpsolver.cost.shard import Floats
from cpsolver.plans.strategy import Schedule
from tests.support.problems import problem_of
from tests.support.split_backward import form_of


def test_every_schedule_has_its_row() -> None:
    assert tuple(SCHEDULES) == get_args(Schedule)


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_a_schedule_is_drawn_as_is_drawn_as_itself(name: Schedule) -> None:
    shown = SCHEDULES[name].drawn_as
    assert SCHEDULES[shown].drawn_as == shown


@pytest.mark.parametrize(("name", "bubble"), [("zb1p", 1.0), ("zb2p", 0.0)])
def test_zero_bubble_schedules_fill_the_bubble_with_one_or_two_weight_passes(name: Schedule, bubble: float) -> None:
    """F = B = W = 1 s on 4 stages, 8 microbatches: (p - 1)(F + B - W) = 3 s are left, or (p - 1)(F + B - 2 W) = 0."""
    assert form_of(name, 4, 8).step_s(parts_of([3.0] * 4, [1.0] * 4, [1.0] * 4)) == pytest.approx(24 + 3 * bubble)


def test_a_bubble_is_never_less_than_nothing() -> None:
    """The first stage waits 0.8 s for the second, and could do 2 W of 2 s meanwhile."""
    assert form_of("zb2p", 2, 4).step_s(parts_of([6.0, 1.2], [2.0, 0.4], [2.0, 0.4])) == pytest.approx(24.0)


def parts_of(stage: list[float], forward: list[float], weight: list[float]) -> Floats:
    """What a form asks of stages with one chunk each."""
    return np.array([stage, forward, weight, *[[0.0] * len(stage)] * 3])


@pytest.mark.parametrize(
    ("asked", "stack", "launcher", "found"),
    [
        ({}, "megatron-core", None, ("1f1b",)),
        ({}, "zero-bubble", None, ("1f1b", "zb1p", "zb2p", "zbv", "v_half", "v_min")),
        ({}, "megatron-core", "torchtitan", ("1f1b", "zbv", "dualpipev")),
        ({}, "zero-bubble", "megatron-lm", ("1f1b",)),
        ({"schedules": ["zb2p", "1f1b"]}, "megatron-core", None, ("1f1b", "zb2p")),
        ({"schedules": ["zb1p"], "pin": {"schedule": "zb2p"}}, "zero-bubble", None, ("zb2p",)),
    ],
)
def test_what_is_searched_is_asked_for_or_what_the_frameworks_have(
    asked: dict[str, Any], stack: str, launcher: str | None, found: tuple[Schedule, ...]
) -> None:
    problem = problem_of(stack=stack, launcher=launcher, **asked)
    assert schedules_to_search(problem) == found
