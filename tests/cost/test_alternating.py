"""Chains of passes of Megatron-Core's 1F1B, whole stages or interleaved, against the schedule run event by event."""

from __future__ import annotations

import numpy as np
import pytest

from cpsolver.cost.alternating import step_form
from cpsolver.cost.pipeline_events import simulate
from cpsolver.cost.shard import Floats
from cpsolver.cost.step_form import PASS_PARTS, PipelineSizes, StepForm
from tests.cost.test_breadth_first import balanced
from tests.support.selection import first


def parts_of(forward: Floats, backward: Floats) -> Floats:
    """What a StepForm asks of stages with such passes of a microbatch, (pp,)."""
    return np.concatenate([[forward + backward, forward], np.zeros((PASS_PARTS - 2, len(forward)))])


def events_s(sizes: PipelineSizes, forward: Floats, backward: Floats) -> float:
    """Seconds of a step event by event."""
    forward, backward = (np.repeat(each[:, None] / sizes.vpp, sizes.vpp, axis=1) for each in (forward, backward))
    return simulate(forward, backward, sizes.microbatches, beside=sizes.beside).makespan_s


def completed(form: StepForm, parts: Floats) -> StepForm:
    """A form with all chains that hold such stages up."""
    while (more := form.completed(parts)) is not None:
        form = more
    return form


def any_plan(seed: int) -> tuple[PipelineSizes, Floats, Floats]:
    """Sizes and passes of any kind: few microbatches and many, stages alike and apart, forwards longer than backwards,
    forwards that run beside backwards."""
    rng = np.random.default_rng(seed)
    pp = int(rng.integers(1, 13))
    vpp = int(rng.integers(1, 6)) if pp > 1 else 1
    m = int(rng.integers(1, 40)) if vpp == 1 else pp * int(rng.integers(1, 8))
    stages = np.ones(pp) if rng.random() < 0.3 else rng.uniform(0.5, 1.5, pp)
    forward, backward = stages * rng.uniform(0.8, 1.2, pp), stages * rng.uniform(0.5, 3) * rng.uniform(0.8, 1.2, pp)
    return PipelineSizes(pp, vpp, m, bool(rng.random() < 0.2)), forward, backward


@pytest.mark.parametrize("count", first(1, (150, 3000)))
def test_no_chain_is_longer_than_the_events_and_with_all_chains_none_is_shorter(count: int) -> None:
    for seed in range(count):
        sizes, forward, backward = any_plan(seed)
        form, parts, events = step_form(sizes), parts_of(forward, backward), events_s(sizes, forward, backward)
        assert form.step_s(parts) <= events * (1 + 1e-9), seed
        assert completed(form, parts).step_s(parts) == pytest.approx(events, rel=2e-6), seed


def test_equal_stages_have_the_bubble_of_interleaving() -> None:
    """(m + (pp - 1) / vpp) times a stage, by the first chains."""
    for pp, vpp, m in ((4, 1, 3), (4, 1, 12), (4, 3, 4), (8, 2, 32)):
        parts = parts_of(np.ones(pp), 2 * np.ones(pp))
        assert step_form(PipelineSizes(pp, vpp, m)).step_s(parts) == pytest.approx(3 * (m + (pp - 1) / vpp))


@pytest.mark.parametrize("vpp", [1, 2, 4])
@pytest.mark.parametrize("count", first(1, (40, 500)))
def test_the_closed_form_is_within_two_percent_of_the_events_of_500_random_plans(count: int, vpp: int) -> None:
    """Stages as a planner balances them."""
    off = []
    for seed in range(count):
        m, _, forward, backward = balanced(seed)
        sizes = PipelineSizes(len(forward), vpp, m if vpp == 1 else -(-m // len(forward)) * len(forward))
        off.append(step_form(sizes).step_s(parts_of(forward, backward)) / events_s(sizes, forward, backward) - 1)
    assert -0.02 < min(off) <= max(off) < 1e-9
