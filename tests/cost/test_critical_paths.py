"""Chains of passes that hold a plan up: as long as its schedule run event by event."""

from __future__ import annotations

import numpy as np
import pytest

from cpsolver.cost.critical_paths import critical_path
from cpsolver.cost.pass_graph import steps_s
from cpsolver.cost.shard import Floats
from cpsolver.cost.split_backward import split_form
from cpsolver.cost.split_events import SplitSchedule, chunks_of, run, turns
from cpsolver.cost.step_form import seconds_of
from tests.support.split_backward import form_of

V: tuple[SplitSchedule, ...] = ("zbv", "v_half", "v_min", "dualpipev", "dualpipe")


def parts_of(seconds: Floats) -> Floats:
    """PASS_PARTS of passes (pp, chunks, 3)."""
    named = [seconds.sum(axis=-1), seconds[..., 0], seconds[..., 2]]
    return np.array([each.sum(axis=1) for each in named] + [each[:, -1] - each[:, 0] for each in named])


def uneven(seed: int, schedule: SplitSchedule, pp: int) -> Floats:
    return np.asarray(np.random.default_rng(seed).uniform(0.3, 2.0, (pp, chunks_of(schedule), 3)))


@pytest.mark.parametrize("schedule", V)
@pytest.mark.parametrize(("pp", "m"), [(2, 4), (3, 8), (4, 12), (6, 40)])
def test_a_plans_own_chain_is_as_long_as_its_events(schedule: SplitSchedule, pp: int, m: int) -> None:
    """Of any stages: some chunks take six times as long as others."""
    for seed in range(4):
        seconds = uneven(seed, schedule, pp)
        chain = critical_path(schedule, m, True, seconds)
        assert chain is not None
        assert float((chain * seconds).sum()) == pytest.approx(steps_s(schedule, m, seconds[None], True)[0], rel=1e-9)


@pytest.mark.parametrize("schedule", [name for name in V if name != "dualpipe"])
def test_steps_of_many_plans_at_once_are_those_of_the_events(schedule: SplitSchedule) -> None:
    plans = np.stack([uneven(seed, schedule, 4) for seed in range(5)])
    one_by_one = [run(turns(schedule, 4, 9), *np.moveaxis(plan, -1, 0)).makespan_s for plan in plans]
    assert steps_s(schedule, 9, plans, True) == pytest.approx(np.array(one_by_one), rel=1e-12)


def test_a_chain_of_many_microbatches_is_told_from_fewer() -> None:
    """Where the schedule repeats itself; a chain that does not yet is not told at all."""
    known = 0
    for seed in range(8):
        seconds = uneven(seed, "v_half", 4)
        chain, true = critical_path("v_half", 90, True, seconds), steps_s("v_half", 90, seconds[None], True)[0]
        known += chain is not None
        assert chain is None or float((chain * seconds).sum()) == pytest.approx(true, rel=2e-3)
    assert known > 4


@pytest.mark.parametrize("schedule", V)
def test_a_form_is_completed_until_it_is_the_events(schedule: SplitSchedule) -> None:
    for seed in range(6):
        seconds = uneven(seed, schedule, 4)
        parts, form = parts_of(seconds), split_form(schedule, True, 4, 12)
        assert seconds_of(parts, chunks_of(schedule)) == pytest.approx(seconds)
        longer = form.completed(parts)
        true = steps_s(schedule, 12, seconds[None], True)[0]
        if longer is None:
            assert form.step_s(parts) == pytest.approx(true, rel=2e-6)
            continue
        assert form.step_s(parts) < longer.step_s(parts)
        assert longer.step_s(parts) == pytest.approx(true, rel=1e-9)
        assert longer.completed(parts) is None


def test_parts_of_one_chunk_are_its_passes() -> None:
    seconds = uneven(1, "zb1p", 3)
    assert seconds.shape == (3, 1, 3)
    assert seconds_of(parts_of(seconds), 1) == pytest.approx(seconds)


def test_the_stage_that_holds_a_step_up_has_most_of_the_longest_chain() -> None:
    """Whatever the schedule, where one works three times as long as the others."""
    schedules: tuple[SplitSchedule, ...] = ("zb1p", "zbv", "v_min")
    for schedule in schedules:
        for slow in range(4):
            seconds = np.ones((4, 1 if schedule == "zb1p" else 2, 3))
            seconds[slow] *= 3
            assert form_of(schedule, 4, 16).slowest(parts_of(seconds)) == slow


@pytest.mark.parametrize(("longer", "most"), [((3, 4), 0.005), ((4, 5), 0.005), ((5, 6), 0.005), ((4, 5, 7), 0.02)])
def test_neighbours_with_a_layer_more_beside_a_first_stage_with_the_head(longer: tuple[int, ...], most: float) -> None:
    """Chunks of two layers or three, and on the first stage of one, the head beside the second of these."""
    seconds = np.ones((8, 2, 3)) * np.array([1.0, 1.8, 1.0])
    seconds[list(longer)] *= 1.5
    seconds[0] *= np.array([[0.46, 0.46, 0.46], [1.93, 1.34, 1.93]])
    form, true = split_form("dualpipev", True, 8, 16), steps_s("dualpipev", 16, seconds[None], True)[0]
    assert (1 - most) * true < form.step_s(parts_of(seconds)) <= true * (1 + 1e-9)
