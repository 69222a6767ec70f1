"""Hugging Face configurations against the catalogue, and against counts of the models that transformers builds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.importing.catalogue_match import catalogue_matches
from models_zoo import (
    Architecture,
    UnsupportedConfigError,
    from_hugging_face,
    is_hugging_face,
    load_architecture,
    supported_families,
    total_parameters,
)
from tests.support.checkout import ROOT
from tests.support.command import in_tmp, run  # noqa: F401


def dense(layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocab: int, **more: Any) -> dict[str, Any]:
    """The keys that most configurations have."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        **more,
    }


ALTERNATE = {"layer_types": ["sliding_attention", "full_attention"] * 12, "sliding_window": 128}
DEEPSEEK = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama2-7b": {"model_type": "llama", **dense(32, 4096, 11008, 32, 32, 32000, tie_word_embeddings=False)},
    "llama3.1-70b": {"model_type": "llama", **dense(80, 8192, 28672, 64, 8, 128256)},
    "mistral-7b": {"model_type": "mistral", **dense(32, 4096, 14336, 32, 8, 32000, sliding_window=4096)},
    "mixtral-8x7b": {
        "model_type": "mixtral",
        **dense(32, 4096, 14336, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
    },
    "qwen2.5-7b": {"model_type": "qwen2", **dense(28, 3584, 18944, 28, 4, 152064, use_sliding_window=False)},
    "qwen3-8b": {"model_type": "qwen3", **dense(36, 4096, 12288, 32, 8, 151936, head_dim=128)},
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        **dense(48, 2048, 6144, 32, 4, 151936, head_dim=128, num_experts=128, num_experts_per_tok=8),
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "deepseek-v2-lite": {
        "model_type": "deepseek_v2",
        **dense(27, 2048, 10944, 16, 16, 102400, n_routed_experts=64, num_experts_per_tok=6, n_shared_experts=2),
        **DEEPSEEK,
        "q_lora_rank": None,
        "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1,
        "topk_method": "greedy",
    },
    "deepseek-v3-671b": {
        "model_type": "deepseek_v3",
        **dense(61, 7168, 18432, 128, 128, 129280, n_routed_experts=256, num_experts_per_tok=8, n_shared_experts=1),
        **DEEPSEEK,
        "q_lora_rank": 1536,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1,
        "topk_method": "noaux_tc",
        "n_group": 8,
        "topk_group": 4,
    },
    "glm4.5-355b-a32b": {
        "model_type": "glm4_moe",
        **dense(92, 5120, 12288, 96, 8, 151552, head_dim=128, n_routed_experts=160, num_experts_per_tok=8),
        "n_shared_experts": 1,
        "moe_intermediate_size": 1536,
        "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1,
        "attention_bias": True,
        "use_qk_norm": True,
    },
    "gemma3-27b": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            **dense(62, 5376, 21504, 32, 16, 262208, head_dim=128, sliding_window=1024),
        },
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        **dense(24, 2880, 2880, 64, 8, 201088, head_dim=64, num_local_experts=32, num_experts_per_tok=4),
        **ALTERNATE,
    },
    "phi3.5-mini": {"model_type": "phi3", **dense(32, 3072, 8192, 32, 32, 32064, sliding_window=None)},
    "phi3.5-moe-42b": {
        "model_type": "phimoe",
        **dense(32, 4096, 6400, 32, 8, 32064, num_local_experts=16, num_experts_per_tok=2, attention_bias=True),
    },
    "bloom-176b": {"model_type": "bloom", "n_layer": 70, "hidden_size": 14336, "n_head": 112, "vocab_size": 250880},
    "baichuan2-13b": {"model_type": "baichuan", **dense(40, 5120, 13696, 40, 40, 125696, model_max_length=4096)},
    "internlm-7b": {"model_type": "internlm", **dense(32, 4096, 11008, 32, 32, 103168, bias=True)},
    "minimax-m2.5-229b-a10b": {
        "model_type": "minimax_m2",
        **dense(62, 3072, 1536, 48, 8, 200064, head_dim=128, num_local_experts=256, num_experts_per_tok=8),
        "use_mtp": True,
        "num_mtp_modules": 3,
        "use_routing_bias": True,
    },
    "llama4-maverick-400b": {
        "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text",
            **dense(48, 5120, 8192, 40, 8, 202048, head_dim=128, num_local_experts=128, num_experts_per_tok=1),
            "intermediate_size_mlp": 16384,
            "interleave_moe_layer_step": 2,
        },
    },
    "kimi-k2-1t": {
        "model_type": "kimi_k2",
        **dense(61, 7168, 18432, 64, 64, 163840, n_routed_experts=384, num_experts_per_tok=8, n_shared_experts=1),
        **DEEPSEEK,
        "q_lora_rank": 1536,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 1,
        "topk_method": "noaux_tc",
    },
    "seed-oss-36b": {
        "model_type": "seed_oss",
        **dense(64, 5120, 27648, 80, 8, 155136, head_dim=128, attention_bias=True),
    },
}
"""Published values of config.json, by the catalogue's entry, which has the same with its own source."""


