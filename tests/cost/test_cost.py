"""Each formula of the cost model on numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpsolver.cost import collectives, comm, compute, memory, states
from cpsolver.cost.chip_speeds import ChipSpeeds
from cpsolver.cost.kinds import LayerKind
from cpsolver.cost.model_flops import model_flops_per_step
from cpsolver.cost.shard import Candidates, Shard, padded_vocabulary
from cpsolver.cost.stage import crosses_domain
from cpsolver.cost.stored import Stored
from cpsolver.cost.tables import memory_table, time_table
from models_zoo.params import total_parameters
from tests.support.problems import ideal, model_spec, problem_of, strategy_of

GPT3_LAYER = {
    "layers": 2,
    "hidden": 12288,
    "ffn": 4 * 12288,
    "heads": 96,
    "vocab": 51200,
    "gated_mlp": False,
    "norm": "layernorm",
    "position": "learned",
    "max_positions": 2048,
}


DENSE = LayerKind(experts=False, full_attention=True)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def row(text: str = "x:2,2", batch: int = 8, **degrees: Any) -> Candidates:
    return Candidates.one(strategy_of(text, **degrees), batch)


def test_gemm_takes_tiles_depth_and_roofline() -> None:
    problem, chip = ideal()
    device = ChipSpeeds(problem, chip)
    whole = 2 * 1408 * 2560 * 12800 / 1e14 * 12928 / 12800  # 11 x 10 tiles; the loop over k is 1 % overhead
    assert device.gemm(floats(1408), floats(2560), floats(12800)) == pytest.approx(whole)
    assert device.gemm(floats(1344), floats(2560), floats(12800)) == pytest.approx(whole)
    slow = ChipSpeeds(*ideal({"memory": 0.1}))
    traffic = 2 * (1280 * 128 + 128 * 2560 + 1280 * 2560)
    assert slow.gemm(floats(1280), floats(2560), floats(128)) == pytest.approx(traffic / 1e11)


def test_gemm_pays_for_idle_units_and_for_the_launch() -> None:
    problem, chip = ideal({"kernel_latency_us": 5.0}, compute_units=4)
    device = ChipSpeeds(problem, chip)
    full = 2 * 512 * 256 * 12800 / 1e14 * 12928 / 12800
    assert device.gemm(floats(512), floats(256), floats(12800)) == pytest.approx(full + 5e-6)
    # On 4 units 5 x 1 tiles of 128 x 256 take two rounds, 3 x 2 of 256 x 128 too, 5 x 2 of half the size three.
    more = 2 * 640 * 256 * 12800 / 1e14 * 12928 / 12800 / (640 * 256 / (12 * 128 * 128))
    assert device.gemm(floats(640), floats(256), floats(12800)) == pytest.approx(more + 5e-6)


def test_flash_attention_counts_the_causal_half() -> None:
    problem, chip = ideal(sequence=1024)
    shard = Shard.of([1, 2], 2, False, True)
    seconds = compute.layer_seconds(problem, chip, shard, DENSE)
    flops = 4 * 2048 * 1024 * 128 * 8  # two products of T x s x d for 8 heads
    assert seconds.core == pytest.approx([flops / 2 / 0.5e14, flops / 4 / 0.5e14])
    device = ChipSpeeds(problem, chip)
    tokens = floats(2048, 2048)
    backward = compute._attention(problem, device, shard, tokens, DENSE)[1]
    assert backward == pytest.approx(2.5 * seconds.core)


def test_unfused_attention_computes_both_halves_and_moves_the_scores() -> None:
    problem, chip = ideal(sequence=1024)
    plain = compute.layer_seconds(problem, chip, Shard.of(1, 1, False, False), DENSE).core[0]
    products = 4 * 1024 * 1024 * 128 * 8 / 1e14
    moved = 2 * 8 * 1024 * 1024 * 2 / 1e12  # by softmax, beside the products
    assert plain > products + moved
    dropout = ideal(sequence=1024, training={"dropout": True})
    more = compute.layer_seconds(*dropout, Shard.of(1, 1, False, False), DENSE).core[0] - plain
    assert more == pytest.approx(2 * 8 * 1024 * 1024 * 2 / 1e12, rel=1e-6)


def test_unfused_kernels_cost_their_factor() -> None:
    fused, plain = (ideal(training={"fused_kernels": fused}) for fused in (True, False))
    before, after = (compute.layer_seconds(*each, Shard.of(1, 1, False, True), DENSE) for each in (fused, plain))
    h, f = 1024, 2816
    elements = (2 * 2 * h + 2 * 3 * h + 2 * (8 + 8) * 128 + 3 * f) * 1024
    more = (fused[0].stack.unfused_traffic_factor - 1) * 2 * elements / 1e12
    assert after.forward - before.forward == pytest.approx(more)
    assert after.backward - before.backward == pytest.approx(2 * more)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_activations_of_a_gpt_layer_are_those_of_the_paper(tp: int) -> None:
    """arXiv:2205.05198: s b h (10 + 24/t + 5 a s / (h t)); with sequence parallelism s b h (34 + 5 a s / h) / t."""
    problem, _ = ideal(model=GPT3_LAYER, sequence=2048, training={"dropout": True})
    s, b, h, a = 2048, 2, 12288, 96
    found = memory.layer_bytes(problem, Shard.of(tp, b, [False, True], False), DENSE).full
    split = s * b * h * (34 + 5 * a * s / h) / tp
    assert found == pytest.approx([s * b * h * (10 + 24 / tp + 5 * a * s / (h * tp)), split])
    parallel = memory.layer_bytes(problem, Shard.of(tp, b, True, False), DENSE)
    assert parallel.full - parallel.freed[0] == pytest.approx(34 * s * b * h / tp)
    assert parallel.checkpoint == pytest.approx(2 * s * b * h / tp)


def test_flash_attention_keeps_statistics_only() -> None:
    problem, _ = ideal(model=GPT3_LAYER, sequence=2048)
    flash = memory.layer_bytes(problem, Shard.of(1, 1, False, True), DENSE)
    unfused = memory.layer_bytes(problem, Shard.of(1, 1, False, False), DENSE)
    assert unfused.full - flash.full == pytest.approx(2 * 96 * 2048**2 - 4 * 96 * 2048)
    assert flash.freed[0] == 0


@pytest.mark.parametrize(
    ("given", "bytes_of"),
    [
        ({"cp_gather": True}, 2 * 2 * 2 * 128 * 1024),  # keys and values of all tokens
        ({}, 2 * 2 * 2 * 2 * 128 * 1024 / 4),  # two blocks of a quarter of them
        ({"ulysses": 4}, 2 * 2 * (8 + 8) * 128 * 1024 / 4),  # q, k, v and output; two heads become all eight
        ({"ulysses": 2}, 2 * 2 * 2 * 1 * 128 * 1024 / 2 + 2 * 2 * (8 + 2) * 128 * 1024 / 4),
    ],
    ids=str,
)
def test_what_context_parallel_ranks_exchange_is_held_while_a_layer_works(given: Any, bytes_of: float) -> None:
    """Two heads of keys and values, four ranks."""
    problem, _ = ideal(model=model_spec(kv_heads=2))
    assert memory._context_parallel_bytes(problem, Shard.of(1, 1, False, True, cp=4, **given)) == bytes_of
    assert memory._context_parallel_bytes(problem, Shard.of(1, 1, False, True)) == 0


LAYER = Stored.alike(100.0), Stored.alike(60.0), 10.0


@pytest.mark.parametrize(
    ("kind", "amount", "kept"),
    [
        ("none", 0, 3 * 5 * 100),
        ("selective", 0, 3 * 5 * 60),
        ("block", 2, 3 * (3 * 100 + 2 * 10) + 100),
        ("block", 9, 3 * 5 * 10 + 100),
        ("uniform", 1, 3 * 5 * 10 + 100),
        ("uniform", 2, 3 * 3 * 10 + 2 * 100),
        ("uniform", 9, 3 * 1 * 10 + 5 * 100),
    ],
)
def test_what_recomputation_keeps(kind: Any, amount: int, kept: float) -> None:
    """Three chunks of five layers in flight, a layer being 100, 60 or 10 bytes; plus the unit being recomputed."""
    assert memory.activation_bytes(LAYER, ints(3), ints(5), kind, ints(amount), 0.0) == kept


@pytest.mark.parametrize(
    ("kind", "amount", "more"), [("none", 0, 100), ("selective", 0, 60), ("block", 2, 100), ("uniform", 2, 100)]
)
def test_a_forward_beside_a_backward_keeps_a_layer_more(kind: Any, amount: int, more: float) -> None:
    """What the layer at work keeps: all of it, or without the modules that are recomputed."""

    def kept(beside: bool) -> Any:
        return memory.activation_bytes(LAYER, ints(3), ints(5), kind, ints(amount), 7.0, beside)

    assert kept(True) == kept(False) + more


def test_states_take_18_bytes_or_6_and_12_over_dp() -> None:
    problem, _ = ideal()
    whole, shared = row(dp=4, flags="f"), row(dp=4, flags="fz")
    assert states.state_bytes(problem, whole, whole.shards).each == 18
    assert states.state_bytes(problem, shared, shared.shards).each == 6 + 12 / 4


def test_vocabulary_is_padded_to_128_times_tp() -> None:
    assert padded_vocabulary(50257, ints(1, 2, 8)).tolist() == [50304, 50432, 51200]
    assert padded_vocabulary(51200, ints(8)).tolist() == [51200]


def test_parameters_of_all_stages_are_the_models() -> None:
    model = model_spec(vocab=12800, kv_heads=2)
    problem, _ = ideal(model=model)
    parts = memory.stage_parameters(problem, row())
    assert 4 * parts.layer + parts.first + parts.last == total_parameters(problem.model)
    tied, _ = ideal(model={**model, "tied_embeddings": True})
    assert memory.stage_parameters(tied, row("x:4")).last == 1024
    assert memory.stage_parameters(tied, row("x:2,2")).last == 1024 + 12800 * 1024
    spread = memory.stage_parameters(problem, row(tp=4)).layer
    assert spread == (2 * 1024 * (1024 + 256) + 3 * 1024 * 2816) / 4 + 2 * 1024  # two kv heads, split over four


def test_biases_after_a_sum_over_the_ranks_are_held_by_each_of_them() -> None:
    """Those of attention's output and of the second feed-forward product; the others are split with their weights."""
    biases = {"bias_qkv": True, "bias_attention_out": True, "bias_mlp": True, "gated_mlp": False}
    problem, _ = ideal(model=model_spec(**biases))
    h, f = 1024, 2816
    split = 4 * h * h + 3 * h + 2 * h * f + f
    assert memory.stage_parameters(problem, row(tp=4)).layer == split / 4 + 2 * h + 2 * h


