"""Breadth-first pipelines: both orders of them, event by event, against the closed form and the memory of the table."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import pytest

from cpsolver.cost.pipeline_events import MOST_EVENTS, simulate
from cpsolver.cost.schedules import SCHEDULES
from cpsolver.cost.shard import Floats
from cpsolver.cost.step_form import PipelineSizes
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import load_launcher
from tests.support.problems import ideal
from tests.support.selection import first

Order = Literal["groups", "forwards first"]


def forwards_first_s(forward: Floats, backward: Floats, m: int) -> float:
    """Seconds of a step in which all forwards come before the backwards: the two one after the other, for the last
    stage is the last to end the former, and the first to begin the latter. Passes: by stage and chunk, (pp, vpp)."""
    return queue_s(forward, m) + queue_s(backward[::-1, ::-1], m)


def queue_s(passes: Floats, m: int) -> float:
    """Seconds in which m microbatches pass all chunks of all stages, each of which takes one at a time."""
    pp, vpp = passes.shape
    done, free = np.zeros(m), np.zeros(pp)
    for chunk in range(vpp):
        for stage in range(pp):
            for micro in range(m):
                free[stage] = done[micro] = max(free[stage], done[micro]) + passes[stage, chunk]
    return float(free.max())


def balanced(seed: int) -> tuple[int, int, Floats, Floats]:
    """A plan's stages as a planner balances them: m, vpp, and seconds of forward and of backward by stage.

    Chunks of equal length, a layer less on some of the first stages, the head in the places of some layers; some
    stages recompute all or some modules.
    """
    rng = np.random.default_rng(seed)
    pp, vpp = int(rng.integers(2, 13)), int(rng.integers(2, 5))
    chunk, head, embedding = int(rng.integers(2, 9)), rng.uniform(0.1, 2), rng.uniform(0, 0.3)
    layers = np.full(pp, chunk * vpp)
    layers[: int(rng.integers(0, pp))] -= vpp * int(rng.random() < 0.5)
    layers[-1] -= min(round(head), vpp - 1)
    layers = np.maximum(vpp, layers)
    again = float(rng.choice([0, 0, 0, 1.0, 0.2])) * 0.33
    share, ends = rng.uniform(0.29, 0.36), np.zeros(pp)
    ends[0], ends[-1] = embedding, head
    return int(rng.integers(pp, 8 * pp)), vpp, layers * share + ends / 3, layers * (1 - share + again) + ends * 2 / 3


def problem_with(order: Order) -> Problem:
    """One whose launcher has that order."""
    name = "torchtitan" if order == "forwards first" else "megatron-lm"
    return replace(ideal()[0], launcher=load_launcher(name))


def events_s(order: Order, m: int, forward: Floats, backward: Floats) -> float:
    """Seconds of a step event by event; passes by stage and chunk, (pp, vpp)."""
    if order == "groups":
        return simulate(forward, backward, m, group=m).makespan_s
    return forwards_first_s(forward, backward, m)


def forms_of(order: Order, seed: int, spread: float = 0.0) -> tuple[float, float, float]:
    """A plan's seconds by its form, by its form when it is complete, and event by event.

    `spread`: by that share or less stages' passes are longer or shorter than planners balance them.
    """
    m, vpp, forward, backward = balanced(seed)
    uneven = np.random.default_rng(seed).uniform(1 - spread, 1 + spread, (2, len(forward)))
    forward, backward = forward * uneven[0], backward * uneven[1]
    of_schedule = SCHEDULES["breadth_first"].form
    form = whole = of_schedule(problem_with(order), PipelineSizes(len(forward), vpp, m))
    parts = np.array([forward + backward, forward, *[0 * forward] * 4])
    while (more := whole.completed(parts)) is not None:
        whole = more
    by_chunk = (np.repeat(each[:, None] / vpp, vpp, axis=1) for each in (forward, backward))
    return form.step_s(parts), whole.step_s(parts), events_s(order, m, *by_chunk)


@pytest.mark.parametrize("order", get_args(Order))
@pytest.mark.parametrize("count", first(1, (30, 500)))
def test_the_closed_form_is_within_two_percent_of_the_events_of_500_random_plans(count: int, order: Order) -> None:
    """At most 1.6 % below in groups, of 1,500 such plans as well, and 0.6 % where forwards come first."""
    off = np.array([form / events - 1 for form, _, events in (forms_of(order, seed) for seed in range(count))])
    assert -0.02 < off.min() <= off.max() < 1e-9


@pytest.mark.parametrize("order", get_args(Order))
@pytest.mark.parametrize("spread", [0.0, 0.8])
@pytest.mark.parametrize("count", first(1, (20, 200)))
def test_a_complete_form_is_the_events(count: int, spread: float, order: Order) -> None:
    for seed in range(count):
        form, whole, events = forms_of(order, seed, spread)
        assert form <= whole == pytest.approx(events, rel=2e-6)


def test_a_step_of_very_many_passes_has_its_first_chains_alone() -> None:
    """As its evaluation, which does not run it."""
    of_schedule = SCHEDULES["breadth_first"].form
    parts = np.array([[3.0, 1.0], [1.0, 0.9], *[[0.0, 0.0]] * 4])
    most = MOST_EVENTS // (2 * 2 * 2)
    few, many = (of_schedule(problem_with("groups"), PipelineSizes(2, 2, m)).further for m in (most, most + 1))
    assert few is not None
    assert few(parts) is not None
    assert many is not None
    assert many(parts) is None


@pytest.mark.parametrize(("pp", "vpp", "m"), [(2, 2, 2), (4, 2, 9), (4, 3, 16), (8, 4, 8)])
def test_memory_of_the_table_is_the_peak_of_the_events(pp: int, vpp: int, m: int) -> None:
    problem, _ = ideal()
    run = simulate(np.ones((pp, vpp)), 2 * np.ones((pp, vpp)), m, group=m)
    held = SCHEDULES["breadth_first"].live_chunks(problem, pp, vpp, m)
    for stage in range(pp):
        change = np.where(run.kind[run.stage == stage] == "F", 1, -1)
        assert np.cumsum(change).max() == held[stage]
    titan = replace(problem, launcher=load_launcher("torchtitan"))
    assert SCHEDULES["breadth_first"].live_chunks(titan, pp, vpp, m).tolist() == [m * vpp] * pp
