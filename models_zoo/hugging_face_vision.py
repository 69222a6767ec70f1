"""The encoder of images in a Hugging Face configuration that has a text model and one beside it.

By the configuration and modelling code of transformers 5.23, whose encoders were counted parameter by parameter. Of
families that are not here the text model alone is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from models_zoo.hugging_face_llama import Config, Fields, Reader


def vision_fields(config: Config) -> Fields | None:
    """The fields of `Vision`; None where the configuration has no encoder, or one of a kind that is not known.

    Of a known one with keys that are missing or that no field can say, the text model alone is read too.
    """
    inner = config.get("vision_config")
    family = _FAMILIES.get(str(config.get("model_type")))
    if not isinstance(inner, Mapping) or family is None:
        return None
    reader = Reader(inner)
    fields = family(reader, config)
    return None if reader.reasons else fields


def _side(value: Any) -> Any:
    """One number of a size that may be given twice, for height and width."""
    return value[0] if isinstance(value, (list, tuple)) and value else value


def _qwen(r: Reader) -> Fields:
    """What Qwen's encoders share: two frames to a patch, 2 x 2 patches joined behind a norm, biases everywhere."""
    hidden, merge = r.size("hidden_size"), r.get("spatial_merge_size", default=2)
    return {
        "layers": r.size("depth"),
        "hidden": hidden,
        "ffn": r.size("intermediate_size"),
        "heads": r.size("num_heads"),
        "frames": r.get("temporal_patch_size", default=2),
        "merge": merge,
        "projector": hidden * merge**2,
        "projector_norm": "patch",
    }


def _qwen2_5(r: Reader, _config: Config) -> Fields:
    """A gated encoder with rotary positions and windows of pixels in all but every n-th layer."""
    patch, window = r.get("patch_size", default=14), r.get("window_size", default=112)
    full = r.get("fullatt_block_indexes", default=[7, 15, 23, 31])
    fields = _qwen(r)
    every = full[0] + 1 if full else fields["layers"]
    rule = [place for place in range(fields["layers"]) if (place + 1) % every == 0]
    r.refuse(list(full) != rule, "fullatt_block_indexes: full attention is not in every n-th layer")
    gated = {"gated_mlp": True, "activation": "swiglu", "norm": "rmsnorm"}
    windows = {"window": (window // patch) ** 2, "full_every": every}
    return {**fields, **gated, **windows, "patch": patch, "patch_bias": False}


def _qwen3(r: Reader, _config: Config) -> Fields:
    """Learned positions, and projectors of some layers' results for the decoder's first layers."""
    deep = len(r.get("deepstack_visual_indexes", default=[8, 16, 24]))
    positions = r.get("num_position_embeddings", default=2304)
    return {**_qwen(r), "patch": r.get("patch_size", default=16), "positions": positions, "deepstack": deep}


def _internvl(r: Reader, config: Config) -> Fields:
    """A class token, weights behind the blocks; pixels shuffled before a norm and the projector."""
    patch, size = _side(r.get("patch_size", default=14)), _side(r.get("image_size", default=448))
    biased = bool(r.get("attention_bias", default=False))
    r.refuse(r.get("use_qk_norm"), "use_qk_norm: norms of queries and keys in the encoder")
    return {
        "layers": r.get("num_hidden_layers", default=24),
        "hidden": r.get("hidden_size", default=1024),
        "ffn": r.get("intermediate_size", default=4096),
        "heads": r.get("num_attention_heads", default=16),
        "norm": "rmsnorm" if r.get("norm_type", default="layer_norm") == "rms_norm" else "layernorm",
        "bias_qkv": biased,
        "patch": patch,
        "positions": (size // patch) ** 2 + 1,
        "class_token": True,
        "layer_scale": True,
        "merge": round(1 / float(config.get("downsample_ratio", 0.5))),
        "projector_norm": "joined",
    }


def _llava_onevision(r: Reader, _config: Config) -> Fields:
    """SigLIP, whose last norm is there, and a projector of each patch."""
    patch, size = _side(r.get("patch_size", default=14)), _side(r.get("image_size", default=384))
    r.refuse(r.get("vision_use_head"), "vision_use_head: a pooling head behind the encoder")
    return {
        "layers": r.get("num_hidden_layers", default=26),
        "hidden": r.get("hidden_size", default=1152),
        "ffn": r.get("intermediate_size", default=4304),
        "heads": r.get("num_attention_heads", default=16),
        "patch": patch,
        "positions": (size // patch) ** 2,
        "final_norm": True,
    }


_FAMILIES: dict[str, Callable[[Reader, Config], Fields]] = {
    "qwen2_5_vl": _qwen2_5,
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3,
    "internvl": _internvl,
    "llava_onevision": _llava_onevision,
}
"""model_type -> how its vision_config is read."""
