"""PaddleNLP's and PaddleFormers' trainers: the model in a folder beside the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.inputs.errors import InputError

TRAINER = {
    "model_name_or_path": "llama",
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 16,
    "tensor_parallel_degree": 2,
    "sharding": "stage1",
    "max_seq_length": 2048,
    "bf16": True,
}
SIZES = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8, "num_hidden_layers": 8}
CONFIG = {"model_type": "llama", "vocab_size": 32000, "max_position_embeddings": 2048, **SIZES}


def read(tmp_path: Path, config: dict[str, Any]) -> Imported:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "pretrain.json").write_text(json.dumps(TRAINER), encoding="utf-8")
    return import_source(str(tmp_path / "pretrain.json"), ImportOptions("a100", 8, 8))


def test_a_model_in_a_folder_has_its_own_defaults(tmp_path: Path) -> None:
    """What a config.json leaves to its family is not what Megatron-LM's arguments leave out."""
    found = read(tmp_path, CONFIG).model
    assert (found.gated_mlp, found.activation, found.norm) == (True, "swiglu", "rmsnorm")
    assert (found.position, found.tied_embeddings, found.ffn) == ("rope", False, 2816)


def test_a_model_that_there_cannot_be_is_an_error_of_its_file(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, {**CONFIG, "num_key_value_heads": 3})
    assert [trouble.where for trouble in caught.value.troubles] == ["model.kv_heads"]
    assert str(caught.value.troubles[0].file).endswith("config.json")