@pytest.mark.parametrize(
    ("size", "stride", "seconds"),
    [
        (1, 1, 0.0),
        (4, 1, 2 * 3 / 4 / 100),  # inside the node: the fabric's 100 GB/s
        (8, 1, 2 * 7 / 8 / 50),  # four ranks a node: four adapters of 12.5 GB/s
        (8, 2, 2 * 7 / 8 / 25),  # two ranks a node
        (8, 4, 2 * 7 / 8 / 12.5),  # one rank a node
        (2, 4, 2 * 1 / 2 / 12.5),
    ],
)
def test_ring_shares_the_adapters_of_its_ranks_in_a_node(size: int, stride: int, seconds: float) -> None:
    problem, chip = ideal(gpus=32, node=4)
    found = collectives.collective_seconds(problem, chip, "all_reduce", floats(1e9), ints(size), ints(stride))
    assert found == pytest.approx(seconds, abs=1e-9)
    for kind in ("all_gather", "reduce_scatter"):
        half = collectives.collective_seconds(problem, chip, kind, floats(1e9), ints(size), ints(stride))
        assert half == pytest.approx(seconds / 2, abs=1e-9)


@pytest.mark.parametrize(
    ("stride", "inside"),
    [
        # 72, 36, 18, 9 and 4 ranks have room in a domain; of each size the largest divisor that fits
        (1, {2: 2, 6: 6, 9: 9, 64: 64, 72: 72, 96: 48, 97: 1, 128: 64, 144: 72, 256: 64, 512: 64}),
        (2, {6: 6, 9: 9, 36: 36, 64: 32, 72: 36, 96: 32, 128: 32, 256: 32, 512: 32}),
        (4, {6: 6, 9: 9, 32: 16, 96: 16, 128: 16, 180: 18, 512: 16}),
        (8, {6: 6, 9: 9, 12: 6, 96: 8, 128: 8}),
        (16, {6: 3, 9: 3, 96: 4, 128: 4}),
        (80, {6: 1, 128: 1}),
    ],
)
def test_ranks_of_a_group_in_a_domain_are_the_most_that_divide_it(stride: int, inside: dict[int, int]) -> None:
    problem, chip = ideal(gpus=1152, node=4, scale_up={"domain_size": 72, "spans_nodes": True})
    found = collectives.ranks_inside(problem, chip, ints(*inside), ints(stride))
    assert found.tolist() == list(inside.values())


