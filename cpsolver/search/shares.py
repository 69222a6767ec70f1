"""The exact best shares of a batch for replicas of different kinds, in whole sequences."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ShareOption:
    """One way for each replica of a kind to take `sequences` of a step: its seconds through them, and what follows.

    `after_s`: seconds of summing gradients and updating weights, for which all replicas wait together.
    """

    sequences: int
    pipeline_s: float
    after_s: float
    mbs: int


@dataclass(frozen=True)
class KindOptions:
    """A kind of replicas: how many there are, and every way in which one can take some of a step's sequences."""

    replicas: int
    options: tuple[ShareOption, ...]


def best_shares(kinds: Sequence[KindOptions], batch: int) -> tuple[ShareOption, ...] | None:
    """An option for each kind, whose sequences by all replicas sum to the batch in the least time; None: none do.

    The time is that of the slowest pipeline plus the longest of what follows. For each bound on the latter the former
    is the least T for which options of at most T seconds still sum to the batch: sums within reach are bits of a
    number, so that every T is decided exactly, and halving the options finds the least.
    """
    best, found = float("inf"), None
    for after in sorted({option.after_s for kind in kinds for option in kind.options}):
        allowed = [_fastest([option for option in kind.options if option.after_s <= after]) for kind in kinds]
        seconds = sorted({option.pipeline_s for options in allowed for option in options})
        most = bisect_left(seconds, best - after)  # a slower pipeline gains nothing
        index = bisect_left(range(most), True, key=lambda at: _reaches(kinds, allowed, seconds[at], batch))
        if index < most:
            found = _chosen(kinds, allowed, seconds[index], batch)
            best = seconds[index] + max(option.after_s for option in found)
    return found


def _fastest(options: Sequence[ShareOption]) -> list[ShareOption]:
    """Of options with as many sequences the one that is through first, by their number."""
    first: dict[int, ShareOption] = {}
    for option in options:
        if option.sequences not in first or option.pipeline_s < first[option.sequences].pipeline_s:
            first[option.sequences] = option
    return [first[sequences] for sequences in sorted(first)]


def _sums(
    kinds: Sequence[KindOptions], allowed: Sequence[Sequence[ShareOption]], most_s: float, batch: int
) -> list[int]:
    """Sums within reach after none, one, two … kinds, as bits of a number; options of at most `most_s` seconds."""
    reached, within = [1], (1 << (batch + 1)) - 1
    for kind, options in zip(kinds, allowed, strict=True):
        sums = 0
        for option in options:
            if option.pipeline_s <= most_s:
                sums |= reached[-1] << (kind.replicas * option.sequences)
        reached.append(sums & within)
    return reached


def _reaches(kinds: Sequence[KindOptions], allowed: Sequence[Sequence[ShareOption]], most_s: float, batch: int) -> bool:
    return bool(_sums(kinds, allowed, most_s, batch)[-1] >> batch & 1)


def _chosen(
    kinds: Sequence[KindOptions], allowed: Sequence[Sequence[ShareOption]], most_s: float, batch: int
) -> tuple[ShareOption, ...]:
    """Options that sum to the batch, from the last kind back."""
    reached, left, chosen = _sums(kinds, allowed, most_s, batch), batch, list[ShareOption]()
    for index in reversed(range(len(kinds))):
        size = kinds[index].replicas
        fitting = (option for option in allowed[index] if option.pipeline_s <= most_s)
        option = next(
            option
            for option in fitting
            if size * option.sequences <= left and reached[index] >> (left - size * option.sequences) & 1
        )
        chosen.append(option)
        left -= size * option.sequences
    return tuple(reversed(chosen))
