"""GPT-NeoX and its forks: what becomes of a width beside a gate, and what Transformer Engine runs in 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.inputs.errors import InputError

OLMO = """
"pipe_parallel_size": 1
"model_parallel_size": 1
"num_layers": 32
"hidden_size": 4096
"num_attention_heads": 32
"seq_length": 2048
"max_position_embeddings": 2048
"norm": rmsnorm
"pos_emb": rotary
"activation": swiglu
"no_weight_tying": true
"precision": bfloat16
"train_micro_batch_size_per_gpu": 1
"""
WHOLE = "taken as the width, as forks do; GPT-NeoX would take a third of it"
THIRD = "with a gate GPT-NeoX takes a third of it, 3672; forks take it whole"


def read(tmp_path: Path, text: str, **options: Any) -> Imported:
    (tmp_path / "config.yml").write_text(text, encoding="utf-8")
    return import_source(str(tmp_path / "config.yml"), ImportOptions("a100", 8, 8, 50304, **options))


@pytest.mark.parametrize(
    ("width", "more", "ffn", "told"),
    [
        (11008, "", 11008, WHOLE),  # a third would be 3,669
        (11016, "", 3672, THIRD),
        (12288, '"num_kv_heads": 8\n"num_layers": 36\n', 12288, WHOLE),  # Qwen3 8B
        (11008, '"te_layernorm_mlp": true\n', 11008, None),
    ],
)
def test_a_width_beside_a_gate_is_a_third_or_whole(
    tmp_path: Path, width: int, more: str, ffn: int, told: str | None
) -> None:
    """As MeridianResearch/geodesic-gpt-neox c43cf19 has it for OLMo 3, and Transformer Engine's layer everywhere."""
    text = OLMO.replace('"num_layers": 32\n', "") if "num_layers" in more else OLMO
    found = read(tmp_path, f'{text}{more}"intermediate_size": {width}\n')
    assert (found.model.ffn, found.model.gated_mlp) == (ffn, True)
    notes = [note for note in found.notes if note.startswith("intermediate_size")]
    assert notes == ([] if told is None else [f"intermediate_size {width}: {told}"])


def test_transformer_engine_runs_in_8_bits_where_its_attention_is_asked_to(tmp_path: Path) -> None:
    """The format alone changes nothing: fp8_context is entered by te_fp8_mha."""
    text = OLMO + '"te_fp8_format": hybrid\n"te_mha": true\n'
    found = read(tmp_path, text + '"te_fp8_mha": false\n')
    assert found.strategy is not None
    assert found.strategy.flash_attention
    assert found.unused == ()
    with pytest.raises(InputError) as caught:
        read(tmp_path, text + '"te_fp8_mha": true\n"gd_mode": true\n')
    assert [trouble.where for trouble in caught.value.troubles] == ["te_fp8_mha", "gd_mode"]


def test_llamas_block_of_2023_has_its_own_width_and_no_biases(tmp_path: Path) -> None:
    """configs/llama and llama2 of Vmjkom/gpt-neox 369a436: LLaMA 7B is 11,008 wide, in whole 256s, 70B as given."""
    text = OLMO.replace('activation": swiglu', 'activation": silu') + '"mlp_type": llama\n'
    found = read(tmp_path, text).model
    assert (found.ffn, found.gated_mlp, found.activation, found.bias_mlp) == (11008, True, "swiglu", False)
    given = read(tmp_path, text + '"intermediate_size": 12288\n')
    assert given.model.ffn == 12288
    assert not [note for note in given.notes if note.startswith("intermediate_size")]


def test_what_a_split_layer_or_deepspeed_does_besides_is_told(tmp_path: Path) -> None:
    """gpt-neox ea7aefd, megatron/model/transformer.py: one exchange for both blocks; mpu/mappings.py: in fp32."""
    text = OLMO + '"gpt_j_residual": true\n"fp32_allreduce": true\n"curriculum_learning": {"enabled": true}\n'
    text = text.replace('activation": swiglu', 'activation": gelu')
    split = read(tmp_path, text.replace('"model_parallel_size": 1', '"model_parallel_size": 2')).notes
    whole = read(tmp_path, text).notes
    for start in ("gpt_j_residual: ", "fp32_allreduce: "):
        assert [any(note.startswith(start) for note in notes) for notes in (split, whole)] == [True, False]
    assert any("curriculum_learning is not in the plan" in note for note in whole)
