"""Schedules with split backward passes as events: published bubbles and memory; the closed form that ranks plans."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import numpy as np
import pytest

from cpsolver.cost.pipeline_events import peak_live_total, simulate
from cpsolver.cost.schedules import SCHEDULES
from cpsolver.cost.shard import Floats
from cpsolver.cost.split_backward import weight_share, zero_bubble_bound
from cpsolver.cost.split_events import Pass, SplitRun, SplitSchedule, chunks_of, run, split_schedule, turns
from tests.support.problems import ideal
from tests.support.selection import first, night
from tests.support.split_backward import form_of

TIMES = {"zb1p": 1, "zb2p": 2}
ONE_WAY = tuple(name for name in get_args(SplitSchedule) if name != "dualpipe")
"""The other is in test_dualpipe.py."""
SIZES = [(2, 4), (4, 8), (4, 20), (5, 16), (6, 24), (8, 16), (8, 32), (12, 40)]


def equal(schedule: SplitSchedule, pp: int, m: int, f: float, b: float, w: float) -> SplitRun:
    """With equal chunks, of which a device's take f, b and w seconds together."""
    count = chunks_of(schedule)
    forward, inputs, weights = (np.full((pp, count), seconds / count) for seconds in (f, b, w))
    return run(turns(schedule, pp, m), forward, inputs, weights)


def bubble(schedule: SplitSchedule, pp: int, m: int, f: float, b: float, w: float) -> float:
    return float(equal(schedule, pp, m, f, b, w).span_s.max()) - m * (f + b + w)


@pytest.mark.parametrize(("pp", "m"), SIZES)
@pytest.mark.parametrize(("f", "b", "w"), [(1, 1, 1), (1, 1.3, 0.7), (1, 2, 1), (1, 1, 0.5)])
def test_bubbles_are_those_of_the_paper(pp: int, m: int, f: float, b: float, w: float) -> None:
    """arXiv:2401.10241, table 1: ZB-H1 (p - 1)(F + B - W), ZB-H2 (p - 1)(F + B - 2 W); section 6: ZB-V none where all
    three are equal."""
    assert bubble("zb1p", pp, m, f, b, w) == pytest.approx((pp - 1) * (f + b - w), abs=1e-9)
    if m >= 2 * pp - 1:
        assert bubble("zb2p", pp, m, f, b, w) == pytest.approx((pp - 1) * (f + b - 2 * w), abs=1e-9)
    if f == b == w:
        assert bubble("zbv", pp, m, f, b, w) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("pp", "m"), SIZES)
def test_bubble_rates_are_those_of_primus(pp: int, m: int) -> None:
    """Where the next step waits for all devices, and F = B = W: of ZBV's step (p - 1) / (p - 1 + 6 m); ZB1P has a third
    of 1F1B's bubble (AMD-AGI/Primus fd1eeab, docs_deprecated/tech_blogs/primus_pipeline/primus_pipeline.md)."""
    whole = equal("zbv", pp, m, 1, 1, 1).makespan_s
    assert (whole - 3 * m) / whole == pytest.approx((pp - 1) / (pp - 1 + 6 * m))
    plain = 3 * (m + pp - 1)
    assert equal("zb1p", pp, m, 1, 1, 1).makespan_s - 3 * m == pytest.approx((plain - 3 * m) / 3)


@pytest.mark.parametrize("pp", [2, 4, 5, 6, 8, 9, 12])
def test_peaks_are_those_of_the_papers(pp: int) -> None:
    """In microbatches of a whole device. arXiv:2401.10241: p and 2 p - 1, ZB-V p. arXiv:2405.15362 and the authors'
    page: (p + 2) // 2 for V-Half and (p + 4) // 3 for V-Min. DualPipeV: PP + 1 chunks, PP = 2 p being its stages."""
    m = 4 * pp
    peaks = {name: float(equal(name, pp, m, 1, 1, 1).peak.max()) / chunks_of(name) for name in ONE_WAY}
    assert (peaks["zb1p"], peaks["zb2p"], peaks["zbv"]) == (pp, 2 * pp - 1, pp)
    assert (peaks["v_half"], peaks["v_min"]) == ((pp + 2) // 2, (pp + 4) // 3)
    assert 2 * peaks["dualpipev"] == 2 * pp + 1


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 10), (4, 20), (6, 24), (8, 16)])
def test_dualpipev_has_the_bubble_of_its_authors_where_backward_is_twice_forward(pp: int, m: int) -> None:
    """(PP/2 - 1)(F&B + B - 3 W) with PP = 2 pp stages: of chunks F = 0.5, B = 1 with W = 0.5 that is pp - 1."""
    assert bubble("dualpipev", pp, m, 1, 1, 1) == pytest.approx(pp - 1)
    with pytest.raises(ValueError, match="2 pp microbatches at least"):
        turns("dualpipev", pp, 2 * pp - 1)


