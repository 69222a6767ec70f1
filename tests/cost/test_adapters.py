"""Adapters beside frozen layers: every formula against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpsolver.cost import adapters, comm, compute, memory
from cpsolver.cost.chip_speeds import ChipSpeeds
from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.model_flops import model_flops_per_step
from cpsolver.cost.shard import Candidates, Shard
from cpsolver.cost.tables import memory_table, time_table
from cpsolver.problem.problem import Problem
from tests.support.problems import ideal, model_spec, problem_of, strategy_of

LORA: dict[str, Any] = {"rank": 16}
MODEL = model_spec(hidden=1024, ffn=2816, heads=8, kv_heads=2, vocab=4000)
"""head_dim 128: qkv gives 1024 + 2 * 256 = 1536."""


def tuned(lora: dict[str, Any] | None = LORA, model: Any = MODEL, **more: Any) -> Problem:
    return ideal(model=model, training={"lora": lora}, **more)[0]


def row(problem: Problem, **sizes: Any) -> Candidates:
    return Candidates.one(strategy_of(**sizes), problem.batch)


def both(problem: Problem, **sizes: Any) -> tuple[dict[str, tuple[float, ...]], Shard]:
    """Seconds of a layer's operators, forward and backward, added up by name."""
    shard, found = row(problem, **sizes).shard, dict[str, tuple[float, ...]]()
    for each in compute.layer_operators(problem, problem.supplies[0].chip, shard, layer_kinds(problem.model)[0]):
        one = tuple(float(seconds[0]) for seconds in each.passes)
        found[each.name] = tuple(np.add(found.get(each.name, (0.0, 0.0)), one))
    return found, shard


def test_parameters_are_rank_times_inputs_and_outputs() -> None:
    """qkv 1024 + 1536, proj 1024 + 1024, fc1 1024 + 5632, fc2 2816 + 1024: 15104 times rank 16, four layers."""
    problem = tuned()
    assert adapters.layer_adapter_parameters(problem) == (16 * 15104,)
    assert adapters.trained_in_all(problem) == 4 * 16 * 15104
    assert adapters.trained_in_all(tuned(None)) is None
    held = memory.trained_parameters(problem, row(problem, tp=2, dp=2))
    assert float(held.layer[0]) == 16 * 15104 / 2
    assert not held.first.any()
    assert not held.last.any()


def test_parts_of_fused_layers_have_pairs_of_their_own() -> None:
    """q 1024 + 1024, k and v 1024 + 256 each, gate and up 1024 + 2816 each."""
    names = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]
    problem = tuned({"rank": 8, "targets": names})
    assert adapters.layer_adapter_parameters(problem) == (8 * (2048 + 2 * 1280 + 2 * 3840),)


def test_llama2_70b_as_mlperf_trains_it() -> None:
    """Rank 16 beside qkv (8192 + 10240) and proj (2 * 8192) of 80 layers: 44.6 million of 69 billion."""
    problem = problem_of(model="llama2-70b", training={"lora": {"rank": 16, "targets": "attention"}})
    assert adapters.trained_in_all(problem) == 80 * 16 * (8192 + 10240 + 2 * 8192) == 44_564_480


def test_frozen_gemms_have_no_weight_gradient() -> None:
    plain, frozen = both(tuned(None))[0], both(tuned())[0]
    for name in ("qkv", "attention output", "mlp up", "mlp down"):
        assert frozen[name][0] == plain[name][0]
        assert frozen[name][1] < 0.6 * plain[name][1]
    assert "adapters" not in plain


def test_adapters_run_two_gemms_and_pass_over_results() -> None:
    """Beside proj with tp 2: (T, 512) x (512, 16) and (T, 16) x (16, 512), three products each. Results of 1024
    elements of own tokens are scaled and added forward (5 passes), scaled backward (2), and the input's gradient is
    added (3)."""
    problem = tuned({"rank": 16, "targets": "linear_proj"})
    found, shard = both(problem, tp=2, dp=2, flags="fzs")
    device, tokens, one = ChipSpeeds(problem, problem.supplies[0].chip), shard.tokens(problem.sequence), np.ones(1)
    pairs = ((16 * one, 512 * one), (512 * one, 16 * one))
    forward = sum(device.gemm(tokens, n, k) for n, k in pairs)
    backward = sum(device.gemm(tokens, k, n) + device.gemm(k, n, tokens) for n, k in pairs)
    forward = forward + device.stream(2 * tokens * 5 * 512, 2)
    backward = backward + device.stream(2 * tokens * (2 * 512 + 3 * 512), 2)
    assert found["adapters"] == pytest.approx((float(forward[0]), float(backward[0])))