def read(config: dict[str, Any]) -> Architecture:
    return Architecture.model_validate({"name": "x", **from_hugging_face(config)})


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_are_the_catalogue_s(name: str) -> None:
    config = PUBLISHED[name]
    entry, model = load_architecture(name), read(config)
    found = [match.name for match in catalogue_matches(from_hugging_face(config), name)]
    assert total_parameters(model) == total_parameters(entry)
    if name not in ("mistral-7b",):  # the catalogue has the version without a window
        assert name in found


SMALL = dense(6, 64, 160, 8, 2, 1000, head_dim=8)
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
ROUTED = {**EXPERTS, "n_routed_experts": 4, "n_shared_experts": 2, "first_k_dense_replace": 1}
COUNTED: dict[str, tuple[dict[str, Any], int]] = {
    "llama": ({}, 374_592),
    "mistral": ({}, 374_592),
    "mixtral": (EXPERTS, 929_088),
    "qwen2": ({}, 375_168),
    "qwen2_moe": ({**EXPERTS, "shared_expert_intermediate_size": 40}, 460_032),
    "qwen3": ({}, 374_688),
    "qwen3_moe": (EXPERTS, 413_088),
    "deepseek_v2": ({**ROUTED, **LATENT}, 505_136),
    "gemma": ({"hidden_act": "gelu"}, 310_592),
    "gemma2": ({}, 311_360),
    "gemma3_text": ({}, 311_456),
    "glm": ({}, 375_168),
    "glm4": ({}, 375_936),
    "gpt_oss": (EXPERTS, 939_336),
    "granite": ({}, 374_592),
    "granitemoe": (EXPERTS, 929_088),
    "llama4_text": (EXPERTS, 1_113_408),
    "olmo2": ({}, 375_072),
    "olmo3": ({}, 375_072),
    "olmoe": (EXPERTS, 929_568),
    "phi3": ({}, 374_592),
    "phimoe": ({**EXPERTS, "attention_bias": False}, 929_920),
    "seed_oss": ({}, 375_168),
    "starcoder2": ({}, 252_288),
    "gpt_neox": ({}, 353_728),
}
"""Keys besides SMALL, and what transformers 5.23 counts in the model that it builds of them (on the meta device)."""


@pytest.mark.parametrize("family", COUNTED)
def test_parameters_are_those_of_the_built_model(family: str) -> None:
    more, counted = COUNTED[family]
    assert total_parameters(read({"model_type": family, **SMALL, **more})) == counted


OWN_KEYS = {
    "gpt2": ({"n_embd": 64, "n_layer": 6, "n_head": 8, "n_positions": 128}, 372_224),
    "gpt_bigcode": ({"n_embd": 64, "n_layer": 6, "n_head": 8, "n_positions": 128}, 328_544),
    "bloom": ({"hidden_size": 64, "n_layer": 6, "n_head": 8}, 364_160),
    "opt": (
        {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 8, "ffn_dim": 256, "word_embed_proj_dim": 64}
        | {"max_position_embeddings": 128},
        372_352,
    ),
    "falcon": (
        {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 8, "num_kv_heads": 2}
        | {"new_decoder_architecture": True},
        323_712,
    ),
}