@pytest.mark.parametrize(
    ("schedule", "pp", "m", "grains", "held"),
    [
        ("v_half", 4, 8, 5, 6),
        ("v_half", 4, 16, 5, 6),
        ("v_half", 6, 24, 11, 8),
        ("v_half", 8, 16, 17, 10),
        ("v_half", 8, 32, 17, 10),
        ("v_min", 4, 8, 11, 4),
        ("v_min", 4, 16, 11, 4),
        ("v_min", 6, 24, 17, 6),
        ("v_min", 8, 16, 27, 8),
        ("v_min", 8, 32, 27, 8),
    ],
)
def test_v_schedules_are_those_of_the_authors_scheduler(
    schedule: SplitSchedule, pp: int, m: int, grains: int, held: int
) -> None:
    """What zbv_greedy.py of sail-sg/zero-bubble-pipeline-parallelism 39f2c18 says, run with passes of one grain, six of
    them a microbatch: grains that its longest device waits, and chunks held. 1F1B waits 6 (pp - 1)."""
    one = np.ones((pp, 2))
    found = run(turns(schedule, pp, m), one, one, one)
    assert (found.span_s.max() - 6 * m, found.peak.max()) == (grains, held)


@pytest.mark.parametrize("schedule", ONE_WAY)
@pytest.mark.parametrize(("pp", "m"), SIZES)
def test_every_pass_runs_once_and_behind_what_it_waits_for(schedule: SplitSchedule, pp: int, m: int) -> None:
    rng, count = np.random.default_rng(pp * m), chunks_of(schedule)
    seconds: list[Floats] = [rng.uniform(0.5, 2.0, (pp, count)) for _ in range(3)]
    done = run(turns(schedule, pp, m), *seconds)
    at: dict[tuple[int, Pass], tuple[float, float]] = {}
    for device, passes in enumerate(done.passes):
        assert len(passes) == 3 * count * m
        for (_, _, end), (_, start, _) in pairwise(passes):
            assert start >= end - 1e-12
        at |= {(device, each): (start, end) for each, start, end in passes}
    assert len(at) == 3 * pp * count * m
    for (device, (kind, chunk, i)), (start, _) in at.items():
        stage = device if chunk == 0 else 2 * pp - 1 - device
        if kind == "W":
            assert start >= at[device, ("B", chunk, i)][1] - 1e-12
        if kind == "B":
            assert start >= at[device, ("F", chunk, i)][1] - 1e-12
        other = stage - 1 if kind == "F" else stage + 1
        if kind != "W" and 0 <= other < pp * count:
            own = (other, (kind, 0, i)) if other < pp else (2 * pp - 1 - other, (kind, 1, i))
            assert start >= at[own][1] - 1e-12


def test_whole_backwards_make_it_1f1b() -> None:
    """With W directly behind its B, nothing is put off: Megatron's order."""
    order = [
        [(each[0], ("W", 0, each[0][2])) if each[0][0] == "B" else each for each in device if each[0][0] != "W"]
        for device in turns("zb1p", 4, 8)
    ]
    forward = np.array([[1.0], [1.2], [0.9], [1.1]])
    plain = simulate(forward, 2 * forward, 8)
    assert run(order, forward, forward, forward).makespan_s == pytest.approx(plain.makespan_s)
    assert run(order, forward, forward, forward).peak.tolist() == peak_live_total(4, 1, 8).tolist()


def test_a_schedule_that_cannot_go_on_is_refused() -> None:
    one = np.ones((1, 1))
    with pytest.raises(ValueError, match="waits for ever"):
        run([[(("B", 0, 0),), (("F", 0, 0),), (("W", 0, 0),)]], one, one, one)


# The closed forms.

V_SHAPED: tuple[SplitSchedule, ...] = ("zbv", "dualpipev", "v_half", "v_min")
SPLIT: tuple[SplitSchedule, ...] = ("zb1p", "zb2p", *V_SHAPED)


