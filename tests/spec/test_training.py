"""The spec's section `training`: what goes together, and what the switches ask of a plan."""

from __future__ import annotations

from typing import Any

import pytest

from cpsolver.inputs.errors import InputError
from cpsolver.problem.resolve import resolve
from cpsolver.rules import RULES
from cpsolver.spec.spec import parse_spec
from cpsolver.spec.training import Training
from tests.support.problems import problem_of, spec_of, strategy_of


def wrong(training: dict[str, Any], **search: Any) -> str:
    with pytest.raises(InputError) as caught:
        parse_spec(spec_of(training=training, **search))
    return str(caught.value)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"release_fp32_gradients": True}, "release_fp32_gradients = true: contradicts training.precision = 'bf16'"),
        ({"precision": "fp16", "reuse_fp32_parameters": True}, "contradicts training.precision = 'fp16'"),
        ({"fp8_activations": True}, "fp8_activations = true: contradicts training.precision = 'bf16'"),
        ({"fp8_parameter_gather": True}, "(allowed: false, or precision fp8 or nvfp4)"),
        ({"precision": "nvfp4", "fp8_recipe": "mx"}, "it has no recipes (allowed: null, or precision fp8)"),
        ({"fp8_attention": True}, "fp8_attention = true: contradicts training.precision = 'bf16'"),
        ({"precision": "fp8", "fp8_recipe": "blockwise", "fp8_attention": True}, "excludes training.fp8_recipe"),
        ({"optimizer": "precision_aware", "reuse_fp32_parameters": True}, "contradicts training.optimizer"),
        ({"optimizer": "lion", "swap_optimizer": True}, "(allowed: false, or optimizer adam)"),
        ({"optimizer_offload": 0.5, "swap_optimizer": True}, "excludes training.optimizer_offload"),
        ({"activation_offload": ["attn_proj"]}, "together with core_attn only"),
        ({"activation_offload": ["mlp_norm"], "offload_layers": 1}, "excludes training.activation_offload"),
        ({"cuda_graph": "te", "offload_layers": 1}, "excludes training.cuda_graph = 'te'"),
        ({"recompute_mla_up_proj": True, "lora": {}}, "recompute_mla_up_proj = true: excludes"),
        ({"recompute_mlp_layers": 2}, "needs training.activation_offload"),
        ({"recompute_mlp_layers": 2, "activation_offload": "attention", "lora": {}}, "(allowed: 0)"),
        (
            {"recompute_mlp_layers": 2, "activation_offload": "attention", "moe_zero_memory": "level0"},
            "recompute_mlp_layers = 2: excludes training.moe_zero_memory",
        ),
        ({"parameter_offload": True, "lora": {}}, "parameter_offload = true: excludes training.lora"),
        ({"mla_swap_core_attn_out": True, "lora": {}}, "mla_swap_core_attn_out = true: excludes training.lora"),
        ({"mla_swap_core_attn_out": True, "activation_offload": "attention"}, "excludes training.activation_offload"),
        ({"mla_swap_core_attn_out": True, "offload_layers": 1}, "excludes training.offload_layers"),
        ({"mla_swap_core_attn_out": True, "moe_zero_memory": "level1"}, "excludes training.moe_zero_memory"),
        ({"recompute_activation_function": True, "lora": {}}, "recompute_activation_function = true: excludes"),
        ({"offload_layers": -1}, "must be at least 0"),
        ({"activation_offload": ["atention"]}, "did you mean 'attention'?"),
        ({"optimizer": "adamw"}, "did you mean 'adam'"),
        ({"optimizer_offload": 1.5}, "must be at most 1"),
        ({"optimizer": "muon", "precision": "fp16"}, "precision = 'fp16': contradicts training.optimizer = 'muon'"),
        ({"optimizer": "muon", "optimizer_offload": 0.5}, "the host's update is Adam's"),
        ({"optimizer": "muon", "swap_optimizer": True}, "(allowed: false, or optimizer adam)"),
        ({"optimizer": "soap", "precision": "fp16"}, "precision = 'fp16': contradicts training.optimizer = 'soap'"),
        ({"optimizer": "soap", "muon_tp_mode": "blockwise"}, "it orthogonalizes no matrices (allowed: duplicated)"),
        ({"muon_tp_mode": "blockwise"}, "it orthogonalizes no matrices (allowed: duplicated)"),
        ({"optimizer": "muon", "muon_tp_mode": "blokwise"}, "did you mean 'blockwise'"),
    ],
    ids=str,
)
def test_contradictions_are_named(training: dict[str, Any], said: str) -> None:
    assert said in wrong(training)


@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": "precision_aware"},
        {"optimizer_offload": 0.5},
        {"swap_optimizer": True},
        {"precision": "fp8", "fp8_parameter_gather": True},
    ],
    ids=str,
)
def test_some_switches_need_the_distributed_optimizer(training: dict[str, Any]) -> None:
    assert "needs the distributed optimizer" in wrong(training, pin={"distributed_optimizer": False})
    assert "needs the distributed optimizer" in wrong(training, forbid={"distributed_optimizer": [True]})
    rule, plain = RULES["optimizer"], strategy_of(dp=4, flags="f")
    data = {**spec_of(training=training), "cluster": {"num_gpus": 4, "gpus_per_node": 4, "chips": {"h100": 4}}}
    problem = resolve(parse_spec(data))
    assert len(list(rule(problem, plain))) == 1
    assert list(rule(problem, strategy_of(dp=4, flags="fz"))) == []
    assert list(rule(problem, strategy_of(dp=1, flags="f"))) == []
    assert list(rule(problem_of(), plain)) == []


def test_triangle_attention_says_when_it_has_no_effect() -> None:
    assert "has no effect" in wrong({"triangle_attention": True}, pin={"flash_attention": True})
    parse_spec(spec_of(training={"triangle_attention": True}))


def test_short_forms_of_offloaded_modules() -> None:
    sizes = {"global_batch_size": 1, "sequence_length": 1}
    for written, read in ((None, ()), ("attention", ("attention",)), (["moe_act"], ("moe_act",))):
        training = Training(**sizes, activation_offload=written)  # type: ignore[arg-type]
        assert training.activation_offload == read
        assert Training.model_validate(training.model_dump(mode="json")) == training


def test_a_chip_without_a_known_link_cannot_offload() -> None:
    with pytest.raises(InputError, match="link to the host"):
        resolve(parse_spec(spec_of(training={"optimizer_offload": 0.5})))
    resolve(parse_spec(spec_of(training={"optimizer_offload": 0.0})))
