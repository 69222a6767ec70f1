"""Techniques that save memory or time: each formula by hand, and what frameworks published of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from cpsolver.cost import comm, compute, gemms, memory, states
from cpsolver.cost.activation_switches import (
    offload_seconds,
    offloaded,
    recomputed_functions,
    recomputed_projections,
)
from cpsolver.cost.kinds import LayerKind
from cpsolver.cost.layers import Layers
from cpsolver.cost.shard import Candidates, Shard
from cpsolver.cost.tables import MemoryTable, memory_table, time_table
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import CORE, MODULES, Strategy
from cpsolver.problem.problem import Problem, Supply
from cpsolver.problem.resolve import resolve
from cpsolver.profiles.stack import load_stack, stack_names
from cpsolver.profiles.switches import OptimizerName
from cpsolver.profiles.techniques import Figures, techniques
from cpsolver.rules import RULES, violations
from cpsolver.spec.spec import parse_spec
from cpsolver.spec.training import Training
from hw_specs.schema import HostLink
from tests.support.problems import ideal, model_spec, spec_of, strategy_of
from tests.support.special_models import LATENT

DENSE = LayerKind(False, True)
PLAIN, SHARED = strategy_of(dp=4, flags="f"), strategy_of(dp=4, flags="fz")
HALVES = {"gradient_bytes": 2, "optimizer_bytes": 16, "gradient_reduce_bytes": 2}
"""A stack for fp16, with 16-bit gradients and their fp32 copy: 20 bytes a parameter."""


def of(
    training: dict[str, Any], model: dict[str, Any] | None = None, stack: Any = None, sequence: int = 1024
) -> Problem:
    """A problem with those switches, on a chip that reaches 10 GB/s to its host."""
    problem, chip = ideal({"host_link": 1.0}, model=model, stack=stack, sequence=sequence)
    chip = chip.model_copy(update={"host_link": HostLink(pcie_generation=3, bandwidth_gb_s=10)})
    switches = Training.model_validate({**problem.spec.training.model_dump(), **training})
    spec = problem.spec.model_copy(update={"training": switches})
    return replace(problem, spec=spec, supplies=(Supply(chip, problem.num_gpus),))


def each(problem: Problem, strategy: Any = SHARED) -> float:
    row = Candidates.one(strategy, problem.batch)
    return float(states.state_bytes(problem, row, row.shards).each.item())


def row_of(problem: Problem, **degrees: Any) -> Candidates:
    return Candidates.one(strategy_of(**degrees), problem.batch)


def test_every_number_has_a_source_and_every_optimizer_its_name() -> None:
    assert set(get_args(OptimizerName)) == set(techniques().optimizers)
    entries = [
        *techniques().optimizers.values(),
        *(getattr(techniques().constants, name) for name in Figures.model_fields),
    ]
    assert all(len(entry.source) > 30 for entry in entries)
    with pytest.raises(AttributeError):
        _ = techniques().no_such_figure


@pytest.mark.parametrize("name", stack_names())
def test_without_switches_a_stack_is_as_its_profile_says(name: str) -> None:
    from cpsolver.profiles.stack import load_stack

    stack = load_stack(name)
    held = states.held(replace(ideal()[0], stack=stack))
    told = (stack.parameter_bytes, stack.gradient_bytes, stack.optimizer_bytes, stack.gradient_reduce_bytes)
    assert (held.weight, held.gradient, held.optimizer, held.reduce) == told
    assert (held.gather, held.step, held.moved) == (stack.parameter_gather_bytes, stack.optimizer_step_bytes, 0)


@pytest.mark.parametrize(
    ("training", "plain", "shared"),
    [
        ({}, 18, 6 + 12 / 4),
        ({"optimizer": "precision_aware"}, 16, 6 + 10 / 4),
        ({"optimizer": "precision_aware_bf16"}, 12, 6 + 6 / 4),
        ({"optimizer": "precision_aware_bf16_grads"}, 10, 4 + 6 / 4),
        ({"optimizer": "precision_aware_fp8"}, 8, 4 + 4 / 4),
        ({"optimizer": "quantized_states"}, 12, 6 + 6 / 4),
        ({"optimizer": "quantized_states", "reuse_fp32_parameters": True}, 10, 6 + 4 / 4),
        ({"optimizer": "ema_adamw"}, 22, 6 + 16 / 4),
        ({"optimizer": "o2_adamw"}, 14, 6 + 8 / 4),
        ({"optimizer": "lion"}, 14, 6 + 8 / 4),
        ({"reuse_fp32_parameters": True}, 16, 6 + 10 / 4),
        ({"optimizer_offload": 0.25}, 15, 6 + 9 / 4),
        ({"optimizer_offload": 1.0}, 6, 6),
        ({"swap_optimizer": True}, 6 + 12 / 16, 6 + 12 / 16 / 4),
        ({"precision": "fp8"}, 20, 8 + 12 / 4),
        ({"precision": "fp8", "fp8_parameter_gather": True}, 18, 6 + 12 / 4),
        ({"precision": "fp8", "optimizer": "precision_aware"}, 20, 8 + 12 / 4),
    ],
    ids=str,
)
def test_bytes_of_state(training: dict[str, Any], plain: float, shared: float) -> None:
    problem = of(training)
    assert (each(problem, PLAIN), each(problem)) == (plain, shared)


@pytest.mark.parametrize(
    ("training", "plain", "shared"),
    [
        ({}, 20, 4 + 16 / 4),
        ({"release_fp32_gradients": True}, 16, 4 + 12 / 4),
        ({"optimizer": "cadam"}, 14, 4 + 10 / 4),
        ({"optimizer": "cadam", "release_fp32_gradients": True}, 10, 4 + 6 / 4),
        ({"optimizer": "precision_aware"}, 20, 4 + 16 / 4),
    ],
    ids=str,
)
def test_bytes_of_state_in_fp16(training: dict[str, Any], plain: float, shared: float) -> None:
    problem = of({"precision": "fp16", **training}, stack=HALVES)
    assert (each(problem, PLAIN), each(problem)) == (plain, shared)


@pytest.mark.parametrize(
    ("stack", "precision", "gradient"),
    [
        ("megatron-core", "bf16", 4),
        ("megatron-core", "fp16", 2),
        ("fsdp-composer", "fp16", 4),
        ("mindformers", "fp16", 4),
        ("mindformers-half", "bf16", 2),
    ],
)
def test_gradients_of_fp16_training_have_16_bits_in_megatron(stack: str, precision: str, gradient: float) -> None:
    held = states.held(replace(of({"precision": precision}), stack=load_stack(stack)))
    assert (held.gradient, held.reduce) == (gradient, gradient)


def test_fp32_gradients_have_no_copy_to_release() -> None:
    assert each(of({"precision": "fp16", "release_fp32_gradients": True})) == each(of({"precision": "fp16"}))


def test_16_bit_gradients_are_reduced_as_such() -> None:
    problem, half = of({}), of({"optimizer": "precision_aware_bf16_grads"})
    row, count = row_of(problem), np.array([1e9])
    whole, fewer = (
        comm.gradient_seconds(p, p.supplies[0].chip, count, row, row.replicas, row.tp)[0] for p in (problem, half)
    )
    assert fewer == pytest.approx(whole / 2, rel=1e-3)


def seconds(training: dict[str, Any], parameters: float = 1e9, **given: Any) -> float:
    problem = of(training, **given)
    return float(states.optimizer_seconds(problem, problem.supplies[0].chip, np.array([parameters])).item())


def test_a_step_s_traffic() -> None:
    assert seconds({}) == pytest.approx(34e9 / 1e12)
    # The remainder takes 4 bytes of traffic less than the master, and the weight 2 more.
    assert seconds({"optimizer": "precision_aware"}) == pytest.approx(32e9 / 1e12)
    assert seconds({"optimizer": "precision_aware_bf16_grads"}) == pytest.approx((32 - 8 - 4) * 1e9 / 1e12)
    assert seconds({"optimizer": "lion"}) == pytest.approx(26e9 / 1e12)
    assert seconds({"reuse_fp32_parameters": True}) == pytest.approx((32 + 24) * 1e9 / 1e12)


def test_states_on_the_host_cost_trips_and_the_host_s_work() -> None:
    assert seconds({"swap_optimizer": True}) == pytest.approx(34e9 / 1e12 + 2 * 12e9 / 1e10)
    host = 2.35 * 4 / 8  # four ranks share the host instead of eight
    assert seconds({"optimizer_offload": 1.0}) == pytest.approx(8e9 / 1e10 + host)
    assert seconds({"optimizer_offload": 0.25}) == pytest.approx(0.75 * 0.034 + 0.25 * (0.8 + host))


@pytest.mark.parametrize(("share", "measured_s"), [(0.25, 0.875), (0.5, 1.488), (0.75, 2.191), (1.0, 3.193)])
def test_offload_on_h100_takes_what_was_measured(share: float, measured_s: float) -> None:
    """Seconds more in a step of Qwen3-30B-A3B on 16 H100: skills/nemo-mbridge-perf-cpu-offloading/card.yaml."""
    spec = {**spec_of(chips={"h100": 16}, gpus=16, node=8), "training": training_of(optimizer_offload=share)}
    spec["cluster"]["chips"] = {"h100": 16}
    on, off = (resolve(parse_spec({**spec, "training": training_of(optimizer_offload=x)})) for x in (share, 0.0))
    count = np.array([15.3e9 / 12])
    more = states.optimizer_seconds(on, on.supplies[0].chip, count) - states.optimizer_seconds(
        off, off.supplies[0].chip, count
    )
    assert more.item() == pytest.approx(measured_s, rel=0.12)


def training_of(**switches: Any) -> dict[str, Any]:
    return {"global_batch_size": 64, "sequence_length": 2048, **switches}


def core(table: MemoryTable) -> float:
    """Bytes that a layer keeps without attention's core."""
    return float(table.stored((CORE,), np.array([0])).most[0, 0])