def form_s(schedule: SplitSchedule, m: int, f: Floats, b: Floats, w: Floats) -> float:
    """A step by the closed form; f, b, w: (pp, chunks)."""
    whole = f + b + w
    parts = [each.sum(axis=1) for each in (whole, f, w)]
    parts += [(each[:, -1] - each[:, 0]) for each in (whole, f, w)]
    return form_of(schedule, len(f), m).step_s(np.array(parts))


def events_s(schedule: SplitSchedule, m: int, f: Floats, b: Floats, w: Floats) -> float:
    """The same event by event."""
    done = run(turns(schedule, len(f), m), f, b, w)
    return done.makespan_s if schedule in V_SHAPED else float(done.span_s.max())


@pytest.mark.parametrize("schedule", SPLIT)
@pytest.mark.parametrize(("pp", "m"), [*SIZES, (4, 1), (4, 3), (8, 4), (8, 12), (1, 4), (3, 50), (6, 90)])
def test_the_closed_form_is_exact_for_equal_stages(schedule: SplitSchedule, pp: int, m: int) -> None:
    """Whether F or B is longer, or both are as long as W; for as many microbatches as the schedule runs."""
    if schedule in V_SHAPED and (m < 2 * pp or pp == 1):
        return  # rule `schedule`
    for f, b, w in ((1.0, 1.0, 1.0), (1.0, 1.3, 0.7), (1.0, 3.0, 1.0), (1.3, 1.1, 0.8)):
        equal = [np.full((pp, chunks_of(schedule)), each) for each in (f, b, w)]
        assert form_s(schedule, m, *equal) == pytest.approx(events_s(schedule, m, *equal), rel=1e-9)


@pytest.mark.parametrize(
    ("schedule", "slow", "round_s"),
    [
        ("v_half", (0, 1), 2 + 2 + 1 / 2),
        ("v_half", (2, 3), 2 + 2 + 1 / 2),
        ("v_half", (1, 2), 4),
        ("v_min", (1, 2, 3), 2 + 2 + 2),
        ("v_min", (0, 1, 2), 2 + 2 + (1 + 1) / 2),
    ],
)
def test_rounds_in_which_neighbours_wait(schedule: SplitSchedule, slow: tuple[int, ...], round_s: float) -> None:
    """Of 4 stages some work 10 times as long as the others, F 1, B 2, W 1: every further microbatch takes a round, or
    what a stage works."""
    part = np.isin(np.arange(4), slow)[:, None] * np.ones(2) * 0.45 + 0.05
    steps = [run(turns(schedule, 4, m), part, 2 * part, part).makespan_s for m in (12, 16)]
    assert steps[1] - steps[0] == pytest.approx(4 * round_s)


def balanced_stages(rng: np.random.Generator) -> tuple[int, Floats, Floats, Floats]:
    """A plan's stages as a planner balances them: m, and seconds of F, B and W by stage.

    Layers differ by one, the last stage has fewer for its head; some recompute, all or some modules.
    """
    pp = int(rng.integers(2, 13))
    layer, head, embedding = int(rng.integers(3, 17)), rng.uniform(0.1, 2.0), rng.uniform(0, 0.3)
    layers = np.full(pp, layer)
    layers[-1] = layer - round(head)
    layers[: int(rng.integers(0, pp))] -= 1
    layers = np.maximum(1, layers)
    ends = np.zeros((pp, 1))
    ends[0], ends[-1] = ends[0] + embedding, ends[-1] + head
    forward, inputs, weight = passes(rng, layers[:, None].astype(float), ends)
    return int(rng.integers(pp, 8 * pp)), forward, inputs, weight


