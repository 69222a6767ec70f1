"""Which layers a framework builds for a model, where it has to be told: MindSpeed-LLM's --spec, LoongForge's file."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cpsolver.doors.export.judge import reasons_against
from cpsolver.doors.export.launch import Launch, exporter
from cpsolver.doors.export.loongforge import config, family
from cpsolver.doors.export.report import launch_text
from cpsolver.problem.problem import Problem
from models_zoo import Architecture, load_architecture
from models_zoo.hugging_face import from_hugging_face
from tests.support.problems import model_spec, problem_of, strategy_of
from tests.support.special_models import compressed, shortcut

MLA = {"kind": "mla", "q_lora": 64, "kv_lora": 32, "qk_nope": 16, "qk_rope": 8, "v_head": 16}
EXPERTS = {"experts": 4, "top_k": 2, "expert_ffn": 512}
LOONGFORGE_KEYS = {
    *("_target_", "model_type", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels"),
    *("group_query_attention", "num_query_groups", "position_embedding_type", "add_position_embedding", "swiglu"),
    *("rotary_interleaved", "normalization", "attention_dropout", "hidden_dropout", "add_bias_linear", "add_qkv_bias"),
    *("qk_layernorm", "untie_embeddings_and_output_weights", "num_experts", "moe_ffn_hidden_size", "moe_layer_freq"),
    *("moe_shared_expert_intermediate_size", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim"),
    *("v_head_dim", "multi_latent_attention", "mtp_num_layers"),
    *("experimental_attention_variant", "dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk"),
}
"""Keys of configs/models in LoongForge c6275661, which are fields of the classes that these files name."""


def problem_with(**changes: Any) -> Problem:
    return problem_of(model=model_spec(layers=4, **changes))


def exported(target: str, problem: Problem, **more: Any) -> Launch:
    """Two stages of two replicas, or as `more` says."""
    return exporter(target)(problem, strategy_of("x:2,2", **{"flags": "fz", "dp": 2, **more}))


def named(name: str) -> Problem:
    return replace(problem_of(), model=load_architecture(name))


@pytest.mark.parametrize(
    ("changes", "spec"),
    [
        ({}, None),
        ({"moe": EXPERTS}, None),
        ({"attention": MLA}, "deepseek_spec"),
        (shortcut(), "longcat_spec"),
        (compressed((0, 4, 64, 4)), "deepseek4_spec"),
        ({"attention": {"kind": "mha", "qk_norm": "head"}}, "qwen3_spec"),
        ({"attention": {"kind": "mha", "qk_norm": "head"}, "norms_per_layer": 4}, "gemma2_spec"),
        ({"attention": {"kind": "mha", "qk_norm": "layer"}}, "minimax_spec"),
        ({"bias_attention_out": True}, "phi35_moe_spec"),
        ({"bias_attention_out": True, "bias_mlp": True}, None),
    ],
)
def test_mindspeed_is_told_its_layers(changes: dict[str, Any], spec: str | None) -> None:
    arguments = exported("mindspeed-llm", problem_with(**changes)).arguments
    told = [arguments[at + 1 : at + 3] for at, word in enumerate(arguments) if word == "--spec"]
    assert told == ([(f"mindspeed_llm.tasks.models.spec.{spec}", "layer_spec")] if spec else [])


@pytest.mark.parametrize(("tp", "overlaps"), [(1, False), (2, True)])
def test_mindspeed_makes_projections_again_in_the_way_it_takes(tp: int, overlaps: bool) -> None:
    """Over several ranks with --mla-up-proj-tp-overlap alone, which needs --mla-mm-split (mla_feature.py)."""
    problem = problem_of(model=model_spec(attention=MLA), training={"recompute_mla_up_proj": True})
    flags = exported("mindspeed-llm", problem, tp=tp, dp=2 // tp, flags="sfz" if tp > 1 else "fz").arguments
    assert "--recompute-mla-up-proj" in flags
    assert ("--mla-up-proj-tp-overlap" in flags, "--mla-mm-split" in flags) == (overlaps, overlaps)


def test_mindspeed_has_windows_in_every_layer_without_context_parallelism_only() -> None:
    """It raises an error beside context parallelism; of another rule than every second layer it has none."""
    problem = problem_with(attention={"kind": "mha", "sliding_window": 64})
    alone, split = exported("mindspeed-llm", problem), exported("mindspeed-llm", problem, dp=1, cp=2)
    some = exported("mindspeed-llm", problem_with(attention={"kind": "mha", "sliding_window": 64, "full_every": 4}))
    assert "--sliding-window 64" in " ".join(alone.arguments)
    for launch, lacks in ((alone, False), (split, True), (some, True)):
        assert ("--sliding-window" not in launch.arguments) is lacks
        assert any("a sliding window" in note for note in launch.notes) is lacks


def test_mindspeeds_bias_of_attention_is_asked_for() -> None:
    """Its phi35_moe_spec adds one with --add-dense-bias alone."""
    launch = exported("mindspeed-llm", problem_with(bias_attention_out=True))
    assert "--add-dense-bias" in launch.arguments
    assert "--add-dense-bias" not in exported("mindspeed-llm", problem_of()).arguments


def test_mindspeed_has_norms_over_all_heads_without_tensor_parallelism_only() -> None:
    """Its minimax_spec asserts tp 1; with tp 2 a note says what is missing."""
    problem = problem_with(attention={"kind": "mha", "qk_norm": "layer"})
    alone, split = exported("mindspeed-llm", problem), exported("mindspeed-llm", problem, dp=1, tp=2, flags="sfz")
    assert "--qk-layernorm" in alone.arguments
    assert not any("all queries and keys" in note for note in alone.notes)
    assert "--spec" not in split.arguments
    assert any("all queries and keys" in note for note in split.notes)


@pytest.mark.parametrize(("activation", "flag"), [("geglu", "--geglu"), ("geglu_tanh", "--gelu-tanh")])
def test_mindspeed_has_gated_gelu(activation: str, flag: str) -> None:
    launch = exported("mindspeed-llm", problem_with(activation=activation))
    assert flag in launch.arguments
    assert not {"--swiglu", "--use-fused-swiglu"} & set(launch.arguments)
    assert not any("activation" in note for note in launch.notes)
    assert any("activation" in note for note in exported("megatron-lm", problem_with(activation=activation)).notes)


def test_gemma2_as_mindspeeds_own_script_has_it() -> None:
    """examples/mcore/gemma2/pretrain_gemma2_27b_ptd.sh of c77308a1."""
    problem = named("gemma2-27b")
    launch = exporter("mindspeed-llm")(problem, strategy_of("x:20,26", flags="fz"))
    text = " ".join(launch.arguments)
    for told in (
        *("--spec mindspeed_llm.tasks.models.spec.gemma2_spec layer_spec", "--gelu-tanh", "--post-norm"),
        *("--norm-epsilon 1e-06", "--kv-channels 128", "--num-query-groups 16"),
    ):
        assert told in text
    assert not any("norms a layer" in note for note in launch.notes)


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-core-0.12", "mindspeed-llm", "loongforge"])
def test_constants_of_the_model_are_told(target: str) -> None:
    known = problem_with(rotary_base=500_000, norm_epsilon=1e-5, router_scaling=2.5, moe=EXPERTS)
    launch = exported(target, known)
    text = " ".join(launch.arguments)
    assert "--rotary-base 500000 " in text
    assert "--norm-epsilon 1e-05 " in text
    assert "--moe-router-topk-scaling-factor 2.5 " in text
    assert not any("--rotary-base" in note or "--norm-epsilon" in note for note in launch.notes)
    unknown = exported(target, problem_with(moe=EXPERTS))
    assert not {"--rotary-base", "--norm-epsilon", "--moe-router-topk-scaling-factor"} & set(unknown.arguments)
    assert any("--rotary-base" in note and "--norm-epsilon" in note for note in unknown.notes)


def test_bridge_has_the_constants_as_numbers() -> None:
    known = problem_with(rotary_base=500_000, norm_epsilon=1e-6)
    fields = exported("megatron-bridge", known).files["plan.py"]
    assert "'model.rotary_base': 500000," in fields
    assert "'model.layernorm_epsilon': 1e-06," in fields


@pytest.mark.parametrize(("dense", "layers", "pp", "runs"), [(3, 61, 16, False), (3, 61, 8, True), (0, 61, 16, True)])
def test_dense_layers_before_the_experts_are_a_rule_of_mindspeeds_profile(
    dense: int, layers: int, pp: int, runs: bool
) -> None:
    """61 // 16 is 3, and DeepSeek-V3 has three dense layers: not fewer; 61 // 8 is 7."""
    problem = problem_of(model=model_spec(layers=layers, moe={**EXPERTS, "first_dense": dense}), gpus=pp)
    even = [layers // pp] * (pp - 1)
    plan = strategy_of("x:" + ",".join(map(str, [*even, layers - sum(even)])), flags="f")
    reasons = [reason for reason in reasons_against(problem, plan, "mindspeed-llm") if "dense layers" in reason]
    assert bool(reasons) is not runs
    assert not any("dense layers" in reason for reason in reasons_against(problem, plan, "megatron-core-0.12"))


# LoongForge


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, ("LLaMAConfig", "llama")),
        ({"mtp_layers": 1}, ("MimoConfig", "mimo")),
        ({"moe": EXPERTS}, ("Qwen3Config", "qwen3")),
        ({"moe": EXPERTS, "mtp_layers": 1}, None),
        ({"moe": {**EXPERTS, "shared_experts": 1}}, None),
        ({"moe": {**EXPERTS, "first_dense": 1}}, None),
        ({"moe": EXPERTS, "attention": {"kind": "mha", "qk_norm": "layer"}}, ("MinimaxConfig", "minimax")),
        ({"moe": {**EXPERTS, "shared_experts": 1, "first_dense": 1}, "attention": MLA}, ("DeepseekConfig", "deepseek")),
        ({"attention": MLA}, None),
    ],
)
def test_loongforge_names_a_class_that_builds_the_layers(
    changes: dict[str, Any], named: tuple[str, str] | None
) -> None:
    problem = problem_with(**changes)
    assert family(problem.model) == named
    launch = exported("loongforge", problem)
    written = YAML(typ="safe").load(launch.files["model.yaml"])
    assert written["_target_"] == (f"loongforge.models.foundation.{named[0]}" if named else "???")
    assert any("no class of LoongForge" in note for note in launch.notes) is (named is None)
    assert written.keys() <= LOONGFORGE_KEYS


