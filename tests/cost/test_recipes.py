"""Recipes of fp8 and nvfp4: which one a problem has, and what it makes of rates and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpsolver.cost import compute, states
from cpsolver.cost.activation_switches import narrowed
from cpsolver.cost.chip_speeds import ChipSpeeds
from cpsolver.cost.kinds import LayerKind, layer_kinds
from cpsolver.cost.shard import Shard
from cpsolver.problem.problem import Problem
from cpsolver.profiles.stack import load_stack
from models_zoo import Architecture
from tests.support.problems import chip_spec, ideal, model_spec, problem_of, with_stack

BLOCKS = {"block_formats": ["mx", "nvfp4"], "fp8_either_way": True}
SPEEDS = {"current_gemm_speed": 0.9, "blockwise_gemm_speed": 0.8, "mx_gemm_speed": 0.95}


def fields(**more: Any) -> dict[str, Any]:
    """A chip with every peak: 100 TFLOP/s in bf16, 200 in fp8, 400 in fp4; half of each is reached."""
    share = {name: {"value": 0.5, "confidence": "assumed", "source": "a test"} for name in ("gemm_fp8", "gemm_fp4")}
    spec = chip_spec(tflops=100, efficiency=share, **more)
    spec["peak_tflops"] |= {"fp8": 200, "fp4": 400}
    return spec


def of(
    chips: dict[str, dict[str, Any]] | None = None, stack: dict[str, float] | None = None, **training: Any
) -> Problem:
    """A problem in fp8, on a chip with blocks unless told otherwise."""
    given = {"x": fields(**BLOCKS)} if chips is None else chips
    problem = problem_of(given, training={"precision": "fp8", **training})
    return with_stack(problem, **{**SPEEDS, "straggling": 0.0, **(stack or {})})


EXPERTS = {"experts": 8, "top_k": 2, "expert_ffn": 512}


def kept_in_fp8(model: dict[str, Any], **stack: float) -> Problem:
    """A problem with that model, whose GEMMs' inputs are kept in 8 bits."""
    return ideal(model=model, training={"precision": "fp8"}, stack={"fp8_activations": 1, **stack})[0]


PLAIN, SCALED = {"x": fields()}, {"x": fields(**BLOCKS)}
MIXED = {"x": {"max": 2, "spec": fields(**BLOCKS)}, "y": {"max": 2, "spec": fields()}}


@pytest.mark.parametrize(
    ("chips", "stack", "training", "expected"),
    [
        (PLAIN, {}, {}, "delayed"),
        (PLAIN, {"fp8_recipe": 1}, {}, "current"),
        (SCALED, {"fp8_recipe": 1}, {}, "mx"),
        (SCALED, {"fp8_recipe_of_blocks": 2}, {}, "blockwise"),
        (SCALED, {}, {"fp8_recipe": "delayed"}, "delayed"),
        (MIXED, {}, {}, "delayed"),  # one recipe for all, which every chip has
        (SCALED, {}, {"precision": "nvfp4"}, "nvfp4"),
        (SCALED, {}, {"precision": "bf16"}, None),
    ],
)
def test_the_recipe_is_the_specs_or_the_stacks_on_these_chips(
    chips: dict[str, Any], stack: dict[str, float], training: dict[str, str], expected: str | None
) -> None:
    assert of(chips, stack, **training).recipe == expected


@pytest.mark.parametrize(
    ("name", "hopper", "blackwell"),
    [
        ("megatron-core", "delayed", "mx"),
        ("megatron-2022", "delayed", "mx"),
        ("nemo", "delayed", "delayed"),
        ("megatron-bridge", "current", "mx"),
        ("fsdp-torchtitan", "current", "current"),
    ],
)
def test_recipes_of_the_stacks(name: str, hopper: str, blackwell: str) -> None:
    constants = load_stack(name)
    usual = {key: getattr(constants, key) for key in ("fp8_recipe", "fp8_recipe_of_blocks")}
    for chip, expected in (("h100", hopper), ("gb300", blackwell)):
        assert of({chip: {"max": 4, "spec": None}}, usual).recipe == expected


