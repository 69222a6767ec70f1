"""The encoder of images on the first stage: seconds, bytes and parameters by hand, and what it is without images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpsolver.cost import encoder, memory, states
from cpsolver.cost.shard import Candidates, Shard
from cpsolver.cost.tables import memory_table, time_table
from cpsolver.evaluation.evaluate import evaluate, stage_memory, stage_parameters
from cpsolver.evaluation.operators import compute_by_operator
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import load_launcher
from models_zoo import encoder_parameters, projector_parameters
from tests.support.problems import ideal, model_spec, strategy_of

VISION = {"layers": 8, "hidden": 512, "ffn": 2048, "heads": 8, "patch": 16, "positions": 256, "merge": 2}
IMAGES = {"per_sequence": 2, "patches": 256}


def of(images: dict[str, Any] | None = IMAGES, vision: dict[str, Any] = VISION, **stack: float) -> Problem:
    model = model_spec(vision=vision)
    return ideal(model=model, stack={"gemm_half_depth": 0.0, **stack}, training={"images": images}, gpus=8, batch=64)[0]


def row(**degrees: Any) -> Candidates:
    return Candidates.one(strategy_of(**degrees), 64)


def test_a_model_with_an_encoder_costs_no_more_than_without_where_there_are_no_images() -> None:
    plain = ideal(model=model_spec(), stack={"gemm_half_depth": 0.0}, gpus=8, batch=64)[0]
    plan = strategy_of("x:2,2", dp=4)
    assert evaluate(of(None), plan) == evaluate(plain, plan)
    assert of(None).encoder is None


def test_products_of_the_encoder() -> None:
    """512 patches a microbatch: eight layers of 3,145,728 weights, patches of 768 colours, 128 tokens that are joined
    of 2,048 and go through 2 x 1024 of a projector. Forward and backward: three times two FLOP a weight and patch."""
    problem, plain = of(), of(None)
    found, without = (time_table(each, each.supplies[0], row(groups="x:4", dp=8)) for each in (problem, plain))
    seconds = found.embedding - without.embedding
    weights = 512 * (8 * 12 * 512**2 + 768 * 512) + 128 * 1024 * (2048 + 1024)
    attention = 8 * 2 * 2 * 256**2 * 512 * 2 * (1 + 2.5) / 0.5  # both images' pairs, none masked; half of the peak
    products = (6 * weights + attention) / 1e14
    assert products < seconds.item() < 2.2 * products  # beside it memory traffic of norms and activations
    assert found.encoder_tp.item() == 0
    assert found.layer == without.layer


def test_frozen_it_runs_forward_alone_and_its_projector_both_ways() -> None:
    trained, frozen = of(), of({**IMAGES, "trained": False})
    rows = row(groups="x:2,2", dp=4)
    both, once = (time_table(each, each.supplies[0], rows) for each in (trained, frozen))
    without = time_table(of(None), of(None).supplies[0], rows)
    more, less = (each.embedding - without.embedding for each in (both, once))
    assert 0.25 * more < less < 0.45 * more
    parts = memory.stage_parameters(frozen, rows)
    model = frozen.model
    assert (parts.encoder.item(), parts.frozen.item()) == (projector_parameters(model), encoder_parameters(model))
    whole = memory.stage_parameters(trained, rows)
    assert (whole.encoder - parts.encoder - parts.frozen).item() == pytest.approx(0)
    tables = [memory_table(each, rows).first_states.item() for each in (of(None), frozen, trained)]
    each = 6 + 12 / 4
    assert tables[1] - tables[0] == pytest.approx(2 * encoder_parameters(model) + each * projector_parameters(model))
    assert tables[2] - tables[0] == pytest.approx(each * (encoder_parameters(model) + projector_parameters(model)))
    assert once.update_first < both.update_first
    assert once.sync_first < both.sync_first


def test_tensor_parallel_ranks_split_layers_and_projector_and_repeat_patches() -> None:
    problem = of()
    one, two = (
        memory.stage_parameters(problem, row(groups="x:2,2", tp=tp, dp=4 // tp)).encoder.item() for tp in (1, 2)
    )
    layer_split = 8 * (12 * 512**2 + 3 * 512 + 2048)  # biases of queries and of the first linear layer with them
    projector_split = 1024 * (2048 + 1024 + 1)
    assert one - two == pytest.approx((layer_split + projector_split) / 2)
    tables = [time_table(problem, problem.supplies[0], row(groups="x:2,2", tp=tp, dp=4 // tp)) for tp in (1, 2)]
    assert tables[0].encoder_tp.item() == 0
    assert 0 < tables[1].encoder_tp.item() < tables[1].embedding.item()


def test_ranks_of_context_parallelism_repeat_the_encoder() -> None:
    problem, plain = of(), of(None)
    alone, shared = (
        [
            time_table(each, each.supplies[0], row(groups="x:4", dp=8 // cp, cp=cp)).embedding
            for each in (problem, plain)
        ]
        for cp in (1, 2)
    )
    assert (shared[0] - shared[1]).item() == pytest.approx((alone[0] - alone[1]).item(), rel=1e-9)


@pytest.mark.parametrize(
    ("pp", "vpp", "m", "held"), [(1, 1, 8, 1), (2, 1, 8, 2), (4, 1, 2, 2), (2, 2, 8, 4), (4, 2, 16, 8), (4, 3, 8, 8)]
)
def test_the_first_stage_holds_as_many_microbatches_as_the_order_has(pp: int, vpp: int, m: int, held: int) -> None:
    """Forwards in groups of pp microbatches, one chunk after another; backwards likewise from the last chunk on, each
    after one more forward once the warm-up is over (schedules.py, forward_backward_pipelining_with_interleaving)."""
    one = np.ones(1, dtype=np.int64)
    no = np.zeros(1, dtype=np.bool_)
    rows = Candidates(pp * 0 + one, pp * one, one, one, vpp * one, m * one, no, no, no)
    assert encoder.microbatches_held(rows).item() == held
    if vpp == 1:
        return
    order = [chunk for _ in range(m // pp) for chunk in range(vpp) for _ in range(pp)]
    warmup = min(m * vpp, 2 * (pp - 1) + (vpp - 1) * pp)
    live = most = 0
    done = 0
    for index, chunk in enumerate(order):
        live += chunk == 0
        most = max(most, live)
        if index >= warmup:
            live -= order[done] == vpp - 1  # backwards go through the chunks the other way round
            done += 1
    assert most == held


def test_the_evaluation_has_the_bytes_of_the_table() -> None:
    problem, plan = of(), strategy_of("x:2,2", dp=4)
    rows = Candidates.one(plan, problem.batch)
    table, stages = memory_table(problem, rows), stage_memory(problem, plan)
    plain = stage_memory(of(None), plan)
    assert stages[1] == plain[1]
    more = stages[0].activations - plain[0].activations
    assert more == pytest.approx(table.first_stored.item())
    # Two microbatches: of each layer its inputs, queries to attention's output, feed-forward; of the projector its own.
    tokens = 512 * 2
    layer = 2 * tokens * (2 * 512 + 512 + 4 * 512 + 2 * 2048) + 4 * 8 * tokens
    projector = 2 * (tokens / 4) * (2048 + 2 * 1024)
    assert 0.8 * (8 * layer + projector) < more < 1.2 * (8 * layer + projector)
    assert stages[0].buffers - plain[0].buffers == pytest.approx(table.first_buffer.item())
    counts, before = stage_parameters(problem, plan), stage_parameters(of(None), plan)
    assert counts[0] - before[0] == encoder_parameters(problem.model) + projector_parameters(problem.model)
    assert counts[1] == before[1]


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("tp", [1, 2])
def test_the_encoder_stands_among_the_operators_of_the_first_stage(trained: bool, tp: int) -> None:
    problem, plan = of({**IMAGES, "per_sequence": 6, "trained": trained}), strategy_of("x:2,2", tp=tp, dp=4 // tp)
    found = evaluate(problem, plan)
    operators = compute_by_operator(problem, plan, found)
    assert operators.stage == 0
    assert operators.seconds == pytest.approx(found.breakdown_s["compute"])
    assert any(part.name == "encoder of images" for part in operators.parts)


def test_mfu_counts_the_encoders_work() -> None:
    found, frozen = evaluate(of(), strategy_of(dp=8)), evaluate(of({**IMAGES, "trained": False}), strategy_of(dp=8))
    plain = evaluate(of(None), strategy_of(dp=8))
    work = [each.mfu * each.step_time_s for each in (plain, frozen, found)]
    assert work[0] < work[1] < work[2]
    weights = 512 * (8 * (12 * 512**2 + 2 * 256 * 512) + 768 * 512) + 128 * 1024 * (2048 + 1024)
    assert work[2] - work[0] == pytest.approx(6 * weights * 64 / (8 * 1e14))


def test_windows_of_patches_take_less() -> None:
    wide, narrow = of(), of(vision={**VISION, "window": 64, "full_every": 4})
    seconds = [time_table(each, each.supplies[0], row(groups="x:4", dp=8)).embedding.item() for each in (wide, narrow)]
    assert seconds[1] < seconds[0]


def test_the_shard_of_the_encoder() -> None:
    shard = encoder.encoder_shard(of(), Shard.of(2, 3, True, True, cp=4, ulysses=2))
    assert (shard.tp.item(), shard.mbs.item(), shard.cp.item(), shard.sequence_parallel.item()) == (2, 6, 1, False)


def test_an_encoder_that_each_rank_has_whole() -> None:
    """Nothing of it is split over tp or sent within layers; its gradients, 2 bytes each, are averaged once a step."""
    vision: dict[str, Any] = {"layers": 8, "hidden": 512, "ffn": 2048, "heads": 8, "merge": 2}
    vision |= {"frames": 2, "projector": 2048}
    vision |= {"projector_norm": "patch", "patch_bias": False}
    vision |= {"gated_mlp": True, "activation": "swiglu", "norm": "rmsnorm"}
    launcher = load_launcher("megatron-bridge").beside("qwen2_5_vl")
    split = of(vision=vision)
    whole = split.with_(launcher=launcher)
    assert whole.whole_encoder
    assert not split.whole_encoder
    rows = [row(groups="x:2,2", tp=tp, dp=4 // tp) for tp in (1, 2)]
    one, two = (memory.stage_parameters(whole, each).encoder.item() for each in rows)
    assert one == two == encoder_parameters(whole.model) + projector_parameters(whole.model)
    chip = whole.supplies[0].chip
    tables = [time_table(each, each.supplies[0], rows[1]) for each in (split, whole)]
    assert tables[1].encoder_tp.item() == 0 < tables[0].encoder_tp.item()
    assert tables[1].embedding > tables[0].embedding - tables[0].encoder_tp
    averaged = encoder.averaged_seconds(whole, chip, rows[1], np.array([two]))
    assert averaged.item() == pytest.approx(two * states.held(whole).gradient / 100e9, rel=1e-3)
    assert not encoder.averaged_seconds(split, chip, rows[1], np.array([two])).any()
    assert not encoder.averaged_seconds(whole, chip, rows[0], np.array([two])).any()
