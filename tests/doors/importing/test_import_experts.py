"""Experts of other parsers than Megatron-LM's: their names, their defaults, and the grid that they stand on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpsolver.doors.importing.imported import ImportOptions, import_source
from tests.support.command import in_tmp  # noqa: F401
from tests.support.scripts import GPT, imported, plan, torchrun

DEEPSPEED = "--deepspeed --num-experts 64 --moe-expert-parallel-size 8 --tensor-model-parallel-size 2 "


def test_experts_of_deepspeed_are_whole_unless_told_otherwise() -> None:
    """Its layers.py (4efb479d) splits none by tensor parallelism without --enable-expert-tensor-parallelism."""
    whole = plan(torchrun(GPT + DEEPSPEED, devices=16))
    assert (whole.tp, whole.ep, whole.etp) == (2, 8, 1)
    split = torchrun(GPT + DEEPSPEED + "--enable-expert-tensor-parallelism", devices=16)
    assert plan(split).etp == 2
    assert "--enable-expert-tensor-parallelism" not in imported(split).unused


@pytest.mark.parametrize(
    ("more", "factor"),
    [("", 1.0), ("--moe-train-capacity-factor 1.25", 1.25), ("--disable-moe-token-dropping", None)],
)
def test_experts_of_deepspeed_drop_what_is_too_much_by_default(more: str, factor: float | None) -> None:
    training = imported(torchrun(GPT + DEEPSPEED + more, devices=16)).spec["training"]
    assert training.get("expert_capacity_factor") == factor


def test_experts_run_one_after_another_without_the_grouped_kernel() -> None:
    """SequentialMLP of Megatron-Core; DeepSpeed's have no such argument, a dense model has none to run."""
    experts = GPT + "--num-experts 8 --moe-router-topk 2 "
    assert imported(torchrun(experts)).spec["training"]["moe_grouped_gemm"] is False
    for text in (experts + "--moe-grouped-gemm", GPT, GPT + DEEPSPEED):
        assert "moe_grouped_gemm" not in imported(torchrun(text, devices=16)).spec["training"]


@pytest.mark.parametrize("grouped", [False, True])
def test_a_file_of_arguments_says_as_much_of_the_kernel_as_a_script(grouped: bool, tmp_path: Path) -> None:
    sizes = "--num-layers: 12, --hidden-size: 512, --num-attention-heads: 8, --micro-batch-size: 4, --vocab-size: 50304"
    more = (
        "--global-batch-size: 32, --seq-length: 1024, --max-position-embeddings: 1024, --bf16: true, --num-experts: 8"
    )
    (tmp_path / "config.yaml").write_text(
        f"MODEL_ARGS: {{{sizes}, {more}, --moe-grouped-gemm: {str(grouped).lower()}}}\n", encoding="utf-8"
    )
    training = import_source(str(tmp_path / "config.yaml"), ImportOptions("h100", 8, 8)).spec["training"]
    assert training.get("moe_grouped_gemm", True) is grouped


def test_experts_of_megablocks() -> None:
    """Its Megatron-LM has one expert a token by default, experts in every layer, on all replicas or on each."""
    text = GPT + "--moe-num-experts=16 --moe-capacity-factor=2 --moe-loss-weight=0.1 "
    found = imported(torchrun(text + "--moe-top-k=2 --moe-expert-model-parallelism"))
    moe = found.model.moe
    assert moe is not None
    assert (moe.experts, moe.top_k, moe.freq, moe.expert_ffn) == (16, 2, 1, 8192)
    assert found.strategy is not None
    assert (found.strategy.dp, found.strategy.ep) == (8, 8)
    assert found.spec["training"]["expert_capacity_factor"] == 2.0
    assert found.unknown == ("--moe-loss-weight",)
    assert not any("may change the plan" in note for note in found.notes)
    alone = imported(torchrun(text.replace("factor=2", "factor=0")))
    assert alone.strategy is not None
    assert alone.strategy.ep == 1
    assert alone.model.moe is not None
    assert alone.model.moe.top_k == 1
    assert "expert_capacity_factor" not in alone.spec["training"]


@pytest.mark.parametrize(
    ("kind", "width", "ep", "etp"), [("hf_mixtral", 4096, 1, 2), ("switchmlp", 8192, 1, 2), ("ds_moe", 8192, 8, 1)]
)
def test_experts_that_a_fork_of_deepspeed_has_beside_its_own(kind: str, width: int, ep: int, etp: int) -> None:
    """In every layer; those that are not DeepSpeed's stand on every rank, split by tp, and drop no token."""
    found = imported(torchrun(GPT + DEEPSPEED + f"--moe-type {kind} --moe-hidden-size 4096", devices=16))
    assert found.strategy is not None
    assert (found.strategy.ep, found.strategy.etp) == (ep, etp)
    assert found.model.moe is not None
    assert (found.model.moe.expert_ffn, found.model.moe.freq) == (width, 1)
    assert found.spec["training"].get("expert_capacity_factor") == (1.0 if kind == "ds_moe" else None)


def test_experts_of_a_switch_stand_on_every_rank_and_take_a_token_alone() -> None:
    """--num-experts-switch of Megatron-DeepSpeed 4efb479d (megatron/model/transformer.py, SwitchMLP)."""
    found = imported(torchrun(GPT + "--deepspeed --num-experts-switch 4 --tensor-model-parallel-size 2 --topk 2"))
    assert found.strategy is not None
    assert (found.strategy.ep, found.strategy.etp) == (1, 2)
    moe = found.model.moe
    assert moe is not None
    assert (moe.experts, moe.top_k, moe.freq) == (4, 1, 1)
    assert "expert_capacity_factor" not in found.spec["training"]