def test_offloaded_inputs_leave_the_device() -> None:
    modules = ["attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm"]
    problem = of({"activation_offload": modules}, model_spec(kv_heads=2))
    shard = Shard.of(2, 1, True, True)
    # Per token: three times the hidden state over tp; queries, keys, values (h + 2 * 2 heads of 128) and output (h).
    elements = 3 * 1024 / 2 + (1024 + 2 * 2 * 128) / 2 + 1024 / 2
    assert offloaded(problem, shard, DENSE)[0].item() == 2 * 1024 * elements
    swapped = of({"activation_offload": "attention"}, model_spec(kv_heads=2))
    less = 2 * 1024 * 2 * 1024 / 2  # the inputs of both norms stay
    away = offloaded(swapped, shard, DENSE)[0].item()
    assert away == 2 * 1024 * elements - less
    none = memory_table(of({}, model_spec(kv_heads=2)), row_of(problem, tp=2, dp=2, flags="sfz"))
    some = memory_table(swapped, row_of(problem, tp=2, dp=2, flags="sfz"))
    assert (none.full - some.full).item() == (core(none) - core(some)) == away
    assert (some.buffer - none.buffer).item() == 2 * away


def test_trips_to_the_host_cost_what_sticks_out_of_the_layer() -> None:
    problem, plain = of({"activation_offload": ["attention"]}), of({})
    chip, shard = problem.supplies[0].chip, Shard.of(1, 1, False, True)
    away = offloaded(problem, shard, DENSE)[0].item()
    passes = np.array([0.25 * away / 1e10]), np.array([2 * away / 1e10])
    assert offload_seconds(problem, chip, shard, DENSE, passes).item() == pytest.approx(0.75 * away / 1e10)
    assert offload_seconds(plain, chip, shard, DENSE, passes).item() == 0
    row = row_of(problem)
    with_trips, without = (time_table(p, p.supplies[0], row) for p in (problem, plain))
    forward, backward = without.recompute.item(), (without.layer - without.recompute).item()
    more = max(0.0, away / 1e10 - forward) + max(0.0, away / 1e10 - backward)
    assert (with_trips.layer - without.layer).item() == pytest.approx(more)
    assert more > 0


