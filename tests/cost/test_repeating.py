"""Steps of which few microbatches are run, against all of them event by event."""

from __future__ import annotations

import numpy as np
import pytest

from cpsolver.cost import repeating
from cpsolver.cost.pipeline_events import MOST_EVENTS, Order, ends_s, simulate
from cpsolver.cost.repeating import longest_chain, makespan_s
from cpsolver.cost.shard import Floats
from cpsolver.cost.step_form import PipelineSizes
from tests.support.selection import first


def events_s(sizes: PipelineSizes, forward: Floats, backward: Floats, group: int | None = None) -> float:
    """Seconds of a step with all of its microbatches."""
    forward, backward = (np.repeat(each[:, None], sizes.vpp, axis=1) for each in (forward, backward))
    return simulate(forward, backward, sizes.microbatches, group=group, beside=sizes.beside).makespan_s


def any_step(seed: int) -> tuple[PipelineSizes, Floats, Floats]:
    """Few stages and many, alike, of a few kinds, one a little slower than the others, and all apart."""
    rng = np.random.default_rng(seed)
    pp = int(rng.integers(1, 13))
    vpp = int(rng.integers(1, 6)) if pp > 1 else 1
    m = pp * int(rng.integers(1, 60)) + (int(rng.integers(0, pp)) if vpp == 1 else 0)
    kinds = (np.ones(pp), rng.choice([1.0, 1.001, 1.25], pp), 1 + 0.02 * rng.random(pp), rng.uniform(0.5, 1.5, pp))
    stages = kinds[rng.integers(0, len(kinds))]
    forward = stages * (1 if rng.random() < 0.5 else rng.uniform(0.8, 1.2, pp))
    return PipelineSizes(pp, vpp, m, bool(rng.random() < 0.2)), forward, stages * rng.uniform(0.5, 3)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Events of every run from now on."""
    events: list[int] = []

    def counted(order: Order, wait_s: Floats | None, seconds: Floats) -> Floats:
        events.append(2 * order.at[0].size)
        return ends_s(order, wait_s, seconds)

    monkeypatch.setattr(repeating, "ends_s", counted)
    return events


@pytest.mark.parametrize("count", first(1, (150, 3000)))
def test_a_step_of_which_few_microbatches_are_run_takes_what_all_take(count: int, runs: list[int]) -> None:
    """The seconds, and the chain that holds the step up; most steps of many microbatches are not run in full."""
    all_of_them = 0
    for seed in range(count):
        sizes, forward, backward = any_step(seed)
        events = events_s(sizes, forward, backward)
        assert makespan_s(sizes, sizes.pp, forward, backward) == pytest.approx(events, rel=1e-9), seed
        all_of_them += 2 * sizes.pp * sizes.vpp * sizes.microbatches
    assert sum(runs) < 0.6 * all_of_them
    for seed in range(count):
        sizes, forward, backward = any_step(seed)
        chain = longest_chain(sizes, sizes.pp, forward, backward)
        assert chain is not None
        took_s = float((chain * np.stack([forward, backward], axis=1)).sum())
        assert took_s == pytest.approx(events_s(sizes, forward, backward), rel=1e-9), seed


@pytest.mark.parametrize("count", first(1, (60, 1000)))
def test_a_chain_is_a_way_through_the_whole_step_whatever_passes_take(count: int) -> None:
    for seed in range(count):
        sizes, forward, backward = any_step(seed)
        chain = longest_chain(sizes, sizes.pp, forward, backward)
        rng = np.random.default_rng(seed)
        others = rng.uniform(0.5, 1.5, sizes.pp), rng.uniform(0.5, 3, sizes.pp)
        assert chain is not None
        took_s = float((chain * np.stack(others, axis=1)).sum())
        assert took_s <= events_s(sizes, *others) * (1 + 1e-9), seed


def test_a_stage_a_little_slower_than_others_is_waited_for_until_it_has_lost_its_lead(runs: list[int]) -> None:
    """The first of eight stages is 2 % slower: it is a chunk ahead of the others, 3 times 8 microbatches long."""
    sizes, stages = PipelineSizes(8, 2, 800), np.array([1.02, *[1.0] * 7])
    assert makespan_s(sizes, 8, stages, 2 * stages) == pytest.approx(events_s(sizes, stages, 2 * stages), rel=1e-9)
    assert [events // (2 * 8 * 2 * 8) for events in runs] == [4, 8]


@pytest.mark.parametrize("count", first(1, (20, 300)))
def test_of_too_many_passes_the_rest_is_as_slow_as_the_last(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 0.5 % more than the events, never less; a chain that is found is one of all passes."""
    monkeypatch.setattr(repeating, "MOST_EVENTS", 3000)
    beyond = 0
    for seed in range(count):
        rng = np.random.default_rng(seed)
        pp, vpp = int(rng.integers(2, 9)), int(rng.integers(1, 5))
        sizes = PipelineSizes(pp, vpp, pp * int(rng.integers(20, 60)) + int(vpp == 1))
        forward = rng.uniform(0.9, 1.1, pp)
        backward = forward * rng.uniform(1.8, 2.2, pp)
        events, found = events_s(sizes, forward, backward), makespan_s(sizes, pp, forward, backward)
        assert found is not None
        assert events * (1 - 1e-9) <= found < 1.005 * events, seed
        beyond += found > events * (1 + 1e-9)
        chain = longest_chain(sizes, pp, forward, backward)
        if chain is not None:
            took_s = float((chain * np.stack([forward, backward], axis=1)).sum())
            assert 0.98 * events < took_s < events * (1 + 1e-9), seed
    assert beyond


def test_where_microbatches_pass_a_chunk_all_together_none_are_left_out(runs: list[int]) -> None:
    most, stages = MOST_EVENTS // (2 * 2 * 2), np.ones(2)
    of_all = events_s(PipelineSizes(2, 2, most), stages, stages, group=most)
    assert makespan_s(PipelineSizes(2, 2, most), most, stages, stages) == pytest.approx(of_all)
    assert runs == [2 * 2 * 2 * most]
    assert makespan_s(PipelineSizes(2, 2, most + 1), most + 1, stages, stages) is None
    assert longest_chain(PipelineSizes(2, 2, most + 1), most + 1, stages, stages) is None