def test_dropout_passes_over_the_input_once_more() -> None:
    lora = {"rank": 16, "targets": "linear_fc2"}
    plain, dropped = (both(tuned({**lora, "dropout": share}))[0]["adapters"] for share in (0.0, 0.1))
    problem = tuned()
    device = ChipSpeeds(problem, problem.supplies[0].chip)
    more = float(device.stream(np.array([2.0 * 2 * 2816 * problem.sequence]), 1)[0])
    assert np.subtract(dropped, plain) == pytest.approx([more, more])


def test_communication_beside_column_and_row_parallel_layers() -> None:
    """100 GB/s, tp 2, 1024 tokens of 1024 elements in 2 bytes: 2.1 MB. A gather moves half of it: 10.5 us; an
    all-reduce all of it: 21 us. The narrow state has 16 elements a token: gathered in 0.164 us, summed in 0.328."""

    def seconds(lora: dict[str, Any], sp: bool) -> list[float]:
        problem = tuned(lora)
        shard, kind = row(problem, tp=2, dp=2, flags="fzs" if sp else "fz").shard, layer_kinds(problem.model)[0]
        found = adapters.adapter_seconds(problem, problem.supplies[0].chip, shard, kind, "attention")
        return [1e6 * float(each[0]) for each in found]

    whole, narrow = 1024 * 1024 * 2 / 2 / 100e9 * 1e6, 1024 * 16 * 2 / 2 / 100e9 * 1e6
    qkv, proj = {"rank": 16, "targets": "linear_qkv"}, {"rank": 16, "targets": "linear_proj"}
    assert seconds(qkv, True) == pytest.approx([narrow, 2 * narrow], rel=1e-6)
    assert seconds(qkv, False) == pytest.approx([narrow, 2 * narrow + 2 * whole], rel=1e-6)
    assert seconds(proj, True) == pytest.approx([2 * narrow + whole, 2 * narrow + whole], rel=1e-6)
    assert seconds(proj, False) == pytest.approx([2 * narrow + whole, 2 * narrow], rel=1e-6)
    by_parts = seconds({**proj, "all_to_all": True}, True)
    assert by_parts == pytest.approx([2 * narrow + whole / 2, 2 * narrow + whole / 2], rel=1e-6)


def test_backward_hides_no_more_than_forward() -> None:
    """Nothing travels under weights' gradients where there are none."""
    constants = {"tensor_overlap": 0.25, "tensor_overlap_backward": 0.75}
    found = []
    for lora in (None, {"rank": 16, "targets": "linear_fc2"}):
        problem, _ = ideal(model=MODEL, training={"lora": lora}, stack=constants)
        shard, kind = row(problem, tp=2, dp=2, flags="fzs").shard, layer_kinds(problem.model)[0]
        chip, one = problem.supplies[0].chip, np.ones(1)
        whole = comm.layer_comm(problem, chip, shard, one, kind, one)
        beside = adapters.adapter_seconds(problem, chip, shard, kind, "mlp")
        found.append([float((whole.forward - beside[0])[0]), float((whole.backward - beside[1])[0])])
    full, frozen = found
    assert full[0] == frozen[0] == pytest.approx(full[1] * 0.75 / 0.25)
    assert frozen[1] == pytest.approx(frozen[0])


def kept(lora: dict[str, Any] | None, **sizes: Any) -> memory.LayerBytes:
    problem = tuned(lora)
    shard = row(problem, **{"tp": 2, "dp": 2, "flags": "fzs", **sizes}).shard
    return memory.layer_bytes(problem, shard, layer_kinds(problem.model)[0])


def test_frozen_layers_keep_no_inputs_and_adapters_theirs() -> None:
    """tp 2 with sequence parallelism, 1024 tokens: full training keeps the norms' outputs (2 x 2 B x 1024 / 2 a token)
    and the activation's output (2 B x 2816 / 2). Adapters keep the gathered norms' outputs (2 x 2 B x 1024), the
    activation's output again, and 16 elements each."""
    tokens, full = 1024, float(kept(None).full[0])
    none = full - tokens * (2 * 2 * 512 + 2 * 1408)
    alone = kept({"rank": 16, "targets": "linear_proj"})
    assert float(alone.full[0]) == pytest.approx(none + tokens * 2 * 16)
    every = kept(LORA)
    assert float(every.full[0]) == pytest.approx(none + tokens * (2 * 2 * 1024 + 2 * 1408 + 4 * 2 * 16))