def test_whole_layers_wait_on_the_host() -> None:
    plain, away = of({}), of({"offload_layers": 3})  # of four layers
    row = row_of(plain, tp=2, dp=2, flags="sfz")
    none, some = memory_table(plain, row), memory_table(away, row)
    assert some.full.item() == pytest.approx(none.full.item() / 4)
    assert (some.buffer - none.buffer).item() == pytest.approx(none.full.item())  # one layer's on their way
    times, before = (time_table(problem, problem.supplies[0], row) for problem in (away, plain))
    trip = 0.75 * none.full.item() / 1e10  # three layers' tensors spread over the passes of four
    forward, backward = before.recompute.item(), (before.layer - before.recompute).item()
    more = max(0.0, trip - forward) + max(0.0, trip - backward)
    assert more > 0
    assert (times.layer - before.layer).item() == pytest.approx(more)


@pytest.mark.parametrize(("stack", "usual"), [("megatron-core", 0.08), ("megatron-bridge", 0.02)])
def test_segments_that_grow_in_place_lose_less(stack: str, usual: float) -> None:
    for said, lost in ((None, usual), (True, 0.02), (False, 0.08)):
        problem = resolve(parse_spec(spec_of(training={"expandable_segments": said}, stack=stack)))
        assert memory_table(problem, row_of(problem)).overhead == lost