def balanced_v(rng: np.random.Generator) -> tuple[int, Floats, Floats, Floats]:
    """The same by stage and chunk of a V, in which the first stage has both ends, and layers differ by one a chunk."""
    pp = int(rng.integers(2, 13))
    layer, head, embedding = 2 * int(rng.integers(3, 17)), rng.uniform(0.1, 2.0), rng.uniform(0, 0.3)
    layers = np.full(pp, layer)
    layers[0] = layer - round(head)  # where that is odd the head's chunk is one short
    layers[1 : 1 + int(rng.integers(0, pp))] -= 2 * int(rng.random() < 0.5)
    ends = np.zeros((pp, 2))
    ends[0] = embedding, head
    forward, inputs, weight = passes(rng, np.stack([(layers + 1) // 2, layers // 2], axis=1) * 1.0, ends)
    return int(rng.integers(2 * pp, 8 * pp)), forward, inputs, weight


def passes(rng: np.random.Generator, layers: Floats, ends: Floats) -> tuple[Floats, Floats, Floats]:
    """Seconds of F, B and W where a layer takes one, and embedding and head as long as given."""
    share = float(rng.uniform(0.29, 0.36))
    again = float(rng.choice([0.0, 0.0, 0.0, 1.0, 0.2])) * share
    weight = layers * weight_share(np.array(share)) + ends / 3
    forward = layers * share + ends / 3
    return forward, layers * (1 + again) + ends - forward - weight, weight


def off_by(schedule: SplitSchedule, seed: int) -> float:
    """By how much the closed form is above the events, for a plan drawn at random."""
    rng = np.random.default_rng(seed)
    m, *passes_s = balanced_v(rng) if schedule in V_SHAPED else balanced_stages(rng)
    return form_s(schedule, m, *passes_s) / events_s(schedule, m, *passes_s) - 1


@pytest.mark.parametrize("schedule", SPLIT)
@pytest.mark.parametrize("count", [20, night(500)])
def test_the_closed_form_is_within_two_percent_of_the_events_of_500_random_plans(
    schedule: SplitSchedule, count: int
) -> None:
    off = np.array([off_by(schedule, seed) for seed in range(count)])
    assert -0.02 < off.min() <= off.max() < 1e-9
    assert off.mean() > -0.003


@pytest.mark.parametrize("schedule", SPLIT)
@pytest.mark.parametrize("pp", first(3, (2, 3, 4, 5, 6, 7, 8, 9, 10, 13)))
def test_no_closed_form_is_longer_than_the_events(schedule: SplitSchedule, pp: int) -> None:
    """Whatever chunks take: some nothing, some ten times as long as others. For it is made of chains of passes."""
    rng = np.random.default_rng(pp)
    for m in (2 * pp, 2 * pp + 1, 3 * pp + 1, 7 * pp + 5):
        for _ in range(6):
            seconds = np.moveaxis(rng.uniform(0, 1, (pp, chunks_of(schedule), 3)) ** 4, 2, 0)
            assert 0 < form_s(schedule, m, *seconds) <= events_s(schedule, m, *seconds) + 1e-9


def test_what_bounds_take_is_never_above_the_closed_form() -> None:
    rng = np.random.default_rng(3)
    for _ in range(100):
        m, *passes_s = balanced_stages(rng)
        for microbatches in (m, int(rng.integers(1, 5))):
            for schedule, times in (("zb1p", 1), ("zb2p", 2)):
                bound = zero_bubble_bound(times, np.array(len(passes_s[0])), np.array(microbatches))
                assert_below(bound, split_schedule(schedule), microbatches, *passes_s)
        m, *passes_s = balanced_v(rng)
        for name in V_SHAPED:
            of_schedule = SCHEDULES[name].bound
            assert of_schedule is not None
            assert_below(of_schedule(np.array(len(passes_s[0])), np.array(m)), name, m, *passes_s)


def assert_below(
    bound: tuple[Floats, Floats], schedule: SplitSchedule, m: int, f: Floats, b: Floats, w: Floats
) -> None:
    stage = (f + b + w).sum(axis=1)
    assert float(bound[0] * stage.max() + bound[1] * stage.sum()) <= form_s(schedule, m, f, b, w) + 1e-9


@pytest.mark.parametrize("schedule", SPLIT)
@pytest.mark.parametrize(("pp", "m"), [*SIZES, (8, 4), (8, 12)])
def test_memory_of_the_table_is_the_peak_of_the_events(schedule: SplitSchedule, pp: int, m: int) -> None:
    if schedule in V_SHAPED and m < 2 * pp:
        return  # rule `schedule`
    problem, _ = ideal()
    live = SCHEDULES[schedule].live_chunks(problem, pp, chunks_of(schedule), m)
    peak = equal(schedule, pp, m, 1, 1, 1).peak
    assert (live >= peak).all()
    assert live.max() == peak.max()


def test_w_takes_half_of_backward_and_no_more_than_forward() -> None:
    assert weight_share(np.array([1 / 3, 0.4, 0.2])) == pytest.approx([1 / 3, 0.3, 0.2])
