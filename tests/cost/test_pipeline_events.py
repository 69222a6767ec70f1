import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpsolver.cost.pipeline_events import (
    Timeline,
    check_sizes,
    closed_form_s,
    detour_s,
    peak_live_total,
    runs_beside,
    simulate,
)
from tests.support.pipelines import lower_bound_s, peak_live, stage_order, stage_steps

Sizes = tuple[int, int, int, int | None]
Pipeline = tuple[np.ndarray, np.ndarray, int, np.ndarray, int | None]

# Peaks measured by driving Megatron's own schedule functions: (pp, vpp, m, group) -> chunks in flight by stage.
MEASURED: dict[Sizes, list[int]] = {
    (4, 1, 8, None): [4, 3, 2, 1],
    (4, 1, 2, None): [2, 2, 2, 1],
    (4, 2, 8, None): [11, 9, 7, 5],
    (4, 4, 8, None): [19, 17, 15, 13],
    (4, 2, 4, None): [8, 8, 7, 5],
    (4, 2, 8, 8): [15, 13, 11, 9],
}


@st.composite
def sizes(draw: st.DrawFn, max_pp: int = 6) -> Sizes:
    vpp = draw(st.integers(1, 4))
    pp = draw(st.integers(1 if vpp == 1 else 2, max_pp))
    if vpp == 1:
        return pp, vpp, draw(st.integers(1, 5 * pp)), None
    group = draw(st.one_of(st.none(), st.integers(pp, 3 * pp)))
    last = 0 if group in (None, pp) else draw(st.sampled_from([0, *range(pp, group or pp)]))
    return pp, vpp, (group or pp) * draw(st.integers(1, 5 if group is None else 3)) + last, group


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    pp, vpp, m, group = draw(sizes())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Whole seconds, zero among them, so that sums are exact.
    forward, backward = rng.integers(0, 50, (2, pp, vpp)).astype(float)
    return forward, backward, m, rng.integers(0, 20, pp).astype(float), group


def replay(pp: int, stage: int, vpp: int, m: int, group: int | None = None) -> np.ndarray:
    """Live activations per chunk after the start of every event, shape (2 * vpp * m, vpp)."""
    live, seen = np.zeros(vpp, dtype=int), []
    for kind, _, chunk in stage_order(pp, stage, vpp, m, group):
        if kind == "F":
            live[chunk] += 1
            seen.append(live.copy())
        else:
            seen.append(live.copy())
            live[chunk] -= 1
    assert not live.any()
    return np.array(seen)


def test_1f1b_order() -> None:
    names = ["".join(f"{kind}{b}" for kind, b, _ in stage_order(3, s, 1, 4)) for s in range(3)]
    assert names == ["F0F1F2B0F3B1B2B3", "F0F1B0F2B1F3B2B3", "F0B0F1B1F2B2F3B3"]


def test_interleaved_order() -> None:
    order = stage_order(2, 1, 2, 4)
    forwards = [(b, c) for kind, b, c in order if kind == "F"]
    backwards = [(b, c) for kind, b, c in order if kind == "B"]
    assert forwards == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)]
    assert backwards == [(0, 1), (1, 1), (0, 0), (1, 0), (2, 1), (3, 1), (2, 0), (3, 0)]
    assert "".join(kind for kind, _, _ in order) == "FF" + "FB" * 6 + "BB"
    assert "".join(kind for kind, _, _ in stage_order(2, 0, 2, 4)) == "FFFF" + "FB" * 4 + "BBBB"
    assert "".join(kind for kind, _, _ in stage_order(4, 0, 2, 4)) == "F" * 8 + "B" * 8
    assert "".join(kind for kind, _, _ in stage_order(4, 3, 2, 4)) == "FFFF" + "FB" * 4 + "BBBB"


def test_groups_of_microbatches() -> None:
    """The example of Megatron's comments: 5 microbatches in groups of 3 through 2 chunks."""
    order = stage_order(2, 1, 2, 5, group=3)
    forwards = [(b, c) for kind, b, c in order if kind == "F"]
    assert [b for b, _ in forwards] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert [c for _, c in forwards] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert [(b, 1 - c) for kind, b, c in order if kind == "B"] == forwards
    assert "".join(kind for kind, _, _ in order) == "FFF" + "FB" * 7 + "BBB"
    assert stage_order(4, 1, 2, 8, group=4) == stage_order(4, 1, 2, 8)
    assert stage_order(4, 1, 1, 3, group=9) == stage_order(4, 1, 1, 3)  # without interleaving it means nothing


