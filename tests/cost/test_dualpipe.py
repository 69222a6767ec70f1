"""DualPipe's bubble and memory against its published order of passes, run event by event."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cpsolver.cost.schedules import SCHEDULES

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


def bubble_s(pp: int, forward_s: float, backward_s: float) -> float:
    return SCHEDULES["dualpipe"].bubble_left(pp, forward_s, backward_s) * (pp - 1) * (forward_s + backward_s)


@pytest.mark.parametrize(("pp", "m"), SIZES)
def test_the_bubble_is_that_of_the_published_order(pp: int, m: int) -> None:
    """Forward 1 s, backward 2: (pp/2 - 1) (3 + 2 - 3 x 1) s, and pp + 1 microbatches held."""
    found = Run(pp, m, 1.0, 2.0)
    assert bubble_s(pp, 1.0, 2.0) == pytest.approx(2 * (pp / 2 - 1))
    assert found.step_s == pytest.approx(3 * m + 2 * (pp / 2 - 1))
    assert set(found.peak.values()) == {pp + 1}


@pytest.mark.parametrize(("pp", "m"), SIZES)
@pytest.mark.parametrize("backward_s", [1.6, 2.4])
def test_other_backward_passes_change_the_bubble_little(pp: int, m: int, backward_s: float) -> None:
    found = Run(pp, m, 1.0, backward_s).step_s - m * (1 + backward_s)
    assert found == pytest.approx(bubble_s(pp, 1.0, backward_s), rel=0.12, abs=1e-6)
