"""The products of a layer, and what a device makes of them: tiles, alignment, fp8, windows, the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cpsolver.cost import compute, gemms
from cpsolver.cost.chip_speeds import ChipSpeeds
from cpsolver.cost.gemms import Gemm
from cpsolver.cost.kinds import LayerKind, layer_kinds
from cpsolver.cost.model_flops import model_flops_per_step
from cpsolver.cost.shard import Candidates, Floats, Shard
from cpsolver.cost.tables import TimeTable, time_table
from cpsolver.problem.problem import Problem
from models_zoo import Architecture, active_parameters, layer_parameters, load_architecture
from tests.support.problems import ideal, model_spec, strategy_of

DEEPSEEK = load_architecture("deepseek-v3")
ONE = Shard.of(1, 1, False, True)
DENSE, EXPERTS = LayerKind(False, True), LayerKind(True, True)
NEAR = LayerKind(False, False)
"""Of a layer whose attention sees a window only."""
FEW = {"experts": 8, "top_k": 2, "expert_ffn": 512}
"""A small mixture of experts."""


def floats(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


def weights(made_of: list[Gemm]) -> float:
    """Weights that a device holds."""
    return sum(float(np.sum(each.n * each.k * each.count)) for each in made_of)


def used(made_of: list[Gemm]) -> float:
    """Weights that one token meets."""
    return sum(float(np.sum(each.n * each.k * each.count * each.rows)) for each in made_of)


def seconds(problem: Problem, shard: Shard = ONE, kind: LayerKind | None = None) -> compute.LayerSeconds:
    """Of the model's most common kind of layer, or of another."""
    return compute.layer_seconds(problem, problem.supplies[0].chip, shard, kind or layer_kinds(problem.model)[0])


def table(problem: Problem, text: str = "x:4", **degrees: Any) -> TimeTable:
    return time_table(problem, problem.supplies[0], Candidates.one(strategy_of(text, **degrees), problem.batch))


def small(**changes: Any) -> Architecture:
    """The small model of four layers, whatever the search supports."""
    return Architecture.model_validate({"name": "small", **model_spec(**changes)})


def test_products_of_a_batch_share_the_devices_tiles() -> None:
    """On 300 units one product of 100 tiles, in 200 halves, leaves 100 units idle; a batch of three leaves none."""
    device = ChipSpeeds(*ideal(compute_units=300))
    one, three = (device.gemm(floats(1280), floats(2560), floats(12800), batch)[0] for batch in (1, 3))
    full = 2 * 1280 * 2560 * 12800 / 1e14 * 12928 / 12800
    assert one == pytest.approx(1.5 * full)
    assert three == pytest.approx(3 * full)


@pytest.mark.parametrize(("n", "k", "share"), [(2560, 1280, 1.0), (2559, 1280, 0.5), (2560, 1276, 0.5)])
def test_a_width_that_is_no_multiple_of_eight_slows_a_product(n: int, k: int, share: float) -> None:
    device = ChipSpeeds(*ideal(stack={"gemm_half_depth": 0}))
    tiled = 2 * 1280 * 2560 * k / 1e14
    assert device.gemm(floats(1280), floats(n), floats(k)) == pytest.approx(tiled / share)


def test_rows_need_no_alignment() -> None:
    device = ChipSpeeds(*ideal())
    even, odd = (device.gemm(floats(rows), floats(2560), floats(1280))[0] for rows in (1280, 1279))
    assert odd == pytest.approx(even)


def test_fp8_doubles_the_rate_of_layer_products_only() -> None:
    fp8, bf16 = (ChipSpeeds(*ideal(training={"precision": precision})) for precision in ("fp8", "bf16"))
    shape = (floats(1280), floats(2560), floats(12800))
    assert 2 * fp8.layer_gemm(*shape) == pytest.approx(bf16.layer_gemm(*shape))
    assert fp8.gemm(*shape) == bf16.gemm(*shape)


def test_fp8_leaves_attention_and_head_as_they_are() -> None:
    fp8, bf16 = (ideal(training={"precision": precision}) for precision in ("fp8", "bf16"))
    ends = [compute.end_seconds(*each, ONE) for each in (fp8, bf16)]
    assert (ends[0].embedding, ends[0].head) == (ends[1].embedding, ends[1].head)
    assert ends[0].module < ends[1].module  # its projection is a layer's product
    for flash in (True, False):
        shard = Shard.of(1, 1, False, flash)
        assert seconds(fp8[0], shard).core == seconds(bf16[0], shard).core
    assert seconds(fp8[0]).forward < seconds(bf16[0]).forward