def test_activation_functions_made_again_keep_no_results() -> None:
    plain, again = of({}), of({"recompute_activation_function": True})
    row = row_of(plain, tp=2, dp=2, flags="sfz")
    none, some = memory_table(plain, row), memory_table(again, row)
    results = 2 * row.shard.tokens(plain.sequence).item() * plain.model.ffn / 2
    assert (none.full - some.full).item() == pytest.approx(results)
    assert (some.buffer - none.buffer).item() == pytest.approx(2 * results)
    assert (none.freed - some.freed)[0, MODULES.index("mlp"), 0] == pytest.approx(results)
    before, after = (time_table(problem, problem.supplies[0], row) for problem in (plain, again))
    more = (after.layer - before.layer).item()
    traffic = 3 * results / (1e12 * plain.supplies[0].chip.efficiency["memory"].value)
    assert more == pytest.approx(traffic, rel=0.2)
    assert (before.recompute - after.recompute).item() == pytest.approx(more)


@pytest.mark.parametrize(
    ("sequence", "mbs", "tp", "gib"),
    [(12288, 2, 4, 8.05), (8096, 2, 4, 5.31), (12288, 1, 4, 4.04), (12288, 2, 8, 4.02)],
)
def test_that_is_half_of_what_mindspeed_measured_without_a_fused_kernel(
    sequence: int, mbs: int, tp: int, gib: float
) -> None:
    """LLaMA2-7B, docs/zh/features/activation-function-recompute.md: there SwiGLU keeps its left factor besides."""
    problem = of({"recompute_activation_function": True}, model_spec(hidden=4096, ffn=11008), sequence=sequence)
    saved, _ = recomputed_functions(problem, Shard.of(tp, mbs, True, True), DENSE)
    assert 2 * 32 * saved.item() / 2**30 == pytest.approx(gib, rel=0.005)


def test_activation_functions_of_experts_are_made_again_too() -> None:
    moe = {"experts": 8, "expert_ffn": 256, "top_k": 2, "shared_experts": 1}
    plain, again = (of(on, model=model_spec(moe=moe)) for on in ({}, {"recompute_activation_function": True}))
    row = row_of(plain, tp=2, dp=2, flags="sfz")
    none, some = memory_table(plain, row), memory_table(again, row)
    results = row.shard.tokens(plain.sequence).item() * 256  # 2 bytes, tp 2
    assert (none.full - some.full).item() == pytest.approx((2 + 1) * results)
    freed = (none.freed - some.freed)[0, :, 0]
    wanted = {"moe": 3 * results, "moe_act": 2 * results, "shared_experts": results}
    assert dict(zip(MODULES, freed.tolist(), strict=True)) == pytest.approx(
        {name: wanted.get(name, 0) for name in MODULES}
    )