@given(sizes())
def test_order_has_every_pass_once_and_forward_first(size: Sizes) -> None:
    pp, vpp, m, group = size
    for stage in range(pp):
        order = stage_order(pp, stage, vpp, m, group)
        assert sorted(order) == [(k, b, c) for k in "BF" for b in range(m) for c in range(vpp)]
        at = {event: i for i, event in enumerate(order)}
        assert all(at["F", b, c] < at["B", b, c] for b in range(m) for c in range(vpp))


@pytest.mark.parametrize("size", MEASURED, ids=str)
def test_in_flight_counts_are_those_measured(size: Sizes) -> None:
    assert peak_live_total(*size).tolist() == MEASURED[size]


def test_the_mix_of_chunks_in_flight_is_the_measured_one() -> None:
    for stage, mix in ((0, [7, 4]), (3, [4, 1])):
        mixes = replay(4, stage, 2, 8)
        assert mixes[mixes.sum(axis=1).argmax()].tolist() == mix


@settings(deadline=None)
@given(sizes(), st.integers(0, 2**32 - 1))
def test_in_flight_counts_are_the_peak_of_the_replayed_order(size: Sizes, seed: int) -> None:
    pp, vpp, m, group = size
    mixes = [replay(pp, stage, vpp, m, group) for stage in range(pp)]
    assert peak_live_total(*size).tolist() == [mix.sum(axis=1).max() for mix in mixes]
    weight = np.random.default_rng(seed).integers(0, 9, (pp, vpp))
    expected = [(mix @ weight[stage]).max() for stage, mix in enumerate(mixes)]
    assert peak_live(weight, m, group).tolist() == expected
    assert peak_live(np.full((pp, vpp), 3), m, group).tolist() == (3 * peak_live_total(*size)).tolist()


@settings(deadline=None)
@given(sizes(), st.integers(1, 5))
def test_a_forward_beside_a_backward_takes_a_layer_more_and_no_chunk(size: Sizes, layers: int) -> None:
    """Layer by layer, chunks being of so many: the forward keeps its i-th before the backward lets go of its i-th."""
    pp, vpp, m, _ = size
    for stage, live in enumerate(peak_live_total(*size).tolist()):
        held = most = 0
        for step in stage_steps(pp, stage, *size[1:], 1):
            what = "".join(kind for kind, _, _ in step)
            most = max(most, held + {"F": layers, "FB": 1, "B": 0}[what])
            held += {"F": layers, "FB": 0, "B": -layers}[what]
        assert most == live * layers + runs_beside(live, m * vpp)


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (5, 1), (2, 2), (4, 2), (4, 3), (3, 7), (8, 4), (16, 2)])
def test_counts_saturate_with_microbatches(pp: int, vpp: int) -> None:
    """Callers cap the microbatches at 4 * pp: more change nothing, in the formula or in the replay."""
    capped = peak_live_total(pp, vpp, 4 * pp).tolist()
    assert peak_live_total(pp, vpp, 50 * pp).tolist() == capped
    assert [replay(pp, stage, vpp, 8 * pp).sum(axis=1).max() for stage in range(pp)] == capped


@pytest.mark.parametrize(("pp", "vpp", "m"), [(1, 1, 3), (4, 1, 8), (4, 1, 2), (2, 2, 2), (4, 3, 4), (8, 4, 24)])
@pytest.mark.parametrize(("forward", "backward"), [(1, 1), (1, 2), (3, 1), (1, 0)])
def test_equal_stages_take_exactly_the_closed_form(pp: int, vpp: int, m: int, forward: int, backward: int) -> None:
    timeline = simulate(np.full((pp, vpp), forward), np.full((pp, vpp), backward), m)
    chunk_s = forward + backward
    assert timeline.makespan_s == m * vpp * chunk_s + (pp - 1) * chunk_s
    assert timeline.makespan_s == pytest.approx(closed_form_s(np.full(pp, vpp * chunk_s), m, vpp), rel=1e-14)
    assert timeline.idle_s.tolist() == [(pp - 1) * chunk_s] * pp