def test_fp8_casts_each_operand_where_it_is_made() -> None:
    """The input forward, the result's gradient backward."""
    problem, chip = ideal(training={"precision": "fp8"}, stack={"fp8_cast_bytes": 4})
    device, tokens = ChipSpeeds(problem, chip), floats(1024)
    forward, backward = compute.together(
        compute._gemms(problem, device, [Gemm("any", floats(2560), floats(1280))], tokens)
    )
    plain = device.layer_gemm(tokens, floats(2560), floats(1280))
    both = device.layer_gemm(tokens, floats(1280), floats(2560))
    both = both + device.layer_gemm(floats(1280), floats(2560), tokens, summed=True)
    assert forward - plain == pytest.approx(4 * 1024 * 1280 / 1e12)
    assert backward - both == pytest.approx(4 * 1024 * 2560 / 1e12)


def test_beside_frozen_weights_fp8_casts_in_one_direction() -> None:
    frozen = {"precision": "fp8", "lora": {"rank": 16, "targets": "attention"}}
    problem, chip = ideal(training=frozen, stack={"fp8_cast_bytes": 4, "fp8_frozen_cast_share": 0.75})
    made_of = [Gemm("any", floats(2560), floats(1280))]
    *_, casts = compute._gemms(problem, ChipSpeeds(problem, chip), made_of, floats(1024))
    assert casts.name == "fp8 casts"
    assert [float(one[0]) for one in casts.passes] == pytest.approx([3 * 1024 * 1280 / 1e12, 3 * 1024 * 2560 / 1e12])


def test_summed_weight_gradients_are_read_and_written_in_fp32() -> None:
    device = ChipSpeeds(*ideal({"memory": 0.01}))
    plain, summed = (device.layer_gemm(floats(1024), floats(2048), floats(8), summed=add) for add in (False, True))
    assert summed - plain == pytest.approx(6 * 1024 * 2048 / 1e10)


def test_a_stack_without_a_fused_sum_runs_over_the_weights_once_more() -> None:
    fused, apart = (seconds(ideal(stack={"gradient_sum_bytes": count})[0]) for count in (0, 10))
    held = 4 * 1024 * 1024 + 3 * 1024 * 2816
    assert apart.backward - fused.backward == pytest.approx(10 * held / 1e12)
    assert apart.forward == fused.forward


@pytest.mark.parametrize(
    ("fusion", "one_kernel", "usual", "summed"),
    [
        (None, True, 0, {"others": 0, "experts": 0}),
        (None, True, 6, {"others": 6, "experts": 6}),
        ("none", True, 0, {"others": 10, "experts": 10}),
        ("none", True, 6, {"others": 6, "experts": 6}),
        ("dense", True, 0, {"others": 0, "experts": 10}),
        ("experts", True, 10, {"others": 10, "experts": 0}),
        ("experts", False, 10, {"others": 10, "experts": 10}),  # without a kernel for all they are as other products
        ("dense", False, 10, {"others": 0, "experts": 0}),
        ("all", True, 10, {"others": 0, "experts": 0}),
    ],
)
def test_products_that_add_gradients_up_leave_no_pass_over_the_weights(
    fusion: str | None, one_kernel: bool, usual: float, summed: dict[str, float]
) -> None:
    training = {"gradient_accumulation_fusion": fusion, "moe_grouped_gemm": one_kernel}
    model = small(moe=FEW)
    problem, chip = ideal(model=model, training=training, stack={"gradient_sum_bytes": usual})
    made_of = {
        "others": Gemm("any", floats(2560), floats(1280)),
        "experts": next(each for each in gemms.expert_gemms(model, ONE) if each.grouped),
    }
    for whose, gemm in made_of.items():
        found = compute._gemms(problem, ChipSpeeds(problem, chip), [gemm], floats(1024))
        sums = [float(each.passes[1].sum()) for each in found if each.name == "sums of gradients"]
        assert sum(sums) == pytest.approx(float((summed[whose] * gemm.count * gemm.n * gemm.k / 1e12).sum()))


