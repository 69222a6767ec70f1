"""Adapters in Megatron-Bridge's configuration, and why no other target takes them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cpsolver.doors.export.judge import launch_of
from cpsolver.doors.export.launch import EXPORTERS, CannotExpress
from cpsolver.problem.problem import Problem
from tests.support.problems import problem_of, strategy_of

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


@pytest.mark.parametrize("target", [name for name in EXPORTERS if name != "megatron-bridge"])
def test_other_targets_refuse_adapters_by_name(target: str) -> None:
    with pytest.raises(CannotExpress, match=r"does not have training\.lora"):
        launch_of(tuned(lora={}), strategy_of(dp=4), target)


def test_packed_sequences_are_the_datas() -> None:
    for target, words in (("megatron-bridge", "offline_packing_specs"), ("megatron-lm", "--sft")):
        notes = launch_of(tuned(lengths=LENGTHS), strategy_of(dp=4), target).notes
        assert any(words in note for note in notes), notes
        assert not any(words in note for note in launch_of(tuned(), strategy_of(dp=4), target).notes)
    with pytest.raises(CannotExpress, match=r"does not have training\.lengths"):
        launch_of(tuned(lengths=LENGTHS), strategy_of(dp=4), "megatron-core-0.12")