@pytest.mark.parametrize(("pp", "vpp", "m"), [(1, 1, 1), (1, 1, 3), (2, 2, 2), (4, 2, 4), (4, 3, 8), (8, 4, 24)])
@pytest.mark.parametrize(("forward", "backward"), [(1, 1), (1, 2), (3, 1), (1, 0)])
def test_forwards_beside_backwards_take_the_closed_form_too(
    pp: int, vpp: int, m: int, forward: int, backward: int
) -> None:
    """One forward more before the first backward, outputs of a pair when both are done: the bubble stays."""
    timeline = simulate(np.full((pp, vpp), forward), np.full((pp, vpp), backward), m, beside=True)
    assert timeline.makespan_s == (m * vpp + pp - 1) * (forward + backward)
    for stage in range(pp):
        order = [event for step in stage_steps(pp, stage, vpp, m, None, 1) for event in step]
        at = timeline.stage == stage
        found = zip(
            timeline.kind[at].tolist(), timeline.microbatch[at].tolist(), timeline.chunk[at].tolist(), strict=True
        )
        assert list(found) == order


@pytest.mark.parametrize(("pp", "vpp", "m"), [(2, 8, 16), (4, 4, 16), (4, 2, 32), (8, 4, 64), (16, 2, 64)])
@pytest.mark.parametrize("last", [0.0, 0.25, 0.75, 1.0, 1.2, 2.0])
def test_of_a_last_chunk_the_closed_form_knows_what_it_is_longer(pp: int, vpp: int, m: int, last: float) -> None:
    """All chunks take 3 s but the model's last. A longer one holds up the pipeline by all it is longer; a shorter one
    waits for its neighbours, and counted as one of them it is counted too long by no more than once."""
    forward = np.ones((pp, vpp))
    forward[-1, -1] = last
    stages = np.full(pp, 3.0 * vpp)
    stages[-1] += 3 * max(0.0, last - 1)
    above = closed_form_s(stages, m, vpp) - simulate(forward, 2 * forward, m).makespan_s
    assert -1e-9 <= above <= (1e-9 if last >= 1 else 3 + 1e-9)


@given(sizes(), st.integers(1, 4))
def test_groups_do_not_change_the_makespan_of_equal_stages(size: Sizes, backward: int) -> None:
    pp, vpp, m, group = size
    makespan_s = simulate(np.ones((pp, vpp)), np.full((pp, vpp), backward), m, group=group).makespan_s
    assert makespan_s == (m * vpp + pp - 1) * (1 + backward)


def by_event(t: Timeline) -> dict[tuple[int, str, int, int], tuple[float, float]]:
    keys = zip(t.stage.tolist(), t.kind.tolist(), t.microbatch.tolist(), t.chunk.tolist(), strict=True)
    return dict(zip(keys, zip(t.start_s.tolist(), t.end_s.tolist(), strict=True), strict=True))


@settings(deadline=None)
@given(pipelines(), st.booleans())
def test_timeline_is_the_earliest_that_keeps_order_and_dependencies(case: Pipeline, beside: bool) -> None:
    forward, backward, m, p2p, group = case
    pp, vpp = forward.shape
    timeline = simulate(forward, backward, m, p2p, group, beside)
    events = by_event(timeline)
    steps = [stage_steps(pp, stage, vpp, m, group, int(beside)) for stage in range(pp)]
    left = {
        (s, *one): events[s, *(step[-1] if beside else one)][1] for s in range(pp) for step in steps[s] for one in step
    }
    assert len(events) == len(timeline.stage) == 2 * pp * vpp * m
    for stage in range(pp):
        free = 0.0
        for kind, b, c in (one for step in steps[stage] for one in step):
            way, here = (-1, c * pp + stage) if kind == "F" else (1, c * pp + stage)
            arrives = 0.0
            if 0 <= here + way < pp * vpp:
                chunk, other = divmod(here + way, pp)
                link = min(here, here + way) % pp
                arrives = left[other, kind, b, chunk] + p2p[link]
            elif kind == "B":
                arrives = events[stage, "F", b, c][1]
            start, end = events[stage, kind, b, c]
            assert start == max(free, arrives)
            assert end == start + (forward if kind == "F" else backward)[stage, c]
            free = end
    assert timeline.makespan_s == timeline.end_s.max()
    work = m * (forward + backward).sum(axis=1)
    assert timeline.idle_s.tolist() == (timeline.makespan_s - work).tolist()