def test_experts_products_run_at_the_speed_of_grouped_ones() -> None:
    """Router and attention do not."""
    model = small(moe=FEW)
    dense, slow = (ideal(model=model, stack={"grouped_gemm_speed": speed}) for speed in (1.0, 0.5))
    grouped = [each for each in gemms.expert_gemms(model, ONE) if each.grouped]
    assert used(grouped) == 2 * 3 * 1024 * 512
    forward, backward = compute.together(compute._gemms(dense[0], ChipSpeeds(*dense), grouped, floats(1024)))
    fast, late = seconds(dense[0]), seconds(slow[0])
    assert late.forward - fast.forward == pytest.approx(forward)
    assert late.backward - fast.backward == pytest.approx(backward)


def test_a_device_with_one_expert_has_a_dense_product() -> None:
    model, alone = small(moe=FEW), Shard.of(1, 1, False, True, ep=8)
    dense, slow = (ideal(model=model, stack={"grouped_gemm_speed": speed}) for speed in (1.0, 0.5))
    assert seconds(slow[0], alone) == seconds(dense[0], alone)
    assert seconds(slow[0], Shard.of(1, 1, False, True, ep=4)).forward > seconds(dense[0], alone).forward


def test_experts_one_after_another_have_dense_products() -> None:
    (grouped, _), (dense, _) = (
        ideal(model=small(moe=FEW), stack={"grouped_gemm_speed": speed}) for speed in (0.5, 1.0)
    )
    training = grouped.spec.training.model_copy(update={"moe_grouped_gemm": False})
    apart = replace(grouped, spec=grouped.spec.model_copy(update={"training": training}))
    assert seconds(grouped).forward > seconds(apart).forward
    assert seconds(apart) == seconds(dense)


def test_layer_products_are_the_layers_weights() -> None:
    problem, _ = ideal(model=model_spec(kv_heads=2))
    for tp in (1, 2):
        shard = Shard.of(tp, 1, False, True)
        h, f, kv = 1024, 2816, 2 * 128
        assert weights(gemms.attention_gemms(problem.model, shard)) == (2 * h * h + 2 * h * kv) / tp
        assert weights(gemms.feed_forward_gemms(problem.model, shard, f)) == 3 * h * f / tp


def test_a_key_value_head_is_never_split() -> None:
    problem, _ = ideal(model=model_spec(kv_heads=2))
    into, _ = gemms.attention_gemms(problem.model, Shard.of(4, 1, False, True))
    assert into.n == (8 / 4 + 2 * 1) * 128


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2-lite"])
def test_latent_attentions_products_are_its_weights(name: str) -> None:
    """With low-rank queries and without."""
    model = load_architecture(name)
    counted = layer_parameters(model)
    assert weights(gemms.attention_gemms(model, ONE)) == counted.attention_qkv + counted.attention_out


@pytest.mark.parametrize("index", [0, 3])
def test_deepseek_layers_are_their_products(index: int) -> None:
    """A dense layer and one with experts, all but the norms and the router's bias."""
    counted = layer_parameters(DEEPSEEK, index)
    made_of = gemms.attention_gemms(DEEPSEEK, ONE)
    if DEEPSEEK.has_experts(index):
        made_of += gemms.expert_gemms(DEEPSEEK, ONE)
    else:
        made_of += gemms.feed_forward_gemms(DEEPSEEK, ONE, DEEPSEEK.ffn)
    beside = counted.norms + counted.attention_norms + DEEPSEEK.has_experts(index) * 256
    assert weights(made_of) == counted.total - beside


@pytest.mark.parametrize("ep", [1, 2, 8])
@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2-lite", "mixtral-8x7b"])
def test_a_token_meets_its_own_experts_and_the_shared_ones(name: str, ep: int) -> None:
    model = load_architecture(name)
    counted = layer_parameters(model, model.layers - 1)
    assert model.moe is not None
    router = model.moe.experts * model.hidden
    found = gemms.expert_gemms(model, Shard.of(1, 1, False, True, ep=ep))
    assert used(found) == router + counted.active_experts + counted.shared_experts
    assert weights(found) == router + counted.experts / ep + counted.shared_experts


def test_experts_of_a_device_serve_the_tokens_of_all_its_peers() -> None:
    model = load_architecture("mixtral-8x7b")
    alone, spread = (gemms.expert_gemms(model, Shard.of(1, 1, False, True, ep=ep))[1] for ep in (1, 4))
    assert (alone.count, alone.rows) == (8, 2 / 8)
    assert (spread.count, spread.rows) == (2, 2 / 2)


