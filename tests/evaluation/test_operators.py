"""Compute by operator: parts that sum to the breakdown's, and words on what each rests on."""

from __future__ import annotations

from typing import Any

import pytest

from cpsolver.cost.compute import end_operators, end_seconds, layer_operators, layer_seconds, together
from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.shard import Shard
from cpsolver.evaluation.evaluate import evaluate, slowest_stage
from cpsolver.evaluation.operators import StageOperators, compute_by_operator
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.spec.spec import parse_spec
from tests.support.problems import chip_spec, ideal, model_spec, problem_of, spec_of, strategy_of, with_stack

FP8: dict[str, Any] = {"peak_tflops": {"bf16": 100, "fp8": 200}}
MOE = {"experts": 8, "top_k": 2, "expert_ffn": 512, "first_dense": 1, "shared_experts": 1}
MLA = {"kind": "mla", "q_lora": 256, "kv_lora": 128, "qk_nope": 64, "qk_rope": 32, "v_head": 64}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "dense": ({}, {}, {"tp": 2, "dp": 2}),
    "pipeline": ({}, {}, {"groups": "x:1,3", "dp": 2}),
    "unfused": ({}, {"fused_kernels": False}, {"flags": "z"}),
    "experts": ({"moe": MOE}, {}, {"groups": "x:2,2", "dp": 2, "ep": 2}),
    "latent attention": ({"attention": MLA}, {}, {"groups": "x:2,2", "dp": 2}),
    "fp8": ({"moe": MOE}, {"precision": "fp8"}, {"dp": 4, "ep": 4}),
    "context": ({}, {}, {"cp": 2, "dp": 2}),
    "recomputing": ({"moe": MOE}, {}, {"recompute": "uniform", "amount": 1}),
    "modules recomputed": ({}, {}, {"flags": "z", "recompute": "selective"}),
    "interleaved": ({}, {}, {"groups": "x:2,2", "dp": 2, "vpp": 2}),
    "multi-token prediction": ({"moe": MOE, "mtp_layers": 1}, {}, {"groups": "x:2,2", "dp": 2}),
    "ends as layers": ({"layers": 6}, {}, {"groups": "x:3,3", "dp": 2, "vpp": 2}),
    "sizes that differ": ({}, {}, {"groups": "x:2,2", "dp": 2, "micro_batches": (1, 2, 1)}),
}


def told(name: str, **stack: float) -> tuple[Problem, StageOperators, float]:
    model, training, plan = CASES[name]
    chips = {"x": chip_spec(**FP8)} if name == "fp8" else {"x": chip_spec()}
    problem = problem_of(chips, model_spec(**model), training=training)
    problem = with_stack(problem, host_layer_us=400.0, host_expert_layer_us=3000.0, gradient_sum_bytes=6.0, **stack)
    strategy = strategy_of(**plan)
    found = evaluate(problem, strategy)
    return problem, compute_by_operator(problem, strategy, found), found.breakdown_s["compute"]


@pytest.mark.parametrize("name", CASES)
def test_operators_sum_to_compute(name: str) -> None:
    _, found, compute_s = told(name)
    assert sum(part.seconds for part in found.parts) == pytest.approx(compute_s, rel=1e-12)
    assert len({part.name for part in found.parts}) == len(found.parts)
    assert all(part.seconds > 0 for part in found.parts)
    assert 0 < found.unmeasured <= 1


@pytest.mark.parametrize("name", CASES)
def test_operators_sum_to_the_seconds_that_plans_are_compared_by(name: str) -> None:
    """To the last bit: these are sums of the same numbers."""
    model, training, _ = CASES[name]
    chips = {"x": chip_spec(**FP8)} if name == "fp8" else {"x": chip_spec()}
    problem = problem_of(chips, model_spec(**model), training=training)
    chip, shard = problem.supplies[0].chip, Shard.of([1, 2, 2], 1, [False, True, False], [True, True, False])
    for kind in layer_kinds(problem.model):
        whole = layer_seconds(problem, chip, shard, kind)
        passes = together(layer_operators(problem, chip, shard, kind))
        for seconds, parts in zip((whole.forward, whole.backward), passes, strict=True):
            assert parts == pytest.approx(seconds, rel=1e-15)
    ends, made_of = end_seconds(problem, chip, shard), end_operators(problem, chip, shard)
    assert all((together(parts)[0] == getattr(ends, end)).all() for end, parts in vars(made_of).items())


