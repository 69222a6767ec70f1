"""Parameters of models with layers of several sorts against those that transformers 5.23 builds from a configuration.

`data/built_counts.json` has the keys of each configuration that matter here, and the parameters of the model that
AutoModelForCausalLM makes of it: of published checkpoints by their repository (their configurations as kept by
ai-dynamo/aiconfigurator), of families by their default configuration. Beside rounding to 5 in 100,000 the two differ in
biases of routers, buffers there and parameters here, and in a bias of Phi's head.

`data/built_catalogue.json` has what transformers 5.23 builds of other entries of the catalogue, whose published sizes
are rounded or nominal: of the family's class with the entry's own sizes (Galactica's norms have weights there;
LongCat's experts that do nothing have weights in 5.24 that no token meets, which are left out).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from cpsolver.problem.problem import Problem
from models_zoo import (
    Architecture,
    UnknownModelError,
    from_hugging_face,
    list_architectures,
    load_architecture,
    total_parameters,
)
from tests.support.checkout import ROOT
from tests.support.problems import problem_of

BUILT: list[dict[str, Any]] = json.loads(
    (ROOT / "tests" / "catalogues" / "data" / "built_counts.json").read_text(encoding="utf-8")
)
OF_FAMILIES: dict[str, dict[str, Any]] = json.loads(
    (ROOT / "tests" / "catalogues" / "data" / "built_catalogue.json").read_text(encoding="utf-8")
)
NEAR = 5e-5


def catalogued(name: str) -> Architecture | None:
    try:
        return load_architecture(name) if "/" in name else None
    except UnknownModelError:
        return None


@pytest.mark.parametrize("row", BUILT, ids=lambda row: str(row["name"]))
def test_a_configuration_has_as_many_parameters_as_the_model_built_of_it(row: dict[str, Any]) -> None:
    read = Architecture.model_validate({"name": "read", **from_hugging_face(row["config"])})
    assert total_parameters(read) == pytest.approx(row["parameters"], rel=NEAR)


@pytest.mark.parametrize("row", [row for row in BUILT if catalogued(row["name"])], ids=lambda row: str(row["name"]))
def test_the_catalogue_has_as_many(row: dict[str, Any]) -> None:
    model = catalogued(row["name"])
    assert model is not None
    assert total_parameters(model) == pytest.approx(row["parameters"], rel=NEAR)
    planned: Problem = problem_of(model=row["config"])
    assert planned.model.layers == model.layers


def test_entries_with_rounded_sizes_are_as_their_family_builds_them() -> None:
    for name, built in OF_FAMILIES.items():
        assert total_parameters(load_architecture(name)) == pytest.approx(built["parameters"], rel=NEAR), name


def test_every_entry_but_two_is_within_three_thousandths_of_a_published_or_built_count() -> None:
    """GLM-130B's size is its name, and nothing builds it; that of gpt-moe-1.8t is made up."""
    compared = {load_architecture(row["name"]).name for row in BUILT if catalogued(row["name"])}
    compared |= {"qwen3-next-80b-a3b", *OF_FAMILIES}  # the first: its family's default configuration
    rounded = {
        arch.name
        for arch in list_architectures()
        if total_parameters(arch) != pytest.approx(1e9 * (arch.published_params_billion or 0), rel=3e-3)
    }
    assert rounded - compared == {"glm-130b", "gpt-moe-1.8t"}


def test_thirteen_entries_of_the_catalogue_are_compared() -> None:
    assert sum(catalogued(row["name"]) is not None for row in BUILT) >= 12


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gemma4_text", "enable_moe_block": True}, "experts beside the dense block"),
        ({"model_type": "gemma4_text", "num_kv_shared_layers": 2}, "another's keys and values"),
        ({"model_type": "gemma4_text", "hidden_size_per_layer_input": 8}, "embeddings for every layer"),
        ({"model_type": "cohere", "use_qk_norm": True}, "use_qk_norm"),
        ({"model_type": "deepseek_v4"}, "which layer compresses"),
        ({"model_type": "nemotron_h"}, "which layer is what"),
        ({"model_type": "qwen3_next", "layer_types": ["full_attention"] * 4}, "not in every n-th layer"),
    ],
)
def test_what_no_field_can_say_is_refused(changes: dict[str, Any], said: str) -> None:
    sizes = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    with pytest.raises(ValueError, match=said):
        from_hugging_face({**sizes, "num_key_value_heads": 4, "vocab_size": 100, **changes})
