"""Breadth-first pipelines: both orders of them, event by event, against the closed form and the memory of the table."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from cpsolver.cost.pipeline_events import closed_form_s, simulate
from cpsolver.cost.schedules import SCHEDULES
from cpsolver.cost.shard import Floats
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


def off_by(order: Order, seed: int) -> float:
    """By how much the closed form is above the events."""
    m, vpp, forward, backward = balanced(seed)
    f, b = (np.repeat(each[:, None] / vpp, vpp, axis=1) for each in (forward, backward))
    events = simulate(f, b, m, group=m).makespan_s if order == "groups" else forwards_first_s(f, b, m)
    return closed_form_s(forward + backward, m, vpp) / events - 1


@pytest.mark.parametrize("count", first(1, (30, 500)))
def test_the_closed_form_is_within_one_percent_where_all_forwards_come_first(count: int) -> None:
    """Of 500 random plans the worst is 0.6 % below the events: there forward and backward have other slowest stages."""
    off = np.array([off_by("forwards first", seed) for seed in range(count)])
    assert np.abs(off).max() < 0.01


@pytest.mark.parametrize("count", first(1, (30, 500)))
def test_the_closed_form_is_near_the_events_where_the_last_chunk_runs_1f1b(count: int) -> None:
    """Of 500 random plans 492 are within 2 %, the worst 4.2 % above the events and 0.4 % below: what the embedding adds
    to a first stage that is the slowest hides behind the others' idle time in the last chunk. 0.3 % in the mean."""
    off = np.array([off_by("groups", seed) for seed in range(count)])
    assert -0.005 < off.min() <= off.max() < 0.042
    assert np.abs(off).mean() < 0.005
    assert (np.abs(off) < 0.02).mean() > 0.95


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