def test_projections_made_again_keep_no_queries_keys_and_values() -> None:
    """8 heads on two ranks: queries and keys 96 wide, values 64; and both low ranks' norms, whole on each."""
    model = model_spec(attention=LATENT)
    plain, again = (of({"recompute_mla_up_proj": on}, model=model) for on in (False, True))
    row = row_of(plain, tp=2, dp=2, flags="sfz")
    none, some = memory_table(plain, row), memory_table(again, row)
    kept = 2 * row.shard.tokens(plain.sequence).item() * (4 * (2 * 96 + 64) + 128 + 128)
    assert (none.full - some.full).item() == pytest.approx(kept)
    assert (some.buffer - none.buffer).item() == pytest.approx(2 * kept)
    assert (none.freed - some.freed)[0, MODULES.index("mla_up_proj"), 0] == pytest.approx(kept)
    before, after = (time_table(problem, problem.supplies[0], row) for problem in (plain, again))
    chip, kind = plain.supplies[0].chip, DENSE
    module = Layers.of(plain, chip, row.shard).modules(plain, chip, row.shard)[0, MODULES.index("mla_up_proj"), 0]
    assert (after.layer - before.layer).item() == pytest.approx(module)
    assert (before.recompute - after.recompute).item() == pytest.approx(module)
    unfused = Shard.of(1, 1, False, False)
    assert recomputed_projections(again, unfused, kind)[0].item() == 0


@pytest.mark.parametrize("attention", [{}, {**LATENT, "indexer": {"heads": 4, "dim": 64, "topk": 64}}])
def test_projections_are_made_again_where_a_core_takes_them(attention: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"recompute_mla_up_proj = true: .* no latent attention whose core"):
        resolve(parse_spec(spec_of(model=model_spec(attention=attention), training={"recompute_mla_up_proj": True})))


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        (strategy_of(tp=2, dp=2, flags="fz"), "sequence_parallel"),
        (strategy_of("x:2,2", dp=2, vpp=2, schedule="zbv", flags="fz"), "schedule"),
        (strategy_of("x:4", recompute="uniform", amount=1, flags="fz"), "recompute"),
    ],
)
def test_projections_run_again_beside_what_mindspeed_takes(plan: Strategy, rule: str) -> None:
    on, off = (of({"recompute_mla_up_proj": each}, model=model_spec(attention=LATENT)) for each in (True, False))
    told = [found.message for found in violations(on, plan) if found.rule == rule]
    assert [message for message in told if "recompute_mla_up_proj" in message]
    assert not [found for found in violations(off, plan) if "recompute_mla_up_proj" in found.message]


@pytest.mark.parametrize(("level", "more"), [("level0", 0), ("level1", 2 * 512 + 3 * 256)])
def test_experts_that_keep_little_send_their_inputs_again(level: str, more: int) -> None:
    """tp 2, ep 2 and etp 1: of T tokens' two copies, 1,024 wide, a device has half, and its experts 256 wide results
    of half of T tokens; level1 keeps neither gate and up projection nor what a shared expert keeps."""
    moe = {"experts": 8, "expert_ffn": 256, "top_k": 2, "shared_experts": 1}
    plain, again = (of(on, model=model_spec(moe=moe)) for on in ({}, {"moe_zero_memory": level}))
    row = row_of(plain, tp=2, dp=2, ep=2, flags="sfz")
    none, some = memory_table(plain, row), memory_table(again, row)
    tokens, copies = row.shard.tokens(plain.sequence).item(), 2 * plain.model.hidden
    results = plain.stack.kept_expert_outputs * copies
    kept_less = tokens * (copies + results + 2 * 256 + more)  # 2 bytes an element, tp 2
    assert (none.full - some.full).item() == pytest.approx(kept_less)
    held = tokens * (3 * copies + 2 * (2 * 256 + more))
    assert (some.buffer - none.buffer).item() == pytest.approx(held)
    before, after = (time_table(problem, problem.supplies[0], row) for problem in (plain, again))
    assert (after.layer - before.layer).item() > 0
    assert (after.recompute - before.recompute).item() == 0


def test_activations_of_experts_are_dropped_once() -> None:
    moe = {"experts": 8, "expert_ffn": 256, "top_k": 2}
    switches: list[dict[str, Any]] = [{"recompute_activation_function": True}, {"moe_zero_memory": "level0"}]
    one, other, both = (of(on, model=model_spec(moe=moe)) for on in (*switches, switches[0] | switches[1]))
    row = row_of(one, tp=2, dp=2, ep=2, flags="sfz")
    kept = memory_table(other, row).full.item()
    assert memory_table(both, row).full.item() == pytest.approx(kept)
    assert kept < memory_table(one, row).full.item()