@pytest.mark.parametrize("family", OWN_KEYS)
def test_families_with_keys_of_their_own(family: str) -> None:
    keys, counted = OWN_KEYS[family]
    assert total_parameters(read({"model_type": family, "vocab_size": 1000, **keys})) == counted


def test_chatglm_and_the_first_qwen() -> None:
    """Published sizes: ChatGLM3-6B 6.24 billion, Qwen-7B 7.72 billion."""
    glm = {"num_layers": 28, "hidden_size": 4096, "ffn_hidden_size": 13696, "num_attention_heads": 32}
    glm |= {"multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128, "padded_vocab_size": 65024}
    assert total_parameters(read({"model_type": "chatglm", **glm, "add_qkv_bias": True})) == 6_243_584_000
    first = dense(32, 4096, 22016, 32, 32, 151936, kv_channels=128, seq_length=8192)
    assert total_parameters(read({"model_type": "qwen", **first})) == 7_721_324_544


def test_an_unknown_family_names_those_there_are_and_the_nearest() -> None:
    with pytest.raises(UnsupportedConfigError) as caught:
        from_hugging_face({"model_type": "qwen33"})
    assert caught.value.nearest[0].startswith("qwen3")
    assert set(supported_families()) == set(str(caught.value.allowed).split(", "))


def test_a_relative_that_differs_in_shape_is_not_suggested() -> None:
    with pytest.raises(UnsupportedConfigError) as caught:
        from_hugging_face({"model_type": "qwen3_next"})
    assert "qwen3_vl_text" not in caught.value.nearest


def test_a_text_model_that_is_left_to_defaults_is_named() -> None:
    """As in llava-1.5's file, whose text_config has the name of its text model and no sizes."""
    text = {"model_type": "llama", "_name_or_path": "lmsys/vicuna-7b-v1.5", "vocab_size": 32064}
    with pytest.raises(UnsupportedConfigError, match="lmsys/vicuna-7b") as caught:
        from_hugging_face({"model_type": "llava", "text_config": text})
    assert caught.value.where == "text_config"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "llama"}, "hidden_size is missing"),
        ({"model_type": "deepseek_v3", **SMALL, **LATENT, **ROUTED, "index_topk": 64}, "indexer"),
        ({"model_type": "qwen3_moe", **SMALL, **EXPERTS, "mlp_only_layers": [0]}, "mlp_only_layers"),
        (
            {"model_type": "opt", **SMALL, "ffn_dim": 4, "max_position_embeddings": 8, "word_embed_proj_dim": 3},
            "word_embed",
        ),
    ],
)
def test_what_no_field_can_say_is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedConfigError, match=said):
        from_hugging_face(config)


def test_the_document_lists_the_families() -> None:
    text = (ROOT / "docs" / "import.md").read_text(encoding="utf-8")
    listed = text[text.index("<!-- families -->") : text.index("<!-- /families -->")]
    assert tuple(re.findall(r"`(\w+)`", listed)) == supported_families()
    assert "Thirty" in text
    assert len(COUNTED) + len(OWN_KEYS) == 30


def test_fields_of_an_architecture_are_no_configuration() -> None:
    assert not is_hugging_face({"layers": 2})
    assert not is_hugging_face([])


def config_file(name: str, config: dict[str, Any]) -> None:
    Path(name).write_text(json.dumps(config), encoding="utf-8")


def test_a_spec_s_model_may_be_a_configuration() -> None:
    config_file("config.json", {"model_type": "llama", **SMALL})
    text = "model: config.json\ncluster: {num_gpus: 2, gpus_per_node: 2, chips: a800}\n"
    text += "training: {global_batch_size: 4, sequence_length: 128}\nsearch: {top: 1}\n"
    Path("spec.yaml").write_text(text, encoding="utf-8")
    result = run("solve", "spec.yaml", "--json")
    assert result.exit_code == 0, result.output
    config_file("config.json", {"model_type": "llamma", **SMALL})
    result = run("solve", "spec.yaml")
    assert result.exit_code == 2
    assert "is not a family that can be read" in result.output
    assert "did you mean 'llama'" in result.output


