"""Context, expert and data parallelism beyond the first kind of each: bytes and seconds worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpsolver.cost import comm, compute, context, memory, routing, states, tables
from cpsolver.cost.kinds import LayerKind
from cpsolver.cost.shard import Candidates, Floats, Shard, padded_vocabulary
from cpsolver.cost.tables import TimeTable, memory_table, time_table
from cpsolver.evaluation.evaluate import evaluate, stage_memory
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.problem.problem import Problem
from models_zoo import Architecture
from tests.support.problems import ideal, model_spec, strategy_of, with_stack

DENSE, ROUTED = LayerKind(False, True), LayerKind(True, True)
EXPERTS = {"experts": 8, "top_k": 2, "expert_ffn": 512}
HIDDEN = 2 * 1024 * 1024
"""Bytes of the hidden states of one sequence."""
LONG = np.array([1e3])
"""Seconds of a layer's pass under which anything travels."""


def floats(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


def expert_model(**moe: Any) -> Architecture:
    """The small model with experts in every layer."""
    return Architecture.model_validate({"name": "experts", **model_spec(), "moe": {**EXPERTS, **moe}})


def shard(tp: int = 1, cp: int = 1, ep: int = 1, flags: str = "f", **more: Any) -> Shard:
    """Experts are cut as the rest of a layer, unless told otherwise."""
    return Shard.of(tp, 1, "s" in flags, "f" in flags, cp=cp, ep=ep, **{"etp": tp, **more})


def row(text: str = "x:4", batch: int = 8, **degrees: Any) -> Candidates:
    return Candidates.one(strategy_of(text, **degrees), batch)


def table(problem: Problem, text: str = "x:4", **degrees: Any) -> TimeTable:
    return time_table(problem, problem.supplies[0], row(text, problem.batch, **degrees))


def gradients(rows: Candidates, count: float = 1e9, **given: Any) -> tuple[float, float]:
    """Reducing and gathering that many parameters, 32 devices in nodes of 4."""
    problem, chip = ideal(gpus=32, node=4, **given)
    reduce, gather = comm.gradient_seconds(problem, chip, floats(count), rows, rows.replicas, rows.tp)
    return float(reduce[0]), float(gather[0])


def test_a_module_of_multi_token_prediction_exchanges_as_a_layer_and_five_times_more() -> None:
    """An all-reduce of 2 MiB over 4 ranks takes 2 * 3/4 * 2 MiB / 100 GB/s. A layer has four of them, two a pass; a
    module has one after its embedding, one before its head, and three around the product that joins its inputs."""
    once = 2 * 3 / 4 * HIDDEN / 100e9
    model = Architecture.model_validate({"name": "module", **model_spec(), "mtp_layers": 1})
    found, plain = (table(ideal(model=each)[0], tp=4, dp=1) for each in (model, None))
    assert (found.end_tp[0], found.layer_tp[0]) == pytest.approx((once, 4 * once), rel=1e-6)
    assert found.mtp_tp[0] == pytest.approx((4 + 5) * once, rel=1e-6)
    assert (found.head - plain.head)[0] > (4 + 5) * once
    assert plain.mtp_tp[0] == 0


# Context parallelism.


def test_context_parallel_ranks_share_the_sequences_tokens() -> None:
    problem, chip = ideal()
    assert shard(cp=4).tokens(1024) == 256
    whole, split = (compute.layer_seconds(problem, chip, shard(cp=cp), DENSE) for cp in (1, 4))
    assert split.core == pytest.approx(whole.core / 4)
    all_of_it, share = (memory.layer_bytes(problem, shard(cp=cp), DENSE).full for cp in (1, 4))
    assert share == all_of_it / 4
    assert comm.hop_bytes(problem, shard(cp=4)) == HIDDEN / 4


def test_unfused_attention_is_shared_by_context_parallel_ranks() -> None:
    problem, chip = ideal()
    whole, split = (compute.layer_seconds(problem, chip, shard(cp=cp, flags=""), DENSE).core for cp in (1, 4))
    assert split == pytest.approx(whole / 4)


@pytest.mark.parametrize(("tp", "kv_heads", "held"), [(1, 8, 8), (2, 8, 4), (4, 2, 1)])
def test_the_ring_brings_the_keys_and_values_of_the_whole_sequence(tp: int, kv_heads: int, held: int) -> None:
    problem, chip = ideal(model=model_spec(kv_heads=kv_heads), gpus=8, node=8)
    payload = 2 * 2 * held * 128 * 1024
    assert context.ring_seconds(problem, chip, shard(tp=tp, cp=2)) == pytest.approx(payload / 2 / 100e9)


def test_the_ring_leaves_the_node_where_its_ranks_do() -> None:
    problem, chip = ideal(gpus=8, node=4)
    payload = 2 * 2 * 2 * 128 * 1024
    assert context.ring_seconds(problem, chip, shard(tp=4, cp=2)) == pytest.approx(payload / 2 / 12.5e9)


def test_no_ring_without_context_parallelism() -> None:
    assert context.ring_seconds(*ideal(), shard()) == 0


def test_the_ring_hides_under_attentions_core() -> None:
    """As much of a step as the stack overlaps; backward sends twice, in steps of 2.5 times the time."""
    problem, chip = ideal(stack={"context_overlap": 0.5})
    ring = context.ring_seconds(problem, chip, shard(cp=2))
    for core, out, back in ((0.0, ring, 2 * ring), (ring / 2, 0.875 * ring, 1.375 * ring), (10 * ring, 0, 0)):
        inside = comm.layer_comm(problem, chip, shard(cp=2), np.asarray(core), DENSE, LONG)
        assert inside.forward == pytest.approx(out)
        assert inside.backward == pytest.approx(back)


def test_context_parallel_ranks_are_replicas_of_the_weights() -> None:
    rows = row(tp=2, dp=2, cp=2)
    assert rows.replicas == rows.shards == 4
    assert rows.stage_devices == 8


# Tensor parallelism.


def test_a_stack_hides_shares_of_tensor_parallel_communication() -> None:
    """Backward, of an all-reduce twice as much as of a pair of which the reduce-scatter alone can hide."""
    open_, hiding = (ideal(stack=s) for s in ({}, {"tensor_overlap": 0.25, "tensor_overlap_backward": 0.3}))
    for sequence, shown in ((True, 0.7), (False, 0.4)):
        split = Shard.of(4, 1, sequence, True)
        all_of_it, exposed = (comm.layer_comm(*each, split, floats(0), DENSE, LONG) for each in (open_, hiding))
        assert exposed.forward == pytest.approx(0.75 * all_of_it.forward)
        assert exposed.backward == pytest.approx(shown * all_of_it.backward)


# Experts.


def test_tokens_go_to_their_experts_and_back_inside_a_node() -> None:
    """Each token's hidden state to each of its two experts, 3 of 4 of them on other devices, in either direction."""
    problem, chip = ideal(model=expert_model())
    assert routing.routing_seconds(problem, chip, shard(ep=4)) == pytest.approx(2 * 2 * HIDDEN * 3 / 4 / 100e9)
    inside = comm.layer_comm(problem, chip, shard(ep=4), floats(0), ROUTED, LONG)
    assert inside.forward == inside.backward == routing.routing_seconds(problem, chip, shard(ep=4))


def test_across_nodes_a_token_is_sent_once_to_each_node() -> None:
    """Two nodes of four: both of a token's experts are in the other node at times, and then one copy goes there."""
    problem, chip = ideal(model=expert_model(), gpus=8, node=4, stack={"copies_once_per_node": 1})
    reached = 2 * (1 - (1 - 1 / 2) ** 2)
    away = reached * HIDDEN / 2  # the copies for the own node stay there
    assert routing.routing_seconds(problem, chip, shard(ep=8)) == pytest.approx(2 * away / 12.5e9)


def test_many_experts_a_token_fill_every_node_once() -> None:
    model = expert_model(experts=64, top_k=64)
    problem, chip = ideal(model=model, gpus=16, node=4, stack={"copies_once_per_node": 1})
    each_of_the_others = 3 * HIDDEN
    assert routing.routing_seconds(problem, chip, shard(ep=16)) == pytest.approx(2 * each_of_the_others / 12.5e9)


@pytest.mark.parametrize(
    ("ep", "nodes"),
    [
        (16, 4 * (1 - 1 / 2 - 1 / 2 * (1 / 2) ** 2)),  # a group a node: in one of the two taken, half of the time
        (8, 2 * (1 - 1 / 6 - 2 / 3 * (1 / 2) ** 2)),  # two a node: none, one or both of the taken are its own
        (32, 8 * (1 - 1 / 2 - 1 / 2 * (3 / 4) ** 2)),  # half a group a node
    ],
)
def test_routers_that_take_some_groups_of_experts_reach_fewer_nodes(ep: int, nodes: float) -> None:
    """Of four groups two are taken, and two experts anywhere in these."""
    model = expert_model(experts=32, groups=4, top_groups=2)
    problem, chip = ideal(model=model, gpus=32, node=4, stack={"copies_once_per_node": 1})
    inside = 4 / ep  # of what goes to all nodes, what stays
    assert routing.routing_seconds(problem, chip, shard(ep=ep)) == pytest.approx(
        2 * nodes * HIDDEN * (1 - inside) / 12.5e9
    )


def test_tokens_may_travel_in_8_bits_and_their_results_do_not() -> None:
    training = {"precision": "fp8"}
    wide, narrow = (
        routing.routing_seconds(
            *ideal(model=expert_model(), stack={"dispatch_bytes": each}, training=training), shard(ep=4)
        )
        for each in (2, 1)
    )
    assert narrow == pytest.approx(0.75 * wide)
    in_bf16, chip = ideal(model=expert_model(), stack={"dispatch_bytes": 1})
    assert routing.routing_seconds(in_bf16, chip, shard(ep=4)) == pytest.approx(wide)


def test_the_usual_dispatcher_sends_a_copy_to_each_expert() -> None:
    problem, chip = ideal(model=expert_model(), gpus=8, node=4)
    away = 2 * HIDDEN / 2  # one of two copies, on average, stays in the node
    assert routing.routing_seconds(problem, chip, shard(ep=8)) == pytest.approx(2 * away / 12.5e9)


def test_tensor_parallel_ranks_exchange_a_tokens_input_once_for_each_expert_it_visits() -> None:
    """Two exchanges in a dense layer: after attention and after the feed-forward block."""
    dense, routed = (
        comm.layer_comm(*ideal(model=expert_model()), shard(tp=2), np.zeros(1), kind, LONG).forward
        for kind in (DENSE, ROUTED)
    )
    assert routed == pytest.approx(dense * (1 + 2) / 2)


def test_tensor_parallel_ranks_route_a_share_of_the_sequence_each() -> None:
    problem, chip = ideal(model=expert_model())
    whole, split = (routing.routing_seconds(problem, chip, shard(tp=2, ep=2, flags=flags)) for flags in ("f", "fs"))
    assert split == pytest.approx(whole / 2)


def test_only_layers_with_experts_route() -> None:
    """Half of them here: dense ones have no exchange, and the mean layer has half of it."""
    half, all_of_them = (ideal(model=expert_model(first_dense=first))[0] for first in (2, 0))
    assert comm.layer_comm(*ideal(model=expert_model()), shard(ep=4), floats(0), DENSE, LONG).forward == 0
    mixed, routed = (table(each, ep=4) for each in (half, all_of_them))
    assert mixed.layer_tp == pytest.approx(routed.layer_tp / 2)
    assert sorted(mixed.kind_layer_tp[:, 0]) == pytest.approx([-mixed.layer_tp[0], mixed.layer_tp[0]])


def test_a_stack_hides_a_share_of_routing_where_the_plan_overlaps() -> None:
    given = ({"routing_overlap": share} for share in (0.0, 0.25))
    problems = [ideal(model=expert_model(), stack=s) for s in given]
    overlaps, alone = shard(ep=4, expert_overlap=True), shard(ep=4)
    plain, hidden = (comm.layer_comm(*each, overlaps, floats(0), ROUTED, LONG).forward for each in problems)
    assert hidden == pytest.approx(0.75 * plain)
    assert [comm.layer_comm(*each, alone, floats(0), ROUTED, LONG).forward for each in problems] == [plain, plain]


def test_a_device_holds_its_share_of_the_experts() -> None:
    problem, _ = ideal(model=expert_model(), gpus=4)
    alone, spread = (memory.stage_parameters(problem, row(dp=4, ep=ep)) for ep in (1, 4))
    assert alone.experts == 8 * 3 * 1024 * 512
    assert spread.experts == alone.experts / 4
    assert spread.layer == alone.layer


def test_states_of_experts_are_shared_by_those_who_hold_the_same() -> None:
    rows = row(dp=8, ep=2)
    assert rows.expert_replicas == rows.expert_shards == 4
    assert rows.shards == 8
    assert row(dp=8, ep=2, flags="f").expert_shards == 1


def test_gradients_of_experts_are_summed_over_fewer_devices_further_apart() -> None:
    """Experts of ep 4 on 8 devices in nodes of 4: two replicas each, one in each node."""
    problem, _ = ideal(model=expert_model(), gpus=8, node=4)
    rows = row(dp=8, ep=4, flags="f")
    parts = memory.stage_parameters(problem, rows)
    dense = 2 * 7 / 8 * 4 * parts.layer / 50e9
    experts = 2 * 1 / 2 * 4 * parts.experts / 12.5e9
    found = table(problem, dp=8, ep=4, flags="f")
    assert found.sync_layer == pytest.approx(dense + experts)


# Sharded states.


@pytest.mark.parametrize(
    ("sharded", "each"),
    [("optimizer", 2 + 4 + 12 / 4), ("gradients", 2 + (4 + 12) / 4), ("parameters", (2 + 4 + 12) / 4)],
)
def test_what_is_sharded_takes_a_share_of_its_bytes(sharded: str, each: float) -> None:
    rows = row(dp=4, sharded=sharded)
    assert states.state_bytes(ideal()[0], rows, rows.shards).each == each
    plain = row(dp=4, sharded=sharded, flags="f")
    assert states.state_bytes(ideal()[0], plain, plain.shards).each == 18


def test_sharded_weights_are_whole_while_their_layer_works() -> None:
    problem, _ = ideal(stack={"gathered_layers": 2})
    whole, shared = (memory_table(problem, row(dp=4, sharded=depth)) for depth in ("gradients", "parameters"))
    parts = memory.stage_parameters(problem, row())
    assert shared.buffer - whole.buffer == 2 * (2 * parts.layer + np.maximum(parts.first, parts.last))


def test_the_stages_memory_counts_what_is_sharded() -> None:
    problem, _ = ideal()
    optimizer, parameters = (
        stage_memory(problem, strategy_of(sharded=depth))[0] for depth in ("optimizer", "parameters")
    )
    assert parameters.weights == optimizer.weights / 4
    assert parameters.gradients == optimizer.gradients / 4
    assert parameters.optimizer == optimizer.optimizer


def one_stage(overlap: float, compute_s: float = 1.0) -> tuple[Evaluation, TimeTable]:
    """ZeRO-3 on 4 devices in one node; the host's time makes a layer's passes as long as told."""
    stack = {"sharding_overlap": overlap, "host_layer_us": compute_s * 1e6}
    problem, _ = ideal(stack=stack)
    return evaluate(problem, strategy_of(sharded="parameters")), table(problem, sharded="parameters")


def test_sharded_weights_are_gathered_twice_and_gradients_scattered_once_a_microbatch() -> None:
    found, costs = one_stage(overlap=0.0)
    held = memory.stage_parameters(ideal()[0], row())
    bytes_of = 4 * held.layer + held.first + held.last
    seconds = (2 * 2 + 4) * bytes_of * 3 / 4 / 100e9
    assert found.stages[0].sharding_s == pytest.approx(seconds)
    assert found.breakdown_s["sharding"] == pytest.approx(2 * seconds)  # two microbatches
    assert costs.gather == pytest.approx(2 * held.layer * 3 / 4 / 100e9)
    assert costs.scatter == pytest.approx(2 * costs.gather)


def test_gathering_and_scattering_hide_under_compute_that_is_long_enough() -> None:
    bare, hidden = (one_stage(overlap)[0].stages[0].sharding_s for overlap in (0.0, 0.75))
    assert hidden == pytest.approx(0.25 * bare)


def test_compute_that_is_too_short_hides_as_long_as_it_lasts() -> None:
    problem, _ = ideal({"all_gather": 1e-6, "reduce_scatter": 1e-6}, stack={"sharding_overlap": 0.5})
    plan = strategy_of(sharded="parameters")
    without, _ = ideal({"all_gather": 1e-6, "reduce_scatter": 1e-6})
    open_, hiding = (evaluate(each, plan).stages[0].sharding_s for each in (without, problem))
    costs = table(problem, sharded="parameters")
    assert open_ - hiding == pytest.approx(0.5 * 4 * costs.layer[0])


def test_recomputation_gives_gathering_more_to_hide_under() -> None:
    problem, _ = ideal({"all_gather": 1e-6, "reduce_scatter": 1e-6}, stack={"sharding_overlap": 0.5})
    plain, again = (
        evaluate(problem, strategy_of(sharded="parameters", recompute=kind, amount=1)).stages[0]
        for kind in ("none", "uniform")
    )
    assert plain.sharding_s - again.sharding_s == pytest.approx(0.5 * again.recompute_s)


def test_sharded_weights_leave_nothing_to_do_once_a_step_but_the_update() -> None:
    found = table(ideal()[0], sharded="parameters")
    assert found.sync_layer == found.sync_stage == found.sync_first == found.sync_last == 0
    assert found.update_layer == table(ideal()[0]).update_layer


def test_a_sharded_optimizer_alone_does_nothing_each_microbatch() -> None:
    found = table(ideal()[0], sharded="optimizer")
    assert found.gather == found.scatter == found.gather_ends == found.scatter_ends == 0
    assert found.sync_layer > 0


def test_sharded_gradients_are_shared_out_each_microbatch_and_weights_gathered_once_a_step() -> None:
    found = table(ideal()[0], sharded="gradients")
    assert found.gather == found.gather_ends == 0
    assert found.scatter > 0
    assert found.sync_layer + found.sync_stage > 0


def test_a_sharding_group_scatters_inside_itself_and_sums_its_shares_outside() -> None:
    """32 replicas in groups of 4, a node each: eight groups sum a quarter of the gradients each."""
    reduce, gather = gradients(row(dp=32, batch=32, sharding_group=4))
    inside = 3 / 4 * 4 / 100
    outside = 2 * 7 / 8 * (4 / 4) / 12.5
    assert reduce == pytest.approx(inside + outside)
    assert gather == pytest.approx(3 / 4 * 2 / 100)


def test_a_sharding_group_of_all_replicas_is_no_group() -> None:
    assert gradients(row(dp=32, batch=32, sharding_group=32)) == gradients(row(dp=32, batch=32))


def test_a_sharding_group_shares_its_states_among_its_own_devices() -> None:
    assert row(dp=8, sharding_group=4).shards == 4
    assert row(dp=8, sharding_group=0).shards == 8
    assert row(dp=8, sharding_group=4, flags="f").shards == 1


@pytest.mark.parametrize(("ep", "etp", "shards"), [(1, 1, 16), (4, 1, 4), (16, 1, 1), (8, 2, 1)])
def test_replicas_of_experts_are_cut_into_as_many_groups(ep: int, etp: int, shards: int) -> None:
    """Two instances of the distributed optimizer over 16 replicas of tp 2, 32 devices: Megatron-Core 0.19.2's
    initialize_model_parallel makes expert groups of 32 / (etp * ep) / 2 ranks."""
    rows = row(tp=2, dp=16, ep=ep, etp=etp, sharding_group=8)
    assert rows.shards == 8
    assert rows.expert_shards == shards
    assert rows.group_of(rows.expert_replicas) == shards


def test_a_single_adapter_carries_what_four_could() -> None:
    all_of_them, one = (gradients(row(dp=32, batch=32), stack={"single_adapter": flag}) for flag in (0, 1))
    assert one == pytest.approx([4 * seconds for seconds in all_of_them])


def test_a_sharded_optimizer_may_all_reduce_all_the_same() -> None:
    plain, all_reduced = (gradients(row(dp=32, batch=32), stack={"sharded_all_reduce": flag}) for flag in (0, 1))
    assert all_reduced == pytest.approx((2 * plain[0], plain[1]))


def test_a_broadcast_for_each_share_of_the_weights_takes_its_time_every_step() -> None:
    problem, _ = ideal(stack={"shard_broadcast_ms": 2.0})
    assert table(problem, dp=4).update_stage == pytest.approx(4 * 2e-3)
    assert table(problem, dp=4, flags="f").update_stage == 0


def test_a_stack_may_send_a_share_of_the_hidden_states_down_the_pipeline() -> None:
    """Whatever sequence parallelism does."""
    problem, _ = ideal(stack={"pipeline_scatter": 1})
    assert comm.hop_bytes(problem, shard(tp=4)) == comm.hop_bytes(problem, shard(tp=4, flags="s")) == HIDDEN / 4
    assert comm.hop_bytes(ideal()[0], shard(tp=4)) == HIDDEN


def test_a_tied_table_on_two_stages_has_its_gradients_summed_over_both() -> None:
    """A pair of devices in different nodes: the payload crosses the network once each way."""
    problem, chip = ideal(model={**model_spec(), "tied_embeddings": True}, gpus=16)
    rows = row("x:2,2", batch=8, dp=8)
    assert comm.tied_seconds(problem, chip, floats(1e6), rows) == pytest.approx(4e6 / 12.5e9)
    assert comm.tied_seconds(problem, chip, floats(1e6), row()) == 0


def test_sharded_experts_are_gathered_by_the_ranks_that_share_them() -> None:
    """Of 8 devices with ep 8 none shares an expert with another: nothing of the experts travels, nor is it cut."""
    model = expert_model()
    problem, chip = ideal(model=model, gpus=8)
    alone = row(tp=1, dp=8, ep=8, sharded="parameters", flags="fz")
    both = row(tp=1, dp=8, ep=4, sharded="parameters", flags="fz")
    assert (alone.expert_shards.item(), both.expert_shards.item(), both.shards.item()) == (1, 2, 8)
    dense = memory.stage_parameters(problem, alone).layer
    only_dense = comm.gradient_seconds(problem, chip, dense, alone, alone.replicas, alone.tp)[1]
    gather = [time_table(problem, problem.supplies[0], rows).gather.item() for rows in (alone, both)]
    assert gather[0] == pytest.approx(only_dense.item())
    experts = memory.stage_parameters(problem, both).experts
    routed = comm.gradient_seconds(problem, chip, experts, both, both.expert_replicas, both.etp * both.ep)[1]
    assert gather[1] == pytest.approx(only_dense.item() + routed.item())


def test_a_loss_that_is_not_parallel_has_all_logits_on_every_rank() -> None:
    problem, _ = ideal(gpus=8)
    split = row(tp=4, dp=2)
    apart = with_stack(problem, parallel_loss=0)
    assert memory.logits_bytes(apart, split).item() == 4 * memory.logits_bytes(problem, split).item()


def test_logits_that_a_pipeline_keeps() -> None:
    """Two bytes of each of 8 microbatches, and as many again where they are joined at the end."""
    problem, _ = ideal(gpus=8)
    keeps, rows = with_stack(problem, pipeline_logits_bytes=2), row("x:2,2", tp=4, dp=1)
    tokens, vocab = 1024, padded_vocabulary(problem.model.vocab, rows.tp).item() / 4
    assert memory.held_logits_bytes(keeps, rows).item() == 2 * 8 * tokens * vocab
    none, some = (memory_table(each, rows).last_buffer.item() for each in (problem, keeps))
    assert some >= 2 * memory.held_logits_bytes(keeps, rows).item()
    assert some > none
    assert not memory.held_logits_bytes(keeps, row(tp=4, dp=2)).any()


# Buckets of gradients and weights.

RINGS = {"gradient_overlap": 0.5, "parameter_overlap": 0.5, "ring_step_us": 2, "ring_border_us": 5}
BUCKETS = {"bucket_parameters": 1000, "bucket_rank_parameters": 100}


def bucket_us(flags: str = "fz", stack: dict[str, float] | None = None, **degrees: Any) -> tuple[float, float]:
    """Microseconds of 64,000 parameters' buckets in 16 devices of nodes of 4: reducing gradients, gathering weights."""
    problem, chip = ideal(gpus=16, node=4, stack={**RINGS, **BUCKETS, **(stack or {})})
    one = row(batch=16, flags=flags, **{"dp": 16, **degrees})
    found = comm.bucket_seconds(problem, chip, np.array([64_000.0]), one, one.replicas, one.tp)
    return found[0].item() * 1e6, found[1].item() * 1e6


def test_each_bucket_goes_around_a_ring_of_all_ranks() -> None:
    """16 ranks on 4 nodes: 12 steps of 2 us inside and 3 of 5 us between nodes, for 64,000 / 1,600 buckets."""
    assert bucket_us() == pytest.approx((40 * 39, 40 * 39))
    assert bucket_us(stack={"bucket_rank_parameters": 0}) == pytest.approx((64 * 39, 64 * 39))


def test_gradients_that_are_all_reduced_go_around_twice_and_no_weights_are_gathered() -> None:
    assert bucket_us("f") == pytest.approx((40 * 2 * 39, 0))


def test_groups_that_share_states_have_rings_of_their_own() -> None:
    """4 ranks a node, 3 steps; then gradients are all-reduced over 4 nodes, twice 3 steps between nodes."""
    assert bucket_us(sharding_group=4) == pytest.approx((40 * (3 * 2 + 2 * 3 * 5), 40 * 3 * 2))


def test_what_does_not_overlap_is_not_cut_into_buckets() -> None:
    assert bucket_us(stack={"gradient_overlap": 0, "parameter_overlap": 0}) == (0, 0)


def test_buckets_are_paid_once_a_step_with_what_they_carry() -> None:
    problem, _ = ideal(gpus=16, node=4, stack={**RINGS, **BUCKETS})
    without, _ = ideal(gpus=16, node=4, stack={**RINGS, **BUCKETS, "ring_step_us": 0, "ring_border_us": 0})
    one = row(batch=16, dp=16)
    parts = [tables.time_table(each, each.supplies[0], one) for each in (problem, without)]
    count = memory.stage_parameters(problem, one).layer.item()
    longer, less = ((each.sync_layer + each.sync_stage).item() for each in parts)  # gradients and weights of a layer
    assert longer - less == pytest.approx(2 * count / 1600 * 39e-6)