@settings(deadline=None)
@given(pipelines(), st.integers(0, 2**32 - 1))
def test_makespan_bounds_scaling_and_monotonicity(case: Pipeline, seed: int) -> None:
    forward, backward, m, p2p, group = case
    base = simulate(forward, backward, m, p2p, group).makespan_s
    total = forward + backward
    assert base >= m * total.sum(axis=1).max()
    path = total.sum() + 2 * p2p[:-1].sum() * forward.shape[1] + 2 * p2p[-1] * (forward.shape[1] - 1)
    assert base >= path
    free = simulate(forward, backward, m, group=group).makespan_s
    assert base >= free >= lower_bound_s(forward, backward, m, group)
    assert simulate(4 * forward, 4 * backward, m, 4 * p2p, group).makespan_s == 4 * base
    rng = np.random.default_rng(seed)
    more = [x + rng.integers(0, 5, x.shape) for x in (forward, backward, p2p)]
    assert simulate(more[0], more[1], m, more[2], group).makespan_s >= base


@settings(deadline=None)
@given(pipelines())
def test_chunks_of_unequal_length_take_no_longer_than_all_as_long_as_the_longest(case: Pipeline) -> None:
    """The order of the events is fixed, so a makespan is the longest path, which grows with every duration."""
    layers, backward, m, p2p, group = case
    vpp = layers.shape[1]
    longest = np.repeat(layers.max(axis=1, keepdims=True), vpp, axis=1)
    slowest = np.repeat(backward.max(axis=1, keepdims=True), vpp, axis=1)
    assert simulate(layers, backward, m, p2p, group).makespan_s <= simulate(longest, slowest, m, p2p, group).makespan_s
    uneven = simulate(layers, 2 * layers, m, group=group).makespan_s
    assert uneven <= closed_form_s(3 * longest.sum(axis=1), m, vpp) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("count", "pp", "above"), [(61, 16, 0.03), (61, 8, 0.03), (94, 8, 0.02), (80, 12, 0.16), (96, 20, 0.19)]
)
def test_how_far_above_the_padded_closed_form_is(count: int, pp: int, above: float) -> None:
    """Two chunks a stage, m = 4 * pp or the next 48; the first stages have a layer more, in their first chunk."""
    m = 48 if 48 % pp == 0 else 4 * pp
    stages = np.full(pp, count // pp) + (np.arange(pp) < count % pp)
    chunks = np.stack([-(-stages // 2), stages // 2], axis=1).astype(float)
    makespan_s = simulate(chunks, 2 * chunks, m).makespan_s
    assert makespan_s <= closed_form_s(6 * chunks[:, 0], m, 2) <= (1 + above) * makespan_s


@pytest.mark.full
@pytest.mark.parametrize("vpp", [1, 2, 4])
@pytest.mark.parametrize("ratio", ["same", "free"])
def test_closed_form_is_as_close_as_its_docstring_says(vpp: int, ratio: str) -> None:
    rng = np.random.default_rng(11)
    errors = []
    for _ in range(150):
        pp = int(rng.integers(2, 17))
        m = pp * int(rng.integers(2, 6)) if vpp > 1 else int(rng.integers(2 * pp, 6 * pp))
        forward = np.repeat(rng.uniform(0.7, 1.3, (pp, 1)), vpp, axis=1)
        backward = 2 * (forward if ratio == "same" else np.repeat(rng.uniform(0.7, 1.3, (pp, 1)), vpp, axis=1))
        makespan_s = simulate(forward, backward, m).makespan_s
        errors.append(makespan_s / closed_form_s((forward + backward).sum(axis=1), m, vpp) - 1)
    above = 1e-9 if vpp == 1 or ratio == "same" else 0.08
    assert max(errors) <= above
    assert min(errors) >= 1 / 1.15 - 1
    assert abs(np.mean(errors)) < 0.04


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_1f1b_pays_for_sending_in_every_microbatch_and_interleaving_does_not(pp: int) -> None:
    delay = 0.0625

    def period(vpp: int) -> float:
        ones, links = np.ones((pp, vpp)), np.full(pp, delay)
        few, many = (simulate(ones / vpp, 2 * ones / vpp, k * pp, links).makespan_s for k in (8, 16))
        return (many - few) / (8 * pp)

    assert period(1) == pytest.approx(3 + 2 * delay * (pp - 1) / pp, rel=1e-12)
    assert period(2) == pytest.approx(3, rel=1e-12)


def test_the_first_and_last_ways_through_the_stages_behind_bound_1f1b() -> None:
    """And nearly always say it exactly; with less known of the stages the bound is lower still."""
    rng, exact = np.random.default_rng(15), 0
    for _ in range(150):
        pp = int(rng.integers(1, 8))
        m = int(rng.integers(pp + 1, 4 * pp + 2))
        forward, backward = rng.uniform(0.5, 1, (2, pp)) * rng.uniform(0.05, 3, 2)[:, None]
        makespan = simulate(forward[:, None], backward[:, None], m).makespan_s
        bound = by_detours(forward + backward, m)
        assert bound <= makespan * (1 + 1e-12)
        assert by_detours((forward + backward) * rng.uniform(0.7, 1, pp), m) <= bound * (1 + 1e-12)
        exact += bound >= makespan * (1 - 1e-12)
        slowest, others = (forward + backward).max(), (forward + backward).sum()
        assert m * slowest + 2 * others - (pp + 1) * slowest <= bound * (1 + 1e-12)
    assert exact > 75


def by_detours(stage_s: np.ndarray, m: int) -> float:
    until = np.cumsum(stage_s)
    return float((until - stage_s + m * stage_s + detour_s(stage_s, until[-1] - until)).max())


def test_large_pipeline_simulates() -> None:
    timeline = simulate(np.ones((64, 4)), 2 * np.ones((64, 4)), 256, np.full(64, 0.01))
    assert 256 * 12 < timeline.makespan_s < 1.1 * (256 * 12 + 63 * 3)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((0, 1, 1), "pp must be at least 1"),
        ((2, 0, 2), "vpp must be at least 1"),
        ((2, 1, 0), "microbatches must be at least 1"),
        ((1, 2, 4), "vpp > 1 needs pp > 1"),
        ((4, 2, 6), "multiple of pp"),
        ((4, 2, 6, 4), "multiple of pp"),
        ((4, 2, 0, 4), "microbatches must be at least 1"),
        ((4, 1, 4, 0), "group must be at least 1"),
        ((4, 2, 12, 3), "group must be in pp..microbatches = 4..12, got 3"),
        ((4, 2, 12, 13), "group must be in pp..microbatches = 4..12, got 13"),
        ((4, 2, 13, 5), "the last group must have no or at least pp = 4 microbatches, got 3"),
    ],
)
def test_sizes_that_no_schedule_runs_are_refused(size: tuple[int, ...], message: str) -> None:
    pp, vpp, m, *group = size
    with pytest.raises(ValueError, match=message):
        stage_order(pp, 0, vpp, m, *group)
    with pytest.raises(ValueError, match=message):
        peak_live_total(pp, vpp, m, *group)
    with pytest.raises(ValueError, match=message):
        check_sizes(pp, vpp, m, *group)


@given(st.integers(2, 6), st.integers(2, 4), st.integers(1, 30), st.integers(1, 30))
def test_group_sizes_are_refused_as_megatron_refuses_them(pp: int, vpp: int, m: int, group: int) -> None:
    last = m % group
    if group > m or group < pp or 0 < last < pp:
        with pytest.raises(ValueError, match=r"interleaving|group"):
            check_sizes(pp, vpp, m, group)
    else:
        check_sizes(pp, vpp, m, group)


def test_bad_arguments_are_refused() -> None:
    ones = np.ones((2, 1))
    with pytest.raises(ValueError, match="shape"):
        simulate(np.ones(2), np.ones(2), 2)
    with pytest.raises(ValueError, match="shape"):
        simulate(ones, np.ones((3, 1)), 2)
    with pytest.raises(ValueError, match="p2p_s must have shape"):
        simulate(ones, ones, 2, np.ones(1))
    with pytest.raises(ValueError, match="backward_s must be finite"):
        simulate(ones, -ones, 2)
    with pytest.raises(ValueError, match="forward_s must be finite"):
        simulate(ones * np.inf, ones, 2)
    with pytest.raises(ValueError, match="multiple of pp"):
        simulate(np.ones((2, 2)), np.ones((2, 2)), 3)
    with pytest.raises(ValueError, match="stage_s must have shape"):
        closed_form_s(np.ones((2, 2)), 3)
