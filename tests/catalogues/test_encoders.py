"""Encoders of images read from configurations, against those that transformers 5.23 builds of them.

`data/built_encoders.json` has the keys of each configuration that matter here, the parameters of the model that
AutoModelForImageTextToText makes of it (two decoder layers), and of these the encoder's with its projectors.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from models_zoo import (
    Architecture,
    encoder_parameters,
    from_hugging_face,
    load_architecture,
    projector_parameters,
    total_parameters,
)
from models_zoo.vision import Vision
from tests.support.checkout import ROOT

BUILT: list[dict[str, Any]] = json.loads(
    (ROOT / "tests" / "catalogues" / "data" / "built_encoders.json").read_text(encoding="utf-8")
)
SMALL: dict[str, Any] = {"name": "small", "layers": 1, "hidden": 8, "ffn": 8, "heads": 1, "vocab": 8}


@pytest.mark.parametrize("row", BUILT, ids=lambda row: str(row["name"]))
def test_decoder_and_encoder_are_told_apart_and_counted(row: dict[str, Any]) -> None:
    read = Architecture.model_validate({"name": "read", **from_hugging_face(row["config"])})
    newline = read.hidden if "LLaVA" in row["name"] else 0  # a row between images, which stands in no layer
    assert encoder_parameters(read) + projector_parameters(read) == row["encoder"] - newline
    assert total_parameters(read) == row["parameters"] - row["encoder"]


def test_an_older_configuration_has_the_text_model_beside_the_encoder() -> None:
    row = next(row for row in BUILT if "Qwen2.5" in row["name"])
    config = {**row["config"]["text_config"], **row["config"]}
    del config["text_config"]
    config["model_type"] = "qwen2_5_vl"
    assert from_hugging_face(config) == from_hugging_face(row["config"])


@pytest.mark.parametrize(
    "change",
    [{"fullatt_block_indexes": [3, 4]}, {"depth": None}, {"hidden_size": "wide"}],
    ids=str,
)
def test_of_an_encoder_that_no_field_can_say_the_text_model_alone_is_read(change: dict[str, Any]) -> None:
    row = next(row for row in BUILT if "Qwen2.5" in row["name"])
    config = {**row["config"], "vision_config": {**row["config"]["vision_config"], **change}}
    assert "vision" not in from_hugging_face(config)
    assert from_hugging_face(config)["layers"] == 2


def test_every_part_of_an_encoder_by_hand() -> None:
    """Width 4, one layer, no feed-forward biases: patches 3 x 2 x 2 x 2 x 4 + 4; 9 positions and a class token; norms
    2 x 2 x 4, queries to values 48 + 12, output 16 + 4, feed-forward 2 x 4 x 6, weights of channels 8, a last norm 8;
    16 joined, normed (32), to 5 and to 8 wide: 85 + 48; another such projector for the decoder's first layers."""
    fields = {
        "layers": 1,
        "hidden": 4,
        "ffn": 6,
        "heads": 2,
        "bias_mlp": False,
        "patch": 2,
        "frames": 2,
        "positions": 9,
    }
    more = {"class_token": True, "layer_scale": True, "final_norm": True, "merge": 2, "projector": 5, "deepstack": 1}
    vision = {**fields, **more, "projector_norm": "joined"}
    model = Architecture.model_validate({**SMALL, "vision": vision})
    layer = 2 * 2 * 4 + 48 + 12 + 16 + 4 + 2 * 4 * 6 + 8
    assert encoder_parameters(model) == 3 * 2 * 2 * 2 * 4 + 4 + 10 * 4 + layer + 8
    assert projector_parameters(model) == 2 * (85 + 48 + 32)


def test_no_model_of_the_catalogue_has_one_yet() -> None:
    plain = load_architecture("llama2-7b")
    assert (encoder_parameters(plain), projector_parameters(plain), plain.vision) == (0, 0, None)


def test_fields_are_checked() -> None:
    both = {"layers": 1, "hidden": 5, "ffn": 6, "heads": 2, "window": 4, "full_every": 2}
    with pytest.raises(ValueError, match="hidden 5 is not a multiple of heads 2; full_every 2 is more than layers 1"):
        Vision.model_validate(both)
    with pytest.raises(ValueError, match="vision"):
        Architecture.model_validate({**SMALL, "vision": {"layers": 1, "hidden": 4, "ffn": 6, "heads": 2, "pach": 3}})
    assert Vision(layers=1, hidden=4, ffn=6, heads=2, merge=3).joined == 36