def test_256_ranks_ring_over_64_adapters_of_each_domain_of_72() -> None:
    problem, chip = ideal(gpus=512, node=4, scale_up={"domain_size": 72, "spans_nodes": True})
    found = collectives.collective_seconds(problem, chip, "all_gather", floats(1e9), ints(256), ints(2))
    assert found == pytest.approx(255 / 256 / 100)  # 32 adapters of 12.5 GB/s are more than the fabric's 100 GB/s


def test_small_payloads_pay_latency_and_half_the_bandwidth() -> None:
    latencies = {"collective_half_payload_mib": 8.0, "collective_latency_us": 20.0, "network_latency_us": 10.0}
    problem, chip = ideal(latencies, gpus=32, node=4)
    half = 8 * 2**20
    inside = collectives.collective_seconds(
        problem, chip, "all_reduce", floats(half, 10 * half), ints(4, 4), ints(1, 1)
    )
    assert inside == pytest.approx([20e-6 + 1.5 * 2 * half / 100e9, 20e-6 + 1.5 * 11 * half / 100e9])
    across = collectives.collective_seconds(problem, chip, "all_gather", floats(half), ints(16), ints(1))
    assert across == pytest.approx(10e-6 + 2 * 10e-6 + 15 / 16 * 2 * half / 50e9)


