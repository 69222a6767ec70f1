"""The model of MindFormers' configurations since its Megatron-like core: `model_type`, sizes as on Hugging Face.

Read in mindspore-ai/mindformers 167a50de: mindformers/models/*/configuration_*.py (defaults of each model),
parallel_core/transformer_config_utils.py (other names of a field), training_graph (norms of queries and keys, experts).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cpsolver.doors.importing.catalogue_match import architecture_fields, named_fields
from cpsolver.doors.importing.reading import Fields, table
from cpsolver.inputs.errors import InputError
from cpsolver.inputs.language import say

_GATED = ("silu", "swiglu", "fusedswiglu")
_ROTARY = ("rope", "yarn", "llama3", "mrope", "partial_rope", "none", "default")
_USUAL = {"gated_linear_unit": True, "add_bias_linear": False, "normalization": "RMSNorm"}
"""What all models of the core that train have."""


def is_core(data: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a file is for the core: it says so, or it names its model as Hugging Face does."""
    return "type" not in config and (data.get("use_legacy") is False or "model_type" in config)


def core_model(fields: Fields, data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the architecture; what is wrong with them is among the troubles of `fields`."""
    kinds = table("mindformers_core")["models"]
    names = {other: name for name, others in table("mindformers_core")["names"].items() for other in others}
    names |= {name: name for name in table("mindformers_core")["names"]}
    given = {names[key]: fields.data[key] for key in fields.data if key in names and fields.has(key)}
    kind = fields.text("model_type")
    for name in ("arch", "qk_layernorm", "multi_latent_attention"):
        fields.has(name)
    if kind is None and isinstance(path := data.get("pretrained_model_dir"), str):
        return _named(fields, path, given)
    if kind not in kinds:
        fields.trouble("model.model_config.model_type", "is not planned for", kind, ", ".join(kinds))
        return {}
    config = {**kinds[kind]["defaults"], **{key: value for key, value in given.items() if value != 0}}
    config |= {"model_type": kinds[kind]["family"], "hidden_act": "silu"}
    if "kv_lora_rank" in config:
        config["n_routed_experts"] = config.pop("num_experts")
    if fields.flag("untie_embeddings_and_output_weights"):
        config["tie_word_embeddings"] = False
    for where, value in _unlike(fields, kinds[kind]):
        fields.trouble(f"model.model_config.{where}", "is not planned for", value)
    shared = fields.number("moe_shared_expert_intermediate_size", least=0)
    if shared and shared != (config.get("n_shared_experts") or 0) * config.get("moe_intermediate_size", 0):
        fields.trouble("model.model_config.moe_shared_expert_intermediate_size", "is not planned for", shared)
    try:
        return architecture_fields(config, fields.file)
    except InputError as error:
        fields.troubles += error.troubles
        return {}


def _named(fields: Fields, path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A model of the catalogue, or a folder's config.json; sizes beside it would be set over the model's own."""
    model = named_fields(path, fields.file, "pretrained_model_dir")
    if given:
        told = say("sets {names} over what pretrained_model_dir says: that is not read", names=", ".join(given))
        fields.trouble("model.model_config", told)
    return model


def _unlike(fields: Fields, kind: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What differs from the layers that the kind of model has."""
    expected = {**_USUAL, "multi_latent_attention": "kv_lora_rank" in kind["defaults"]}
    if "qk_layernorm" in kind:
        expected["qk_layernorm"] = kind["qk_layernorm"]
    for name, usual in expected.items():
        if fields.has(name) and fields.data[name] != usual:
            yield name, fields.data[name]
    for name, allowed in (("hidden_act", _GATED), ("position_embedding_type", _ROTARY)):
        if fields.has(name) and fields.data[name] not in allowed:
            yield name, fields.data[name]