def own(name: str) -> dict[str, Any]:
    return config(named(name))


def test_loongforges_file_has_what_its_own_has() -> None:
    """configs/models/deepseek3/deepseek_v3.yaml, qwen3/qwen3_30b_a3b.yaml and llama3/llama3_1_70b.yaml of c6275661."""
    deepseek, qwen, llama = own("deepseek-v3-671b"), own("qwen3-30b-a3b"), own("llama3.1-70b")
    assert (deepseek["num_query_groups"], deepseek["qk_layernorm"], deepseek["mtp_num_layers"]) == (128, True, 1)
    assert deepseek["moe_layer_freq"] == '${moe_freq:"([0]*3+[1]*58)"}'
    assert (deepseek["q_lora_rank"], deepseek["moe_shared_expert_intermediate_size"]) == (1536, 2048)
    assert (qwen["num_query_groups"], qwen["kv_channels"], qwen["qk_layernorm"], qwen["num_experts"]) == (
        4,
        128,
        True,
        128,
    )
    assert (llama["group_query_attention"], llama["num_query_groups"], llama["qk_layernorm"]) == (True, 8, False)
    assert not {"group_query_attention", "kv_channels"} & deepseek.keys()


def test_loongforge_has_the_indexer_in_the_models_file() -> None:
    """configs/models/glm5/glm5.yaml and glm5.2/glm5_2.yaml of c6275661."""
    glm = own("glm5-744b-a40b")
    assert glm["experimental_attention_variant"] == "dsa"
    assert [glm[f"dsa_indexer_{name}"] for name in ("n_heads", "head_dim", "topk")] == [32, 128, 2048]
    assert "dsa_indexer_topk_freq" not in glm
    shared = {"heads": 4, "dim": 16, "topk": 512, "every": 2, "first": 2}
    problem = problem_with(attention={**MLA, "indexer": shared}, moe=EXPERTS)
    fields = config(problem)
    assert (fields["dsa_indexer_topk_freq"], fields["dsa_indexer_skip_topk_offset"]) == (2, 2)
    arguments = exported("loongforge", problem).arguments
    assert not any("indexer" in word or "experimental" in word for word in arguments)
    for moe in ({}, {"moe": EXPERTS}):  # an indexer without latent attention: no class, but the fields
        alone = config(problem_with(attention={"indexer": shared}, **moe))
        assert (alone["_target_"], alone["dsa_indexer_topk"]) == ("???", 512)


