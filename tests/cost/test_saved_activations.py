"""What recomputed layers keep, shared out over tensor-parallel ranks: bytes, and seconds to bring it together."""

from __future__ import annotations

import numpy as np
import pytest

from cpsolver.cost.collectives import collective_seconds
from cpsolver.cost.shard import Candidates
from cpsolver.cost.tables import memory_table, time_table
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.plans.strategy import RecomputeKind
from cpsolver.problem.problem import Problem
from tests.support.problems import ideal, strategy_of


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
