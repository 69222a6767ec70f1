"""What a histogram of sequence lengths makes of a window: how much of it is tokens, and what attends to what.

Packed, sequences fill windows first-fit decreasing (Megatron-Bridge 067f987, data/packing/algorithms.py): the longest
first, each into the first window with room for it. Attention stays within a sequence; what is left of a window is
computed too, as a sequence of its own. Padded, each sequence has a window to itself, all of which is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cpsolver.spec.training import Length, Training

SAMPLE = 50_400
"""Sequences that are packed, in the histogram's proportions: one window more or less matters nothing then, and shares
in hundredths, thirds or sevenths are whole numbers of them."""
Attended = tuple[tuple[int, float], ...]
"""Sequences by their length: tokens of one, and how many there are."""


@dataclass(frozen=True)
class Windows:
    """Windows of a training, in the mean and by kind.

    `useful`: share of their places that hold a sequence's token. `attended`: what attends within itself, so many of
    each length in a window in the mean. `kinds`: for each kind of window its share, and what attends within itself in
    one.
    """

    useful: float
    attended: Attended
    kinds: tuple[tuple[float, Attended], ...]


def windows_of(training: Training) -> Windows:
    """The windows of `sequence_length` tokens that a training's sequences come in."""
    window = training.sequence_length
    whole: Attended = ((window, 1.0),)
    if training.lengths is None:
        return Windows(1.0, whole, ((1.0, whole),))
    if not training.packs:
        total = sum(length.share for length in training.lengths)
        mean = sum(length.share * length.tokens for length in training.lengths) / total
        return Windows(mean / window, whole, ((1.0, whole),))
    return _packed(training.lengths, window)


@lru_cache(maxsize=64)
def _packed(lengths: tuple[Length, ...], window: int) -> Windows:
    runs = first_fit_decreasing(apportioned(lengths), window)
    number = sum(run.windows for run in runs)
    useful = sum(run.windows * (window - run.room) for run in runs) / (number * window)
    kinds = tuple((run.windows / number, _attended(run)) for run in runs)
    mean: dict[int, float] = {}
    for share, held in kinds:
        for tokens, count in held:
            mean[tokens] = mean.get(tokens, 0.0) + share * count
    return Windows(useful, tuple(sorted(mean.items())), kinds)


def _attended(run: Run) -> Attended:
    rest = [(run.room, 1.0)] if run.room else []
    return (*((tokens, float(count)) for tokens, count in run.held), *rest)


def apportioned(lengths: tuple[Length, ...], sample: int = SAMPLE) -> dict[int, int]:
    """How many of so many sequences have each length, the longest first: largest remainders, at least one each."""
    total = sum(length.share for length in lengths)
    exact = {length.tokens: sample * length.share / total for length in sorted(lengths, key=lambda each: -each.tokens)}
    counts = {tokens: max(1, int(count)) for tokens, count in exact.items()}
    by_remainder = sorted(exact, key=lambda tokens: int(exact[tokens]) - exact[tokens])
    for tokens in by_remainder[: max(0, sample - sum(counts.values()))]:
        counts[tokens] += 1
    return counts


@dataclass(frozen=True)
class Run:
    """So many windows that hold the same: sequences by length, and the places that are left."""

    windows: int
    room: int
    held: tuple[tuple[int, int], ...] = ()

    def with_more(self, windows: int, tokens: int, count: int) -> Run:
        """Some of the windows, each with so many more sequences of that length."""
        return Run(windows, self.room - count * tokens, (*self.held, *([(tokens, count)] if count else [])))


def first_fit_decreasing(counts: dict[int, int], window: int) -> list[Run]:
    """Windows in the order in which they are opened, neighbours that hold the same together.

    `counts`: sequences by length, the longest first, none longer than a window.
    """
    runs: list[Run] = []
    for tokens, count in counts.items():
        left, after = count, list[Run]()
        for run in runs:
            each = run.room // tokens
            taken = min(left, each * run.windows)
            after += _filled(run, tokens, taken, each) if taken else [run]
            left -= taken
        each = window // tokens
        runs = [*after, *_filled(Run(-(-left // each), window), tokens, left, each)] if left else after
    return runs


def _filled(run: Run, tokens: int, taken: int, each: int) -> list[Run]:
    """A run's windows after so many sequences, `each` in a window until they are at their end."""
    full, rest = divmod(taken, each)
    parts = [
        run.with_more(full, tokens, each),
        run.with_more(int(rest > 0), tokens, rest),
        run.with_more(run.windows - full - (rest > 0), tokens, 0),
    ]
    return [part for part in parts if part.windows]