def test_kernels_come_as_close_to_the_peak_as_their_chip_does() -> None:
    """Nothing is lost to tiles, depth or latency: GEMMs reach 0.8 of the peak as the chip does, and attention 0.5."""
    problem, _ = ideal({"gemm_bf16": 0.8, "memory": 0.9}, stack={"gemm_half_depth": 0.0, **TILES})
    plan = strategy_of()
    found = {part.name: part for part in compute_by_operator(problem, plan, evaluate(problem, plan)).parts}
    close = {name: part.of_peak for name, part in found.items()}
    assert [close[name] for name in ("qkv", "mlp down", "head")] == pytest.approx([0.8] * 3, rel=1e-3)
    assert [close[name] for name in ("norms and residuals", "activation function", "loss")] == pytest.approx([0.9] * 3)
    assert close["attention"] == pytest.approx(0.5, rel=1e-6)


def test_attention_in_8_bits_is_measured_by_the_peak_of_8_bits() -> None:
    """Half of the peak in 16 bits, 1.2 times as fast in 8, whose peak is twice as high: 0.3 of it."""
    training = {"precision": "fp8", "fp8_recipe": "current", "fp8_attention": True}
    problem, _ = ideal(stack={**TILES, "fp8_attention_speed": 1.2}, training=training)
    plan = strategy_of()
    found = {part.name: part for part in compute_by_operator(problem, plan, evaluate(problem, plan)).parts}
    assert found["attention"].of_peak == pytest.approx(0.3, rel=1e-6)
    assert "fp8_attention_speed" in {each.constant for each in found["attention"].rests_on}


TILES = {"gemm_tile_rows": 1.0, "gemm_tile_columns": 1.0}


def test_the_stage_is_the_slowest() -> None:
    problem = problem_of({"x": chip_spec()})
    plan = strategy_of("x:1,2,1", dp=1)
    found = evaluate(problem, plan)
    operators = compute_by_operator(problem, plan, found)
    assert operators.stage == slowest_stage(problem, plan, found.stages, plan.microbatches(problem.batch)) == 1
    assert not {"embedding", "head", "loss"} & {part.name for part in operators.parts}


def test_gemms_have_the_names_of_what_they_are() -> None:
    names = {name: {part.name for part in told(name)[1].parts} for name in ("experts", "latent attention", "fp8")}
    assert {"router", "experts up", "experts down", "shared experts up", "qkv"} <= names["experts"]
    assert {"q down", "q up", "kv down", "kv up", "attention output"} <= names["latent attention"]
    assert "fp8 casts" in names["fp8"]


def of_catalogue(chip: str) -> StageOperators:
    spec = spec_of(model="llama2-7b", gpus=8, node=8)
    problem = resolve(parse_spec({**spec, "cluster": {"num_gpus": 8, "chips": chip}}))
    plan = strategy_of(f"{chip}:32", tp=8, dp=1)
    return compute_by_operator(problem, plan, evaluate(problem, plan))


def test_what_an_operator_rests_on() -> None:
    """Runs on Hopper say how fast H100 multiplies; none was on S5000, whose rate the catalogue assumes."""
    measured, unknown = ({p.name: p for p in of_catalogue(chip).parts} for chip in ("h100", "mtt_s5000"))
    assert measured["qkv"].basis == measured["attention"].basis == "fitted"
    assert measured["loss"].basis == "assumed"
    assert unknown["qkv"].basis == "assumed"
    assert [each.constant for each in measured["norms and residuals"].rests_on] == ["memory", "norm_traffic"]
    assert of_catalogue("mtt_s5000").unmeasured > 0.5 > of_catalogue("h100").unmeasured


def test_a_chip_of_the_users_own_is_given() -> None:
    problem = problem_of({"x": chip_spec(efficiency={"gemm_bf16": 0.6})})
    plan = strategy_of()
    found = {part.name: part.basis for part in compute_by_operator(problem, plan, evaluate(problem, plan)).parts}
    assert found["qkv"] == "given"
