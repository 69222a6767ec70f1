"""Adapters in Megatron-Bridge's configuration and MindSpeed-LLM's arguments, and why no other target takes them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cpsolver.doors.export.judge import launch_of
from cpsolver.doors.export.launch import EXPORTERS, CannotExpress
from cpsolver.inputs.errors import InputError
from cpsolver.problem.problem import Problem
from tests.support.problems import model_spec, problem_of, strategy_of

MLA = {"kind": "mla", "kv_lora": 128, "qk_nope": 64, "qk_rope": 32, "v_head": 64}
LENGTHS = [{"tokens": 512, "share": 1}, {"tokens": 256, "share": 2}]


def tuned(**training: Any) -> Problem:
    return problem_of(training=training)


def test_bridge_writes_fields_of_its_lora(monkeypatch: pytest.MonkeyPatch) -> None:
    """configure(cfg) makes the adapters where a recipe has none, and sets them as the spec has them."""
    lora = {"rank": 16, "targets": "attention", "dropout": 0.1, "all_to_all": True}
    launch = launch_of(tuned(lora=lora), strategy_of(dp=4), "megatron-bridge")
    assert "peft.dim=16" in launch.arguments
    assert "peft.target_modules=[linear_qkv,linear_proj]" in launch.arguments
    text = launch.files["plan.py"]
    module: Any = ModuleType("megatron.bridge.peft.lora")
    module.LoRA = type("LoRA", (), {})
    monkeypatch.setitem(sys.modules, "megatron.bridge.peft.lora", module)
    found: dict[str, Any] = {"get_mixed_precision_config": lambda name: SimpleNamespace()}
    found["AttnBackend"] = SimpleNamespace(flash="flash")
    body = text[text.index("FIELDS") : text.index("if __name__")]
    exec(body, found)
    parts = {name.split(".")[0]: SimpleNamespace() for name in found["FIELDS"]}
    cfg = found["configure"](SimpleNamespace(**{**parts, "peft": None}))
    assert isinstance(cfg.peft, module.LoRA)
    expected = {"target_modules": ["linear_qkv", "linear_proj"], "dim": 16, "dropout": 0.1, "a2a_experimental": True}
    assert vars(cfg.peft) == expected
    compile(text, "plan.py", "exec")
    assert "PRETRAINED_CHECKPOINT" in text


def test_parts_of_fused_layers_are_canonical_lora() -> None:
    launch = launch_of(tuned(lora={"targets": ["q_proj", "v_proj"]}), strategy_of(dp=4), "megatron-bridge")
    assert "CanonicalLoRA()" in launch.files["plan.py"]
    assert "peft.target_modules=[linear_q,linear_v]" in launch.arguments
    assert not any("a2a" in argument for argument in launch.arguments)


@pytest.mark.parametrize("shared", [True, False])
def test_whether_experts_share_their_adapters_is_said(shared: bool) -> None:
    lora = {"rank": 16, "targets": "mlp", "share_expert_adapters": shared}
    problem = problem_of(model=model_spec(moe={"experts": 4, "top_k": 2, "expert_ffn": 512}), training={"lora": lora})
    launch = launch_of(problem, strategy_of(dp=4), "megatron-bridge")
    assert f"peft.share_expert_adapters={str(shared).lower()}" in launch.arguments


def test_without_adapters_nothing_is_said_of_them() -> None:
    launch = launch_of(tuned(), strategy_of(dp=4), "megatron-bridge")
    assert "peft" not in launch.files["plan.py"]
    assert not any("peft" in argument for argument in launch.arguments)


def test_bridge_refuses_what_it_has_no_field_for() -> None:
    narrow = tuned(lora={"quantized_base": "nf4"})
    with pytest.raises(CannotExpress, match="holds no frozen layers in 4 bits"):
        launch_of(narrow, strategy_of(dp=4), "megatron-bridge")
    parts = tuned(lora={"targets": ["q_proj"], "all_to_all": True})
    with pytest.raises(CannotExpress, match="adapters of fused layers alone"):
        launch_of(parts, strategy_of(dp=4), "megatron-bridge")


@pytest.mark.parametrize("target", [name for name in EXPORTERS if name not in ("megatron-bridge", "mindspeed-llm")])
def test_other_targets_refuse_adapters_by_name(target: str) -> None:
    with pytest.raises(CannotExpress, match=r"does not have training\.lora"):
        launch_of(tuned(lora={}), strategy_of(dp=4), target)


def test_mindspeed_takes_its_own_names_of_adapters() -> None:
    launch = launch_of(tuned(lora={"rank": 16, "targets": "attention"}), strategy_of(dp=4), "mindspeed-llm")
    told = " ".join(launch.arguments)
    assert "--lora-r 16 --lora-alpha 32 --lora-target-modules linear_qkv linear_proj" in told
    assert all(text in launch.files["train.sh"] for text in ("posttrain_gpt.py", "--stage sft", "LOAD_DIR"))
    plain = launch_of(tuned(), strategy_of(dp=4), "mindspeed-llm")
    assert "--lora-r" not in plain.arguments
    assert "LOAD_DIR" not in plain.files["train.sh"]


@pytest.mark.parametrize(
    "lora", [{"dropout": 0.1}, {"targets": ["q_proj"]}, {"all_to_all": True}, {"quantized_base": "nf4"}], ids=str
)
def test_mindspeed_has_plain_adapters_alone(lora: dict[str, Any]) -> None:
    with pytest.raises(CannotExpress, match=r"does not have training\.lora: may be null; of models without experts"):
        launch_of(tuned(lora=lora), strategy_of(dp=4), "mindspeed-llm")


@pytest.mark.parametrize("more", [{"moe": {"experts": 4, "top_k": 1, "expert_ffn": 512}}, {"attention": MLA}], ids=str)
def test_what_mindspeed_has_no_adapters_beside_is_refused_by_spec_and_export(more: dict[str, Any]) -> None:
    """Its experts need --moe-token-dispatcher-type alltoall_seq beside adapters, which is not counted."""
    own: dict[str, Any] = {"model": model_spec(**more), "training": {"lora": {"targets": ["linear_proj"]}}}
    with pytest.raises(CannotExpress, match=r"does not have training\.lora: may be null; of models without experts"):
        launch_of(problem_of(**own), strategy_of(dp=4), "mindspeed-llm")
    with pytest.raises(InputError, match=r"training\.lora: launcher mindspeed-llm does not have it"):
        problem_of(**own, launcher="mindspeed-llm")


def test_packed_sequences_are_the_datas() -> None:
    for target, words in (("megatron-bridge", "offline_packing_specs"), ("megatron-lm", "--sft")):
        notes = launch_of(tuned(lengths=LENGTHS), strategy_of(dp=4), target).notes
        assert any(words in note for note in notes), notes
        assert not any(words in note for note in launch_of(tuned(), strategy_of(dp=4), target).notes)
    with pytest.raises(CannotExpress, match=r"does not have training\.lengths"):
        launch_of(tuned(lengths=LENGTHS), strategy_of(dp=4), "megatron-core-0.12")