def test_a_layers_time_is_the_mean_of_dense_layers_and_layers_with_experts() -> None:
    models = (small(moe=FEW), small(moe={**FEW, "first_dense": 1}), small())
    experts, mixed, dense = (table(ideal(model=model)[0]) for model in models)
    for part in ("layer", "recompute"):
        mean = 0.75 * getattr(experts, part) + 0.25 * getattr(dense, part)
        assert getattr(mixed, part) == pytest.approx(mean)
    assert mixed.kind_layer[:, 0] == pytest.approx([each.layer[0] - mixed.layer[0] for each in (experts, dense)])
    assert experts.kind_layer.tolist() == [[0.0]]


@pytest.mark.parametrize(("tp", "etp", "ep"), [(1, 1, 8), (4, 4, 1), (4, 1, 8), (4, 2, 2)])
def test_experts_of_any_grid_take_the_same_multiplications(tp: int, etp: int, ep: int) -> None:
    """A device holds 1 / (etp * ep) of all experts, and multiplies 1 / tp of what its tokens need."""
    model = small(moe=FEW)
    found = gemms.expert_gemms(model, Shard.of(tp, 1, True, True, ep=ep, etp=etp))
    grouped = [each for each in found if each.grouped]
    assert weights(grouped) == 8 * 3 * 1024 * 512 / (etp * ep)
    assert used(grouped) == 2 * 3 * 1024 * 512 / tp
    assert grouped[0].rows == pytest.approx(2 * ep * etp / tp / 8)


def test_the_most_loaded_experts_take_longer() -> None:
    """Twice the mean's tokens, or what the capacity factor lets through; router and attention are as ever."""
    model = small(moe=FEW)
    plain = ideal(model=model)[0]
    grouped = [each for each in gemms.expert_gemms(model, ONE) if each.grouped]
    for given, load in (({}, 2.0), ({"expert_capacity_factor": 1.25}, 1.25), ({"expert_capacity_factor": 8}, 2.0)):
        uneven, chip = ideal(model=model, training={"expert_imbalance": 2.0, **given})
        assert gemms.routed_load(uneven) == load
        loaded = [each for each in gemms.expert_gemms(model, ONE, load) if each.grouped]
        both = [
            compute.together(compute._gemms(uneven, ChipSpeeds(uneven, chip), made, floats(1024)))[0]
            for made in (grouped, loaded)
        ]
        silu = 2 * 3 * (load - 1) * 2 * 512 * 1024 / 1e12  # bytes of the activation of two experts a token
        assert seconds(uneven).forward - seconds(plain).forward == pytest.approx(both[1] - both[0] + silu)
        assert model_flops_per_step(uneven) == model_flops_per_step(plain)


def test_a_gate_on_attentions_output_is_one_more_projection() -> None:
    """As wide as the output, and passed over once more."""
    model = small(attention={"output_gate": True})
    plain = gemms.attention_gemms(small(), ONE)
    assert weights(gemms.attention_gemms(model, ONE)) - weights(plain) == 1024 * 8 * 128
    assert weights(gemms.attention_gemms(model, ONE)) == layer_parameters(model).attention
    gated, bare = (
        compute._outside_feed_forward(ideal(model=m)[0], ONE, floats(1024), DENSE)[1].elements for m in (model, small())
    )
    assert gated - bare == 3 * 8 * 128 * 1024


def test_head_widths_of_the_core() -> None:
    assert gemms.core_widths(DEEPSEEK) == (128 + 64, 128)
    assert gemms.core_widths(load_architecture("llama2-70b")) == (128, 128)


def test_the_core_of_latent_attention_takes_wide_keys_and_narrow_values() -> None:
    problem, _ = ideal(model=DEEPSEEK, sequence=1024)
    flops = 2 * 1024 * 1024 * (192 + 128) * 128
    assert seconds(problem).core == pytest.approx(flops / 2 / 0.5e14)


@pytest.mark.parametrize(
    ("window", "full", "share"),
    [(None, False, 0.5), (1024, False, 0.5), (4096, False, 0.5), (256, False, 0.25 * (1 - 0.125)), (256, True, 0.5)],
)
def test_share_of_pairs_that_attention_sees(window: int | None, full: bool, share: float) -> None:
    """Of 1024 x 1024 pairs; a token sees the window before it, the first ones what there is."""
    model = small(attention={"sliding_window": window})
    assert gemms.visible_share(model, 1024, 0.5, full) == pytest.approx(share)


