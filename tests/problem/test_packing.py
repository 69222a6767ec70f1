"""Windows of packed and padded sequences: first-fit decreasing against the plain algorithm, and sums by hand."""

from __future__ import annotations

import random

import pytest

from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.selection import attended_share
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.problem.packing import apportioned, first_fit_decreasing, windows_of
from cpsolver.spec.training import Length, Training
from tests.support.problems import ideal, model_spec, strategy_of


def one_by_one(lengths: list[int], window: int) -> list[list[int]]:
    """Each sequence, the longest first, into the first window with room."""
    windows: list[list[int]] = []
    for tokens in sorted(lengths, reverse=True):
        room = next((held for held in windows if sum(held) + tokens <= window), None)
        if room is None:
            windows.append([tokens])
        else:
            room.append(tokens)
    return windows


@pytest.mark.parametrize("seed", range(40))
def test_runs_of_windows_are_those_of_the_plain_algorithm(seed: int) -> None:
    draw = random.Random(seed)
    window = draw.randint(5, 60)
    lengths = sorted({draw.randint(1, window) for _ in range(draw.randint(1, 6))}, reverse=True)
    counts = {tokens: draw.randint(1, 20) for tokens in lengths}
    plain = one_by_one([tokens for tokens, count in counts.items() for _ in range(count)], window)
    found = [
        [tokens for tokens, count in run.held for _ in range(count)]
        for run in first_fit_decreasing(counts, window)
        for _ in range(run.windows)
    ]
    assert found == plain


def training(packing: bool | None, *lengths: tuple[int, float], window: int = 1000) -> Training:
    told = tuple(Length(tokens=tokens, share=share) for tokens, share in lengths)
    return Training(global_batch_size=8, sequence_length=window, lengths=told, packing=packing)


def test_padded_sequences_use_the_mean_of_their_window() -> None:
    """Three of 200 tokens for one of 600 in windows of 1000: 0.3 of the places."""
    windows = windows_of(training(False, (200, 3), (600, 1)))
    assert windows.useful == pytest.approx(0.3)
    assert windows.attended == ((1000, 1.0),)


def test_packed_sequences_fill_windows() -> None:
    """As many of 600 as of 400: one of each fills a window, 0.36 + 0.16 of its pairs."""
    windows = windows_of(training(None, (600, 1), (400, 1)))
    assert windows.useful == pytest.approx(1.0)
    assert dict(windows.attended) == pytest.approx({600: 1.0, 400: 1.0})
    assert sum(share for share, _ in windows.kinds) == pytest.approx(1.0)


def test_what_is_left_of_a_window_attends_to_itself() -> None:
    """Sequences of 700 have a window each: 300 places of padding, a sequence of their own."""
    windows = windows_of(training(True, (700, 5)))
    assert windows.useful == pytest.approx(0.7)
    assert dict(windows.attended) == pytest.approx({700: 1.0, 300: 1.0})


def test_shares_are_apportioned_with_one_of_each_at_least() -> None:
    lengths = (Length(tokens=10, share=1e-9), Length(tokens=20, share=2), Length(tokens=30, share=1))
    counts = apportioned(lengths, 300)
    assert list(counts) == [30, 20, 10]
    assert counts[10] == 1
    assert abs(counts[20] - 200) <= 1
    assert 300 <= sum(counts.values()) <= 301


def test_attention_is_the_sum_of_squares() -> None:
    """Windows of 1024 with sequences of 512, 256 and 256: a quarter and twice a sixteenth of the pairs, causal half of
    each. Layers with a window of 256 see 256 x 512 - 256^2 / 2 pairs of the longest."""
    lengths = [{"tokens": 512, "share": 1}, {"tokens": 256, "share": 2}]
    problem, _ = ideal(training={"lengths": lengths})
    kind = layer_kinds(problem.model)[0]
    assert attended_share(problem, kind) == pytest.approx(0.5 * (0.25 + 2 / 16))
    windowed, _ = ideal(model=model_spec(attention={"sliding_window": 256}), training={"lengths": lengths})
    pairs = 256 * 512 - 256**2 / 2 + 2 * 256**2 / 2
    assert attended_share(windowed, layer_kinds(windowed.model)[0]) == pytest.approx(pairs / 1024**2)


def test_packed_steps_are_shorter_by_attention_alone_and_padded_ones_waste_their_padding() -> None:
    """Of a packed step the core of attention takes 3/8 of what it takes of a whole window; padded steps take as long as
    whole ones, for a third of the tokens."""
    lengths = [{"tokens": 512, "share": 1}, {"tokens": 256, "share": 2}]
    given = [{}, {"lengths": lengths}, {"lengths": lengths, "packing": False}]
    plan = strategy_of(dp=4)
    problems = [ideal(training=each)[0] for each in given]
    whole, packed, padded = (evaluate(problem, plan) for problem in problems)
    core = 4 * 2 * (4 * 1024 * 1024 * 0.5 * 1024) * (1 + 2.5) / 50e12  # layers, microbatches, FLOP, passes
    assert whole.step_time_s - packed.step_time_s == pytest.approx(core * (1 - 3 / 8), rel=1e-6)
    assert padded.step_time_s == whole.step_time_s
    assert padded.tokens_per_s == pytest.approx(whole.tokens_per_s / 3)
    assert packed.tokens_per_s == pytest.approx(8 * 1024 / packed.step_time_s)
