"""Shares of a batch by kind of replicas, against trying every combination."""

from __future__ import annotations

import random
from itertools import product

import pytest

from cpsolver.search.shares import KindOptions, ShareOption, best_shares


def step_s(chosen: tuple[ShareOption, ...]) -> float:
    return max(option.pipeline_s for option in chosen) + max(option.after_s for option in chosen)


def brute(kinds: list[KindOptions], batch: int) -> float | None:
    times = [
        step_s(chosen)
        for chosen in product(*(kind.options for kind in kinds))
        if sum(kind.replicas * option.sequences for kind, option in zip(kinds, chosen, strict=True)) == batch
    ]
    return min(times, default=None)


def kinds_of(rng: random.Random) -> list[KindOptions]:
    """Some ways of each kind, several with as many sequences, times and what follows in no order."""

    def option() -> ShareOption:
        return ShareOption(rng.randint(1, 8), rng.choice([0.5, 1, 2, 3, 5, 8]), rng.choice([0.0, 0.25, 1, 4]), 1)

    return [
        KindOptions(rng.randint(1, 3), tuple(option() for _ in range(rng.randint(1, 7))))
        for _ in range(rng.randint(1, 3))
    ]


@pytest.mark.parametrize("seed", range(200))
def test_the_best_of_all_combinations_is_found(seed: int) -> None:
    rng = random.Random(seed)
    kinds, batch = kinds_of(rng), rng.randint(1, 24)
    found, expected = best_shares(kinds, batch), brute(kinds, batch)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert sum(kind.replicas * option.sequences for kind, option in zip(kinds, found, strict=True)) == batch
    assert all(option in kind.options for kind, option in zip(kinds, found, strict=True))
    assert step_s(found) == expected


def test_a_chip_of_three_times_the_speed_takes_three_times_as_much() -> None:
    """16 sequences, one replica each of 1 s and of 3 s a sequence: 12 and 4, twelve seconds each."""
    fast = KindOptions(1, tuple(ShareOption(n, float(n), 0.0, 1) for n in range(1, 17)))
    slow = KindOptions(1, tuple(ShareOption(n, 3.0 * n, 0.0, 1) for n in range(1, 17)))
    found = best_shares([fast, slow], 16)
    assert found is not None
    assert [option.sequences for option in found] == [12, 4]


def test_a_slower_pipeline_with_a_faster_end_is_weighed() -> None:
    """Two seconds and half a second after it beat one and five."""
    kind = KindOptions(2, (ShareOption(2, 1.0, 5.0, 1), ShareOption(2, 2.0, 0.5, 2)))
    found = best_shares([kind], 4)
    assert found is not None
    assert found[0].mbs == 2
    assert best_shares([kind], 5) is None
