"""Context parallelism's exchanges, one formula after the other: bytes and seconds worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpsolver.cost.context import context_seconds, gather_seconds, head_all_to_all_seconds, ring_seconds
from cpsolver.cost.shard import Floats, Shard
from models_zoo import Architecture
from tests.support.problems import ideal, model_spec

ROW = 2 * 1024 * 128
"""Bytes of one head of one sequence: 1024 tokens of 128 elements."""
SHORT = np.zeros(1)
"""A core under which nothing hides."""
INSIDE, OUTSIDE = 100e9, 12.5e9


def shard(tp: int = 1, cp: int = 1, ulysses: int = 1, gather: bool = False) -> Shard:
    return Shard.of(tp, 1, False, True, cp=cp, ulysses=ulysses, cp_gather=gather)


def passes(shard: Shard, core: Floats = SHORT, **given: Any) -> tuple[float, float]:
    forward, backward = context_seconds(*ideal(gpus=16, node=16, scale_up={"domain_size": 16}, **given), shard, core)
    return float(forward[0]), float(backward[0])


def test_nothing_to_send_without_context_parallelism() -> None:
    assert passes(shard(tp=4)) == passes(shard(tp=4, gather=True)) == (0, 0)


@pytest.mark.parametrize(("tp", "cp", "kv_heads"), [(1, 2, 8), (2, 4, 8), (4, 4, 2), (8, 2, 2)])
def test_the_ring_alone_brings_all_keys_and_values_of_the_devices_heads(tp: int, cp: int, kv_heads: int) -> None:
    once = 2 * max(1, kv_heads / tp) * ROW * (cp - 1) / cp / INSIDE
    found = passes(shard(tp, cp), model=model_spec(kv_heads=kv_heads))
    assert found == pytest.approx((once, 2 * once))


def test_each_transfer_of_a_ring_hides_under_a_step_of_the_core() -> None:
    """Four ranks send three times forward. Backward, whose steps take 2.5 times as long: once keys and values, twice
    both, once gradients."""
    (ring, twice), hides = passes(shard(cp=4)), {"context_overlap": 0.75}
    assert twice == pytest.approx(2 * ring)
    assert passes(shard(cp=4), np.ones(1), stack=hides) == (0, 0)
    once, step = ring / 3, ring / 3 / 2
    found = passes(shard(cp=4), np.array([4 * step]), stack=hides)
    forward = 3 * (once - 0.75 * step)
    backward = 2 * (once - 0.75 * 2.5 * step) + 2 * (2 * once - 0.75 * 2.5 * step)
    assert found == pytest.approx((forward, backward))
    assert passes(shard(cp=2), np.array([2 * 0.9 * passes(shard(cp=2))[0]]), stack={"context_overlap": 1})[1] == 0


def test_ulysses_exchanges_queries_keys_values_and_the_output() -> None:
    """8 heads of queries and of the output; the tokens of a device are a quarter, and 3 of 4 of its heads go."""
    for tp, kv_heads in ((1, 8), (1, 4), (2, 8)):
        payload = (8 + kv_heads + kv_heads + 8) / tp * ROW / 4
        found = passes(shard(tp, cp=4, ulysses=4), model=model_spec(kv_heads=kv_heads))
        assert found == pytest.approx((payload * 3 / 4 / INSIDE,) * 2)


def test_ulysses_repeats_keys_and_values_that_are_fewer_than_its_ranks() -> None:
    """For every query head, as MindSpeed does: not only until each rank has one."""
    found = passes(shard(cp=4, ulysses=4), model=model_spec(kv_heads=2))
    assert found == passes(shard(cp=4, ulysses=4), model=model_spec(kv_heads=8))
    assert found > passes(shard(cp=4, ulysses=4), model=model_spec(kv_heads=4))


def test_ulysses_hides_under_nothing() -> None:
    plain = passes(shard(cp=4, ulysses=4))
    assert passes(shard(cp=4, ulysses=4), np.ones(1), stack={"context_overlap": 1.0}) == plain


def test_latent_attention_exchanges_wide_queries_and_narrow_outputs() -> None:
    widths = {"kv_lora": 512, "qk_nope": 128, "qk_rope": 64, "v_head": 96}
    spec = {"name": "latent", **model_spec(attention={"kind": "mla", **widths})}
    problem, chip = ideal(model=Architecture.model_validate(spec))
    payload = 8 * (192 + 192 + 96 + 96) * 1024 / 2 * 2
    found = head_all_to_all_seconds(problem, chip, shard(cp=2, ulysses=2))
    assert found == pytest.approx(payload / 2 / INSIDE)


def test_the_hybrid_rings_over_fewer_heads_and_ranks() -> None:
    """cp 8 of which 2 exchange heads: rings of 4 with 8 / 2 heads of keys and values each."""
    ring = 2 * 8 / 2 * ROW * 3 / 4 / INSIDE
    heads = 4 * 8 * ROW / 8 / 2 / INSIDE
    assert passes(shard(cp=8, ulysses=2)) == pytest.approx((heads + ring, heads + 2 * ring))


def test_the_hybrids_ring_steps_over_the_ranks_that_exchange_heads() -> None:
    """16 devices in nodes of 4: with tp 2 and ulysses 2 the ring has one rank in each node, without two."""
    problem, chip = ideal(gpus=16, node=4)
    hybrid, plain = shard(tp=2, cp=8, ulysses=2), shard(tp=2, cp=8)
    assert ring_seconds(problem, chip, hybrid) == pytest.approx(2 * 2 * ROW * 3 / 4 / OUTSIDE)
    assert ring_seconds(problem, chip, plain) == pytest.approx(2 * 4 * ROW * 7 / 8 / (2 * OUTSIDE))
    near = 4 * 4 * ROW / 8 / 2 / INSIDE  # heads are exchanged inside the node
    assert head_all_to_all_seconds(problem, chip, hybrid) == pytest.approx(near)


def test_gathering_takes_as_long_as_the_ring_and_hides_under_nothing() -> None:
    long, stack = np.ones(1), {"context_overlap": 1.0}
    assert passes(shard(cp=4, gather=True)) == pytest.approx(passes(shard(cp=4)))
    assert passes(shard(cp=4, gather=True), long, stack=stack) == pytest.approx(passes(shard(cp=4)))
    assert passes(shard(cp=4), long, stack=stack) == pytest.approx((0, 0), abs=1e-12)


def test_backward_gathers_again_and_scatters() -> None:
    problem, chip = ideal({"reduce_scatter": 0.5, "all_gather": 1.0})
    gather, scatter = gather_seconds(problem, chip, shard(cp=2, gather=True))
    forward, backward = context_seconds(problem, chip, shard(cp=2, gather=True), SHORT)
    assert forward == gather
    assert backward == gather + scatter


def test_rows_of_all_kinds_side_by_side_are_what_they_are_alone() -> None:
    problem, chip = ideal(gpus=16, node=4)
    kinds = [(1, 1, 1, False), (2, 4, 1, False), (2, 4, 4, False), (1, 8, 2, False), (2, 4, 1, True)]
    tp, cp, ulysses, gather = zip(*kinds, strict=True)
    rows = Shard.of(tp, 1, False, True, cp=cp, ulysses=ulysses, cp_gather=gather)
    together = context_seconds(problem, chip, rows, np.zeros(5))
    for index, kind in enumerate(kinds):
        for all_of_them, alone in zip(together, context_seconds(problem, chip, shard(*kind), SHORT), strict=True):
            assert all_of_them[index] == pytest.approx(alone[0])
