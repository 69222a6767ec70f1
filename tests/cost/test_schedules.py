"""The table of pipeline schedules."""

from __future__ import annotations

from typing import get_args

import pytest

from cpsolver.cost.schedules import SCHEDULES
from cpsolver.plans.strategy import Schedule


def test_every_schedule_has_its_row() -> None:
    assert tuple(SCHEDULES) == get_args(Schedule)


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_a_schedule_is_drawn_as_is_drawn_as_itself(name: Schedule) -> None:
    shown = SCHEDULES[name].drawn_as
    assert SCHEDULES[shown].drawn_as == shown


@pytest.mark.parametrize(("name", "left"), [("1f1b", 1), ("zb1p", 1 / 3), ("zb2p", 0), ("breadth_first", 1)])
def test_zero_bubble_schedules_fill_the_bubble_with_one_or_two_weight_passes(name: Schedule, left: float) -> None:
    """Forward 1 s, backward 2 s, so B = W = 1: of F + B + W = 3 s, F + B - W = 1 are left, or F + B - 2 W = 0."""
    assert SCHEDULES[name].bubble_left(4, 1.0, 2.0) == pytest.approx(left)