def test_import_of_a_folder_with_a_configuration() -> None:
    Path("model").mkdir()
    config_file("model/config.json", PUBLISHED["qwen3-8b"])
    result = run("import", "model", "-o", "spec.yaml")
    assert result.exit_code == 0, result.output
    text = Path("spec.yaml").read_text(encoding="utf-8")
    assert "model: qwen3-8b" in text
    assert text.count("TO FILL IN") == 5
    assert "fill-me-in" in run("solve", "spec.yaml").output
    more = ("--chip", "h100", "--num-gpus", "16", "--global-batch-size", "64", "--sequence-length", "4096")
    result = run("import", "model", *more, "-o", "full.yaml")
    assert result.exit_code == 0
    assert "TO FILL IN: devices in a node" in Path("full.yaml").read_text(encoding="utf-8")
    assert run("solve", "full.yaml", "--top", "1").exit_code == 0


def test_a_configuration_has_no_plan_to_write() -> None:
    config_file("config.json", PUBLISHED["qwen3-8b"])
    result = run("import", "config.json", "--strategy-output", "plan.yaml")
    assert result.exit_code == 2
    assert "there is no plan to write" in result.output
    assert not Path("plan.yaml").exists()


@pytest.mark.parametrize("text", ["{", "{}", '{"layers": 3}'])
def test_other_json_is_refused(text: str) -> None:
    Path("config.json").write_text(text, encoding="utf-8")
    result = run("import", "config.json")
    assert result.exit_code == 2
    assert "config.json" in result.output


@pytest.mark.parametrize(
    ("family", "more", "window"),
    [
        ("gemma3_text", {"sliding_window_pattern": 4}, {"sliding_window": 512, "full_every": 4}),
        ("gemma3_text", {}, {"sliding_window": 512, "full_every": 6}),
        ("gemma2", {"layer_types": ["sliding_attention"] * 24}, {"sliding_window": 512}),
        ("olmo3", {}, {"sliding_window": 512, "full_every": 4}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 24}, {}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, {"sliding_window": 512}),
    ],
)
def test_windows_are_where_the_configuration_has_them(
    family: str, more: dict[str, Any], window: dict[str, Any]
) -> None:
    config = {"model_type": family, **dense(24, 1024, 4096, 16, 8, 32000, sliding_window=512), **more}
    attention = from_hugging_face(config).get("attention", {})
    assert {name: attention[name] for name in attention if name != "qk_norm"} == window


@pytest.mark.parametrize(
    ("more", "modules"),
    [
        ({"mtp_hybrid_override_pattern": "*E"}, (1, "*E")),
        ({"mtp_layers_block_type": ["attention", "moe"]}, (1, "*E")),
        ({"num_nextn_predict_layers": 0, "mtp_hybrid_override_pattern": "*E"}, (0, None)),
    ],
)
def test_modules_of_multi_token_prediction_of_nemotron(more: dict[str, Any], modules: tuple[int, str | None]) -> None:
    """By letters, as Nemotron 3 Super has them, or by names, as later ones."""
    state = {"mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 8, "conv_kernel": 4}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = {"model_type": "nemotron_h", "hybrid_override_pattern": "ME*E", **dense(4, 64, 128, 4, 2, 1000)}
    config |= {**state, **experts, "num_nextn_predict_layers": 1, **more}
    model = Architecture.model_validate({"name": "read", **from_hugging_face(config)})
    assert (model.mtp_layers, model.mtp_pattern) == modules


def test_windows_in_the_last_layers_alone_are_refused() -> None:
    config = {"model_type": "qwen3", **dense(24, 1024, 4096, 16, 8, 32000, sliding_window=512)}
    with pytest.raises(UnsupportedConfigError, match="max_window_layers"):
        from_hugging_face({**config, "use_sliding_window": True, "max_window_layers": 12})
