"""Layers that run operator by operator: what they keep for the backward pass, and what they read and write."""

from __future__ import annotations

from typing import Any

import pytest

from cpsolver.cost.shard import Candidates
from cpsolver.cost.tables import memory_table, time_table
from cpsolver.problem.problem import Problem
from tests.support.problems import model_spec, problem_of, strategy_of, with_stack

EAGER = {"eager_layers": 1.0}


def of(constants: dict[str, float], training: dict[str, Any] | None = None, **model: Any) -> Problem:
    return with_stack(problem_of(gpus=4, node=4, model=model_spec(**model), training=training or {}), **constants)


def kept(**asked: Any) -> float:
    """Bytes that a layer keeps more of a token where it runs operator by operator."""
    fused, eager = of({}, **asked), of(EAGER, **asked)
    row = Candidates.one(strategy_of("x:4", tp=2, dp=2, flags="fz"), fused.batch)
    more = memory_table(eager, row).full - memory_table(fused, row).full
    return float((more / row.shard.tokens(fused.sequence)).item())


@pytest.mark.parametrize(("norm", "upcast"), [("rmsnorm", 4), ("layernorm", 2)])
@pytest.mark.parametrize("gated", [False, True])
def test_norms_keep_fp32_and_gates_what_is_gated(norm: str, upcast: int, gated: bool) -> None:
    """Two norms on every rank, 1,024 wide; of the feed-forward block's 4,096 columns half a rank, in 16 bits."""
    found = kept(hidden=1024, ffn=4096, norm=norm, gated_mlp=gated)
    assert found == pytest.approx(2 * upcast * 1024 + gated * 2 * 4096 / 2)


def test_in_fp32_norms_keep_no_other_copy() -> None:
    assert kept(hidden=1024, ffn=4096, norm="rmsnorm", gated_mlp=True, training={"precision": "fp32"}) == 4 * 4096 / 2


def test_kernels_are_not_fused_whatever_the_spec_says() -> None:
    """In time a spec with `fused_kernels: false` is the same."""
    problems = [of(EAGER), of(EAGER, {"fused_kernels": False}), of({}, {"fused_kernels": False}), of({})]
    row = Candidates.one(strategy_of("x:4", tp=2, dp=2, flags="fz"), problems[0].batch)
    eager, said, apart, fused = (time_table(each, each.supplies[0], row).layer.item() for each in problems)
    assert eager == said == apart > fused