def test_parts_share_one_input_but_not_under_dropout() -> None:
    """q, k and v read the same norm's output; with dropout each has a copy and a mask of 3 B for 1024 elements."""
    tokens, names = 1024, ["linear_q", "linear_k", "linear_v"]
    one, three = (float(kept({"rank": 16, "targets": each}).full[0]) for each in (names[:1], names))
    assert three - one == pytest.approx(2 * tokens * 2 * 16)
    one, three = (float(kept({"rank": 16, "targets": each, "dropout": 0.1}).full[0]) for each in (names[:1], names))
    assert three - one == pytest.approx(2 * tokens * (2 * 16 + 3 * 1024))


def test_no_module_frees_more_than_is_kept() -> None:
    """Recomputing the feed-forward block drops what it keeps, fc1's gathered input and narrow states too."""
    layer, tokens = kept(LORA), 1024
    freed = float(layer.freed.max(axis=0)[0])
    assert freed == pytest.approx(tokens * (2 * 2816 + 2 * 1024 + 2 * 1408 + 2 * 2 * 16))
    assert float((layer.full - layer.freed.sum(axis=0))[0]) > 0


def test_only_adapters_have_gradients_and_states() -> None:
    """A layer's weights in 2 bytes; its 16 x 15104 adapter parameters with all that training keeps of a parameter."""
    full, frozen = tuned(None), tuned()
    rows = row(full, tp=1, dp=4)
    plain, tables = memory_table(full, rows), memory_table(frozen, rows)
    parameters = memory.stage_parameters(full, rows)
    each = float(plain.layer_states[0]) / float(parameters.layer[0])
    expected = 2 * float(parameters.layer[0]) + each * 16 * 15104
    assert float(tables.layer_states[0]) == pytest.approx(expected)
    assert float(tables.first_states[0]) == pytest.approx(2 * float(parameters.first[0]))


def test_replicas_communicate_adapters_alone() -> None:
    """dp 4 over 100 GB/s: the gradients of 16 x 15104 parameters a layer, nothing of embedding and head."""
    full, frozen = tuned(None), tuned()
    rows = row(full, tp=1, dp=4)
    plain, time = (time_table(each, each.supplies[0], rows) for each in (full, frozen))
    share = 16 * 15104 / float(memory.stage_parameters(full, rows).layer[0])
    assert float(time.sync_layer[0]) == pytest.approx(share * float(plain.sync_layer[0]), rel=1e-3)
    assert float(time.update_layer[0]) == pytest.approx(share * float(plain.update_layer[0]))
    assert float(time.sync_first[0]) == float(time.sync_last[0]) == float(time.update_first[0]) == 0.0


def test_sharded_weights_are_gathered_and_adapters_scattered() -> None:
    full, frozen = tuned(None), tuned()
    rows = row(full, tp=1, dp=4, sharded="parameters")
    plain, time = (time_table(each, each.supplies[0], rows) for each in (full, frozen))
    share = 16 * 15104 / float(memory.stage_parameters(full, rows).layer[0])
    assert float(time.gather[0]) == pytest.approx((1 + share) * float(plain.gather[0]), rel=1e-3)
    assert float(time.scatter[0]) == pytest.approx(share * float(plain.scatter[0]), rel=1e-3)


@pytest.mark.parametrize(("base", "each"), [("nf4", 0.5625), ("nf4_double", 0.515869140625)])
def test_frozen_layers_in_4_bits(base: str, each: float) -> None:
    """Linear layers take so many bytes a parameter, norms (2 x 1024) two; both passes bring weights to 16 bits."""
    frozen, narrow = tuned(), tuned({**LORA, "quantized_base": base})
    rows = row(frozen, tp=1, dp=4)
    wide, tables = memory_table(frozen, rows), memory_table(narrow, rows)
    linear = float(memory.stage_parameters(frozen, rows).layer[0]) - 2 * 1024
    assert float((wide.layer_states - tables.layer_states)[0]) == pytest.approx((2 - each) * linear)
    assert float(tables.first_states[0]) == float(wide.first_states[0])
    found = both(narrow)[0]["weights to 16 bits"]
    weights = 1024 * (1536 + 1024 + 3 * 2816)
    assert found == pytest.approx(2 * ((each + 2) * weights / 1e12,), rel=1e-4)