def test_mesh_gives_a_group_only_the_links_between_its_ranks() -> None:
    mesh = {"topology": "mesh", "peer_bandwidth_gb_s": 15.0}
    problem, chip = ideal(gpus=8, node=8, scale_up=mesh)
    sizes = ints(2, 4, 8)
    assert collectives.fabric_bandwidth(chip, sizes, sizes).tolist() == [15e9, 45e9, 100e9]
    switched = ideal(gpus=8, node=8)[1]
    assert collectives.fabric_bandwidth(switched, sizes, sizes).tolist() == [100e9] * 3
    near = comm.hop_seconds(problem, chip, floats(15e9), within_node=True)
    assert near == pytest.approx(1.0)


def test_hops_inside_a_node_and_between_nodes() -> None:
    problem, chip = ideal({"collective_latency_us": 20.0, "network_latency_us": 10.0})
    assert comm.hop_seconds(problem, chip, floats(1e9), True) == pytest.approx(0.01 + 20e-6)
    assert comm.hop_seconds(problem, chip, floats(1e9), False) == pytest.approx(0.08 + 10e-6)
    shard = Shard.of(4, 2, [False, True], True)
    assert comm.hop_bytes(problem, shard).tolist() == [2 * 2 * 1024 * 1024, 2 * 2 * 1024 * 1024 / 4]
    assert crosses_domain(ints(0, 2, 4), ints(3, 5, 7), 4).tolist() == [False, True, False]
    assert crosses_domain(ints(0), ints(5), 4).tolist() == [True]


def test_gradients_and_weights_over_data_parallel_ranks() -> None:
    problem, chip = ideal(gpus=32, node=4)
    for flags, reduced, gathered in (("f", 2 * 7 / 8 * 4, 0.0), ("fz", 7 / 8 * 4, 7 / 8 * 2)):
        rows = row("x:4", tp=4, dp=8, flags=flags)
        reduce, gather = comm.gradient_seconds(problem, chip, floats(1e9), rows, rows.replicas, rows.tp)
        assert reduce == pytest.approx(reduced / 12.5)
        assert gather == pytest.approx(gathered / 12.5)


@pytest.mark.parametrize(("vpp", "left"), [(1, 1 / 2), (2, 1 / 4)])
def test_gradients_of_all_chunks_but_one_hide_under_the_microbatches_of_another(vpp: int, left: float) -> None:
    """Half of a reduction fits under a layer's backward: of two chunks one has those of two microbatches to hide in."""
    rows = row("x:2,2", dp=8, vpp=vpp, batch=64, flags="f")
    bare, _ = ideal(gpus=16, node=4)
    table = time_table(bare, bare.supplies[0], rows)
    backward = table.layer - table.recompute
    hiding, _ = ideal(gpus=16, node=4, stack={"gradient_overlap": float((table.sync_layer / backward / 2).item())})
    assert time_table(hiding, hiding.supplies[0], rows).sync_layer == pytest.approx(left * table.sync_layer)


def test_tensor_parallel_traffic_is_the_same_with_sequence_parallelism() -> None:
    problem, chip = ideal()
    shard = Shard.of([1, 4, 4], 1, [False, False, True], True)
    inside = comm.layer_comm(problem, chip, shard, floats(0, 0, 0), DENSE, floats(0, 0, 0))
    payload = 2 * 1024 * 1024
    seconds = [0, *[2 * 2 * 3 / 4 * payload / 100e9] * 2]
    assert inside.forward == pytest.approx(seconds)
    assert inside.backward == pytest.approx(seconds)