def test_loongforge_starts_with_the_file_beside_the_script(tmp_path: Path) -> None:
    launch = exported("loongforge", problem_with())
    assert launch.arguments[:2] == ("--config-file", "model.yaml")
    assert launch_text(launch).count("--num-layers") == 1  # not once more before the files
    for name, text in launch.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    stub = tmp_path / "bin"
    stub.mkdir()
    (stub / "torchrun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    (stub / "torchrun").chmod(0o755)
    words = {"PATH": f"{stub}:/usr/bin:/bin", "NODE_RANK": "0", "MASTER_ADDR": "a", "LOONGFORGE_PATH": "/opt/lf"}
    done = subprocess.run(
        ["bash", str(tmp_path / "train.sh")], env=words, capture_output=True, text=True, check=True, cwd="/"
    )
    told = done.stdout.splitlines()
    assert told[told.index("--config-file") + 1] == shlex.quote(str(tmp_path / "model.yaml"))
    assert "/opt/lf/loongforge/train.py" in told


def test_what_a_models_file_says_of_its_constants_is_read() -> None:
    model = load_architecture("deepseek-v3-671b")
    assert isinstance(model, Architecture)
    assert (model.rotary_base, model.norm_epsilon, model.router_scaling) == (10000, 1e-6, 2.5)


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("keys", "known"),
    [
        ({}, {}),
        ({"rope_theta": 500000.0, "rms_norm_eps": 1e-5}, {"rotary_base": 500000, "norm_epsilon": 1e-5}),
        ({"rope_parameters": {"rope_theta": 10000}}, {"rotary_base": 10000}),
        ({"rope_theta": 10000.5, "rms_norm_eps": "small"}, {}),
        ({"rope_theta": True, "rms_norm_eps": -1, "routed_scaling_factor": 2.5}, {}),
    ],
)
def test_constants_of_a_configuration_are_read(keys: dict[str, Any], known: dict[str, float]) -> None:
    found = from_hugging_face({**LLAMA, **keys})
    assert {name: found[name] for name in ("rotary_base", "norm_epsilon", "router_scaling") if name in found} == known