def test_the_share_seen_is_that_of_a_mask_counted_pair_by_pair() -> None:
    behind = np.arange(1024)[:, None] - np.arange(1024)[None, :]
    counted = ((behind >= 0) & (behind < 256)).mean()
    model = small(attention={"sliding_window": 256})
    assert gemms.visible_share(model, 1024, 0.5, False) == pytest.approx(counted, rel=0.002)


def test_a_window_shortens_the_core_of_flash_attention() -> None:
    whole, near = (seconds(ideal(model=small(attention=given))[0]) for given in ({}, {"sliding_window": 256}))
    assert near.core == pytest.approx(whole.core * 0.25 * (1 - 0.125) / 0.5)
    mixed = ideal(model=small(attention={"sliding_window": 256, "full_every": 4}))[0]
    assert seconds(mixed, kind=NEAR).core == near.core
    assert table(mixed).modules[0] == pytest.approx(0.75 * near.core + 0.25 * whole.core)


def test_attention_speed_is_of_fused_kernels() -> None:
    slow, fast = (ideal(stack={"attention_speed": speed})[0] for speed in (0.5, 1.0))
    assert seconds(slow).core == pytest.approx(2 * seconds(fast).core)
    plain = Shard.of(1, 1, False, False)
    assert seconds(slow, plain).core == seconds(fast, plain).core


def test_score_traffic_is_of_unfused_attention() -> None:
    plain = Shard.of(1, 1, False, False)
    once, twice = (seconds(ideal(stack={"score_traffic": times})[0], plain) for times in (1, 2))
    assert twice.core - once.core == pytest.approx(2 * 2 * 8 * 1024 * 1024 / 1e12)


@pytest.mark.parametrize(
    ("constant", "each"),
    [("norm_traffic", 2 * 2 * 1024 + 2 * 3 * 1024), ("elementwise_traffic", 2 * (8 + 8) * 128 + 3 * 2816)],
)
def test_traffic_scales_what_is_no_product(constant: str, each: int) -> None:
    once, twice = (seconds(ideal(stack={constant: times})[0]) for times in (1, 2))
    elements = each * 1024
    assert twice.forward - once.forward == pytest.approx(2 * elements / 1e12)
    assert twice.backward - once.backward == pytest.approx(2 * 2 * elements / 1e12)


def test_backward_moves_tokens_between_experts_as_often_as_forward() -> None:
    """Of 1024 tokens to two experts each: each is read once and written twice, both copies are sorted, and back."""
    problem, chip = ideal(model=small(moe=FEW), stack={"elementwise_traffic": 3.0})
    found = {each.name: each.passes for each in compute.layer_operators(problem, chip, ONE, EXPERTS)}
    forward, backward = found["permutation"]
    assert forward == pytest.approx(2 * (2 * (1 + 2) + 2 * 4) * 1024 * 1024 / 1e12)
    assert backward == forward
    active, again = found["activation function"]
    assert again == 2 * active == pytest.approx(2 * 3 * 2 * 3 * 2 * 512 * 1024 / 1e12)


def test_a_pass_over_a_layer_takes_no_less_than_the_host_needs_to_launch_it() -> None:
    free = table(ideal()[0])
    backward = float(free.layer[0] - free.recompute[0])
    host = 0.5 * (float(free.recompute[0]) + backward)  # more than a forward pass, less than a backward one
    some, all_bound = (table(ideal(stack={"host_layer_us": 1e6 * time})[0]) for time in (host, 0.1))
    assert some.recompute == pytest.approx(host)
    assert some.layer == pytest.approx(host + backward)
    assert all_bound.layer == pytest.approx(0.2)


def test_the_host_works_for_each_chunk_and_for_each_step() -> None:
    found = table(ideal(stack={"microbatch_overhead_us": 70, "step_overhead_ms": 3})[0], "x:2,2", dp=2, vpp=2)
    assert found.chunk == pytest.approx(70e-6)
    assert found.update_stage == pytest.approx(3e-3)