def test_optimizer_moves_its_bytes() -> None:
    problem, chip = ideal()
    assert states.optimizer_seconds(problem, chip, floats(1e9)) == pytest.approx(34e9 / 1e12)
    plain, sharded = (time_table(problem, problem.supplies[0], row("x:4", dp=4, flags=f)) for f in ("f", "fz"))
    assert plain.update_layer == pytest.approx(4 * sharded.update_layer)


def test_model_flops_are_six_a_weight_and_token_besides_attention() -> None:
    problem = problem_of({"a800": 8}, "llama2-70b", gpus=8, node=8, batch=8, sequence=4096)
    tokens, model = 8 * 4096, problem.model
    attention = 6 * model.layers * 4096 * model.heads * model.head_dim * tokens
    found = model_flops_per_step(problem) - attention
    assert found == pytest.approx(6 * total_parameters(model) * tokens, rel=0.02)


def test_embedding_is_on_the_first_stage_and_logits_on_the_last() -> None:
    problem, chip = ideal(model=model_spec(vocab=12800))
    table = memory_table(problem, row())
    assert table.first_states == 12800 * 1024 * (6 + 12 / 4)
    assert table.last_states == (12800 * 1024 + 1024) * (6 + 12 / 4)
    logits = 10 * 1024 * 12800
    assert table.last_buffer == logits > table.buffer
    ends = compute.end_seconds(problem, chip, Shard.of(1, 1, False, True))
    assert ends.embedding == pytest.approx(4 * 2 * 1024 * 1024 / 1e12)
    assert ends.head > 6 * 1024 * 1024 * 12800 / 1e14


def test_fp8_keeps_copies_of_the_weights() -> None:
    rows = row("x:4", dp=4)
    bf16, fp8 = (ideal(stack={"fp8_weight_bytes": 2}, training={"precision": p})[0] for p in ("bf16", "fp8"))
    assert states.state_bytes(fp8, rows, rows.shards).weight == 2 + 2
    assert states.state_bytes(bf16, rows, rows.shards).weight == 2


def test_receive_buffers_of_all_microbatches_may_be_there_in_advance() -> None:
    """Both directions of 8 microbatches; a lone stage receives nothing."""
    lean, ample = (ideal(stack={"pipeline_buffers": count})[0] for count in (0, 1))
    for text, dp, bytes_of in (("x:2,2", 1, 2 * 8 * 2 * 1024 * 1024), ("x:4", 1, 0)):
        rows = row(text, dp=dp)
        assert memory_table(ample, rows).buffer - memory_table(lean, rows).buffer == bytes_of


def test_a_layer_at_work_holds_tokens_gathered_for_its_experts_and_their_sums() -> None:
    """Of four devices that hold half of 1,024 tokens each, or all of these with experts that nothing splits."""
    experts = model_spec(moe={"experts": 8, "top_k": 2, "expert_ffn": 512})
    sent, gathered = (problem_of(model=experts, training={"moe_dispatcher": way}) for way in ("alltoall", "allgather"))
    kind = LayerKind(True, True)
    for given, held in ((Shard.of(2, 1, True, True, ep=2, etp=2), 0.5), (Shard.of(1, 1, False, True, ep=4), 1.0)):
        lean, ample = (memory.layer_bytes(problem, given, kind) for problem in (sent, gathered))
        assert ample.buffer - lean.buffer == 2 * 4 * held * 1024 * 1024 * 2
        assert (ample.full, ample.freed.tolist()) == (lean.full, lean.freed.tolist())
    alone = Shard.of(2, 1, True, True)
    assert memory.layer_bytes(gathered, alone, kind).buffer == memory.layer_bytes(sent, alone, kind).buffer


def test_backward_of_a_layer_holds_gradients_of_its_widest_activations_and_of_its_weights() -> None:
    problem, _ = ideal()
    h, f, tokens = 1024, 2816, 1024
    flash, plain = (memory.layer_bytes(problem, Shard.of(1, 1, False, flag), DENSE).buffer for flag in (True, False))
    assert flash == 2 * (2 * 2 * f * tokens + 2 * h * tokens) + 2 * 3 * h * f
    assert plain - flash == 3 * 2 * 8 * 1024 * 1024  # three gradients of every head's scores