@pytest.mark.parametrize(
    ("sequence", "share", "blocks"),
    [(2048, 0.625, 4), (4096, 0.5625, 8), (512, 1, 1), (100, 1, 1), (1024 + 256, 0.68, 3)],
)
def test_triangle_attention_leaves_masked_blocks_out(sequence: int, share: float, blocks: int) -> None:
    problem = of({"triangle_attention": True}, sequence=sequence)
    assert gemms.unmasked_blocks(problem) == (pytest.approx(share), blocks)
    assert gemms.unmasked_blocks(of({}, sequence=sequence)) == (1, 1)


def test_triangle_attention_saves_work_and_memory_without_flash_only() -> None:
    whole, triangle = (of({"triangle_attention": on}, sequence=4096) for on in (False, True))
    shard = Shard.of(1, 1, False, [False, True])
    before, after = (memory.layer_bytes(p, shard, DENSE).full for p in (whole, triangle))
    copies = 2 * 2 * (8 + 1) / 2 * 4096 * 1024  # keys and values of 4.5 times the sequence, 16 bits each
    assert before[0] - after[0] == pytest.approx((1 - 0.5625) * 2 * 8 * 4096**2 - copies)
    assert before[1] == after[1]
    chip = whole.supplies[0].chip
    slow, fast = (compute.layer_seconds(p, chip, shard, DENSE).core for p in (whole, triangle))
    assert 0.5625 < fast[0] / slow[0] < 0.75
    assert slow[1] == fast[1]


def test_gate_and_up_apart_are_two_products_and_one_exchange_more() -> None:
    shard = Shard.of(2, 1, [False, True], True)
    one, two = (gemms.feed_forward_gemms(ideal()[0].model, shard, 2816, fused) for fused in (True, False))
    assert [float(p.n[0]) for p in one] == [2816, 1024]
    assert [float(p.n[0]) for p in two] == [1408, 1408, 1024]
    whole, apart = (of({"fused_gate_up": fused}) for fused in (True, False))
    chip = whole.supplies[0].chip
    exchange = comm.end_comm(whole, chip, shard)
    core = np.zeros(2)
    before, after = (comm.layer_comm(p, chip, shard, core, DENSE, core) for p in (whole, apart))
    assert after.forward - before.forward == pytest.approx(np.array([0, exchange[1] / 2]))
    assert after.backward - before.backward == pytest.approx(exchange)
    slow, fast = (compute.layer_seconds(p, chip, shard, DENSE).forward for p in (apart, whole))
    assert (slow > fast).all()  # a launch more at least


def test_8_bit_inputs_of_products() -> None:
    """Per dense layer and token: 2h + 1h + 2 (2a + 2g) d + 2h + 1h + 2 * 2f + 1f bytes."""
    fp8 = {"precision": "fp8", "fp8_activations": True}
    h, f = 1024, 2816
    table = memory_table(of(fp8), row_of(of(fp8)))
    stats = 4 * 8  # of the flash kernel, for each head
    assert table.full.item() == pytest.approx(1024 * (3 * h + 2 * 4 * h + 3 * h + 5 * f + stats))
    assert core(table) == table.full.item()


@pytest.mark.parametrize(
    ("stack", "given", "narrow", "gathered"),
    [
        ("megatron-core", {}, True, False),
        ("megatron-bridge", {}, True, True),
        ("fsdp-torchtitan", {}, False, False),
        ("megatron-core", {"fp8_activations": False, "fp8_parameter_gather": True}, False, True),
        ("megatron-bridge", {"fp8_parameter_gather": False}, True, False),
    ],
)
def test_what_the_spec_leaves_open_in_fp8_is_as_the_stack_does(
    stack: str, given: dict[str, bool], narrow: bool, gathered: bool
) -> None:
    fp8, bf16 = (of({"precision": precision, **more}) for precision, more in (("fp8", given), ("bf16", {})))
    fp8, bf16 = (replace(problem, stack=load_stack(stack)) for problem in (fp8, bf16))
    assert (fp8.narrow_activations, fp8.narrow_weights) == (narrow, gathered)
    assert (bf16.narrow_activations, bf16.narrow_weights) == (False, False)
    wide = memory_table(replace(fp8, stack=load_stack("fsdp-torchtitan")), row_of(fp8)).full.item()
    assert (memory_table(fp8, row_of(fp8)).full.item() < wide) == narrow