def test_flop_of_frozen_weights_count_two_thirds() -> None:
    """Of llama2-70b NVIDIA has 722 TFLOP/s at 2,621 tokens/s: 275.5 GFLOP a token (NeMo 24.12, performance summary,
    LoRA on 8 H100, packed to 4096 tokens): 4 a weight but for the embedding, and nothing of attention."""
    training = {"lora": {"rank": 32, "targets": "linear_qkv"}}
    problem = problem_of(model="llama2-70b", training=training, sequence=4096)
    per_token = model_flops_per_step(problem) / problem.batch / problem.sequence
    attention = 6 * 80 * 2 * 8192 * 4096 * 0.5
    weights = 80 * (8192 * 10240 + 8192 * 8192 + 3 * 8192 * 28672) + 8192 * 32000
    assert per_token == pytest.approx(4 * weights + 6 * 80 * 32 * (8192 + 10240) + attention)
    assert per_token - attention == pytest.approx(722e12 / 2621, rel=0.01)


EXPERTS = model_spec(moe={"experts": 4, "top_k": 2, "expert_ffn": 512, "shared_experts": 1})
LATENT = model_spec(attention={"kind": "mla", "kv_lora": 128, "qk_nope": 64, "qk_rope": 32, "v_head": 64})
BESIDE_LATENT = ["linear_q_proj", "linear_kv_down_proj", "linear_kv_up_proj", "linear_proj"]


def test_one_adapter_stands_beside_all_experts_and_one_beside_shared_ones() -> None:
    """fc1 1024 + 2 x 512, fc2 512 + 1024, of either: 3584 times 16, beside routed experts whole on every rank."""
    problem = tuned({"rank": 16, "targets": "mlp"}, EXPERTS)
    assert adapters.layer_adapter_parameters(problem, True) == (16 * 3584,)
    assert adapters.layer_adapter_parameters(problem, False) == (16 * 3584,)
    assert adapters.trained_in_all(problem) == 4 * 2 * 16 * 3584
    held = memory.trained_parameters(problem, row(problem, tp=2, dp=2, ep=2, flags="fzs"))
    assert (float(held.layer[0]), float(held.experts[0])) == (16 * 3584 / 2, 16 * 3584)
    full = tuned(None, EXPERTS)
    rows = row(full, tp=1, dp=4, ep=2)
    weights = memory.stage_parameters(full, rows)
    plain, tables = (memory_table(each, rows) for each in (full, problem))
    states = 2 * (weights.layer + weights.experts)
    assert float(states[0]) < float(tables.layer_states[0]) < 0.5 * float(plain.layer_states[0])


OWN = {"rank": 16, "targets": "mlp", "share_expert_adapters": False}


def test_adapters_of_its_own_stand_beside_each_expert() -> None:
    """Four experts: four times what they share; ep 2 holds two of them, in two grouped GEMMs of half the rows each."""
    problem, shared = tuned(OWN, EXPERTS), tuned({"rank": 16, "targets": "mlp"}, EXPERTS)
    assert adapters.layer_adapter_parameters(problem, True) == (4 * 16 * 3584,)
    assert adapters.layer_adapter_parameters(problem, False) == (16 * 3584,)
    assert adapters.trained_in_all(problem) == 4 * 5 * 16 * 3584
    held = memory.trained_parameters(problem, row(problem, tp=1, dp=4, ep=2))
    assert float(held.experts[0]) == 2 * 16 * 3584
    shard, kind = row(problem, tp=1, dp=4, ep=2).shard, layer_kinds(problem.model)[0]
    own, one = (adapters.adapter_gemms(each, shard, kind, "mlp") for each in (problem, shared))
    sizes = [
        [(float(np.ravel(g.rows)[0]), float(np.ravel(g.count)[0]), g.grouped) for g in each] for each in (own, one)
    ]
    assert sizes[0] == [(1, 2, True)] * 2 + [(1, 1, False)] * 2 + [(1, 2, True)] * 2 + [(1, 1, False)] * 2
    assert sizes[1] == [(2, 1, False)] * 2 + [(1, 1, False)] * 2 + [(2, 1, False)] * 2 + [(1, 1, False)] * 2
    assert model_flops_per_step(problem) == model_flops_per_step(shared)


