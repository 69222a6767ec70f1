import re
from pathlib import Path

import pytest
from pydantic import ValidationError

import models_zoo
from models_zoo import (
    Architecture,
    UnknownModelError,
    active_parameters,
    architecture_names,
    embedding_parameters,
    final_norm_parameters,
    head_parameters,
    layer_parameters,
    list_architectures,
    load_architecture,
    other_names,
    special_layers,
    total_parameters,
)

SEED_NAMES = [
    "llama-7b",
    "llama-65b",
    "llama-175b",
    "llama-540b",
    "llama-1800b",
    "llama2-7b",
    "llama2-13b",
    "llama2-35b",
    "llama2-70b",
    "glm-67b",
    "glm-130b",
    "galactica-6.7b",
    "galactica-30b",
    "galactica-120b",
]
PROPOSALS = {"llama-175b", "llama-540b", "llama-1800b", "glm-67b", "gpt-moe-1.8t"}
NAMES = architecture_names()


def small(**changes: object) -> Architecture:
    fields = {"name": "mine", "layers": 2, "hidden": 64, "ffn": 256, "heads": 8, "vocab": 100}
    return Architecture.model_validate({**fields, **changes})


@pytest.mark.parametrize("name", NAMES)
def test_file_is_named_after_its_model_and_has_sources(name: str) -> None:
    arch = load_architecture(name)
    assert arch.name == name
    assert arch.sources
    assert arch.published_params_basis


def tolerance(arch: Architecture) -> float:
    """Fraction by which the count may miss the published size; rounded and nominal sizes allow 5 %."""
    basis = arch.published_params_basis or ""
    nominal = "nominal" in basis or "target size" in basis
    return 0.05 if nominal or arch.published_params_gap else 0.01


@pytest.mark.parametrize("name", NAMES)
def test_computed_count_is_the_published_one(name: str) -> None:
    arch = load_architecture(name)
    assert arch.published_params_billion is not None
    published = arch.published_params_billion * 1e9
    assert total_parameters(arch) == pytest.approx(published, rel=tolerance(arch))
    assert 0 < active_parameters(arch) <= total_parameters(arch)


def test_no_two_models_answer_to_one_name() -> None:
    owners: dict[str, str] = {}
    for arch in list_architectures():
        for claim in (arch.name, *other_names(arch)):
            assert owners.setdefault(claim.lower().replace("_", "-"), arch.name) == arch.name, claim


@pytest.mark.parametrize("name", NAMES)
def test_repositories_are_an_owner_and_a_name(name: str) -> None:
    for repository in load_architecture(name).hugging_face:
        assert re.fullmatch(r"[\w-]+/[\w.-]+", repository), repository
        assert load_architecture(repository).name == name


def test_catalogue_holds_the_seed_names_and_all_known_architectures() -> None:
    assert set(SEED_NAMES) <= set(NAMES)
    assert len(NAMES) >= 82


def test_shapes_that_nobody_published_say_so() -> None:
    marked = {arch.name for arch in list_architectures() if arch.proposal}
    assert marked == PROPOSALS
    assert all(load_architecture(name).confidence == "assumed" for name in PROPOSALS)


@pytest.mark.parametrize(
    ("name", "billion"),
    [
        ("gpt-oss-120b", 116.829),
        ("mixtral-8x22b", 140.621),
        ("llama4-maverick-400b", 400.712),
        ("deepseek-v2-lite", 15.706),
        ("deepseek-v3-671b", 671.026),
        ("deepseek-v3.2-671b", 671.878),
        ("deepseek-v4-flash-284b", 284.332),
        ("deepseek-v4-pro-1.6t", 1572.997),
        ("kimi-k3-2.8t", 2779.481),
        ("qwen3.5-397b-a17b", 396.346),
        ("nemotron3-super-120b-a12b", 120.669),
        ("gemma4-31b", 30.697),
    ],
)
def test_counts_of_unusual_layers(name: str, billion: float) -> None:
    assert total_parameters(load_architecture(name)) == pytest.approx(billion * 1e9, abs=1e6)


def test_llama2_70b_by_hand() -> None:
    arch = load_architecture("llama2-70b")
    layer = layer_parameters(arch)
    assert layer.attention_qkv == 8192 * (8192 + 2 * 1024)
    assert layer.attention_out == 8192 * 8192
    assert layer.mlp == 3 * 8192 * 28672
    assert layer.norms == 2 * 8192
    assert layer.total == layer.active == 855_654_400
    assert embedding_parameters(arch) == head_parameters(arch) == 32000 * 8192
    assert final_norm_parameters(arch) == 8192
    assert total_parameters(arch) == 68_976_648_192


def test_gpt3_175b_by_hand() -> None:
    arch = load_architecture("gpt3-175b")
    hidden, layer = 12288, layer_parameters(arch)
    assert layer.attention == 4 * hidden * hidden + 4 * hidden
    assert layer.mlp == 8 * hidden * hidden + 5 * hidden
    assert layer.norms == 4 * hidden
    assert head_parameters(arch) == 0
    assert embedding_parameters(arch) == (51200 + 2048) * hidden
    assert total_parameters(arch) == 96 * (12 * hidden**2 + 13 * hidden) + (51200 + 2048) * hidden + 2 * hidden


def test_experts_by_hand() -> None:
    arch = load_architecture("mixtral-8x7b")
    layer = layer_parameters(arch)
    assert layer.router == 4096 * 8
    assert layer.experts == 8 * 3 * 4096 * 14336
    assert layer.active_experts == 2 * 3 * 4096 * 14336
    assert layer.mlp == layer.shared_experts == 0