def test_weights_that_the_stack_gathers_in_8_bits_need_the_distributed_optimizer() -> None:
    problem = replace(of({"precision": "fp8"}), stack=load_stack("megatron-bridge"))
    told = [str(message) for message in RULES["optimizer"](problem, PLAIN)]
    assert told == ["fp8_parameter_gather of stack megatron-bridge needs the distributed optimizer"]
    assert not [*RULES["optimizer"](problem, SHARED)]


def test_8_bit_weights_are_gathered_in_one_byte() -> None:
    count, row = np.array([1e9]), row_of(of({}))
    fp8 = {"precision": "fp8"}
    two, one = (of({**fp8, "fp8_parameter_gather": on}) for on in (False, True))
    both = [comm.gradient_seconds(p, p.supplies[0].chip, count, row, row.replicas, row.tp)[1] for p in (two, one)]
    assert both[1] == pytest.approx(both[0] / 2, rel=1e-3)


BLOOM = {"gated_mlp": False, "norm": "layernorm", "position": "alibi", "tied_embeddings": True}
PUBLISHED = {
    "7b": model_spec(layers=32, hidden=4096, ffn=11008, heads=32, vocab=32000),
    "13b": model_spec(layers=40, hidden=5120, ffn=13824, heads=40, vocab=32000),
    "33b": model_spec(layers=60, hidden=6656, ffn=17920, heads=52, vocab=32000),
    "bloom": model_spec(layers=30, hidden=4096, ffn=16384, heads=32, vocab=250880, **BLOOM),
}


@pytest.mark.parametrize(
    ("name", "degrees", "published"),
    [
        ("7b", {"pp": 8}, 13.5),
        ("13b", {"pp": 8}, 14.9),
        ("33b", {"tp": 4, "pp": 4, "mbs": 2, "flags": "sf", "first": 3}, 15.9),
        ("7b", {"tp": 2, "dp": 4, "flags": "zf"}, 9.5),
        ("7b", {"tp": 8, "mbs": 4, "flags": "sf", "sequence": 4096}, 10.9),
        ("bloom", {"tp": 8, "mbs": 4, "flags": "sf"}, 12.7),
    ],
    ids=str,
)
def test_ascendspeed_s_memory_reuse_saves_what_was_published(
    name: str, degrees: dict[str, Any], published: float
) -> None:
    """Mean over stages, in percent, of fp16 without and with --release-fp32-grad (AscendSpeed's README).

    The layouts are not published: these are the likeliest, see docs/techniques.md.
    """
    model = PUBLISHED[name]
    given = {"pp": 1, "dp": 1, "flags": "f", "first": 0, "sequence": 2048, **degrees}
    pp, first, sequence = (given.pop(key) for key in ("pp", "first", "sequence"))
    plan = strategy_of("ascend_910b:" + ",".join([str(model["layers"] // pp)] * pp), **given)
    if first:  # recomputed layers of the first stage, as AscendSpeed's script has them
        group = replace(plan.groups[0], recompute="block", recompute_layers=(first, *[0] * (pp - 1)))
        plan = replace(plan, groups=(group,))
    cluster = {"num_gpus": pp * plan.stage_devices, "chips": {"ascend_910b": -1}}
    spec = {"model": model, "cluster": cluster, "stack": "ascendspeed"}
    sizes = training_of(precision="fp16", sequence_length=sequence)
    plain, freed = (
        evaluate(resolve(parse_spec({**spec, "training": {**sizes, "release_fp32_gradients": on}})), plan)
        for on in (False, True)
    )
    before, after = (sum(stage.memory.total for stage in found.stages) for found in (plain, freed))
    assert 100 * (1 - after / before) == pytest.approx(published, abs=1.0)
    assert freed.step_time_s == pytest.approx(plain.step_time_s, rel=0.01)