@pytest.mark.parametrize(
    ("training", "tflops"),
    [
        ({"fp8_recipe": "delayed"}, 100),  # half of 200
        ({"fp8_recipe": "current"}, 90),
        ({"fp8_recipe": "blockwise"}, 80),
        ({"fp8_recipe": "mx"}, 95),
        ({"precision": "nvfp4"}, 200),  # half of 400
    ],
)
def test_rate_of_the_layers_gemms(training: dict[str, Any], tflops: float) -> None:
    problem = of(**training)
    assert ChipSpeeds(problem, problem.supplies[0].chip).layer_gemm_rate == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize(
    ("chips", "training", "weight", "gather"),
    [
        (PLAIN, {"fp8_recipe": "delayed"}, 4, 2),  # 16 bits, a copy and its transpose
        (SCALED, {"fp8_recipe": "delayed"}, 3, 2),  # one copy, read either way round
        (SCALED, {"fp8_recipe": "current"}, 3, 2),
        (SCALED, {"fp8_recipe": "blockwise"}, 2 + 2 * (1 + 4 / 128), 2),  # fp32 scales of 128
        (SCALED, {"fp8_recipe": "mx"}, 2 + 2 * (1 + 1 / 32), 2),  # bytes of scale for 32
        (MIXED, {"fp8_recipe": "current"}, 4, 2),
        (SCALED, {"precision": "nvfp4"}, 2 + 2 * (1 / 2 + 1 / 16), 2),
        (SCALED, {"precision": "nvfp4", "fp8_parameter_gather": True}, 2 * (1 / 2 + 1 / 16), 0.5),
        (PLAIN, {"fp8_recipe": "current", "fp8_parameter_gather": True}, 2, 1),
        (SCALED, {"fp8_recipe": "current", "fp8_parameter_gather": True}, 1, 1),
        (SCALED, {"fp8_recipe": "mx", "fp8_parameter_gather": True}, 2 * (1 + 1 / 32), 2),
    ],
)
def test_bytes_of_a_weight(chips: dict[str, Any], training: dict[str, Any], weight: float, gather: float) -> None:
    held = states.held(of(chips, **training))
    assert (held.weight, held.gather) == (pytest.approx(weight), gather)


@pytest.mark.parametrize(
    ("training", "kept"),
    [
        ({"fp8_recipe": "delayed"}, 1),
        ({"fp8_recipe": "mx"}, 1 + 1 / 32),
        ({"precision": "nvfp4"}, 1 / 2 + 1 / 16),
        ({"precision": "nvfp4", "fp8_activations": False}, 2),
        ({"fp8_activations": False}, 2),
    ],
)
def test_bytes_of_an_input_that_is_kept(training: dict[str, Any], kept: float) -> None:
    problem = of(stack={"fp8_activations": 1}, **training)
    saved = narrowed(problem, Shard.of(1, 1, False, True), layer_kinds(problem.model)[0])[0].item()
    model = problem.model  # two norms' outputs and the activation's
    assert saved == pytest.approx((2 - kept) * problem.sequence * (2 * model.hidden + model.ffn))


LATENT = {"kind": "mla", "kv_lora": 512, "qk_nope": 128, "qk_rope": 64, "v_head": 128}


