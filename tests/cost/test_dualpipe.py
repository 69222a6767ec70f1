"""DualPipe's bubble and memory against its published order of passes, run event by event."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from cpsolver.cost.split_backward import split_form
from cpsolver.cost.split_events import run, turns
from tests.cost.test_split_events import balanced_v, form_s
from tests.support.selection import full, night

F, B, W = "forward", "backward", "weights"
Pass = tuple[str, int, bool]
"""Kind, phase (0: of the direction that starts nearer), and whether the weights' gradients are put off."""


def published_order(pp: int, m: int, rank: int) -> Iterator[list[Pass]]:
    """A rank's passes, those that overlap together: the eight steps of deepseek-ai/DualPipe bb214e8, dualpipe.py."""
    half, near = pp // 2, min(rank, pp - 1 - rank)
    away = half - near - 1
    yield from ([(F, 0, False)] for _ in range(2 * away))
    for _ in range(near + 1):
        yield from ([(F, 0, False)], [(F, 1, False)])
    for _ in range(away):
        yield from ([(B, 1, True)], [(W, 1, False)], [(F, 1, False)])
    for index in range(m // 2 - pp + near + 1):
        first: list[Pass] = [(F, 0, False), (B, 1, False)]
        yield from ([one] for one in first) if index == 0 and near == half - 1 else [first]
        yield [(F, 1, False), (B, 0, False)]
    for _ in range(away):
        yield from ([(B, 1, False)], [(F, 1, False), (B, 0, False)])
    put_off = False
    for index in range(near + 1):
        put_off = put_off or (index == (near + 1) // 2 and near % 2 == 1)
        yield [(B, 1, put_off)]
        put_off = put_off or (index == (near + 1) // 2 and near % 2 == 0)
        yield [(B, 0, put_off)]
    for _ in range(away):
        yield from ([(W, 0, False)], [(B, 0, True)])
    yield from ([(W, 0, False)] for _ in range(near + 1))


class Run:
    """A step, pass by pass: `step_s`, and `peak`, the most microbatches that each rank holds. Half of a backward is the
    weights'; two passes that overlap take as long as one after the other, and give nothing before both are done."""

    def __init__(self, pp: int, m: int, forward_s: float, backward_s: float) -> None:
        self.pp, self.seconds = pp, {F: forward_s, B: backward_s, W: backward_s / 2}
        self.done: dict[tuple[str, int, int, int], float] = {}  # kind, direction, stage, microbatch -> end
        self.count: dict[tuple[str, int, int], int] = {}
        order = {rank: list(published_order(pp, m, rank)) for rank in range(pp)}
        clock, live = dict.fromkeys(order, 0.0), dict.fromkeys(order, 0)
        self.peak = dict.fromkeys(order, 0)
        while any(order.values()):
            before = sum(map(len, order.values()))
            for rank, passes in order.items():
                while passes and (ready := self.ready_s(rank, passes[0])) is not None:
                    together = passes.pop(0)
                    took = (self.seconds[kind] * (0.5 if put_off else 1.0) for kind, _, put_off in together)
                    clock[rank] = max(clock[rank], ready) + sum(took)
                    for kind, phase, _ in together:
                        self.done[self.unit(rank, kind, phase)] = clock[rank]
                        self.count[kind, phase, rank] = self.count.get((kind, phase, rank), 0) + 1
                    live[rank] += sum(kind == F for kind, _, _ in together)
                    self.peak[rank] = max(self.peak[rank], live[rank])
                    live[rank] -= sum(kind == B for kind, _, _ in together)
            assert sum(map(len, order.values())) < before, "the schedule stalls"
        self.step_s = max(clock.values())

    def unit(self, rank: int, kind: str, phase: int) -> tuple[str, int, int, int]:
        """A rank's next pass of that kind: its kind, direction, stage and microbatch."""
        direction = phase ^ (rank >= self.pp // 2)
        stage = self.pp - 1 - rank if direction else rank
        return kind, direction, stage, self.count.get((kind, phase, rank), 0)

    def ready_s(self, rank: int, together: list[Pass]) -> float | None:
        """When what passes need is there; None while it is not known."""
        found = 0.0
        for kind, phase, _ in together:
            _, direction, stage, number = self.unit(rank, kind, phase)
            needed = (kind, direction, stage + (1 if kind == B else -1), number)
            if kind == B and stage == self.pp - 1:
                needed = (F, direction, stage, number)
            if kind == W or not 0 <= needed[2] < self.pp:
                continue
            if needed not in self.done:
                return None
            found = max(found, self.done[needed])
        return found


SIZES = [(2, 4), (4, 8), (4, 14), (8, 20), (16, 32), (16, 120)]


def closed_form_s(pp: int, m: int, forward_s: float, backward_s: float) -> float:
    """A step by the closed form, folded: half of the stages, each both passes of a microbatch of either direction."""
    weight_s = min(backward_s / 2, forward_s)
    half = [2 * seconds * np.ones(pp // 2) for seconds in (forward_s + backward_s, forward_s, weight_s)]
    return split_form("dualpipe", True, pp // 2, m // 2).step_s(np.array([*half, *[0 * half[0]] * 3]))


@pytest.mark.parametrize(("pp", "m"), SIZES)
def test_the_bubble_is_that_of_the_published_order(pp: int, m: int) -> None:
    """Forward 1 s, backward 2: (pp/2 - 1) (3 + 2 - 3 x 1) s, and pp + 1 microbatches held."""
    found = Run(pp, m, 1.0, 2.0)
    assert closed_form_s(pp, m, 1.0, 2.0) == pytest.approx(3 * m + 2 * (pp / 2 - 1))
    assert found.step_s == pytest.approx(3 * m + 2 * (pp / 2 - 1))
    assert set(found.peak.values()) == {pp + 1}


@pytest.mark.parametrize(("pp", "m"), SIZES)
@pytest.mark.parametrize("backward_s", [2.0, 2.4, 3.0])
def test_the_closed_form_is_that_of_the_published_order_where_backward_is_longer(
    pp: int, m: int, backward_s: float
) -> None:
    half = np.full((pp, 2), backward_s / 2)
    events = run(turns("dualpipe", pp, m), np.ones((pp, 2)), half, half, both_ways=True).makespan_s
    assert events == pytest.approx(Run(pp, m, 1.0, backward_s).step_s)
    assert min(backward_s / 2, 1.0) < backward_s / 2 or closed_form_s(pp, m, 1.0, backward_s) == pytest.approx(events)


@pytest.mark.parametrize(("pp", "m"), SIZES)
def test_events_hold_what_the_paper_says_and_no_pass_is_before_its_time(pp: int, m: int) -> None:
    """PP + 1 microbatches on every device, of its stage s up to pp - s and of the mirrored one up to s + 1."""
    rng = np.random.default_rng(pp)
    seconds = [rng.uniform(0.5, 2.0, (pp, 2)) for _ in range(3)]
    found = run(turns("dualpipe", pp, m), *seconds, both_ways=True)
    assert found.peak.tolist() == [pp + 1] * pp
    assert all(len(of_device) == 3 * m for of_device in found.passes)
    for device, of_device in enumerate(found.passes):
        for chunk in (0, 1):
            own = [(each[0] == "F") - (each[0] == "B") for each, _, _ in of_device if each[1] == chunk]
            near = min(device, pp - 1 - device)
            assert np.cumsum(own).max() == (pp - near if chunk == 0 else near + 1)


@pytest.mark.parametrize("seed", range(20))
def test_the_events_are_those_of_dualpipev_folded(seed: int) -> None:
    """Where a stage's two chunks take as long, the closed form is as near to them as DualPipeV's."""
    rng = np.random.default_rng(seed)
    half = int(rng.integers(1, 7))
    m = int(rng.integers(2 * half, 6 * half + 2))
    seconds = [np.repeat(rng.uniform(0.5, 2.0, (half, 1)), 2, axis=1) for _ in range(3)]
    both = [np.concatenate([each, each[::-1]]) for each in seconds]
    alone = run(turns("dualpipev", half, m), *seconds)
    found = run(turns("dualpipe", 2 * half, 2 * m), *both, both_ways=True)
    assert found.makespan_s == pytest.approx(alone.makespan_s)
    assert found.peak.tolist() == [*alone.peak.tolist(), *reversed(alone.peak.tolist())]


def off_by(seed: int) -> float:
    """By how much the closed form is above the events, for a plan drawn at random."""
    m, *passes_s = balanced_v(np.random.default_rng(seed))
    pp, both = len(passes_s[0]), [np.concatenate([each, each[::-1, ::-1]]) for each in passes_s]
    events = run(turns("dualpipe", 2 * pp, 2 * m), *both, both_ways=True).makespan_s
    return form_s("dualpipe", m, *passes_s) / events - 1


@pytest.mark.parametrize("count", [15, full(60), night(500)])
def test_the_closed_form_is_within_two_percent_of_the_events_of_500_random_plans(count: int) -> None:
    """That of the folded plan."""
    off = np.array([off_by(seed) for seed in range(count)])
    assert -0.02 < off.min() <= off.max() < 1e-9
    assert off.mean() > -0.004


def test_sizes_that_it_does_not_run_are_refused() -> None:
    for pp, m in ((4, 6), (3, 8), (4, 9)):
        with pytest.raises(ValueError, match="dualpipe needs"):
            turns("dualpipe", pp, m)