def test_latent_attention_by_hand() -> None:
    layer = layer_parameters(load_architecture("deepseek-v3-671b"), 3)
    queries = 7168 * 1536 + 1536 * 128 * 192
    keys_values = 7168 * 576 + 512 * 128 * 256
    assert layer.attention_qkv == queries + keys_values
    assert layer.attention_out == 128 * 128 * 7168
    assert layer.attention_norms == 1536 + 512
    assert layer.shared_experts == 3 * 7168 * 2048


def test_dense_layers_come_first_where_the_model_says_so() -> None:
    arch = load_architecture("deepseek-v3-671b")
    assert [arch.has_experts(index) for index in range(5)] == [False, False, False, True, True]
    assert layer_parameters(arch, 0).mlp == 3 * 7168 * 18432


def test_norm_bias_and_embedding_extras_by_hand() -> None:
    galactica, bloom = load_architecture("galactica-6.7b"), load_architecture("bloom-7b")
    assert embedding_parameters(galactica) == (50000 + 2048 + 2) * 4096
    assert layer_parameters(galactica).norms == 2 * 4096
    assert embedding_parameters(bloom) == 250880 * 4096 + 2 * 4096
    assert layer_parameters(bloom).norms == 4 * 4096


def test_layer_outside_the_model_is_an_error() -> None:
    with pytest.raises(IndexError, match=r"layers 0\.\.1"):
        layer_parameters(small(), 2)


def test_own_model_needs_six_fields() -> None:
    arch = small()
    assert (arch.kv_heads, arch.head_dim, arch.attention.kind) == (8, 8, "mha")
    assert total_parameters(arch) == 2 * (4 * 64 * 64 + 3 * 64 * 256 + 2 * 64) + 2 * 100 * 64 + 64


def test_all_wrong_fields_are_reported_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        small(layers=0, hidden=-1, colour="red")
    assert {error["loc"][0] for error in caught.value.errors()} == {"layers", "hidden", "colour"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 7}, "give head_dim"),
        ({"kv_heads": 3}, "not a multiple of kv_heads"),
        ({"position": "learned"}, "max_positions"),
        ({"ffn": 0}, "dense MLP"),
        ({"layer_pattern": "ME*"}, "3 letters but layers is 2"),
        ({"attention": {"kind": "mla"}}, "kv_lora"),
        ({"moe": {"experts": 2, "top_k": 3, "expert_ffn": 8}}, "moe.top_k 3 is more than moe.experts 2"),
    ],
)
def test_impossible_shapes_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        small(**changes)


@pytest.mark.parametrize("name", ["LLaMA2_34B", "llama2-34b", "Llama2-35B"])
def test_aliases_and_case(name: str) -> None:
    assert load_architecture(name).name == "llama2-35b"


@pytest.mark.parametrize(
    ("repository", "name"),
    [
        ("meta-llama/Llama-3.1-70B", "llama3.1-70b"),
        ("meta-llama/meta-llama-3.1-70b-instruct", "llama3.1-70b"),
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3-671b"),
        ("Llama-3.1-8B", "llama3.1-8b"),
    ],
)
def test_repositories_on_hugging_face_are_names(repository: str, name: str) -> None:
    assert load_architecture(repository).name == name


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [("meta-llama/Llama-3.1-71B", "meta-llama/Llama-3.1-70B"), ("deepseek-ai/DeepSeek-V5", "deepseek-ai/DeepSeek-V3")],
)
def test_an_unknown_repository_gives_the_nearest_one(unknown: str, nearest: str) -> None:
    with pytest.raises(UnknownModelError) as caught:
        load_architecture(unknown)
    assert nearest in caught.value.nearest


@pytest.mark.parametrize("name", ["llama3p1_405b", "llama3.1-405b"])
def test_other_spelling_of_the_dot(name: str) -> None:
    assert load_architecture(name).name == "llama3.1-405b"


def test_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(UnknownModelError, match="llama2-70b") as caught:
        load_architecture("llama2-70")
    assert caught.value.nearest[0] == "llama2-70b"
    with pytest.raises(KeyError):
        load_architecture("../llama2-70b")


@pytest.mark.parametrize(
    ("name", "sorts"),
    [
        ("llama2-70b", ()),
        ("nemotron3-super-120b-a12b", ("single_blocks", "state_space", "latent_experts", "repeated_modules")),
        ("qwen3.5-27b", ("delta_rule",)),
        ("kimi-k3-2.8t", ("kimi_delta", "latent_experts")),
        ("glm5-744b-a40b", ("sparse_attention",)),
        ("deepseek-v4-flash-284b", ("compressed_attention",)),
        ("gemma4-31b", ("own_widths",)),
        ("palm-540b", ("parallel_blocks",)),
    ],
)
def test_what_few_models_have_is_named(name: str, sorts: tuple[str, ...]) -> None:
    assert special_layers(load_architecture(name)) == sorts


def test_loading_one_model_reads_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    from models_zoo import catalogue

    catalogue._load_file.cache_clear()
    monkeypatch.setattr(catalogue, "_files", lambda: pytest.fail("scanned the catalogue"))
    assert load_architecture("llama2-70b").layers == 80


def test_data_lies_beside_the_package() -> None:
    assert (Path(models_zoo.__file__).parent / "data" / "llama2-70b.yaml").is_file()