@pytest.mark.parametrize(
    ("training", "attention", "faster"),
    [
        ({"fp8_recipe": "delayed"}, None, 1.0),  # the stack's way: in 16 bits
        ({"fp8_recipe": "delayed", "fp8_attention": True}, None, 1.5),
        ({"fp8_recipe": "current", "fp8_attention": True}, LATENT, 1.5 * 1.2),
        ({"fp8_recipe": "mx", "fp8_attention": True}, None, 1.1),
        ({"fp8_recipe": "mx", "fp8_attention": True}, LATENT, 1.1 * 1.2),
        ({"fp8_recipe": "mx", "fp8_attention": False}, LATENT, 1.0),
        ({"precision": "nvfp4", "fp8_attention": True}, None, 1.5),
    ],
)
def test_attention_in_8_bits_has_a_rate_of_its_own(
    training: dict[str, Any], attention: dict[str, Any] | None, faster: float
) -> None:
    speeds = {"fp8_attention_speed": 1.5, "mx_attention_speed": 1.1, "fp8_latent_attention_speed": 1.2}
    problem = of(stack={"fp8_attention": 0, **speeds}, **training)
    if attention is not None:
        latent = problem.model.model_validate({**problem.model.model_dump(), "attention": attention})
        problem = replace(problem, model=latent)
    wide, narrow = (ChipSpeeds(each, each.supplies[0].chip) for each in (of(precision="bf16"), problem))
    assert narrow.forward_attention_rate == pytest.approx(faster * wide.forward_attention_rate)
    assert narrow.backward_attention_rate == pytest.approx(faster * wide.backward_attention_rate)


def test_the_stack_may_have_attention_in_8_bits_and_blockwise_scaling_has_none() -> None:
    assert of(stack={"fp8_attention": 1}).fp8_attention
    assert not of(stack={"fp8_attention": 1}, fp8_attention=False).fp8_attention
    assert not of(stack={"fp8_attention": 1}, fp8_recipe="blockwise").fp8_attention
    assert not of(stack={"fp8_attention": 1}, precision="bf16").fp8_attention


def test_narrow_gemms_cast_what_they_read() -> None:
    bf16, nvfp4 = (of(stack={"fp8_cast_bytes": 4}, precision=precision) for precision in ("bf16", "nvfp4"))
    assert [ChipSpeeds(each, each.supplies[0].chip).casts for each in (bf16, nvfp4)] == [False, True]


@pytest.mark.parametrize("experts", [False, True])
def test_inputs_of_activation_functions_in_8_bits_save_as_much_for_gate_and_up(experts: bool) -> None:
    """A byte for each of gate and up beside the activation's output, per token and expert visited."""
    model = model_spec(**({"moe": EXPERTS} if experts else {}))
    without, with_them = (kept_in_fp8(model, fp8_activation_inputs=each) for each in (0, 1))
    shard, kind = Shard.of(1, 1, False, True), layer_kinds(without.model)[0]
    saved = [narrowed(problem, shard, kind)[0].item() for problem in (without, with_them)]
    width = 2 * 512 if experts else without.model.ffn
    assert saved[1] - saved[0] == pytest.approx(2 * width * without.sequence)


@pytest.mark.parametrize(
    ("on", "training", "fused"),
    [
        (1, {"cuda_graph": "full"}, True),
        (1, {"cuda_graph": "te"}, False),
        (1, {"cuda_graph": "full", "fp8_recipe": "current"}, False),
        (0, {"cuda_graph": "full"}, False),
    ],
)
def test_products_of_experts_compute_the_activation(on: int, training: dict[str, Any], fused: bool) -> None:
    """Left are shared experts of 512, and the two inputs of the routed ones' 1,024, which are read again backward."""
    made_of = model_spec(moe={**EXPERTS, "shared_experts": 1})
    model = Architecture.model_validate({"name": "experts", **made_of})
    steady = {"fused_experts": on, "elementwise_traffic": 1.0, "elementwise_backward_factor": 2.0}
    problem = replace(of(stack=steady, **{"fp8_recipe": "mx", **training}), model=model)
    chip = problem.supplies[0].chip
    shard, kind = Shard.of(1, 1, False, True), LayerKind(True, True)
    parts = compute.layer_operators(problem, chip, shard, kind)
    forward, backward = compute.together([each for each in parts if each.name == "activation function"])
    one, launches = 2 * problem.sequence / ChipSpeeds(problem, chip).memory_rate, 2 * chip.kernel_latency_s
    assert forward == pytest.approx(3 * (512 + (0 if fused else 1024)) * one + launches)
    assert backward == pytest.approx(2 * forward + (2 * 1024 * one if fused else 0))
