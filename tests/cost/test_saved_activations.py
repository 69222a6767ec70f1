"""What recomputed layers keep, in shares of tensor-parallel ranks or on the host: bytes, seconds to bring it back."""

from __future__ import annotations

import numpy as np
import pytest

from cpsolver.cost.collectives import collective_seconds
from cpsolver.cost.shard import Candidates
from cpsolver.cost.tables import memory_table, time_table
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.plans.strategy import RecomputeKind
from cpsolver.problem.problem import Problem
from tests.support.problems import ideal, strategy_of, with_host


def of(shared: bool) -> Problem:
    return ideal(gpus=4, node=4, training={"distribute_saved_activations": shared})[0]


@pytest.mark.parametrize(("tp", "flags", "shares"), [(2, "fz", 2), (4, "fz", 4), (2, "sfz", 1), (1, "fz", 1)])
def test_inputs_of_recomputed_layers_wait_in_shares(tp: int, flags: str, shares: int) -> None:
    """They come together before the layer runs again: an all-gather of 2 bytes an element."""
    whole, shared = (of(on) for on in (False, True))
    row = Candidates.one(strategy_of("x:4", tp=tp, dp=4 // tp, flags=flags), whole.batch)
    before, after = memory_table(whole, row), memory_table(shared, row)
    assert before.checkpoint.item() == pytest.approx(shares * after.checkpoint.item())
    assert (before.full == after.full).all()
    plain, timed = (time_table(problem, problem.supplies[0], row) for problem in (whole, shared))
    payload = 2.0 * row.shard.tokens(whole.sequence) * whole.model.hidden
    one = np.ones_like(row.tp)
    gathered = collective_seconds(whole, whole.supplies[0].chip, "all_gather", payload, row.tp, one).item()
    assert timed.collected.item() == pytest.approx(gathered if shares > 1 else 0.0)
    assert (timed.recompute - plain.recompute).item() == pytest.approx(timed.collected.item())
    assert timed.layer.item() == plain.layer.item()


def test_only_stages_that_recompute_pay_for_collecting_inputs() -> None:
    """A layer's forward, and W of a split backward, are as without."""
    whole, shared = (of(on) for on in (False, True))
    choices: list[tuple[RecomputeKind, int]] = [("none", 0), ("block", 2)]
    for kind, amount in choices:
        plan = strategy_of("x:4", tp=2, dp=2, flags="fz", recompute=kind, amount=amount)
        before, after = (evaluate(problem, plan) for problem in (whole, shared))
        more = after.breakdown_s["recompute"] - before.breakdown_s["recompute"]
        assert (more > 0) == (kind == "block")
        assert after.breakdown_s["compute"] == pytest.approx(before.breakdown_s["compute"])
        activations = [each.stages[0].memory.activations for each in (before, after)]
        assert (activations[1] < activations[0]) == (kind == "block")


@pytest.mark.parametrize("shared", [False, True])
def test_inputs_of_recomputed_layers_wait_on_the_host(shared: bool) -> None:
    """None stays on the device. Each rank sends its share there, 2 bytes an element, and gets it back."""
    whole = of(shared)
    away = with_host(whole, cpu_checkpointing=True)
    row = Candidates.one(strategy_of("x:4", tp=2, dp=2, flags="fz"), whole.batch)
    before, after = memory_table(whole, row), memory_table(away, row)
    assert after.checkpoint.item() == 0.0
    assert (before.full == after.full).all()
    assert (before.buffer == after.buffer).all()
    plain, timed = (time_table(problem, problem.supplies[0], row) for problem in (whole, away))
    link = away.supplies[0].chip.host_bandwidth_bytes_s
    share = 2.0 * row.shard.tokens(whole.sequence).item() * whole.model.hidden / (2 if shared else 1)
    assert (timed.collected - plain.collected).item() == pytest.approx(2 * share / link)
    assert (timed.recompute - plain.recompute).item() == pytest.approx(2 * share / link)
    assert timed.layer.item() == plain.layer.item()


def test_units_of_recomputed_layers_on_the_host_are_best_of_one() -> None:
    """Nothing is kept for more of them, and larger units hold more at once."""
    plans = [strategy_of("x:4", tp=2, dp=2, flags="fz", recompute="uniform", amount=amount) for amount in (1, 2, 4)]
    away = with_host(of(False), cpu_checkpointing=True)
    held = [evaluate(away, plan).stages[0].memory.activations for plan in plans]
    assert held[0] < held[1] < held[2]