@pytest.mark.parametrize(
    ("scope", "vpp", "us"), [("none", 2, 70 + 16), ("te", 2, 70 + 8), ("full", 2, 0), ("none", 1, 70)]
)
def test_overlapped_chunks_of_experts_cost_the_host_more_unless_graphs_replay_them(
    scope: str, vpp: int, us: float
) -> None:
    stack = {"microbatch_overhead_us": 70, "host_expert_chunk_us": 8}
    given = ideal(
        model=small(moe={"experts": 4, "top_k": 2, "expert_ffn": 512}), stack=stack, training={"cuda_graph": scope}
    )
    assert table(given[0], "x:2,2", dp=2, vpp=vpp, expert_overlap=True).chunk == pytest.approx(1e-6 * us)
    assert table(given[0], "x:2,2", dp=2, vpp=vpp).chunk == pytest.approx(0 if scope == "full" else 70e-6)


def test_a_hopper_chip_runs_older_attention_kernels_below_its_own_rate() -> None:
    problem, chip = ideal(stack={"hopper_attention_speed": 0.5})
    chips = [chip.model_copy(update={"architecture": each}) for each in ("ampere", "hopper")]
    ampere, hopper = (compute.layer_seconds(problem, each, ONE, layer_kinds(problem.model)[0]) for each in chips)
    assert hopper.core == pytest.approx(2 * ampere.core)


@pytest.mark.parametrize(("gpus", "slowdown"), [(2, 1.0), (4, 1.0), (8, 1.1), (32, 1.3)])
def test_compute_slows_each_time_the_nodes_double(gpus: int, slowdown: float) -> None:
    lone, _ = ideal(gpus=4, node=4)
    many, _ = ideal(gpus=gpus, node=4 if gpus >= 4 else 2, stack={"straggling": 0.1})
    for part in ("forward", "backward", "core"):
        assert getattr(seconds(many), part) == pytest.approx(slowdown * getattr(seconds(lone), part), rel=1e-6)


def test_model_flops_count_the_experts_that_a_token_visits() -> None:
    problem, _ = ideal(model=DEEPSEEK.model_copy(update={"mtp_layers": 0}), gpus=4, batch=8, sequence=1024)
    tokens = 8 * 1024
    core = 6 * 61 * 1024 / 2 * 128 * (192 + 128) * tokens
    per_token = active_parameters(DEEPSEEK) - DEEPSEEK.vocab * DEEPSEEK.hidden  # the embedding is looked up
    assert model_flops_per_step(problem) - core == pytest.approx(6 * per_token * tokens, rel=1e-3)


def test_model_flops_count_multi_token_prediction_as_megatron_does() -> None:
    """A layer more like the last, 2 h h weights, and the head once more."""
    plain, more = (model_flops_per_step(ideal(model=small(mtp_layers=count))[0]) for count in (0, 2))
    layer = (plain / (6 * 8 * 1024) - 1024 * 4000) / 4
    assert more - plain == pytest.approx(6 * 8 * 1024 * 2 * (layer + 2 * 1024**2 + 1024 * 4000))


def test_a_module_of_multi_token_prediction_takes_a_layer_a_projection_and_a_head() -> None:
    """On the last stage: norms and embeddings too, forward and backward."""
    plain, more = (table(ideal(model=small(mtp_layers=count))[0]) for count in (0, 1))
    problem, chip = ideal()
    join = compute.together(
        compute._gemms(problem, ChipSpeeds(problem, chip), [Gemm("any", floats(1024), floats(2048))], floats(1024))
    )
    ends = compute.end_seconds(problem, chip, ONE)
    norms = 2 * 6 * 2 * 1024 * 1024 / 1e12  # one more than the two of the module stands in the head
    added = plain.layer + sum(join) + norms + ends.head + ends.embedding
    assert more.head - plain.head == pytest.approx(added)
    assert more.layer == plain.layer
    assert more.mtp_tp == plain.mtp_tp == 0


def test_ranks_of_a_module_exchange_as_a_layer_and_five_times_the_hidden_states() -> None:
    found = table(ideal(model=small(mtp_layers=2))[0], tp=4, dp=1)
    assert found.mtp_tp == pytest.approx(2 * (found.layer_tp + 5 * found.end_tp))


def test_model_flops_are_the_same_in_any_precision() -> None:
    flops = {model_flops_per_step(ideal(training={"precision": p})[0]) for p in ("bf16", "fp8")}
    assert len(flops) == 1