def test_experts_own_adapters_run_in_grouped_kernels_and_sum_nothing_over_expert_parallel_ranks() -> None:
    """One expert on each of ep 4: the same GEMMs as with a shared adapter. Of two they are as slow as grouped ones."""
    model = model_spec(moe={**EXPERTS["moe"], "shared_experts": 0})
    shared, own, slow = (
        tuned(lora, model, stack={"grouped_gemm_speed": speed, "uneven_grouped_gemm_speed": 1.0})
        for lora, speed in (({**OWN, "share_expert_adapters": True}, 0.5), (OWN, 1.0), (OWN, 0.5))
    )
    (one, shard), (same, _), (alone, _) = (both(each, tp=1, dp=4, ep=4) for each in (shared, own, slow))
    assert same["adapters"] == pytest.approx(one["adapters"])
    assert alone["adapters"] == same["adapters"]
    (fast, _), (slower, _) = (both(each, tp=1, dp=4, ep=2) for each in (own, slow))
    assert slower["adapters"] > fast["adapters"]
    kind, chip = layer_kinds(own.model)[0], own.supplies[0].chip
    assert not np.any(adapters.adapter_seconds(own, chip, shard, kind, "mlp"))
    assert np.any(adapters.adapter_seconds(shared, chip, shard, kind, "mlp"))


def test_adapters_beside_experts_see_every_copy_of_a_token() -> None:
    """tp 2, top 2, load 1.5: a device's experts get 1.5 x 2 / 2 copies of a token: (1.5 T, 1024) x (1024, 16) and
    (1.5 T, 16) x (16, 1024)."""
    lora = {"rank": 16, "targets": "linear_fc1"}
    problem, _ = ideal(model=EXPERTS, training={"lora": lora, "expert_imbalance": 1.5})
    shard, kind = row(problem, tp=2, dp=2, flags="fzs").shard, layer_kinds(problem.model)[0]
    sizes = [
        tuple(float(np.ravel(part)[0]) for part in (gemm.n, gemm.k, gemm.rows))
        for gemm in adapters.adapter_gemms(problem, shard, kind, "mlp")
    ]
    assert sizes == [(16, 1024, 1.5), (1024, 16, 1.5), (8, 1024, 1), (512, 16, 1)]
    held = adapters.adapter_bytes(problem, shard, kind, "mlp")
    assert float(held[0]) == pytest.approx(2 * 1024 * (1.5 * 16 + 16 + 1024))  # shared experts' gathered input


def test_gradients_beside_experts_are_summed_over_expert_parallel_ranks() -> None:
    """ep 2 at 100 GB/s: two matrices, an all-reduce of each; forward nothing travels, whatever the tokens."""
    problem = tuned({"rank": 16, "targets": "linear_fc1"}, model_spec(moe={**EXPERTS["moe"], "shared_experts": 0}))
    kind, chip = layer_kinds(problem.model)[0], problem.supplies[0].chip
    for mbs in (1, 2):
        shard = row(problem, tp=1, dp=4, ep=2, mbs=mbs).shard
        forward, backward = adapters.adapter_seconds(problem, chip, shard, kind, "mlp")
        assert float(forward[0]) == 0
        assert float(backward[0]) == pytest.approx(2 * 16 * (1024 + 1024) / 100e9, rel=1e-6)


def test_adapters_of_latent_attention() -> None:
    """8 heads: q 1024 + 768, kv down 1024 + 160, kv up 128 + 1024, proj 512 + 1024; without sequence parallelism tp 2
    gathers 16 and 160 elements of a token beside kv down, and sums 16 and 1024 backward."""
    problem = tuned({"rank": 16, "targets": BESIDE_LATENT}, LATENT)
    assert adapters.layer_adapter_parameters(problem) == (16 * (1792 + 1184 + 1152 + 1536),)
    down = tuned({"rank": 16, "targets": "linear_kv_down_proj"}, LATENT)
    shard, kind = row(down, tp=2, dp=2).shard, layer_kinds(down.model)[0]
    forward, backward = adapters.adapter_seconds(down, down.supplies[0].chip, shard, kind, "attention")
    each = 1024 * 2 / 2 / 100e9
    assert float(forward[0]) == pytest.approx((16 + 160) * each, rel=1e-6)
    assert float(backward[0]) == pytest.approx(2 * (16 + 1024) * each, rel=1e-6)
    sizes = [(float(g.n[0]), float(g.k[0])) for g in adapters.adapter_gemms(down, shard, kind, "attention")]
    assert sizes == [(8, 1024), (80, 16)]


def test_flop_of_adapters_beside_experts() -> None:
    """Two experts' copies and the shared expert's: 3 x 16 x 3584 more in each of four layers, three products each."""
    one, two = (tuned({"rank": rank, "targets": "mlp"}, EXPERTS) for rank in (16, 32))
    more = model_flops_per_step(two) - model_flops_per_step(one)
    assert more == pytest.approx(6 * 4 * 3 * 16 * 3584 * one.sequence * one.batch)
