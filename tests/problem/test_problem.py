"""A spec with its names resolved: limits, capacity, and every unknown or unusable name at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpsolver.inputs.errors import InputError
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.spec.spec import parse_spec
from tests.support.problems import chip_spec, model_spec, problem_of, spec_of

HOST_LINK = {"pcie_generation": 5, "bandwidth_gb_s": 50}


def troubles(*args: Any, **given: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        problem_of(*args, **given)
    return [str(trouble) for trouble in caught.value.troubles]


def test_derived_sizes() -> None:
    problem = problem_of({"a800": 6, "h800": -1}, "llama2-7b", gpus=8, node=4, batch=16, sequence=2048)
    assert (problem.num_gpus, problem.node, problem.batch, problem.sequence) == (8, 4, 16, 2048)
    assert problem.chip_names == ("a800", "h800")
    assert [supply.limit for supply in problem.supplies] == [6, 8]
    assert problem.mixed
    assert not problem_of({"a800": 8}, gpus=8).mixed
    assert problem.supply("h800").chip.name == "h800"
    with pytest.raises(KeyError):
        problem.supply("a100")


VISION = {"layers": 2, "hidden": 64, "ffn": 128, "heads": 2, "merge": 2}
IMAGES = {"per_sequence": 4, "patches": 1024}


def test_what_images_do_not_go_together_with() -> None:
    with_encoder = model_spec(vision=VISION)
    assert problem_of(model=with_encoder, training={"images": IMAGES}).encoder is not None
    (plain,) = troubles(model=model_spec(), training={"images": IMAGES})
    assert "has no encoder of images (model.vision)" in plain
    several = {"images": {"per_sequence": 5, "patches": 1026}, "optimizer": "muon"}
    found = troubles(model=with_encoder, training=several, launcher="megatron-lm")
    assert [text.split(" ")[0] for text in found] == [
        "training.images.patches",
        "training.images:",
        "launcher",
        "training.optimizer",
    ]
    assert "(allowed: a multiple of 4)" in found[0]
    assert "they take 1,282 tokens of a sequence of 1,024" in found[1]
    (wrong,) = troubles(model=with_encoder, training={"images": {**IMAGES, "patch": 3}})
    assert "did you mean 'patches'" in wrong


def test_a_limit_above_the_cluster_is_the_cluster() -> None:
    assert problem_of({"a800": 1000}, gpus=8).supplies[0].limit == 8


def test_capacity_leaves_the_margin_free() -> None:
    problem = problem_of({"x": chip_spec(gb=50)}, margin=0.1)
    assert problem.capacity_bytes(problem.supplies[0].chip) == pytest.approx(45e9)


def test_the_margin_is_the_stacks_where_the_spec_names_none() -> None:
    plain, fused = (_on_stack(name, None) for name in ("megatron-core", "megatron-bridge"))
    assert plain.memory_margin == plain.stack.memory_margin == 0.04
    assert fused.memory_margin == fused.stack.memory_margin == 0.02  # its recipes lose less to fragments
    assert _on_stack("megatron-bridge", 0.1).memory_margin == 0.1


def _on_stack(stack: str, margin: float | None) -> Problem:
    return resolve(parse_spec({**spec_of(margin=margin), "stack": stack}))


def test_models_and_chips_written_in_the_spec() -> None:
    problem = problem_of({"mine": chip_spec(tflops=123)}, model_spec(layers=7))
    assert problem.supplies[0].chip.peak_flops("bf16") == 123e12
    assert (problem.model.name, problem.model.layers, problem.model.head_dim) == ("custom", 7, 128)


def test_models_and_chips_in_files_are_found_from_the_specs_folder(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('{"layers": 3, "hidden": 64, "ffn": 128, "heads": 4, "vocab": 99}')
    (tmp_path / "c.yaml").write_text(
        "peak_tflops: {bf16: 7}\nmemory: {capacity_gb: 16, bandwidth_gb_s: 100}\n"
        "scale_up: {bandwidth_gb_s: 10}\nscale_out: {bandwidth_gbit_s: 10}\n"
    )
    data = spec_of({}, "m.json", gpus=4)
    data["cluster"]["chips"] = {"mine": {"file": "c.yaml"}}
    problem = resolve(parse_spec(data, base_dir=tmp_path))
    assert (problem.model.name, problem.model.layers) == ("m", 3)
    assert problem.supplies[0].chip.peak_flops("bf16") == 7e12


def test_all_unknown_names_are_listed_at_once() -> None:
    found = troubles({"a80": -1, "h80": -1}, "llama2-7", gpus=8, node=8)
    text = "\n".join(found)
    assert len(found) == 3
    assert all(name in text for name in ("llama2-7b", "a800", "h800"))


def test_what_is_wrong_in_a_users_own_fields_says_where() -> None:
    wrong = chip_spec(gb=-5)
    del wrong["scale_out"]
    found = troubles({"mine": wrong}, model_spec(layers=0, vocab="many"))
    text = "\n".join(found)
    assert "model.layers" in text
    assert "model.vocab" in text
    assert "cluster.chips.mine.spec.memory.capacity_gb" in text


def test_a_chip_without_the_figures_that_planning_needs_is_refused() -> None:
    fields = chip_spec()
    del fields["memory"]["bandwidth_gb_s"]
    assert "no memory bandwidth is known" in troubles({"mine": fields})[0]
    assert "no fp16 matrix peak" in troubles({"mine": chip_spec()}, training={"precision": "fp16"})[0]


def test_a_framework_that_does_not_train_the_models_layers_is_refused() -> None:
    delta = {"kind": "gated_deltanet", "key_heads": 2, "key_dim": 64, "value_heads": 4, "value_dim": 64, "conv": 4}
    linear = model_spec(linear_attention=delta, full_attention_interval=2)
    told = troubles(None, linear, launcher="megatron-core-0.13")
    assert told == [next(text for text in told if "does not train linear attention by a gated delta rule" in text)]
    assert problem_of(None, linear, launcher="megatron-lm").model.linear_attention is not None


def test_a_chip_under_two_names_is_refused() -> None:
    assert "same chip" in troubles({"a800": 4, "a800_sxm_80gb": 4})[0]


def test_an_unknown_stack_names_the_nearest() -> None:
    data = {**spec_of(), "stack": "megatron-cor"}
    with pytest.raises(InputError, match="megatron-core"):
        resolve(parse_spec(data))


def test_a_launcher_is_found_with_all_else_that_is_unknown() -> None:
    data = {**spec_of(model="llama2-7"), "launcher": "flag-scal"}
    with pytest.raises(InputError) as caught:
        resolve(parse_spec(data))
    where = {trouble.where: trouble for trouble in caught.value.troubles}
    assert set(where) == {"model", "launcher"}
    assert where["launcher"].nearest[0] == "flagscale"
    assert "torchtitan" in str(where["launcher"].allowed)
    found = resolve(parse_spec({**spec_of(), "launcher": "flagscale"})).launcher
    assert found is not None
    assert found.name == "flagscale"
    assert problem_of().launcher is None


def test_problems_are_values() -> None:
    assert problem_of() == problem_of()
    assert problem_of() != problem_of(batch=4)
    assert isinstance(problem_of(), Problem)


@pytest.mark.parametrize(
    ("launcher", "training", "where", "allowed"),
    [
        ("torchtitan", {"precision": "fp8"}, "training.precision", "bf16, or another launcher"),
        ("torchtitan", {"precision": "fp16"}, "training.precision", "bf16, or another launcher"),
        ("accelerate", {"precision": "fp8"}, "training.precision", "bf16, fp16, or another launcher"),
        ("deepspeed", {"precision": "fp8"}, "training.precision", "bf16, fp16, or another launcher"),
        ("accelerate", {"optimizer": "lion"}, "training.optimizer", "adam, or another launcher"),
        ("megatron-lm", {"swap_optimizer": True}, "training.swap_optimizer", "false, or another launcher"),
        ("deepspeed", {"fused_gate_up": False}, "training.fused_gate_up", "true, or another launcher"),
        ("torchtitan", {"moe_grouped_gemm": False}, "training.moe_grouped_gemm", "true, or another launcher"),
        ("loongforge", {"activation_offload": ["core_attn"]}, "training.activation_offload", "null, or another"),
        ("megatron-lm", {"activation_offload": ["attention"]}, "training.activation_offload", "attn_norm, qkv_linear"),
        ("deepspeed", {"optimizer_offload": 0.5}, "training.optimizer_offload", "search.pin.sharded = parameters"),
    ],
    ids=str,
)
def test_a_launcher_trains_what_its_profile_says(
    launcher: str, training: dict[str, Any], where: str, allowed: str
) -> None:
    chips = {"x": chip_spec(peak_tflops=dict.fromkeys(("bf16", "fp16", "fp8"), 100), host_link=HOST_LINK)}
    with pytest.raises(InputError) as caught:
        problem_of(chips, training=training, launcher=launcher)
    (trouble,) = caught.value.troubles
    assert trouble.where == where
    assert ".".join(map(str, trouble.path)) == where
    assert launcher in trouble.message
    assert allowed in str(trouble.allowed)
    problem_of(chips, training=training)


def test_what_a_launcher_trains_with() -> None:
    chips = {"x": chip_spec(peak_tflops=dict.fromkeys(("bf16", "fp8"), 100), host_link=HOST_LINK)}
    problem_of(chips, training={"precision": "fp8", "fp8_parameter_gather": True}, launcher="megatron-lm")
    problem_of(chips, training={"swap_optimizer": True}, launcher="mindspeed-llm")
    part: dict[str, Any] = {"training": {"optimizer_offload": 0.5}}
    problem_of(chips, **part, launcher="deepspeed", pin={"sharded": "parameters"})
    problem_of(chips, **part, launcher="megatron-lm")
    problem_of(chips, training={"optimizer_offload": 1}, launcher="deepspeed")


def test_mindspeed_counts_the_layers_with_experts_from_the_first() -> None:
    moe = {"experts": 4, "top_k": 2, "expert_ffn": 512, "freq": 2}
    (told,) = troubles(model=model_spec(moe={**moe, "offset": 1}), launcher="mindspeed-llm")
    assert "every n-th layer from the first" in told
    problem_of(model=model_spec(moe={**moe, "offset": 1}), launcher="megatron-lm")
    problem_of(model=model_spec(moe=moe), launcher="mindspeed-llm")


@pytest.mark.parametrize(
    ("chip", "training", "told"),
    [
        ("h100", {"precision": "nvfp4"}, "no fp4 matrix peak is known; its matrix units have no nvfp4"),
        ("mi355x", {"precision": "nvfp4"}, "its matrix units have no nvfp4"),
        ("h100", {"precision": "fp8", "fp8_recipe": "mx"}, "its matrix units have no mx"),
        ("a100", {"precision": "fp8"}, "no fp8 matrix peak is known"),
        ("h100", {"precision": "bf16", "fp8_recipe": "current"}, "it has no recipes"),
    ],
)
def test_chips_without_the_number_format_are_refused(chip: str, training: dict[str, str], told: str) -> None:
    assert any(told in each for each in troubles({chip: {"max": 4, "spec": None}}, training=training))
