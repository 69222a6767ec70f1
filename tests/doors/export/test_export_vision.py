"""Plans with an encoder of images in Megatron-Bridge's configuration, and why no other target takes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cpsolver.doors.export.judge import launch_of, reasons_against
from cpsolver.doors.export.launch import EXPORTERS, CannotExpress
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import launcher_names, load_launcher
from cpsolver.rules import violations
from cpsolver.search.search import search
from models_zoo.vision import Vision
from tests.support.problems import model_spec, problem_of, strategy_of

SIZES: dict[str, Any] = {"layers": 2, "hidden": 64, "ffn": 128, "heads": 4, "merge": 2, "projector": 256}
QWEN: dict[str, Any] = {**SIZES, "frames": 2, "projector_norm": "patch"}
QWEN3: dict[str, Any] = {**QWEN, "patch": 16, "positions": 2304, "deepstack": 2}
QWEN25: dict[str, Any] = {**QWEN, "gated_mlp": True, "activation": "swiglu", "norm": "rmsnorm", "patch_bias": False}
QWEN25 |= {"window": 64, "full_every": 2}


def seeing(vision: dict[str, Any], launcher: str | None = None, **images: Any) -> Problem:
    images = {"per_sequence": 2, "patches": 48 * 4, **images}
    given: dict[str, Any] = {"pin": {"mbs": 1, "pp": 1, "vpp": 1}, "top": 1, "launcher": launcher}
    return problem_of(model=model_spec(vision=vision), training={"images": images}, **given)


def written(problem: Problem, strategy: Any) -> dict[str, Any]:
    """What plan.py defines, up to where it runs as a script."""
    text = launch_of(problem, strategy, "megatron-bridge").files["plan.py"]
    compile(text, "plan.py", "exec")
    found: dict[str, Any] = {"get_mixed_precision_config": lambda name: SimpleNamespace()}
    found["AttnBackend"] = SimpleNamespace(flash="flash", unfused="unfused")
    exec(text[text.index("FIELDS") : text.index("if __name__")], found)
    return found


def test_families_by_how_an_encoder_is_built() -> None:
    assert Vision(**QWEN3).family == "qwen3_vl"
    assert Vision(**{**QWEN3, "deepstack": 0, "layers": 27}).family == "qwen3_vl"
    assert Vision(**QWEN25).family == "qwen2_5_vl"
    for change in ({"positions": 0}, {"class_token": True}, {"frames": 1}, {"projector": 64}):
        assert Vision(**{**QWEN3, **change}).family is None


def test_bridge_sets_the_plan_and_checks_the_models_sizes() -> None:
    """Widths stay the provider's: what would overwrite its rotary positions by sections, say, is not written."""
    plan = written(seeing({**QWEN3, "deepstack": 1}, trained=False), strategy_of("x:1,3", tp=2, dp=1, flags="sfz"))
    fields = plan["FIELDS"]
    assert fields["model.tensor_model_parallel_size"] == 2
    assert fields["model.num_layers_in_first_pipeline_stage"] == 1
    assert (fields["model.freeze_vision_model"], fields["model.freeze_vision_projection"]) == (True, False)
    assert not {"model.hidden_size", "model.position_embedding_type", "model.normalization"} & set(fields)
    encoder = {name.removeprefix("vision_config."): size for name, size in plan["SIZES"].items() if "." in name}
    own = {name: size for name, size in plan["SIZES"].items() if "." not in name}
    parts = {name.split(".")[0]: SimpleNamespace() for name in fields}
    model = SimpleNamespace(**own, vision_config=SimpleNamespace(**encoder))
    cfg = plan["configure"](SimpleNamespace(**{**parts, "model": model}))
    assert cfg.model.tensor_model_parallel_size == 2
    model.vision_config.depth = 27
    with pytest.raises(SystemExit, match=r"vision_config\.depth is 27, and 2 in the plan"):
        plan["configure"](SimpleNamespace(**{**parts, "model": model}))


def test_made_up_images_have_the_plans_patches() -> None:
    """48 tokens are 6 x 8, of 2 x 2 patches of 16 pixels each."""
    launch = launch_of(seeing(QWEN3), strategy_of(dp=4), "megatron-bridge")
    text = launch.files["plan.py"]
    assert "num_images=2," in text
    assert "image_size=(256, 192)," in text
    assert "qwen3_vl_step import forward_step" in text
    assert any("HF_MODEL" in note for note in launch.notes)
    qwen25 = launch_of(seeing(QWEN25), strategy_of(dp=4), "megatron-bridge")
    assert "vlm_step import forward_step" in qwen25.files["plan.py"]


def test_context_parallelism_takes_the_loss_by_token() -> None:
    fields = written(seeing(QWEN3), strategy_of(cp=2, dp=2))["FIELDS"]
    assert (fields["model.calculate_per_token_loss"], fields["ddp.average_in_collective"]) == (True, False)
    assert fields["model.vision_dp_when_cp"] is False


@pytest.mark.parametrize(
    ("vision", "plan", "told"),
    [
        (QWEN3, strategy_of("x:2,2", vpp=2, dp=2), "does not interleave: vpp is 2, and must be 1"),
        (QWEN3, strategy_of(dp=4, recompute="block", amount=2), "no recomputation of kind block"),
        (QWEN25, strategy_of(cp=2, dp=2), "has no context parallelism: cp is 2, and must be 1"),
        ({**QWEN3, "deepstack": 3}, strategy_of("x:2,2", dp=2), "which has 2 layers: Megatron-Bridge asserts as many"),
        ({**QWEN3, "class_token": True}, strategy_of(dp=4), "have encoders of qwen3_vl, qwen2_5_vl alone, and"),
    ],
    ids=["vpp", "recompute", "cp", "deepstack", "family"],
)
def test_bridge_refuses_by_name_what_its_modules_do_not_run(vision: dict[str, Any], plan: Any, told: str) -> None:
    with pytest.raises(CannotExpress) as caught:
        launch_of(seeing(vision), plan, "megatron-bridge")
    assert told in str(caught.value)


@pytest.mark.parametrize("target", [name for name in EXPORTERS if name != "megatron-bridge"])
def test_other_targets_have_no_encoder(target: str) -> None:
    (told,) = (text for text in reasons_against(seeing(QWEN3), strategy_of(dp=4), target) if "encoder" in text)
    assert told.startswith(f"plans of {target} have no encoder of images, and ")
    assert told.endswith(" has qwen3_vl")


def test_the_search_keeps_to_what_runs_beside_the_encoder() -> None:
    found = seeing(QWEN25, "megatron-bridge")
    assert found.named_launcher is not None
    assert not found.named_launcher.context_parallel
    plans = search(found).plans
    assert plans[0].strategy.cp == 1
    launch_of(found, plans[0].strategy, "megatron-bridge")
    (told,) = (each.message for each in violations(found, strategy_of(cp=2, dp=2)) if each.rule == "launcher")
    assert told.endswith("(beside an encoder of qwen2_5_vl)")


def test_what_is_otherwise_beside_an_encoder_are_facts() -> None:
    for name in launcher_names():
        launcher = load_launcher(name)
        for family, own in launcher.encoders.items():
            beside = launcher.beside(family)
            assert all(getattr(beside, fact) != getattr(launcher, fact) for fact in own)
        assert launcher.beside(None) is launcher
